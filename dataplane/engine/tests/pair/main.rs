//! Two engines under virtual time: random programs over bad links and slow memory, and the rules of the
//! transport one by one.

mod atomic_model;
#[path = "../captures/mod.rs"]
mod captured;
mod captures;
mod datagrams;
mod hostile;
mod ledger;
mod link;
mod memory;
mod node;
mod random;
mod rng;
mod rules;
mod uc;
mod workload;
mod world;
