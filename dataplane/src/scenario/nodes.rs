//! Sets of nodes as people write them: `3`, `0..7` (both ends included), `all`, or a list of these.

use super::document::Section;
use super::error::ScenarioError;

/// The nodes at a key, in the order written; `None` if the key is not there.
pub(super) fn nodes(
    section: &Section,
    key: &str,
    count: usize,
) -> Result<Option<Vec<usize>>, ScenarioError> {
    let mut found = Vec::new();
    for text in section.list(key)? {
        if text == "all" {
            found.extend(0..count);
            continue;
        }
        let last = count as u64 - 1;
        let (first, last) = crate::impair::units::ascending(&text, last).map_err(|_| {
            section.bad(
                key,
                format!("must be nodes from 0 to {last}: a number, a range such as 0..3 (both ends included), all, or a list of these"),
            )
        })?;
        found.extend(first as usize..=last as usize);
    }
    Ok((!found.is_empty()).then_some(found))
}

/// As [`nodes`], each node once, two at least, and all if the key is not there.
pub(super) fn group(
    section: &Section,
    key: &str,
    count: usize,
) -> Result<Vec<usize>, ScenarioError> {
    let group = nodes(section, key, count)?.unwrap_or_else(|| (0..count).collect());
    let mut sorted = group.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != group.len() || group.len() < 2 {
        return Err(section.bad(key, "must be two different nodes at least, each once"));
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lists_and_all() {
        let read = |text: &str| {
            let file = Section::parse("f.toml", &format!("n = {text}")).unwrap();
            nodes(&file, "n", 5).map_err(|error| error.to_string())
        };
        assert_eq!(read("3").unwrap().unwrap(), [3]);
        assert_eq!(read("\"1..3\"").unwrap().unwrap(), [1, 2, 3]);
        assert_eq!(read("[0, \"3..4\"]").unwrap().unwrap(), [0, 3, 4]);
        assert_eq!(read("\"all\"").unwrap().unwrap(), [0, 1, 2, 3, 4]);
        assert!(read("5").unwrap_err().contains("from 0 to 4"));
        assert!(read("\"3..1\"").is_err() && read("\"x\"").is_err());
        let file = Section::parse("f.toml", "n = [1, 1]").unwrap();
        assert!(group(&file, "n", 5).is_err());
        assert_eq!(group(&file, "other", 3).unwrap(), [0, 1, 2]);
    }
}
