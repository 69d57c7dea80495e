use super::abi::*;
use super::*;
use crate::control::server::Shared;
use crate::control::testing::{Bytes, FakeLcore, config, open_request, own_memory, own_peer};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A context with GET_CONTEXT done, and handles 1 (none), 2.. as the fake lcore gives them.
fn context() -> Context {
    let (lcore, _closed) = FakeLcore::new();
    let shared = Arc::new(Shared::new(config(PathBuf::from("unused")), lcore));
    let request = open_request("roce0");
    let opened = Context::open(&shared, own_peer(), &request, own_memory()).unwrap();
    let mut context = opened.context;
    execute(&mut context, &Bytes::default().plain(0, 8)).unwrap();
    context
}

fn errno(context: &mut Context, bytes: &[u8]) -> i32 {
    execute(context, bytes).err().map_or(0, |e| e.errno())
}

#[test]
fn table_sizes_are_those_of_the_structs() {
    // Sizes in the table are literals beside the names; here they meet the layouts.
    let sizes = |n: usize| {
        METHODS[n]
            .as_ref()
            .map(|m| (m.request, m.response))
            .unwrap()
    };
    let of = |request: usize, response: usize| (request, response);
    assert_eq!(
        sizes(0),
        of(size_of::<Empty>(), size_of::<GetContextResp>())
    );
    assert_eq!(
        sizes(1),
        of(size_of::<Empty>(), size_of::<QueryDeviceResp>())
    );
    assert_eq!(
        sizes(2),
        of(size_of::<QueryPort>(), size_of::<QueryPortResp>())
    );
    assert_eq!(sizes(9), of(size_of::<RegMr>(), size_of::<RegMrResp>()));
    assert_eq!(
        sizes(18),
        of(size_of::<CreateCq>(), size_of::<CreateCqResp>())
    );
    assert_eq!(
        sizes(20),
        of(size_of::<Destroy>(), size_of::<DestroyCqResp>())
    );
    assert_eq!(sizes(23), of(size_of::<ReqNotify>(), 0));
    assert_eq!(
        sizes(24),
        of(size_of::<CreateQp>(), size_of::<CreateQpResp>())
    );
    assert_eq!(
        sizes(25),
        of(size_of::<QueryQp>(), size_of::<QueryQpResp>())
    );
    assert_eq!(sizes(26), of(size_of::<ModifyQp>(), 0));
    assert_eq!(sizes(27), of(size_of::<Destroy>(), size_of::<OneWord>()));
    for (number, name) in [
        (9, "REG_MR"),
        (24, "CREATE_QP"),
        (35, "DESTROY_SRQ"),
        (40, "OPEN_QP"),
    ] {
        assert!(METHODS[number].as_ref().unwrap().name.starts_with(name));
    }
    // The shim replaces the channel there.
    use roceline_abi::control::{CREATE_CQ_CHANNEL_AT, EX_CREATE_CQ_CHANNEL_AT};
    let plain = size_of::<CmdHdr>() + std::mem::offset_of!(CreateCq, comp_channel);
    let headers = size_of::<CmdHdr>() + size_of::<ExCmdHdr>();
    let extended = headers + std::mem::offset_of!(ExCreateCq, comp_channel);
    assert_eq!(
        (plain, extended),
        (CREATE_CQ_CHANNEL_AT, EX_CREATE_CQ_CHANNEL_AT)
    );
}

#[test]
fn lengths_that_disagree_are_refused_as_the_kernel_refuses_them() {
    let mut context = context();
    let good = Bytes::default().u64(1).plain(2, 40);
    assert_eq!(errno(&mut context, &good), 0);
    // Longer or shorter than its own header says.
    for n in 0..good.len() {
        assert_eq!(errno(&mut context, &good[..n]), libc::EINVAL, "{n} bytes");
    }
    assert_eq!(
        errno(&mut context, &[&good[..], &[0; 4]].concat()),
        libc::EINVAL
    );
    // Right by its own header, but too short for the command.
    assert_eq!(
        errno(&mut context, &Bytes::default().plain(2, 40)),
        libc::ENOSPC
    );
    // No room for the response.
    assert_eq!(
        errno(&mut context, &Bytes::default().u64(1).plain(2, 36)),
        libc::ENOSPC
    );
    // Driver data behind the request is not ours to judge.
    assert_eq!(
        errno(&mut context, &Bytes::default().u64(1).u64(9).plain(2, 48)),
        0
    );

    let good = Bytes::default().u64(0).extended(1, 304, 0);
    assert_eq!(errno(&mut context, &good), 0);
    for n in 8..good.len() {
        assert_eq!(errno(&mut context, &good[..n]), libc::EINVAL, "{n} bytes");
    }
    assert_eq!(
        errno(&mut context, &Bytes::default().extended(1, 304, 0)),
        libc::ENOSPC
    );
    assert_eq!(
        errno(&mut context, &Bytes::default().u64(0).extended(1, 176, 0)),
        libc::ENOSPC
    );
    assert_eq!(
        errno(&mut context, &Bytes::default().u64(0).extended(1, 8192, 0)),
        libc::EINVAL
    );
    let mut reserved = good.clone();
    reserved[20] = 1;
    assert_eq!(errno(&mut context, &reserved), libc::EINVAL);
    let mut no_address = good.clone();
    no_address[8..16].fill(0);
    assert_eq!(errno(&mut context, &no_address), libc::EINVAL);
    // What a newer library adds must be zero.
    assert_eq!(
        errno(
            &mut context,
            &Bytes::default().u64(0).u64(0).extended(1, 304, 0)
        ),
        0
    );
    let newer = Bytes::default().u64(0).u64(1).extended(1, 304, 0);
    assert_eq!(errno(&mut context, &newer), libc::EOPNOTSUPP);
}

#[test]
fn no_response_is_longer_than_what_the_program_has_room_for() {
    let mut context = context();
    let cq = Bytes::default().u64(0).u32(10).u32(0).u32(u32::MAX).u32(0);
    // Without room for the driver's part the queue could never be found.
    assert_eq!(
        errno(&mut context, &cq.clone().plain(18, 8 + 12)),
        libc::EINVAL
    );
    let answer = execute(&mut context, &cq.plain(18, 8 + 32)).unwrap();
    assert_eq!(answer.payload.len(), 8 + 16);
    let answer = execute(&mut context, &Bytes::default().u64(0).extended(1, 184, 0)).unwrap();
    assert_eq!(answer.payload.len(), 184);
    // A core response with more room than we fill: the driver's part still comes where the library looks.
    let cq = Bytes::default()
        .u64(1)
        .u32(9)
        .u32(0)
        .u32(u32::MAX)
        .u32(0)
        .u32(0)
        .u32(0);
    let answer = execute(&mut context, &cq.extended(18, 24, 16)).unwrap();
    assert_eq!(answer.payload.len(), 24 + 16);
    assert_eq!(answer.payload[16..24], [0; 8]);
    let mmap = MmapInfo::from_bytes(&answer.payload[24..]).unwrap();
    assert_eq!((mmap.offset % 4096, mmap.size, mmap.pad), (0, 4096, 0));
}

#[test]
fn cq_sizes_are_checked() {
    let mut context = context();
    let mut cq = |cqe: u32, vector: u32, flags: u32| {
        let body = Bytes::default()
            .u64(1)
            .u32(cqe)
            .u32(vector)
            .u32(u32::MAX)
            .u32(0);
        errno(&mut context, &body.u32(flags).u32(0).extended(18, 16, 16))
    };
    assert_eq!(cq(0, 0, 0), libc::EINVAL);
    assert_eq!(cq(1 << 20, 0, 0), libc::EINVAL);
    assert_eq!(cq(u32::MAX, 0, 0), libc::EINVAL);
    assert_eq!(cq(1, 1, 0), libc::EINVAL);
    assert_eq!(cq(1, 0, 1), libc::EOPNOTSUPP);
    assert_eq!(cq(1, 0, 0), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_is_refused_and_nothing_else(
        inputs in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..40)
    ) {
        let mut context = context();
        for bytes in inputs {
            if let Err(error) = execute(&mut context, &bytes) {
                prop_assert!(error.errno() > 0);
            }
        }
    }

    #[test]
    fn well_framed_garbage_is_carried_out_or_refused(
        inputs in proptest::collection::vec(
            (0u32..45, any::<bool>(), proptest::collection::vec(prop_oneof![0u32..20, any::<u32>()], 0..40), 0usize..50),
            1..60,
        )
    ) {
        let mut context = context();
        for (number, extended, words, out) in inputs {
            let mut body = Bytes::default();
            for word in words {
                body = body.u32(word);
            }
            if extended && body.0.len() % 8 != 0 {
                body = body.u32(0);
            }
            let bytes = if extended { body.extended(number, out * 8, 32) } else { body.plain(number, out * 8) };
            let room = if extended { out * 8 + 32 } else { out * 8 };
            match execute(&mut context, &bytes) {
                Ok(answer) => prop_assert!(answer.payload.len() <= room),
                Err(error) => prop_assert!(error.errno() > 0),
            }
        }
    }
}
