//! `roceline show programs`: who has how much, and how much there may be.

use std::io::{self, Write};

use crate::cli::table::Table;
use crate::control::programs::{Amounts, ProgramsReply};
use crate::control::quota::Resource;
use crate::impair::units::written_bytes;

/// What stands in the table; JSON has all.
const COLUMNS: [Resource; 9] = [
    Resource::Contexts,
    Resource::Pds,
    Resource::Mrs,
    Resource::Registered,
    Resource::Cqs,
    Resource::Qps,
    Resource::Srqs,
    Resource::Channels,
    Resource::QueueMemory,
];

/// A row for each program and device, then what all have, then the limits.
pub(super) fn write(out: &mut impl Write, reply: &ProgramsReply) -> io::Result<()> {
    let mut titles = vec![
        ">pid".into(),
        "program".into(),
        ">uid".into(),
        "device".into(),
    ];
    titles.extend(COLUMNS.map(|resource| format!(">{}", resource.key().replace('_', " "))));
    let mut table = Table::new(&titles);
    for program in &reply.programs {
        let who = [
            program.pid.to_string(),
            program.name.clone(),
            program.uid.to_string(),
            program.device.clone(),
        ];
        table.row(row(who, &program.used));
    }
    if !reply.programs.is_empty() {
        for device in &reply.devices {
            let who = ["", "all", "", &device.device].map(String::from);
            table.row(row(who, &device.used));
        }
    }
    for (name, limits) in [
        ("limit, each", &reply.program_limits),
        ("limit, user", &reply.user_limits),
        ("limit, all", &reply.device_limits),
    ] {
        table.row(row(["", name, "", ""].map(String::from), limits));
    }
    table.write(out, "no programs")
}

fn row<const N: usize>(who: [String; N], amounts: &Amounts) -> Vec<String> {
    let cell = |resource: Resource| match amounts.get(resource.key()) {
        Some(bytes) if resource.is_bytes() => written_bytes(*bytes),
        Some(count) => count.to_string(),
        None => "-".into(),
    };
    who.into_iter().chain(COLUMNS.map(cell)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::programs::{DeviceLine, ProgramLine};

    #[test]
    fn programs_stand_above_what_they_may_have() {
        let amounts = |qps: u64, bytes: u64| -> Amounts {
            [("qps".into(), qps), ("registered".into(), bytes)].into()
        };
        let reply = ProgramsReply {
            programs: vec![ProgramLine {
                pid: 42,
                name: "ib_write_bw".into(),
                uid: 1000,
                device: "roce0".into(),
                used: amounts(2, 1 << 20),
            }],
            devices: vec![DeviceLine {
                device: "roce0".into(),
                used: amounts(2, 1 << 20),
            }],
            program_limits: amounts(65536, 64 << 30),
            user_limits: Amounts::new(),
            device_limits: Amounts::new(),
        };
        let mut out = Vec::new();
        write(&mut out, &reply).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_ascii_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..4], ["42", "ib_write_bw", "1000", "roce0"]);
        assert!(text.contains("1 MiB") && text.contains("64 GiB"), "{text}");
        assert_eq!(lines[3][..2], ["limit,", "each"]);
    }
}
