//! The cases: which tool takes which option on which transport.

use std::collections::BTreeSet;
use std::fmt;

/// Transports, and what else a case may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Rc,
    Uc,
    Ud,
}

use Transport::{Rc, Uc, Ud};

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Rc => "RC",
            Uc => "UC",
            Ud => "UD",
        }
    }
}

/// One run of a tool, as server and as client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub tool: &'static str,
    pub transport: Transport,
    pub option: &'static str,
    /// What both ends get besides device, port and address.
    pub arguments: String,
    pub loopback: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.loopback {
            "on one device"
        } else {
            "between two devices"
        };
        write!(f, "{} {} {place}", self.tool, self.arguments)
    }
}

/// A tool of perftest.
struct Perftest {
    name: &'static str,
    transports: &'static [Transport],
    bandwidth: bool,
    /// The letters by which [`OPTIONS`] name it.
    kind: char,
}

#[rustfmt::skip]
const PERFTEST: [Perftest; 8] = [
    Perftest { name: "ib_send_bw",    transports: &[Rc, Uc, Ud], bandwidth: true,  kind: 's' },
    Perftest { name: "ib_send_lat",   transports: &[Rc, Uc, Ud], bandwidth: false, kind: 's' },
    Perftest { name: "ib_write_bw",   transports: &[Rc, Uc],     bandwidth: true,  kind: 'w' },
    Perftest { name: "ib_write_lat",  transports: &[Rc, Uc],     bandwidth: false, kind: 'w' },
    Perftest { name: "ib_read_bw",    transports: &[Rc],         bandwidth: true,  kind: 'r' },
    Perftest { name: "ib_read_lat",   transports: &[Rc],         bandwidth: false, kind: 'r' },
    Perftest { name: "ib_atomic_bw",  transports: &[Rc],         bandwidth: true,  kind: 'a' },
    Perftest { name: "ib_atomic_lat", transports: &[Rc],         bandwidth: false, kind: 'a' },
];

/// An option of perftest: its words; the tools that take it, by kind; whether those for bandwidth, for latency; the
/// transports; and whether `./scripts/test` has it, which has those that change what the NIC does.
struct Choice(
    &'static str,
    &'static str,
    &'static str,
    &'static [Transport],
    bool,
);

// Where nothing is sent again, perftest waits for ever for what found no receive: options by which more may be under way
// than there are receives are for RC. Its default group has an IPv6 address, and it refuses to mix families.
const ALL: &[Transport] = &[Rc, Uc, Ud];
const CONNECTED: &[Transport] = &[Rc, Uc];
const BOTH: &str = "bw lat";

#[rustfmt::skip]
const OPTIONS: [Choice; 46] = [
    Choice("-n 100",                    "swra", BOTH,  ALL,       true),
    Choice("-n 100 -s 1",               "sw r", BOTH,  ALL,       false),
    Choice("-n 100 -s 4000",            "sw r", BOTH,  ALL,       false),
    Choice("-n 100 -s 100001",          "sw r", BOTH,  CONNECTED, false),
    Choice("-n 100 -a",                 "sw r", BOTH,  ALL,       false),
    Choice("-n 100 -m 256 -s 256",      "sw r", BOTH,  ALL,       false),
    Choice("-n 100 -x 1",               "swra", BOTH,  ALL,       true),
    Choice("-n 100 --ipv6",             "swra", BOTH,  ALL,       false),
    Choice("-n 100 -u 18",              "swra", BOTH,  ALL,       false),
    Choice("-n 100 -S 3",               "swra", BOTH,  ALL,       false),
    Choice("-n 100 --tclass 106",       "swra", BOTH,  ALL,       false),
    Choice("-n 100 --pkey_index 0",     "swra", BOTH,  ALL,       false),
    Choice("-n 100 -e",                 "s ra", BOTH,  ALL,       true),
    Choice("-n 100 -e -X 0",            "s ra", BOTH,  ALL,       false),
    Choice("-D 1",                      "swra", BOTH,  ALL,       true),
    Choice("-D 1 --cpu_util",           "swra", "bw",  ALL,       false),
    Choice("-n 100 -I 64 -s 64",        "sw",   BOTH,  ALL,       true),
    Choice("-n 100 -I 512 -s 512",      "sw",   BOTH,  ALL,       false),
    Choice("-n 100 -I 0 -s 64",         "sw",   BOTH,  ALL,       false),
    Choice("-n 100 --inline_recv 32 -s 32", "s", BOTH, ALL,       false),
    Choice("-n 100 --use_old_post_send", "swra", BOTH, ALL,       false),
    Choice("-n 100 --disable_pcie_relaxed", "swra", BOTH, ALL,    false),
    Choice("-n 100 --wait_destroy 1",   "swra", "bw",  ALL,       false),
    Choice("-n 100 -r 1",               "s",    BOTH,  &[Rc],     false),
    Choice("-n 100 -r 4000",            "s",    BOTH,  ALL,       false),
    Choice("-n 128 -r 64 --recv_post_list 8", "s", BOTH, &[Rc],   true),
    Choice("-n 100 --use-srq",          "s",    BOTH,  ALL,       true),
    Choice("-n 100 --use-srq -q 8",     "s",    "bw",  &[Rc],     true),
    Choice("-n 100 -g -x 1",            "s",    BOTH,  &[Ud],     true),
    Choice("-n 100 -b",                 "swra", "bw",  ALL,       true),
    Choice("-n 100 -b --report-both",   "swra", "bw",  ALL,       false),
    Choice("-n 100 -q 8",               "swra", "bw",  ALL,       true),
    Choice("-n 100 -q 8 --mr_per_qp",   "swra", "bw",  ALL,       false),
    Choice("-n 100 -q 128",             "swra", "bw",  ALL,       false),
    Choice("-n 100 -t 1",               "swra", "bw",  ALL,       false),
    Choice("-n 100 -t 15000",           "swra", "bw",  ALL,       false),
    Choice("-n 128 -t 64 -l 16",        "swr",  "bw",  ALL,       true),
    Choice("-n 100 -Q 1",               "swra", "bw",  ALL,       false),
    Choice("-n 100 -Q 50",              "swra", "bw",  ALL,       false),
    Choice("-n 100 -N",                 "swra", "bw",  ALL,       false),
    Choice("-n 100 --report_gbits",     "swra", "bw",  ALL,       false),
    Choice("-n 100 --rate_limit 1 --rate_limit_type SW", "sw", "bw", ALL, false),
    Choice("-n 100 -o 1",               "ra",   BOTH,  &[Rc],     false),
    Choice("-n 100 -o 16",              "ra",   BOTH,  &[Rc],     true),
    Choice("-n 100 -A CMP_AND_SWAP",    "a",    BOTH,  &[Rc],     true),
    Choice("-n 100 -U -H",              "swra", "lat", ALL,       false),
];

/// Every option on every tool and transport that takes it.
pub fn perftest() -> Vec<Case> {
    let mut cases = Vec::new();
    for tool in &PERFTEST {
        let half = if tool.bandwidth { "bw" } else { "lat" };
        for Choice(option, kinds, halves, transports, _) in &OPTIONS {
            let taken = kinds.contains(tool.kind) && halves.contains(half);
            for &transport in tool.transports.iter().filter(|t| transports.contains(t)) {
                for loopback in [false, true] {
                    if taken && possible(tool.name, transport, option) {
                        cases.push(Case {
                            tool: tool.name,
                            transport,
                            option,
                            arguments: arguments(tool.name, transport, option),
                            loopback,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// What the tools themselves refuse, or cannot end.
fn possible(tool: &str, transport: Transport, option: &str) -> bool {
    let has = |word: &str| option.split(' ').any(|w| w == word);
    // "Multicast: only one QP"; "SRQ: not with UC" is no rule of ours: see `Needs`.
    match transport {
        Ud if has("-a") || has("--mr_per_qp") => false,
        _ if has("--use-srq") && tool == "ib_send_lat" && transport == Uc => false,
        _ => true,
    }
}

fn arguments(tool: &str, transport: Transport, option: &str) -> String {
    let connection = match (tool, transport) {
        ("ib_read_bw" | "ib_read_lat" | "ib_atomic_bw" | "ib_atomic_lat", _) => "",
        (_, Rc) => "-c RC ",
        (_, Uc) => "-c UC ",
        (_, Ud) => "-c UD ",
    };
    format!("-F {connection}{option}")
}

/// The example programs of libibverbs and what they take.
pub fn pingpong() -> Vec<Case> {
    let programs = [
        ("ibv_rc_pingpong", Rc),
        ("ibv_uc_pingpong", Uc),
        ("ibv_ud_pingpong", Ud),
        ("ibv_srq_pingpong", Rc),
    ];
    // With -c each byte is compared; -g 1 is IPv6.
    let options = [
        ("-g 0 -c", ALL),
        ("-g 0 -c -e", ALL),
        ("-g 1 -c", ALL),
        ("-g 1 -e", ALL),
        ("-g 0 -c -s 1", ALL),
        ("-g 0 -c -s 1 -m 256", CONNECTED),
        ("-g 0 -c -s 100000 -n 100 -m 4096", CONNECTED),
        ("-g 0 -e -s 100000 -n 100 -m 512", CONNECTED),
        ("-g 0 -c -r 2", ALL),
        ("-g 0 -c -r 4000", ALL),
        ("-g 0 -c -l 3", ALL),
        ("-g 0 -c -n 10", ALL),
    ];
    let own: [(&str, &[&str]); 2] = [
        ("ibv_rc_pingpong", &["-g 0 -c -N", "-g 0 -e -N"]),
        ("ibv_srq_pingpong", &["-g 0 -c -q 1", "-g 0 -c -e -q 32"]),
    ];
    let mut cases = Vec::new();
    for (tool, transport) in programs {
        let general = options
            .iter()
            .filter(|(_, transports)| transports.contains(&transport));
        let own = own.iter().filter(|(name, _)| *name == tool);
        let own = own.flat_map(|(_, options)| options.iter().copied());
        for option in general.map(|(option, _)| *option).chain(own) {
            // Fewer receives than queue pairs leave some of them without.
            if tool == "ibv_srq_pingpong" && option.contains("-r 2") {
                continue;
            }
            for loopback in [false, true] {
                cases.push(Case {
                    tool,
                    transport,
                    option,
                    arguments: option.into(),
                    loopback,
                });
            }
        }
    }
    cases
}

/// Few cases that hold every pair of tool and transport, and every option of those that `./scripts/test` has.
pub fn few(cases: Vec<Case>) -> Vec<Case> {
    let quick = |option: &str| {
        let mut perftest = OPTIONS.iter().filter(|choice| choice.0 == option);
        perftest.next().is_none_or(|choice| choice.4)
    };
    let holds = |case: &Case| {
        [
            format!("{} {}", case.tool, case.transport.name()),
            format!("option {} {}", case.option, case.transport.name()),
        ]
    };
    let mut open: BTreeSet<String> = cases
        .iter()
        .filter(|case| quick(case.option))
        .flat_map(holds)
        .collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let gain = |case: &Case| {
            holds(case)
                .iter()
                .filter(|pair| open.contains(*pair))
                .count()
        };
        // The first of those that hold the most that no other holds yet; every other one on one device.
        let loopback = chosen.len() % 2 == 1;
        let best = cases
            .iter()
            .filter(|case| quick(case.option) && case.loopback == loopback)
            .rev()
            .max_by_key(|case| gain(case));
        let Some(best) = best else { break };
        for pair in holds(best) {
            open.remove(&pair);
        }
        chosen.push(best.clone());
    }
    chosen
}
