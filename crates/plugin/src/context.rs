//! Contexts of execution that are exchanged without the kernel.
//!
//! A context is what makes a thread the one that it is: a stack, the registers that a function
//! keeps, and the base of its thread-local storage, by which the C library and QEMU know it. The
//! kernel's thread underneath, the *worker*, carries whichever context is put on it; only what the
//! kernel knows a thread by (its number, its CPUs, its signal mask, the place where it writes the
//! CPU's number) stays with the worker. QEMU's vCPU threads, which are all alike in that, do not
//! ask for it while they run guest code. What runs between contexts must keep off thread-local
//! storage, and with it off `errno`: another worker may carry its owner.
//!
//! x86-64 only, as the laboratory is: its guest runs the host's own programs.

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;

/// `getauxval(AT_HWCAP2)`: user code may set the base of its thread-local storage.
const HWCAP2_FSGSBASE: u64 = 1 << 1;
/// A worker without a context sleeps on a stack of this size, signal frames included.
const STACK_BYTES: usize = 64 << 10;
const GUARD_BYTES: usize = 4096;

/// Where a context was left: stack pointer and thread-local storage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Saved {
    stack: u64,
    storage: u64,
}

/// A place for a context that nobody carries. The word by which it is offered to others (see
/// [`leave`]) says who may touch it: its carrier until then, and after that whoever took the offer.
pub struct Context(UnsafeCell<Saved>);

// SAFETY: see `Context`: the offer hands it from thread to thread.
unsafe impl Sync for Context {}

impl Context {
    pub const fn empty() -> Self {
        Self(UnsafeCell::new(Saved {
            stack: 0,
            storage: 0,
        }))
    }
}

/// Whether the storage's base can be set without the kernel.
pub fn is_quick() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Leaves the running context in `from`, stores `value` in `offer`, and goes on with `to`. Returns
/// when somebody goes on with `from`, perhaps on another worker.
///
/// # Safety
/// `from` is nobody else's until `offer` holds `value`; `to` was left by this function or made by
/// [`Stack::context`], and was taken by the caller alone; `quick` is what [`is_quick`] says.
pub unsafe fn leave(from: &Context, offer: &AtomicU64, value: u64, to: &Context, quick: bool) {
    // SAFETY: the caller's obligations.
    unsafe {
        (*from.0.get()).storage = storage();
        exchange(from.0.get(), to.0.get(), offer.as_ptr(), value, quick);
    }
}

/// The base is set by an instruction where `quick`, else by `arch_prctl` (158, `ARCH_SET_FS` is
/// 0x1002). The offer is made when the old stack is in use no more.
#[unsafe(naked)]
unsafe extern "C" fn exchange(
    from: *mut Saved,
    to: *const Saved,
    offer: *mut u64,
    value: u64,
    quick: bool,
) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi], rsp",
        "mov rbx, [rsi]",
        "mov r12, [rsi + 8]",
        "mov rsp, rbx",
        "test r8b, r8b",
        "jz 2f",
        "wrfsbase r12",
        "mov [rdx], rcx",
        "jmp 3f",
        "2:",
        "mov r13, rdx",
        "mov r14, rcx",
        "mov edi, 0x1002",
        "mov rsi, r12",
        "mov eax, 158",
        "syscall",
        "mov [r13], r14",
        "3:",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// The stack of a worker that carries no context.
pub struct Stack {
    base: *mut u8,
    start: Context,
}

// SAFETY: the memory belongs to one worker at a time, and is never freed: a worker may sleep on it.
unsafe impl Send for Stack {}
// SAFETY: as above.
unsafe impl Sync for Stack {}

impl Stack {
    /// Memory for one, with a guard page below.
    ///
    /// # Errors
    /// The host's reason not to give it.
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: fresh anonymous memory; the guard page lies within it.
        let base = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if base == libc::MAP_FAILED || libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            base.cast::<u8>()
        };
        Ok(Self {
            base,
            start: Context::empty(),
        })
    }

    /// A context that calls `run(first, second)` on this stack, with the thread-local storage of
    /// the caller. `run` never returns, and must not touch that storage.
    ///
    /// # Safety
    /// Nothing runs on this stack, and its former context is forgotten.
    pub unsafe fn context(
        &self,
        run: unsafe extern "C" fn(*const (), u64) -> !,
        first: *const (),
        second: u64,
    ) -> &Context {
        // What `exchange` takes off the stack: control words, r15 to r12, rbx, rbp, and where to.
        let words: [u64; 8] = [
            DEFAULT_CONTROL_WORDS,
            0,
            run as usize as u64,
            second,
            first as u64,
            0,
            0,
            enter as *const () as u64,
        ];
        // SAFETY: within the stack, which is unused; `start` belongs to it.
        unsafe {
            let top = self.base.add(STACK_BYTES - size_of_val(&words));
            top.cast::<[u64; 8]>().write(words);
            *self.start.0.get() = Saved {
                stack: top as u64,
                storage: storage(),
            };
        }
        &self.start
    }
}

/// MXCSR 0x1f80 and x87 control word 0x37f: all exceptions masked, round to nearest.
const DEFAULT_CONTROL_WORDS: u64 = 0x037f_0000_1f80;

/// First instructions on a fresh stack: r12 and r13 hold the arguments, r14 the function.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!("mov rdi, r12", "mov rsi, r13", "call r14", "ud2")
}

/// The base of the caller's thread-local storage: its first word points to itself (x86-64 psABI,
/// thread-local storage, variant II).
fn storage() -> u64 {
    let base: u64;
    // SAFETY: every thread has storage.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) base, options(nostack, readonly)) };
    base
}
