//! `rx_ring` and `tx_ring` of a NIC: how many packets wait between it and what carries them.

use toml::Spanned;

use super::check::Checker;
use super::{ConfigError, PortSpec, file};
use crate::fabric::plan::Plan;

/// Packets of a direction of an emulated link, unless set.
pub(crate) const LINK_PACKETS: u32 = 1024;
/// Descriptors of a queue of a DPDK device, unless set.
const DEVICE: u32 = 512;
/// Fewer than two bursts would make each wait for the other; more than this is memory that no cache holds.
const RANGE: std::ops::RangeInclusive<u32> = 64..=4096;

/// Packets that a NIC's rings hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Received and not yet taken. Of an emulated link, that is the ring of whoever sends.
    pub rx: u32,
    /// Given to the port and not yet sent.
    pub tx: u32,
}

impl Rings {
    /// Of a NIC on such a port that says nothing.
    pub(super) fn of(port: &PortSpec) -> Rings {
        let packets = match port {
            PortSpec::Fabric(_) => LINK_PACKETS,
            PortSpec::Vdev(_) | PortSpec::Pci(_) => DEVICE,
        };
        Rings {
            rx: packets,
            tx: packets,
        }
    }

    /// Packet buffers that they hold beyond what every lcore has for rings.
    pub fn more_mbufs(&self, port: &PortSpec) -> u32 {
        let usual = Rings::of(port);
        let tx = match port {
            // What it is made with, not what was asked for: a power of two.
            PortSpec::Fabric(_) => self.tx.next_power_of_two(),
            PortSpec::Vdev(_) | PortSpec::Pci(_) => self.tx,
        };
        self.rx.saturating_sub(usual.rx) + tx.saturating_sub(usual.tx)
    }
}

impl Checker<'_> {
    /// The rings of a NIC.
    pub(super) fn rings(
        &self,
        nic: &file::Nic,
        port: &PortSpec,
        fabric: &Plan,
    ) -> Result<Rings, ConfigError> {
        let mut rings = Rings::of(port);
        if let PortSpec::Fabric(name) = port {
            let on_switch = fabric.switch(name).is_some();
            let refused = match (&nic.rx_ring, &nic.tx_ring) {
                (_, Some(value)) if on_switch => Some(("tx_ring", value)),
                (Some(value), _) => Some(("rx_ring", value)),
                _ => None,
            };
            if let Some((key, value)) = refused {
                let problem = match on_switch {
                    true => {
                        "the port is on a switch, whose `buffer` says how much waits; remove it"
                    }
                    false => {
                        "an emulated link has one queue for each direction, that of its sender: set tx_ring of the NIC at the \
                         other end"
                    }
                };
                return Err(self.bad(key, value.as_ref(), value.span(), problem));
            }
        }
        let set = |key, value: &Option<Spanned<i64>>, ring: &mut u32| {
            if let Some(value) = value {
                *ring = self.number(key, value, RANGE)?;
            }
            Ok(())
        };
        set("rx_ring", &nic.rx_ring, &mut rings.rx)?;
        set("tx_ring", &nic.tx_ring, &mut rings.tx)?;
        Ok(rings)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const SWITCH: &str = "[fabric]\nswitch = [{ name = \"tor\" }]\n";

    fn parse(port: &str, keys: &str, rest: &str) -> Result<Config, String> {
        let nic = |n: u8, keys: &str| {
            format!(
                "[[nic]]\nname = \"r{n}\"\naddresses = [\"10.0.0.{n}/24\"]\nport = \"{port}\"\n{keys}\n"
            )
        };
        let other = match port {
            _ if port.starts_with("fabric:") => nic(2, ""),
            _ => String::new(),
        };
        let text = format!("{rest}{}{other}", nic(1, keys));
        Config::parse("f.toml", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_ring_is_what_the_port_has_unless_set() {
        let rings = |port, keys| {
            let config = parse(port, keys, "").unwrap();
            let rings = config.nics[0].rings;
            let more = rings.more_mbufs(&config.nics[0].port);
            (rings.rx, rings.tx, more, config.eal.memory_mb)
        };
        assert_eq!(rings("fabric:a", ""), (1024, 1024, 0, 256));
        assert_eq!(rings("fabric:a", "tx_ring = 64"), (1024, 64, 0, 256));
        let (_, tx, more, _) = rings("fabric:a", "tx_ring = 2049");
        assert_eq!((tx, more), (2049, 3072), "the ring has 4096 slots");
        assert_eq!(rings("vdev:net_null0", ""), (512, 512, 0, 256));
        // What waits in larger rings is in packet buffers, which take memory.
        let (rx, tx, more, memory) = rings("vdev:net_null0", "rx_ring = 4096");
        assert_eq!((rx, tx, more), (4096, 512, 3584));
        assert!(memory >= 256 + 3584 * 5 / 1024, "{memory}");
    }

    #[test]
    fn a_ring_that_does_not_exist_is_refused_with_the_one_that_does() {
        let says = |port, keys, rest, contains: &str| {
            let error = parse(port, keys, rest).unwrap_err();
            assert!(error.contains(contains), "{error}");
        };
        let from = "must be from 64 to 4096";
        says("vdev:net_null0", "rx_ring = 32", "", from);
        says("fabric:a", "tx_ring = 8192", "", from);
        let other = "set tx_ring of the NIC at the other end";
        says("fabric:a", "rx_ring = 256", "", other);
        let buffer = "whose `buffer` says how much waits";
        says("fabric:tor", "tx_ring = 256", SWITCH, buffer);
        says("fabric:tor", "rx_ring = 256", SWITCH, buffer);
    }
}
