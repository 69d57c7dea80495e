/* Executes a program as container runtimes do by default: without the right to gain rights, and under the system call filter of
 * the Docker engine's default profile (moby, profiles/seccomp/default.json) for a container without capabilities. Shows
 * first that the filter is there.
 *
 *   contained PROGRAM [ARGUMENT...]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the profile allows whatever the arguments, as far as x86-64 has it; io_uring, which newer ones forbid, left out. */
static const uint16_t allowed[] = {
	SYS_accept, SYS_accept4, SYS_access, SYS_adjtimex, SYS_alarm, SYS_arch_prctl, SYS_bind, SYS_brk, SYS_capget,
	SYS_capset, SYS_chdir, SYS_chmod, SYS_chown, SYS_clock_adjtime, SYS_clock_getres, SYS_clock_gettime,
	SYS_clock_nanosleep, SYS_close, SYS_close_range, SYS_connect, SYS_copy_file_range, SYS_creat, SYS_dup, SYS_dup2,
	SYS_dup3, SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_epoll_wait,
	SYS_eventfd, SYS_eventfd2, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_faccessat2,
	SYS_fadvise64, SYS_fallocate, SYS_fanotify_mark, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat,
	SYS_fcntl, SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock, SYS_fork, SYS_fremovexattr, SYS_fsetxattr,
	SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex, SYS_futex_waitv, SYS_futimesat, SYS_getcpu,
	SYS_getcwd, SYS_getdents, SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getitimer,
	SYS_getpeername, SYS_getpgid, SYS_getpgrp, SYS_getpid, SYS_getppid, SYS_getpriority, SYS_getrandom,
	SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_get_robust_list, SYS_getrusage, SYS_getsid, SYS_getsockname,
	SYS_getsockopt, SYS_get_thread_area, SYS_gettid, SYS_gettimeofday, SYS_getuid, SYS_getxattr,
	SYS_inotify_add_watch, SYS_inotify_init, SYS_inotify_init1, SYS_inotify_rm_watch, SYS_io_cancel, SYS_ioctl,
	SYS_io_destroy, SYS_io_getevents, SYS_io_pgetevents, SYS_ioprio_get, SYS_ioprio_set, SYS_io_setup, SYS_io_submit,
	SYS_kill, SYS_landlock_add_rule, SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_lchown,
	SYS_lgetxattr, SYS_link, SYS_linkat, SYS_listen, SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lseek,
	SYS_lsetxattr, SYS_lstat, SYS_madvise, SYS_membarrier, SYS_memfd_create, SYS_memfd_secret, SYS_mincore,
	SYS_mkdir, SYS_mkdirat, SYS_mknod, SYS_mknodat, SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_mmap, SYS_modify_ldt,
	SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend,
	SYS_mq_unlink, SYS_mremap, SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock,
	SYS_munlockall, SYS_munmap, SYS_name_to_handle_at, SYS_nanosleep, SYS_newfstatat, SYS_open, SYS_openat,
	SYS_openat2, SYS_pause, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pipe, SYS_pipe2, SYS_pkey_alloc,
	SYS_pkey_free, SYS_pkey_mprotect, SYS_poll, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2,
	SYS_prlimit64, SYS_process_mrelease, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pselect6, SYS_ptrace,
	SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlink, SYS_readlinkat, SYS_readv,
	SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg, SYS_remap_file_pages, SYS_removexattr, SYS_rename, SYS_renameat,
	SYS_renameat2, SYS_restart_syscall, SYS_rmdir, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigpending, SYS_rt_sigprocmask,
	SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo,
	SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_get_priority_max,
	SYS_sched_get_priority_min, SYS_sched_getscheduler, SYS_sched_rr_get_interval, SYS_sched_setaffinity,
	SYS_sched_setattr, SYS_sched_setparam, SYS_sched_setscheduler, SYS_sched_yield, SYS_seccomp, SYS_select,
	SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
	SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setitimer, SYS_setpgid, SYS_setpriority, SYS_setregid,
	SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_setrlimit, SYS_set_robust_list, SYS_setsid, SYS_setsockopt,
	SYS_set_thread_area, SYS_set_tid_address, SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget,
	SYS_shutdown, SYS_sigaltstack, SYS_signalfd, SYS_signalfd4, SYS_socketpair, SYS_splice, SYS_stat, SYS_statfs,
	SYS_statx, SYS_symlink, SYS_symlinkat, SYS_sync, SYS_sync_file_range, SYS_syncfs, SYS_sysinfo, SYS_tee,
	SYS_tgkill, SYS_time, SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun, SYS_timer_gettime,
	SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime, SYS_times, SYS_tkill,
	SYS_truncate, SYS_umask, SYS_uname, SYS_unlink, SYS_unlinkat, SYS_utime, SYS_utimensat, SYS_utimes, SYS_vfork,
	SYS_vmsplice, SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
};
/* Values of personality(2) that are allowed. */
static const uint32_t personalities[] = { 0, 8, 0x20000, 0x20008, 0xffffffff };
/* Flags of clone(2) that are not: the new namespaces. */
enum { NAMESPACES = 0x7e020000, VSOCK = 40, X32 = 0x40000000 };

static struct sock_filter filter[2 * sizeof allowed / sizeof *allowed + 64];
static size_t length;

static void put(uint16_t code, uint32_t k, uint8_t then, uint8_t otherwise)
{
	filter[length++] = (struct sock_filter)BPF_JUMP(code, k, then, otherwise);
}

static void load(size_t offset) { put(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }
static void answer(uint32_t action) { put(BPF_RET | BPF_K, action, 0, 0); }
/* The next instruction only if it is equal. */
static void if_equal(uint32_t value) { put(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1); }

static void skip_unless(uint32_t number, uint8_t count)
{
	put(BPF_JMP | BPF_JEQ | BPF_K, number, 0, count);
}

static void build(void)
{
	const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;
	/* The low half, on a machine with the low byte first; the kernel looks at no more of these. */
	const size_t first = offsetof(struct seccomp_data, args[0]);

	load(offsetof(struct seccomp_data, arch));
	put(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	answer(SECCOMP_RET_KILL_PROCESS);
	load(offsetof(struct seccomp_data, nr));
	put(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
	answer(refuse);
	for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
		if_equal(allowed[i]);
		answer(SECCOMP_RET_ALLOW);
	}
	if_equal(SYS_clone3);
	answer(SECCOMP_RET_ERRNO | ENOSYS);
	skip_unless(SYS_clone, 4);
	load(first);
	put(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0);
	answer(SECCOMP_RET_ALLOW);
	answer(refuse);
	skip_unless(SYS_socket, 4);
	load(first);
	put(BPF_JMP | BPF_JEQ | BPF_K, VSOCK, 1, 0);
	answer(SECCOMP_RET_ALLOW);
	answer(refuse);
	skip_unless(SYS_personality, 1 + 2 * sizeof personalities / sizeof *personalities);
	load(first);
	for (size_t i = 0; i < sizeof personalities / sizeof *personalities; i++) {
		if_equal(personalities[i]);
		answer(SECCOMP_RET_ALLOW);
	}
	answer(refuse);
}

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "contained: %s: %s\n", what, strerror(errno));
		exit(125);
	}
}

static int is_filtered(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	int filtered = 0;

	while (status && fgets(line, sizeof line, status))
		filtered |= !strcmp(line, "Seccomp:\t2\n");
	if (status)
		fclose(status);
	return filtered;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: contained PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	/* Calls that a process of anybody's may make: the filter is what changes that, unless it is there already. */
	int allowed_before = syscall(SYS_unshare, 0L) == 0;

	must(allowed_before || is_filtered(), "unshare is refused, and there is no filter yet");
	build();
	struct sock_fprog program = { .len = (unsigned short)length, .filter = filter };

	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	must(syscall(SYS_seccomp, (long)SECCOMP_SET_MODE_FILTER, 0L, &program) == 0, "seccomp");
	must(syscall(SYS_clone3, NULL, 0L) == -1 && errno == ENOSYS, "the filter lets clone3 through");
	must(syscall(SYS_unshare, 0L) == -1 && errno == EPERM, "the filter lets unshare through");
	must(syscall(SYS_get_mempolicy, NULL, NULL, 0L, NULL, 0L) == -1 && errno == EPERM, "the filter lets get_mempolicy through");
	must(syscall(SYS_userfaultfd, 1L) == -1 && errno == EPERM, "the filter lets userfaultfd through");
	must(is_filtered(), "there is no filter");
	execvp(argv[1], argv + 1);
	must(0, argv[1]);
}
