//! Memory objects that a program passes, and what it may say of them.

use super::*;
use crate::memory::tests::memfd;
use roceline_abi::control::{MemoryPiece, MemoryPolicy, RegionReach};

fn piece(addr: u64, len: u64) -> MemoryPiece {
    MemoryPiece {
        addr,
        len,
        ..MemoryPiece::default()
    }
}

/// Two pages of this process, from a page boundary.
fn pages(memory: &[u8]) -> u64 {
    (memory.as_ptr() as u64).next_multiple_of(4096)
}

#[test]
fn pieces_come_before_their_region_and_can_be_taken_back() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let memory = vec![0u8; 3 * 4096];
    let addr = pages(&memory);
    let fd = memfd(8192, 0);
    let passed = program.request(Kind::MemoryFile as u32, &[], &[fd.as_fd()]);
    assert_eq!((passed.header.error, u32_at(&passed.payload, 0)), (0, 0));
    let pd = u32_at(&program.ok(&alloc_pd()), 0);

    let said = program.request(Kind::Memory as u32, piece(addr, 8192).as_bytes(), &[]);
    assert_eq!(said.header.error, 0);
    let mr = u32_at(&program.ok(&reg_mr(addr, 8192, pd, 1)), 0);
    assert!(lcore.last().contains("Mapping"), "{}", lcore.last());
    // The next region has none of it.
    program.ok(&reg_mr(addr, 8192, pd, 1));
    assert!(!lcore.last().contains("Mapping"), "{}", lcore.last());

    let head = RegionReach {
        handle: mr,
        reserved: 0,
    };
    let reach = |bytes: &[u8]| program.request(Kind::Reach as u32, bytes, &[]).header.error;
    assert_eq!(reach(head.as_bytes()), 0);
    assert!(lcore.last().starts_with("SetReach"), "{}", lcore.last());
    assert!(!lcore.last().contains("Mapping"), "{}", lcore.last());
    let whole = [head.as_bytes(), piece(addr, 4096).as_bytes()].concat();
    assert_eq!(reach(&whole), 0);
    assert!(lcore.last().contains("Mapping"), "{}", lcore.last());

    let stranger = RegionReach {
        handle: 999,
        ..head
    };
    assert_eq!(reach(stranger.as_bytes()), libc::EINVAL);
    assert_eq!(reach(&[0; 3]), libc::EINVAL);
    assert_eq!(reach(&whole[..30]), libc::EINVAL);
    program.ok(&destroy(13, mr, 0));
    assert_eq!(reach(head.as_bytes()), libc::EINVAL);
}

#[test]
fn what_is_no_memory_object_is_refused() {
    let Bench { shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pass = |fds: &[std::os::fd::BorrowedFd<'_>]| {
        program
            .request(Kind::MemoryFile as u32, &[], fds)
            .header
            .error
    };
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null");
    assert_eq!(pass(&[null.unwrap().as_fd()]), libc::EINVAL);
    assert_eq!(pass(&[]), libc::EINVAL);
    let fd = memfd(4096, 0);
    assert_eq!(pass(&[fd.as_fd(), fd.as_fd()]), libc::EINVAL);
    // Before a device is open there is nothing to pass it to.
    let early = Program::start(&shared);
    let answer = early.request(Kind::MemoryFile as u32, &[], &[fd.as_fd()]);
    assert_ne!(answer.header.error, 0);
}

#[test]
fn a_nic_that_maps_nothing_says_so_and_takes_nothing() {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    let mut nics = config.nics.to_vec();
    nics[0].memory = MemoryPolicy::Never;
    config.nics = nics.into();
    let shared = Arc::new(Shared::new(config, lcore));
    let program = Program::start(&shared);
    let opened = OpenReply::from_bytes(&program.open("roce0").payload).unwrap();
    assert_eq!(opened.memory, MemoryPolicy::Never as u32);
    let answer = program.request(Kind::MemoryFile as u32, &[], &[memfd(4096, 0).as_fd()]);
    assert_eq!(answer.header.error, libc::EOPNOTSUPP);
}
