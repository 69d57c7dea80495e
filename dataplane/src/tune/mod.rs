//! `roceline tune`: which sizes and distances make a workload fastest on this machine.
//!
//! In flow a configuration and workloads, out flow a better setting of the configuration with what it gains and how sure that
//! is, and the configuration with it. Parts: [`workload`], what is run; [`space`], what may be changed; [`measure`], NICs and
//! programs in this process that run a workload with a setting; [`search`], which settings are measured against each other,
//! and when one counts as better, which knows nothing of NICs and is tested with made-up figures; [`gain`], its
//! statistics; [`write`], the configuration's text with other values.

pub mod gain;
pub mod latency;
pub mod measure;
pub mod search;
pub mod space;
pub mod workload;
pub mod write;
