//! What the kernel would allow this process.

/// The effective user of this process; 0 is root.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, always succeeds.
    unsafe { libc::geteuid() }
}
