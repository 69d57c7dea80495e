//! Puts the scenarios of `scenarios/` into the program.

use std::path::Path;
use std::{env, fs};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo says where it is");
    let folder = Path::new(&root).join("../scenarios");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut names: Vec<String> = fs::read_dir(&folder)
        .expect("the repository has scenarios/")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".toml").map(String::from))
        .collect();
    names.sort();
    let folder = folder.canonicalize().expect("it exists");
    let items = names.iter().map(|name| {
        let path = folder.join(format!("{name}.toml"));
        println!("cargo:rerun-if-changed={}", path.display());
        format!("BuiltIn {{ name: {name:?}, text: include_str!({path:?}) }},\n")
    });
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("scenarios.rs");
    let text = format!("&[\n{}]", items.collect::<String>());
    fs::write(&out, text).expect("OUT_DIR can be written to");
}
