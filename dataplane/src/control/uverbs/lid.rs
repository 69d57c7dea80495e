//! LIDs, for programs that were written for InfiniBand and know no GIDs, as qperf.
//!
//! A RoCE port has none, so this is off unless the NIC's configuration says `lids = true`. Then a LID is the host part of
//! an IPv4 address: an address vector without GID that names LID n means the n-th address of the NIC's own network. Nobody
//! has to be asked for it, so it works between daemons as well.

use std::net::Ipv4Addr;

use roceline_engine::wire::Gid;

use super::abi::QpDest;
use crate::nic::{NicInfo, host_bits};

/// An address vector with the GID that its LID stands for; the same where LIDs are off or stand for nothing.
pub fn resolve(nic: &NicInfo, dest: &QpDest) -> QpDest {
    let own = nic.addresses.now().first_ipv4();
    let lid = u32::from(dest.dlid);
    match own {
        Some((ip, prefix)) if nic.lid != 0 && dest.is_global == 0 => {
            let hosts = host_bits(prefix);
            if lid == 0 || lid & !hosts != 0 {
                return *dest;
            }
            let peer = Ipv4Addr::from_bits(ip.to_bits() & !hosts | lid);
            QpDest {
                is_global: 1,
                dgid: Gid::from_ip(peer.into()).0,
                // The first IPv4 address is the first of the table, and stays as long as there are LIDs.
                sgid_index: 0,
                flow_label: 0,
                traffic_class: 0,
                ..*dest
            }
        }
        _ => *dest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::nic;
    use roceline_engine::verbs::Mtu;
    use std::net::IpAddr;

    #[test]
    fn address_vectors_without_gid_are_resolved_where_lids_are_on() {
        let mut nic = nic(0, Mtu::M4096);
        let dest = |dlid| QpDest {
            dlid,
            sl: 3,
            port_num: 1,
            sgid_index: 7,
            ..QpDest::default()
        };
        assert_eq!(resolve(&nic, &dest(2)).is_global, 0);
        nic.lid = 1;
        let resolved = resolve(&nic, &dest(2));
        let peer: IpAddr = "10.77.0.2".parse().expect("an address");
        assert_eq!(resolved.dgid, Gid::from_ip(peer).0);
        assert_eq!(
            (resolved.is_global, resolved.sgid_index, resolved.sl),
            (1, 0, 3)
        );
        // Not of this network, or none.
        assert_eq!(resolve(&nic, &dest(0x100)).is_global, 0);
        assert_eq!(resolve(&nic, &dest(0)).is_global, 0);
        // Who names a GID means it.
        let named = QpDest {
            is_global: 1,
            ..dest(2)
        };
        assert_eq!(resolve(&nic, &named).dgid, [0; 16]);
    }
}
