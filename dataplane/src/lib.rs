//! The NIC: everything between DPDK ports and programs. See `docs/architecture.md`.

pub mod addresses;
pub mod bench;
pub mod capture;
pub mod cli;
pub mod config;
pub mod congestion;
pub mod control;
pub mod daemon;
pub mod fabric;
mod failures;
#[cfg(test)]
mod fuzzing;
pub mod impair;
pub mod lcore;
pub mod memory;
pub mod neighbour;
pub mod nic;
pub mod palette;
pub mod port;
pub mod scenario;
pub mod sim;
pub mod supervisor;
pub mod telemetry;
pub mod tune;
pub mod watchdog;
