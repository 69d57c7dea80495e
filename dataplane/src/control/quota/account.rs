//! Who has how much: the counts of each program, user and device, and the account of a context that charges all three.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roceline_engine::Owner;

use super::{Level, Limits, Machine, Quotas, Resource, Turn, Turns, of_a_device, of_a_program};
use crate::control::error::CommandError;
use crate::control::limits::DeviceLimits;
use crate::control::seqpacket::Peer;
use crate::memory::ProgramLock;

/// Requests that a program may have under way with the lcore at once.
const REQUESTS: usize = 8;

/// Devices that a program may be opening or closing at once. Each takes some hundred microseconds of a control thread, and programs
/// share the CPU with those: many at once would take it from a program that only wants to poll.
const OPENINGS: usize = 1;

/// A program: its process, or, where its number is not seen, its user.
type ProgramKey = (i32, u32);

/// What somebody has at the moment.
#[derive(Debug, Default)]
struct Usage([AtomicU64; Resource::COUNT]);

impl Usage {
    /// Adds `amount` if that makes no more than `most`; else gives what is there.
    fn take(&self, resource: Resource, amount: u64, most: u64) -> Result<(), u64> {
        let more = |used: u64| used.checked_add(amount).filter(|sum| *sum <= most);
        self.0[resource as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map(|_| ())
    }

    fn give(&self, resource: Resource, amount: u64) {
        // An account gives back no more than it took, so this does not wrap.
        self.0[resource as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize].load(Ordering::Relaxed)
    }

    fn all(&self) -> [u64; Resource::COUNT] {
        Resource::ALL.map(|resource| self.get(resource))
    }
}

/// A program with what it has of one device.
#[derive(Debug)]
struct Program {
    usage: Usage,
    owner: Owner,
    uid: u32,
    number: u32,
    lock: Arc<ProgramLock>,
    turns: Turns,
    openings: Turns,
}

/// Those of one device, each with the number of its open accounts.
#[derive(Debug, Default)]
struct Book {
    programs: HashMap<ProgramKey, (Arc<Program>, usize)>,
    users: HashMap<u32, (Arc<Usage>, usize)>,
    all: Arc<Usage>,
    /// Which numbers of programs are in use.
    numbers: Vec<bool>,
}

/// The smallest number that no program has, which is in use from now on.
fn free_number(numbers: &mut Vec<bool>) -> u32 {
    let number = numbers.iter().position(|used| !used);
    let number = number.unwrap_or(numbers.len());
    match numbers.get_mut(number) {
        Some(used) => *used = true,
        None => numbers.push(true),
    }
    number as u32
}

/// What programs have of all devices.
#[derive(Debug)]
pub struct Accounts {
    books: Mutex<Vec<Book>>,
    limits: [Limits; 3],
}

/// What a program has of a device.
#[derive(Clone, Debug)]
pub struct ProgramUse {
    /// Index of the NIC.
    pub nic: u32,
    /// Its process.
    pub owner: Owner,
    /// Its user.
    pub uid: u32,
    /// By [`Resource`].
    pub used: [u64; Resource::COUNT],
}

impl Accounts {
    /// Nobody has anything of `devices` devices yet.
    pub fn new(
        devices: usize,
        limits: &DeviceLimits,
        quotas: &Quotas,
        machine: &Machine,
    ) -> Accounts {
        let mut books = Vec::new();
        books.resize_with(devices, Book::default);
        // What the machine has is for all devices.
        let share = devices.max(1) as u64;
        let machine = &Machine {
            memory: machine.memory / share,
            mappings: machine.mappings / share,
            descriptors: machine.descriptors / share,
        };
        let device = |resource| of_a_device(limits, machine, resource);
        Accounts {
            books: Mutex::new(books),
            limits: [
                Limits::new(&quotas.program, |r| of_a_program(limits, r).min(device(r))),
                Limits::new(&quotas.user, device),
                Limits::new(&quotas.device, device),
            ],
        }
    }

    fn books(&self) -> MutexGuard<'_, Vec<Book>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of a level.
    pub fn limits(&self, level: Level) -> &Limits {
        &self.limits[level as usize]
    }

    /// An account for a context of `peer` on NIC `nic`, which must exist. `owner` is for people.
    pub fn open(self: &Arc<Self>, nic: u32, peer: Peer, owner: Owner) -> Account {
        let key = peer.program();
        let mut books = self.books();
        let Book {
            programs,
            users,
            all,
            numbers,
        } = &mut books[nic as usize];
        let program = enter(programs, key, || Program {
            usage: Usage::default(),
            owner,
            uid: peer.uid,
            number: free_number(numbers),
            lock: Arc::default(),
            turns: Turns::new(REQUESTS),
            openings: Turns::new(OPENINGS),
        });
        let user = enter(users, peer.uid, Usage::default);
        let device = Arc::clone(all);
        drop(books);
        Account {
            accounts: Arc::clone(self),
            nic,
            key,
            uid: peer.uid,
            program,
            user,
            device,
            own: Usage::default(),
        }
    }

    /// What each program has, by device and process.
    pub fn programs(&self) -> Vec<ProgramUse> {
        let books = self.books();
        let mut all: Vec<ProgramUse> = (0..)
            .zip(books.iter())
            .flat_map(|(nic, book)| {
                book.programs.values().map(move |(program, _)| ProgramUse {
                    nic,
                    owner: program.owner,
                    uid: program.uid,
                    used: program.usage.all(),
                })
            })
            .collect();
        all.sort_by_key(|program| (program.owner.pid, program.uid, program.nic));
        all
    }

    /// What all together have of a device.
    pub fn device(&self, nic: u32) -> [u64; Resource::COUNT] {
        self.books()[nic as usize].all.all()
    }
}

/// What one context has, within what its program has. All of it is given back when this goes.
#[derive(Debug)]
pub struct Account {
    accounts: Arc<Accounts>,
    nic: u32,
    key: ProgramKey,
    uid: u32,
    program: Arc<Program>,
    user: Arc<Usage>,
    device: Arc<Usage>,
    own: Usage,
}

impl Account {
    /// Number of the program among those that use the device: small, and another program's after this one has gone.
    pub fn program(&self) -> u32 {
        self.program.number
    }

    /// The user that the program runs as.
    pub fn user(&self) -> u32 {
        self.uid
    }

    /// Waits until the program has fewer requests under way with the lcore than it may have.
    pub fn turn(&self) -> Turn<'_> {
        self.program.turns.take()
    }

    /// Waits until no other context of the program is being opened or closed.
    pub fn opening(&self) -> Turn<'_> {
        self.program.openings.take()
    }

    /// The lock under which the program's memory is changed by atomics.
    pub fn lock(&self) -> Arc<ProgramLock> {
        Arc::clone(&self.program.lock)
    }

    /// Takes `amount` of something, to be kept once the object exists.
    pub fn charge(
        self: &Arc<Self>,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, CommandError> {
        self.take(resource, amount)?;
        Ok(Charge {
            account: Arc::clone(self),
            resource,
            amount,
        })
    }

    /// Takes `amount` of something for good.
    pub fn take(&self, resource: Resource, amount: u64) -> Result<(), CommandError> {
        // All together first: if the device is full, nobody's share is the reason.
        let counts = [
            (Level::Device, &*self.device),
            (Level::User, &*self.user),
            (Level::Program, &self.program.usage),
        ];
        for (i, (level, usage)) in counts.iter().enumerate() {
            let limits = self.accounts.limits(*level);
            let limit = limits.most(resource);
            if let Err(used) = usage.take(resource, amount, limit) {
                for (_, usage) in &counts[..i] {
                    usage.give(resource, amount);
                }
                return Err(CommandError::Share {
                    resource,
                    level: *level,
                    uid: self.uid,
                    used,
                    amount,
                    limit,
                    set: limits.is_set(resource),
                });
            }
        }
        self.own.0[resource as usize].fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    /// Gives `amount` back; no more than was taken.
    pub fn give(&self, resource: Resource, amount: u64) {
        let own = self.own.0[resource as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |own| {
                Some(own.saturating_sub(amount))
            })
            .unwrap_or_default();
        let amount = amount.min(own);
        for usage in [&self.program.usage, &*self.user, &*self.device] {
            usage.give(resource, amount);
        }
    }

    /// What this context has.
    pub fn used(&self, resource: Resource) -> u64 {
        self.own.get(resource)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for resource in Resource::ALL {
            self.give(resource, self.used(resource));
        }
        let mut books = self.accounts.books();
        let book = &mut books[self.nic as usize];
        if leave(&mut book.programs, &self.key) {
            if let Some(used) = book.numbers.get_mut(self.program.number as usize) {
                *used = false;
            }
        }
        leave(&mut book.users, &self.uid);
    }
}

/// One more account of what is counted under `key`.
fn enter<K: Hash + Eq, V>(
    map: &mut HashMap<K, (Arc<V>, usize)>,
    key: K,
    new: impl FnOnce() -> V,
) -> Arc<V> {
    let (value, accounts) = map.entry(key).or_insert_with(|| (Arc::new(new()), 0));
    *accounts += 1;
    Arc::clone(value)
}

/// One less. True if it was the last.
fn leave<K: Hash + Eq, V>(map: &mut HashMap<K, (Arc<V>, usize)>, key: &K) -> bool {
    let Some((_, accounts)) = map.get_mut(key) else {
        return false;
    };
    *accounts -= 1;
    let last = *accounts == 0;
    if last {
        map.remove(key);
    }
    last
}

/// What was taken for an object that does not exist yet. Given back when dropped.
#[derive(Debug)]
#[must_use = "a charge that is not kept is given back"]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    amount: u64,
}

impl Charge {
    /// The object exists: what it takes is given back by [`Account::give`], or with the whole account.
    pub fn keep(mut self) {
        self.amount = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.account.give(self.resource, self.amount);
        }
    }
}
