//! What happens to frames on the links that nodes send on: `[link]`.

use roceline_engine::fabric::impair::{Action, Chance, Matcher, Probability, Rule, RuleId, When};

use super::document::Section;
use super::error::ScenarioError;
use super::units;

/// All of these links are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// Chance of a frame to be lost.
    pub loss: Probability,
}

impl Links {
    pub(super) fn read(section: &Section) -> Result<Links, ScenarioError> {
        let loss = section.or("loss", 0.0, units::fraction(0.0, 1.0))?;
        section.end()?;
        Ok(Links {
            loss: Probability::from_parts((loss * 4_294_967_296.0).round() as u64),
        })
    }

    /// What the link of the node with this number does to frames, if it does anything.
    pub fn rule(&self, node: usize, seed: u64) -> Option<Rule> {
        (self.loss != Probability::NEVER).then(|| Rule {
            id: RuleId(1),
            name: String::new(),
            matcher: Matcher::default(),
            when: When {
                chance: Chance::Each(self.loss),
                ..When::default()
            },
            action: Action::Drop,
            // Far from those of neighbours, whose streams would otherwise be alike.
            seed: seed ^ (node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_a_part_of_all_frames_and_none_by_default() {
        let read = |text: &str| {
            Links::read(&Section::parse("f.toml", text).unwrap()).map_err(|e| e.to_string())
        };
        assert!(read("").unwrap().rule(0, 1).is_none());
        let half = read("loss = '50%'").unwrap();
        assert_eq!(half.loss, Probability::ratio(1, 2));
        assert_ne!(half.rule(0, 1).unwrap().seed, half.rule(1, 1).unwrap().seed);
        assert!(read("loss = 2").is_err() && read("los = 0").is_err());
    }
}
