//! A program inside the process: it posts work and polls completions through the very shared memory that a real one
//! uses, without rdma-core in between. In flow requests to post; out flow completions.
//!
//! Its memory is the process's own, reached through `/proc/self/mem` like any program's.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use roceline_abi::layout::{DB_BELLS, DB_SUMMARY, DOORBELL_OFFSET, FILE_BYTES, QUEUE_FLOOR};
use roceline_abi::queue::{
    CQE_LOG2, Cqe, DmaInfo, Q_CONSUMER, Q_DATA, Q_PRODUCER, RECV_WQE_SGES, RecvWqe, SEND_WQE_SGES,
    SendWqe, Sge,
};
use roceline_engine::memory::Access;
use roceline_engine::verbs::{Mtu, Path, QpAttr, QpInit, QpType, RC_STEPS, WrOpcode, mask};
use roceline_engine::wire::Psn;

use crate::control::LcorePort;
use crate::lcore::Mailbox;
use crate::lcore::message::{Command, ContextId, EventPipe, NewContext, QueueLoc, Reply, Request};
use crate::memory::{ContextFile, Reach};
use crate::nic::NicInfo;

/// Element size of the work queues: one entry, or up to 48 inline bytes.
const WQE_LOG2: u32 = 8;
/// ACK timeout of programs like perftest, 67 ms.
pub(crate) const ACK_TIMEOUT: u8 = 14;
/// `IBV_SEND_SIGNALED`.
pub const SIGNALED: u32 = 1 << 1;
/// `IBV_SEND_INLINE`.
pub const INLINE: u32 = 1 << 3;

/// A context with a PD and a CQ.
#[derive(Debug)]
pub struct Producer {
    file: Arc<ContextFile>,
    mailbox: Arc<Mailbox>,
    id: ContextId,
    next_queue: u64,
    pd: u32,
    cq_handle: u32,
    cq: QueueLoc,
    cq_consumer: u32,
    /// ACK timeout of the QPs that it connects, as verbs codes it.
    pub(super) ack_timeout: u8,
}

/// A QP of a [`Producer`].
#[derive(Debug)]
pub struct ProducerQp {
    /// Handle.
    pub handle: u32,
    /// Number.
    pub qpn: u32,
    /// Send queue.
    pub sq: QueueLoc,
    sq_producer: u32,
    /// Receive queue.
    pub rq: QueueLoc,
    rq_producer: u32,
}

pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor that becomes ours.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

fn event_pipe() -> io::Result<EventPipe> {
    let mut fds = [0; 2];
    // SAFETY: fills two descriptors, which become ours.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(EventPipe {
            drain: OwnedFd::from_raw_fd(fds[0]),
            write: OwnedFd::from_raw_fd(fds[1]),
        })
    }
}

impl Producer {
    /// Opens NIC `nic` and makes a CQ of `1 << cq_log2` completions. `poll` lets the lcore run until it has answered.
    ///
    /// # Errors
    /// When the kernel gives no descriptors or the lcore refuses.
    pub fn open(
        mailbox: Arc<Mailbox>,
        id: u64,
        nic: u32,
        cq_log2: u32,
        poll: &mut dyn FnMut(),
    ) -> io::Result<Producer> {
        let file = Arc::new(ContextFile::create()?);
        let mem = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem")?;
        let new = NewContext {
            nic,
            file: Arc::clone(&file),
            mem: mem.into(),
            lock: Arc::default(),
            helper: None,
            wake: eventfd()?,
            async_events: event_pipe()?,
            program: id as u32,
            pid: std::process::id(),
            comm: [0; 16],
        };
        let mut producer = Producer {
            file,
            mailbox,
            id: ContextId(id),
            next_queue: FILE_BYTES,
            pd: 0,
            cq_handle: 0,
            cq: QueueLoc {
                offset: QUEUE_FLOOR,
                log2_elem: CQE_LOG2,
                mask: 0,
            },
            cq_consumer: 0,
            ack_timeout: ACK_TIMEOUT,
        };
        producer.command(Command::Open(Box::new(new)), poll)?;
        producer.pd = producer.handle(Command::AllocPd, poll)?;
        producer.cq = producer.queue(CQE_LOG2, cq_log2)?;
        let create = Command::CreateCq {
            ignore_overrun: false,
            queue: producer.cq,
            channel: None,
            user_handle: 0,
        };
        producer.cq_handle = producer.handle(create, poll)?;
        Ok(producer)
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn command(&self, command: Command, poll: &mut dyn FnMut()) -> io::Result<Reply> {
        let (reply, answer) = sync_channel(1);
        self.mailbox
            .send(
                0,
                Request {
                    context: self.id,
                    command,
                    reply,
                },
            )
            .map_err(io::Error::other)?;
        loop {
            poll();
            match answer.try_recv() {
                Ok(Reply::Failed { errno, reason }) => {
                    return Err(io::Error::other(format!("{reason} (errno {errno})")));
                }
                Ok(reply) => return Ok(reply),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    fn handle(&self, command: Command, poll: &mut dyn FnMut()) -> io::Result<u32> {
        match self.command(command, poll)? {
            Reply::Handle(handle) => Ok(handle),
            other => Err(io::Error::other(format!("unexpected reply {other:?}"))),
        }
    }

    /// A queue, allocated as for a program (`control/queue_memory.rs`); it stays as long as the file.
    fn queue(&mut self, log2_elem: u32, log2_count: u32) -> io::Result<QueueLoc> {
        let bytes = (Q_DATA + (1 << (log2_elem + log2_count))).next_multiple_of(4096);
        let before = self.next_queue;
        self.next_queue -= bytes;
        self.file.join(before, self.next_queue);
        self.file.populate(self.next_queue, bytes)?;
        Ok(QueueLoc {
            offset: self.next_queue,
            log2_elem,
            mask: (1 << log2_count) - 1,
        })
    }

    /// Registers `len` bytes at `addr` with all rights, reached through the kernel; gives the key.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn register(&self, addr: u64, len: u64, poll: &mut dyn FnMut()) -> io::Result<u32> {
        self.register_reached(addr, len, Reach::kernel(), poll)
    }

    /// The same with a reach of the caller's choice.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn register_reached(
        &self,
        addr: u64,
        len: u64,
        reach: Reach,
        poll: &mut dyn FnMut(),
    ) -> io::Result<u32> {
        // All rights but those of windows.
        let access = Access(0xf);
        let command = Command::RegMr {
            pd: self.pd,
            addr,
            iova: addr,
            len,
            access,
            reach,
        };
        match self.command(command, poll)? {
            Reply::Mr { lkey, .. } => Ok(lkey),
            other => Err(io::Error::other(format!("unexpected reply {other:?}"))),
        }
    }

    /// Takes a region back. Its handle is the index in its key.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn deregister(&self, key: u32, poll: &mut dyn FnMut()) -> io::Result<()> {
        self.command(Command::DeregMr { mr: key >> 8 }, poll)
            .map(|_| ())
    }

    /// Creates an RC QP with `1 << log2_depth` slots in each queue.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn create_qp(&mut self, log2_depth: u32, poll: &mut dyn FnMut()) -> io::Result<ProducerQp> {
        let (sq, rq) = (
            self.queue(WQE_LOG2, log2_depth)?,
            self.queue(WQE_LOG2, log2_depth)?,
        );
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq_handle,
            recv_cq: self.cq_handle,
            sq_sig_all: false,
            max_send_wr: sq.mask,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 48,
            srq: None,
        };
        let command = Command::CreateQp {
            init,
            sq,
            rq: Some(rq),
            max_recv_wr: rq.mask,
            user_handle: 0,
        };
        match self.command(command, poll)? {
            Reply::Qp { handle, qpn } => Ok(ProducerQp {
                handle,
                qpn,
                sq,
                sq_producer: 0,
                rq,
                rq_producer: 0,
            }),
            other => Err(io::Error::other(format!("unexpected reply {other:?}"))),
        }
    }

    /// Takes a QP from RESET to RTS towards `remote_qpn` on `remote`.
    ///
    /// # Errors
    /// The reason that the lcore gives.
    pub fn connect(
        &self,
        qp: &ProducerQp,
        own: &NicInfo,
        remote: &NicInfo,
        remote_qpn: u32,
        mtu: Mtu,
        poll: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let attr = QpAttr {
            access: Access(0xe),
            path: Path {
                sgid: own.addresses.now().gid(0).unwrap_or_default(),
                dgid: remote.addresses.now().gid(0).unwrap_or_default(),
                smac: own.mac,
                dmac: remote.mac,
                hop_limit: 64,
                ..Path::default()
            },
            path_mtu: mtu,
            timeout: self.ack_timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            dest_qpn: remote_qpn,
            ..QpAttr::default()
        };
        for (state, bits) in RC_STEPS {
            let attr = Box::new(QpAttr { state, ..attr });
            let mask = mask::STATE | bits;
            self.command(
                Command::ModifyQp {
                    qp: qp.handle,
                    attr,
                    mask,
                },
                poll,
            )?;
        }
        Ok(())
    }

    /// Handle of the PD of its QPs and regions.
    pub fn pd(&self) -> u32 {
        self.pd
    }

    /// The shared file: for tests that play a broken program.
    pub fn file(&self) -> &ContextFile {
        &self.file
    }

    fn write<T: Copy>(&self, queue: QueueLoc, index: u32, at: u64, value: T) {
        let offset =
            queue.offset + Q_DATA + (u64::from(index & queue.mask) << queue.log2_elem) + at;
        let to = self.file.at(offset, size_of::<T>() as u64);
        // SAFETY: in bounds and 8-byte aligned; the lcore reads it only after the producer index says so.
        unsafe { to.cast::<T>().as_ptr().write_volatile(value) };
    }

    /// Whether the send queue has a free slot.
    pub fn can_send(&self, qp: &ProducerQp) -> bool {
        let consumer = self
            .file
            .atomic_u32(qp.sq.offset + Q_CONSUMER)
            .load(Ordering::Acquire)
            & qp.sq.mask;
        (qp.sq_producer + 1) & qp.sq.mask != consumer
    }

    /// Send requests that are posted and not completed.
    #[inline]
    pub fn outstanding(&self, qp: &ProducerQp) -> u32 {
        let consumer = self
            .file
            .atomic_u32(qp.sq.offset + Q_CONSUMER)
            .load(Ordering::Acquire);
        qp.sq_producer.wrapping_sub(consumer) & qp.sq.mask
    }

    /// Posts a send request of one entry; the caller checked [`Producer::can_send`]. `inline`: the bytes at `sge.addr`
    /// (48 at most) go into the queue. Ring with [`Producer::ring`].
    pub fn post_send(
        &self,
        qp: &mut ProducerQp,
        opcode: WrOpcode,
        flags: u32,
        sge: Sge,
        remote: (u64, u32),
        inline: Option<&[u8]>,
    ) {
        let mut wqe = SendWqe::default();
        wqe.wr.wr_id = u64::from(qp.sq_producer);
        wqe.wr.opcode = opcode as u32;
        wqe.wr.send_flags = flags;
        wqe.wr.union[0] = remote.0;
        wqe.wr.union[1] = u64::from(remote.1);
        wqe.dma = DmaInfo {
            length: sge.length,
            num_sge: 1,
            ..DmaInfo::default()
        };
        self.write(qp.sq, qp.sq_producer, 0, wqe);
        match inline {
            None => self.write(qp.sq, qp.sq_producer, SEND_WQE_SGES, sge),
            Some(bytes) => {
                let mut block = [0u8; 48];
                let n = bytes.len().min(block.len());
                block[..n].copy_from_slice(&bytes[..n]);
                self.write(qp.sq, qp.sq_producer, SEND_WQE_SGES, block);
            }
        }
        qp.sq_producer = (qp.sq_producer + 1) & qp.sq.mask;
        self.file
            .store_u32(qp.sq.offset + Q_PRODUCER, qp.sq_producer);
    }

    /// Posts a fetch and add of 1 on the 8 bytes at `remote`.
    pub fn post_fetch_add(&self, qp: &mut ProducerQp, sge: Sge, remote: (u64, u32)) {
        self.post_atomic(qp, WrOpcode::FetchAdd, sge, remote, [1, 0]);
    }

    /// Posts a compare and swap on the 8 bytes at `remote`: 0 by 0, so that each finds what it compares with where nobody wrote.
    pub fn post_compare_swap(&self, qp: &mut ProducerQp, sge: Sge, remote: (u64, u32)) {
        self.post_atomic(qp, WrOpcode::CmpSwap, sge, remote, [0, 0]);
    }

    fn post_atomic(
        &self,
        qp: &mut ProducerQp,
        opcode: WrOpcode,
        sge: Sge,
        remote: (u64, u32),
        operands: [u64; 2],
    ) {
        let mut wqe = SendWqe::default();
        wqe.wr.wr_id = u64::from(qp.sq_producer);
        wqe.wr.opcode = opcode as u32;
        wqe.wr.send_flags = SIGNALED;
        wqe.wr.union[0] = remote.0;
        [wqe.wr.union[1], wqe.wr.union[2]] = operands;
        wqe.wr.union[3] = u64::from(remote.1);
        wqe.dma = DmaInfo {
            length: sge.length,
            num_sge: 1,
            ..DmaInfo::default()
        };
        self.write(qp.sq, qp.sq_producer, 0, wqe);
        self.write(qp.sq, qp.sq_producer, SEND_WQE_SGES, sge);
        qp.sq_producer = (qp.sq_producer + 1) & qp.sq.mask;
        self.file
            .store_u32(qp.sq.offset + Q_PRODUCER, qp.sq_producer);
    }

    /// Posts a bind of the window with key `window` to `len` bytes at `addr` of the region `region`, with all rights. Its
    /// new key has the lowest 8 bits of `new_key`.
    pub fn post_bind(
        &self,
        qp: &mut ProducerQp,
        (window, new_key): (u32, u32),
        region: u32,
        (addr, len): (u64, u64),
    ) {
        let mut wqe = SendWqe::default();
        wqe.wr.wr_id = u64::from(qp.sq_producer);
        wqe.wr.opcode = WrOpcode::BindMw as u32;
        wqe.wr.send_flags = SIGNALED;
        wqe.wr.union[0] = addr;
        wqe.wr.union[1] = len;
        wqe.wr.union[2] = u64::from(region) | u64::from(window) << 32;
        wqe.wr.union[3] = u64::from(new_key) | 0xe << 32;
        self.write(qp.sq, qp.sq_producer, 0, wqe);
        qp.sq_producer = (qp.sq_producer + 1) & qp.sq.mask;
        self.file
            .store_u32(qp.sq.offset + Q_PRODUCER, qp.sq_producer);
    }

    /// Posts a receive request of one entry, whose number is its place in the queue.
    pub fn post_recv(&self, qp: &mut ProducerQp, sge: Sge) {
        self.post_recv_as(qp, sge, u64::from(qp.rq_producer));
    }

    /// The same with a number of the caller's choice.
    pub fn post_recv_as(&self, qp: &mut ProducerQp, sge: Sge, wr_id: u64) {
        let wqe = RecvWqe {
            wr_id,
            dma: DmaInfo {
                length: sge.length,
                num_sge: 1,
                ..DmaInfo::default()
            },
            ..RecvWqe::default()
        };
        self.write(qp.rq, qp.rq_producer, 0, wqe);
        self.write(qp.rq, qp.rq_producer, RECV_WQE_SGES, sge);
        qp.rq_producer = (qp.rq_producer + 1) & qp.rq.mask;
        self.file
            .store_u32(qp.rq.offset + Q_PRODUCER, qp.rq_producer);
    }

    /// Rings the doorbell of a QP.
    pub fn ring(&self, qp: &ProducerQp) {
        let word = u64::from(qp.handle / 64);
        self.file
            .atomic_u64(DOORBELL_OFFSET + DB_BELLS + 8 * word)
            .fetch_or(1 << (qp.handle % 64), Ordering::SeqCst);
        let summary = self
            .file
            .atomic_u64(DOORBELL_OFFSET + DB_SUMMARY + 8 * (word / 64));
        let bit = 1 << (word % 64);
        if summary.load(Ordering::SeqCst) & bit == 0 {
            summary.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// The next completion.
    pub fn poll_cq(&mut self) -> Option<Cqe> {
        let producer = self
            .file
            .atomic_u32(self.cq.offset + Q_PRODUCER)
            .load(Ordering::Acquire)
            & self.cq.mask;
        if producer == self.cq_consumer {
            return None;
        }
        let offset = self.cq.offset + Q_DATA + (u64::from(self.cq_consumer) << self.cq.log2_elem);
        let from = self.file.at(offset, size_of::<Cqe>() as u64);
        // SAFETY: in bounds, aligned, and written before the producer index.
        let cqe = unsafe { from.cast::<Cqe>().as_ptr().read_volatile() };
        self.cq_consumer = (self.cq_consumer + 1) & self.cq.mask;
        self.file
            .store_u32(self.cq.offset + Q_CONSUMER, self.cq_consumer);
        Some(cqe)
    }
}
