use super::*;
use roceline_abi::layout::FILE_BYTES;

fn file() -> Arc<ContextFile> {
    Arc::new(ContextFile::create().unwrap())
}

fn loc(log2_elem: u32, mask: u32) -> QueueLoc {
    QueueLoc {
        offset: FILE_BYTES - (1 << 20),
        log2_elem,
        mask,
    }
}

fn poke<T: Copy>(file: &ContextFile, offset: u64, value: T) {
    // SAFETY: in bounds and aligned; a test plays the program.
    unsafe {
        file.at(offset, size_of::<T>() as u64)
            .cast::<T>()
            .as_ptr()
            .write_volatile(value)
    }
}

#[test]
fn a_hostile_wqe_never_reads_beyond_its_slot() {
    let file = file();
    let loc = loc(8, 3);
    let mut sq = SendQueue::new(Arc::clone(&file), loc, 3, 48);
    let mut wqe = SendWqe::default();
    wqe.dma.num_sge = u32::MAX;
    poke(&file, loc.offset + Q_DATA, wqe);
    wqe.wr.send_flags = SEND_INLINE;
    wqe.dma.length = u32::MAX;
    poke(&file, loc.offset + Q_DATA + 256, wqe);
    poke(&file, loc.offset + Q_PRODUCER, 0xffff_fffeu32); // masks to 2
    let mut sges = [Sge::default(); MAX_SGE];
    assert!(sq.posted() > 0);
    let wr = sq.take(&mut sges, false);
    assert_eq!((wr.num_sge, wr.length), (u32::MAX, 0));
    assert!(sq.posted() > 0);
    let wr = sq.take(&mut sges, false);
    assert_eq!((wr.inline, wr.length), (true, u64::MAX));
    assert_eq!(sq.posted(), 0);
    assert!(!sq.copy_inline(1, 40, &mut [0; 9]));
}

#[test]
fn bytes_without_entries_are_inline_whatever_the_flag_says() {
    let file = file();
    let loc = loc(8, 7);
    let mut sq = SendQueue::new(Arc::clone(&file), loc, 3, 48);
    let cases = [
        (WrOpcode::Send, 0, 32, (true, 32)),
        (WrOpcode::WriteImm, 0, 48, (true, 48)),
        (WrOpcode::Write, 0, 49, (true, u64::MAX)),
        (WrOpcode::Write, 0, 0, (false, 0)),
        // Entries, here of length 0, come before what the provider says about their sum.
        (WrOpcode::Send, 1, 32, (false, 0)),
        (WrOpcode::Read, 0, 32, (false, 0)),
    ];
    for (at, (opcode, num_sge, length, _)) in cases.into_iter().enumerate() {
        let mut wqe = SendWqe::default();
        wqe.wr.opcode = opcode as u32;
        wqe.dma.num_sge = num_sge;
        wqe.dma.length = length;
        poke(&file, loc.offset + Q_DATA + 256 * at as u64, wqe);
    }
    poke(&file, loc.offset + Q_PRODUCER, cases.len() as u32);
    let mut sges = [Sge::default(); MAX_SGE];
    for (opcode, num_sge, length, want) in cases {
        let wr = sq.take(&mut sges, false);
        assert_eq!(wr.opcode, Some(opcode));
        assert_eq!(
            (wr.inline, wr.length),
            want,
            "{opcode:?} {num_sge} {length}"
        );
    }
}

#[test]
fn a_full_cq_says_so_and_takes_more_once_read() {
    let file = file();
    let loc = loc(6, 3);
    let mut cq = CompletionQueue::new(Arc::clone(&file), loc);
    let cqe = Cqe {
        wr_id: 5,
        ..Cqe::default()
    };
    let mut push = || {
        let origin = Origin {
            qp: 0,
            recv: false,
            retired: 1,
        };
        cq.write(&cqe, origin).map(|()| cq.publish())
    };
    for _ in 0..3 {
        push().unwrap();
    }
    assert_eq!(push(), Err(CqFull));
    poke(&file, loc.offset + Q_CONSUMER, 1u32);
    push().unwrap();
    assert_eq!(push(), Err(CqFull));
}

#[test]
fn a_cq_goes_on_elsewhere_behind_what_was_not_polled() {
    let file = file();
    let (old, new) = (
        loc(6, 7),
        QueueLoc {
            offset: FILE_BYTES - (2 << 20),
            ..loc(6, 3)
        },
    );
    let mut cq = CompletionQueue::new(Arc::clone(&file), old);
    let push = |cq: &mut CompletionQueue| {
        let origin = Origin {
            qp: 0,
            recv: false,
            retired: 1,
        };
        cq.write(&Cqe::default(), origin).map(|()| cq.publish())
    };
    for _ in 0..5 {
        push(&mut cq).unwrap();
    }
    poke(&file, old.offset + Q_CONSUMER, 3u32);
    for _ in 0..2 {
        push(&mut cq).unwrap();
    }
    // Slots 3 to 6; neither the number asked for nor the queue's size may be less.
    assert_eq!(cq.move_to(new, 3), Err(4));
    assert_eq!(cq.move_to(new, 4), Err(4));
    poke(&file, old.offset + Q_CONSUMER, 4u32);
    assert_eq!(cq.move_to(new, 2), Err(3));
    assert_eq!(cq.move_to(new, 3), Ok((4, 3)));
    let word = |at| file.atomic_u64(new.offset + at).load(Ordering::Relaxed);
    assert_eq!(word(Q_PRODUCER), 3 | 7 << 32, "the count goes on");
    assert_eq!(push(&mut cq), Err(CqFull));
    poke(&file, new.offset + Q_CONSUMER, 1u32);
    push(&mut cq).unwrap();
    assert_eq!(word(Q_PRODUCER), 8 << 32);
}
