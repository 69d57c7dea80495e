//! `roceline impair`: rules that make NICs and links misbehave on purpose, while the daemon runs.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args as ClapArgs, Parser, Subcommand};

use super::CliError;
use super::show::{decode, write_json};
use super::table::Table;
use crate::control::client::Client;
use crate::control::impair::{AddedReply, ImpairReply, RemovedReply};
use crate::control::query::Query;
use crate::impair::RuleArgs;

const EXAMPLES: &str = "\
Examples:
  roceline impair add --nic roce0 --tx --drop --probability 1% --seed 7
  roceline impair add --nic roce1 --rx --class read-response --qpn 0x11 --skip 2 --count 1 --drop
  roceline impair add --link link0 --delay 10us..50us
  roceline impair list
  roceline impair remove 2
  roceline impair clear

`roceline impair help add` lists all options; docs/impairments.md says what they mean exactly.";

const ADD_EXAMPLES: &str = "\
Examples:
  Lose 1 % of what roce0 sends, the same packets each time:
    roceline impair add --nic roce0 --tx --drop --probability 1% --seed 7
  Lose the third READ response on its way to QP 0x11, once:
    roceline impair add --nic roce1 --rx --class read-response --qpn 0x11 --skip 2 --count 1 --drop
  Lose every ACK:
    roceline impair add --link link0 --class ack --drop
  Mark 5 % of the data with Congestion Experienced:
    roceline impair add --link link0 --from roce0 --class data --probability 5% --mark-ce
  A slow link with jitter that swaps packets:
    roceline impair add --link link0 --rate 1Gb/s
    roceline impair add --link link0 --delay normal:50us,10us
  Change the PSN of the tenth packet, and make the ICRC fit:
    roceline impair add --nic roce0 --tx --skip 9 --count 1 --corrupt psn --reseal
  Count retransmission candidates without touching them:
    roceline impair add --nic roce0 --tx --psn 0x1000 --observe

Rules of one place are boxes in series, in the order of their addition; a packet that one drops does not reach
the next. A rule counts from its addition on. What a NIC sends passes its --tx rules, then those of its link.";

/// Make NICs and links misbehave on purpose
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a rule; prints its number
    #[command(after_help = ADD_EXAMPLES)]
    Add(Box<AddArgs>),
    /// List the rules with their counts, and what waits at each place
    List(Output),
    /// Remove rules
    Remove(RemoveArgs),
    /// Remove all rules; packets that are held back go on at once
    Clear(Output),
}

#[derive(Debug, ClapArgs)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct AddArgs {
    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, ClapArgs)]
struct RemoveArgs {
    /// Numbers or names, as `list` shows them
    #[arg(required = true, value_name = "RULE")]
    rules: Vec<String>,

    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    // What is wrong with a rule is said before anything else is tried.
    let rule = match &args.action {
        Action::Add(add) => {
            let mut rule = add.rule.spec();
            rule.read_files(Path::new("."))?;
            rule.compile(0)?;
            Some(rule)
        }
        _ => None,
    };
    let client = Client::connect(socket)?;
    let mut out = io::stdout().lock();
    match (args.action, rule) {
        (Action::Add(add), Some(rule)) => {
            let answer = client.query(&Query::ImpairAdd { rule })?;
            if add.output.json {
                return Ok(write_json(&mut out, &answer)?);
            }
            let added: AddedReply = decode(answer)?;
            writeln!(out, "rule {} ({})", added.id, added.name)?;
        }
        (Action::Remove(remove), _) => {
            let rules = remove.rules;
            let answer = client.query(&Query::ImpairRemove { rules })?;
            removed(&mut out, answer, remove.output.json)?;
        }
        (Action::Clear(output), _) => {
            let answer = client.query(&Query::ImpairClear)?;
            removed(&mut out, answer, output.json)?;
        }
        (Action::List(output), _) => {
            let answer = client.query(&Query::Impair)?;
            if output.json {
                return Ok(write_json(&mut out, &answer)?);
            }
            list(&mut out, &decode(answer)?)?;
        }
        // An addition always has its rule.
        (Action::Add(_), None) => {}
    }
    Ok(())
}

fn removed(out: &mut impl Write, answer: serde_json::Value, json: bool) -> Result<(), CliError> {
    if json {
        return Ok(write_json(out, &answer)?);
    }
    let removed: RemovedReply = decode(answer)?;
    let count = removed.rules.len();
    writeln!(
        out,
        "{count} rule{} removed",
        if count == 1 { "" } else { "s" }
    )?;
    Ok(())
}

fn list(out: &mut impl Write, reply: &ImpairReply) -> io::Result<()> {
    let mut rules = Table::new(&[
        "#", "name", "place", ">seen", ">matched", ">hit", ">dropped", "rule",
    ]);
    for rule in &reply.rules {
        rules.row(vec![
            rule.id.to_string(),
            rule.name.clone(),
            rule.place.clone(),
            rule.seen.to_string(),
            rule.matched.to_string(),
            rule.hit.to_string(),
            rule.dropped.to_string(),
            rule.text.clone(),
        ]);
    }
    rules.write(out, "no rules: nothing is impaired")?;
    if !reply.places.is_empty() {
        writeln!(out)?;
        let mut places = Table::new(&["place", ">held", ">lost: no room", ">copies: no buffer"]);
        for place in &reply.places {
            places.row(vec![
                place.place.clone(),
                place.held.to_string(),
                place.overflow.to_string(),
                place.no_buffer.to_string(),
            ]);
        }
        places.write(out, "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options of a rule as a shell would split them.
    fn rule(options: &str) -> Result<crate::impair::Spec, String> {
        let arguments = ["impair", "add"]
            .into_iter()
            .chain(options.split_ascii_whitespace());
        let parsed = Args::try_parse_from(arguments).map_err(|error| error.to_string())?;
        match parsed.action {
            Action::Add(add) => Ok(add.rule.spec()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_rule_of_the_examples_is_one() {
        let docs = include_str!("../../../docs/impairments.md");
        let recipes = docs.lines().filter_map(|line| {
            let cell = line.strip_suffix(" |")?.rsplit(" | ").next()?;
            let rule = cell.strip_prefix('`')?.strip_suffix('`')?;
            (rule.starts_with("--nic ") || rule.starts_with("--link ")).then_some(rule)
        });
        let commands = [docs, EXAMPLES, ADD_EXAMPLES]
            .into_iter()
            .flat_map(str::lines);
        let added = commands.filter_map(|line| {
            let rule = line.trim().strip_prefix("roceline impair add ")?;
            rule.starts_with("--nic ")
                .then_some(rule)
                .or(rule.starts_with("--link ").then_some(rule))
        });
        let mut count = 0;
        for text in recipes.chain(added) {
            let spec = rule(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let compiled = spec.compile(1).map_err(|error| error.to_string());
            assert!(compiled.is_ok(), "{text}: {compiled:?}");
            count += 1;
        }
        assert!(count >= 25, "{count} rules found");
    }

    #[test]
    fn the_list_tells_what_a_rule_dropped_from_what_found_no_room() {
        use crate::control::impair::{PlaceLine, RuleLine};
        let reply = ImpairReply {
            rules: vec![RuleLine {
                id: 3,
                name: "slow".into(),
                place: "link0 from roce0".into(),
                seen: 2100,
                matched: 2050,
                hit: 2047,
                dropped: 1983,
                text: "rate=1kb/s".into(),
                rule: crate::impair::Spec::default(),
            }],
            places: vec![PlaceLine {
                place: "link0 from roce0".into(),
                held: 64,
                overflow: 7,
                no_buffer: 8,
            }],
        };
        let mut out = Vec::new();
        list(&mut out, &reply).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "#  name  place             seen  matched   hit  dropped  rule",
                "3  slow  link0 from roce0  2100     2050  2047     1983  rate=1kb/s",
                "",
                "place             held  lost: no room  copies: no buffer",
                "link0 from roce0    64              7                  8",
            ],
            "{text}"
        );
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        for options in [
            "--nic roce0 --link link0 --drop",
            "--nic roce0 --tx --rx --drop",
            "--tx --drop",
            "--from roce0 --drop",
            "--nic roce0 --tx --drop --probability 1% --burst p=1%,r=1%",
            "--nic roce0 --tx --drop --repeat",
            "--nic roce0 --tx --drop --queue 1",
        ] {
            assert!(rule(options).is_err(), "{options}");
        }
        let spec = rule("--nic roce0 --rx --psn-modulo 100:7 --mark-ce").unwrap();
        assert_eq!(
            spec.to_string(),
            "mark_ce nic=roce0 psn_modulo=100:7 side=rx"
        );
    }
}
