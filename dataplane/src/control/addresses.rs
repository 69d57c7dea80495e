//! Addresses that NICs get and lose while the daemon runs, and which they have.
//!
//! In flow orders of the command line. Out flow, in this order: the GID tables of the lcores (all of them or none), the files that
//! programs read, what sessions resolve address vectors by, what neighbour resolution answers for, and then an event to
//! each program, which finds all of that done.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};

use roceline_engine::wire::Gid;
use serde::{Deserialize, Serialize};

use super::ask::Step;
use super::error::CommandError;
use super::server::Shared;
use super::tree::{Tree, gids};
use crate::addresses::{self, Address, GID_TABLE_LEN, Origin, Table};
use crate::config::link_local;
use crate::lcore::message::{Command, Reply};
use crate::nic::NicInfo;

/// Answer to [`Query::Addresses`](super::query::Query::Addresses) and to orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressesReply {
    /// What was added or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<AddressLine>,
    /// By device and index.
    pub addresses: Vec<AddressLine>,
}

/// An address of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressLine {
    /// Device.
    pub device: String,
    /// Its index in the GID table: what `-x` of perftest and `-g` of the pingpongs mean.
    pub index: u32,
    /// The address.
    pub address: String,
    /// Bits of its subnet.
    pub prefix: u8,
    /// `configuration`, `added` (since the start), or `mac`: it follows from the MAC address.
    pub from: String,
}

impl AddressLine {
    fn new(nic: &NicInfo, index: usize, address: &Address) -> AddressLine {
        AddressLine {
            device: nic.name.clone(),
            index: index as u32,
            address: address.ip.to_string(),
            prefix: address.prefix,
            from: address.origin.name().into(),
        }
    }
}

/// The addresses of one NIC, or of all.
pub fn reply(shared: &Shared, device: Option<&str>) -> Result<AddressesReply, CommandError> {
    let nics = shared.config.nics.iter();
    let wanted = |nic: &&NicInfo| device.is_none_or(|device| nic.name == device);
    let found: Vec<&NicInfo> = nics.filter(wanted).collect();
    if let (true, Some(device)) = (found.is_empty(), device) {
        return Err(CommandError::Device(device.into()));
    }
    let lines = found.into_iter().flat_map(|nic| {
        let table = nic.addresses.now();
        let lines = table.iter();
        let lines = lines.map(|(index, address)| AddressLine::new(nic, index, address));
        lines.collect::<Vec<_>>()
    });
    Ok(AddressesReply {
        changed: None,
        addresses: lines.collect(),
    })
}

/// What an order is about, and that it is the only one until it is carried out.
struct Order<'s> {
    nic: &'s NicInfo,
    ip: IpAddr,
    prefix: Option<u8>,
    table: Arc<Table>,
    _alone: MutexGuard<'s, ()>,
}

impl<'s> Order<'s> {
    fn of(shared: &'s Shared, device: &str, text: &str) -> Result<Order<'s>, CommandError> {
        let mut nics = shared.config.nics.iter();
        let nic = nics.find(|nic| nic.name == device);
        let nic = nic.ok_or_else(|| CommandError::Device(device.into()))?;
        let (ip, prefix) = addresses::parse(text)
            .map_err(|problem| CommandError::Rule(format!("{text:?}: {problem}")))?;
        let orders = shared.address_orders.lock();
        let _alone = orders.unwrap_or_else(PoisonError::into_inner);
        Ok(Order {
            nic,
            ip,
            prefix,
            table: nic.addresses.now(),
            _alone,
        })
    }
}

fn refused<T>(problem: String) -> Result<T, CommandError> {
    Err(CommandError::Rule(problem))
}

/// Gives a NIC one more address, at the first free index of its GID table.
pub fn add(shared: &Shared, device: &str, text: &str) -> Result<AddressesReply, CommandError> {
    let Order {
        nic,
        ip,
        prefix,
        table,
        _alone,
    } = Order::of(shared, device, text)?;
    for other in shared.config.nics.iter() {
        let Some((index, address)) = other.addresses.now().find(ip).map(|(i, a)| (i, *a)) else {
            continue;
        };
        let who = &other.name;
        return refused(match other.index == nic.index {
            true => format!("{device} has {ip} already: it is {address}, GID {index}"),
            false => format!(
                "{who} has {ip}, and two NICs of a daemon cannot have the same address: choose another, or first \
                 `roceline address remove {who} {ip}`"
            ),
        });
    }
    let network = shared.config.neighbours.network(nic.index as usize);
    if let Some(what) = network.and_then(|network| network.named(ip)) {
        return refused(format!(
            "{ip} is {what} of {device} in the configuration, so it is another's: choose another address"
        ));
    }
    let held = match table.has_gaps() {
        true => held(shared, nic)?,
        false => 0,
    };
    let Some(index) = table.first_free(held) else {
        let of_gone = table.first_free(0).map_or("", |_| {
            ", some of addresses that are gone and that queue pairs or address handles still hold"
        });
        return refused(format!(
            "the GID table of {device} is full: it has {GID_TABLE_LEN} entries{of_gone}. Remove one that is not needed \
             (`roceline address list {device}`)"
        ));
    };
    let address = Address {
        ip,
        prefix: prefix.unwrap_or_else(|| table.prefix_for(ip)),
        origin: Origin::Added,
    };
    change(shared, nic, &table, index, Some(address))?;
    tracing::info!(nic = device, %address, index, "address added");
    answer(shared, nic, index, &address)
}

/// Takes an address from a NIC. Its index is empty from then on.
pub fn remove(shared: &Shared, device: &str, text: &str) -> Result<AddressesReply, CommandError> {
    let Order {
        nic,
        ip,
        prefix,
        table,
        _alone,
    } = Order::of(shared, device, text)?;
    let Some((index, &address)) = table.find(ip) else {
        return refused(format!(
            "{device} does not have {ip}: `roceline address list {device}` shows what it has"
        ));
    };
    if prefix.is_some_and(|prefix| prefix != address.prefix) {
        return refused(format!(
            "{text} is not the address that {device} has, which is {address}: `roceline address remove {device} {ip}`"
        ));
    }
    if ip == IpAddr::V6(link_local(nic.mac)) {
        return refused(format!(
            "{ip} follows from the MAC address of {device} and stays as long as the NIC: give it another `mac` in the \
             configuration"
        ));
    }
    if table.given().count() == 1 {
        return refused(format!(
            "{ip} is the last address of {device}, which needs one: add another first (`roceline address add {device} \
             ADDRESS/PREFIX`)"
        ));
    }
    let is_first_v4 = table.first_ipv4().is_some_and(|(first, _)| ip == first);
    if nic.lid != 0 && is_first_v4 {
        return refused(format!(
            "the LID of {device} follows from {ip}, its first IPv4 address: take `lids = true` out of the configuration to \
             remove it"
        ));
    }
    change(shared, nic, &table, index, None)?;
    tracing::info!(nic = device, %address, index, "address removed");
    answer(shared, nic, index, &address)
}

fn answer(
    shared: &Shared,
    nic: &NicInfo,
    index: usize,
    changed: &Address,
) -> Result<AddressesReply, CommandError> {
    Ok(AddressesReply {
        changed: Some(AddressLine::new(nic, index, changed)),
        ..reply(shared, Some(&nic.name))?
    })
}

/// Indices that queue pairs and address handles of a NIC hold, a bit each.
fn held(shared: &Shared, nic: &NicInfo) -> Result<u32, CommandError> {
    let mut all = 0;
    for reply in shared.ask_nic(nic.index, || Command::GidsHeld { nic: nic.index })? {
        match reply {
            Reply::GidsHeld(held) => all |= held,
            other => return Err(CommandError::BadAnswer("GidsHeld", format!("{other:?}"))),
        }
    }
    Ok(all)
}

/// Changes one entry of a NIC's table, everywhere or nowhere, and tells its programs.
fn change(
    shared: &Shared,
    nic: &NicInfo,
    before: &Table,
    index: usize,
    entry: Option<Address>,
) -> Result<(), CommandError> {
    let wanted = before.with(index, entry);
    let gids_of = |table: &Table| -> Arc<[Gid]> { table.gids().map(|(_, gid)| gid).collect() };
    let (old, new) = (gids_of(before), gids_of(&wanted));
    let set = |gids: &Arc<[Gid]>| Command::SetGids {
        nic: nic.index,
        gids: Arc::clone(gids),
    };
    let parts = shared.parts([(nic.index, ())]);
    shared.change(&parts, |(), step| match step {
        Step::Make => set(&new),
        Step::TakeBack => set(&old),
    })?;
    let tree = Tree::path(&shared.config.socket);
    if let Err(source) = gids::update(&tree, &nic.name, index, wanted.gid(index)) {
        if let Err(error) = gids::update(&tree, &nic.name, index, before.gid(index)) {
            tracing::debug!(%error, nic = nic.name, index, "a GID's files could not be put back");
        }
        for (lcore, ()) in parts {
            if let Err(error) = shared.ask_lcore(lcore, set(&old)) {
                tracing::warn!(lcore, %error, "a change that failed could not be taken back everywhere: make it anew");
            }
        }
        return Err(CommandError::System {
            what: "writing the GID into the device tree, so that nothing is changed",
            source,
        });
    }
    nic.addresses.set(wanted);
    let neighbours = &shared.config.neighbours;
    match (entry, before.get(index)) {
        (Some(own), _) => neighbours.add_address(nic.index, own.ip, own.prefix),
        (None, Some(gone)) => neighbours.remove_address(nic.index, gone.ip),
        (None, None) => {}
    }
    for (lcore, ()) in parts {
        if let Err(error) = shared.ask_lcore(lcore, Command::GidsChanged { nic: nic.index }) {
            tracing::warn!(lcore, %error, nic = nic.name, "programs were not told that the GID table has changed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
