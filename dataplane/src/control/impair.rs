//! The rules of the daemon: their numbers, names and texts, and where they stand. The rules themselves, with their
//! counts and what they hold back, are with the lcores; here is what people call them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use roceline_engine::fabric::impair::MAX_RULES;
use serde::{Deserialize, Serialize};

use super::ask::Step;
use super::error::CommandError;
use super::server::Shared;
use crate::impair::{Names, Place, Spec, SpecError};
use crate::lcore::message::{Command, ImpairCommand, PlaceReport, Reply};

/// Answer to `impair-add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedReply {
    /// Number of the rule, never used again while the daemon runs.
    pub id: u32,
    /// Its name: given, or `rule` and its number.
    pub name: String,
    /// Where it stands.
    pub places: Vec<String>,
}

/// Answer to `impair-remove` and `impair-clear`: what is no longer there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedReply {
    /// Numbers of the rules.
    pub rules: Vec<u32>,
}

/// Answer to `impair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImpairReply {
    /// In the order of their addition; a rule on a link once for each direction.
    pub rules: Vec<RuleLine>,
    /// Places that have rules, or still hold packets.
    pub places: Vec<PlaceLine>,
}

/// A rule at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleLine {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub place: String,
    /// Packets that came by.
    pub seen: u64,
    /// Those that it is about.
    pub matched: u64,
    /// Those that it did something to.
    pub hit: u64,
    /// Those of the hits that it dropped.
    pub dropped: u64,
    /// What it says, in one line.
    pub text: String,
    /// The same by key.
    pub rule: Spec,
}

/// A place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceLine {
    /// Where.
    pub place: String,
    /// Packets that are held back at the moment.
    pub held: u64,
    /// Packets dropped since no more could be held back.
    pub overflow: u64,
    /// Copies not made for want of a packet buffer.
    pub no_buffer: u64,
}

/// Names of removed rules that are remembered, for captures that hold packets which those rules hit.
const REMEMBERED: usize = 4096;

/// All rules of a daemon.
#[derive(Debug, Default)]
pub struct Impairments {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u32,
    names: Names,
    rules: Vec<Entry>,
    /// Names that were given to rules which are gone, oldest first; [`REMEMBERED`] at most.
    gone: VecDeque<(u32, String)>,
}

#[derive(Debug)]
struct Entry {
    id: u32,
    name: String,
    spec: Spec,
    places: Vec<Place>,
}

impl From<SpecError> for CommandError {
    fn from(error: SpecError) -> CommandError {
        CommandError::Rule(error.to_string())
    }
}

impl Impairments {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule at all places that it names.
    pub fn add(&self, shared: &Shared, spec: Spec) -> Result<AddedReply, CommandError> {
        let wiring = &shared.config.wiring;
        let places = wiring.places(&spec)?;
        let mut state = self.state();
        let id = state.last_id + 1;
        let rule = spec.compile(id)?;
        let mut names = state.names.clone();
        names.take(&spec)?;
        for &place in &places {
            let stands = |rule: &&Entry| rule.places.contains(&place);
            if state.rules.iter().filter(stands).count() >= MAX_RULES {
                return Err(CommandError::Rule(format!(
                    "there are {MAX_RULES} rules at {} already, and one place has no more: remove one first",
                    wiring.describe(place)
                )));
            }
        }
        shared.change(&parts(shared, &places), |&place, step| {
            Command::Impair(match step {
                Step::Make => ImpairCommand::Add {
                    place,
                    rule: Box::new(rule.clone()),
                },
                Step::TakeBack => ImpairCommand::Remove { place, id },
            })
        })?;
        let name = rule.name;
        tracing::info!(id, name, rule = %spec, "impairment added");
        state.last_id = id;
        state.names = names;
        let described = places.iter().map(|&p| wiring.describe(p)).collect();
        state.rules.push(Entry {
            id,
            name: name.clone(),
            spec,
            places,
        });
        Ok(AddedReply {
            id,
            name,
            places: described,
        })
    }

    /// Removes rules by number or name. All of them must exist.
    pub fn remove(&self, shared: &Shared, rules: &[String]) -> Result<RemovedReply, CommandError> {
        let mut state = self.state();
        let mut removed = Vec::new();
        for wanted in rules {
            let found = state
                .rules
                .iter()
                .find(|rule| rule.name == *wanted || rule.id.to_string() == *wanted);
            let Some(rule) = found else {
                let wanted = crate::impair::shortened(wanted);
                return Err(CommandError::Rule(format!(
                    "there is no rule {wanted:?}: `roceline impair list` shows those that there are"
                )));
            };
            if !removed.contains(&rule.id) {
                removed.push(rule.id);
            }
        }
        for &id in &removed {
            state.remove(shared, id)?;
        }
        Ok(RemovedReply { rules: removed })
    }

    /// Removes all rules.
    pub fn clear(&self, shared: &Shared) -> Result<RemovedReply, CommandError> {
        let mut state = self.state();
        let rules: Vec<u32> = state.rules.iter().map(|rule| rule.id).collect();
        for &id in &rules {
            state.remove(shared, id)?;
        }
        Ok(RemovedReply { rules })
    }

    /// Names that were given to rules, by number: of all that are there, and of the newest of those that are gone.
    pub fn names(&self) -> BTreeMap<u32, String> {
        let state = self.state();
        let given = |rule: &&Entry| rule.spec.get("name").is_some();
        let present = state.rules.iter().filter(given);
        let gone = state.gone.iter().cloned();
        gone.chain(present.map(|rule| (rule.id, rule.name.clone())))
            .collect()
    }

    /// Rules at the places of a NIC.
    pub fn count(&self, nic: u32) -> usize {
        let stands = |rule: &&Entry| rule.places.iter().any(|place| place.nic == nic);
        self.state().rules.iter().filter(stands).count()
    }

    /// The rules with their counts.
    pub fn list(&self, shared: &Shared) -> Result<ImpairReply, CommandError> {
        let state = self.state();
        let wiring = &shared.config.wiring;
        let reports = reports(shared)?;
        let mut rules = Vec::new();
        for entry in &state.rules {
            for &place in &entry.places {
                let counts = reports
                    .iter()
                    .filter(|report| report.place == place)
                    .flat_map(|report| &report.rules)
                    .find(|(id, _)| *id == entry.id);
                let Some((_, counts)) = counts else { continue };
                rules.push(RuleLine {
                    id: entry.id,
                    name: entry.name.clone(),
                    place: wiring.describe(place),
                    seen: counts.seen,
                    matched: counts.matched,
                    hit: counts.hit,
                    dropped: counts.dropped,
                    text: entry.spec.effect().to_string(),
                    rule: entry.spec.clone(),
                });
            }
        }
        let places = reports
            .iter()
            .map(|report| PlaceLine {
                place: wiring.describe(report.place),
                held: report.held,
                overflow: report.overflow,
                no_buffer: report.no_buffer,
            })
            .collect();
        Ok(ImpairReply { rules, places })
    }
}

impl State {
    fn remove(&mut self, shared: &Shared, id: u32) -> Result<(), CommandError> {
        let Some(index) = self.rules.iter().position(|rule| rule.id == id) else {
            return Ok(());
        };
        remove(shared, id, &self.rules[index].places)?;
        let rule = self.rules.remove(index);
        self.names.give_back(&rule.spec);
        tracing::info!(id, name = rule.name, "impairment removed");
        if rule.spec.get("name").is_some() {
            if self.gone.len() >= REMEMBERED {
                self.gone.pop_front();
            }
            self.gone.push_back((id, rule.name));
        }
        Ok(())
    }
}

/// The lcores that serve the NICs of these places. Each has rules of its own for its packets.
fn parts(shared: &Shared, places: &[Place]) -> Vec<(u32, Place)> {
    shared.parts(places.iter().map(|&place| (place.nic, place)))
}

/// Takes a rule from its places: from all that answer, whoever does not. To take it from one that has not got it is no error, so
/// this can be done again.
fn remove(shared: &Shared, id: u32, places: &[Place]) -> Result<(), CommandError> {
    let mut removed = Ok(());
    for (lcore, place) in parts(shared, places) {
        let remove = ImpairCommand::Remove { place, id };
        let told = shared.ask_lcore(lcore, Command::Impair(remove));
        removed = removed.and(told.map(drop));
    }
    removed
}

/// What all lcores report, by place.
fn reports(shared: &Shared) -> Result<Vec<PlaceReport>, CommandError> {
    let mut all = Vec::new();
    for lcore in shared.all_lcores() {
        match shared.ask_lcore(lcore, Command::Impair(ImpairCommand::Report))? {
            Reply::Impair(reports) => all.extend(reports),
            other => return Err(CommandError::BadAnswer("Impair", format!("{other:?}"))),
        }
    }
    Ok(summed(all))
}

/// One report for each place, in their order: what the lcores of a NIC did to its packets, together.
fn summed(mut all: Vec<PlaceReport>) -> Vec<PlaceReport> {
    all.sort_by_key(|report| report.place);
    all.dedup_by(|more, report| {
        if more.place != report.place {
            return false;
        }
        report.held += more.held;
        report.overflow += more.overflow;
        report.no_buffer += more.no_buffer;
        for (id, counts) in &more.rules {
            match report.rules.iter_mut().find(|(known, _)| known == id) {
                Some((_, sum)) => {
                    sum.seen += counts.seen;
                    sum.matched += counts.matched;
                    sum.hit += counts.hit;
                    sum.dropped += counts.dropped;
                }
                None => report.rules.push((*id, *counts)),
            }
        }
        true
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::query;
    use crate::control::seqpacket::Peer;
    use crate::control::testing::{FakeLcore, config};
    use crate::impair::Wiring;
    use std::path::PathBuf;
    use std::sync::Arc;

    fn shared() -> (Shared, Arc<FakeLcore>) {
        let (lcore, _closed) = FakeLcore::new();
        let mut config = config(PathBuf::from("unused"));
        config.wiring = Wiring::new([("roce0", Some("cable")), ("roce1", Some("cable"))]);
        (Shared::new(config, lcore.clone()), lcore)
    }

    fn ask(shared: &Shared, uid: u32, query: &str) -> Result<serde_json::Value, String> {
        let peer = Peer { pid: 1, uid };
        let answer = query::answer(shared, peer, query.as_bytes()).map_err(|e| e.to_string())?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    const ADD: &str =
        r#"{"query":"impair-add","rule":{"link":"cable","drop":true,"probability":0.01}}"#;

    #[test]
    fn rules_are_added_listed_and_removed() {
        let (shared, lcore) = shared();
        let added = ask(&shared, 0, ADD).unwrap();
        assert_eq!(added["id"], 1);
        assert_eq!(added["name"], "rule1");
        assert_eq!(added["places"].as_array().unwrap().len(), 2);
        let named = r#"{"query":"impair-add","rule":{"nic":"roce1","side":"rx","name":"ce","mark_ce":"true"}}"#;
        assert_eq!(ask(&shared, 0, named).unwrap()["id"], 2);
        assert_eq!(lcore.state().rules.len(), 3);

        let listed = ask(&shared, 0, r#"{"query":"impair"}"#).unwrap();
        let row = |i: usize| {
            let rule = &listed["rules"][i];
            (
                rule["name"].as_str(),
                rule["place"].as_str(),
                rule["seen"].as_u64(),
                rule["text"].as_str(),
            )
        };
        assert_eq!(
            row(0),
            (
                Some("rule1"),
                Some("cable from roce0"),
                Some(1),
                Some("drop probability=0.01")
            )
        );
        assert_eq!(row(1).1, Some("cable from roce1"));
        let ports = ask(&shared, 4711, r#"{"query":"ports"}"#).unwrap();
        let rules = |port: usize| ports["ports"][port]["rules"].as_u64();
        assert_eq!((rules(0), rules(1)), (Some(1), Some(2)));
        assert_eq!(
            row(2),
            (Some("ce"), Some("roce1 rx"), Some(2), Some("mark_ce"))
        );

        let remove = r#"{"query":"impair-remove","rules":["rule1"]}"#;
        assert_eq!(
            ask(&shared, 0, remove).unwrap()["rules"],
            serde_json::json!([1])
        );
        let error = ask(&shared, 0, remove).unwrap_err();
        assert!(
            error.contains("no rule \"rule1\"") && error.contains("impair list"),
            "{error}"
        );
        // Numbers are not used again, names are.
        assert_eq!(
            ask(&shared, 0, r#"{"query":"impair-clear"}"#).unwrap()["rules"],
            serde_json::json!([2])
        );
        assert!(lcore.state().rules.is_empty());
        assert_eq!(ask(&shared, 0, named).unwrap()["id"], 3);
    }

    #[test]
    fn an_order_that_cannot_be_carried_out_changes_nothing() {
        let (shared, lcore) = shared();
        for (rule, said) in [
            (r#"{"link":"cable"}"#, "has to do something"),
            (r#"{"link":"cabel","drop":true}"#, "no such link"),
            (
                r#"{"link":"cable","drop":true,"colour":"red"}"#,
                "unknown key `colour`",
            ),
            (r#"{"link":"cable","delay":"trace:/etc/passwd"}"#, "delay"),
        ] {
            let query = format!(r#"{{"query":"impair-add","rule":{rule}}}"#);
            let error = ask(&shared, 0, &query).unwrap_err();
            assert!(error.contains(said), "{rule}: {error}");
        }
        ask(&shared, 0, ADD).unwrap();
        let error = ask(&shared, 0, r#"{"query":"impair-remove","rules":["1","7"]}"#).unwrap_err();
        assert!(error.contains("\"7\""), "{error}");
        assert_eq!(lcore.state().rules.len(), 2, "neither was removed");
    }

    #[test]
    fn a_place_without_room_for_another_rule_is_named() {
        let (shared, _lcore) = shared();
        let on_link =
            r#"{"query":"impair-add","rule":{"link":"cable","from":"roce1","drop":true}}"#;
        for _ in 0..MAX_RULES {
            ask(&shared, 0, on_link).unwrap();
        }
        for rule in [on_link, ADD] {
            let error = ask(&shared, 0, rule).unwrap_err();
            assert!(
                error.contains("64 rules at cable from roce1 already"),
                "{error}"
            );
        }
        let elsewhere = on_link.replace("roce1", "roce0");
        ask(&shared, 0, &elsewhere).unwrap();
    }

    #[test]
    fn a_rule_that_one_place_refuses_stands_nowhere() {
        let (shared, lcore) = shared();
        lcore.state().next = Some(Reply::Failed {
            errno: libc::EINVAL,
            reason: "no room".into(),
        });
        assert_eq!(ask(&shared, 0, ADD).unwrap_err(), "no room");
        assert!(lcore.state().rules.is_empty());
        assert_eq!(ask(&shared, 0, ADD).unwrap()["id"], 1);
    }

    #[test]
    fn everybody_may_look_and_operators_may_change() {
        let (shared, lcore) = shared();
        for order in [
            ADD,
            r#"{"query":"impair-remove","rules":["1"]}"#,
            r#"{"query":"impair-clear"}"#,
        ] {
            let error = ask(&shared, 4711, order).unwrap_err();
            assert!(
                error.contains("user 4711 may not change impairments")
                    && error.contains("operators"),
                "{error}"
            );
        }
        assert!(lcore.state().rules.is_empty());
        ask(&shared, 4711, r#"{"query":"impair"}"#).unwrap();
    }
}
