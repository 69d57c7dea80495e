//! `write(cmd_fd)`: the uverbs command interface of `rdma/ib_user_verbs.h`, answered from shared memory where that
//! is possible and by the daemon otherwise.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use libc::{size_t, ssize_t};
use roceline_abi::control::{
    CREATE_CQ_CHANNEL_AT, EX_CREATE_CQ_CHANNEL_AT, Kind, MAX_PAYLOAD, NO_FD,
};

use crate::client::{self, Broken, Reply};
use crate::context::Context;
use crate::memory;
use crate::say::{say, say_once, text};
use crate::sys::{self, fail};
use crate::table::{self, Role};
use crate::turn;
use crate::view;

/// Flag of an extended command.
const EXTENDED: u32 = 0x8000_0000;
const REG_MR: u32 = 9;
const DEREG_MR: u32 = 13;
const CREATE_COMP_CHANNEL: u32 = 17;
const CREATE_CQ: u32 = 18;
const REQ_NOTIFY_CQ: u32 = 23;
const POST_SEND: u32 = 28;
/// `struct ib_uverbs_cmd_hdr`: command, in_words, out_words.
const HEADER: usize = 8;
/// With `struct ib_uverbs_ex_cmd_hdr`: response, provider_in_words, provider_out_words, reserved.
const EX_HEADER: usize = 24;
/// A POST_SEND without work requests: header, response, qp_handle, wr_count, sge_count, wqe_size.
const DOORBELL: usize = 32;
/// A REQ_NOTIFY_CQ: header, cq_handle, solicited_only.
const NOTIFY: usize = 16;

/// Serves a write to `cmd_fd`.
///
/// # Safety
/// `bytes` is readable for `len` bytes, as for `write`, and the response address in it is writable as it says.
#[inline]
pub unsafe fn write(
    context: &'static Context,
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
) -> Option<ssize_t> {
    // SAFETY: in bounds of what the caller promises.
    let word = |at: usize| unsafe { bytes.cast::<u8>().add(at).cast::<u32>().read_unaligned() };
    if len == DOORBELL && word(0) == POST_SEND && word(20) == 0 && word(24) == 0 {
        let rung = context.ring(word(16));
        turn::rung();
        return Some(done(rung, len));
    }
    if len == NOTIFY && word(0) == REQ_NOTIFY_CQ {
        return Some(done(context.arm(word(8), word(12) != 0), len));
    }
    // SAFETY: by the caller's promise.
    unsafe { forward(context, fd, bytes, len) }
}

fn done(result: Result<(), c_int>, len: usize) -> ssize_t {
    match result {
        Ok(()) => len as ssize_t,
        Err(errno) => fail(errno),
    }
}

/// What the header of a command says.
#[derive(Debug)]
struct Command<'a> {
    bytes: &'a [u8],
    number: u32,
    /// Where the answer goes, and how much of it.
    response: *mut u8,
    room: usize,
}

impl<'a> Command<'a> {
    /// Checks the lengths as the kernel does.
    fn parse(bytes: &'a [u8]) -> Option<Command<'a>> {
        let u16_at = |at: usize| Some(usize::from(u16::from_ne_bytes(array(bytes, at)?)));
        let number = u32::from_ne_bytes(array(bytes, 0)?);
        let (in_words, out_words) = (u16_at(4)?, u16_at(6)?);
        let pointer = u64::from_ne_bytes(array(bytes, HEADER).unwrap_or_default());
        let (len, room) = if number & EXTENDED == 0 {
            (4 * in_words, 4 * out_words)
        } else {
            let (provider_in, provider_out) = (u16_at(16)?, u16_at(18)?);
            (
                EX_HEADER + 8 * (in_words + provider_in),
                8 * (out_words + provider_out),
            )
        };
        // A command without a response has no address in it either.
        let room = if pointer == 0 { 0 } else { room };
        let response = std::ptr::with_exposed_provenance_mut(pointer as usize);
        (len == bytes.len() && len <= MAX_PAYLOAD).then_some(Command {
            bytes,
            number,
            response,
            room,
        })
    }

    /// Offset of the completion channel's fd, if the command has one.
    fn channel_at(&self) -> Option<usize> {
        let at = match self.number {
            CREATE_CQ => CREATE_CQ_CHANNEL_AT,
            n if n == EXTENDED | CREATE_CQ => EX_CREATE_CQ_CHANNEL_AT,
            _ => return None,
        };
        (at + 4 <= self.bytes.len()).then_some(at)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Hands a command to the daemon. `None` if the fd is none of ours any more: the write is not a command.
///
/// # Safety
/// As for [`write`].
#[cold]
unsafe fn forward(
    context: &'static Context,
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
) -> Option<ssize_t> {
    if !table::is_current(fd) {
        if table::is_owner() {
            let _held = table::LOCK.hold();
            table::remove(fd);
        }
        return None;
    }
    if !table::is_owner() {
        // The child of a vfork or a bare clone: the connection is the parent's.
        return Some(fail(libc::EIO));
    }
    if bytes.is_null() || len > MAX_PAYLOAD {
        return Some(fail(libc::EINVAL));
    }
    // SAFETY: by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    let Some(command) = Command::parse(bytes) else {
        return Some(fail(libc::EINVAL));
    };
    let errno = sys::errno();
    let result = ask(context, &command);
    if result.is_ok() {
        sys::set_errno(errno);
    }
    Some(done(result, len))
}

fn ask(context: &'static Context, command: &Command<'_>) -> Result<(), c_int> {
    let _request = context.lock.hold();
    let socket = context.socket().ok_or_else(|| {
        if context.is_parents() {
            say_parents(command.number & !EXTENDED);
        }
        libc::EIO
    })?;
    // SAFETY: the lock is held.
    let into = unsafe { &mut *context.reply.get() };

    let region = match command.number {
        REG_MR => memory::Registration::parse(command.bytes),
        _ => None,
    };
    if let Some(region) = &region {
        memory::prepare(context, socket, region, into)?;
    }
    let answered = answer(context, socket, command, into);
    if region.is_some() {
        memory::registered(context, answered.ok());
    }
    if let (DEREG_MR, Ok(_), Some(handle)) =
        (command.number, answered, array(command.bytes, HEADER))
    {
        memory::deregistered(context, u32::from_ne_bytes(handle));
    }
    answered.map(|_| ())
}

/// Says to the child of a fork why it gets nothing. To give back what it has of the parent's is no mistake: exit handlers do.
fn say_parents(number: u32) {
    const GIVE_BACK: [u32; 8] = [4, 6, DEREG_MR, 16, 20, 27, 31, 35];
    static SAID: AtomicBool = AtomicBool::new(false);
    if !GIVE_BACK.contains(&number) {
        say_once(
            &SAID,
            format_args!(
                "this process was forked by the one that opened the device, and RDMA objects stay with that one: \
                 open the device here, after the fork"
            ),
        );
    }
}

/// Asks the daemon, and gives the program what it answers. The first word of the answer, the handle of a new object, comes back.
fn answer(
    context: &'static Context,
    socket: c_int,
    command: &Command<'_>,
    into: &mut [u8],
) -> Result<u32, c_int> {
    let handle;
    let pieces = match patched_channel(context, command)? {
        None => [command.bytes, &[], &[]],
        Some((at, h)) => {
            handle = h.to_ne_bytes();
            [&command.bytes[..at], &handle[..], &command.bytes[at + 4..]]
        }
    };
    let mut reply =
        client::exchange(socket, Kind::Uverbs, pieces, None, into).map_err(|e| match e {
            Broken::NoRoomForFd => libc::EMFILE,
            Broken::Gone | Broken::Garbled => {
                context.lose();
                libc::EIO
            }
        })?;
    if reply.header.error != 0 {
        if view::env(c"ROCELINE_DEBUG").is_some() {
            let (number, reason) = (command.number & !EXTENDED, text(&into[..reply.len]));
            say(format_args!("command {number}: {reason}"));
        }
        return Err(reply.header.error);
    }
    let len = reply.len.min(command.room);
    let answer = &mut into[..len];
    store_fd(context, command, &mut reply, answer)?;
    // SAFETY: the program says that it has this much room there; the kernel would trust it in the same way, except
    // that a bad address is a fault here. The buffers differ: ours is in no program's hands.
    unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), command.response, len) };
    Ok(u32::from_ne_bytes(array(answer, 0).unwrap_or_default()))
}

/// Offset and value that replace the fd of a completion channel by its handle.
fn patched_channel(
    context: &Context,
    command: &Command<'_>,
) -> Result<Option<(usize, u32)>, c_int> {
    let Some(at) = command.channel_at() else {
        return Ok(None);
    };
    let fd = c_int::from_ne_bytes(array(command.bytes, at).unwrap_or_default());
    if fd < 0 {
        return Ok(None);
    }
    // The kernel's answer to an fd that is no completion channel of this context.
    let handle = table::channel(context, fd).ok_or(libc::EINVAL)?;
    Ok(Some((at, handle)))
}

/// Puts the number of a passed fd in its place in the answer, and remembers which channel it is.
fn store_fd(
    context: &'static Context,
    command: &Command<'_>,
    reply: &mut Reply,
    answer: &mut [u8],
) -> Result<(), c_int> {
    if reply.header.fd_at == NO_FD {
        return Ok(());
    }
    let at = reply.header.fd_at as usize;
    let place = answer
        .get_mut(at..)
        .and_then(|a| a.get_mut(..4))
        .ok_or(libc::EINVAL)?;
    let fd = reply.take_fd().ok_or(libc::EIO)?;
    if command.number == CREATE_COMP_CHANNEL {
        let handle = u32::from_ne_bytes(array(place, 0).unwrap_or_default());
        let _held = table::LOCK.hold();
        if !table::enter(fd, context, Role::Channel, handle) {
            sys::close(fd);
            return Err(libc::EMFILE);
        }
    }
    place.copy_from_slice(&fd.to_ne_bytes());
    Ok(())
}

/// Tells the daemon that a completion channel was closed.
pub fn close_channel(context: &Context, handle: u32) {
    let _request = context.lock.hold();
    let Some(socket) = context.socket() else {
        return;
    };
    let payload: [&[u8]; 3] = [&handle.to_ne_bytes(), &[], &[]];
    if client::exchange(socket, Kind::CloseChannel, payload, None, &mut []).is_err() {
        context.lose();
    }
}
