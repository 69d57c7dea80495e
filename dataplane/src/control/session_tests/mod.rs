//! A program's way through a session, over a real socket, with every command as the bytes that rdma-core writes.

mod captures;
mod datagrams;
mod fuzz;
mod life;
mod memory;
mod protocol;
mod refusals;
mod srq;

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{Kind, MAGIC, NO_FD, OpenReply, Plain, ReplyHeader, RequestHeader};
use roceline_abi::layout::{ARM_OFFSET, FILE_BYTES};
use roceline_abi::queue::{Q_INDEX_MASK, Q_LOG2_ELEM_SIZE};
use roceline_engine::verbs::{Mtu, QpState};
use roceline_engine::wire::{Gid, Psn};

use crate::control::server::Shared;
use crate::control::testing::{
    Bytes, FakeLcore, Program, config, open_request, own_memory, read_now, u32_at, u64_at,
};
use crate::lcore::message::{ContextId, Reply};

const GRACE: Duration = Duration::from_secs(20);

struct Bench {
    lcore: Arc<FakeLcore>,
    closed: Receiver<ContextId>,
    shared: Arc<Shared>,
}

fn bench() -> Bench {
    let (lcore, closed) = FakeLcore::new();
    let shared = Arc::new(Shared::new(config(PathBuf::from("unused")), lcore.clone()));
    Bench {
        lcore,
        closed,
        shared,
    }
}

// Commands, as rdma-core writes them.

fn alloc_pd() -> Vec<u8> {
    Bytes::default().plain(3, 4)
}
fn create_channel() -> Vec<u8> {
    Bytes::default().plain(17, 4)
}
fn create_cq(cqe: u32, channel: i32) -> Vec<u8> {
    Bytes::default()
        .u64(0xc0ffee)
        .u32(cqe)
        .u32(0)
        .u32(channel as u32)
        .u32(0)
        .plain(18, 8 + 16)
}
fn reg_mr(addr: u64, len: u64, pd: u32, access: u32) -> Vec<u8> {
    Bytes::default()
        .u64(addr)
        .u64(len)
        .u64(addr)
        .u32(pd)
        .u32(access)
        .plain(9, 12)
}
fn create_qp(pd: u32, cq: u32, kind: u8) -> Vec<u8> {
    let handles = Bytes::default().u64(0xfeed).u32(pd).u32(cq).u32(cq).u32(0);
    let caps = handles.u32(100).u32(500).u32(1).u32(2).u32(40);
    caps.u8(1).u8(kind).u8(0).u8(0).plain(24, 32 + 32)
}
fn destroy(number: u32, handle: u32, response: usize) -> Vec<u8> {
    Bytes::default().u32(handle).u32(0).plain(number, response)
}

/// MODIFY_QP, all fields of which a test may change.
#[derive(Clone)]
struct Modify {
    qp: u32,
    mask: u32,
    state: u8,
    current: u8,
    dgid: [u8; 16],
    sgid_index: u8,
    is_global: u8,
    av_port: u8,
    mtu: u8,
    port: u8,
    dest_qpn: u32,
    pkey: u16,
}

impl Modify {
    /// INIT to RTR towards `dgid`.
    fn rtr(qp: u32, dgid: &str) -> Modify {
        Modify {
            qp,
            mask: 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 17 | 1 << 15 | 1 << 20,
            state: 2,
            current: 0,
            dgid: Gid::from_ip(dgid.parse().unwrap()).0,
            sgid_index: 0,
            is_global: 1,
            av_port: 1,
            mtu: 3,
            port: 1,
            dest_qpn: 0x11,
            pkey: 0,
        }
    }
    fn body(&self) -> Bytes {
        let dest = Bytes::default()
            .bytes(&self.dgid)
            .u32(0x12345)
            .u16(0)
            .u16(0)
            .u8(self.sgid_index);
        let dest = dest
            .u8(1)
            .u8(0x20)
            .u8(3)
            .u8(0)
            .u8(0)
            .u8(self.is_global)
            .u8(self.av_port);
        let words = dest
            .bytes(&[0; 32])
            .u32(self.qp)
            .u32(self.mask)
            .u32(0x1111)
            .u32(0x0200_0005);
        let words = words
            .u32(6)
            .u32(self.dest_qpn)
            .u32(0b1111)
            .u16(self.pkey)
            .u16(0);
        let tail = words
            .u8(self.state)
            .u8(self.current)
            .u8(self.mtu)
            .u8(0)
            .u8(0)
            .u8(4)
            .u8(5)
            .u8(12);
        tail.u8(self.port).u8(14).u8(7).u8(6).u8(0).u8(0).u16(0)
    }
    fn plain(&self) -> Vec<u8> {
        self.body().plain(26, 0)
    }
}
