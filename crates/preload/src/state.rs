//! All that is known of this process, in memory that the kernel wipes in a forked child.
//!
//! However the child was made (`fork`, a bare `clone`, a runtime of its own), it finds zeros: no log,
//! nothing tracked, no site written. So it begins its own log with its first large allocation, and
//! can never write into its parent's. No handler is installed in the program for that.

use crate::{log, modules, sites, tracked, walk};

/// Everything that ends with a fork. All zeros is the beginning.
#[repr(C, align(4096))]
pub struct State {
    /// Which addresses are freed by somebody who was recorded.
    pub tracked: tracked::Table,
    /// The log.
    pub log: log::Log,
    /// Call stacks that have a number.
    pub sites: sites::Table,
    /// Call stacks that were walked lately.
    pub walks: walk::Cache,
    /// Objects that are in the log.
    pub modules: modules::Known,
}

/// The one of this process. It lies in `.bss`, in pages of its own.
#[unsafe(link_section = ".bss.large")]
pub static STATE: State = State {
    tracked: tracked::Table::new(),
    log: log::Log::new(),
    sites: sites::Table::new(),
    walks: walk::Cache::new(),
    modules: modules::Known::new(),
};

/// Asks the kernel to wipe the state in children. Without that (before Linux 4.14) nothing can be
/// recorded, as children would write into their parents' logs.
pub fn wipe_on_fork() -> bool {
    let (start, bytes) = (&raw const STATE, size_of::<State>());
    // SAFETY: whole pages of this library's own statics; the advice changes nothing here.
    unsafe { libc::syscall(libc::SYS_madvise, start, bytes, libc::MADV_WIPEONFORK) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_advice_and_the_state_is_whole_pages() {
        assert_eq!(size_of::<State>() % 4096, 0);
        assert_eq!((&raw const STATE) as usize % 4096, 0);
        assert!(wipe_on_fork());
    }
}
