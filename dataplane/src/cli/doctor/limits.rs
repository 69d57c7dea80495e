//! What this version does not do; the short form of `docs/limits.md`.

use serde::Serialize;

/// One limit.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limit {
    pub what: &'static str,
    /// What happens, and why.
    pub why: &'static str,
    /// What to do instead, if there is something.
    pub instead: &'static str,
}

pub(super) const UNSUPPORTED: &[Limit] = &[
    Limit {
        what: "static programs, Go",
        why: "nothing can be preloaded into a program without dynamic loader",
        instead: "link dynamically; a Go program that uses cgo is",
    },
    Limit {
        what: "set-id programs",
        why: "the loader ignores LD_PRELOAD for them",
        instead: "run a copy without the bit",
    },
    Limit {
        what: "bundled libibverbs",
        why: "a renamed copy (some Python wheels) gives way to the system's; before glibc 2.35 not by itself",
        instead: "install libibverbs; before glibc 2.35 set ROCELINE_WHEELS=always",
    },
    Limit {
        what: "XRC",
        why: "ibv_create_qp fails with EOPNOTSUPP",
        instead: "",
    },
    Limit {
        what: "rdma_cm",
        why: "no connection manager: perftest -R, rping and rsockets fail",
        instead: "connect as perftest does without -R",
    },
    Limit {
        what: "lcores of a context",
        why: "all that a program makes of one open device is served by one polling thread",
        instead: "open the device more than once, with lcore = [0, 1] in [[nic]]",
    },
];
