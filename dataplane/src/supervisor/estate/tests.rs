use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use roceline_abi::layout::FILE_BYTES;
use roceline_abi::objects::{CqRecord, Place, QpRecord};
use roceline_abi::queue::{Q_DATA, Q_PRODUCER};

use super::*;
use crate::control::event_pipe;
use crate::control::seqpacket::Peer;
use crate::lcore::message::EventPipe;

/// A context as a worker hands it over, and what its program has of it.
struct Program {
    file: ContextFile,
    events: OwnedFd,
    channel: OwnedFd,
}

const ID: ContextId = ContextId(11);
const SQ: u64 = FILE_BYTES - (1 << 20);
const CQ: u64 = FILE_BYTES - (2 << 20);

fn open(estate: &mut Estate) -> Program {
    open_as(estate, ID, 1)
}

fn open_as(estate: &mut Estate, id: ContextId, pid: u32) -> Program {
    open_seen_as(estate, id, pid, pid as i32)
}

fn open_seen_as(estate: &mut Estate, id: ContextId, pid: u32, peer_pid: i32) -> Program {
    let file = ContextFile::create().unwrap();
    let (events, theirs) = event_pipe().unwrap();
    let (channel, their_channel) = event_pipe().unwrap();
    let give = |pipe: EventPipe| pipe.write;
    estate.take(News::Context {
        id,
        pid,
        peer: Peer {
            pid: peer_pid,
            uid: 1000,
        },
        file: file.fd().try_clone_to_owned().unwrap(),
        events: give(events),
    });
    estate.take(News::Channel {
        id,
        handle: 2,
        events: give(channel),
    });
    let place = |offset, log2_elem| Place {
        offset,
        log2_elem,
        mask: 7,
    };
    let cq = CqRecord {
        channel: 2,
        user_handle: 0xc0ffee,
        queue: place(CQ, 6),
    };
    cq.publish(&file.view(), 0);
    let qp = QpRecord {
        qpn: 17,
        send_cq: 0,
        recv_cq: 0,
        sq: place(SQ, 8),
        rq: Place::default(),
    };
    qp.publish(&file.view(), 0);
    Program {
        file,
        events: theirs,
        channel: their_channel,
    }
}

impl Program {
    fn post(&self, wr_id: u64) {
        let producer = self.file.atomic_u32(SQ + Q_PRODUCER);
        let at = producer.load(Ordering::Relaxed);
        let slot = SQ + Q_DATA + (u64::from(at) << 8);
        self.file.atomic_u64(slot).store(wr_id, Ordering::Relaxed);
        producer.store(at + 1, Ordering::Release);
    }

    fn completions(&self) -> u32 {
        self.file
            .atomic_u32(CQ + Q_PRODUCER)
            .load(Ordering::Acquire)
    }
}

/// What can be read at once.
fn read(fd: &OwnedFd) -> Vec<u8> {
    // SAFETY: a plain system call.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let mut bytes = [0u8; 256];
    // SAFETY: reads into a live array.
    let n = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    bytes[..n.max(0) as usize].to_vec()
}

#[test]
fn the_dead_are_flushed_and_their_programs_told_once() {
    let mut estate = Estate::default();
    let program = open(&mut estate);
    program.post(1);
    program.post(2);
    assert_eq!((estate.held(), estate.dead()), (1, 0));
    assert_eq!(program.completions(), 0);
    let now = Instant::now();
    estate.bury(now);
    assert_eq!((estate.held(), estate.dead()), (0, 1));
    assert_eq!(program.completions(), 2);
    assert_eq!(read(&program.events), DEVICE_FATAL_RECORD);
    assert_eq!(read(&program.channel), 0xc0ffee_u64.to_ne_bytes());
    // What is posted into the grave comes back too.
    program.post(3);
    assert_eq!(estate.look(now), Some(SOON));
    assert_eq!(program.completions(), 3);
    assert_eq!(estate.look(now + FRESH), Some(LATER));
    assert!(read(&program.events).is_empty() && read(&program.channel).is_empty());
    // The program goes.
    drop(program);
    assert_eq!(estate.look(now), None);
    assert_eq!(estate.dead(), 0);
}

#[test]
fn what_a_program_closed_itself_is_not_kept() {
    let mut estate = Estate::default();
    let program = open(&mut estate);
    estate.take(News::ChannelGone { id: ID, handle: 2 });
    estate.take(News::ContextGone(ID));
    estate.bury(Instant::now());
    assert_eq!((estate.held(), estate.dead()), (0, 0));
    assert!(read(&program.events).is_empty());
}

#[test]
fn an_event_pipe_that_is_full_gets_its_news_later() {
    let mut estate = Estate::default();
    let program = open(&mut estate);
    let held = &estate.held[&ID];
    while write(&held.events, &[0; 16]) {}
    let now = Instant::now();
    estate.bury(now);
    loop {
        let some = read(&program.events);
        if some.is_empty() {
            break;
        }
        assert!(some.iter().all(|byte| *byte == 0));
    }
    estate.look(now);
    assert_eq!(read(&program.events), DEVICE_FATAL_RECORD);
}

#[test]
fn what_is_no_context_file_is_not_mapped() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let fd = file.as_fd().try_clone_to_owned().unwrap();
    assert!(ContextFile::adopt(fd).is_err());
}

/// A program that has made all that it can out of its context: every record there is names a queue that is full of requests.
fn fill(program: &Program) {
    let view = program.file.view();
    let place = |offset, log2_elem, mask| Place {
        offset,
        log2_elem,
        mask,
    };
    let (queues, slots) = (FILE_BYTES - (64 << 20), (1 << 14) - 1);
    for handle in 0..1 << 16 {
        let cq = CqRecord {
            channel: 2,
            user_handle: 1,
            queue: place(queues, 6, slots),
        };
        cq.publish(&view, handle);
    }
    for index in 0..1 << 16 {
        let qp = QpRecord {
            qpn: index,
            send_cq: index,
            recv_cq: index,
            sq: place(queues + (8 << 20), 6, slots),
            rq: place(queues + (16 << 20), 6, slots),
        };
        qp.publish(&view, index);
    }
    program
        .file
        .store_u32(queues + (8 << 20) + Q_PRODUCER, slots);
    program
        .file
        .store_u32(queues + (16 << 20) + Q_PRODUCER, slots);
}

#[test]
fn the_large_contexts_of_one_program_do_not_hold_up_anothers() {
    let mut estate = Estate::default();
    let mut large = Vec::new();
    for id in 0..24 {
        // One that is not visible says each time that it is another.
        let program = open_seen_as(&mut estate, ContextId(id), 100 + id as u32, 0);
        fill(&program);
        large.push(program);
    }
    // The last of them all.
    let small = open_as(&mut estate, ContextId(99), 9);
    small.post(1);
    let now = Instant::now();
    estate.bury(now);
    let programs: BTreeSet<_> = estate.dead.iter().map(|dead| dead.program).collect();
    assert_eq!(programs.len(), 2);
    // Counted, not timed: one look, which does only so much in all.
    assert_eq!(small.completions(), 1);
    assert_eq!(read(&small.events), DEVICE_FATAL_RECORD);
    assert_eq!(
        estate.look(now),
        Some(AT_ONCE),
        "the others take more than a look"
    );
    // And they come to their end.
    let mut looks = 0;
    while estate.look(now) == Some(AT_ONCE) {
        looks += 1;
        assert!(looks < 1000);
    }
    assert_eq!(read(&large[0].events), DEVICE_FATAL_RECORD);
}
