//! What benchmarks and tests of the datapath drive it with, and the measurements of `roceline bench`.

pub mod chart;
pub mod datapath;
pub mod end;
pub mod far;
pub mod goals;
pub mod limit;
pub mod load;
pub mod machine;
pub mod memory;
pub mod one_core;
pub mod pair;
pub mod ping_pong;
pub mod ports;
pub mod producer;
pub mod resident;
pub mod results;
pub mod stats;
pub mod two_core;

pub use pair::{Pair, Side};
pub use producer::{Producer, ProducerQp};
