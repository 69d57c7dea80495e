//! How long flows are: published distributions, one size, or a file of one's own. All arithmetic is on integers, so that a
//! seed gives the same sizes on every machine.

use roceline_engine::fabric::impair::Random;

use crate::scenario::units;

/// Names and points of the distributions that are built in.
pub const BUILT_IN: [(&str, &str); 4] = [
    ("web-search", include_str!("sizes/web-search.txt")),
    ("data-mining", include_str!("sizes/data-mining.txt")),
    ("hadoop", include_str!("sizes/hadoop.txt")),
    ("ali-storage", include_str!("sizes/ali-storage.txt")),
];

/// A part in all that is 1.
const ALL: u64 = 1 << 32;

/// A cumulative distribution of sizes in bytes; between two points the size is uniform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes, and the part of all flows that are no longer, in `1 / ALL`. The first part is 0, the last `ALL`.
    points: Vec<(u64, u64)>,
}

impl Sizes {
    /// Flows of one size.
    pub fn constant(bytes: u64) -> Sizes {
        Sizes {
            points: vec![(bytes, 0), (bytes, ALL)],
        }
    }

    /// A name of [`BUILT_IN`], a number of bytes, or the path of a file of one's own.
    pub fn read(text: &str) -> Result<Sizes, String> {
        if let Some((_, points)) = BUILT_IN.iter().find(|(name, _)| *name == text) {
            return Sizes::parse(points);
        }
        if let Ok(bytes) = units::bytes(text) {
            return Ok(Sizes::constant(bytes));
        }
        let names = BUILT_IN.map(|(name, _)| name).join(", ");
        if !text.contains(['.', '/']) {
            return Err(format!(
                "must be {names}, a number of bytes, or a file with lines of bytes and cumulative percent"
            ));
        }
        let points = std::fs::read_to_string(text).map_err(|error| {
            format!("{error}; must be {names}, a number of bytes, or a file that can be read")
        })?;
        Sizes::parse(&points)
    }

    /// Lines of bytes and cumulative percent, both ascending, from 0 to 100; `#` begins a comment.
    pub fn parse(text: &str) -> Result<Sizes, String> {
        let mut points: Vec<(u64, u64)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let content = line.split('#').next().unwrap_or_default();
            let mut words = content.split_ascii_whitespace();
            let Some(bytes) = words.next() else { continue };
            let part = words.next().and_then(percent);
            let point = bytes.parse::<u64>().ok().zip(part);
            let at =
                |problem: &str| format!("line {number} of the distribution, {line:?}, {problem}");
            match (point, points.last()) {
                (Some(point), None) if point.1 != 0 => {
                    return Err(at(
                        "must have 0 percent, as the first one: the size that no transfer is below",
                    ));
                }
                (Some(point), Some(last)) if point.0 < last.0 || point.1 < last.1 => {
                    return Err(at("must ascend, in bytes and in percent"));
                }
                _ => {}
            }
            match point {
                Some(point) if words.next().is_none() && point.0 <= 1 << 40 => points.push(point),
                _ => {
                    return Err(at(
                        "must be a number of bytes and a percentage from 0 to 100",
                    ));
                }
            }
        }
        // It began with 0 percent, so one that ends with all has two lines.
        if points.last().map(|p| p.1) != Some(ALL) {
            let end = match text.lines().last() {
                Some(line) => format!("{line:?} is its last line"),
                None => "it is empty".into(),
            };
            return Err(format!(
                "bytes and percentages of a distribution must ascend, from 0 to 100 percent, and {end}"
            ));
        }
        Ok(Sizes { points })
    }

    /// A size; one byte at least.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let at = random.below(ALL);
        let next = self.points.partition_point(|&(_, part)| part <= at);
        let (from, below) = self.points[next - 1];
        let (to, above) = self.points[next];
        let inside = u128::from(to - from) * u128::from(at - below) / u128::from(above - below);
        (from + inside as u64).max(1)
    }

    /// The mean, in bytes, rounded.
    pub fn mean(&self) -> u64 {
        let twice: u128 = self
            .points
            .windows(2)
            .map(|two| u128::from(two[0].0 + two[1].0) * u128::from(two[1].1 - two[0].1))
            .sum();
        ((twice / 2 + u128::from(ALL / 2)) / u128::from(ALL)).max(1) as u64
    }
}

/// `97.5` as a part of `ALL`.
fn percent(text: &str) -> Option<u64> {
    let thousandths = crate::impair::units::thousandths(text)?;
    let part = u128::from(thousandths) * u128::from(ALL) / 100_000;
    u64::try_from(part).ok().filter(|&part| part <= ALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_sizes_follow_their_distribution() {
        for (name, _) in BUILT_IN {
            let sizes = Sizes::read(name).unwrap();
            let mut random = Random::new(7);
            let mut drawn: Vec<u64> = (0..20_000).map(|_| sizes.draw(&mut random)).collect();
            drawn.sort_unstable();
            for &(bytes, part) in &sizes.points[1..] {
                let below = drawn.partition_point(|&size| size <= bytes) as f64 / 20_000.0;
                let wanted = part as f64 / ALL as f64;
                assert!(
                    (below - wanted).abs() < 0.012,
                    "{name}: {bytes} {below} {wanted}"
                );
            }
        }
    }

    /// As HKUST-SING's and HPCC's generators compute them: the mean of each piece times its part.
    #[test]
    fn means_are_known() {
        let mean = Sizes::read("web-search").unwrap().mean();
        assert!(mean.abs_diff(1_711_250) <= 1, "{mean}");
        assert_eq!(Sizes::constant(4096).mean(), 4096);
        assert_eq!(Sizes::parse("0 0\n100 50\n300 100\n").unwrap().mean(), 125);
    }

    #[test]
    fn bad_distributions_are_told() {
        for (text, says) in [
            ("0 0\n10 90\n", "must ascend"),
            (
                "0 0\n10 20\n5 100\n",
                "line 3 of the distribution, \"5 100\", must ascend",
            ),
            ("0 0\n10 20\n15 10\n", "line 3 of the distribution"),
            (
                "1000 50\n2000 100\n",
                "line 1 of the distribution, \"1000 50\", must have 0 percent",
            ),
            ("0 0\n10\n", "line 2"),
            ("0 0\nx 100\n", "line 2"),
            ("0 0 1\n", "line 1"),
            ("", "must ascend"),
        ] {
            let error = Sizes::parse(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
        assert!(Sizes::read("web-serch").unwrap_err().contains("web-search"));
        assert!(
            Sizes::read("/no/such.txt")
                .unwrap_err()
                .contains("No such file")
        );
        assert_eq!(Sizes::read("64KiB"), Ok(Sizes::constant(65536)));
    }
}
