//! `[limits]`: how much programs, users and all together may have. What a number means is
//! [`Resource`](crate::control::quota::Resource)'s to say; here they are only read and held against what a device can do.

use toml::Spanned;

use super::check::Checker;
use super::file::{self, NumberOrWord};
use super::{ConfigError, Limits};
use crate::control::DeviceLimits;
use crate::control::quota::{Amounts, Machine, Quotas, Resource, of_a_device};
use crate::impair::units;

/// Send requests of a program that one poll reads, unless the configuration says otherwise.
pub(crate) const REQUESTS_PER_POLL: u32 = 64;

impl Checker<'_> {
    pub(super) fn limits(&self, limits: file::Limits) -> Result<Limits, ConfigError> {
        let requests_per_poll = match &limits.requests_per_poll {
            // Fewer than a queue pair's turn would be no turn at all.
            Some(value) => self.number("requests_per_poll", value, 16..=4096)?,
            None => REQUESTS_PER_POLL,
        };
        let quotas = Quotas {
            program: self.amounts(&limits.program)?,
            user: self.amounts(&limits.user)?,
            device: self.amounts(&limits.device)?,
        };
        Ok(Limits {
            requests_per_poll,
            quotas,
        })
    }

    fn amounts(&self, file: &file::Amounts) -> Result<Amounts, ConfigError> {
        let mut amounts = Amounts::default();
        for resource in Resource::ALL {
            if let Some(value) = of(file, resource) {
                amounts.set(resource, Some(self.amount(resource, value)?));
            }
        }
        Ok(amounts)
    }

    fn amount(
        &self,
        resource: Resource,
        value: &Spanned<NumberOrWord>,
    ) -> Result<u64, ConfigError> {
        let bad = |text: &str, problem: String| {
            Err(self.bad(resource.key(), text, value.span(), problem))
        };
        let most = table(resource);
        let (text, amount) = match value.as_ref() {
            NumberOrWord::Number(number) => (number.to_string(), u64::try_from(*number).ok()),
            NumberOrWord::Word(word) if resource.is_bytes() => {
                (format!("{word:?}"), units::large_bytes(word))
            }
            NumberOrWord::Word(word) => (format!("{word:?}"), None),
        };
        match amount {
            Some(amount) if (1..=most).contains(&amount) => Ok(amount),
            _ if resource.is_bytes() => bad(
                &text,
                "must be a number of bytes from 1 on, such as \"64GiB\"".into(),
            ),
            _ => bad(&text, format!("must be a whole number from 1 to {most}")),
        }
    }
}

/// The largest number that means anything: the daemon's tables have no more. What the machine has bounds it further when
/// the daemon runs.
fn table(resource: Resource) -> u64 {
    let boundless = Machine {
        memory: u64::MAX,
        mappings: u64::MAX,
        descriptors: u64::MAX,
    };
    let most = of_a_device(&DeviceLimits::default(), &boundless, resource);
    most.min(i64::MAX as u64)
}

fn of(file: &file::Amounts, resource: Resource) -> Option<&Spanned<NumberOrWord>> {
    match resource {
        Resource::Contexts => &file.contexts,
        Resource::Pds => &file.pds,
        Resource::Mrs => &file.mrs,
        Resource::Registered => &file.registered,
        Resource::Cqs => &file.cqs,
        Resource::Cqes => &file.cqes,
        Resource::Qps => &file.qps,
        Resource::Srqs => &file.srqs,
        Resource::Ahs => &file.ahs,
        Resource::Mws => &file.mws,
        Resource::Channels => &file.channels,
        Resource::MemoryObjects => &file.memory_objects,
        Resource::Mappings => &file.mappings,
        Resource::QueueMemory => &file.queue_memory,
        Resource::Mcasts => &file.mcasts,
    }
    .as_ref()
}
