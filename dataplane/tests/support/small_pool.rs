//! EAL without huge pages, and a pool of mbufs whose return a test counts. EAL starts once per process.

use std::sync::Arc;

use roceline::port::{Eal, EalConfig, Huge, Mempool, MempoolConfig};

/// Mbufs of the pool.
pub const MBUFS: u32 = 4096;

/// Both.
pub fn start() -> (Eal, Arc<Mempool>) {
    let config = EalConfig {
        huge: Huge::Never,
        mem_mb: 64,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let pool = MempoolConfig {
        count: MBUFS,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, &pool).unwrap();
    (eal, pool)
}
