//! `roceline show fabric`.

use std::io::{self, Write};

use crate::cli::table::Table;
use crate::fabric::depths::quantile;
use crate::fabric::report::FabricReport;
use crate::impair::units::{written_bytes, written_rate};

/// Writes what the switches have done so far.
pub(super) fn write(out: &mut impl Write, report: &FabricReport) -> io::Result<()> {
    if report.switches.is_empty() {
        return writeln!(
            out,
            "no switches: a [[fabric.switch]] in the configuration makes one"
        );
    }
    for switch in &report.switches {
        let rate = match switch.rate {
            Some(rate) => written_rate(rate),
            None => "as fast as it goes".into(),
        };
        write!(out, "switch {}: links {rate}", switch.name)?;
        if report
            .switches
            .iter()
            .any(|other| other.lcore != switch.lcore)
        {
            write!(out, ", on lcore {}", switch.lcore)?;
        }
        if switch.delay_ns > 0 {
            write!(out, ", {} ns", switch.delay_ns)?;
        }
        if let (Some(kmin), Some(kmax)) = (switch.kmin, switch.kmax) {
            let [kmin, kmax] = [kmin, kmax].map(|k| written_bytes(k.into()));
            write!(out, ", marks from {kmin} to {kmax}")?;
        }
        writeln!(
            out,
            ", buffer {} of {} in use, {} at most so far",
            written_bytes(switch.used),
            written_bytes(switch.buffer),
            written_bytes(switch.max_used)
        )?;
        let mut table = Table::new(&[
            "port",
            ">prio",
            ">out",
            ">p99",
            ">max",
            ">sent",
            ">marked",
            ">dropped",
            ">in",
            ">lost",
            ">pauses sent",
            ">us",
            ">pauses got",
            ">us",
        ]);
        for port in &switch.ports {
            for queue in &port.queues {
                let p99 = quantile(&queue.depths, 0.99);
                table.row(vec![
                    format!("{} {}", port.port, port.peer),
                    queue.priority.to_string(),
                    queue.depth.to_string(),
                    p99.map_or("-".into(), |p99| p99.min(queue.max_depth).to_string()),
                    queue.max_depth.to_string(),
                    queue.tx_frames.to_string(),
                    queue.ce_marked.to_string(),
                    (queue.dropped + queue.dropped_not_ect + queue.dropped_storm).to_string(),
                    queue.rx_frames.to_string(),
                    (queue.rx_dropped + queue.unroutable).to_string(),
                    queue.pause_tx.frames.to_string(),
                    (queue.pause_tx.duration_ns / 1_000).to_string(),
                    queue.pause_rx.frames.to_string(),
                    (queue.pause_rx.duration_ns / 1_000).to_string(),
                ]);
            }
        }
        table.write(out, "nothing has passed yet")?;
        for port in &switch.ports {
            if (port.rate, port.delay_ns) != (switch.rate, switch.delay_ns) {
                let rate = port.rate.map_or("as fast as it goes".into(), written_rate);
                writeln!(out, "port {}: {rate}, {} ns", port.port, port.delay_ns)?;
            }
            let (tx, rx) = (&port.global_pause_tx, &port.global_pause_rx);
            if tx.frames + rx.frames > 0 {
                writeln!(
                    out,
                    "port {}: pauses of all priorities: {} sent, {} us, {} got, {} us",
                    port.port,
                    tx.frames,
                    tx.duration_ns / 1_000,
                    rx.frames,
                    rx.duration_ns / 1_000
                )?;
            }
            if port.no_mbuf > 0 {
                writeln!(
                    out,
                    "port {}: {} frames were lost for want of packet buffers; raise memory_mb in [eal]",
                    port.port, port.no_mbuf
                )?;
            }
            let [own, theirs] = port.storms;
            if own + theirs > 0 {
                writeln!(
                    out,
                    "port {}: the watchdog ended {own} pauses of the switch and {theirs} of {}",
                    port.port, port.peer
                )?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::report::{PortReport, QueueReport, SwitchReport};

    #[test]
    fn a_person_sees_queues_marks_and_pauses() {
        let queue = QueueReport {
            priority: 3,
            depth: 100,
            max_depth: 70_000,
            tx_frames: 12,
            ce_marked: 5,
            depths: vec![(10, 1), (65_535, 99)],
            ..QueueReport::default()
        };
        let report = FabricReport {
            switches: vec![SwitchReport {
                number: 0,
                lcore: 0,
                name: "tor".into(),
                rate: Some(2_500_000_000),
                delay_ns: 500,
                buffer: 1 << 20,
                used: 0,
                max_used: 4096,
                kmin: Some(4096),
                kmax: Some(16384),
                ports: vec![PortReport {
                    port: 0,
                    peer: "roce0".into(),
                    rate: Some(1_000_000_000),
                    delay_ns: 500,
                    global_pause_tx: Default::default(),
                    global_pause_rx: Default::default(),
                    no_mbuf: 0,
                    storms: [0, 1],
                    queues: vec![queue],
                }],
            }],
        };
        let mut out = Vec::new();
        write(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("switch tor: links 2500Mb/s, 500 ns, marks from"),
            "{text}"
        );
        assert!(text.contains("0 roce0") && text.contains("65535"), "{text}");
        assert!(text.contains("port 0: 1Gb/s, 500 ns"), "{text}");
        assert!(text.contains("watchdog ended 0 pauses of the switch and 1 of roce0"));
    }
}
