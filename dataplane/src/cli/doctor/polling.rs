//! Whether polling threads get the CPU.

use std::time::Duration;

use super::Finding;
use crate::control::query::Lcore;

/// Less than this in all is nothing to speak of.
const NOTABLE: Duration = Duration::from_secs(1);

/// How long lcores were kept from running, in all.
pub(super) fn polling(lcores: &[Lcore]) -> Finding {
    const WHAT: &str = "polling";
    let kept: Vec<String> = lcores
        .iter()
        .filter(|lcore| Duration::from_micros(lcore.lost_us) >= NOTABLE)
        .map(|lcore| {
            let on = lcore
                .cpu
                .map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
            let time = lcore.lost_us as f64 / 1e6;
            format!("lcore {}{on} for {time:.1} s", lcore.lcore)
        })
        .collect();
    if kept.is_empty() {
        return Finding::ok(WHAT, "the polling threads run when they want to");
    }
    let found = format!(
        "other threads kept the daemon from running, {}; its time stood still meanwhile",
        kept.join(", ")
    );
    let remedy = "leave it a CPU of its own: `cpu` in [[lcore]], other programs by taskset";
    Finding::off(WHAT, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn who_was_kept_from_running_is_named() {
        let lcore = |lcore, lost_us| Lcore {
            lcore,
            cpu: Some(3),
            devices: vec!["roce0".into()],
            polls: 1,
            empty_polls: 0,
            sleeps: 0,
            lost_us,
        };
        let quiet = polling(&[lcore(0, 999_999)]);
        assert_eq!(quiet.state, State::Ok);
        let loud = polling(&[lcore(0, 10), lcore(1, 12_345_678)]);
        assert_eq!(loud.state, State::Off);
        let named = "lcore 1 on CPU 3 for 12.3 s;";
        assert!(loud.found.contains(named), "{}", loud.found);
    }
}
