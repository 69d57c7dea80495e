use super::super::{Idle, LcoreConfig};
use super::*;
use crate::control::quota::Resource;
use crate::fuzzing::{run, run_long};
use crate::lcore::Tuning;
use roceline_abi::control::MemoryPolicy;

const NIC: &str =
    "[[nic]]\nname = \"roce0\"\naddresses = [\"10.0.0.1/24\"]\nport = \"vdev:net_null0\"\n";

fn parse_on(cpus: &[usize], text: &str) -> Result<Config, ConfigError> {
    let raw = file::parse("f.toml", text)?;
    Checker::new("f.toml", text, Path::new("."), cpus.to_vec()).check(raw)
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_on(&[0, 1], text)
}

#[track_caller]
fn refused(text: &str, begins: &str, contains: &str) {
    let message = parse(text).expect_err("must be refused").to_string();
    assert!(message.starts_with(begins), "{message}");
    assert!(message.contains(contains), "{message}");
}

/// `NIC` with one line more.
fn with(line: &str) -> String {
    format!("{NIC}{line}\n")
}

#[test]
fn the_least_configuration_has_defaults() {
    let config = parse(NIC).unwrap();
    assert_eq!(config.eal.hugepages, Hugepages::Auto);
    assert_eq!(
        config.lcores,
        [LcoreConfig {
            cpu: Some(1),
            idle: Idle::Adaptive,
            watchdog_s: 60,
            tuning: Tuning::default(),
        }]
    );
    assert_eq!(config.nics[0].mtu, 1500);
    assert_eq!(config.nics[0].ack_policy, AckPolicy::Coalesced);
    assert_eq!(config.nics[0].retransmission, Retransmission::Spec);
    assert_eq!(
        config.control,
        SocketConfig {
            socket: None,
            mode: 0o666,
            users: None,
            operators: vec![],
        }
    );
}

#[test]
fn every_key_arrives() {
    let config = parse(
        "[eal]\nhugepages = \"never\"\nmemory_mb = 128\nargs = [\"--log-level=8\"]\n\
         [[lcore]]\ncpu = 0\nidle = \"spin\"\nwatchdog_s = 5\n\
         rx_burst = 16\ntx_burst = 7\nrx_prefetch = 0\ntx_prefetch = 4\n\
         [[nic]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\", \"fd00::1/64\"]\nmac = \"02:00:00:00:00:0a\"\n\
         mtu = 9000\nport = \"vdev:net_memif0,role=server\"\nrx_ring = 256\nack_policy = \"per-message\"\nretransmission = \"adaptive\"\nmemory = \"never\"\nlcore = 0\n\
         [[nic.neighbor]]\nip = \"10.0.0.2\"\nmac = \"02:00:00:00:00:0b\"\n\
         [[nic]]\nname = \"b\"\naddresses = [\"10.0.1.1/24\"]\nport = \"pci:0000:01:00.0\"\n\
         [control]\nsocket = \"/tmp/s\"\nmode = \"0660\"\nusers = [\"root\", 1000]\n\
         [log]\nlevel = \"info\"\n",
    )
    .unwrap();
    assert_eq!(config.eal.memory_mb, 128);
    assert_eq!(config.eal.args, ["--log-level=8"]);
    assert_eq!(
        config.lcores,
        [LcoreConfig {
            cpu: Some(0),
            idle: Idle::Spin,
            watchdog_s: 5,
            tuning: Tuning {
                rx_burst: 16,
                tx_burst: 7,
                rx_prefetch: 0,
                tx_prefetch: 4,
            },
        }]
    );
    let a = &config.nics[0];
    assert_eq!(a.port, PortSpec::Vdev("net_memif0,role=server".into()));
    assert_eq!((a.mtu, a.mac), (9000, [2, 0, 0, 0, 0, 0x0a]));
    assert_eq!((a.rings.rx, a.rings.tx), (256, 512));
    assert_eq!(a.lcores, [0]);
    assert_eq!(a.ack_policy, AckPolicy::PerMessage);
    assert_eq!(a.retransmission, Retransmission::Adaptive);
    assert_eq!(a.memory, MemoryPolicy::Never);
    assert_eq!(config.nics[1].memory, MemoryPolicy::Auto);
    assert_eq!(
        a.neighbours,
        [("10.0.0.2".parse().unwrap(), [2, 0, 0, 0, 0, 0x0b])]
    );
    assert_eq!(config.nics[1].port, PortSpec::Pci("0000:01:00.0".into()));
    assert_eq!(
        config.control.socket.as_deref(),
        Some(std::path::Path::new("/tmp/s"))
    );
    assert_eq!(
        (config.control.mode, config.control.users),
        (0o660, Some(vec![0, 1000]))
    );
    assert_eq!(config.log.as_deref(), Some("info"));
}

#[test]
fn the_cpu_is_auto_any_or_one_that_may_be_used() {
    let cpu = |cpus: &[usize], value: &str| {
        parse_on(cpus, &format!("[[lcore]]\ncpu = {value}\n{NIC}")).map(|c| c.lcores[0].cpu)
    };
    assert_eq!(cpu(&[0, 1, 2], "\"auto\"").unwrap(), Some(2));
    assert_eq!(
        cpu(&[3], "\"auto\"").unwrap(),
        None,
        "programs need a CPU too"
    );
    assert_eq!(cpu(&[0, 1], "\"any\"").unwrap(), None);
    assert_eq!(cpu(&[0, 1], "0").unwrap(), Some(0));
    let error = cpu(&[0, 1], "7").unwrap_err().to_string();
    assert!(error.starts_with("f.toml:2: cpu = 7: "), "{error}");
    assert!(error.contains("CPUs 0, 1"), "{error}");
    assert!(cpu(&[0, 1], "-1").is_err());
    assert!(cpu(&[0, 1], "\"fast\"").is_err());
}

#[test]
fn values_out_of_range_name_line_and_range() {
    refused(
        &with("mtu = 100"),
        "f.toml:5: mtu = 100: ",
        "from 336 to 9600",
    );
    refused(&with("mtu = -1"), "f.toml:5: mtu = -1: ", "from 336");
    refused(
        &with("lcore = 1"),
        "f.toml:5: lcore = 1: ",
        "there is one [[lcore]], number 0: add sections",
    );
    refused(
        &format!("[eal]\nmemory_mb = 3\n{NIC}"),
        "f.toml:2: memory_mb = 3: ",
        "from 64",
    );
}

#[test]
fn addresses_are_checked() {
    for (address, says) in [
        ("10.0.0.1", "prefix length"),
        ("10.0.0.1/33", "longer"),
        ("fd00::1/129", "longer"),
        ("10.0.0/24", "prefix length"),
        ("224.0.0.1/4", "one host"),
        ("127.0.0.1/8", "one host"),
        ("::/0", "one host"),
        ("255.255.255.255/32", "one host"),
        ("::ffff:10.0.0.1/120", "write it as \"10.0.0.1/24\""),
    ] {
        let text = NIC.replace("10.0.0.1/24", address);
        refused(
            &text,
            &format!("f.toml:3: addresses = \"{address}\": "),
            says,
        );
    }
    refused(
        &NIC.replace("\"10.0.0.1/24\"", ""),
        "f.toml:3: addresses = []",
        "needs an address",
    );
}

#[test]
fn names_macs_and_ports_are_checked() {
    refused(
        &NIC.replace("roce0", "../x"),
        "f.toml:2: name = \"../x\"",
        "begins with a letter",
    );
    refused(
        &NIC.replace("roce0", &"a".repeat(64)),
        "f.toml:2: name",
        "63 at most",
    );
    refused(
        &with("mac = \"01:00:00:00:00:01\""),
        "f.toml:5: mac",
        "even first byte",
    );
    refused(
        &with("mac = \"02:00:00:00:01\""),
        "f.toml:5: mac",
        "six bytes",
    );
    refused(
        &with("mac = \"02:00:00:00:00:+1\""),
        "f.toml:5: mac",
        "six bytes",
    );
    refused(
        &NIC.replace("vdev:net_null0", "eth0"),
        "f.toml:4: port = \"eth0\"",
        "fabric:LINK",
    );
    refused(
        &NIC.replace("vdev:net_null0", "vdev:net_nul0"),
        "f.toml:4: port = \"vdev:net_nul0\": ",
        "did you mean net_null0?",
    );
    refused(
        &NIC.replace("vdev:net_null0", "pci:01:00"),
        "f.toml:4: port = \"pci:01:00\": ",
        "PCI address",
    );
    refused(
        &with("[[nic.neighbor]]\nip = \"::ffff:10.0.0.2\"\nmac = \"02:00:00:00:00:02\""),
        "f.toml:6: ip",
        "write it as \"10.0.0.2\"",
    );
    refused(
        &NIC.replace("vdev:net_null0", "fabric:"),
        "f.toml:4: port",
        "fabric:LINK",
    );
}

#[test]
fn control_is_checked() {
    let control = |lines: &str| format!("{NIC}[control]\n{lines}\n");
    refused(
        &control("socket = \"x.sock\""),
        "f.toml:6: socket",
        "absolute",
    );
    refused(&control("mode = \"rw\""), "f.toml:6: mode", "octal");
    refused(&control("mode = \"4777\""), "f.toml:6: mode", "octal");
    refused(
        &control("users = [\"nobody-of-this-name\"]"),
        "f.toml:6: users",
        "no such user",
    );
    refused(&control("users = [-1]"), "f.toml:6: users", "not a user id");
    refused(
        &control("operators = [\"nobody-of-this-name\"]"),
        "f.toml:6: operators",
        "no such user",
    );
    let config = parse(&control("operators = [\"root\", 1001]")).unwrap();
    assert_eq!(config.control.operators, [0, 1001]);
    let text = control("users = [\"root\", 1000]\noperators = [ 'root' ]");
    let config = parse(&text).unwrap();
    // A worker that is started anew asks /etc/passwd no more.
    let numbers = text.replace("\"root\"", "0").replace("'root'", "0");
    assert_eq!(config.text, numbers);
    let config = parse(&control("users = [1000]")).unwrap();
    assert_eq!(
        (config.control.mode, config.control.users),
        (0o666, Some(vec![1000]))
    );
}

#[test]
fn a_log_level_that_does_not_exist_is_named() {
    refused(
        &format!("{NIC}[log]\nlevel = \"verbose\"\n"),
        "f.toml:6: level = \"verbose\": ",
        "error, warn, info, debug, trace",
    );
}

fn two(second: &str, port: &str) -> String {
    format!("{}{}", NIC.replace("vdev:net_null0", port), second)
}

#[test]
fn nics_must_fit_together() {
    refused("", "f.toml: there is no [[nic]]", "--print-config");
    refused(&format!("{NIC}{NIC}"), "f.toml: two NICs", "roce0");
    let other = NIC.replace("roce0", "b");
    refused(
        &format!("{NIC}{other}"),
        "f.toml: roce0 and b both have 10.0.0.1",
        "change one",
    );
    let mac = "mac = \"02:00:00:00:00:01\"\n";
    let other = other.replace("10.0.0.1", "10.0.0.2");
    refused(
        &format!("{NIC}{mac}{other}{mac}"),
        "f.toml: roce0 and b have the same MAC",
        "`mac`",
    );
    // An address that one has by its MAC address, the other by configuration.
    let taken = other.replace("10.0.0.2/24", "fe80::ff:fe00:1/64");
    refused(
        &format!("{NIC}{mac}{taken}"),
        "f.toml: roce0 and b both have fe80::ff:fe00:1",
        "change one",
    );
}

#[test]
fn gateways_are_in_a_subnet_and_one_for_each_family() {
    let with = |value: &str| {
        let addresses = "addresses = [\"10.0.0.1/24\", \"fd00::1/64\"]";
        let nic = NIC.replace("addresses = [\"10.0.0.1/24\"]", addresses);
        format!("{nic}gateway = {value}\n")
    };
    let gateways = |value: &str| parse(&with(value)).unwrap().nics[0].gateways.clone();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(gateways("\"10.0.0.254\""), [ip("10.0.0.254")]);
    assert_eq!(
        gateways("[\"10.0.0.254\", \"fe80::1\"]"),
        [ip("10.0.0.254"), ip("fe80::1")]
    );
    for (value, problem) in [
        ("\"10.0.1.254\"", "in no subnet"),
        ("\"10.0.0.1\"", "of this NIC itself"),
        ("\"224.0.0.1\"", "one host"),
        ("[\"10.0.0.2\", \"10.0.0.3\"]", "second one of its family"),
        ("7", "text in quotes or a list of it"),
    ] {
        refused(&with(value), "f.toml:", problem);
    }
    let fabric = with("\"10.0.0.254\"").replace("vdev:net_null0", "fabric:x");
    refused(&fabric, "f.toml:", "has no router");
}

#[test]
fn a_link_has_two_ends_of_one_mtu() {
    let b = NIC.replace("roce0", "b").replace("10.0.0.1", "10.0.0.2");
    let b = b.replace("vdev:net_null0", "fabric:x");
    assert!(parse(&two(&b, "fabric:x")).is_ok());
    refused(&b, "f.toml: link fabric:x has 1 end(s) (b)", "exactly two");
    refused(
        &two(&format!("{b}mtu = 1500\n"), "fabric:x"),
        "f.toml: link fabric:x",
        "4200 and 1500",
    );
}

#[test]
fn limits_are_numbers_of_objects_and_amounts_of_memory() {
    let config = parse(&with(
        "[limits]\nrequests_per_poll = 128\n[limits.program]\nqps = 100\nregistered = \"64GiB\"\n\
         [limits.user]\nqueue_memory = 1048576\n[limits.device]\ncqs = 65536",
    ))
    .unwrap();
    let limits = config.limits;
    assert_eq!(limits.requests_per_poll, 128);
    assert_eq!(limits.quotas.program.get(Resource::Qps), Some(100));
    assert_eq!(
        limits.quotas.program.get(Resource::Registered),
        Some(64 << 30)
    );
    assert_eq!(limits.quotas.user.get(Resource::QueueMemory), Some(1 << 20));
    assert_eq!(limits.quotas.device.get(Resource::Cqs), Some(65536));
    assert_eq!(limits.quotas.device.get(Resource::Qps), None);
    assert_eq!(parse(NIC).unwrap().limits.requests_per_poll, 64);
    for (line, says) in [
        ("qps = 0", "qps = 0: must be a whole number from 1 to 65536"),
        ("qps = 65537", "from 1 to 65536"),
        ("qps = \"10GiB\"", "must be a whole number"),
        ("registered = \"64Gib\"", "such as \"64GiB\""),
        ("registered = -1", "number of bytes"),
        ("qp = 1", "did you mean `qps`"),
    ] {
        refused(
            &with(&format!("[limits.program]\n{line}")),
            "f.toml:6: ",
            says,
        );
    }
    refused(
        &with("[limits]\nrequests_per_poll = 1"),
        "f.toml:6: ",
        "from 16 to 4096",
    );
}

/// Any text is a configuration or is refused with a sentence that names the file.
fn any_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match parse(&text) {
        // What a worker parses again is as good.
        Ok(config) => assert!(parse(&config.text).is_ok(), "{text}"),
        Err(error) => assert!(error.to_string().starts_with("f.toml"), "{error}"),
    }
}

#[test]
fn any_texts() {
    run("config", 400, any_text);
}

#[test]
#[ignore = "long: scripts/fuzz"]
fn long_texts() {
    run_long("config", any_text);
}

#[test]
fn lids_are_host_parts_of_addresses() {
    let with = |addresses: &str, rest: &str| {
        format!(
            "[[nic]]\nname = \"a\"\naddresses = [{addresses}]\nport = \"vdev:net_null0\"\n{rest}\n"
        )
    };
    let lid = |text: String| parse(&text).unwrap().nics[0].lid;
    assert_eq!(
        lid(with("\"fd77::1/64\", \"10.77.3.2/16\"", "lids = true")),
        0x302
    );
    assert_eq!(lid(with("\"10.77.0.2/24\"", "lids = false")), 0);
    assert_eq!(lid(with("\"10.77.0.2/24\"", "")), 0);
    for addresses in ["\"fd77::1/64\"", "\"10.77.0.2/8\""] {
        refused(
            &with(addresses, "lids = true"),
            "f.toml:5: ",
            "from 1 to 49151",
        );
    }
}
