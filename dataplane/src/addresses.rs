//! Which addresses a NIC has: its GID table, and what may be an address at all.
//!
//! In: addresses of the configuration, and changes, one at a time, while the daemon runs. Out: the table as it is, to whoever
//! asks. The lcores of the NIC have copies of their own, which only a message changes.
//!
//! An entry keeps its index for as long as it is there, since programs hold indices; what goes leaves its index empty.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, PoisonError, RwLock};

use roceline_engine::wire::Gid;

use crate::neighbour::same_subnet;

/// Entries of a port's GID table, `gid_tbl_len` of QUERY_PORT: those that exist, and zero GIDs.
pub const GID_TABLE_LEN: usize = 16;

/// Where an address is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration names it.
    Configured,
    /// It was added while the daemon runs.
    Added,
    /// It follows from the MAC address, and nobody named it.
    Mac,
}

impl Origin {
    /// In a word, for people.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Configured => "configuration",
            Origin::Added => "added",
            Origin::Mac => "mac",
        }
    }
}

/// An address of a NIC. All are entries of the GID table, and all of those are RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its subnet.
    pub prefix: u8,
    /// Where it is from.
    pub origin: Origin,
}

impl Address {
    /// One that the configuration names.
    pub fn configured(ip: IpAddr, prefix: u8) -> Address {
        Address {
            ip,
            prefix,
            origin: Origin::Configured,
        }
    }

    /// As its GID.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.ip)
    }
}

/// As `10.77.0.1/24`.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// The addresses of a NIC by their GID indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Up to the highest index that ever had one.
    entries: Vec<Option<Address>>,
}

impl Table {
    /// Its GIDs with their indices.
    pub fn gids(&self) -> impl Iterator<Item = (usize, Gid)> {
        self.iter().map(|(index, address)| (index, address.gid()))
    }

    /// Its addresses with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Address)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// The address of an index; none if it is empty.
    pub fn get(&self, index: usize) -> Option<&Address> {
        self.entries.get(index)?.as_ref()
    }

    /// The GID of an index; none if it is empty.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.get(index).map(Address::gid)
    }

    /// Indices up to the last one in use.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Where an address is.
    pub fn find(&self, ip: IpAddr) -> Option<(usize, &Address)> {
        self.iter().find(|(_, address)| address.ip == ip)
    }

    /// The first IPv4 address with its prefix.
    pub fn first_ipv4(&self) -> Option<(Ipv4Addr, u8)> {
        self.iter().find_map(|(_, address)| match address.ip {
            IpAddr::V4(v4) => Some((v4, address.prefix)),
            IpAddr::V6(_) => None,
        })
    }

    /// Those that somebody named: all but the one that only follows from the MAC address.
    pub fn given(&self) -> impl Iterator<Item = &Address> {
        let all = self.iter().map(|(_, address)| address);
        all.filter(|address| address.origin != Origin::Mac)
    }

    /// Whether an address has gone: indices that are empty may still be held by queue pairs and address handles.
    pub fn has_gaps(&self) -> bool {
        self.entries.contains(&None)
    }

    /// The first empty index, without those of `held`, a bit each.
    pub fn first_free(&self, held: u32) -> Option<usize> {
        (0..GID_TABLE_LEN).find(|&index| self.get(index).is_none() && held >> index & 1 == 0)
    }

    /// The prefix of an address that came without: that of the subnet that has it, else all of its bits.
    pub fn prefix_for(&self, ip: IpAddr) -> u8 {
        let mut own = self.iter().map(|(_, address)| address);
        let own = own.find(|own| same_subnet(own.ip, ip, own.prefix));
        own.map_or(longest_prefix(ip), |own| own.prefix)
    }

    /// The same with another address, or none, at an index of the table.
    #[must_use]
    pub fn with(&self, index: usize, address: Option<Address>) -> Table {
        let mut entries = self.entries.clone();
        if index >= entries.len() {
            entries.resize(index + 1, None);
        }
        entries[index] = address;
        Table { entries }
    }
}

impl FromIterator<Address> for Table {
    fn from_iter<I: IntoIterator<Item = Address>>(addresses: I) -> Table {
        Table {
            entries: addresses.into_iter().map(Some).collect(),
        }
    }
}

/// The table of a NIC. Clones share it.
#[derive(Clone, Debug)]
pub struct Addresses(Arc<RwLock<Arc<Table>>>);

impl Addresses {
    /// As at the start.
    pub fn new(table: Table) -> Addresses {
        Addresses(Arc::new(RwLock::new(Arc::new(table))))
    }

    /// As they are.
    pub fn now(&self) -> Arc<Table> {
        // A table is stored whole, or not.
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&held)
    }

    /// From now on.
    pub fn set(&self, table: Table) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }
}

/// How an address is written, for who did not.
pub const FORM: &str =
    "must be an address with a prefix length, such as \"10.77.0.1/24\" or \"fd77::1/64\"";

/// The address that a text names, of one host, with the length of its prefix if the text has one.
///
/// # Errors
/// What is wrong with it, as the rest of a sentence about it.
pub fn parse(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| FORM)?;
    if let Some(v4) = mapped(ip) {
        let bits = prefix.map(|prefix| {
            let bits = prefix.parse::<u8>();
            format!(
                "/{}",
                bits.map_or(24, |bits| bits.saturating_sub(96).min(32))
            )
        });
        return Err(format!(
            "this is an IPv4 address inside of an IPv6 one; write it as \"{v4}{}\"",
            bits.unwrap_or_default()
        ));
    }
    let prefix = prefix.map(|prefix| prefix.parse::<u8>().map_err(|_| FORM));
    let prefix = prefix.transpose()?;
    if prefix.is_some_and(|prefix| prefix > longest_prefix(ip)) {
        return Err("the prefix is longer than the address".into());
    }
    if !is_host(ip) {
        return Err("must be the address of one host, and not a loopback address".into());
    }
    Ok((ip, prefix))
}

fn longest_prefix(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The IPv4 address in an IPv4-mapped IPv6 one. Its GID is that of the IPv4 address (RoCE v2 writes IPv4 addresses
/// so), but its packets would be of the other family.
pub fn mapped(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => v6.to_ipv4_mapped(),
    }
}

/// Whether it is the address of one host, and not a loopback address.
pub fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn table() -> Table {
        let given = [("10.0.0.1", 24), ("fd00::1", 64)];
        let given = given.map(|(text, prefix)| Address::configured(ip(text), prefix));
        let mac = Address {
            ip: ip("fe80::1"),
            prefix: 64,
            origin: Origin::Mac,
        };
        given.into_iter().chain([mac]).collect()
    }

    #[test]
    fn entries_keep_their_indices() {
        let first = table();
        assert_eq!((first.first_free(0), first.has_gaps()), (Some(3), false));
        let gone = first.with(1, None);
        assert_eq!((gone.get(1), gone.len()), (None, 3));
        assert!(gone.has_gaps() && gone.find(ip("fd00::1")).is_none());
        let indices: Vec<usize> = gone.gids().map(|(index, _)| index).collect();
        assert_eq!(indices, [0, 2]);
        // A queue pair may still hold it.
        assert_eq!((gone.first_free(0), gone.first_free(2)), (Some(1), Some(3)));
        let added = gone.with(1, Some(Address::configured(ip("10.0.0.9"), 24)));
        assert_eq!(added.find(ip("10.0.0.9")).map(|(index, _)| index), Some(1));
        assert_eq!(added.given().count(), 2);
        let mut full = added;
        while let Some(index) = full.first_free(0) {
            full = full.with(index, full.get(0).copied());
        }
        assert_eq!(full.len(), GID_TABLE_LEN);
        assert_eq!(gone.with(0, None).given().count(), 0);
    }

    #[test]
    fn what_comes_without_a_prefix_joins_its_subnet() {
        let table = table();
        for (text, prefix) in [
            ("10.0.0.200", 24),
            ("10.0.1.1", 32),
            ("fd00::9", 64),
            ("fd01::9", 128),
        ] {
            assert_eq!(table.prefix_for(ip(text)), prefix, "{text}");
        }
    }

    #[test]
    fn only_addresses_of_hosts_are_taken() {
        assert_eq!(parse("10.0.0.1/24"), Ok((ip("10.0.0.1"), Some(24))));
        assert_eq!(parse("fd00::1"), Ok((ip("fd00::1"), None)));
        for (text, says) in [
            ("", "must be an address"),
            ("10.0.0.1/", "must be an address"),
            ("10.0.0.1/x", "must be an address"),
            ("roce0", "must be an address"),
            ("10.0.0.1/33", "longer"),
            ("fd00::1/129", "longer"),
            ("::ffff:10.0.0.1/120", "write it as \"10.0.0.1/24\""),
            ("::ffff:10.0.0.1", "write it as \"10.0.0.1\""),
            ("0.0.0.0/0", "one host"),
            ("127.0.0.1/8", "one host"),
            ("::1", "one host"),
            ("::", "one host"),
            ("224.0.0.1", "one host"),
            ("ff02::1/64", "one host"),
            ("255.255.255.255", "one host"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
