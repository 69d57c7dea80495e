//! System calls made directly, past every interposed function, ours included; and the lock that the slow paths
//! share. Nothing here allocates.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{iovec, mode_t, msghdr, off_t, size_t, ssize_t};

/// `syscall` with every argument widened to a register, as its variadic form demands.
macro_rules! syscall {
    ($number:ident $(, $arg:expr)*) => {
        libc::syscall(libc::$number $(, $arg as usize)*)
    };
}

/// Sets `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: glibc returns a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Reads `errno`.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// What a failed call returns in C: -1 or a null pointer.
pub trait Fail {
    /// That value.
    const FAIL: Self;
}

impl Fail for c_int {
    const FAIL: c_int = -1;
}

impl Fail for ssize_t {
    const FAIL: ssize_t = -1;
}

impl<T> Fail for *mut T {
    const FAIL: *mut T = std::ptr::null_mut();
}

/// Sets `errno` and gives what the caller returns then.
pub fn fail<R: Fail>(errno: c_int) -> R {
    set_errno(errno);
    R::FAIL
}

/// openat(2).
///
/// # Safety
/// As for the system call: `path` is a C string or a bad address that the kernel refuses.
pub unsafe fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the kernel checks the address.
    unsafe { syscall!(SYS_openat, dir, path, flags, mode) as c_int }
}

/// Opens an absolute path without following the shim's own redirections.
pub fn open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: `path` is a C string.
    unsafe { openat(libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0) }
}

/// close(2).
pub fn close(fd: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_close, fd) as c_int }
}

/// read(2) into a slice.
pub fn read(fd: c_int, into: &mut [u8]) -> ssize_t {
    // SAFETY: the kernel writes at most the slice.
    unsafe { syscall!(SYS_read, fd, into.as_mut_ptr(), into.len()) as ssize_t }
}

/// write(2) of a slice.
pub fn write_bytes(fd: c_int, bytes: &[u8]) -> ssize_t {
    // SAFETY: the slice is readable.
    unsafe { write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

/// write(2).
///
/// # Safety
/// As for the system call.
pub unsafe fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the kernel checks the address.
    unsafe { syscall!(SYS_write, fd, bytes, len) as ssize_t }
}

/// newfstatat(2).
///
/// # Safety
/// As for the system call.
pub unsafe fn fstatat(
    dir: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the kernel checks the addresses; struct stat is the kernel's on 64-bit targets.
    unsafe { syscall!(SYS_newfstatat, dir, path, into, flags) as c_int }
}

/// Device and inode of an open file.
pub fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: zeroes are a valid struct stat.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is writable and the path a C string.
    let r = unsafe { fstatat(fd, c"".as_ptr(), &mut st, libc::AT_EMPTY_PATH) };
    (r == 0).then_some((st.st_dev, st.st_ino))
}

/// Whether an open file lies in memory: in a tmpfs or hugetlbfs, as memory objects do.
pub fn is_memory(fd: c_int) -> bool {
    /// `statfs(2)`.
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    // SAFETY: zeroes are a valid struct statfs.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `fs` is writable; it is the kernel's structure on 64-bit targets.
    let r = unsafe { syscall!(SYS_fstatfs, fd, &raw mut fs) as c_int };
    r == 0 && [TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&(fs.f_type as i64))
}

/// faccessat(2): with the real ids.
///
/// # Safety
/// As for the system call.
pub unsafe fn faccessat(dir: c_int, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the kernel checks the address.
    unsafe { syscall!(SYS_faccessat, dir, path, mode) as c_int }
}

/// readlinkat(2).
///
/// # Safety
/// As for the system call.
pub unsafe fn readlinkat(
    dir: c_int,
    path: *const c_char,
    into: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the kernel checks the addresses.
    unsafe { syscall!(SYS_readlinkat, dir, path, into, len) as ssize_t }
}

/// statx(2).
///
/// # Safety
/// As for the system call.
pub unsafe fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    into: *mut libc::statx,
) -> c_int {
    // SAFETY: the kernel checks the addresses.
    unsafe { syscall!(SYS_statx, dir, path, flags, mask, into) as c_int }
}

/// fcntl(2) with an integer or pointer argument.
///
/// # Safety
/// As for the system call.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the kernel checks an address.
    unsafe { syscall!(SYS_fcntl, fd, command, argument) as c_int }
}

/// Duplicates `fd` at `floor` or above, close-on-exec.
pub fn dup_above(fd: c_int, floor: c_int) -> c_int {
    // SAFETY: this command takes an integer.
    unsafe { fcntl(fd, libc::F_DUPFD_CLOEXEC, floor as usize) }
}

/// Clears the close-on-exec flag.
pub fn keep_on_exec(fd: c_int) {
    // SAFETY: this command takes an integer.
    unsafe { fcntl(fd, libc::F_SETFD, 0) };
}

/// dup(2).
pub fn dup(fd: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_dup, fd) as c_int }
}

/// dup3(2).
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_dup3, from, to, flags) as c_int }
}

/// close_range(2).
pub fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_close_range, first, last, flags) as c_int }
}

/// socket(2).
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_socket, domain, kind, protocol) as c_int }
}

/// connect(2) to a Unix socket.
pub fn connect(fd: c_int, address: &libc::sockaddr_un) -> c_int {
    let len = size_of::<libc::sockaddr_un>();
    // SAFETY: the address is as long as said.
    unsafe { syscall!(SYS_connect, fd, std::ptr::from_ref(address), len) as c_int }
}

/// shutdown(2) of both directions: a thread that waits for a reply returns.
pub fn shutdown(fd: c_int) {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_shutdown, fd, libc::SHUT_RDWR) };
}

/// sendmsg(2), repeated when interrupted.
///
/// # Safety
/// `message` points to readable memory.
pub unsafe fn sendmsg(fd: c_int, message: &msghdr) -> ssize_t {
    loop {
        // SAFETY: by the caller's promise.
        let n = unsafe {
            syscall!(
                SYS_sendmsg,
                fd,
                std::ptr::from_ref(message),
                libc::MSG_NOSIGNAL
            ) as ssize_t
        };
        if n >= 0 || errno() != libc::EINTR {
            return n;
        }
    }
}

/// recvmsg(2), repeated when interrupted; passed fds are close-on-exec.
///
/// # Safety
/// `message` points to writable memory.
pub unsafe fn recvmsg(fd: c_int, message: &mut msghdr) -> ssize_t {
    loop {
        // SAFETY: by the caller's promise.
        let n = unsafe {
            syscall!(
                SYS_recvmsg,
                fd,
                std::ptr::from_mut(message),
                libc::MSG_CMSG_CLOEXEC
            ) as ssize_t
        };
        if n >= 0 || errno() != libc::EINTR {
            return n;
        }
    }
}

/// Maps new private memory, or the start of `file` shared.
pub fn map(len: usize, file: Option<c_int>) -> Option<*mut u8> {
    let (flags, fd) = match file {
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        Some(fd) => (libc::MAP_SHARED, fd),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let offset: off_t = 0;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let p = unsafe { syscall!(SYS_mmap, 0, len, protection, flags, fd, offset) };
    (p != -1).then_some(p as usize as *mut u8)
}

/// Maps all of `file` shared, without a claim on memory for what is never touched.
pub fn map_sparse(len: usize, file: c_int) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let offset: off_t = 0;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let p = unsafe { syscall!(SYS_mmap, 0, len, protection, flags, file, offset) };
    (p != -1).then_some(p as usize as *mut u8)
}

/// Whether the other end of a connection is gone, or the descriptor itself.
pub fn hung_up(fd: c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one live entry, and no waiting.
    let n = unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) };
    n > 0
}

/// Milliseconds of the monotonic clock.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills in a live timespec.
    unsafe { syscall!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Nanoseconds of the same clock, by the vDSO: no system call where the machine's clock needs none.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills in a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Unmaps.
///
/// # Safety
/// Nobody uses the range any more.
pub unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { syscall!(SYS_munmap, base, len) };
}

/// mmap(2).
///
/// # Safety
/// With `MAP_FIXED`, what was mapped there is no longer used, or has the same bytes.
pub unsafe fn mmap(
    address: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> Option<usize> {
    // SAFETY: by the caller's promise.
    let p = unsafe { syscall!(SYS_mmap, address, len, protection, flags, fd, offset) };
    (p != -1).then_some(p as usize)
}

/// mremap(2) to a fixed address.
///
/// # Safety
/// What was mapped at `to` is no longer used, or has the same bytes.
pub unsafe fn move_mapping(from: usize, len: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: by the caller's promise.
    unsafe { syscall!(SYS_mremap, from, len, len, flags, to) != -1 }
}

/// mprotect(2).
///
/// # Safety
/// Nobody relies on the old protection.
pub unsafe fn mprotect(address: usize, len: usize, protection: c_int) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { syscall!(SYS_mprotect, address, len, protection) == 0 }
}

/// madvise(2).
pub fn madvise(address: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: the kernel checks the range; the callers here give advice that keeps what the program sees.
    unsafe { syscall!(SYS_madvise, address, len, advice) as c_int }
}

/// memfd_create(2) of an object that can be sealed, close-on-exec; `more` says which size of huge pages. It says that nobody will execute it, as
/// `vm.memfd_noexec = 2` demands and kernels before 6.3 do not understand.
pub fn memfd_create(name: &CStr, more: u32) -> c_int {
    const NOEXEC_SEAL: u32 = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
    for flags in [flags | NOEXEC_SEAL, flags] {
        // SAFETY: the name is a C string.
        let fd = unsafe { syscall!(SYS_memfd_create, name.as_ptr(), flags) as c_int };
        if fd >= 0 || errno() != libc::EINVAL {
            return fd;
        }
    }
    -1
}

/// ftruncate(2).
pub fn ftruncate(fd: c_int, len: u64) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_ftruncate, fd, len) as c_int }
}

/// fcntl(2) with `F_ADD_SEALS`.
pub fn add_seals(fd: c_int, seals: c_int) -> c_int {
    // SAFETY: this command takes an integer.
    unsafe { fcntl(fd, libc::F_ADD_SEALS, seals as usize) }
}

/// fallocate(2): gives pages of a file back; they read as zeroes.
pub fn punch_hole(fd: c_int, offset: u64, len: usize) -> c_int {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: only integers.
    unsafe { syscall!(SYS_fallocate, fd, mode, offset, len) as c_int }
}

/// lseek(2) to the next data or hole.
pub fn seek(fd: c_int, offset: u64, whence: c_int) -> Option<u64> {
    // SAFETY: only integers.
    let at = unsafe { syscall!(SYS_lseek, fd, offset, whence) };
    u64::try_from(at).ok()
}

/// pread(2) to an address of the caller's.
///
/// # Safety
/// Nobody else uses the bytes.
pub unsafe fn pread(fd: c_int, into: usize, len: usize, offset: u64) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe { syscall!(SYS_pread64, fd, into, len, offset) as ssize_t }
}

/// pwrite(2) from an address. The kernel checks it.
pub fn pwrite(fd: c_int, from: usize, len: usize, offset: u64) -> ssize_t {
    // SAFETY: only reads memory, and the kernel checks the address.
    unsafe { syscall!(SYS_pwrite64, fd, from, len, offset) as ssize_t }
}

/// userfaultfd(2).
pub fn userfaultfd(flags: c_int) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_userfaultfd, flags) as c_int }
}

/// ioctl(2) on an array that the kernel reads and writes.
pub fn ioctl<const N: usize>(fd: c_int, request: usize, argument: &mut [u64; N]) -> c_int {
    // SAFETY: the size in the callers' requests is at most the array's.
    unsafe { syscall!(SYS_ioctl, fd, request, argument.as_mut_ptr()) as c_int }
}

/// ioctl(2) with an integer.
pub fn ioctl_value(fd: c_int, request: usize, argument: usize) -> c_int {
    // SAFETY: only integers.
    unsafe { syscall!(SYS_ioctl, fd, request, argument) as c_int }
}

/// pipe2(2), close-on-exec.
pub fn pipe() -> Option<[c_int; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two fds.
    let r = unsafe { syscall!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
    (r == 0).then_some(ends)
}

/// Blocks all signals of this thread; gives the old mask.
pub fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: both are as long as said.
    unsafe {
        syscall!(
            SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            &raw mut old,
            8
        )
    };
    old
}

/// Sets the signal mask of this thread.
pub fn restore_signals(old: u64) {
    // SAFETY: as long as said.
    unsafe {
        syscall!(
            SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const old,
            std::ptr::null::<u64>(),
            8
        )
    };
}

/// Threads of this process; 0 if that cannot be known. `/proc/self/task` has a link for each, and two of its own.
pub fn threads() -> u64 {
    // SAFETY: zeroes are a valid struct stat.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is writable and the path a C string.
    let r = unsafe { fstatat(libc::AT_FDCWD, c"/proc/self/task".as_ptr(), &mut st, 0) };
    if r == 0 {
        st.st_nlink.saturating_sub(2)
    } else {
        0
    }
}

/// Whether the size of files is limited (`RLIMIT_FSIZE`).
pub fn has_file_size_limit() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    unsafe { syscall!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// The soft limit of the stack's size.
pub fn stack_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 8 << 20,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    unsafe { syscall!(SYS_prlimit64, 0, libc::RLIMIT_STACK, 0, &raw mut limit) };
    limit.rlim_cur
}

/// Reads entries of a directory (`getdents64(2)`).
pub fn getdents(fd: c_int, into: &mut [u8]) -> ssize_t {
    // SAFETY: the kernel writes at most the slice.
    unsafe { syscall!(SYS_getdents64, fd, into.as_mut_ptr(), into.len()) as ssize_t }
}

/// getpid(2).
pub fn getpid() -> u32 {
    // SAFETY: no argument.
    unsafe { syscall!(SYS_getpid) as u32 }
}

/// The soft limit of open files.
pub fn file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: `limit` is writable.
    unsafe { syscall!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    limit.rlim_cur
}

/// A random number that is not 0.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most the array.
    unsafe { syscall!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes).max(1)
}

/// Gives the CPU to another runnable thread.
#[inline]
pub fn yield_now() {
    // SAFETY: no argument.
    unsafe { syscall!(SYS_sched_yield) };
}

/// CPUs that this process may run on.
pub fn allowed_cpus() -> usize {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the array.
    let bytes = unsafe {
        syscall!(
            SYS_sched_getaffinity,
            0,
            size_of_val(&mask),
            mask.as_mut_ptr()
        )
    };
    if bytes <= 0 {
        return usize::MAX;
    }
    mask.iter().map(|w| w.count_ones() as usize).sum()
}

/// An `iovec` of a slice.
pub fn iov(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// A number of this thread: that of its `errno`. The child of a fork has its parent thread's, that of a vfork does not count.
pub fn this_thread() -> usize {
    // SAFETY: glibc returns a valid pointer.
    unsafe { libc::__errno_location() }.addr()
}

/// A futex lock without poisoning that the child of a fork can reset. The thread that forks holds all of them from one of our
/// handlers to the other, and is let through meanwhile.
#[derive(Debug)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_WAITERS: u32 = 2;

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits for the lock and holds it until the guard goes.
    pub fn hold(&self) -> Held<'_> {
        if self.try_acquire() {
            return Held(Some(self));
        }
        if crate::fork::is_this_thread() {
            return Held(None);
        }
        self.acquire();
        Held(Some(self))
    }

    fn try_acquire(&self) -> bool {
        let taken = self
            .0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Waits for the lock.
    pub fn acquire(&self) {
        if self.try_acquire() {
            return;
        }
        // As there may be other waiters, the lock is taken in the state that says so.
        while self.0.swap(HELD_WITH_WAITERS, Ordering::Acquire) != FREE {
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word outlives the call.
            unsafe { syscall!(SYS_futex, self.0.as_ptr(), op, HELD_WITH_WAITERS, 0) };
        }
    }

    /// Frees the lock, whoever holds it.
    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == HELD_WITH_WAITERS {
            let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word outlives the call.
            unsafe { syscall!(SYS_futex, self.0.as_ptr(), op, 1) };
        }
    }
}

/// A held [`Lock`].
#[derive(Debug)]
pub struct Held<'a>(Option<&'a Lock>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            lock.release();
        }
    }
}
