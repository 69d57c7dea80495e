//! `roceline show programs`: who has how much, and how much there may be.

use std::io::{self, Write};

use crate::cli::table::Table;
use crate::control::programs::{Amounts, ProgramsReply};
use crate::control::quota::Resource;
use crate::impair::units::written_bytes;

/// Objects of verbs.
const OBJECTS: [Resource; 11] = [
    Resource::Contexts,
    Resource::Pds,
    Resource::Cqs,
    Resource::Cqes,
    Resource::Qps,
    Resource::Srqs,
    Resource::Ahs,
    Resource::Mcasts,
    Resource::Channels,
    Resource::Mrs,
    Resource::Mws,
];

/// Memory, and what it takes to reach it: a table of its own, as both together are wider than a terminal.
const MEMORY: [Resource; 4] = [
    Resource::Registered,
    Resource::MemoryObjects,
    Resource::Mappings,
    Resource::QueueMemory,
];

/// Two tables, of objects and of memory: in each a row for each program and device, then what all have, then the limits.
pub(super) fn write(out: &mut impl Write, reply: &ProgramsReply) -> io::Result<()> {
    table(out, reply, &OBJECTS)?;
    writeln!(out)?;
    table(out, reply, &MEMORY)
}

fn table(out: &mut impl Write, reply: &ProgramsReply, columns: &[Resource]) -> io::Result<()> {
    let mut titles = vec![
        ">pid".into(),
        "program".into(),
        ">uid".into(),
        "device".into(),
    ];
    let title = |resource: &Resource| format!(">{}", resource.key().replace('_', " "));
    titles.extend(columns.iter().map(title));
    let mut table = Table::new(&titles);
    for program in &reply.programs {
        let who = [
            program.pid.to_string(),
            program.name.clone(),
            program.uid.to_string(),
            program.device.clone(),
        ];
        table.row(row(who, &program.used, columns));
    }
    if !reply.programs.is_empty() {
        for device in &reply.devices {
            let who = ["", "all", "", &device.device].map(String::from);
            table.row(row(who, &device.used, columns));
        }
    }
    for (name, limits) in [
        ("limit, each", &reply.program_limits),
        ("limit, user", &reply.user_limits),
        ("limit, all", &reply.device_limits),
    ] {
        let who = ["", name, "", ""].map(String::from);
        table.row(row(who, limits, columns));
    }
    table.write(out, "no programs")
}

fn row<const N: usize>(who: [String; N], amounts: &Amounts, columns: &[Resource]) -> Vec<String> {
    let cell = |resource: &Resource| match amounts.get(resource.key()) {
        Some(bytes) if resource.is_bytes() => written_bytes(*bytes),
        Some(count) => count.to_string(),
        None => "-".into(),
    };
    who.into_iter().chain(columns.iter().map(cell)).collect()
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

    #[test]
    fn all_that_is_counted_has_a_column() {
        for resource in Resource::ALL {
            let columns = OBJECTS.iter().chain(&MEMORY);
            let same = columns.filter(|column| **column == resource);
            assert_eq!(same.count(), 1, "{}", resource.key());
        }
    }
}
