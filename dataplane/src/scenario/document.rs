//! The text of a scenario as a tree of sections that remember where each value stands and which keys were asked for. In
//! flow TOML and settings of the command line, which replace or add values; out flow values that a reader understood,
//! or an error that names place, value and remedy. A key that nobody asked for by [`Section::end`] does not exist.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use toml::de::{DeTable, DeValue};

use super::error::{Place, ScenarioError};
use crate::config::error::nearest;

/// A section: `[nic.dcqcn]`, or one of several `[[flow]]`.
#[derive(Clone, Debug)]
pub(super) struct Section {
    /// How errors name it: `nic.dcqcn`, `flow.2`; empty for the whole file.
    path: String,
    place: Place,
    entries: BTreeMap<String, Entry>,
    asked: RefCell<BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    node: Node,
}

#[derive(Clone, Debug)]
enum Node {
    /// Text, a number, true or false, as text.
    Value(String),
    List(Vec<String>),
    Section(Section),
    Sections(Vec<Section>),
}

/// A value put elsewhere than in the file: on the command line or by a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Path of the key: `nic.dcqcn.rpg_ai_rate`, `flow.0.bytes`.
    pub key: String,
    /// The value as it would stand in the file; quotes around text may be left out.
    pub value: String,
    /// Who says so, for errors: `--sweep`, `variant pfc-only`.
    pub by: String,
}

impl Setting {
    /// Parses `KEY=VALUE`.
    pub fn parse(by: &str, text: &str) -> Result<Setting, ScenarioError> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Setting {
                    key: key.trim().into(),
                    value: value.trim().into(),
                    by: by.into(),
                })
            }
            _ => Err(ScenarioError::Setting {
                setting: format!("{by} {text}"),
                problem: "must be KEY=VALUE, such as nic.window=64".into(),
            }),
        }
    }

    fn place(&self) -> Place {
        Place::Setting(format!("{} {}={}", self.by, self.key, self.value))
    }

    fn bad(&self, problem: impl Into<String>) -> ScenarioError {
        ScenarioError::Setting {
            setting: format!("{} {}={}", self.by, self.key, self.value),
            problem: problem.into(),
        }
    }
}

impl Section {
    /// Reads a whole text; `file` names it in errors.
    pub fn parse(file: &str, text: &str) -> Result<Section, ScenarioError> {
        let line = |at: usize| Place::Line {
            file: file.into(),
            line: 1 + text.as_bytes()[..at.min(text.len())]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count(),
        };
        let table = DeTable::parse(text).map_err(|error| ScenarioError::Syntax {
            place: line(error.span().map_or(0, |span| span.start)),
            message: error.message().into(),
        })?;
        section(String::new(), line(0), table.get_ref(), &line)
    }

    /// Puts a value in the place of another, or where none is. Sections are made as needed, but not elements of a list.
    pub fn set(&mut self, setting: &Setting) -> Result<(), ScenarioError> {
        let mut parts = setting.key.split('.').peekable();
        let mut at = self;
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                let node = match at.entries.get(part).map(|entry| &entry.node) {
                    Some(Node::Section(_) | Node::Sections(_)) => {
                        return Err(setting.bad(format!("`{part}` is a section: name a key in it")));
                    }
                    _ => parsed(&setting.value),
                };
                let place = setting.place();
                at.entries.insert(part.into(), Entry { place, node });
                return Ok(());
            }
            let path = joined(&at.path, part);
            let entry = at.entries.entry(part.into()).or_insert_with(|| Entry {
                place: setting.place(),
                node: Node::Section(Section {
                    path,
                    place: setting.place(),
                    entries: BTreeMap::new(),
                    asked: RefCell::default(),
                }),
            });
            at = match &mut entry.node {
                Node::Section(section) => section,
                Node::Sections(sections) => {
                    let count = sections.len();
                    let number = parts.next().unwrap_or_default();
                    let by_name = |section: &Section| {
                        let name = section.entries.get("name").map(|entry| &entry.node);
                        matches!(name, Some(Node::Value(name)) if name == number)
                    };
                    let found = number
                        .parse()
                        .ok()
                        .filter(|&at: &usize| at < count)
                        .or_else(|| sections.iter().position(by_name));
                    match found.and_then(|at| sections.get_mut(at)) {
                        Some(section) => section,
                        None => {
                            return Err(setting.bad(format!(
                                "there are {count} [[{part}]]: say which, by name or number, as in {part}.0.{}",
                                parts.next().unwrap_or("KEY")
                            )));
                        }
                    }
                }
                Node::Value(_) | Node::List(_) => {
                    return Err(setting.bad(format!("`{part}` is a value and has no keys")));
                }
            };
            if parts.peek().is_none() {
                return Err(setting.bad("name a key in that section"));
            }
        }
        Ok(())
    }

    /// The value at a key, read by `read`; `None` if the key is not there.
    pub fn value<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ScenarioError> {
        match self.ask(key) {
            None => Ok(None),
            Some(Entry {
                node: Node::Value(text),
                ..
            }) => read(text)
                .map(Some)
                .map_err(|problem| self.bad(key, problem)),
            Some(_) => Err(self.bad(key, "must be one value, not a list or a section")),
        }
    }

    /// As [`Section::value`], with what is meant when nothing is said.
    pub fn or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ScenarioError> {
        Ok(self.value(key, read)?.unwrap_or(default))
    }

    /// As [`Section::value`], for a key that must be there.
    pub fn needed<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ScenarioError> {
        if let Some(value) = self.value(key, read)? {
            return Ok(value);
        }
        let unasked = |other: &&String| !self.asked.borrow().contains(*other);
        let others: Vec<&str> = self
            .entries
            .keys()
            .filter(unasked)
            .map(String::as_str)
            .collect();
        // What is missing is there under another name: that is the slip.
        Err(match nearest(key, &others) {
            Some(stranger) => self.unknown(stranger),
            None => self.whole(format!("`{key}` is missing")),
        })
    }

    /// Text.
    pub fn text(&self, key: &str) -> Result<Option<String>, ScenarioError> {
        self.value(key, |text| Ok(text.to_string()))
    }

    /// The values at a key: a list, or one value. Empty if the key is not there.
    pub fn list(&self, key: &str) -> Result<Vec<String>, ScenarioError> {
        match self.ask(key).map(|entry| &entry.node) {
            None => Ok(Vec::new()),
            Some(Node::Value(text)) => Ok(vec![text.clone()]),
            Some(Node::List(list)) => Ok(list.clone()),
            Some(_) => Err(self.bad(key, "must be a value or a list of them")),
        }
    }

    /// The section at a key; an empty one if there is none.
    pub fn section(&self, key: &str) -> Result<Section, ScenarioError> {
        match self.ask(key).map(|entry| &entry.node) {
            None => Ok(Section {
                path: joined(&self.path, key),
                place: self.place.clone(),
                entries: BTreeMap::new(),
                asked: RefCell::default(),
            }),
            Some(Node::Section(section)) => Ok(section.clone()),
            Some(_) => Err(self.bad(key, format!("must be a section, [{}]", self.joined(key)))),
        }
    }

    /// The sections at a key, in their order.
    pub fn sections(&self, key: &str) -> Result<Vec<Section>, ScenarioError> {
        match self.ask(key).map(|entry| &entry.node) {
            None => Ok(Vec::new()),
            Some(Node::Sections(sections)) => Ok(sections.clone()),
            Some(Node::List(list)) if list.is_empty() => Ok(Vec::new()),
            Some(_) => Err(self.bad(key, format!("must be [[{key}]], as often as needed"))),
        }
    }

    /// Whether something stands at a key.
    pub fn has(&self, key: &str) -> bool {
        self.ask(key).is_some()
    }

    /// Nobody will ask for more keys: what is left does not exist.
    pub fn end(&self) -> Result<(), ScenarioError> {
        let asked = self.asked.borrow();
        let stranger = self.entries.keys().find(|key| !asked.contains(*key));
        stranger.map_or(Ok(()), |key| Err(self.unknown(key)))
    }

    /// The error about a key that does not exist.
    fn unknown(&self, key: &str) -> ScenarioError {
        let entry = self.entries.get(key);
        ScenarioError::Unknown {
            place: entry.map_or(&self.place, |entry| &entry.place).clone(),
            section: self.title(),
            key: key.into(),
            known: self.asked.borrow().iter().cloned().collect(),
        }
    }

    /// The error about the value at a key.
    pub fn bad(&self, key: &str, problem: impl Into<String>) -> ScenarioError {
        let entry = self.entries.get(key);
        ScenarioError::Value {
            place: entry.map_or(&self.place, |entry| &entry.place).clone(),
            key: self.joined(key),
            value: match entry.map(|entry| &entry.node) {
                Some(Node::Value(text)) => format!("{text:?}"),
                Some(Node::List(list)) => format!("{list:?}"),
                Some(_) => "a section".into(),
                None => "nothing".into(),
            },
            problem: problem.into(),
        }
    }

    /// The error about the section.
    pub fn whole(&self, problem: impl Into<String>) -> ScenarioError {
        ScenarioError::Section {
            place: self.place.clone(),
            section: self.title(),
            problem: problem.into(),
        }
    }

    fn title(&self) -> String {
        match self.path.as_str() {
            "" => "the scenario".into(),
            path => format!("[{path}]"),
        }
    }

    fn joined(&self, key: &str) -> String {
        joined(&self.path, key)
    }

    fn ask(&self, key: &str) -> Option<&Entry> {
        self.asked.borrow_mut().insert(key.into());
        self.entries.get(key)
    }
}

fn joined(path: &str, key: &str) -> String {
    match path {
        "" => key.into(),
        path => format!("{path}.{key}"),
    }
}

/// The value of a setting: what TOML takes for a list is one, all else is text.
fn parsed(value: &str) -> Node {
    let list = DeValue::parse(value).ok().and_then(|parsed| {
        let list = parsed.get_ref().as_array()?;
        list.iter().map(|item| scalar(item.get_ref())).collect()
    });
    match list {
        Some(list) => Node::List(list),
        None => Node::Value(value.trim_matches('"').into()),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(match number.radix() {
            16 => format!("0x{}", number.as_str()),
            10 => number.as_str().to_string(),
            radix => i64::from_str_radix(number.as_str(), radix)
                .ok()?
                .to_string(),
        }),
        DeValue::Float(number) => Some(number.as_str().to_string()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Datetime(time) => Some(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn section(
    path: String,
    place: Place,
    table: &DeTable<'_>,
    line: &dyn Fn(usize) -> Place,
) -> Result<Section, ScenarioError> {
    let mut entries = BTreeMap::new();
    for (key, value) in table {
        let place = line(key.span().start);
        let path = joined(&path, key.get_ref());
        let node = node(&path, &place, value.get_ref(), line)?;
        entries.insert(key.get_ref().to_string(), Entry { place, node });
    }
    Ok(Section {
        path,
        place,
        entries,
        asked: RefCell::default(),
    })
}

fn node(
    path: &str,
    place: &Place,
    value: &DeValue<'_>,
    line: &dyn Fn(usize) -> Place,
) -> Result<Node, ScenarioError> {
    if let Some(text) = scalar(value) {
        return Ok(Node::Value(text));
    }
    let mixed = || ScenarioError::Syntax {
        place: place.clone(),
        message: format!("`{path}` must be a list of values, or of sections"),
    };
    match value {
        DeValue::Table(table) => {
            section(path.into(), place.clone(), table, line).map(Node::Section)
        }
        DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
            let mut sections = Vec::new();
            for (number, item) in items.iter().enumerate() {
                let table = item.get_ref().as_table().ok_or_else(mixed)?;
                let place = line(item.span().start);
                sections.push(section(format!("{path}.{number}"), place, table, line)?);
            }
            Ok(Node::Sections(sections))
        }
        DeValue::Array(items) => {
            let texts = items.iter().map(|item| scalar(item.get_ref()));
            texts
                .collect::<Option<_>>()
                .map(Node::List)
                .ok_or_else(mixed)
        }
        _ => Err(mixed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\n\n[nic]\nwindow = 64\nlist = [1, \"2\"]\n\n[[flow]]\nname = \"a\"\nbytes = 1\n[[flow]]\nbytes = 2\n";

    fn whole(text: &str) -> Result<u64, String> {
        crate::impair::number_in(text, 0..=100)
    }

    #[test]
    fn values_lists_and_sections_are_found() {
        let file = Section::parse("f.toml", TEXT).unwrap();
        assert_eq!(file.text("name").unwrap().as_deref(), Some("x"));
        let nic = file.section("nic").unwrap();
        assert_eq!(nic.value("window", whole).unwrap(), Some(64));
        assert_eq!(nic.list("list").unwrap(), ["1", "2"]);
        assert_eq!(nic.value("other", whole).unwrap(), None);
        assert!(nic.end().is_ok());
        assert_eq!(file.sections("flow").unwrap().len(), 2);
        assert!(file.end().is_ok());
    }

    #[test]
    fn strangers_and_bad_values_are_told_with_their_line() {
        let file = Section::parse("f.toml", TEXT).unwrap();
        let nic = file.section("nic").unwrap();
        nic.list("list").unwrap();
        nic.text("windw").unwrap();
        assert_eq!(
            nic.end().unwrap_err().to_string(),
            "f.toml:4: unknown key `window` in [nic], did you mean `windw`?; known are list, windw"
        );
        let flow = &file.sections("flow").unwrap()[1];
        let error = flow.value("bytes", |_| Err::<(), _>("must be odd".into()));
        assert_eq!(
            error.unwrap_err().to_string(),
            "f.toml:11: flow.1.bytes = \"2\": must be odd"
        );
        let missing = flow.needed("to", whole).unwrap_err().to_string();
        assert_eq!(missing, "f.toml:10: [flow.1]: `to` is missing");
        let error = Section::parse("f.toml", "a = 1\nb = \n").unwrap_err();
        assert!(error.to_string().starts_with("f.toml:2: "), "{error}");
        let error = Section::parse("f.toml", "a = [1, {b = 2}]\n").unwrap_err();
        assert!(error.to_string().contains("`a` must be"), "{error}");
    }

    #[test]
    fn settings_replace_and_add() {
        let mut file = Section::parse("f.toml", TEXT).unwrap();
        for text in [
            "nic.window=7",
            "nic.dcqcn.rpg_gd=11",
            "flow.1.bytes=\"3\"",
            "flow.a.bytes=4",
            "nic.list=[5]",
        ] {
            let setting = Setting::parse("--set", text).unwrap();
            file.set(&setting).unwrap();
        }
        let nic = file.section("nic").unwrap();
        assert_eq!(nic.value("window", whole).unwrap(), Some(7));
        assert_eq!(nic.list("list").unwrap(), ["5"]);
        let dcqcn = nic.section("dcqcn").unwrap();
        assert_eq!(dcqcn.value("rpg_gd", whole).unwrap(), Some(11));
        let flows = file.sections("flow").unwrap();
        let bytes = flows.iter().map(|flow| flow.value("bytes", whole).unwrap());
        assert_eq!(bytes.collect::<Vec<_>>(), [Some(4), Some(3)]);
        assert_eq!(
            nic.bad("window", "too small").to_string(),
            "--set nic.window=7: nic.window = \"7\": too small"
        );
        for (text, says) in [
            ("flow.7.bytes=1", "there are 2 [[flow]]"),
            ("flow.1=1", "name a key"),
            ("nic=1", "is a section"),
            ("name.x=1", "is a value"),
        ] {
            let setting = Setting::parse("--set", text).unwrap();
            let error = file.set(&setting).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(text), "{error}");
        }
        for text in ["window", "=3", "a="] {
            assert!(Setting::parse("--set", text).is_err(), "{text}");
        }
    }
}
