//! The `port` of a NIC: which of the three kinds it is, and whether DPDK can know such a device. EAL says no more than
//! an errno, so what can be seen in the text alone is told here.

use super::PortSpec;
use super::error::nearest;

/// Virtual drivers of this build (`dpdk-sys/build.rs` has the archives), as their devices' names begin.
const DRIVERS: [&str; 9] = [
    "net_af_packet",
    "net_memif",
    "net_null",
    "net_pcap",
    "net_ring",
    "net_tap",
    "net_tun",
    "net_vhost",
    "net_virtio_user",
];
/// With plugins, EAL alone knows which drivers there are.
const DRIVERS_ARE_KNOWN: bool = !cfg!(feature = "shared");

/// Reads a port. The error says what is wrong and what to write.
pub(super) fn parse(text: &str) -> Result<PortSpec, String> {
    match text.split_once(':') {
        Some(("fabric", name)) if !name.is_empty() => Ok(PortSpec::Fabric(name.into())),
        Some(("vdev", device)) if device.starts_with("net_") => {
            vdev(device).map(|()| PortSpec::Vdev(device.into()))
        }
        Some(("pci", device)) => pci(device).map(PortSpec::Pci),
        _ => Err(
            "must be \"fabric:LINK\", \"vdev:net_DRIVERn,key=value,...\" or \
             \"pci:DOMAIN:BUS:DEVICE.FUNCTION\""
                .into(),
        ),
    }
}

/// The bus finds a driver by the beginning of the device's name.
fn vdev(device: &str) -> Result<(), String> {
    let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
    let known = DRIVERS.iter().any(|driver| {
        name.strip_prefix(driver)
            .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
    });
    if DRIVERS_ARE_KNOWN && !known {
        let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let hint = nearest(driver, &DRIVERS)
            .filter(|near| *near != driver)
            .map_or_else(String::new, |near| format!(", did you mean {near}0?"));
        return Err(format!(
            "there is no virtual driver {driver:?} in this build{hint}; there are {}",
            DRIVERS.join(", ")
        ));
    }
    let empty = |pair: &str| pair.is_empty() || pair.starts_with('=');
    if device.contains(',') && arguments.split(',').any(empty) {
        return Err("after the device's name come key=value pairs, separated by commas".into());
    }
    Ok(())
}

/// `[DOMAIN:]BUS:DEVICE.FUNCTION`, and perhaps arguments for the driver. Gives it with the domain, which is how EAL names the
/// device.
fn pci(device: &str) -> Result<String, String> {
    let (address, arguments) = match device.find(',') {
        Some(at) => device.split_at(at),
        None => (device, ""),
    };
    let parsed = || {
        let (rest, function) = address.rsplit_once('.')?;
        let mut parts = rest.rsplit(':');
        let (slot, bus) = (parts.next()?, parts.next()?);
        let domain = parts.next().unwrap_or("0000");
        let ok = parts.next().is_none()
            && hex(domain, 4, 0xffff)
            && hex(bus, 2, 0xff)
            && hex(slot, 2, 0x1f)
            && hex(function, 1, 7);
        let whole = || format!("{domain}:{bus}:{slot}.{function}").to_ascii_lowercase();
        ok.then(|| whole() + arguments)
    };
    parsed().ok_or_else(|| {
        "must be a PCI address as `lspci -D` prints it, such as \"pci:0000:01:00.0\"".into()
    })
}

fn hex(digits: &str, len: usize, most: u32) -> bool {
    digits.len() == len
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && u32::from_str_radix(digits, 16).is_ok_and(|value| value <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_drivers_are_those_of_this_build() {
        for good in [
            "vdev:net_null0",
            "vdev:net_virtio_user1,path=/tmp/x,server=1",
            "vdev:net_memif0,role=server,socket=/tmp/x",
            "vdev:net_tap12,iface=x",
        ] {
            assert!(matches!(parse(good), Ok(PortSpec::Vdev(_))), "{good}");
        }
        let error = parse("vdev:net_mmeif0,role=server").unwrap_err();
        assert!(
            error.contains("\"net_mmeif\"") && error.contains("did you mean net_memif0?"),
            "{error}"
        );
        let error = parse("vdev:net_af_xdp0,iface=eth0").unwrap_err();
        assert!(
            error.contains("\"net_af_xdp\"") && error.contains("net_vhost"),
            "{error}"
        );
        for bad in [
            "vdev:net_null0,",
            "vdev:net_null0,,size=64",
            "vdev:net_null0,=64",
        ] {
            assert!(parse(bad).unwrap_err().contains("key=value"), "{bad}");
        }
    }

    #[test]
    fn pci_addresses_are_made_whole() {
        for (text, device) in [
            ("pci:0000:01:00.0", "0000:01:00.0"),
            ("pci:5e:1F.7", "0000:5e:1f.7"),
            ("pci:01:00.1,Mprq=Yes", "0000:01:00.1,Mprq=Yes"),
        ] {
            assert_eq!(parse(text), Ok(PortSpec::Pci(device.into())));
        }
        for bad in [
            "pci:",
            "pci:eth0",
            "pci:0000:01:00",
            "pci:0000:01:20.0",
            "pci:0000:01:00.8",
            "pci:0:1:0.0",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(
                error.contains("lspci -D") && error.contains("0000:01:00.0"),
                "{error}"
            );
        }
    }
}
