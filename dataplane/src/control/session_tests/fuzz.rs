//! What programs may send, from bytes: uverbs commands on an open context, and whole messages of the protocol. Whatever they
//! are, the session answers or ends, never fails by a bug, and in the end nothing is charged to anybody.

use super::*;
use crate::control::context::Context;
use crate::control::quota::Resource;
use crate::control::testing::own_peer;
use crate::control::uverbs;
use crate::fuzzing::{run, run_long};

/// A daemon whose programs may have little, so that a case costs little.
fn small() -> (Arc<FakeLcore>, Arc<Shared>) {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    config
        .quotas
        .program
        .set(Resource::QueueMemory, Some(8 << 20));
    (lcore.clone(), Arc::new(Shared::new(config, lcore)))
}

/// The first byte is a length in words of 4 bytes; so many follow; and so on.
fn parts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (&words, after) = rest.split_first()?;
        let (part, after) = after.split_at(after.len().min(4 * usize::from(words)));
        rest = after;
        Some(part)
    })
}

fn commands(bytes: &[u8]) {
    let (_lcore, shared) = small();
    let opened = Context::open(&shared, own_peer(), &open_request("roce0"), own_memory());
    let mut context = opened.expect("a device that is there").context;
    for command in parts(bytes) {
        if let Err(error) = uverbs::execute(&mut context, command) {
            assert!(error.errno() > 0 && !error.to_string().is_empty());
        }
        uverbs::name(command);
    }
    context.close();
    assert!(shared.accounts.programs().is_empty());
    assert_eq!(shared.accounts.device(0), [0; Resource::COUNT]);
}

/// The first byte of a part is a kind of message, or stands for a header that is nonsense; a bit of it for a descriptor.
fn messages(bytes: &[u8]) {
    let (_lcore, shared) = small();
    let program = Program::start(&shared);
    program.open("roce0");
    for part in parts(bytes) {
        let Some((&first, payload)) = part.split_first() else {
            continue;
        };
        let (kind, memory) = (u32::from(first & 0xf), own_memory());
        let header = RequestHeader {
            magic: MAGIC,
            version: PROTOCOL_VERSION.into(),
            kind,
            len: payload.len() as u32,
        };
        let whole = match first & 0x40 {
            0 => [header.as_bytes(), payload].concat(),
            _ => payload.to_vec(),
        };
        if whole.is_empty() {
            continue;
        }
        let fds = [memory.as_fd()];
        let fds = if first & 0x80 == 0 { &fds[..0] } else { &fds };
        // A session that has ended takes no more.
        if !program.try_send(&whole, fds) || program.receive().is_none() {
            return;
        }
    }
}

#[test]
fn any_commands() {
    run("uverbs", 300, commands);
}

#[test]
#[ignore = "long: scripts/fuzz"]
fn long_commands() {
    run_long("uverbs", commands);
}

#[test]
fn any_messages() {
    run("session", 150, messages);
}

#[test]
#[ignore = "long: scripts/fuzz"]
fn long_messages() {
    run_long("session", messages);
}
