//! CPUs of a thread as a setting. No file holds them, so that they have a path of their own:
//! `thread/NUMBER/START`, with the time of its start in ticks since boot.

use crate::proc::{allowed, stat};
use crate::root::Root;
use crate::sys;
use std::io;

const FOLDER: &str = "thread/";

/// A thread, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    number: i32,
    start_ticks: u64,
}

/// Its path.
pub fn path(number: i32, start_ticks: u64) -> String {
    format!("{FOLDER}{number}/{start_ticks}")
}

/// The thread that a path names.
pub fn parse(path: &str) -> Option<Thread> {
    let (number, start) = path.strip_prefix(FOLDER)?.split_once('/')?;
    let thread = Thread {
        number: number.parse().ok().filter(|&number| number > 0)?,
        start_ticks: start.parse().ok()?,
    };
    Some(thread)
}

impl Thread {
    fn lives(self, root: &Root) -> bool {
        stat::read(root, self.number).is_some_and(|stat| stat.start_ticks == self.start_ticks)
    }

    /// The CPUs that it may use; `None` once it has ended.
    pub fn cpus(self, root: &Root) -> Option<String> {
        let text = root
            .text_if_any(&format!("proc/{}/status", self.number))
            .ok()??;
        let cpus = allowed::parse(&text).ok()?.cpus?;
        self.lives(root).then(|| cpus.to_string())
    }

    /// Keeps it on a list of CPUs.
    pub fn keep_on(self, root: &Root, cpus: &str) -> io::Result<()> {
        let cpus = cpus
            .parse()
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        match root.is_host() && self.lives(root) {
            true => sys::keep_thread_on(self.number, &cpus),
            // A captured machine has no threads.
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::{Setting, is_setting};

    #[test]
    fn a_thread_is_put_back_where_it_was_unless_it_is_another() {
        let root = Root::host();
        let own = sys::thread_id();
        let start = stat::read(&root, own).unwrap().start_ticks;
        let before = Setting::of(&root, &path(own, start)).unwrap().unwrap();
        let all = sys::allowed_cpus().unwrap();
        assert_eq!(before.content, all.to_string());
        let first = all.first().unwrap().0.to_string();
        Setting::new(&*before.path, &*first).write(&root).unwrap();
        assert_eq!(sys::allowed_cpus().unwrap().to_string(), first);
        // One that was started at another time is not it.
        let other = Setting::new(path(own, start + 1), all.to_string());
        other.put_back(&root).unwrap();
        assert_eq!(sys::allowed_cpus().unwrap().to_string(), first);
        assert!(Setting::of(&root, &other.path).unwrap().is_none());
        before.put_back(&root).unwrap();
        assert_eq!(sys::allowed_cpus().unwrap(), all);
    }

    #[test]
    fn paths_of_threads_are_settings_and_nothing_else_is() {
        assert!(is_setting("thread/12/3456"));
        for path in [
            "thread/0/1",
            "thread/-1/1",
            "thread/12",
            "thread/12/x",
            "thread/12/../../etc",
        ] {
            assert!(!is_setting(path), "{path}");
        }
    }
}
