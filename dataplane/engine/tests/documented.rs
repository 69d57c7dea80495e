//! `docs/conformance.md` names a test for each rule, `docs/counters.md` for each counter, `docs/memory.md` for each kind of memory
//! and process: they exist.

use std::fs;
use std::path::Path;

use roceline_engine::congestion::{CongestionConfig, PROFILES, Param};
use roceline_engine::verbs::FAULTS;

/// The text of all Rust and C files below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "c") {
            text.push_str(&fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_test_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src"), &mut text);
    sources(&root.join("tests"), &mut text);
    sources(&root.join("../src"), &mut text);
    sources(&root.join("../tests"), &mut text);
    sources(&root.join("../../verbs-shim/src"), &mut text);
    sources(&root.join("../../verbs-shim/tests"), &mut text);
    for (document, least) in [
        ("conformance.md", 50),
        ("counters.md", 15),
        ("memory.md", 35),
    ] {
        let path = root.join("../../docs").join(document);
        let docs = fs::read_to_string(path).expect("the document");
        let named = check(&docs, &text);
        assert!(
            named > least,
            "{document}: {named} tests; is it still of this form?"
        );
    }
}

#[test]
fn the_table_of_faults_is_the_engines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let docs = fs::read_to_string(path).expect("the document");
    let rows: Vec<String> = FAULTS.iter().map(ToString::to_string).collect();
    let missing: Vec<_> = rows
        .iter()
        .filter(|row| !docs.lines().any(|line| line.starts_with(row.as_str())))
        .collect();
    assert!(missing.is_empty(), "conformance.md lacks {missing:#?}");
    let (_, section) = docs.split_once("\n## Errors\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter(|l| l.starts_with("| ")).count();
    assert_eq!(lines, rows.len() + 2, "rows that the engine does not have");
}

/// That each test that the rows of a document name is in the text; how many there are.
fn check(docs: &str, text: &str) -> usize {
    let mut rules = 0;
    for row in docs.lines().filter(|l| l.starts_with("| ")) {
        // The last cell is between the last two bars; names of tests are in backquotes and have many words.
        let Some(cell) = row.rsplit('|').nth(1) else {
            continue;
        };
        let names = cell.split('`').skip(1).step_by(2);
        let is_test = |n: &&str| {
            let words = n.matches('_').count();
            (words >= 4 || n.starts_with("case_")) && !n.contains(['.', '…'])
        };
        for name in names.filter(is_test) {
            rules += 1;
            let written = match name.starts_with("case_") {
                true => format!("void {name}(void)\n{{"),
                false => format!("fn {name}("),
            };
            assert!(text.contains(&written), "{name} in {row}");
        }
    }
    rules
}

/// `docs/congestion.md` has a row for each parameter with its range and its value in each profile, and no others.
#[test]
fn the_table_of_congestion_parameters_is_the_engines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/congestion.md");
    let docs = fs::read_to_string(path).expect("the document");
    let rows: Vec<String> = Param::all()
        .iter()
        .map(|param| {
            let unit = match param.unit {
                "" => String::new(),
                unit => format!(" {unit}"),
            };
            let values: String = PROFILES
                .iter()
                .map(|name| CongestionConfig::profile(name).expect("a profile"))
                .map(|config| format!(" {} |", param.get(&config)))
                .collect();
            format!(
                "| `{}` | {} to {}{unit} |{values} {} |",
                param.name, param.min, param.max, param.doc
            )
        })
        .collect();
    let (_, section) = docs.split_once("\n## Parameters\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let missing: Vec<_> = rows
        .iter()
        .filter(|row| !section.lines().any(|line| line == row.as_str()))
        .map(String::as_str)
        .collect();
    assert!(
        missing.is_empty(),
        "congestion.md lacks\n{}",
        missing.join("\n")
    );
    let lines = section.lines().filter(|l| l.starts_with("| `")).count();
    assert_eq!(lines, rows.len(), "rows that the engine does not have");
}
