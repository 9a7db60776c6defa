//! Where threads of this process run.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// Lets a thread run on these CPUs only (the kernel's numbers). `EINVAL`: this process may use
/// none of them.
pub fn bind_thread<T>(thread: &JoinHandle<T>, cpus: &[u32]) -> io::Result<()> {
    let mut words = vec![0 as libc::c_ulong; mask_words(cpus)];
    let bits = libc::c_ulong::BITS;
    for cpu in cpus {
        words[(cpu / bits) as usize] |= 1 << (cpu % bits);
    }
    // SAFETY: the handle names a thread that has not been joined; the mask has the length that is
    // passed, and the call only reads it.
    let errno = unsafe {
        libc::pthread_setaffinity_np(
            thread.as_pthread_t(),
            size_of_val(words.as_slice()),
            words.as_ptr().cast(),
        )
    };
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn mask_words(cpus: &[u32]) -> usize {
    let highest = cpus.iter().copied().max().unwrap_or(0);
    (highest / libc::c_ulong::BITS) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_is_bound_and_a_cpu_that_is_not_there_is_refused() {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = receiver.recv();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let refused = bind_thread(&thread, &[60_000]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let allowed = |status: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .unwrap();
            line.trim().to_owned()
        };
        let list = allowed(&own);
        let first: u32 = list.split(['-', ',']).next().unwrap().parse().unwrap();
        bind_thread(&thread, &[first]).unwrap();
        sender.send(()).unwrap();
        assert_eq!(allowed(&thread.join().unwrap()), first.to_string());
    }
}
