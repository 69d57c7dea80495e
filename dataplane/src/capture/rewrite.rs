//! Changes to packets of a capture, so that they fit the NIC and the queue pairs of a replay.

use std::net::IpAddr;
use std::str::FromStr;

use roceline_engine::wire::{bth, icrc, ipv4, ipv6, parse, udp};

/// `OLD=NEW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map<T> {
    /// What is replaced.
    pub old: T,
    /// What takes its place.
    pub new: T,
}

impl FromStr for Map<u32> {
    type Err = String;

    fn from_str(text: &str) -> Result<Map<u32>, String> {
        let qpn = |text: &str| {
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.ok().filter(|qpn| *qpn <= 0xff_ffff)
        };
        let (old, new) = text.split_once('=').ok_or("write it as OLD=NEW")?;
        match (qpn(old), qpn(new)) {
            (Some(old), Some(new)) => Ok(Map { old, new }),
            _ => Err("QP numbers are from 0 to 0xffffff, such as 0x11=0x12".into()),
        }
    }
}

impl FromStr for Map<IpAddr> {
    type Err = String;

    fn from_str(text: &str) -> Result<Map<IpAddr>, String> {
        let (old, new) = text.split_once('=').ok_or("write it as OLD=NEW")?;
        let address = |text: &str| {
            text.parse::<IpAddr>()
                .map_err(|_| format!("{text:?} is no address"))
        };
        let (old, new) = (address(old)?, address(new)?);
        if old.is_ipv4() != new.is_ipv4() {
            return Err("both must be IPv4 or both IPv6: packets keep their form".into());
        }
        Ok(Map { old, new })
    }
}

/// What to change.
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// Destination QPNs.
    pub qpns: Vec<Map<u32>>,
    /// Source and destination addresses.
    pub addrs: Vec<Map<IpAddr>>,
}

impl Rewrite {
    /// Changes a frame. Its checksums follow, and its ICRC if it was right before; a wrong one stays wrong.
    /// True if something was changed. What is not a well-formed RoCE packet stays as it is.
    pub fn apply(&self, frame: &mut [u8]) -> bool {
        let Ok(parsed) = parse(frame) else {
            return false;
        };
        let sealed = icrc::verify(frame, &parsed);
        let (l3, end) = (parsed.l3_offset as usize, parsed.icrc_offset as usize);
        let v4 = parsed.packet.src.ipv4().is_some();
        let (ip_len, addresses) = match v4 {
            true => (ipv4::LEN, 12..20),
            false => (ipv6::LEN, 8..40),
        };
        let mut changed = false;
        for address in frame[l3..][addresses].chunks_exact_mut(if v4 { 4 } else { 16 }) {
            let map = self.addrs.iter().find(|map| match map.old {
                IpAddr::V4(ip) => *address == ip.octets(),
                IpAddr::V6(ip) => *address == ip.octets(),
            });
            if let Some(map) = map {
                match map.new {
                    IpAddr::V4(ip) => address.copy_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => address.copy_from_slice(&ip.octets()),
                }
                changed = true;
            }
        }
        if changed {
            if v4 {
                ipv4::set_checksum(&mut frame[l3..]);
            }
            // It covers the addresses; 0 means that there is none.
            frame[l3 + ip_len + 6..][..2].fill(0);
        }
        let qpn = parsed.packet.dest_qpn;
        if let Some(map) = self.qpns.iter().find(|map| map.old == qpn) {
            let at = l3 + ip_len + udp::LEN + 5;
            frame[at..at + 3].copy_from_slice(&map.new.to_be_bytes()[1..]);
            changed = true;
        }
        if changed && sealed {
            icrc::seal(&mut frame[..end + icrc::LEN], l3);
        }
        changed
    }
}

const _: () = assert!(
    bth::LEN == 12,
    "the destination QPN is in bytes 5 to 7 of the BTH"
);

#[cfg(test)]
mod tests {
    use super::*;
    use roceline_engine::descriptor::{Payload, Side, TxDesc};
    use roceline_engine::verbs::{Path, QpId};
    use roceline_engine::wire::{ExtHeaders, Gid, HeaderTemplate, Opcode, Psn};

    fn frame(src: &str, dst: &str) -> Vec<u8> {
        let path = Path {
            sgid: Gid::from_ip(src.parse().unwrap()),
            dgid: Gid::from_ip(dst.parse().unwrap()),
            ..Path::default()
        };
        let desc = TxDesc {
            qp: QpId(0),
            epoch: 0,
            side: Side::Requester,
            opcode: Opcode::RC_SEND_ONLY,
            ack_req: true,
            solicited: false,
            psn: Psn::new(5),
            ext: ExtHeaders::default(),
            len: 7,
            payload: Payload::None,
            ..TxDesc::default()
        };
        let template = HeaderTemplate::new(&path, 0xc000, 0x11, 0xffff);
        let mut frame = vec![0; template.frame_len(desc.opcode, desc.len)];
        template.write(&desc, 1, &mut frame).unwrap();
        icrc::seal(&mut frame, HeaderTemplate::L3_OFFSET);
        frame
    }

    fn rewrite() -> Rewrite {
        Rewrite {
            qpns: vec!["0x11=0x12".parse().unwrap(), "0x12=0x13".parse().unwrap()],
            addrs: vec![
                "10.0.0.1=10.77.0.1".parse().unwrap(),
                "10.0.0.2=10.77.0.2".parse().unwrap(),
                "fd00::2=fd77::2".parse().unwrap(),
            ],
        }
    }

    #[test]
    fn packets_get_new_names_and_stay_whole() {
        for (src, dst, new_src, new_dst) in [
            ("10.0.0.1", "10.0.0.2", "10.77.0.1", "10.77.0.2"),
            ("fd00::9", "fd00::2", "fd00::9", "fd77::2"),
        ] {
            let mut frame = frame(src, dst);
            // An Ethernet frame may be longer than the packet in it.
            frame.extend([0; 3]);
            assert!(rewrite().apply(&mut frame));
            let parsed = parse(&frame).expect("checksums are right");
            assert!(icrc::verify(&frame, &parsed));
            assert_eq!(parsed.packet.dest_qpn, 0x12, "each is mapped once");
            assert_eq!(parsed.packet.src, Gid::from_ip(new_src.parse().unwrap()));
            assert_eq!(parsed.packet.dst, Gid::from_ip(new_dst.parse().unwrap()));
        }
    }

    #[test]
    fn a_wrong_icrc_stays_wrong_and_what_does_not_fit_stays() {
        let mut bad = frame("10.0.0.1", "10.0.0.2");
        *bad.last_mut().unwrap() ^= 1;
        assert!(rewrite().apply(&mut bad));
        assert!(!icrc::verify(&bad, &parse(&bad).unwrap()));
        let other = frame("10.0.0.3", "10.0.0.4");
        let only_addrs = Rewrite {
            qpns: vec![],
            ..rewrite()
        };
        let mut same = other.clone();
        assert!(!only_addrs.apply(&mut same));
        assert_eq!(same, other);
        assert!(!rewrite().apply(&mut [0; 40]));
        assert!(!rewrite().apply(&mut []));
    }

    #[test]
    fn maps_are_checked() {
        for bad in ["1", "1=", "x=2", "1=0x1000000", "-1=2"] {
            assert!(bad.parse::<Map<u32>>().is_err(), "{bad}");
        }
        for bad in ["10.0.0.1", "10.0.0.1=fd00::1", "10.0.0.1=10.0.0.256"] {
            assert!(bad.parse::<Map<IpAddr>>().is_err(), "{bad}");
        }
    }
}
