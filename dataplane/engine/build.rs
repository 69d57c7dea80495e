//! Says whether the compiler has the carry-less multiplication of vectors: rustc 1.89 stabilised `vpclmulqdq` and
//! the AVX-512 intrinsics. Older ones build the crate without these two ICRC kernels.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(has_vpclmulqdq)");
    if minor_version().is_some_and(|minor| minor >= 89) {
        println!("cargo:rustc-cfg=has_vpclmulqdq");
    }
}

/// 95 of `rustc 1.95.0 (59807616e 2026-04-14)`.
fn minor_version() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?)
        .arg("--version")
        .output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    text.split('.').nth(1)?.parse().ok()
}
