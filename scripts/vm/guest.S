# A guest without an operating system: writes its memory, reads a hot part of it again and again, reads all of
# it once more and tells a checksum by its serial port. It is its own firmware, so that QEMU needs no other file:
# hither moves the memory of the QEMU process under it.
#   gcc -m32 -nostdlib -static -Wl,-Ttext=0xffff0000 -Wl,--build-id=none -Wl,--oformat=binary -o guest.bin guest.S
#   qemu-system-x86_64 -M isapc -m 96 -nodefaults -display none -serial stdio -no-reboot -bios guest.bin
# Memory from 16 MiB on: 64 MiB, a word of each line. PASSES is how often the hot 24 MiB are read.
#ifndef PASSES
#define PASSES 40
#endif
#define BASE 0x1000000
#define LINES (64 << 14)
#define HOT (24 << 14)
#define PORT 0x3f8
  .text
  .code32
  .globl _start
_start:
protected:
  movw $16, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  # A20, so that odd mebibytes are memory of their own.
  inb $0x92, %al
  orb $2, %al
  outb %al, $0x92
  # Lines that are all different: w = w * 1664525 + 1013904223.
  movl $BASE, %edi
  movl $LINES, %ecx
  movl $1, %eax
fill:
  movl %eax, (%edi)
  imull $1664525, %eax, %eax
  addl $1013904223, %eax
  addl $64, %edi
  decl %ecx
  jnz fill
  movb $'f', %al
  call put
  # The hot part, PASSES times.
  xorl %ebx, %ebx
  movl $PASSES, %edx
pass:
  movl $BASE, %esi
  movl $HOT, %ecx
hot:
  addl (%esi), %ebx
  addl $64, %esi
  decl %ecx
  jnz hot
  decl %edx
  jnz pass
  movb $'h', %al
  call put
  # All of it.
  movl $BASE, %esi
  movl $LINES, %ecx
all:
  roll $1, %ebx
  xorl (%esi), %ebx
  addl $64, %esi
  decl %ecx
  jnz all
  movb $' ', %al
  call put
  movl $8, %ecx
digit:
  roll $4, %ebx
  movl %ebx, %eax
  andl $15, %eax
  movb digits(%eax), %al
  call put
  decl %ecx
  jnz digit
  movb $'\n', %al
  call put
  # A triple fault ends it (-no-reboot).
  lidt nothing
  int3
put:
  pushl %edx
  movw $PORT, %dx
  outb %al, %dx
  popl %edx
  ret
digits:
  .ascii "0123456789abcdef"
  .balign 8
nothing:
  .word 0
  .long 0
  .balign 8
table:
  .quad 0
  .quad 0x00cf9b000000ffff
  .quad 0x00cf93000000ffff
pointer:
  .word 23
  .long table
  .org 0xff00
  .code16
real:
  cli
  lgdtl %cs:(pointer - _start)
  movl %cr0, %eax
  orl $1, %eax
  movl %eax, %cr0
  ljmpl $8, $protected
  .org 0xfff0
  jmp real
  .org 0x10000
