//! The command line. In: arguments and environment. Out: a running daemon, a program that was started, or an
//! answer of a daemon as text or JSON. Each command has its module; what a daemon says is learnt through
//! [`Client`](crate::control::client::Client).
//!
//! Answers go to stdout and errors to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage; `run` becomes its program, or ends
//! as a shell would that cannot start it.

mod address;
mod affinity;
mod bench;
mod capture;
mod congestion;
mod doctor;
mod elf;
mod hints;
mod impair;
mod link;
mod neighbours;
mod nic;
mod post_mortem;
mod replay;
mod run;
mod shim;
mod show;
mod sim;
mod socket;
mod stat;
mod table;
mod top;
mod tune;
mod wait;

use std::ffi::OsString;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use roceline_engine::wire::icrc::KernelError;

use crate::config::ConfigError;
use crate::control::client::ClientError;
use crate::daemon::DaemonError;
use crate::impair::SpecError;
use crate::supervisor::{InheritedError, SupervisorError};
use crate::telemetry::{self, FilterError};

const EXAMPLES: &str = "\
Examples, in two terminals:
  roceline nic                              # a daemon with two NICs, roce0 and roce1
  roceline run -- ibv_devinfo               # what programs see of them

  roceline run -- ib_write_bw -d roce0 &    # a server on one NIC
  roceline run -- ib_write_bw -d roce1 127.0.0.1    # and its client on the other

  roceline stat                             # what went over the wire
  roceline top                              # how busy the daemon is, and what holds traffic up
  roceline capture -w - | tshark -r -       # each packet of it
  roceline sim --list                       # networks of NICs in virtual time
  roceline doctor                           # what is missing on this machine

`roceline help COMMAND` says more about each.";

/// RDMA NICs in software: unmodified verbs programs over RoCE v2, without hardware or kernel modules
#[derive(Debug, Parser)]
#[command(name = "roceline", version, after_help = EXAMPLES)]
struct Cli {
    /// Control socket of the daemon [default: $XDG_RUNTIME_DIR/roceline.sock if it exists, else
    /// /run/roceline.sock; for `nic`: /run/roceline.sock for root, else $XDG_RUNTIME_DIR/roceline.sock]
    #[arg(
        long,
        global = true,
        env = "ROCELINE_SOCKET",
        hide_env_values = true,
        value_name = "PATH",
        // clap's own parser of paths refuses an empty one, also an empty variable.
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    socket: Option<PathBuf>,

    /// Log more: -v what happens, -vv in detail (ROCELINE_LOG takes a filter instead)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Nic(nic::Args),
    Wait(wait::Args),
    Run(run::Args),
    Show(show::Args),
    Stat(stat::Args),
    Top(top::Args),
    Impair(impair::Args),
    Congestion(congestion::Args),
    Link(link::Args),
    Address(address::Args),
    Capture(Box<capture::Args>),
    Replay(Box<replay::Args>),
    Sim(Box<sim::Args>),
    Bench(bench::Args),
    Tune(tune::Args),
    Doctor(doctor::Args),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Run(#[from] run::RunError),
    #[error(transparent)]
    Rule(#[from] SpecError),
    #[error(transparent)]
    Wait(#[from] wait::NotReady),
    #[error("no queue pair has the number {0:#08x}: `roceline show qps` lists those that exist")]
    NoQp(u32),
    #[error(
        "the daemon did not count without a break between two looks, several times: its threads get too little CPU, or look \
         more often with --interval"
    )]
    NotCounted,
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NoRecord(String),
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Replay(#[from] replay::ReplayError),
    #[error(transparent)]
    Sim(#[from] sim::SimError),
    #[error("benchmark: {0}")]
    Bench(io::Error),
    #[error("{path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Capture(#[from] capture::CaptureError),
    #[error("ROCELINE_ICRC: {0}")]
    Icrc(#[from] KernelError),
    #[error("{0} of the checks failed; each says how to mend it")]
    Unhealthy(usize),
}

/// The commands and their options. Where an option has a value, `-1` is one: it is out of range, and is told with the
/// option and the range, not as an option that does not exist.
fn definition() -> clap::Command {
    with_negative_numbers(Cli::command())
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let has_value = arg.get_action().takes_values() && !arg.is_positional();
        arg.allow_negative_numbers(has_value)
    });
    command.mut_subcommands(with_negative_numbers)
}

/// A whole number within bounds.
fn number_in(bounds: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| crate::impair::number_in(text, bounds.clone())
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// Runs the command that these arguments name; the first is that of the program itself.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // clap prints usage errors itself and exits with 2.
    let parsed = definition().try_get_matches_from(args);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => error.format(&mut definition()).exit(),
    };
    let socket = cli.socket.filter(|path| !path.as_os_str().is_empty());
    match dispatch(cli.command, socket, cli.verbose) {
        Ok(()) => ExitCode::SUCCESS,
        // `roceline show | head`: whoever read the answer has had enough of it.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        // The worker has said why.
        Err(CliError::Supervisor(SupervisorError::NotStarted)) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("roceline: {error}");
            match error {
                CliError::Run(error) => error.exit_code().into(),
                CliError::Sim(error) => error.exit_code().into(),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn dispatch(command: Command, socket: Option<PathBuf>, verbosity: u8) -> Result<(), CliError> {
    if let Command::Nic(args) = command {
        return nic::run(args, socket, verbosity);
    }
    telemetry::init(verbosity, None)?;
    match command {
        Command::Sim(args) => return sim::run(*args),
        Command::Bench(args) => return bench::run(args),
        Command::Tune(args) => return tune::run(args),
        _ => {}
    }
    let socket = socket.unwrap_or_else(socket::of_daemon_in_use);
    match command {
        Command::Nic(_) | Command::Sim(_) | Command::Bench(_) | Command::Tune(_) => Ok(()),
        Command::Wait(args) => wait::run(args, &socket),
        Command::Run(args) => run::run(args, &socket),
        Command::Show(args) => show::run(args, &socket),
        Command::Stat(args) => stat::run(args, &socket),
        Command::Top(args) => top::run(args, &socket),
        Command::Impair(args) => impair::run(args, &socket),
        Command::Congestion(args) => congestion::run(args, &socket),
        Command::Link(args) => link::run(args, &socket),
        Command::Address(args) => address::run(args, &socket),
        Command::Capture(args) => capture::run(*args, &socket),
        Command::Replay(args) => replay::run(*args, &socket),
        Command::Doctor(args) => doctor::run(args, &socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn a_negative_number_is_told_with_its_option() {
        let error = |line: &str| {
            let words = line.split_ascii_whitespace();
            let parsed = definition().try_get_matches_from(words);
            parsed.map(drop).map_err(|error| error.to_string())
        };
        // What the options mean is found out behind the command line: rule::tests.
        for taken in [
            "--probability -1",
            "--qpn -3",
            "--skip -1",
            "--duplicate -1",
            "--duplicate --seed 3",
        ] {
            let line = format!("roceline impair add --nic roce0 --tx --drop {taken}");
            assert_eq!(error(&line), Ok(()), "{taken}");
        }
        assert_eq!(error("roceline capture -w a.pcapng --qpn -1"), Ok(()));
        for (line, option, says) in [
            (
                "capture -w - --duration -1",
                "--duration",
                "must be a number of seconds",
            ),
            ("capture -w - --count -1", "--count", "from 1 to"),
            ("capture -w - --snaplen -1", "--snaplen", "not in"),
            ("capture -w - --last -1", "--last", "not in"),
            (
                "wait --timeout -1",
                "--timeout",
                "must be a number of seconds",
            ),
            ("stat --qp -1", "--qp", "24 bits"),
            ("nic --cpu -1", "--cpu", "must be the number of a CPU"),
            (
                "impair add --drop --probability --seed 1",
                "--probability",
                "value is required",
            ),
            (
                "impair add --drop --probability",
                "--probability",
                "value is required",
            ),
            ("impair add --drop -x", "-x", "unexpected argument"),
        ] {
            let said = error(&format!("roceline {line}")).unwrap_err();
            assert!(
                said.contains(option) && said.contains(says),
                "{line}: {said}"
            );
        }
    }

    #[test]
    fn commands_that_do_not_exist_are_not_listed() {
        let names: Vec<String> = definition()
            .get_subcommands()
            .map(|command| command.get_name().into())
            .collect();
        assert_eq!(
            names,
            [
                "nic",
                "wait",
                "run",
                "show",
                "stat",
                "top",
                "impair",
                "congestion",
                "link",
                "address",
                "capture",
                "replay",
                "sim",
                "bench",
                "tune",
                "doctor"
            ]
        );
    }
}
