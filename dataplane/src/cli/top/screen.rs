//! Figures as tables, redrawn in place on a terminal, one after the other elsewhere.

use std::io::{self, Write};

use console::Term;

use super::figures::{Both, BothMeasured, Device, Figures, Lcore};
use super::words::{Finding, nothing};
use crate::cli::table::Table;
use crate::lcore::probe::{Stage, Stages};

/// Where figures are shown.
pub(super) struct Screen {
    /// A terminal, whose lines are written over.
    terminal: Option<Term>,
    shown: bool,
}

impl Screen {
    /// stdout; `in_place` if it is a terminal and what was shown is to be replaced.
    pub fn new(in_place: bool) -> Screen {
        Screen {
            terminal: in_place.then(Term::stdout),
            shown: false,
        }
    }

    /// Shows a new state.
    pub fn show(
        &mut self,
        out: &mut impl Write,
        figures: &Figures,
        findings: &[Finding],
    ) -> io::Result<()> {
        let text = text(figures, findings)?;
        let first = !std::mem::replace(&mut self.shown, true);
        let Some(terminal) = &self.terminal else {
            let gap = if first { "" } else { "\n" };
            return write!(out, "{gap}{text}");
        };
        if first {
            terminal.clear_screen()?;
        }
        terminal.move_cursor_to(0, 0)?;
        let (height, width) = terminal.size_checked().unwrap_or((u16::MAX, u16::MAX));
        draw(out, &text, height, width)?;
        out.flush()?;
        terminal.clear_to_end_of_screen()
    }
}

/// Writes a text over what is on the screen.
fn draw(out: &mut impl Write, text: &str, height: u16, width: u16) -> io::Result<()> {
    // The last line of the screen stays empty, or it would scroll.
    let room = usize::from(height).saturating_sub(1);
    for line in fit(text, room, width.into()) {
        // First to the end of the line: of what was shown before, nothing is left (ECMA-48 EL). Behind a full line the cursor is still
        // on its last character, which would go as well.
        writeln!(out, "\x1b[K{line}")?;
    }
    Ok(())
}

/// Lines as they fit: where there is no room for all, sentences first, and last what is said of those that are missing.
fn fit(text: &str, room: usize, width: usize) -> Vec<String> {
    let folded = |line: &str| fold(line, width);
    let mut lines: Vec<String> = text.lines().flat_map(folded).collect();
    if lines.len() <= room {
        return lines;
    }
    let (words, tables): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with(BULLET));
    lines = words.into_iter().chain(tables).flat_map(folded).collect();
    let hint = format!(
        "... {} lines more: a larger window or --once",
        lines.len() + 1 - room
    );
    lines.truncate(room.saturating_sub(1));
    lines.extend(folded(&hint));
    lines.truncate(room);
    lines
}

/// A line as it fits: tables are cut off, sentences go on in the next line.
fn fold(line: &str, width: usize) -> Vec<String> {
    if !line.starts_with(BULLET) {
        return vec![line.chars().take(width).collect()];
    }
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("  {word}"));
            continue;
        }
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines
}

const BULLET: &str = "* ";

fn text(figures: &Figures, findings: &[Finding]) -> io::Result<String> {
    let mut out = Vec::new();
    lcores(&figures.lcores).write(&mut out, "no polling threads")?;
    writeln!(out)?;
    devices(&figures.devices).write(&mut out, "no devices")?;
    writeln!(out)?;
    match findings {
        [] => writeln!(out, "{BULLET}{}", nothing(figures))?,
        found => found
            .iter()
            .try_for_each(|finding| writeln!(out, "{BULLET}{finding}"))?,
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn lcores(lcores: &[Lcore]) -> Table {
    let all: Vec<&str> = Stages::default()
        .iter()
        .map(|(stage, _)| stage.name())
        .collect();
    // Switches only where there are some.
    let has = |stage: &str| {
        lcores
            .iter()
            .any(|l| l.cycles_per_packet.get(stage) > Some(&0.0))
    };
    let stages = all
        .into_iter()
        .filter(|&s| s != Stage::Fabric.name() || has(s));
    let stages: Vec<&str> = stages.collect();
    let mut titles: Vec<String> = [
        "lcore",
        ">CPU",
        ">busy",
        ">polling",
        ">away",
        ">polls/s",
        ">rx pkt/s",
        ">tx pkt/s",
        ">rx burst",
        ">tx burst",
        ">cycles/pkt",
    ]
    .map(String::from)
    .into();
    titles.extend(stages.iter().map(|stage| format!(">{stage}")));
    let mut table = Table::new(&titles);
    for lcore in lcores {
        let cycles = &lcore.cycles_per_packet;
        let sum: f64 = cycles.values().sum();
        let mut row = vec![
            lcore.lcore.to_string(),
            lcore.cpu.map_or("-".into(), |cpu| cpu.to_string()),
            percent(lcore.busy),
            percent(lcore.polling),
            percent(lcore.away),
            count(lcore.polls_per_s),
        ];
        row.extend(both(lcore.packets_per_s));
        row.extend(measured(lcore.burst, 1));
        row.push(number((!cycles.is_empty()).then_some(sum), 0));
        row.extend(stages.iter().map(|&s| number(cycles.get(s).copied(), 0)));
        table.row(row);
    }
    table
}

fn devices(devices: &[Device]) -> Table {
    let mut table = Table::new(&[
        "device",
        "lcores",
        ">rx Gb/s",
        ">tx Gb/s",
        ">rx msg/s",
        ">tx msg/s",
        ">rx pkt/s",
        ">tx pkt/s",
        ">rx cycles",
        ">tx cycles",
        ">drops/s",
        ">retries/s",
    ]);
    for device in devices {
        let numbers: Vec<String> = device.lcores.iter().map(u32::to_string).collect();
        let mut row = vec![device.name.clone(), numbers.join(",")];
        let Both { received, sent } = device.gbps;
        row.extend([received, sent].map(|gbps| format!("{gbps:.2}")));
        row.extend(both(device.messages_per_s));
        row.extend(both(device.packets_per_s));
        row.extend(measured(device.cycles_per_packet, 0));
        // The sum of nothing would be -0.
        let drops = device
            .drops_per_s
            .values()
            .fold(0.0, |sum, rate| sum + rate);
        row.push(count(drops));
        row.push(count(device.retries_per_s));
        table.row(row);
    }
    table
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn both(of: Both) -> [String; 2] {
    [of.received, of.sent].map(count)
}

fn measured(of: BothMeasured, digits: usize) -> [String; 2] {
    [of.received, of.sent].map(|value| number(value, digits))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Three digits or more, with a unit of thousands.
fn count(value: f64) -> String {
    match value {
        1e9.. => format!("{:.2} G", value / 1e9),
        1e6..1e9 => format!("{:.2} M", value / 1e6),
        1e4..1e6 => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn figures() -> Figures {
        Figures {
            seconds: 1.0,
            lcores: vec![Lcore {
                cpu: Some(1),
                busy: 0.97,
                polls_per_s: 1_234_567.0,
                burst: BothMeasured {
                    received: Some(12.34),
                    sent: None,
                },
                cycles_per_packet: BTreeMap::from([
                    ("receive".into(), 200.0),
                    ("transmit".into(), 300.4),
                    ("fabric".into(), 0.0),
                ]),
                ..Lcore::default()
            }],
            devices: vec![Device {
                name: "roce0".into(),
                lcores: vec![0, 2],
                packets_per_s: Both {
                    received: 99.0,
                    sent: 45_678.0,
                },
                ..Device::default()
            }],
        }
    }

    fn rows(text: &str) -> Vec<String> {
        let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    #[test]
    fn threads_devices_and_words_are_shown() {
        let finding = Finding {
            what: "x",
            about: "roce0".into(),
            text: "roce0 waits".into(),
        };
        let rows = rows(&text(&figures(), &[finding]).unwrap());
        assert!(rows[0].starts_with("lcore CPU busy"), "{rows:?}");
        assert!(!rows[0].contains("fabric"), "no switches: {rows:?}");
        assert!(
            rows[1].starts_with("0 1 97 % 0 % 0 % 1.23 M 0 0 12.3 - 500 - 200"),
            "{rows:?}"
        );
        assert_eq!(rows[4], "roce0 0,2 0.00 0.00 0 0 99 45.7 k - - 0 0");
        assert_eq!(rows[6], "* roce0 waits");
        let idle = text(&Figures::default(), &[]).unwrap();
        assert!(idle.ends_with("* no traffic\n"), "{idle}");
    }

    #[test]
    fn what_is_not_a_terminal_gets_one_text_after_the_other() {
        let (mut screen, mut out) = (Screen::new(false), Vec::new());
        screen.show(&mut out, &figures(), &[]).unwrap();
        let once = out.len();
        screen.show(&mut out, &figures(), &[]).unwrap();
        assert_eq!(out.len(), 2 * once + 1, "and an empty line between them");
        assert!(!out.contains(&0x1b));
    }

    #[test]
    fn nothing_of_a_full_line_is_erased() {
        let mut out = Vec::new();
        draw(&mut out, "full\nlonger\nab\n", 4, 4).unwrap();
        // What is erased is so while the cursor is at the start of a line.
        assert_eq!(out, b"\x1b[Kfull\n\x1b[Klong\n\x1b[Kab\n");
    }

    #[test]
    fn in_a_small_window_the_words_come_first_and_what_is_missing_is_said() {
        let text = "table\nrow\n\n* it is busy\n";
        assert_eq!(fit(text, 4, 80), ["table", "row", "", "* it is busy"]);
        let small = fit(text, 3, 80);
        let hint = "... 2 lines more: a larger window or --once";
        assert_eq!(small, ["* it is busy", "table", hint]);
        assert_eq!(fit(text, 0, 80), [""; 0]);
    }

    #[test]
    fn sentences_are_folded_and_tables_cut() {
        assert_eq!(fold("abcdef", 4), ["abcd"]);
        assert_eq!(fold("* aaa bbb ccc", 9), ["* aaa bbb", "  ccc"]);
    }
}
