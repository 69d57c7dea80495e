//! `roceline nic`: the daemon in the foreground.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Parser;

use super::{CliError, socket};
use crate::config::{self, Config, ConfigError, Preset};
use crate::{daemon, telemetry};

const EXAMPLES: &str = "\
Examples:
  roceline nic                        # roce0 and roce1, joined by an emulated link
  roceline nic --print-config > my.toml
  roceline nic --config my.toml
  roceline nic --cpu 3 --socket /tmp/a.sock

SIGINT (Ctrl-C) and SIGTERM stop it cleanly. docs/configuration.md explains every key.";

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
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,

    /// Print the configuration and exit: a start for a file of your own
    #[arg(long)]
    print_config: bool,
}

pub(super) fn run(args: Args, socket: Option<PathBuf>, verbosity: u8) -> Result<(), CliError> {
    let (mut config, text) = match &args.config {
        Some(path) => Config::load(path)?,
        None => (Config::preset(args.preset)?, args.preset.text().into()),
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
    config.control.socket = Some(socket.clone());
    telemetry::init(verbosity, config.log.as_deref())?;
    let greeting = greeting(&config, &socket);
    daemon::run(config, move || {
        // Nobody may be reading; the daemon runs all the same.
        let _ = io::stdout().write_all(greeting.as_bytes());
    })?;
    Ok(())
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
    for lcore in &mut config.lcores {
        lcore.cpu = Some(cpu);
    }
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
