//! Figures of a run: each metric of [`expect::FAMILIES`](super::expect::FAMILIES) that it has, by name, and completion times by
//! size. Only additions, products and quotients of floating point numbers, so they are the same everywhere.

use std::collections::BTreeMap;

use roceline_engine::Nanos;
use roceline_engine::wire::{LINK_OVERHEAD, aeth, bth, ethernet, icrc, ipv4, reth, udp};

use super::Scenario;
use super::outcome::Outcome;
use super::traffic::{Plan, Transfer};

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// Groups of the plan, in its order.
    pub groups: Vec<Group>,
    /// Slowdowns by size, of all transfers that ended.
    pub sizes: Vec<SizeBin>,
    /// Of each transfer of the plan, if it ended: its completion time over that of the same transfer alone.
    pub slowdowns: Vec<Option<f64>>,
}

/// A `[[flow]]` or `[[traffic]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Transfers.
    pub transfers: usize,
    /// Of these, the ones that ended.
    pub finished: usize,
    /// Bits per second of all together.
    pub goodput: f64,
    /// Jain's index of their goodputs.
    pub jain: f64,
    /// Median and 99th percentile of the slowdowns.
    pub slowdown: Option<(f64, f64)>,
}

/// Transfers of similar size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeBin {
    /// Bytes of the largest.
    pub up_to: u64,
    /// How many.
    pub count: usize,
    /// Slowdowns: 50th, 95th and 99th percentile.
    pub percentiles: [f64; 3],
}

/// Bytes around the payload of a packet: Ethernet with FCS, preamble and gap, IPv4, UDP, BTH, ICRC.
const AROUND: u64 =
    LINK_OVERHEAD as u64 + (ethernet::LEN + ipv4::LEN + udp::LEN + bth::LEN + icrc::LEN) as u64;
/// RETH of a message's first packet.
const RETH: u64 = reth::LEN as u64;
/// AETH of an ACK.
const AETH: u64 = aeth::LEN as u64;

/// What a transfer takes alone on its way: the first bit leaves at once, packets follow each other on the slowest link, each switch
/// sends a packet on when it has all of it, so that each other link adds the time of the longest packet, and the ACK comes back.
pub fn ideal(scenario: &Scenario, transfer: &Transfer) -> Nanos {
    let Some(bytes) = transfer.bytes else {
        return Nanos::ZERO;
    };
    let path = scenario.topology.path(transfer.from, transfer.to);
    let mtu = u64::from(scenario.nic.mtu.bytes());
    let message = u64::from(transfer.manner.message);
    let (whole, rest) = (bytes / message, bytes % message);
    let wire = |bytes: u64| bytes.next_multiple_of(4) + bytes.div_ceil(mtu) * AROUND + RETH;
    let all = whole * wire(message) + if rest > 0 { wire(rest) } else { 0 };
    let longest = message.min(bytes).min(mtu) + AROUND;
    let picos = |bytes: u64, rate: u64| u128::from(bytes) * 8_000_000_000_000 / u128::from(rate);
    let slowest = path.iter().map(|&(rate, _)| rate).min().unwrap_or(1);
    let mut sum = picos(all.saturating_sub(longest), slowest);
    for &(rate, delay) in &path {
        sum += picos(longest + AROUND + AETH, rate) + 2000 * u128::from(delay.0);
    }
    Nanos((sum / 1000) as u64)
}

/// The figures of an outcome.
pub fn results(scenario: &Scenario, plan: &Plan, outcome: &Outcome) -> Results {
    let slowdowns: Vec<Option<f64>> = plan
        .transfers
        .iter()
        .zip(&outcome.transfers)
        .map(|(transfer, done)| {
            let time = done.end?.saturating_sub(done.start?).0;
            Some(time as f64 / ideal(scenario, transfer).0.max(1) as f64)
        })
        .collect();
    let mut figures = Figures {
        scenario,
        plan,
        outcome,
        slowdowns: &slowdowns,
        metrics: BTreeMap::new(),
    };
    let everybody: Vec<usize> = (0..plan.transfers.len()).collect();
    figures.of("", &everybody);
    let mut groups = Vec::new();
    for (number, name) in plan.groups.iter().enumerate() {
        let own = |&at: &usize| plan.transfers[at].group == number;
        let members: Vec<usize> = everybody.iter().copied().filter(own).collect();
        figures.of(&format!(".{name}"), &members);
        groups.push(figures.group(name, &members));
    }
    figures.rest();
    Results {
        metrics: figures.metrics,
        groups,
        sizes: size_bins(plan, &slowdowns),
        slowdowns,
    }
}

struct Figures<'a> {
    scenario: &'a Scenario,
    plan: &'a Plan,
    outcome: &'a Outcome,
    slowdowns: &'a [Option<f64>],
    metrics: BTreeMap<String, f64>,
}

impl Figures<'_> {
    /// Metrics of some transfers; `suffix` is that of their group.
    fn of(&mut self, suffix: &str, members: &[usize]) {
        let seconds = self.scenario.measured_seconds();
        let bytes: u64 = members
            .iter()
            .map(|&at| self.outcome.transfers[at].measured)
            .sum();
        let total = bytes as f64 * 8.0 / seconds;
        let name = if suffix.is_empty() { ".total" } else { suffix };
        self.put(format!("goodput{name}"), total);
        let goodputs = self.goodputs(members);
        self.spread("goodput", suffix, &goodputs);
        if let Some((jain, max_min, deviation)) = fairness(&goodputs) {
            self.put(format!("fairness{suffix}.jain"), jain);
            self.put(format!("fairness{suffix}.max_min"), max_min);
            self.put(format!("fairness{suffix}.deviation"), deviation);
        }
        let times: Vec<f64> = members.iter().filter_map(|&at| self.time(at)).collect();
        let slowdowns: Vec<f64> = members
            .iter()
            .filter_map(|&at| self.slowdowns[at])
            .collect();
        self.put(format!("finished{name}"), times.len() as f64);
        self.percentiles("fct", suffix, times);
        self.percentiles("slowdown", suffix, slowdowns);
        let done = members.iter().map(|&at| &self.outcome.transfers[at]);
        let (start, end) = (done.clone().map(|d| d.start), done.map(|d| d.end));
        let (start, end) = (start.flatten().min(), end.collect::<Option<Vec<_>>>());
        let last = end.and_then(|ends| ends.into_iter().max());
        if let (Some(start), Some(last), false) = (start, last, suffix.is_empty()) {
            self.put(format!("done{suffix}"), last.saturating_sub(start).0 as f64);
        }
    }

    /// Goodputs over the measured time that each had: of the endless ones if there are any, else of all.
    fn goodputs(&self, members: &[usize]) -> Vec<f64> {
        let endless = |&at: &usize| self.plan.transfers[at].bytes.is_none();
        let any = members.iter().any(endless);
        let chosen = members.iter().filter(|at| !any || endless(at));
        chosen.filter_map(|&at| self.goodput(at)).collect()
    }

    fn goodput(&self, at: usize) -> Option<f64> {
        let (transfer, done) = (&self.plan.transfers[at], &self.outcome.transfers[at]);
        let from = done.start?.max(self.scenario.warmup);
        let ends = [done.end, transfer.stop, Some(self.scenario.duration)];
        let to = ends.into_iter().flatten().min()?;
        (to > from).then(|| done.measured as f64 * 8e9 / to.saturating_sub(from).0 as f64)
    }

    fn time(&self, at: usize) -> Option<f64> {
        let done = &self.outcome.transfers[at];
        Some(done.end?.saturating_sub(done.start?).0 as f64)
    }

    fn group(&self, name: &str, members: &[usize]) -> Group {
        let get = |metric: String| self.metrics.get(&metric).copied();
        Group {
            name: name.into(),
            transfers: members.len(),
            finished: members
                .iter()
                .filter(|&&at| self.time(at).is_some())
                .count(),
            goodput: get(format!("goodput.{name}")).unwrap_or(0.0),
            jain: get(format!("fairness.{name}.jain")).unwrap_or(1.0),
            slowdown: get(format!("slowdown.{name}.p50")).zip(get(format!("slowdown.{name}.p99"))),
        }
    }

    /// What is not about transfers.
    fn rest(&mut self) {
        let outcome = self.outcome;
        self.put("utilization.max".into(), outcome.utilization);
        let failed = outcome
            .transfers
            .iter()
            .filter(|done| done.failed.is_some());
        self.put("failed".into(), failed.count() as f64);
        self.put("packets".into(), outcome.packet_events as f64);
        for (&name, &count) in &outcome.counters {
            self.put(name.into(), count as f64);
        }
        if let Some(deepest) = outcome.queues.iter().max_by_key(|queue| queue.max) {
            self.put("queue.p50".into(), deepest.p50 as f64);
            self.put("queue.p99".into(), deepest.p99 as f64);
            self.put("queue.max".into(), deepest.max as f64);
        }
    }

    fn spread(&mut self, family: &str, suffix: &str, values: &[f64]) {
        if values.is_empty() {
            return;
        }
        let sum: f64 = values.iter().sum();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        self.put(format!("{family}{suffix}.min"), least);
        self.put(format!("{family}{suffix}.max"), most);
        self.put(format!("{family}{suffix}.mean"), sum / values.len() as f64);
    }

    fn percentiles(&mut self, family: &str, suffix: &str, mut values: Vec<f64>) {
        if values.is_empty() {
            return;
        }
        values.sort_unstable_by(f64::total_cmp);
        for (name, part) in [("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)] {
            let value = percentile(&values, part);
            self.put(format!("{family}{suffix}.{name}"), value);
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        self.put(format!("{family}{suffix}.mean"), mean);
    }

    fn put(&mut self, name: String, value: f64) {
        self.metrics.insert(name, value);
    }
}

/// Jain's index, the largest to the smallest, and the largest distance from the mean as a part of the mean; of two shares at least.
fn fairness(shares: &[f64]) -> Option<(f64, f64, f64)> {
    if shares.len() < 2 {
        return None;
    }
    let count = shares.len() as f64;
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if sum == 0.0 {
        return None;
    }
    let mean = sum / count;
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    let deviation = (most - mean).max(mean - least) / mean;
    // A share of nothing is as unfair as a number can say.
    let max_min = (most / least).min(1e12);
    Some((sum * sum / (count * squares), max_min, deviation))
}

/// The smallest value that so many percent of the sorted values do not exceed (nearest rank).
pub(super) fn percentile<T: Copy>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// Ten bins of as many transfers each, by size; fewer if there are few sizes.
fn size_bins(plan: &Plan, slowdowns: &[Option<f64>]) -> Vec<SizeBin> {
    let sized = plan.transfers.iter().zip(slowdowns);
    let mut sized: Vec<(u64, f64)> = sized
        .filter_map(|(transfer, slowdown)| Some((transfer.bytes?, (*slowdown)?)))
        .collect();
    sized.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut bins = Vec::new();
    let target = sized.len().div_ceil(10).max(1);
    let mut first = 0;
    while first < sized.len() {
        let mut end = (first + target).min(sized.len());
        // Transfers of one size are in one bin.
        while end < sized.len() && sized[end].0 == sized[end - 1].0 {
            end += 1;
        }
        let mut values: Vec<f64> = sized[first..end].iter().map(|&(_, value)| value).collect();
        values.sort_unstable_by(f64::total_cmp);
        bins.push(SizeBin {
            up_to: sized[end - 1].0,
            count: values.len(),
            percentiles: [50, 95, 99].map(|percent| percentile(&values, percent)),
        });
        first = end;
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_of_shares() {
        assert_eq!(fairness(&[5.0]), None);
        assert_eq!(fairness(&[5.0, 5.0]), Some((1.0, 1.0, 0.0)));
        let (jain, max_min, deviation) = fairness(&[1.0, 3.0]).unwrap();
        assert_eq!((jain, max_min, deviation), (0.8, 3.0, 0.5));
        assert_eq!(fairness(&[0.0, 4.0]).unwrap().1, 1e12);
    }

    #[test]
    fn percentiles_are_values_that_occur() {
        let values: Vec<u32> = (1..=200).collect();
        for (percent, value) in [(50, 100), (95, 190), (99, 198), (100, 200), (0, 1)] {
            assert_eq!(percentile(&values, percent), value);
        }
        assert_eq!(percentile(&[7], 99), 7);
    }
}
