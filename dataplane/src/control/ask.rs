//! Asking lcores, one or all that a NIC has, and waiting for their answers.
//!
//! In flow commands of sessions; out flow replies, or why there is none. What is changed on several lcores is changed on all of
//! them or on none ([`Shared::change`]): an lcore serves its requests in their order, so one that does not answer in time is sent
//! what takes the change back, and serves it right behind the change, whenever that is.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::SendError;
use super::error::CommandError;
use super::server::Shared;
use crate::lcore::message::{Command, ContextId, Reply, Request};

/// An lcore answers between two bursts, or when the last memory operation of an object has ended. This long
/// means that something is wrong with it.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a part of a change is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// How it is to be.
    Make,
    /// How it was. One that has not made the change takes this as well.
    TakeBack,
}

impl Shared {
    /// Sends a command about a context to the lcore that owns it and waits for its answer.
    pub fn ask_owner(&self, context: ContextId, command: Command) -> Result<Reply, CommandError> {
        self.ask(context.lcore(), context, command)
    }

    /// Sends a command that needs no context to lcore `lcore` and waits for its answer.
    pub fn ask_lcore(&self, lcore: u32, command: Command) -> Result<Reply, CommandError> {
        self.ask(lcore, ContextId::NONE, command)
    }

    /// Sends a command about a context to the lcore that owns it, behind all that was sent to it before, and does not wait.
    pub fn tell_owner(&self, context: ContextId, command: Command) {
        self.tell(context.lcore(), context, command);
    }

    /// The same for a command that needs no context.
    pub fn tell_lcore(&self, lcore: u32, command: Command) {
        self.tell(lcore, ContextId::NONE, command);
    }

    fn tell(&self, lcore: u32, context: ContextId, command: Command) {
        let name = name(&command);
        let (reply, _) = sync_channel(1);
        let request = Request {
            context,
            command,
            reply,
        };
        if let Err(error) = self.lcores.send(lcore, request) {
            tracing::warn!(lcore, command = name, %error, "an lcore could not be told");
        }
    }

    /// Sends a command about NIC `nic` to each lcore that serves it, one after the other; the answers, in this order.
    /// The first error ends it: for what changes nothing.
    pub fn ask_nic(
        &self,
        nic: u32,
        mut command: impl FnMut() -> Command,
    ) -> Result<Vec<Reply>, CommandError> {
        let lcores = self.lcores.serving(nic).iter();
        lcores
            .map(|&lcore| self.ask_lcore(lcore, command()))
            .collect()
    }

    /// Changes something on several lcores, given by their numbers with what `command` needs to know: on all of them, or, if one
    /// fails, on none.
    pub fn change<T>(
        &self,
        parts: &[(u32, T)],
        command: impl Fn(&T, Step) -> Command,
    ) -> Result<(), CommandError> {
        for (at, (lcore, what)) in parts.iter().enumerate() {
            let Err(error) = self.ask_lcore(*lcore, command(what, Step::Make)) else {
                continue;
            };
            // It may have made a part of it, or make it later.
            self.take_back(*lcore, &error, command(what, Step::TakeBack));
            for (lcore, what) in parts[..at].iter().rev() {
                let back = command(what, Step::TakeBack);
                if let Err(error) = self.ask_lcore(*lcore, back) {
                    tracing::warn!(lcore, %error, "a change that failed could not be taken back everywhere: make it anew");
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Sends `back`, which takes back what lcore `lcore` did not make for `error`. One that did not answer is not waited for again.
    pub fn take_back(&self, lcore: u32, error: &CommandError, back: Command) {
        if matches!(error, CommandError::NoAnswer(..)) {
            return self.tell_lcore(lcore, back);
        }
        // What it never made it may well refuse to take back.
        let _ = self.ask_lcore(lcore, back);
    }

    fn ask(&self, lcore: u32, context: ContextId, command: Command) -> Result<Reply, CommandError> {
        let name = name(&command);
        let (reply, answer) = sync_channel(1);
        self.lcores.send(
            lcore,
            Request {
                context,
                command,
                reply,
            },
        )?;
        match answer.recv_timeout(self.reply_timeout) {
            Ok(Reply::Failed { errno, reason }) => Err(CommandError::Refused { errno, reason }),
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => {
                Err(CommandError::NoAnswer(name, self.reply_timeout.as_secs()))
            }
            // The lcore dropped the request: it has stopped.
            Err(RecvTimeoutError::Disconnected) => Err(SendError.into()),
        }
    }

    /// All lcores, by their numbers.
    pub fn all_lcores(&self) -> std::ops::Range<u32> {
        0..self.lcores.count()
    }

    /// The lcores that serve each of these NICs, with what belongs to it.
    pub fn parts<T: Clone>(&self, nics: impl IntoIterator<Item = (u32, T)>) -> Vec<(u32, T)> {
        let of_nic = |(nic, what): (u32, T)| {
            let lcores = self.lcores.serving(nic).iter();
            lcores.map(move |&lcore| (lcore, what.clone()))
        };
        nics.into_iter().flat_map(of_nic).collect()
    }
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::Open(_) => "Open",
        Command::Close => "Close",
        Command::AllocPd => "AllocPd",
        Command::DeallocPd { .. } => "DeallocPd",
        Command::RegMr { .. } => "RegMr",
        Command::DeregMr { .. } => "DeregMr",
        Command::AllocMw { .. } => "AllocMw",
        Command::DeallocMw { .. } => "DeallocMw",
        Command::SetReach { .. } => "SetReach",
        Command::AddChannel(_) => "AddChannel",
        Command::RemoveChannel { .. } => "RemoveChannel",
        Command::CreateCq { .. } => "CreateCq",
        Command::ResizeCq { .. } => "ResizeCq",
        Command::SetLink { .. } => "SetLink",
        Command::SetCongestion { .. } => "SetCongestion",
        Command::SetGids { .. } => "SetGids",
        Command::GidsChanged { .. } => "GidsChanged",
        Command::GidsHeld { .. } => "GidsHeld",
        Command::DestroyCq { .. } => "DestroyCq",
        Command::CreateQp { .. } => "CreateQp",
        Command::ModifyQp { .. } => "ModifyQp",
        Command::QueryQp { .. } => "QueryQp",
        Command::DestroyQp { .. } => "DestroyQp",
        Command::CreateSrq { .. } => "CreateSrq",
        Command::ModifySrq { .. } => "ModifySrq",
        Command::QuerySrq { .. } => "QuerySrq",
        Command::DestroySrq { .. } => "DestroySrq",
        Command::CreateAh { .. } => "CreateAh",
        Command::DestroyAh { .. } => "DestroyAh",
        Command::AttachMcast { .. } => "AttachMcast",
        Command::DetachMcast { .. } => "DetachMcast",
        Command::Snapshot(_) => "Snapshot",
        Command::Impair(_) => "Impair",
        Command::Counters => "Counters",
        Command::Usage { .. } => "Usage",
        Command::Fabric => "Fabric",
        Command::PostMortems => "PostMortems",
        Command::AddTap(_) => "AddTap",
        Command::RemoveTap(_) => "RemoveTap",
        Command::Fatal => "Fatal",
        Command::Inject { .. } => "Inject",
        Command::Transmit { .. } => "Transmit",
        Command::PeerMoved { .. } => "PeerMoved",
    }
}

#[cfg(test)]
mod tests;
