//! The text of a configuration with other values: comments, order and everything else stay as they are.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike};

use super::space::{Key, Value};
use crate::config::Config;

/// `text`, of which `config` was read, with other values.
///
/// # Errors
/// When it cannot be changed; the sentence says why.
pub fn with(text: &str, config: &Config, changes: &[(Key, Value)]) -> Result<String, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    for &(key, value) in changes {
        match key.section() {
            "nic" => {
                let applies: Vec<bool> = config
                    .nics
                    .iter()
                    .map(|nic| key.applies_to(config, nic))
                    .collect();
                let mut applies = applies.into_iter();
                each(&mut document, "nic", &mut |table| {
                    if applies.next().unwrap_or(false) {
                        put(table, key, value);
                    }
                })?;
            }
            section => {
                if document.get(section).is_none() {
                    // A configuration without one has one with the defaults.
                    let mut sections = ArrayOfTables::new();
                    sections.push(Table::new());
                    document.insert(section, Item::ArrayOfTables(sections));
                }
                each(&mut document, section, &mut |table| put(table, key, value))?;
            }
        }
    }
    Ok(document.to_string())
}

/// Does something with each section of a name, however they are written.
fn each(
    document: &mut DocumentMut,
    name: &str,
    work: &mut dyn FnMut(&mut dyn TableLike),
) -> Result<(), String> {
    match document.get_mut(name) {
        Some(Item::ArrayOfTables(tables)) => {
            tables.iter_mut().for_each(|table| work(table));
            Ok(())
        }
        Some(Item::Value(toml_edit::Value::Array(tables))) => {
            let inline = tables
                .iter_mut()
                .filter_map(toml_edit::Value::as_inline_table_mut);
            inline.for_each(|table| work(table));
            Ok(())
        }
        _ => Err(format!("[[{name}]] is not a list of sections")),
    }
}

/// Sets a key. What stands behind its value, a remark perhaps, stays.
fn put(table: &mut dyn TableLike, key: Key, value: Value) {
    let mut new = match value {
        Value::Number(number) => toml_edit::Value::from(i64::from(number)),
        Value::Word(word) => toml_edit::Value::from(word),
    };
    match table.get_mut(key.name()).and_then(Item::as_value_mut) {
        Some(old) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        None => {
            table.insert(key.name(), Item::Value(new));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    fn changed(text: &str, changes: &[(Key, Value)]) -> (String, Config) {
        let before = Config::parse("f.toml", text).unwrap();
        let text = with(text, &before, changes).unwrap();
        let after =
            Config::parse("f.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        (text, after)
    }

    #[test]
    fn comments_and_order_stay() {
        let preset = Preset::Pair.text();
        let (text, config) = changed(
            preset,
            &[
                (Key::RxBurst, Value::Number(16)),
                (Key::Idle, Value::Word("spin")),
                (Key::Mtu, Value::Number(2200)),
            ],
        );
        assert_eq!(config.lcores[0].tuning.rx_burst, 16);
        assert_eq!(config.lcores[0].idle, crate::config::Idle::Spin);
        assert!(config.nics.iter().all(|nic| nic.mtu == 2200));
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (before, after) = (lines(preset), lines(&text));
        assert_eq!(after.len(), before.len() + 1, "{text}");
        assert!(
            text.contains("mtu = 2200              # room for a path MTU of 4096\n"),
            "{text}"
        );
        assert!(
            text.contains("idle = \"spin\"       # poll, then yield, then sleep\n"),
            "{text}"
        );
        let kept = before.iter().filter(|line| after.contains(line)).count();
        assert_eq!(kept, before.len() - 3, "{text}");
        assert_eq!(changed(preset, &[]).0, preset);
    }

    #[test]
    fn sections_are_found_however_they_are_written() {
        let nic = "name = \"a\", addresses = [\"10.0.0.1/24\"], port = \"vdev:net_null0\"";
        let inline = format!("nic = [{{ {nic} }}]\nlcore = [{{ cpu = \"any\" }}, {{}}]\n");
        let changes = [
            (Key::TxBurst, Value::Number(8)),
            (Key::AckPolicy, Value::Word("per-message")),
        ];
        let (_, config) = changed(&inline, &changes);
        assert!(config.lcores.iter().all(|lcore| lcore.tuning.tx_burst == 8));
        assert_eq!(config.lcores.len(), 2);
        assert_eq!(
            config.nics[0].ack_policy,
            roceline_engine::AckPolicy::PerMessage
        );
        // Without a section for the polling thread there will be one; subsections stay behind their section's keys.
        let none = format!(
            "[[nic]]\n{}\n[nic.dcqcn]\nrpg_ai_rate = 40\n",
            nic.replace(", ", "\n")
        );
        let (text, config) = changed(&none, &changes);
        assert_eq!(
            (config.lcores.len(), config.lcores[0].tuning.tx_burst),
            (1, 8),
            "{text}"
        );
    }

    #[test]
    fn a_nic_without_the_key_is_left_alone() {
        let link =
            "[[nic]]\nname = \"NAME\"\naddresses = [\"10.0.0.ONE/24\"]\nport = \"fabric:l\"\n";
        let of = |name: &str, one: &str| link.replace("NAME", name).replace("ONE", one);
        let other = of("c", "3").replace("fabric:l", "vdev:net_null0");
        let text = of("a", "1") + &other + &of("b", "2");
        let (_, config) = changed(&text, &[(Key::TxRing, Value::Number(64))]);
        let rings: Vec<u32> = config.nics.iter().map(|nic| nic.rings.tx).collect();
        assert_eq!(rings, [64, 512, 64]);
    }
}
