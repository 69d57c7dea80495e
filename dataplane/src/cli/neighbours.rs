//! `roceline show neighbours`, and what `roceline doctor` says of addresses.

use std::io::{self, Write};
use std::time::Duration;

use super::table::Table;
use crate::control::neighbours::{ConflictLine, NeighboursReply};

/// Prints who is where.
pub(super) fn show(out: &mut impl Write, reply: &NeighboursReply) -> io::Result<()> {
    let mut table = Table::new(&["device", "address", "mac", "state", ">age"]);
    for line in &reply.neighbours {
        table.row(vec![
            line.device.clone(),
            line.address.clone(),
            line.mac.clone().unwrap_or_else(|| "-".into()),
            line.state.clone(),
            line.age_ms.map_or_else(|| "-".into(), age),
        ]);
    }
    table.write(out, "no neighbours")?;
    for conflict in &reply.conflicts {
        writeln!(out, "\n{}", duplicate(conflict))?;
    }
    Ok(())
}

/// A sentence about an address that two stations have.
pub(super) fn duplicate(conflict: &ConflictLine) -> String {
    let ConflictLine {
        device,
        address,
        mac,
        age_ms,
        ..
    } = conflict;
    format!(
        "duplicate address: {address} of {device} is also used by {mac} (seen {} ago)",
        age(*age_ms)
    )
}

fn age(ms: u64) -> String {
    match ms {
        0..=9_999 => format!("{:.1} s", Duration::from_millis(ms).as_secs_f64()),
        _ => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_table_and_duplicates_a_sentence() {
        let json = serde_json::json!({
            "neighbours": [
                { "device": "roce0", "address": "10.78.0.2", "mac": "02:52:4c:4e:00:02", "state": "reachable", "age_ms": 1234 },
                { "device": "roce0", "address": "10.78.0.9", "mac": null, "state": "failed", "age_ms": 12345 },
                { "device": "roce0", "address": "10.78.0.7", "mac": "02:00:00:00:00:07", "state": "static", "age_ms": null },
            ],
            "conflicts": [
                { "device": "roce0", "address": "10.78.0.1", "mac": "02:00:00:00:00:0a", "seen": 3, "age_ms": 500 },
            ],
            "counters": {},
        });
        let mut out = Vec::new();
        show(&mut out, &serde_json::from_value(json).unwrap()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_ascii_whitespace().collect())
            .collect();
        assert_eq!(
            rows[1],
            [
                "roce0",
                "10.78.0.2",
                "02:52:4c:4e:00:02",
                "reachable",
                "1.2",
                "s"
            ]
        );
        assert_eq!(rows[2][2..], ["-", "failed", "12", "s"]);
        assert_eq!(rows[3][3..], ["static", "-"]);
        assert!(
            text.ends_with(
                "\nduplicate address: 10.78.0.1 of roce0 is also used by 02:00:00:00:00:0a (seen 0.5 s ago)\n"
            ),
            "{text}"
        );
    }
}
