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

/// The libraries that these need.
const LIBRARIES: &[&str] = &[
    "cryptodev",
    "dmadev",
    "eal",
    "ethdev",
    "gso",
    "hash",
    "kvargs",
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
const SHARED: &[&str] = &[
    "rte_eal",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_kvargs",
    "rte_telemetry",
    "rte_bus_vdev",
    "rte_net_ring",
];

/// Functions, types and constants that the bindings hold. `docs` of the crate say which DPDK releases have them.
const FUNCTIONS: &[&str] = &[
    "rl_.*",
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_eal_has_hugepages",
    "rte_strerror",
    "rte_version",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_free_bulk",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_rx_intr_ctl_q_get_fd",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_rx_intr_disable",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_stats_get",
    "rte_eth_from_rings",
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

/// Copies the archive of net_memif to `out` with the guarded calls renamed. Its two uses of
/// `rte_intr_instance_free` outside the socket code free handles that no handler was registered for, which the
/// guard passes on.
fn guard_memif(library_dir: &Path, out: &Path) {
    let from = library_dir.join("librte_net_memif.a");
    let mut objcopy = Command::new("objcopy");
    for call in GUARDED_CALLS {
        objcopy.arg(format!("--redefine-sym=rte_{call}=rl_{call}"));
    }
    let status = objcopy
        .arg(&from)
        .arg(out.join(format!("lib{GUARDED_MEMIF}.a")))
        .status()
        .unwrap_or_else(|e| panic!("cannot run objcopy (Debian: apt-get install binutils): {e}"));
    assert!(
        status.success(),
        "objcopy failed on {}; is libdpdk-dev complete?",
        from.display()
    );
}

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-changed=wrapper.c");
    println!("cargo:rerun-if-changed=memif_guard.c");

    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|e| {
            panic!("libdpdk 22.11 or later is needed (Debian: apt-get install libdpdk-dev): {e}")
        });

    // pkg-config's Rust crate drops these two of libdpdk's own flags.
    let flags = ["-include", "rte_config.h", "-march=corei7"];

    let mut c = cc::Build::new();
    c.file("wrapper.c")
        .file("memif_guard.c")
        .includes(&dpdk.include_paths)
        .opt_level(3)
        .warnings(false);
    flags.iter().for_each(|f| {
        c.flag(f);
    });
    c.compile("roceline_dpdk_wrapper");

    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(
            dpdk.include_paths
                .iter()
                .map(|p| format!("-I{}", p.display())),
        )
        .clang_args(flags)
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("a Rust version bindgen knows"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .layout_tests(false)
        .generate_comments(false)
        .derive_debug(false)
        .prepend_enum_name(false)
        // Packed and over-aligned structs with bit fields that bindgen cannot lay out; none is looked into.
        .opaque_type("rte_flow_.*|rte_arp_.*|rte_l2tpv2_.*|rte_gtp_psc_.*|rte_mbuf|rte_mempool")
        .opaque_type("rte_eth_dev_info|rte_eth_conf")
        .allowlist_type("rl_.*")
        .allowlist_type("rte_eth_fp_ops|rte_eth_stats|rte_ether_addr|rte_mbuf|rte_mempool|rte_ring")
        .allowlist_var("RL_.*|RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS|RTE_MAX_LCORE|rte_eth_fp_ops")
        .allowlist_var("RTE_MEMPOOL_CACHE_MAX_SIZE|RTE_ETH_NAME_MAX_LEN|SOCKET_ID_ANY");
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    builder
        .generate()
        .unwrap_or_else(|e| {
            panic!("bindgen failed (it needs libclang; Debian: apt-get install libclang-dev): {e}")
        })
        .write_to_file(out.join("bindings.rs"))
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));

    let library_dir =
        pkg_config::get_variable("libdpdk", "libdir").unwrap_or_else(|_| "/usr/lib".into());
    println!("cargo:rustc-link-search=native={library_dir}");
    if env::var_os("CARGO_FEATURE_SHARED").is_some() {
        for library in SHARED {
            println!("cargo:rustc-link-lib={library}");
        }
    } else {
        guard_memif(Path::new(&library_dir), &out);
        println!("cargo:rustc-link-search=native={}", out.display());
        for library in DRIVERS.iter().chain(LIBRARIES) {
            println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=rte_{library}");
        }
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={GUARDED_MEMIF}");
        for library in SYSTEM {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}
