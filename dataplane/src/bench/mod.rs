//! What benchmarks and tests of the datapath drive it with.

pub mod pair;
pub mod producer;

pub use pair::{Pair, Side};
pub use producer::{Producer, ProducerQp};
