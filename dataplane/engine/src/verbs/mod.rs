//! The verbs objects and their vocabulary: states, attributes, work requests, completions, events.
//! Numeric values are those of `infiniband/verbs.h`.

mod attr;
mod fault;
mod work;

pub use attr::*;
pub use fault::{FAULTS, Fault, FaultRow};
pub use work::*;
