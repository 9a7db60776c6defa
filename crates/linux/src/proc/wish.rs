//! What a process, or whoever runs it, wants of a daemon: to be looked after, or to be left alone.
//!
//! ```text
//! HITHER=off                                            in the environment with which it was executed
//! setfattr -n user.hither -v off /sys/fs/cgroup/GROUP   on its control group, or on one above it
//! ```
//!
//! `on` asks to be looked after, for targets that take such processes alone. A process may be left alone by
//! either: whoever says `off` is heard. A process may also say so later ([`crate::opting`]).

use super::stat;
use crate::root::Root;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;

/// The environment variable.
pub const VARIABLE: &str = "HITHER";
/// The extended attribute of a control group.
pub const ATTRIBUTE: &str = "user.hither";

/// Bytes of an environment that are read: the kernel allows some MiB, and shells put what matters first.
const MOST_BYTES: u64 = 256 << 10;

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing was said.
    #[default]
    Unsaid,
    /// To be looked after.
    In,
    /// To be left alone.
    Out,
}

impl Wish {
    /// Of two, the one that is followed.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Out, _) | (_, Self::Out) => Self::Out,
            (Self::In, _) | (_, Self::In) => Self::In,
            _ => Self::Unsaid,
        }
    }

    fn of_word(word: &[u8]) -> Self {
        match word.trim_ascii() {
            b"on" => Self::In,
            b"off" => Self::Out,
            _ => Self::Unsaid,
        }
    }
}

/// Wishes of control groups that were asked for, and of processes that told them.
#[derive(Debug, Default)]
pub struct Wishes {
    groups: HashMap<String, Wish>,
    /// Processes that asked to be looked after, by number and start.
    told_in: HashSet<(i32, u64)>,
}

impl Wishes {
    /// Groups are asked anew from now on, and what ended processes told is forgotten.
    pub fn forget(&mut self, root: &Root) {
        self.groups.clear();
        self.told_in.retain(|&(pid, ticks)| {
            stat::read(root, pid).is_some_and(|stat| stat.start_ticks == ticks)
        });
    }

    /// A process told that it is to be looked after, or takes that back.
    pub fn tell_in(&mut self, process: (i32, u64), is_so: bool) {
        match is_so {
            true => self.told_in.insert(process),
            false => self.told_in.remove(&process),
        };
    }

    /// Has this process told that it is to be looked after?
    #[must_use]
    pub fn has_told_in(&self, process: (i32, u64)) -> bool {
        self.told_in.contains(&process)
    }

    /// Of a process of this control group, named as in `/proc/PID/cgroup`.
    pub fn of(&mut self, root: &Root, pid: i32, group: Option<&str>) -> Wish {
        let own = environment(root, pid);
        let said = own.and(group.map_or(Wish::Unsaid, |group| self.of_group(root, group)));
        if said != Wish::Unsaid || self.told_in.is_empty() {
            return said;
        }
        let stat = stat::read(root, pid);
        match stat.is_some_and(|stat| self.has_told_in((pid, stat.start_ticks))) {
            true => Wish::In,
            false => Wish::Unsaid,
        }
    }

    /// Of a control group and those above it.
    pub fn of_group(&mut self, root: &Root, group: &str) -> Wish {
        let group = group.trim_end_matches('/');
        if let Some(&known) = self.groups.get(group) {
            return known;
        }
        let above = match group.rsplit_once('/') {
            Some((above, _)) => self.of_group(root, above),
            None => Wish::Unsaid,
        };
        let wish = attribute(root, group).and(above);
        self.groups.insert(group.to_owned(), wish);
        wish
    }
}

/// What its environment says; nothing where that is not ours to read.
fn environment(root: &Root, pid: i32) -> Wish {
    let mut bytes = Vec::new();
    let file = File::open(root.path(&format!("proc/{pid}/environ")));
    if file
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
        .is_err()
    {
        return Wish::Unsaid;
    }
    let mut words = bytes.split(|&byte| byte == 0);
    let value = words.find_map(|word| word.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
    value.map_or(Wish::Unsaid, Wish::of_word)
}

fn attribute(root: &Root, group: &str) -> Wish {
    // A name that climbs out of the tree is not the kernel's.
    if group.split('/').any(|part| part == "..") {
        return Wish::Unsaid;
    }
    let folder = root.path(&format!("sys/fs/cgroup/{}", group.trim_start_matches('/')));
    let mut value = [0u8; 16];
    match rustix::fs::getxattr(&folder, ATTRIBUTE, &mut value[..]) {
        Ok(count) => Wish::of_word(&value[..count.min(value.len())]),
        Err(_) => Wish::Unsaid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_environment_says_what_its_process_wants() {
        let root = Root::host();
        for (value, expected) in [
            ("on", Wish::In),
            ("off", Wish::Out),
            ("offer", Wish::Unsaid),
        ] {
            let mut child = Command::new("sleep")
                .arg("60")
                .env_clear()
                .env("NOTHITHER", "off")
                .env(VARIABLE, value)
                .spawn()
                .unwrap();
            // Until it has executed the program, its environment is ours.
            let start = std::time::Instant::now();
            let mut wish = Wish::Unsaid;
            while wish != expected && start.elapsed().as_secs() < 10 {
                wish = environment(&root, child.id() as i32);
            }
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(wish, expected, "{value}");
        }
        assert_eq!(environment(&root, i32::MAX), Wish::Unsaid);
    }

    #[test]
    fn who_says_off_is_heard() {
        assert_eq!(Wish::In.and(Wish::Out), Wish::Out);
        assert_eq!(Wish::Unsaid.and(Wish::In), Wish::In);
    }

    #[test]
    fn a_group_has_the_wish_of_those_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("sys/fs/cgroup/a/b");
        std::fs::create_dir_all(&group).unwrap();
        let above = folder.path().join("sys/fs/cgroup/a");
        let set = rustix::fs::setxattr(&above, ATTRIBUTE, b"off", rustix::fs::XattrFlags::empty());
        let root = Root::new(folder.path());
        let mut wishes = Wishes::default();
        assert_eq!(wishes.of_group(&root, "/../../x"), Wish::Unsaid);
        // Not every file system has attributes of users.
        let expected = if set.is_ok() { Wish::Out } else { Wish::Unsaid };
        assert_eq!(wishes.of_group(&root, "/a/b"), expected);
        assert_eq!(wishes.of_group(&root, "/"), Wish::Unsaid);
    }
}
