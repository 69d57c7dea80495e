//! The verbs objects and their vocabulary: states, attributes, work requests, completions, events.
//! Numeric values are those of `infiniband/verbs.h`.

mod attr;
mod work;

pub use attr::*;
pub use work::*;
