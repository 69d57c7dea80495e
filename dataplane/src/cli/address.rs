//! `roceline address`: gives NICs addresses and takes them, as `ip address` does with those of a network interface.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args as ClapArgs, Parser, Subcommand};

use super::CliError;
use super::show::{decode, write_json};
use super::table::Table;
use crate::control::addresses::{AddressLine, AddressesReply};
use crate::control::client::Client;
use crate::control::query::Query;

const EXAMPLES: &str = "\
Examples:
  roceline address add roce0 10.77.0.9/24      # the first free GID index; programs get IBV_EVENT_GID_CHANGE
  roceline run -- ibv_rc_pingpong -d roce0 -g 3
  roceline address remove roce0 10.77.0.9      # its index is empty again, the others stay
  roceline address list

Without a prefix an address belongs to the subnet of the NIC that has it, or is alone (/32, /128). A NIC on a real port looks
for a new address on the network, announces it and answers for it, as at its start.

Queue pairs of an address that is gone keep their state: packets to it are dropped (rx_not_ours of `roceline stat`), so they end in
IBV_WC_RETRY_EXC_ERR. The index is free again when none of them, and no address handle, holds it any more. The last address of
a NIC stays, as does the one that follows from its MAC address.

The configuration is not changed, and it holds again when the daemon's process starts anew: `addresses` of its [[nic]] is for what
is to stay.";

/// Give a NIC an address, or take one from it, while programs use it
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Give a NIC one more address, at the first free index of its GID table
    Add(Change),
    /// Take an address from a NIC; its index is empty from then on
    Remove(Change),
    /// List addresses with their GID indices, and where they are from
    List(List),
}

#[derive(Debug, ClapArgs)]
struct Change {
    /// Which NIC, by its device name
    #[arg(value_name = "NIC")]
    nic: String,

    /// The address, such as 10.77.0.9/24 or fd77::9/64
    #[arg(value_name = "IP[/PREFIX]")]
    address: String,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, ClapArgs)]
struct List {
    /// Of this NIC only
    #[arg(value_name = "NIC")]
    nic: Option<String>,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, ClapArgs)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let (query, json) = match args.action {
        Action::Add(Change {
            nic,
            address,
            output,
        }) => {
            let query = Query::AddressAdd {
                device: nic,
                address,
            };
            (query, output.json)
        }
        Action::Remove(Change {
            nic,
            address,
            output,
        }) => {
            let query = Query::AddressRemove {
                device: nic,
                address,
            };
            (query, output.json)
        }
        Action::List(List { nic, output }) => (Query::Addresses { device: nic }, output.json),
    };
    let answer = Client::connect(socket)?.query(&query)?;
    let mut out = io::stdout().lock();
    if json {
        return Ok(write_json(&mut out, &answer)?);
    }
    let reply: AddressesReply = decode(answer)?;
    match (&reply.changed, query) {
        (Some(line), Query::AddressAdd { .. }) => added(&mut out, line)?,
        (Some(line), _) => removed(&mut out, line)?,
        (None, _) => list(&mut out, &reply)?,
    }
    Ok(())
}

fn added(out: &mut impl Write, line: &AddressLine) -> io::Result<()> {
    let AddressLine {
        device,
        index,
        address,
        prefix,
        ..
    } = line;
    writeln!(
        out,
        "{device}: {address}/{prefix} is GID {index}, until the daemon's process ends (the configuration is not changed)"
    )
}

fn removed(out: &mut impl Write, line: &AddressLine) -> io::Result<()> {
    let AddressLine {
        device,
        index,
        address,
        prefix,
        from,
    } = line;
    let again = match from.as_str() {
        "configuration" => {
            ", until the daemon's process starts anew (the configuration is not changed)"
        }
        _ => "",
    };
    writeln!(
        out,
        "{device}: {address}/{prefix} is gone, and GID {index} is empty{again}"
    )
}

fn list(out: &mut impl Write, reply: &AddressesReply) -> io::Result<()> {
    let mut table = Table::new(&["device", ">gid", "address", "from"]);
    for line in &reply.addresses {
        table.row(vec![
            line.device.clone(),
            line.index.to_string(),
            format!("{}/{}", line.address, line.prefix),
            line.from.clone(),
        ]);
    }
    table.write(out, "no addresses")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(index: u32, address: &str, from: &str) -> AddressLine {
        AddressLine {
            device: "roce0".into(),
            index,
            address: address.into(),
            prefix: 24,
            from: from.into(),
        }
    }

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn addresses_are_a_table_and_changes_a_sentence() {
        let reply = AddressesReply {
            changed: None,
            addresses: vec![
                line(0, "10.77.0.1", "configuration"),
                line(3, "10.77.0.9", "added"),
            ],
        };
        let shown = text(|out| list(out, &reply));
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .map(|row| row.split_ascii_whitespace().collect())
            .collect();
        assert_eq!(rows[1], ["roce0", "0", "10.77.0.1/24", "configuration"]);
        assert_eq!(rows[2], ["roce0", "3", "10.77.0.9/24", "added"]);
        let [first, second] = [&reply.addresses[0], &reply.addresses[1]];
        assert!(text(|out| added(out, second)).starts_with("roce0: 10.77.0.9/24 is GID 3, until"));
        assert_eq!(
            text(|out| removed(out, second)),
            "roce0: 10.77.0.9/24 is gone, and GID 3 is empty\n"
        );
        assert!(text(|out| removed(out, first)).contains("until the daemon's process starts anew"));
    }
}
