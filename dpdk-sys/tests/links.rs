//! The libraries link and EAL's drivers registered themselves.

use std::ffi::CStr;

#[test]
fn version_is_at_least_22_11() {
    // SAFETY: returns a static string.
    let version = unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }
        .to_str()
        .unwrap();
    let numbers: Vec<u32> = version
        .trim_start_matches("DPDK ")
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .collect();
    assert!(numbers[..2] >= [22, 11][..], "{version}");
}
