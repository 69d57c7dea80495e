//! Layout of the *context file*: one sealed, sparse memfd per open of a device. It is at the same
//! time the `cmd_fd` that rdma-core sees, so a plain `mmap(cmd_fd, offset)` of a queue works even
//! when it is made by raw system call.
//!
//! ```text
//! 0        guard: a stray raw write() lands here and harms nothing
//! 1 MiB    doorbell areas, one of 64 KiB per lcore slot
//! 2 MiB    CQ arm words, one u32 per CQ handle
//! 3 MiB    words about the end of the daemon (`objects`), then a bit for each QP that takes no sends yet
//! 4 MiB    records of QPs (`objects`)
//! 8 MiB    records of CQs
//! 16 MiB   floor of the queues
//!   ...    queues, handed out from the end of the file downwards (adjacent mappings then merge)
//! 16 GiB   end
//! ```

/// Size of the context file. Sparse: only touched pages cost memory.
pub const FILE_BYTES: u64 = 16 << 30;
/// The first queue byte is never below this offset.
pub const QUEUE_FLOOR: u64 = 16 << 20;
/// Offset of the doorbell area of lcore slot 0.
pub const DOORBELL_OFFSET: u64 = 1 << 20;
/// Bytes between the doorbell areas of two lcore slots.
pub const DOORBELL_STRIDE: u64 = 64 << 10;
/// Lcore slots that have a doorbell area.
pub const MAX_LCORE_SLOTS: usize = 16;
/// Offset of the CQ arm words.
pub const ARM_OFFSET: u64 = 2 << 20;
/// CQs that a context can hold: handles are below this.
pub const MAX_CQS: usize = 1 << 16;
/// QPs that a context can hold: the doorbell index of a handle is below this.
pub const MAX_QPS: usize = 1 << 16;
/// The shim maps this much from the start of the file: guard, doorbells, arm words, and those about the daemon's end.
pub const CONTROL_BYTES: u64 = 4 << 20;

/// A QP handle is `lcore slot << QP_SLOT_SHIFT | doorbell index`.
pub const QP_SLOT_SHIFT: u32 = 20;

/// Offset, in a doorbell area, of the u32 that is non-zero while the lcore sleeps or is about to.
///
/// The program rings a bell, then reads the flag and, if it is set, swaps it to 0 and writes 1 to the wake
/// eventfd: one of many rings makes the call. The lcore sets the flag before each sleep, then looks at all bells
/// once more. Both sides have a sequentially consistent fence between their store and their load, so one of them
/// sees the other.
pub const DB_SLEEPING: u64 = 0;
/// Offset of the summary: `u64[16]`, bit `w` says that bell word `w` may be non-zero.
pub const DB_SUMMARY: u64 = 128;
/// Number of summary words.
pub const DB_SUMMARY_WORDS: usize = MAX_QPS / 64 / 64;
/// Offset of the bell words: `u64[1024]`, bit `i % 64` of word `i / 64` rings for doorbell index `i`.
///
/// To ring: set the bell bit, then read the summary bit and set it if it is clear. To serve: swap
/// the summary word to 0, then swap each bell word it names to 0. All four are locked operations or
/// ordered behind one, so a ring is never lost. While a context has no more doorbells than one word holds, the daemon looks at
/// that word itself and leaves the summary's bit set.
pub const DB_BELLS: u64 = 4096;

/// Offset of `u64[1024]`: bit `i % 64` of word `i / 64` is set while the QP with doorbell index `i` is in RESET, INIT or RTR,
/// in which a send request is refused (IBTA 10.3.1). The daemon writes it when the program modifies the QP, the shim reads it when
/// the program rings.
pub const CLOSED_OFFSET: u64 = crate::objects::END_LOCK + 4096;

/// Arm word: no event wanted.
pub const ARM_NONE: u32 = 0;
/// Arm word: event on the next solicited completion or error.
pub const ARM_SOLICITED: u32 = 1;
/// Arm word: event on the next completion.
pub const ARM_NEXT: u32 = 2;

const _: () = assert!(DB_BELLS + (MAX_QPS as u64) / 8 <= DOORBELL_STRIDE);
const _: () = assert!(DOORBELL_OFFSET + DOORBELL_STRIDE * MAX_LCORE_SLOTS as u64 <= ARM_OFFSET);
const _: () = assert!(ARM_OFFSET + 4 * MAX_CQS as u64 <= crate::objects::END_LOCK);
const _: () = assert!(CLOSED_OFFSET + (MAX_QPS as u64) / 8 <= CONTROL_BYTES);
const _: () = assert!(CONTROL_BYTES <= QUEUE_FLOOR);
const _: () = assert!(MAX_QPS <= 1 << QP_SLOT_SHIFT);
