//! Finds libdpdk with pkg-config, generates the bindings, compiles the C file for DPDK's static inlines and
//! says what to link.
//!
//! By default the static archives of the distribution's `libdpdk-dev` are linked: one binary, no plugin
//! folder. Poll-mode drivers, buses and mempool handlers register themselves in constructors that nothing
//! refers to, so their archives are linked whole. With the feature `shared` the shared libraries are linked
//! and EAL loads drivers from its plugin folder.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Drivers, buses and mempool handlers of the static build.
const DRIVERS: &[&str] = &[
    "bus_pci",
    "bus_vdev",
    "common_iavf",
    "mempool_ring",
    "mempool_stack",
    "net_af_packet",
    "net_e1000",
    "net_ena",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_ixgbe",
    "net_null",
    "net_pcap",
    "net_ring",
    "net_tap",
    "net_vhost",
    "net_virtio",
];

/// The libraries that these need, in any release from 22.11 on.
const LIBRARIES: &[&str] = &[
    "argparse",
    "cryptodev",
    "dmadev",
    "ethdev",
    "gso",
    "hash",
    "kvargs",
    "log",
    "mbuf",
    "mempool",
    "meter",
    "net",
    "pci",
    "rcu",
    "ring",
    "security",
    "stack",
    "telemetry",
    "timer",
    "vhost",
];

/// What the archives need of the system.
const SYSTEM: &[&str] = &["numa", "bsd", "pcap", "m", "dl", "pthread"];

/// The libraries whose functions Roceline calls itself, for the shared build.
const SHARED: &[&str] = &["bus_vdev", "eal", "ethdev", "log", "mbuf", "mempool"];

/// The functions that the bindings hold. `docs/dpdk-compat.md` says which DPDK releases have them.
const FUNCTIONS: &[&str] = &[
    "rl_.*",
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_strerror",
    "rte_version",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_free_bulk",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_allmulticast_enable",
    "rte_eth_stats_get",
    "rte_eth_dev_set_link_up",
    "rte_eth_dev_set_link_down",
];

/// net_memif with the calls renamed that `memif_guard.c` guards.
const GUARDED_MEMIF: &str = "roceline_net_memif";

/// What is renamed, from `rte_` to `rl_`.
const GUARDED_CALLS: &[&str] = &[
    "intr_callback_register",
    "intr_callback_unregister",
    "intr_callback_unregister_pending",
    "intr_instance_free",
];

/// EAL with its own measurement of the clock weakened, which sleeps for 100 ms: that of `tsc.c` is linked instead.
const QUICK_EAL: &str = "roceline_eal";

/// Copies the archive of EAL to `out` so that our function of the same name wins over EAL's.
fn quicken_eal(library_dir: &Path, out: &Path) {
    let to = out.join(format!("lib{QUICK_EAL}.a"));
    objcopy(
        &["--weaken-symbol=get_tsc_freq".into()],
        &library_dir.join("librte_eal.a"),
        &to,
    );
}

/// Copies the archive of net_memif to `out` with the guarded calls renamed. The other uses of
/// `rte_intr_instance_free` are for handles that no handler was registered for, which the guard passes on.
fn guard_memif(library_dir: &Path, out: &Path) {
    let renamed = GUARDED_CALLS
        .iter()
        .map(|call| format!("--redefine-sym=rte_{call}=rl_{call}"));
    objcopy(
        &renamed.collect::<Vec<_>>(),
        &library_dir.join("librte_net_memif.a"),
        &out.join(format!("lib{GUARDED_MEMIF}.a")),
    );
}

fn objcopy(options: &[String], from: &Path, to: &Path) {
    let status = Command::new("objcopy")
        .args(options)
        .arg(from)
        .arg(to)
        .status()
        .unwrap_or_else(|e| panic!("cannot run objcopy (Debian: apt-get install binutils): {e}"));
    assert!(
        status.success(),
        "objcopy failed on {}; is libdpdk-dev complete?",
        from.display()
    );
}

fn main() {
    for file in ["wrapper.h", "wrapper.c", "memif_guard.c", "tsc.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|e| {
            panic!("libdpdk 22.11 or later is needed (Debian: apt-get install libdpdk-dev): {e}")
        });
    let flags = other_flags();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    compile_wrapper(&dpdk.include_paths, &flags);
    generate_bindings(&dpdk.include_paths, &flags, &out);

    let library_dir =
        pkg_config::get_variable("libdpdk", "libdir").unwrap_or_else(|_| "/usr/lib".into());
    println!("cargo:rustc-link-search=native={library_dir}");
    if env::var_os("CARGO_FEATURE_SHARED").is_some() {
        link_shared(Path::new(&library_dir));
    } else {
        link_static(Path::new(&library_dir), &out);
    }
}

/// The compiler flags of libdpdk that are neither include paths nor libraries (`-include rte_config.h`, `-march=…`).
/// The pkg-config crate drops them.
fn other_flags() -> Vec<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(&program)
        .args(["--cflags-only-other", "libdpdk"])
        .output()
        .unwrap_or_else(|e| panic!("cannot run {}: {e}", program.to_string_lossy()));
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn compile_wrapper(include: &[PathBuf], flags: &[String]) {
    let mut c = cc::Build::new();
    c.file("wrapper.c")
        .file("memif_guard.c")
        .file("tsc.c")
        .includes(include)
        .opt_level(3)
        .warnings(false);
    for flag in flags {
        c.flag(flag);
    }
    c.compile("roceline_dpdk_wrapper");
}

fn generate_bindings(include: &[PathBuf], flags: &[String], out: &Path) {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(include.iter().map(|p| format!("-I{}", p.display())))
        .clang_args(flags)
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("a Rust version bindgen knows"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .layout_tests(false)
        .generate_comments(false)
        .derive_debug(false)
        .prepend_enum_name(false)
        // Packed and over-aligned structs with bit fields that bindgen cannot lay out; none is looked into.
        .opaque_type("rte_flow_.*|rte_arp_.*|rte_l2tpv2_.*|rte_gtp_psc_.*|rte_mbuf|rte_mempool")
        .allowlist_type("rl_.*|rte_eth_fp_ops|rte_eth_stats|rte_ether_addr|rte_mbuf|rte_mempool")
        .allowlist_var("RL_.*|RTE_PKTMBUF_HEADROOM|RTE_MAX_LCORE|rte_eth_fp_ops")
        .allowlist_var("RTE_MEMPOOL_CACHE_MAX_SIZE|SOCKET_ID_ANY");
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    builder
        .generate()
        .unwrap_or_else(|e| {
            panic!("bindgen failed (it needs libclang; Debian: apt-get install libclang-dev): {e}")
        })
        .write_to_file(out.join("bindings.rs"))
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));
}

fn link_shared(library_dir: &Path) {
    for library in SHARED {
        if library_dir.join(format!("librte_{library}.so")).exists() {
            println!("cargo:rustc-link-lib=rte_{library}");
        }
    }
}

fn link_static(library_dir: &Path, out: &Path) {
    guard_memif(library_dir, out);
    quicken_eal(library_dir, out);
    println!("cargo:rustc-link-search=native={}", out.display());
    // A driver or library that this release of DPDK does not have is not needed by the others.
    let there = |name: &&&str| library_dir.join(format!("librte_{name}.a")).exists();
    for library in DRIVERS.iter().chain(LIBRARIES).filter(there) {
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=rte_{library}");
    }
    for library in [GUARDED_MEMIF, QUICK_EAL] {
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={library}");
    }
    for library in SYSTEM {
        println!("cargo:rustc-link-lib={library}");
    }
}
