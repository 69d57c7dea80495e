//! The poll loop and its stages.

pub mod message;
