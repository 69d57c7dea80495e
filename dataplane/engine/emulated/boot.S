/* From a multiboot loader (Multiboot Specification 0.6.96, 3.2) to 64 bits with everything on that AVX-512 needs, then to `loaded` in
 * machine.c. There is no operating system: the program that runs is in `program`. */
    .set MAGIC, 0x1badb002
    .set FLAGS, 0
    .text
    .balign 4
    .long MAGIC, FLAGS, -(MAGIC + FLAGS)

    .bss
    .balign 4096
pml4:   .skip 4096
pdpt:   .skip 4096
pd:     .skip 4 * 4096
    .skip 65536
stack:

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        /* 0x08: code of 64 bits */
    .quad 0x00cf93000000ffff        /* 0x10: data */
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .quad gdt

    .section .rodata
    .balign 4096
    .globl program
program:
    .incbin PROGRAM

    .text
    .code32
    .globl start
start:
    cli
    mov $stack, %esp
    /* The first 4 GiB where they are, in pages of 2 MiB. */
    mov $pdpt + 3, %eax
    mov %eax, pml4
    mov $pd + 3, %eax
    xor %ecx, %ecx
1:  mov %eax, pdpt(, %ecx, 8)
    add $4096, %eax
    inc %ecx
    cmp $4, %ecx
    jne 1b
    xor %ecx, %ecx
2:  mov %ecx, %eax
    shl $21, %eax
    or $0x83, %eax
    mov %eax, pd(, %ecx, 8)
    inc %ecx
    cmp $2048, %ecx
    jne 2b
    mov $pml4, %eax
    mov %eax, %cr3
    /* PAE, OSFXSR, OSXMMEXCPT, OSXSAVE. */
    mov $0x40620, %eax
    mov %eax, %cr4
    /* EFER: LME and SCE, for SYSCALL. */
    mov $0xc0000080, %ecx
    rdmsr
    or $0x101, %eax
    wrmsr
    /* CR0: PG, WP off, NE, MP, PE; no EM, no TS. */
    mov $0x80000023, %eax
    mov %eax, %cr0
    lgdt gdt_pointer
    ljmp $8, $long_mode
    .code64
long_mode:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    /* XCR0: x87, SSE, AVX and the three parts of AVX-512 (Intel SDM 1, 13.3). */
    xor %ecx, %ecx
    xor %edx, %edx
    mov $0xe7, %eax
    xsetbv
    /* STAR: SYSCALL stays in this ring. */
    mov $0xc0000081, %ecx
    xor %eax, %eax
    mov $8, %edx
    wrmsr
    mov $0xc0000082, %ecx
    lea entered(%rip), %rax
    mov %rax, %rdx
    shr $32, %rdx
    wrmsr
    mov $0xc0000084, %ecx
    xor %eax, %eax
    xor %edx, %edx
    wrmsr
    mov $stack, %rsp
    call loaded
3:  hlt
    jmp 3b

/* SYSCALL: number in rax, arguments in rdi, rsi, rdx, r10, r8, r9; rcx is where to go on, r11 the flags. No interrupt ever comes, so what is
 * below the program's stack pointer is safe from all but this; so it goes to a stack of its own. */
entered:
    mov %rsp, program_stack(%rip)
    mov $kernel_stack, %rsp
    push %rcx
    push %r11
    push %rdi
    push %rsi
    push %rdx
    push %r10
    push %r8
    push %r9
    mov %r10, %rcx
    mov %rax, %r9
    call called
    pop %r9
    pop %r8
    pop %r10
    pop %rdx
    pop %rsi
    pop %rdi
    pop %r11
    pop %rcx
    mov program_stack(%rip), %rsp
    push %r11
    popf
    jmp *%rcx

/* enter(where, stack): to the program. */
    .globl enter
enter:
    mov %rsi, %rsp
    xor %edx, %edx
    jmp *%rdi

    .bss
    .balign 16
program_stack: .skip 8
    .balign 16
    .skip 65536
kernel_stack:
