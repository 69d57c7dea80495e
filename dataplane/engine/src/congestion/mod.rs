//! Congestion: what keeps senders from sending more than the network, or the other end, takes.
//!
//! Pauses by priority between the two ends of a link are [`pfc`]'s, and which priority a frame has is [`priority`]'s.

pub mod pfc;
pub mod priority;
