/* Enough of Linux for one static program: its memory, its output and its end. What a C library's start and Rust's test harness ask for
 * is answered; all else is refused with ENOSYS. Everything it says goes to the first serial port, and the last line says how it ended. */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

extern const unsigned char program[];
void enter(uint64_t where, uint64_t stack) __attribute__((noreturn));
void loaded(void);

/* Where memory of the program comes from: behind this program, below the end of the emulator's memory. */
static const uint64_t HEAP_END = 0x70000000, STACK = 0x78000000, BREAK = 0x18000000, BREAK_END = 0x20000000;
enum { COM1 = 0x3f8, ENOSYS = 38, EAGAIN = 11, ENOMEM = 12, ENOENT = 2 };

static uint64_t heap = 0x20000000, program_break = 0x18000000;

static void out(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static uint8_t in(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void put(char c) {
    while (!(in(COM1 + 5) & 0x20))
        ;
    out(COM1, (uint8_t)c);
}
static void say(const char *text) {
    while (*text)
        put(*text++);
}
static void number(int64_t n) {
    char digits[24];
    int at = sizeof digits;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    digits[--at] = 0;
    do
        digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (n < 0)
        digits[--at] = '-';
    say(digits + at);
}
static void *copy(void *to, const void *from, size_t count) {
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(count) : : "memory");
    return to;
}
static void clear(void *to, size_t count) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0) : "memory");
}

static __attribute__((noreturn)) void end(int64_t status) {
    say("\nended with ");
    number(status);
    say("\n");
    /* Bochs ends when "Shutdown" is written to port 0x8900. */
    for (const char *word = "Shutdown"; *word; word++)
        out(0x8900, (uint8_t)*word);
    for (;;)
        __asm__ volatile("cli; hlt");
}

static int64_t set_fs(uint64_t base) {
    __asm__ volatile("wrmsr" : : "c"(0xc0000100), "a"((uint32_t)base), "d"((uint32_t)(base >> 32)));
    return 0;
}

static int64_t map(uint64_t size) {
    size = (size + 0xfff) & ~(uint64_t)0xfff;
    if (size > HEAP_END - heap)
        return -ENOMEM;
    uint64_t at = heap;
    heap += size;
    clear((void *)at, size);
    return (int64_t)at;
}

struct piece {
    const char *base;
    size_t len;
};

static int64_t write_pieces(const struct piece *pieces, uint64_t count) {
    int64_t written = 0;
    for (uint64_t i = 0; i < count; i++)
        for (size_t at = 0; at < pieces[i].len; at++, written++)
            put(pieces[i].base[at]);
    return written;
}

int64_t called(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t what);
int64_t called(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t what) {
    (void)d;
    (void)e;
    switch (what) {
    case 1: { /* write */
        struct piece piece = {(const char *)b, c};
        return write_pieces(&piece, 1);
    }
    case 20: return write_pieces((const struct piece *)b, c); /* writev */
    case 9: return map(b); /* mmap */
    case 12: /* brk */
        if (a >= BREAK && a < BREAK_END)
            program_break = a;
        return (int64_t)program_break;
    case 158: return a == 0x1002 ? set_fs(b) : -ENOSYS; /* arch_prctl(ARCH_SET_FS) */
    case 318: /* getrandom: the same each time */
        for (uint64_t i = 0; i < b; i++)
            ((uint8_t *)a)[i] = (uint8_t)(i * 37 + 11);
        return (int64_t)b;
    case 79: /* getcwd */
        copy((void *)a, "/", 2);
        return 2;
    case 39: case 186: return 1; /* getpid, gettid */
    case 218: return 1; /* set_tid_address */
    case 228: { /* clock_gettime: from the time-stamp counter, as if of 1 GHz */
        uint32_t low, high;
        __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
        uint64_t ns = (uint64_t)high << 32 | low;
        ((uint64_t *)b)[0] = ns / 1000000000;
        ((uint64_t *)b)[1] = ns % 1000000000;
        return 0;
    }
    /* mprotect, munmap, rt_sigaction, rt_sigprocmask, poll, sigaltstack, set_robust_list, madvise, futex, sched_yield */
    case 10: case 11: case 13: case 14: case 7: case 131: case 273: case 28: case 202: case 24: return 0;
    case 257: case 2: case 262: case 89: case 267: return -ENOENT; /* files: there are none */
    case 60: case 231: end((int64_t)(int32_t)a); /* exit, exit_group */
    case 200: case 234: case 62: say("\nkilled by itself"); end(134); /* tkill, tgkill, kill */
    case 56: return -EAGAIN; /* clone: the test harness then runs a test itself */
    default: return -ENOSYS;
    }
}

/* Exceptions end it, with their number. */
struct gate {
    uint16_t low, selector, kind, middle;
    uint32_t high, zero;
};
static struct gate gates[32];
struct frame {
    uint64_t ip, cs, flags, sp, ss;
};
static __attribute__((noreturn)) void fault(int which, uint64_t ip) {
    say("\nexception ");
    number(which);
    say(" at ");
    number((int64_t)ip);
    end(128 + which);
}
#define PLAIN(n) static __attribute__((interrupt)) void fault_##n(struct frame *frame) { fault(n, frame->ip); }
#define CODED(n) static __attribute__((interrupt)) void fault_##n(struct frame *frame, uint64_t code) { (void)code; fault(n, frame->ip); }
PLAIN(0) PLAIN(6) PLAIN(7) PLAIN(19) CODED(8) CODED(12) CODED(13) CODED(14)

static void catch(int which, uint64_t by) {
    gates[which] = (struct gate){(uint16_t)by, 8, 0x8e00, (uint16_t)(by >> 16), (uint32_t)(by >> 32), 0};
}

void loaded(void) {
    out(COM1 + 3, 3); /* eight bits, no parity, one stop bit */
    static struct {
        uint16_t limit;
        uint64_t base;
    } __attribute__((packed)) table;
    table.limit = sizeof gates - 1;
    table.base = (uint64_t)gates;
    catch(0, (uint64_t)fault_0);
    catch(6, (uint64_t)fault_6);
    catch(7, (uint64_t)fault_7);
    catch(8, (uint64_t)fault_8);
    catch(12, (uint64_t)fault_12);
    catch(13, (uint64_t)fault_13);
    catch(14, (uint64_t)fault_14);
    catch(19, (uint64_t)fault_19);
    __asm__ volatile("lidt %0" : : "m"(table));

    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)program;
    const Elf64_Phdr *headers = (const Elf64_Phdr *)(program + elf->e_phoff);
    uint64_t headers_at = 0;
    for (int i = 0; i < elf->e_phnum; i++) {
        const Elf64_Phdr *header = &headers[i];
        if (header->p_type != PT_LOAD)
            continue;
        unsigned char *to = (unsigned char *)header->p_vaddr;
        copy(to, program + header->p_offset, header->p_filesz);
        clear(to + header->p_filesz, header->p_memsz - header->p_filesz);
        if (header->p_offset == 0)
            headers_at = header->p_vaddr + elf->e_phoff;
    }

    /* The stack as the System V ABI for x86-64 has it (3.4.1): words of the command line, which the build gives, then auxiliary values. */
    static char words[] = ARGUMENTS;
    static const char *environment[] = {ENVIRONMENT};
    static uint64_t random[2] = {1, 2};
    uint64_t *stack = (uint64_t *)STACK - 256;
    uint64_t *at = stack + 1;
    uint64_t count = 0;
    for (char *word = words; *word; count++) {
        *at++ = (uint64_t)word;
        while (*word && *word != ' ')
            word++;
        while (*word == ' ')
            *word++ = 0;
    }
    *stack = count;
    *at++ = 0;
    for (size_t i = 0; i < sizeof environment / sizeof *environment; i++)
        *at++ = (uint64_t)environment[i];
    *at++ = 0;
    const uint64_t auxiliary[] = {
        AT_PHDR, headers_at, AT_PHENT, sizeof(Elf64_Phdr), AT_PHNUM, elf->e_phnum, AT_PAGESZ, 4096,
        AT_ENTRY, elf->e_entry, AT_RANDOM, (uint64_t)random, AT_SECURE, 0, AT_NULL, 0,
    };
    copy(at, auxiliary, sizeof auxiliary);
    enter(elf->e_entry, (uint64_t)stack);
}
