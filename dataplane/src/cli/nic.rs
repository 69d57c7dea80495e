//! `roceline nic`: the daemon in the foreground.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Parser;
use roceline_engine::wire::icrc::{Choice, Kernel};

use super::{CliError, socket};
use crate::config::{self, Config, ConfigError, Preset};
use crate::supervisor::{self, Inherited};
use crate::{daemon, telemetry};

const EXAMPLES: &str = "\
Examples:
  roceline nic                        # roce0 and roce1, joined by an emulated link
  roceline nic --print-config > my.toml
  roceline nic --config my.toml
  roceline nic --cpu 3 --socket /tmp/a.sock

SIGINT (Ctrl-C) and SIGTERM stop it cleanly: programs that are still running get IBV_EVENT_DEVICE_FATAL and
their posted work completes with flush errors. The same happens when the process that runs the NICs dies
(roceline-worker in ps); this one, its supervisor, then starts another, and programs can open the devices again.
docs/configuration.md explains every key.";

/// Run the NICs: a daemon in the foreground, until SIGINT or SIGTERM
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    config: Option<PathBuf>,

    /// Built-in configuration
    #[arg(long, value_enum, default_value = "pair")]
    preset: Preset,

    /// CPU for the polling thread, instead of what the configuration says
    #[arg(long, value_name = "N", value_parser = cpu)]
    cpu: Option<usize>,

    /// Print the configuration and exit: a start for a file of your own
    #[arg(long)]
    print_config: bool,

    /// For the supervisor's use: be its worker
    #[arg(long, hide = true, value_name = "FDS", conflicts_with_all = ["config", "preset", "print_config"])]
    worker: Option<String>,

    /// For the supervisor's use: what the configuration is called in messages
    #[arg(long, hide = true, value_name = "NAME", requires = "worker")]
    config_name: Option<String>,

    /// For the supervisor's use: how the worker before ended
    #[arg(long, hide = true, value_name = "HOW", requires = "worker")]
    last_end: Option<String>,
}

pub(super) fn run(args: Args, socket: Option<PathBuf>, verbosity: u8) -> Result<(), CliError> {
    if let Some(argument) = &args.worker {
        return work(argument, &args, socket, verbosity);
    }
    // A worker would only take another.
    Kernel::choose()?;
    let (mut config, text, name) = match &args.config {
        Some(path) => {
            let (config, text) = Config::load(path)?;
            (config, text, path.display().to_string())
        }
        None => {
            let preset = args.preset;
            let config = Config::preset(preset)?;
            (config, preset.text().into(), preset.label())
        }
    };
    if args.print_config {
        io::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    if let Some(cpu) = args.cpu {
        pin(&mut config, cpu)?;
    }
    let socket = socket
        .or(config.control.socket.take())
        .unwrap_or_else(socket::of_new_daemon);
    telemetry::init(verbosity, config.log.as_deref())?;
    supervisor::run(&supervisor::Options {
        arguments: worker_arguments(&args, &name, &socket, verbosity),
        socket,
        mode: config.control.mode,
        config: config.text,
    })?;
    Ok(())
}

/// Arguments of a worker, after `nic`. What the configuration says is not repeated.
fn worker_arguments(args: &Args, name: &str, socket: &Path, verbosity: u8) -> Vec<OsString> {
    // In one word: a name may begin like an option.
    let mut all: Vec<OsString> = vec![format!("--config-name={name}").into()];
    all.extend(["--socket".into(), socket.into()]);
    all.extend((0..verbosity).map(|_| OsString::from("-v")));
    if let Some(cpu) = args.cpu {
        all.extend(["--cpu".into(), cpu.to_string().into()]);
    }
    all
}

/// The supervisor's child: the daemon proper.
fn work(
    argument: &str,
    args: &Args,
    socket: Option<PathBuf>,
    verbosity: u8,
) -> Result<(), CliError> {
    // `ps` and `top` show which of the two it is.
    // SAFETY: a C string of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"roceline-worker".as_ptr()) };
    let inherited = Inherited::take(argument)?;
    let name = args.config_name.as_deref().unwrap_or("configuration");
    let mut config = Config::parse(name, &inherited.config)?;
    if let Some(cpu) = args.cpu {
        pin(&mut config, cpu)?;
    }
    config.control.socket = socket;
    telemetry::init(verbosity, config.log.as_deref())?;
    if let Ok(choice) = Kernel::choose() {
        take(&choice);
    }
    let greeting = match &config.control.socket {
        Some(socket) if inherited.restarts == 0 => greeting(&config, socket),
        _ => String::new(),
    };
    let from = daemon::Start {
        inherited,
        last_end: args.last_end.clone(),
    };
    daemon::run(config, from, move || {
        // Nobody may be reading; the daemon runs all the same.
        let _ = io::stdout().write_all(greeting.as_bytes());
    })?;
    Ok(())
}

/// ICRCs are computed by this from now on.
fn take(choice: &Choice) {
    choice.kernel.make_current();
    for wrong in &choice.wrong {
        tracing::warn!(
            kernel = wrong.name(),
            used = choice.kernel.name(),
            "this ICRC kernel computes wrong ICRCs on this CPU, another is used: please report it"
        );
    }
    tracing::info!(kernel = choice.kernel.name(), "ICRC");
}

fn cpu(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "must be the number of a CPU, from 0".into())
}

fn pin(config: &mut Config, cpu: usize) -> Result<(), ConfigError> {
    let allowed = config::allowed_cpus();
    if !allowed.contains(&cpu) {
        let problem = format!("--cpu {cpu}: {}", config::cpu_problem(&allowed));
        return Err(ConfigError::Whole {
            file: "command line".into(),
            problem,
        });
    }
    let [lcore] = config.lcores.as_mut_slice() else {
        let problem = format!(
            "--cpu {cpu}: there are {} polling threads; set `cpu` in each [[lcore]] instead",
            config.lcores.len()
        );
        return Err(ConfigError::Whole {
            file: "command line".into(),
            problem,
        });
    };
    lcore.cpu = Some(cpu);
    Ok(())
}

fn greeting(config: &Config, socket: &Path) -> String {
    let mut text = format!("ready on {}\n", socket.display());
    for nic in &config.nics {
        let addresses: Vec<String> = nic
            .addresses
            .iter()
            .map(|(ip, prefix)| format!("{ip}/{prefix}"))
            .collect();
        text.push_str(&format!(
            "  {}  {}  mtu {}\n",
            nic.name,
            addresses.join("  "),
            nic.mtu
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_may_not_be_used_is_refused() {
        let mut config = Config::preset(Preset::Pair).unwrap();
        let message = pin(&mut config, 99_999).unwrap_err().to_string();
        assert!(
            message.starts_with("command line: --cpu 99999: "),
            "{message}"
        );
        let cpu = config::allowed_cpus()[0];
        pin(&mut config, cpu).unwrap();
        assert_eq!(config.lcores[0].cpu, Some(cpu));
        config.lcores.push(config.lcores[0]);
        let message = pin(&mut config, cpu).unwrap_err().to_string();
        assert!(message.contains("there are 2 polling threads"), "{message}");
    }

    #[test]
    fn a_worker_hears_what_the_configuration_is_called() {
        let args = |arguments: &[OsString]| {
            let command = ["nic", "--worker", "3,4,5,0"].map(OsString::from);
            let all = command.iter().chain(arguments);
            Args::try_parse_from(all).unwrap()
        };
        for name in ["/etc/roceline.toml", "--odd name.toml", "preset pair"] {
            let plain = Args::try_parse_from(["nic"]).unwrap();
            let mut given = worker_arguments(&plain, name, Path::new("/run/x.sock"), 1);
            // Those are of every command.
            given.retain(|a| a.to_string_lossy().starts_with("--config-name"));
            assert_eq!(args(&given).config_name.as_deref(), Some(name));
        }
    }

    #[test]
    fn the_greeting_names_socket_and_devices() {
        let config = Config::preset(Preset::Pair).unwrap();
        let text = greeting(&config, Path::new("/run/x.sock"));
        assert!(
            text.contains("/run/x.sock") && text.contains("roce1  10.77.0.2/24"),
            "{text}"
        );
    }
}
