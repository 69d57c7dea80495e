//! From the text to values that can be relied on: ranges, formats, and what must fit together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use roceline_abi::control::MemoryPolicy;
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, Retransmission};
use toml::Spanned;

use super::file::{self, NumberOrWord, line_of};
use super::lcores::Spread;
use super::nics::{self, derived_mac};
use super::{Config, ConfigError, EalConfig, Hugepages, NicConfig, PortSpec, SocketConfig, port};
use crate::addresses::{self, is_host, mapped};
use crate::fabric::Fabric;
use crate::fabric::plan::Plan;
use crate::neighbour::same_subnet;
use crate::telemetry::check_filter;

/// Packet buffers of a small configuration and room to spare.
const DEFAULT_MEMORY_MB: u32 = 256;
/// Packet buffers of each lcore beside the first.
const MEMORY_MB_PER_LCORE: u32 = 40;
/// Packet buffers that surely fit a MiB: as many as an lcore has in [`MEMORY_MB_PER_LCORE`], and fewer.
const MBUFS_PER_MB: u32 = 200;
/// An emulated link is ours, so it carries the largest path MTU by default: 4096 and 80 bytes of headers.
const DEFAULT_FABRIC_MTU: u32 = 4200;
/// What every Ethernet device carries.
const DEFAULT_PORT_MTU: u32 = 1500;
/// Above this, DPDK's virtual devices differ in what they take.
const MAX_MTU: u32 = 9600;
/// `uverbsN` minors of the kernel's own range.
const MAX_NICS: usize = 32;
/// As open as Debian's udev rules make `/dev/infiniband/uverbs*`.
const DEFAULT_MODE: u32 = 0o666;
/// A device name has to fit the kernel's `IB_DEVICE_NAME_MAX` with its NUL.
const MAX_NAME: usize = 63;

/// Checks one text.
pub(super) struct Checker<'a> {
    label: &'a str,
    text: &'a str,
    base: &'a Path,
    cpus: Vec<usize>,
    /// What takes the place of names of things outside the text, with where those stand.
    replaced: RefCell<Vec<(Range<usize>, String)>>,
}

impl<'a> Checker<'a> {
    /// For a text, the directory from which it names files, and the CPUs that its lcores may be pinned to.
    pub(super) fn new(
        label: &'a str,
        text: &'a str,
        base: &'a Path,
        cpus: Vec<usize>,
    ) -> Checker<'a> {
        Checker {
            label,
            text,
            base,
            cpus,
            replaced: RefCell::default(),
        }
    }

    /// Checks everything.
    pub(super) fn check(&self, file: file::File) -> Result<Config, ConfigError> {
        let memory_is_set = file.eal.memory_mb.is_some();
        let mut eal = self.eal(file.eal)?;
        let lcores = self.lcores(file.lcore)?;
        let given = file.fabric.as_ref().and_then(|f| f.lcore.as_ref());
        let given = given.map(|given| self.lcore(given, lcores.len()));
        let mut spread = Spread::new(lcores.len(), given.transpose()?);
        let mut fabric = self.fabric(file.fabric, &spread)?;
        let nics = file
            .nic
            .into_iter()
            .map(|nic| self.nic(nic.into_inner(), &mut spread, &fabric))
            .collect::<Result<Vec<_>, _>>()?;
        self.together(&nics, &fabric)?;
        self.stations(&mut fabric, &nics)?;
        if !memory_is_set {
            let more = (lcores.len() - 1) as u32 * MEMORY_MB_PER_LCORE;
            let rings = |nic: &NicConfig| nic.rings.more_mbufs(&nic.port) * nic.lcores.len() as u32;
            let more = more + (nics.iter().map(rings).sum::<u32>()).div_ceil(MBUFS_PER_MB);
            eal.memory_mb = (eal.memory_mb + more).max(Fabric::memory_mb(&fabric) + more);
        }
        let impair = self.impair(file.impair, &nics)?;
        let limits = self.limits(file.limits)?;
        let control = self.control(file.control)?;
        let log = file.log.level.map(|level| self.log_filter(level));
        Ok(Config {
            eal,
            lcores,
            nics,
            fabric,
            impair,
            limits,
            control,
            log: log.transpose()?,
            text: self.self_contained(),
        })
    }

    /// From here on a value of the text is `value` ([`Config::text`]).
    pub(super) fn replace(&self, at: Range<usize>, value: impl Into<toml::Value>) {
        let value = value.into().to_string();
        self.replaced.borrow_mut().push((at, value));
    }

    /// The text with what was replaced.
    fn self_contained(&self) -> String {
        let mut replaced = self.replaced.take();
        // From the end, so that places stay where they are.
        replaced.sort_by_key(|(at, _)| std::cmp::Reverse(at.start));
        let mut text = self.text.to_string();
        for (at, value) in replaced {
            // The bounds are those of a value, so they are between characters.
            text.replace_range(at, &value);
        }
        text
    }

    /// CPUs that lcores may be pinned to.
    pub(super) fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// The directory from which files are named.
    pub(super) fn base(&self) -> &Path {
        self.base
    }

    /// What the text is called in errors; the path of a file.
    pub(super) fn label(&self) -> &str {
        self.label
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        self.text
    }

    pub(super) fn bad(
        &self,
        key: &'static str,
        value: impl ToString,
        span: Range<usize>,
        problem: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Value {
            file: self.label.into(),
            line: line_of(self.text, span.start),
            key,
            value: value.to_string(),
            problem: problem.into(),
        }
    }

    pub(super) fn whole(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::Whole {
            file: self.label.into(),
            problem: problem.into(),
        }
    }

    pub(super) fn number(
        &self,
        key: &'static str,
        value: &Spanned<i64>,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<u32, ConfigError> {
        u32::try_from(*value.as_ref())
            .ok()
            .filter(|v| range.contains(v))
            .ok_or_else(|| {
                let problem = format!("must be from {} to {}", range.start(), range.end());
                self.bad(key, value.as_ref(), value.span(), problem)
            })
    }

    fn eal(&self, eal: file::Eal) -> Result<EalConfig, ConfigError> {
        let memory_mb = match &eal.memory_mb {
            Some(value) => self.number("memory_mb", value, 64..=1 << 20)?,
            None => DEFAULT_MEMORY_MB,
        };
        Ok(EalConfig {
            hugepages: eal.hugepages.unwrap_or(Hugepages::Auto),
            memory_mb,
            args: eal.args,
        })
    }

    fn nic(
        &self,
        nic: file::Nic,
        spread: &mut Spread,
        fabric: &Plan,
    ) -> Result<NicConfig, ConfigError> {
        let name = self.name(&nic.name)?;
        let addresses = nic
            .addresses
            .as_ref()
            .iter()
            .map(|address| self.address(address))
            .collect::<Result<Vec<_>, _>>()?;
        let Some(&(first, _)) = addresses.first() else {
            let problem = "a NIC needs an address, such as \"10.77.0.1/24\"";
            return Err(self.bad("addresses", "[]", nic.addresses.span(), problem));
        };
        let mac = match &nic.mac {
            Some(mac) => self.mac(mac)?,
            None => derived_mac(first),
        };
        let port = self.port(&nic.port)?;
        let rings = self.rings(&nic, &port, fabric)?;
        let smallest = (256u32..)
            .find(|&mtu| Mtu::for_port(mtu).is_some())
            .unwrap_or(MAX_MTU);
        let mtu = match (&nic.mtu, &port) {
            (Some(mtu), _) => self.number("mtu", mtu, smallest..=MAX_MTU)?,
            (None, PortSpec::Fabric(_)) => DEFAULT_FABRIC_MTU,
            (None, _) => DEFAULT_PORT_MTU,
        };
        let lcores = match &nic.lcore {
            Some(lcores) => self.serving(lcores, spread.lcores())?,
            None => vec![spread.next()],
        };
        let neighbours = nic
            .neighbor
            .iter()
            .map(|neighbour| {
                Ok((
                    self.host("ip", neighbour.ip.as_ref(), neighbour.ip.span())?,
                    self.mac(&neighbour.mac)?,
                ))
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let gateways = match &nic.gateway {
            Some(gateways) => self.gateways(gateways, &addresses, &port)?,
            None => Vec::new(),
        };
        let ack_policy = match nic.ack_policy {
            Some(file::AckPolicy::PerMessage) => AckPolicy::PerMessage,
            Some(file::AckPolicy::Coalesced) | None => AckPolicy::Coalesced,
        };
        let retransmission = match nic.retransmission {
            Some(file::Retransmission::Adaptive) => Retransmission::Adaptive,
            Some(file::Retransmission::Spec) | None => Retransmission::Spec,
        };
        let memory = match nic.memory {
            Some(file::Memory::Auto) | None => MemoryPolicy::Auto,
            Some(file::Memory::Never) => MemoryPolicy::Never,
            Some(file::Memory::Always) => MemoryPolicy::Always,
        };
        let lid = match &nic.lids {
            Some(lids) if *lids.as_ref() => self.lid(&addresses, lids.span())?,
            _ => 0,
        };
        let switch = match &port {
            PortSpec::Fabric(name) => fabric.switch(name).map(|n| &fabric.switches[n]),
            PortSpec::Vdev(_) | PortSpec::Pci(_) => None,
        };
        let congestion = self.congestion(&nic, mtu, switch)?;
        Ok(NicConfig {
            name,
            addresses,
            mac,
            mtu,
            port,
            rings,
            ack_policy,
            retransmission,
            memory,
            lid,
            lcores,
            gateways,
            neighbours,
            congestion,
        })
    }

    fn name(&self, name: &Spanned<String>) -> Result<String, ConfigError> {
        let text = name.as_ref();
        let fits = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            && text.len() <= MAX_NAME;
        if fits {
            return Ok(text.clone());
        }
        let problem = format!(
            "a device name begins with a letter and has letters, digits, `_` and `-`, {MAX_NAME} at most"
        );
        Err(self.bad("name", format!("{text:?}"), name.span(), problem))
    }

    fn address(&self, address: &Spanned<String>) -> Result<(IpAddr, u8), ConfigError> {
        let bad = |problem: &str| {
            self.bad(
                "addresses",
                format!("{:?}", address.as_ref()),
                address.span(),
                problem,
            )
        };
        let (ip, prefix) = addresses::parse(address.as_ref()).map_err(|problem| bad(&problem))?;
        let prefix = prefix.ok_or_else(|| bad(addresses::FORM))?;
        Ok((ip, prefix))
    }

    /// Routers to what is in no subnet.
    fn gateways(
        &self,
        gateways: &Spanned<file::OneOrMore>,
        addresses: &[(IpAddr, u8)],
        port: &PortSpec,
    ) -> Result<Vec<IpAddr>, ConfigError> {
        let mut all: Vec<IpAddr> = Vec::new();
        for gateway in gateways.as_ref().as_slice() {
            let bad = |problem: &str| {
                let value = format!("{gateway:?}");
                self.bad("gateway", value, gateways.span(), problem)
            };
            if matches!(port, PortSpec::Fabric(_)) {
                return Err(bad(
                    "an emulated link joins two NICs and has no router; remove it",
                ));
            }
            let ip = self.host("gateway", gateway, gateways.span())?;
            let family = |other: &IpAddr| other.is_ipv4() == ip.is_ipv4();
            if all.iter().any(family) {
                return Err(bad(
                    "is the second one of its family: one for IPv4 and one for IPv6 at most",
                ));
            }
            if addresses.iter().any(|&(own, _)| own == ip) {
                return Err(bad("is an address of this NIC itself"));
            }
            let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            let in_subnet = |&(own, prefix): &(IpAddr, u8)| same_subnet(own, ip, prefix);
            if !link_local && !addresses.iter().any(in_subnet) {
                return Err(bad(
                    "is in no subnet of `addresses`, so it cannot be reached",
                ));
            }
            all.push(ip);
        }
        Ok(all)
    }

    fn host(&self, key: &'static str, ip: &str, span: Range<usize>) -> Result<IpAddr, ConfigError> {
        let bad = |problem: &str| self.bad(key, format!("{ip:?}"), span.clone(), problem);
        match ip.parse() {
            Ok(addr) => match mapped(addr) {
                Some(v4) => Err(bad(&format!(
                    "this is an IPv4 address inside of an IPv6 one; write it as \"{v4}\""
                ))),
                None if is_host(addr) => Ok(addr),
                None => Err(bad(
                    "must be the address of one host, such as \"10.77.0.3\"",
                )),
            },
            Err(_) => Err(bad(
                "must be the address of one host, such as \"10.77.0.3\"",
            )),
        }
    }

    fn mac(&self, mac: &Spanned<String>) -> Result<[u8; 6], ConfigError> {
        let bad =
            |problem: &str| self.bad("mac", format!("{:?}", mac.as_ref()), mac.span(), problem);
        let parsed = parse_mac(mac.as_ref()).ok_or_else(|| {
            bad("must be six bytes in hexadecimal, such as \"02:52:4c:00:00:01\"")
        })?;
        if parsed[0] & 1 == 1 || parsed == [0; 6] {
            return Err(bad(
                "must be the address of one station: an even first byte, not all zero",
            ));
        }
        Ok(parsed)
    }

    fn port(&self, port: &Spanned<String>) -> Result<PortSpec, ConfigError> {
        port::parse(port.as_ref()).map_err(|problem| {
            self.bad("port", format!("{:?}", port.as_ref()), port.span(), problem)
        })
    }

    fn log_filter(&self, level: Spanned<String>) -> Result<String, ConfigError> {
        match check_filter(level.as_ref()) {
            Ok(()) => Ok(level.into_inner()),
            Err(problem) => {
                let value = format!("{:?}", level.as_ref());
                Err(self.bad("level", value, level.span(), problem))
            }
        }
    }

    fn control(&self, control: file::Control) -> Result<SocketConfig, ConfigError> {
        let socket = match control.socket {
            None => None,
            Some(path) if path.as_ref().starts_with('/') => Some(PathBuf::from(path.into_inner())),
            Some(path) => {
                let problem = "must be an absolute path";
                let value = format!("{:?}", path.as_ref());
                return Err(self.bad("socket", value, path.span(), problem));
            }
        };
        let users = match control.users {
            None => None,
            Some(users) => Some(
                users
                    .iter()
                    .map(|user| self.user("users", user))
                    .collect::<Result<Vec<_>, _>>()?,
            ),
        };
        let operators = control
            .operators
            .iter()
            .map(|user| self.user("operators", user))
            .collect::<Result<Vec<_>, _>>()?;
        let mode = match control.mode {
            None => DEFAULT_MODE,
            Some(mode) => u32::from_str_radix(mode.as_ref(), 8)
                .ok()
                .filter(|bits| bits & !0o777 == 0)
                .ok_or_else(|| {
                    let problem = "must be permission bits in octal, such as \"0660\"";
                    self.bad("mode", format!("{:?}", mode.as_ref()), mode.span(), problem)
                })?,
        };
        Ok(SocketConfig {
            socket,
            mode,
            users,
            operators,
        })
    }

    fn user(&self, key: &'static str, user: &Spanned<NumberOrWord>) -> Result<u32, ConfigError> {
        match user.as_ref() {
            NumberOrWord::Number(uid) => {
                u32::try_from(*uid).map_err(|_| self.bad(key, uid, user.span(), "is not a user id"))
            }
            NumberOrWord::Word(name) => {
                let uid = uid_of(name).ok_or_else(|| {
                    let problem = "no such user in /etc/passwd";
                    self.bad(key, format!("{name:?}"), user.span(), problem)
                })?;
                // Who may do what does not change with /etc/passwd when a worker is started anew.
                self.replace(user.span(), i64::from(uid));
                Ok(uid)
            }
        }
    }

    /// What the NICs must be to one another.
    fn together(&self, nics: &[NicConfig], fabric: &Plan) -> Result<(), ConfigError> {
        if nics.is_empty() {
            return Err(self.whole("there is no [[nic]]; `roceline nic --print-config` shows two"));
        }
        if nics.len() > MAX_NICS {
            return Err(self.whole(format!(
                "{} NICs: {MAX_NICS} at most; run another daemon for more of them, and join the two by `net_memif` ports",
                nics.len()
            )));
        }
        let mut names = BTreeMap::new();
        let mut macs = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        let mut links: BTreeMap<&str, Vec<&NicConfig>> = BTreeMap::new();
        for nic in nics {
            let name = nic.name.as_str();
            if names.insert(name, ()).is_some() {
                return Err(self.whole(format!("two NICs are called {name}; rename one")));
            }
            let mut take = |ip: IpAddr| match addresses.insert(ip, name) {
                Some(other) => {
                    Err(self.whole(format!("{other} and {name} both have {ip}; change one")))
                }
                None => Ok(()),
            };
            nic.addresses.iter().try_for_each(|&(ip, _)| take(ip))?;
            if let Some(other) = macs.insert(nic.mac, name) {
                let problem = "have the same MAC address; give one of them another with `mac`";
                return Err(self.whole(format!("{other} and {name} {problem}")));
            }
            // The one that follows from the MAC address is an address too.
            let own = IpAddr::V6(nics::link_local(nic.mac));
            if !nic.addresses.iter().any(|&(ip, _)| ip == own) {
                take(own)?;
            }
            let PortSpec::Fabric(link) = &nic.port else {
                continue;
            };
            if fabric.switch(link).is_none() {
                links.entry(link).or_default().push(nic);
            }
        }
        for (link, ends) in links {
            let names = ends
                .iter()
                .map(|nic| nic.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            if ends.len() != 2 {
                return Err(self.whole(format!(
                    "link fabric:{link} has {} end(s) ({names}); a link joins exactly two NICs, and a [[fabric.switch]] of \
                     that name any number",
                    ends.len()
                )));
            }
            if ends[0].mtu != ends[1].mtu {
                return Err(self.whole(format!(
                    "link fabric:{link}: {names} have mtu {} and {}; the ends of a link need the same",
                    ends[0].mtu, ends[1].mtu
                )));
            }
        }
        Ok(())
    }
}

/// Why a CPU cannot be used.
pub(crate) fn cpu_problem(cpus: &[usize]) -> String {
    let list = cpus
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    format!("this process may run on CPUs {list}; choose one of them or \"any\"")
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts
            .next()
            .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// The id of a local user. Users of directory services are named by number: asking those services takes
/// glibc's loadable modules, which a daemon should not pull in for a start-up nicety.
fn uid_of(name: &str) -> Option<u32> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests;
