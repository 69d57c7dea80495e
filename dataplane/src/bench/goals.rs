//! The goals for performance beside what was measured. In flow results that `benches/run` has written, out flow a row for each goal.

use serde::Serialize;

use super::results::Results;

/// Whether a goal is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// And what was aimed at, too.
    AimMet,
    /// At least that.
    Met,
    /// No.
    Missed,
    /// There is no result.
    NotMeasured,
}

/// A goal and what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What.
    pub what: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// At least, or at most, this.
    pub bound: f64,
    /// Aimed at.
    pub aim: f64,
    /// Less is better.
    pub at_most: bool,
    /// What was measured.
    pub measured: Option<f64>,
    /// What copying and ICRC would cost alone, as a share of that.
    pub share_of_limit: Option<f64>,
    /// What the middle half of its rounds spans, as a share of their median; of a ratio, of the one that varies more. None of what was
    /// measured once.
    pub spread: Option<f64>,
    /// That is more than [`DISTURBED`]: the verdict is of little use.
    pub disturbed: bool,
    /// Whether it is reached.
    pub verdict: Verdict,
}

/// A machine that does nothing else does not spread the middle half of the rounds as far, by their median.
pub const DISTURBED: f64 = 0.2;

impl Goal {
    /// With what its measurements spread.
    fn spread<const N: usize>(mut self, of: [Option<f64>; N]) -> Goal {
        self.spread = of.into_iter().flatten().reduce(f64::max);
        self.disturbed = self.measured.is_some() && self.spread > Some(DISTURBED);
        self
    }
}

impl Results {
    /// What a packet costs at so many QPs beside what it costs at one: of the two NICs the worse.
    fn ratio_at(&self, qps: u64) -> Option<f64> {
        let cases = self.get("scale")?["qps"].as_array()?;
        let case = cases.iter().find(|case| case["qps"] == qps)?;
        let ratio = |of: &str| case.pointer(of)?.as_f64();
        let requester = ratio("/requester/packet_ratio/median")?;
        Some(requester.max(ratio("/responder/packet_ratio/median")?))
    }

    /// All goals.
    pub fn goals(&self) -> Vec<Goal> {
        let apps = |of| self.samples("apps", of);
        let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let best_tcp = [apps("tcp_1_core_veth"), apps("tcp_1_core_lo")]
            .into_iter()
            .flatten()
            .reduce(f64::max);
        let core = |op, bytes, side: &str, what: &str| {
            self.case("datapath", op, bytes, &format!("/{side}/{what}"))
        };
        let mut goals = Vec::new();
        for (bytes, bound, aim, what) in [
            (
                64,
                3.0,
                4.0,
                "ICRC and copy, 64 B in batches, against memcpy then crc32fast",
            ),
            (1024, 2.0, 2.3, "the same, 1 KiB"),
            (4096, 1.5, 1.7, "the same, 4 KiB"),
        ] {
            goals.push(at_least(what, "x", bound, aim, self.icrc(bytes), None));
        }
        for (op, bytes, side, what) in [
            (
                "write",
                1 << 20,
                "requester",
                "WRITE 1 MiB, a core that sends",
            ),
            (
                "write",
                1 << 20,
                "responder",
                "WRITE 1 MiB, a core that receives",
            ),
        ] {
            let share = core(op, bytes, side, "share_of_limit");
            let value = core(op, bytes, side, "gbps/median");
            let spread = self.case_spread("datapath", op, bytes, &format!("/{side}/gbps"));
            goals.push(at_least(what, "Gb/s", 60.0, 200.0, value, share).spread([spread]));
        }
        for (op, side, bound, aim, what) in [
            (
                "write",
                "requester",
                5.0,
                15.0,
                "WRITE 64 B, a core that sends",
            ),
            (
                "write",
                "responder",
                5.0,
                15.0,
                "WRITE 64 B, a core that receives",
            ),
            (
                "send",
                "requester",
                4.0,
                12.0,
                "SEND 64 B, a core that sends",
            ),
            (
                "send",
                "responder",
                4.0,
                12.0,
                "SEND 64 B, a core that receives",
            ),
        ] {
            let share = core(op, 64, side, "share_of_limit");
            let value = core(op, 64, side, "messages_per_s/median").map(|rate| rate / 1e6);
            let rate = format!("/{side}/messages_per_s");
            let spread = self.case_spread("datapath", op, 64, &rate);
            goals.push(at_least(what, "M/s", bound, aim, value, share).spread([spread]));
        }
        let vhost = self.case("datapath-vhost", "write", 1 << 20, "/gbps/median");
        let tcp = apps("tcp_2_cores");
        let bandwidth = apps("write_bw_64k");
        let latency = [apps("write_lat"), apps("send_lat")];
        let slower = latency.into_iter().flatten().reduce(f64::max);
        let first = self.samples("start", "first_packet");
        let spread = |of| self.samples_spread("apps", of);
        let [of_bandwidth, of_tcp] = ["write_bw_64k", "tcp_2_cores"].map(spread);
        let of_best = ["tcp_1_core_veth", "tcp_1_core_lo"].map(spread);
        let of_latency = ["write_lat", "send_lat"].map(spread);
        let idle = self
            .get("datapath")
            .and_then(|d| d["empty_poll_ns"].as_f64());
        goals.extend([
            at_least(
                "WRITE 1 MiB between two processes over virtio-user and vhost",
                "Gb/s",
                20.0,
                80.0,
                vhost,
                None,
            )
            .spread([self.case_spread("datapath-vhost", "write", 1 << 20, "/gbps")]),
            at_least(
                "ib_write_bw -s 65536 against TCP on two cores",
                "x",
                3.0,
                8.0,
                ratio(bandwidth, tcp),
                None,
            )
            .spread([of_bandwidth, of_tcp]),
            at_least(
                "the same against TCP's best on one core",
                "x",
                1.2,
                3.0,
                ratio(bandwidth, best_tcp),
                None,
            )
            .spread([of_bandwidth, of_best[0], of_best[1]]),
            at_least(
                "ib_write_bw -s 64 -q 4",
                "M/s",
                1.0,
                5.0,
                apps("write_64_q4"),
                None,
            )
            .spread([spread("write_64_q4")]),
            at_most(
                "ib_write_lat and ib_send_lat -s 64, half round trip, the slower",
                "us",
                3.0,
                1.5,
                slower,
            )
            .spread(of_latency),
            at_least(
                "TCP's half round trip on one core against that",
                "x",
                2.0,
                4.0,
                ratio(apps("tcp_lat_1_core"), slower),
                None,
            )
            .spread([of_latency[0], of_latency[1], spread("tcp_lat_1_core")]),
            at_most(
                "cost of a packet at 10,000 QPs against 1",
                "x",
                2.0,
                1.2,
                self.ratio_at(10_000),
            ),
            at_most("empty poll, 64 idle QPs", "ns", 60.0, 20.0, idle),
            at_most("start to first packet", "ms", 400.0, 250.0, first)
                .spread([self.samples_spread("start", "first_packet")]),
        ]);
        goals
    }

    /// How many times faster than memcpy and then crc32fast.
    fn icrc(&self, bytes: u64) -> Option<f64> {
        let file = self.get("icrc")?;
        let sizes = file["copy_and_crc"].as_array()?;
        let size = sizes.iter().find(|size| size["bytes"] == bytes)?;
        let ways = size["ways"].as_array()?;
        let cycles = |name: &str| {
            let way = ways.iter().find(|way| way["name"] == name)?;
            way["median"].as_f64().filter(|cycles| *cycles > 0.0)
        };
        let in_bursts = format!("{}, in bursts", file["kernel"].as_str()?);
        Some(cycles("memcpy, then crc32fast")? / cycles(&in_bursts)?)
    }
}

fn goal(
    what: &'static str,
    unit: &'static str,
    (bound, aim): (f64, f64),
    measured: Option<f64>,
    at_most: bool,
) -> Goal {
    let reaches = |measured: f64, value: f64| match at_most {
        true => measured <= value,
        false => measured >= value,
    };
    let verdict = match measured {
        None => Verdict::NotMeasured,
        Some(measured) if reaches(measured, aim) => Verdict::AimMet,
        Some(measured) if reaches(measured, bound) => Verdict::Met,
        Some(_) => Verdict::Missed,
    };
    Goal {
        what,
        unit,
        bound,
        aim,
        at_most,
        measured,
        share_of_limit: None,
        spread: None,
        disturbed: false,
        verdict,
    }
}

fn at_least(
    what: &'static str,
    unit: &'static str,
    bound: f64,
    aim: f64,
    measured: Option<f64>,
    share_of_limit: Option<f64>,
) -> Goal {
    Goal {
        share_of_limit,
        ..goal(what, unit, (bound, aim), measured, false)
    }
}

fn at_most(
    what: &'static str,
    unit: &'static str,
    bound: f64,
    aim: f64,
    measured: Option<f64>,
) -> Goal {
    goal(what, unit, (bound, aim), measured, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results() -> Results {
        let side = |gbps: f64, rate: f64| json!({"gbps": {"median": gbps}, "messages_per_s": {"median": rate}, "share_of_limit": 0.5});
        let datapath = json!({"empty_poll_ns": 70.0, "cases": [
            {"op": "write", "bytes": 64, "qps": 64, "requester": side(0.0, 9e6), "responder": side(0.0, 9e6)},
            {"op": "write", "bytes": 64, "qps": 1, "requester": side(0.0, 6e6), "responder": side(0.0, 1e6)},
        ]});
        let sample =
            |name, value, round: u32| json!({"name": name, "value": value, "round": round});
        let apps = json!({"rounds_moved": [2], "samples": [
            sample("write_bw_64k", 40.0, 1), sample("write_bw_64k", 4000.0, 2),
            sample("tcp_2_cores", 10.0, 1), sample("tcp_2_cores", 1.0, 2),
            sample("write_lat", 1.4, 1), sample("write_64_q4", 2.0, 1), sample("write_64_q4", 3.0, 3),
        ]});
        let icrc = json!({"kernel": "vpclmulqdq-256", "copy_and_crc": [{"bytes": 64, "ways": [
            {"name": "memcpy, then crc32fast", "median": 35.0},
            {"name": "pclmulqdq, in bursts", "median": 20.0},
            {"name": "vpclmulqdq-256, in bursts", "median": 10.0},
        ]}]});
        Results {
            files: vec![("datapath", datapath), ("apps", apps), ("icrc", icrc)],
        }
    }

    fn verdict(goals: &[Goal], what: &str) -> Verdict {
        goals.iter().find(|goal| goal.what == what).unwrap().verdict
    }

    #[test]
    fn goals_are_judged_by_bound_and_aim() {
        let goals = results().goals();
        assert_eq!(
            verdict(&goals, "WRITE 64 B, a core that sends"),
            Verdict::Met
        );
        let icrc = goals
            .iter()
            .find(|goal| goal.what.starts_with("ICRC and copy, 64 B"))
            .unwrap();
        assert_eq!((icrc.measured, icrc.verdict), (Some(3.5), Verdict::Met));
        assert_eq!(
            verdict(&goals, "WRITE 64 B, a core that receives"),
            Verdict::Missed
        );
        assert_eq!(verdict(&goals, "empty poll, 64 idle QPs"), Verdict::Missed);
        let latency = "ib_write_lat and ib_send_lat -s 64, half round trip, the slower";
        assert_eq!(verdict(&goals, latency), Verdict::AimMet);
        assert_eq!(
            verdict(&goals, "start to first packet"),
            Verdict::NotMeasured
        );
    }

    #[test]
    fn what_spreads_far_was_disturbed() {
        let goals = results().goals();
        let of = |what: &str| {
            let goal = goals.iter().find(|goal| goal.what == what).unwrap();
            (goal.spread, goal.disturbed)
        };
        assert_eq!(
            of("ib_write_bw -s 65536 against TCP on two cores"),
            (Some(0.0), false)
        );
        let (spread, disturbed) = of("ib_write_bw -s 64 -q 4");
        assert!(spread > Some(0.3) && disturbed, "{spread:?}");
        assert_eq!(of("empty poll, 64 idle QPs"), (None, false));
        assert_eq!(of("WRITE 64 B, a core that sends"), (None, false));
    }

    #[test]
    fn rounds_in_which_the_cpus_moved_do_not_count() {
        let goals = results().goals();
        let what = "ib_write_bw -s 65536 against TCP on two cores";
        let goal = goals.iter().find(|goal| goal.what == what).unwrap();
        assert_eq!(goal.measured, Some(4.0));
    }
}
