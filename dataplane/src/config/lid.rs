//! `lids` of a NIC: whether programs that know no GIDs may name addresses by numbers.

use std::net::IpAddr;
use std::ops::Range;

use super::ConfigError;
use super::check::Checker;
use crate::nic::lid_of;

impl Checker<'_> {
    /// The LID of a NIC that is to have one.
    pub(super) fn lid(
        &self,
        addresses: &[(IpAddr, u8)],
        span: Range<usize>,
    ) -> Result<u16, ConfigError> {
        let first = addresses.iter().find_map(|&(ip, prefix)| match ip {
            IpAddr::V4(v4) => Some((v4, prefix)),
            IpAddr::V6(_) => None,
        });
        first
            .and_then(|(ip, prefix)| lid_of(ip, prefix))
            .ok_or_else(|| {
                let problem = "a LID is the host part of the first IPv4 address, from 1 to 49151: the NIC needs such an \
                               address, such as \"10.77.0.1/24\"";
                self.bad("lids", "true", span, problem)
            })
    }
}
