//! What a NIC's settings are now. In: changes, one at a time. Out: the settings, to whoever asks. The lcore has a copy of
//! its own, which only a message changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Settings;

/// A NIC's settings. Clones share them.
#[derive(Clone, Debug)]
pub struct Live(Arc<Mutex<State>>);

/// Settings as configured, and as they are.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// What the configuration says.
    pub configured: Settings,
    /// What is in force.
    pub now: Settings,
}

impl Default for Live {
    fn default() -> Live {
        Live::new(Settings::default())
    }
}

impl Live {
    /// As configured.
    pub fn new(configured: Settings) -> Live {
        Live(Arc::new(Mutex::new(State {
            configured,
            now: configured,
        })))
    }

    /// Holds them: nobody else changes them meanwhile.
    pub fn hold(&self) -> MutexGuard<'_, State> {
        // A change is stored whole, or not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force.
    pub fn now(&self) -> Settings {
        self.hold().now
    }
}
