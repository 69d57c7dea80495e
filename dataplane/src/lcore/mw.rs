//! Memory windows: made and freed for the context that asks. Send requests bind them, which is the engine's.

use std::collections::HashMap;

use roceline_engine::Engine;
use roceline_engine::memory::{AccessError, MwInfo, WindowType};

use super::context::ContextKey;

/// A window.
#[derive(Clone, Copy, Debug)]
struct Mw {
    context: ContextKey,
    /// PD handle.
    pd: u32,
}

/// The windows of a NIC by handle, which is the engine's index.
#[derive(Debug, Default)]
pub struct Windows(HashMap<u32, Mw>);

impl Windows {
    /// Makes a window.
    pub fn alloc(
        &mut self,
        engine: &mut Engine,
        context: ContextKey,
        pd: u32,
        kind: WindowType,
    ) -> Result<MwInfo, AccessError> {
        let made = engine.alloc_window(pd, kind)?;
        self.0.insert(made.index, Mw { context, pd });
        Ok(made)
    }

    /// Frees a window of a context, bound or not; its PD. `None` if it has no such window.
    pub fn dealloc(
        &mut self,
        engine: &mut Engine,
        context: ContextKey,
        handle: u32,
    ) -> Option<u32> {
        let mw = self.0.get(&handle).filter(|mw| mw.context == context)?;
        let pd = mw.pd;
        engine.dealloc_window(handle);
        self.0.remove(&handle);
        Some(pd)
    }
}
