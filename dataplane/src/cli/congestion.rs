//! `roceline congestion`: what congestion control and pauses of NICs go by, shown and changed while they run.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args as ClapArgs, Parser, Subcommand};

use super::CliError;
use super::show::{decode, write_json};
use super::table::Table;
use crate::congestion::DCTCP_NEEDS;
use crate::control::client::Client;
use crate::control::congestion::{CongestionReply, DeviceCongestion, Pairs};
use crate::control::query::Query;
use crate::impair::Text;

const EXAMPLES: &str = "\
Examples:
  roceline congestion show                      # what is not as it comes, of all NICs
  roceline congestion show --nic roce0 --all    # every key of one
  roceline congestion explain rpg_ai_rate       # what a key does
  roceline congestion set --nic roce0 profile=paper min_time_between_cnps=50us
  roceline congestion set algorithm=none        # nobody slows down any more
  roceline congestion set algorithm=fixed-rate fixed_rate=2Gb/s
  roceline congestion set pfc.mode=pfc pfc.priorities=3

  roceline show qps                             # at which rate each queue pair sends

The configuration has the same keys ([[nic]], [nic.dcqcn], [nic.np], [nic.pfc]), and programs find the
parameters as files: /sys/class/infiniband/DEVICE/ecn/roce_rp/rpg_ai_rate and so on. docs/congestion.md says what
each of them does.";

const SET_HELP: &str = "\
All keys are set, or, if one of them cannot be, none. Values are numbers in the unit that `show` prints, or have a
unit of their own (40Mb/s, 55us). `profile` puts all parameters at the values of paper, connectx or ionic, before the other
keys of the same command. What was set lasts until the daemon's process ends; the configuration file is not changed.

Only root, the daemon's own user and `[control] operators` of its configuration may do it.";

/// Show and change congestion control (DCQCN, CNPs) and pauses (PFC) of running NICs
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what NICs go by
    Show(ShowArgs),
    /// Say what keys do, what they may be and what they are
    Explain(ExplainArgs),
    /// Change keys, all of them or none
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
}

#[derive(Debug, ClapArgs)]
struct Which {
    /// Only this NIC, by its device name
    #[arg(long, value_name = "NIC")]
    nic: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct ShowArgs {
    #[command(flatten)]
    which: Which,

    /// Every key, also those at their defaults
    #[arg(long)]
    all: bool,
}

#[derive(Debug, ClapArgs)]
struct ExplainArgs {
    /// Keys, or parts of them
    #[arg(value_name = "KEY")]
    keys: Vec<String>,

    #[command(flatten)]
    which: Which,
}

#[derive(Debug, ClapArgs)]
struct SetArgs {
    /// Keys with their values
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,

    #[command(flatten)]
    which: Which,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("must be a key and its value, such as rpg_ai_rate=5")?;
    Ok((key.trim().into(), value.trim().into()))
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let (query, json) = match &args.action {
        Action::Show(ShowArgs { which, .. }) | Action::Explain(ExplainArgs { which, .. }) => {
            let device = which.nic.clone();
            (Query::Congestion { device }, which.json)
        }
        Action::Set(SetArgs { settings, which }) => {
            let device = which.nic.clone();
            let settings = pairs(settings)?;
            (Query::CongestionSet { device, settings }, which.json)
        }
    };
    let client = Client::connect(socket)?;
    let answer = client.query(&query)?;
    let mut out = io::stdout().lock();
    if json {
        return Ok(write_json(&mut out, &answer)?);
    }
    let reply: CongestionReply = decode(answer)?;
    match args.action {
        Action::Show(show) => table(&mut out, &reply, show.all, &[])?,
        Action::Explain(explain) => return explained(&mut out, &reply, &explain.keys),
        Action::Set(set) => {
            let keys: Vec<&str> = set.settings.iter().map(|(key, _)| key.as_str()).collect();
            table(&mut out, &reply, false, &keys)?;
            for device in reply.devices.iter().filter(|device| wants_cnps(device)) {
                eprintln!("warning: {}: {DCTCP_NEEDS}", device.name);
            }
        }
    }
    Ok(())
}

/// Whether its algorithm counts CNPs as marked packets, and it is not told to send as many.
fn wants_cnps(device: &DeviceCongestion) -> bool {
    device.value("algorithm") == "dctcp" && device.value("min_time_between_cnps") != "0"
}

fn pairs(settings: &[(String, String)]) -> Result<Pairs, CliError> {
    let mut pairs = Pairs::new();
    for (key, value) in settings {
        if pairs.insert(key.clone(), Text(value.clone())).is_some() {
            return Err(CliError::Usage(format!("{key} is given twice")));
        }
    }
    Ok(pairs)
}

/// A row for each key: all of them, or those that somebody set and those of `keys`.
fn table(
    out: &mut impl Write,
    reply: &CongestionReply,
    all: bool,
    keys: &[&str],
) -> io::Result<()> {
    // What a NIC does is said in any case.
    const ALWAYS: [&str; 4] = ["algorithm", "profile", "line_rate", "pfc.mode"];
    let mut table = Table::new(&["device", "key", ">value", "unit", ">default", "from"]);
    let mut left_out = 0;
    for device in &reply.devices {
        for line in &device.settings {
            let key = line.key.as_str();
            let shown = all || line.from != "default" || keys.contains(&key);
            if !shown && !ALWAYS.contains(&key) {
                left_out += 1;
                continue;
            }
            table.row(vec![
                device.name.clone(),
                line.key.clone(),
                line.value.clone(),
                line.unit.clone(),
                line.default.clone(),
                line.from.clone(),
            ]);
        }
    }
    table.write(out, "no devices")?;
    if left_out > 0 {
        writeln!(
            out,
            "({left_out} at their defaults are left out; `show --all` has them)"
        )?;
    }
    Ok(())
}

fn explained(
    out: &mut impl Write,
    reply: &CongestionReply,
    keys: &[String],
) -> Result<(), CliError> {
    let Some(first) = reply.devices.first() else {
        return Ok(());
    };
    let wanted = |key: &str| keys.is_empty() || keys.iter().any(|part| key.contains(part.as_str()));
    let lines: Vec<_> = first
        .settings
        .iter()
        .filter(|line| wanted(&line.key))
        .collect();
    if lines.is_empty() {
        return Err(CliError::Usage(format!(
            "no key is called {}: `roceline congestion show --all` lists them",
            keys.join(" or ")
        )));
    }
    for line in lines {
        let unit = match line.unit.as_str() {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        writeln!(out, "{}: {}", line.key, line.doc)?;
        let defaults = reply.devices.iter().flat_map(|device| {
            let own = device.settings.iter().find(|own| own.key == line.key);
            own.map(|own| (device.name.as_str(), own.default.as_str()))
        });
        let defaults: Vec<_> = defaults.collect();
        let default = match defaults.iter().all(|(_, default)| *default == line.default) {
            true => line.default.clone(),
            // By profile.
            false => {
                let each = defaults
                    .iter()
                    .map(|(nic, default)| format!("{default} ({nic})"));
                each.collect::<Vec<_>>().join(", ")
            }
        };
        writeln!(out, "    may be {}{unit}; default {default}", line.range)?;
        let value =
            |device: &DeviceCongestion| format!("{} {}", device.name, device.value(&line.key));
        let values: Vec<String> = reply.devices.iter().map(value).collect();
        writeln!(out, "    now: {}", values.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::congestion::SettingLine;

    fn reply() -> CongestionReply {
        let line = |key: &str, value: &str, default: &str, from: &str| SettingLine {
            key: key.into(),
            value: value.into(),
            unit: if key.ends_with("rate") { "Mb/s" } else { "" }.into(),
            default: default.into(),
            from: from.into(),
            range: "1 to 9".into(),
            doc: "What it is.".into(),
        };
        CongestionReply {
            devices: vec![DeviceCongestion {
                name: "roce0".into(),
                settings: vec![
                    line("algorithm", "dcqcn", "dcqcn", "default"),
                    line("rpg_ai_rate", "40", "5", "set"),
                    line("rpg_hai_rate", "50", "50", "default"),
                ],
            }],
        }
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> Vec<String> {
        let mut out = Vec::new();
        write(&mut out);
        let text = String::from_utf8(out).unwrap();
        let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    #[test]
    fn defaults_are_left_out_and_said() {
        let shown = text(|out| table(out, &reply(), false, &[]).unwrap());
        assert_eq!(
            shown,
            [
                "device key value unit default from",
                "roce0 algorithm dcqcn dcqcn default",
                "roce0 rpg_ai_rate 40 Mb/s 5 set",
                "(1 at their defaults are left out; `show --all` has them)"
            ]
        );
        let shown = text(|out| table(out, &reply(), false, &["rpg_hai_rate"]).unwrap());
        assert_eq!(shown[3], "roce0 rpg_hai_rate 50 Mb/s 50 default");
    }

    #[test]
    fn keys_are_explained_by_parts_of_their_names() {
        let shown = text(|out| explained(out, &reply(), &["ai_rate".into()]).unwrap());
        assert_eq!(shown[0], "rpg_ai_rate: What it is.");
        assert_eq!(shown[2], "now: roce0 40");
        assert_eq!(shown.len(), 6);
        let mut two = reply();
        let mut other = two.devices[0].clone();
        other.name = "roce1".into();
        other.settings[1].default = "40".into();
        two.devices.push(other);
        let shown = text(|out| explained(out, &two, &["ai_rate".into()]).unwrap());
        assert_eq!(
            shown[1],
            "may be 1 to 9 Mb/s; default 5 (roce0), 40 (roce1)"
        );
        let error = explained(&mut Vec::new(), &reply(), &["speed".into()]).unwrap_err();
        assert!(error.to_string().contains("speed"), "{error}");
    }

    #[test]
    fn pairs_are_split_at_the_first_sign() {
        assert_eq!(
            pair("pfc.dscp=46:5"),
            Ok(("pfc.dscp".into(), "46:5".into()))
        );
        assert!(pair("rpg_ai_rate").is_err());
        let twice = [("a".into(), "1".into()), ("a".into(), "2".into())];
        assert!(pairs(&twice).is_err());
    }
}
