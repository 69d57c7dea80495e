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

#[test]
fn our_measurement_of_the_clock_is_the_one_that_eal_calls() {
    unsafe extern "C" {
        fn get_tsc_freq() -> u64;
    }
    let waits = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().to_owned()
    };
    let begin = std::time::Instant::now();
    // SAFETY: reads clocks.
    unsafe { dpdk_sys::rl_tsc_begin() };
    while begin.elapsed() < std::time::Duration::from_millis(25) {
        std::hint::spin_loop();
    }
    let before = waits();
    // SAFETY: reads clocks. EAL's would sleep for 100 ms; ours has nothing left to wait for.
    let hz = unsafe { get_tsc_freq() };
    assert_eq!(waits(), before);
    assert!(hz > 100_000_000 && hz % 10_000_000 == 0, "{hz}");
}
