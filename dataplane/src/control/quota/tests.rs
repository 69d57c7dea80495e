use std::sync::Arc;

use roceline_engine::Owner;

use super::*;
use crate::control::error::CommandError;
use crate::control::queue_memory::Shape;
use crate::control::seqpacket::Peer;

const MACHINE: Machine = Machine {
    memory: 1 << 41,
    mappings: 65530,
    descriptors: 1 << 20,
};

fn accounts(program: &[(Resource, u64)], user: &[(Resource, u64)]) -> Arc<Accounts> {
    let set = |list: &[(Resource, u64)]| {
        let mut amounts = Amounts::default();
        for (resource, value) in list {
            amounts.set(*resource, Some(*value));
        }
        amounts
    };
    let quotas = Quotas {
        program: set(program),
        user: set(user),
        device: Amounts::default(),
    };
    Arc::new(Accounts::new(
        2,
        &DeviceLimits::default(),
        &quotas,
        &MACHINE,
    ))
}

/// Accounts in which each program may have so much of something.
pub(crate) fn with_limit(resource: Resource, most: u64) -> Arc<Accounts> {
    accounts(&[(resource, most)], &[])
}

/// An account of the program with process number `pid`, of user 1000, on the first device.
pub(crate) fn account_of(accounts: &Arc<Accounts>, pid: i32) -> Account {
    account(accounts, 0, pid, 1000)
}

fn account(accounts: &Arc<Accounts>, nic: u32, pid: i32, uid: u32) -> Account {
    let owner = Owner {
        pid: pid as u32,
        name: *b"program\0\0\0\0\0\0\0\0\0",
    };
    accounts.open(nic, Peer { pid, uid }, owner)
}

#[test]
fn a_programs_contexts_share_what_it_may_have_and_others_have_their_own() {
    let accounts = with_limit(Resource::Qps, 3);
    let (a, b, other) = (
        account_of(&accounts, 1),
        account_of(&accounts, 1),
        account_of(&accounts, 2),
    );
    a.take(Resource::Qps, 2).unwrap();
    b.take(Resource::Qps, 1).unwrap();
    let error = a.take(Resource::Qps, 1).unwrap_err();
    assert_eq!(error.errno(), libc::EAGAIN);
    let text = error.to_string();
    assert!(
        text.contains("3 queue pairs")
            && text.contains("share of 3: raise `qps` in [limits.program]"),
        "{text}"
    );
    other.take(Resource::Qps, 3).unwrap();
    // Limits are of each device.
    let elsewhere = account(&accounts, 1, 1, 1000);
    elsewhere.take(Resource::Qps, 3).unwrap();
    b.give(Resource::Qps, 1);
    a.take(Resource::Qps, 1).unwrap();
    drop(a);
    b.take(Resource::Qps, 3).unwrap();
}

#[test]
fn a_users_programs_share_what_it_may_have() {
    let accounts = accounts(&[], &[(Resource::Registered, 100)]);
    let (a, b) = (account(&accounts, 0, 1, 7), account(&accounts, 0, 2, 7));
    a.take(Resource::Registered, 60).unwrap();
    let error = b.take(Resource::Registered, 41).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "memory");
    assert!(
        error
            .to_string()
            .contains("the programs of user 7 have 60 bytes")
    );
    b.take(Resource::Registered, 40).unwrap();
    account(&accounts, 0, 3, 8)
        .take(Resource::Registered, 100)
        .unwrap();
}

#[test]
fn the_device_is_full_for_everybody_whatever_the_shares() {
    let accounts = accounts(&[], &[]);
    let most = accounts.limits(Level::Device).most(Resource::Qps);
    let (a, b) = (account_of(&accounts, 1), account_of(&accounts, 2));
    a.take(Resource::Qps, most - 1).unwrap();
    b.take(Resource::Qps, 1).unwrap();
    let error = b.take(Resource::Qps, 1).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM);
    assert!(error.to_string().contains("all programs together have"));
    // What was refused is charged nowhere.
    assert_eq!(accounts.device(0)[Resource::Qps as usize], most);
    drop(b);
    a.take(Resource::Qps, 1).unwrap();
}

#[test]
fn what_is_not_made_is_not_charged() {
    let accounts = with_limit(Resource::Pds, 1);
    let account = Arc::new(account_of(&accounts, 1));
    drop(account.charge(Resource::Pds, 1).unwrap());
    account.charge(Resource::Pds, 1).unwrap().keep();
    assert!(account.charge(Resource::Pds, 1).is_err());
    assert_eq!(account.used(Resource::Pds), 1);
    // No more comes back than was taken.
    account.give(Resource::Pds, 5);
    assert_eq!(accounts.device(0)[Resource::Pds as usize], 0);
}

#[test]
fn programs_are_listed_while_they_have_a_context_and_numbered_densely() {
    let accounts = accounts(&[], &[]);
    let first = account_of(&accounts, 10);
    let again = account_of(&accounts, 10);
    let second = account_of(&accounts, 5);
    assert_eq!(first.program(), again.program());
    assert_eq!((first.program(), second.program()), (0, 1));
    again.take(Resource::Cqs, 4).unwrap();
    let pids = || -> Vec<u32> { accounts.programs().iter().map(|p| p.owner.pid).collect() };
    assert_eq!(pids(), [5, 10]);
    assert_eq!(accounts.programs()[1].used[Resource::Cqs as usize], 4);
    drop(first);
    assert_eq!(pids(), [5, 10]);
    drop(again);
    assert_eq!(pids(), [5]);
    assert_eq!(account_of(&accounts, 11).program(), 0, "used again");
}

#[test]
fn processes_without_a_number_are_one_program_for_each_user() {
    let accounts = with_limit(Resource::Qps, 1);
    let hidden = |uid| account(&accounts, 0, 0, uid);
    let (a, b, c) = (hidden(1), hidden(1), hidden(2));
    a.take(Resource::Qps, 1).unwrap();
    assert!(b.take(Resource::Qps, 1).is_err());
    c.take(Resource::Qps, 1).unwrap();
}

#[test]
fn accounts_opened_and_closed_by_many_threads_leave_nothing() {
    let accounts = accounts(&[(Resource::Qps, 5)], &[]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let account = Arc::new(account_of(&accounts, 1));
                    match account.charge(Resource::Qps, 2) {
                        Ok(charge) => charge.keep(),
                        Err(error) => assert!(matches!(error, CommandError::Share { .. })),
                    }
                }
            });
        }
    });
    assert!(accounts.programs().is_empty());
    assert_eq!(accounts.device(0), [0; Resource::COUNT]);
    assert_eq!(account_of(&accounts, 1).program(), 0);
}

#[test]
fn a_device_reports_no_more_than_its_programs_may_have() {
    let mut quotas = Quotas::default();
    quotas.program.set(Resource::Qps, Some(100));
    quotas.user.set(Resource::Qps, Some(50));
    quotas.device.set(Resource::Mrs, Some(7));
    let limits = quotas.report(DeviceLimits::default());
    assert_eq!((limits.max_qp, limits.max_mr), (50, 7));
    assert_eq!(limits.max_cq, DeviceLimits::default().max_cq);
    assert_eq!(limits.max_cqe, DeviceLimits::default().max_cqe);
}

#[test]
fn the_largest_queue_that_a_device_reports_is_one_that_a_program_may_have() {
    for (cqes, reported) in [
        (1, 1),
        (2, 1),
        (3, 3),
        (1000, 511),
        (1023, 1023),
        (u64::MAX, (1 << 20) - 1),
    ] {
        let mut quotas = Quotas::default();
        quotas.program.set(Resource::Cqes, Some(cqes));
        let max_cqe = quotas.report(DeviceLimits::default()).max_cqe;
        assert_eq!(max_cqe, reported, "{cqes}");
        let counted = Shape::new(max_cqe, 64).entries();
        assert!(u64::from(counted) <= cqes, "{cqes}");
    }
}

#[test]
fn keys_are_told_apart() {
    for resource in Resource::ALL {
        let same = Resource::ALL.iter().filter(|r| r.key() == resource.key());
        assert_eq!(same.count(), 1);
        assert_eq!(Resource::ALL[resource as usize], resource);
    }
}
