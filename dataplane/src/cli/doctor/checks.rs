//! The checks. Each looks at one thing and makes one finding.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use roceline_abi::{MARK_PREFIX, PROTOCOL_VERSION};

use super::Finding;
use crate::cli::{neighbours, shim};
use crate::config::allowed_cpus;
use crate::control::client::{Client, ClientError};
use crate::control::congestion::CongestionReply;
use crate::control::impair::{ImpairReply, RuleLine};
use crate::control::neighbours::NeighboursReply;
use crate::control::query::{Lcore, LcoresReply, Port, PortsReply, Query, VersionReply, devices};

/// What a daemon says of itself.
struct Daemon {
    version: VersionReply,
    lcores: Vec<Lcore>,
    rules: Vec<RuleLine>,
    neighbours: NeighboursReply,
    ports: Vec<Port>,
    congestion: CongestionReply,
}

/// Looks at everything.
pub(super) fn all(socket: &Path) -> Vec<Finding> {
    let daemon = ask(socket);
    let shim = shim::find();
    let libraries = library_dirs();
    let mut findings = vec![
        cpus(&allowed_cpus(), daemon.as_ref().ok()),
        hugepages(Path::new("/sys/kernel/mm/hugepages")),
        daemon_reachable(socket, &daemon),
        shim_found(&shim),
        rdma_core(&libraries),
        provider(&libraries),
        tool("ibv_devices", "ibverbs-utils"),
        tool("ib_write_bw", "perftest"),
    ];
    findings.splice(2..2, super::memory::all());
    findings.insert(1, super::icrc::kernel());
    if let Ok(daemon) = &daemon {
        findings.extend(access(&daemon.version));
        findings.push(super::polling::polling(&daemon.lcores));
        findings.push(impairments(&daemon.rules));
        findings.push(links(&daemon.ports));
        findings.push(super::congestion::control(&daemon.congestion));
        findings.push(pauses(&daemon.ports));
        findings.push(addresses(&daemon.neighbours));
    }
    if let (Ok(daemon), Ok(shim)) = (&daemon, &shim) {
        findings.push(end_to_end(socket, shim, daemon));
    }
    findings
}

fn ask(socket: &Path) -> Result<Daemon, ClientError> {
    let client = Client::connect(socket)?;
    let version = client.ask::<VersionReply>(&Query::Version)?;
    let lcores = client.ask::<LcoresReply>(&Query::Lcores)?.lcores;
    let rules = client.ask::<ImpairReply>(&Query::Impair)?.rules;
    let neighbours = client.ask::<NeighboursReply>(&Query::Neighbours)?;
    let ports = client.ask::<PortsReply>(&Query::Ports)?.ports;
    let congestion = client.ask(&Query::Congestion { device: None })?;
    Ok(Daemon {
        congestion,
        version,
        lcores,
        rules,
        neighbours,
        ports,
    })
}

fn cpus(allowed: &[usize], daemon: Option<&Daemon>) -> Finding {
    let polling: Vec<usize> = daemon
        .map(|daemon| daemon.lcores.iter().filter_map(|lcore| lcore.cpu).collect())
        .unwrap_or_default();
    let list = |cpus: &[usize]| {
        cpus.iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut found = format!("{} may be used", allowed.len());
    if !polling.is_empty() {
        found.push_str(&format!("; the daemon polls on CPU {}", list(&polling)));
    }
    if allowed.iter().any(|cpu| !polling.contains(cpu)) && allowed.len() > 1 {
        return Finding::ok("CPUs", found);
    }
    let remedy = "with one CPU the daemon and the programs take turns, at some microseconds a turn: \
                  give it two or more";
    Finding::off("CPUs", found, remedy)
}

fn hugepages(root: &Path) -> Finding {
    let mut free = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let count = fs::read_to_string(entry.path().join("free_hugepages")).unwrap_or_default();
        match count.trim().parse::<u64>() {
            Ok(count) if count > 0 => {
                let size = name.strip_prefix("hugepages-").unwrap_or(&name).to_owned();
                free.push(format!("{count} of {size} free"));
            }
            _ => {}
        }
    }
    if free.is_empty() {
        let remedy = "they are not required; as root: sysctl -w vm.nr_hugepages=256";
        return Finding::off(
            "hugepages",
            "none free: packets are in ordinary memory",
            remedy,
        );
    }
    Finding::ok("hugepages", free.join(", "))
}

fn daemon_reachable(socket: &Path, daemon: &Result<Daemon, ClientError>) -> Finding {
    const WHAT: &str = "daemon";
    match daemon {
        Ok(daemon) => {
            let devices = devices(&daemon.lcores);
            let own = env!("CARGO_PKG_VERSION");
            let found = format!(
                "version {}, process {}, on {}: {}",
                daemon.version.version,
                daemon.version.pid,
                socket.display(),
                devices.join(", ")
            );
            if daemon.version.version == own {
                match daemon.version.restarted() {
                    None => Finding::ok(WHAT, found),
                    // Nothing to be mended, but something to know.
                    Some(what) => Finding::off(WHAT, found, what),
                }
            } else {
                Finding::off(
                    WHAT,
                    found,
                    format!("this command is version {own}: restart the daemon"),
                )
            }
        }
        // The error's own sentence has the remedy behind its first colon.
        Err(error) => {
            let text = error.to_string();
            let (found, remedy) = text.split_once(": ").unwrap_or((&text, ""));
            Finding::missing(WHAT, found, remedy)
        }
    }
}

/// Whoever may not open devices sees them all the same.
fn access(version: &VersionReply) -> Option<Finding> {
    let refused = version.refused.as_ref()?;
    let remedy = "ask the one who runs the daemon to name this user there, or run a daemon of your own: \
                  `roceline nic --socket PATH`";
    Some(Finding::missing("access", refused, remedy))
}

/// Rules that somebody made and forgot explain much that looks like a fault.
fn impairments(rules: &[RuleLine]) -> Finding {
    const WHAT: &str = "impairments";
    if rules.is_empty() {
        return Finding::ok(WHAT, "no rules");
    }
    let places: BTreeSet<&str> = rules.iter().map(|rule| rule.place.as_str()).collect();
    let places: Vec<&str> = places.into_iter().collect();
    Finding::off(
        WHAT,
        format!("packets are impaired on purpose: {}", places.join(", ")),
        "`roceline impair list` shows the rules, `roceline impair clear` removes them",
    )
}

/// Links that somebody took down and forgot.
fn links(ports: &[Port]) -> Finding {
    const WHAT: &str = "links";
    let of = |chosen: fn(&&Port) -> bool| -> Vec<&str> {
        let ports = ports.iter().filter(chosen);
        ports.map(|port| port.device.as_str()).collect()
    };
    let (ordered, down) = (of(|p| p.ordered_down), of(|p| p.state == "DOWN"));
    if let Some(first) = ordered.first() {
        return Finding::off(
            WHAT,
            format!("down by order: {}", ordered.join(", ")),
            format!("`roceline link up {first}`"),
        );
    }
    match down.is_empty() {
        true => Finding::ok(WHAT, "up"),
        false => Finding::off(
            WHAT,
            format!("down: {}", down.join(", ")),
            "the other end of the port is not there, or not up",
        ),
    }
}

/// Which ports pause and are paused, and whether their hardware does it.
fn pauses(ports: &[Port]) -> Finding {
    const WHAT: &str = "pauses";
    if ports
        .iter()
        .all(|port| matches!(&port.pauses[..], "off" | ""))
    {
        return Finding::off(
            WHAT,
            "off: what finds a full queue is lost, and sent again",
            "not required; at both ends of a link: `mode = \"pfc\"` in [nic.pfc], or `roceline congestion set pfc.mode=pfc`",
        );
    }
    let each = ports
        .iter()
        .map(|port| format!("{} {}", port.device, port.pauses));
    Finding::ok(WHAT, each.collect::<Vec<_>>().join(", "))
}

/// Two stations with one address, and peers that nobody answers for.
fn addresses(known: &NeighboursReply) -> Finding {
    const WHAT: &str = "addresses";
    if let Some(first) = known.conflicts.first() {
        return Finding::off(
            WHAT,
            neighbours::duplicate(first),
            "change `addresses` of one of them; `roceline show neighbours` lists all",
        );
    }
    let failed: Vec<&str> = known
        .neighbours
        .iter()
        .filter(|line| line.state == "failed")
        .map(|line| line.address.as_str())
        .collect();
    if failed.is_empty() {
        return Finding::ok(WHAT, "no duplicates, no peer that does not answer");
    }
    Finding::off(
        WHAT,
        format!("nobody answers for {}", failed.join(", ")),
        "is the peer up, with that address, on the same network? `[[nic.neighbor]]` names one that does not answer ARP or ND",
    )
}

fn shim_found(shim: &Result<PathBuf, shim::ShimError>) -> Finding {
    const WHAT: &str = "shim";
    let path = match shim {
        Ok(path) => path,
        Err(error) => {
            let text = error.to_string();
            let (found, remedy) = text.split_once(": ").unwrap_or((&text, ""));
            return Finding::missing(WHAT, found, remedy);
        }
    };
    let rebuild = "take both from one installation, or rebuild: cargo build --release --workspace";
    match fs::read(path).ok().as_deref().and_then(protocol_of) {
        Some(version) if version == u32::from(PROTOCOL_VERSION) => {
            Finding::ok(WHAT, format!("{}, protocol {version}", path.display()))
        }
        Some(version) => {
            let found = format!(
                "{}, protocol {version}, not {PROTOCOL_VERSION}",
                path.display()
            );
            Finding::missing(WHAT, found, rebuild)
        }
        None => {
            let found = format!("{} is not a shim of Roceline", path.display());
            Finding::missing(WHAT, found, rebuild)
        }
    }
}

/// The protocol version that stands in a shim's file. Read, not loaded: a library that is not ours should not run
/// here.
fn protocol_of(file: &[u8]) -> Option<u32> {
    let at = file
        .windows(MARK_PREFIX.len())
        .position(|window| window == MARK_PREFIX)?;
    let digits = file.get(at + MARK_PREFIX.len()..)?.get(..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Where the loader looks, nearly: its cache is a private format, so the usual places.
fn library_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default();
    let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
    for root in ["/usr/lib", "/lib", "/usr/local/lib"] {
        dirs.push(Path::new(root).join(&multiarch));
        dirs.push(root.into());
    }
    dirs.extend(["/usr/lib64", "/lib64"].map(PathBuf::from));
    dirs
}

fn rdma_core(dirs: &[PathBuf]) -> Finding {
    const WHAT: &str = "libibverbs";
    let found = dirs
        .iter()
        .map(|dir| dir.join("libibverbs.so.1"))
        .find(|path| path.exists());
    let Some(library) = found else {
        return Finding::missing(WHAT, "not installed", "Debian: apt-get install libibverbs1");
    };
    // The link's target is libibverbs.so.1.ABI.VERSION, VERSION being rdma-core's.
    let target = library.canonicalize().unwrap_or_else(|_| library.clone());
    let name = target
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    match name.as_deref().and_then(rdma_core_version) {
        Some(version) => Finding::ok(
            WHAT,
            format!("of rdma-core {version}, {}", target.display()),
        ),
        None => Finding::ok(WHAT, format!("{}, of an unknown version", target.display())),
    }
}

fn rdma_core_version(name: &str) -> Option<String> {
    let numbers = name.strip_prefix("libibverbs.so.1.")?;
    let (_abi, version) = numbers.split_once('.')?;
    Some(version.to_owned())
}

fn provider(dirs: &[PathBuf]) -> Finding {
    const WHAT: &str = "rxe provider";
    let found = dirs
        .iter()
        .flat_map(|dir| {
            fs::read_dir(dir.join("libibverbs"))
                .into_iter()
                .flatten()
                .flatten()
        })
        .map(|entry| entry.path())
        .find(|path| {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with("librxe-rdmav") && name.ends_with(".so"))
        });
    match found {
        Some(path) => Finding::ok(WHAT, path.display().to_string()),
        None => Finding::missing(
            WHAT,
            "not installed: libibverbs sees no device without it",
            "Debian: apt-get install ibverbs-providers",
        ),
    }
}

fn tool(program: &'static str, package: &str) -> Finding {
    let path = env::var_os("PATH").unwrap_or_default();
    match env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
    {
        Some(path) => Finding::ok(program, path.display().to_string()),
        None => Finding::off(
            program,
            "not installed; only needed to try things out",
            format!("Debian: apt-get install {package}"),
        ),
    }
}

/// Runs `ibv_devices` as `roceline run` would and looks for the daemon's devices in its output.
fn end_to_end(socket: &Path, shim: &Path, daemon: &Daemon) -> Finding {
    const WHAT: &str = "programs";
    let listed = Command::new("ibv_devices")
        .env("LD_PRELOAD", shim)
        .env("ROCELINE_SOCKET", socket)
        .env_remove("ROCELINE_DEVICE")
        .stdin(Stdio::null())
        .output();
    let Ok(listed) = listed else {
        return Finding::off(WHAT, "not tried: there is no ibv_devices", "");
    };
    let stdout = String::from_utf8_lossy(&listed.stdout);
    let seen: Vec<&str> = stdout
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next())
        .collect();
    let mut unseen = devices(&daemon.lcores);
    unseen.retain(|device| !seen.contains(device));
    if unseen.is_empty() {
        return Finding::ok(WHAT, "ibv_devices sees all devices of the daemon");
    }
    let stderr = String::from_utf8_lossy(&listed.stderr);
    let said = stderr.lines().next().unwrap_or("it said nothing");
    let found = format!("ibv_devices does not see {}: {said}", unseen.join(", "));
    let remedy = format!("look at LD_PRELOAD={} ibv_devices", shim.display());
    Finding::missing(WHAT, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::impair::Spec;

    #[test]
    fn one_cpu_is_said() {
        assert_eq!(cpus(&[0, 1], None).state, State::Ok);
        assert_eq!(cpus(&[3], None).state, State::Off);
    }

    #[test]
    fn free_hugepages_are_counted() {
        let root = env::temp_dir().join(format!("roceline-huge-{}", std::process::id()));
        let sizes = [("hugepages-2048kB", "12\n"), ("hugepages-1048576kB", "0\n")];
        for (size, free) in sizes {
            fs::create_dir_all(root.join(size)).unwrap();
            fs::write(root.join(size).join("free_hugepages"), free).unwrap();
        }
        assert_eq!(
            hugepages(&root),
            Finding::ok("hugepages", "12 of 2048kB free")
        );
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(hugepages(&root).state, State::Off);
    }

    #[test]
    fn a_missing_daemon_comes_with_its_remedy() {
        let socket = Path::new("/no/such.sock");
        let finding = daemon_reachable(socket, &ask(socket));
        assert_eq!(finding.state, State::Missing);
        assert!(finding.found.contains("/no/such.sock"), "{finding:?}");
        assert!(
            finding
                .remedy
                .is_some_and(|remedy| remedy.contains("roceline nic"))
        );
    }

    #[test]
    fn rules_that_were_forgotten_are_told() {
        assert_eq!(impairments(&[]).state, State::Ok);
        let rule = |id, place: &str| RuleLine {
            id,
            name: format!("rule{id}"),
            place: place.into(),
            seen: 0,
            matched: 0,
            hit: 0,
            dropped: 0,
            text: "drop".into(),
            rule: Spec::default(),
        };
        let rules = [
            rule(1, "roce1 rx"),
            rule(2, "roce0 tx"),
            rule(3, "roce1 rx"),
        ];
        let finding = impairments(&rules);
        assert_eq!(finding.state, State::Off);
        assert!(
            finding.found.ends_with(": roce0 tx, roce1 rx"),
            "{finding:?}"
        );
        assert!(finding.remedy.is_some_and(|r| r.contains("impair clear")));
    }

    #[test]
    fn a_shim_is_known_by_its_mark() {
        let mut file = b"\x7fELF....".to_vec();
        assert_eq!(protocol_of(&file), None);
        file.extend_from_slice(MARK_PREFIX);
        assert_eq!(protocol_of(&file), None, "cut");
        file.extend_from_slice(b"00012\0");
        assert_eq!(protocol_of(&file), Some(12));
        assert_eq!(
            protocol_of(&roceline_abi::mark()),
            Some(PROTOCOL_VERSION.into())
        );
    }

    #[test]
    fn the_version_is_in_the_name() {
        assert_eq!(
            rdma_core_version("libibverbs.so.1.14.44.0").as_deref(),
            Some("44.0")
        );
        assert_eq!(rdma_core_version("libibverbs.so.1"), None);
    }

    #[test]
    fn provider_and_library_are_found_where_they_are() {
        let root = env::temp_dir().join(format!("roceline-libs-{}", std::process::id()));
        fs::create_dir_all(root.join("libibverbs")).unwrap();
        let dirs = [root.clone()];
        assert_eq!(provider(&dirs).state, State::Missing);
        assert_eq!(rdma_core(&dirs).state, State::Missing);
        fs::write(root.join("libibverbs/librxe-rdmav34.so"), "").unwrap();
        fs::write(root.join("libibverbs.so.1"), "").unwrap();
        assert_eq!(provider(&dirs).state, State::Ok);
        assert_eq!(rdma_core(&dirs).state, State::Ok);
        fs::remove_dir_all(&root).unwrap();
    }
}
