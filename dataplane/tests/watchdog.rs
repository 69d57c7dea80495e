//! A polling thread that hangs: its process ends, another comes, and nothing of the kind happens to one that is stopped.
//!
//! The test makes it hang as a fault would: it moves the thread by ptrace(2) to an instruction that jumps to itself, or to a
//! system call that does not return.
#![cfg(target_arch = "x86_64")]

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use support::daemon::{Daemon, PAIR};
use support::{PATIENCE, alone, wait_for};

/// `jmp .` and `syscall`.
const LOOP: [u8; 2] = [0xeb, 0xfe];
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The polling thread of a worker.
fn polling_thread(worker: u32) -> i32 {
    let tasks = fs::read_dir(format!("/proc/{worker}/task")).expect("the worker lives");
    let names = tasks.flatten().map(|task| task.path());
    let found = names
        .into_iter()
        .find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "lcore0\n"));
    let path = found.expect("a thread named lcore0");
    let number = path.file_name().and_then(|name| name.to_str());
    number.expect("a number").parse().expect("a number")
}

/// An address of the worker's code where these two bytes are; an error if this process may not look.
fn find(worker: u32, bytes: [u8; 2]) -> io::Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{worker}/maps"))?;
    let memory = File::open(format!("/proc/{worker}/mem"))?;
    for line in maps.lines().filter(|line| line.contains(" r-xp ")) {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two addresses");
        let start = u64::from_str_radix(start, 16).expect("a number");
        let end = u64::from_str_radix(end, 16).expect("a number");
        let mut code = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut code, start).is_err() {
            continue;
        }
        if let Some(at) = code.windows(2).position(|window| window == bytes) {
            return Ok(start + at as u64);
        }
    }
    panic!("no {bytes:02x?} in the worker's code");
}

/// One request of ptrace(2), with the thread's registers if it is about those.
fn ptrace(
    request: u32,
    thread: i32,
    registers: Option<&mut libc::user_regs_struct>,
) -> io::Result<()> {
    let registers: *mut libc::user_regs_struct = match registers {
        Some(registers) => registers,
        None => std::ptr::null_mut(),
    };
    // SAFETY: the requests made with this read or write a set of registers, or nothing.
    let result = unsafe { libc::ptrace(request, thread, 0usize, registers) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets a thread go on at `at`, with `number` as the system call if there is one. False if this process may not.
fn move_to(thread: i32, at: io::Result<u64>, number: u64) -> bool {
    let seized = at.and_then(|at| ptrace(libc::PTRACE_SEIZE, thread, None).map(|()| at));
    let at = match seized {
        Ok(at) => at,
        Err(error) => {
            eprintln!("skipped: threads cannot be traced here ({error})");
            return false;
        }
    };
    ptrace(libc::PTRACE_INTERRUPT, thread, None).expect("a traced thread");
    // SAFETY: waits for the thread; no status is asked for.
    let waited = unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) };
    assert_eq!(waited, thread, "{}", io::Error::last_os_error());
    // SAFETY: zeroes are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, thread, Some(&mut registers)).expect("a stopped thread");
    registers.rip = at;
    registers.rax = number;
    // No system call is to be begun again.
    registers.orig_rax = u64::MAX;
    ptrace(libc::PTRACE_SETREGS, thread, Some(&mut registers)).expect("a stopped thread");
    ptrace(libc::PTRACE_DETACH, thread, None).expect("a stopped thread");
    true
}

#[test]
fn a_polling_thread_that_hangs_is_ended_and_one_that_is_stopped_is_not() {
    let _alone = alone();
    let config = PAIR.replace("[[lcore]]\n", "[[lcore]]\nwatchdog_s = 1\n");
    assert_ne!(config, PAIR);
    let mut daemon = Daemon::start(&config);
    let worker = daemon.worker();
    daemon.kill_worker(libc::SIGSTOP);
    thread::sleep(Duration::from_secs(2));
    daemon.kill_worker(libc::SIGCONT);
    daemon.expect_ready();
    assert_eq!(daemon.worker(), worker, "{}", daemon.log());

    for (what, bytes, number, said) in [
        ("loops", LOOP, 0, "finishes no round"),
        ("waits", SYSCALL, libc::SYS_pause as u64, "does not come"),
    ] {
        let worker = daemon.worker();
        let thread = polling_thread(worker);
        let at = find(worker, bytes);
        if !move_to(thread, at, number) {
            return;
        }
        wait_for("another worker", PATIENCE, || {
            daemon.find_worker().is_some_and(|now| now != worker)
        });
        daemon.expect_ready();
        let log = daemon.log();
        assert!(
            log.contains(said) && log.contains("SIGABRT"),
            "{what}: {log}"
        );
        let listed = daemon.run_program(what, "ibv_devinfo", &["-d", "roce1"]);
        assert!(listed.ok(), "{what}: {}", listed.report());
    }
}
