//! Others that move memory on this machine: hither gives way to them, unless it is told to take over.
//!
//! | rival | how it is seen | what taking over does |
//! |---|---|---|
//! | the kernel's NUMA balancing | `/proc/sys/kernel/numa_balancing` is not 0 | sets it to 0 |
//! | DAMON | a thread of `/sys/kernel/mm/damon/admin` is on whose schemes migrate pages | nothing: it is not restored by writing a file |
//! | numad | a process of that name | nothing: its service has to be stopped |
//!
//! What a container manager sets by cpusets is no rival: hither keeps to allowed nodes.

use crate::error::Result;
use crate::proc::stat;
use crate::restore::{Journal, Setting, runtime_folder};
use crate::root::Root;
use serde::{Deserialize, Serialize};
use std::fmt;

const BALANCING: &str = "proc/sys/kernel/numa_balancing";
const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
/// Name of the journal of what was taken over.
const JOURNAL: &str = "takeover";

/// Who else moves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rival {
    /// The kernel's automatic NUMA balancing.
    NumaBalancing,
    /// A DAMON scheme that migrates pages.
    Damon,
    /// The daemon numad.
    Numad,
}

impl Rival {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NumaBalancing, Self::Damon, Self::Numad];

    /// Its word in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NumaBalancing => "numa_balancing",
            Self::Damon => "damon",
            Self::Numad => "numad",
        }
    }

    /// Can hither take over from it by itself?
    #[must_use]
    pub fn can_be_taken_over(self) -> bool {
        self == Self::NumaBalancing
    }

    /// How a person who runs the daemon ends the conflict.
    #[must_use]
    pub fn remedy(self) -> String {
        let stop = self.stop();
        match self.can_be_taken_over() {
            true => format!(
                "put {:?} into take_over of [daemon], which switches it off while hither runs, or {stop}",
                self.name()
            ),
            false => stop.to_owned(),
        }
    }

    /// How it is stopped by hand.
    #[must_use]
    pub fn stop(self) -> &'static str {
        match self {
            Self::NumaBalancing => "switch it off by `sysctl kernel.numa_balancing=0`",
            Self::Damon => "end what set it up, as `damo stop`",
            Self::Numad => "stop it, as `systemctl stop numad`",
        }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NumaBalancing => "the kernel's NUMA balancing is on and moves pages by itself",
            Self::Damon => "a DAMON scheme migrates pages",
            Self::Numad => "numad runs and moves processes and their pages",
        })
    }
}

/// Those at work now.
#[must_use]
pub fn find(root: &Root) -> Vec<Rival> {
    let at_work = |rival: &Rival| match rival {
        Rival::NumaBalancing => {
            let mode = root.text_if_any(BALANCING).ok().flatten();
            mode.is_some_and(|mode| mode.trim() != "0")
        }
        Rival::Damon => damon_migrates(root),
        Rival::Numad => has_numad(root),
    };
    Rival::ALL.into_iter().filter(at_work).collect()
}

/// Sentences for a person who has hither act all the same. Look before a tracker is opened: one of
/// them has the kernel's balancing on itself.
#[must_use]
pub fn notes(root: &Root) -> Vec<String> {
    let note = |rival: Rival| format!("{rival}, perhaps against hither: {}", rival.stop());
    find(root).into_iter().map(note).collect()
}

fn damon_migrates(root: &Root) -> bool {
    let text = |path: String| root.text_if_any(&path).ok().flatten().unwrap_or_default();
    let threads = root.numbered(KDAMONDS, "").unwrap_or_default();
    threads.into_iter().any(|thread| {
        let thread = format!("{KDAMONDS}/{thread}");
        if text(format!("{thread}/state")).trim() != "on" {
            return false;
        }
        let contexts = root.numbered(&format!("{thread}/contexts"), "");
        contexts.unwrap_or_default().into_iter().any(|context| {
            let schemes = format!("{thread}/contexts/{context}/schemes");
            let numbers = root.numbered(&schemes, "").unwrap_or_default();
            numbers
                .into_iter()
                .any(|number| text(format!("{schemes}/{number}/action")).starts_with("migrate_"))
        })
    })
}

fn has_numad(root: &Root) -> bool {
    // Its own file tells its number (numad(8)): all processes need not be read.
    let text = root.text_if_any("var/run/numad.pid").ok().flatten();
    let pid = text.and_then(|text| text.trim().parse::<i32>().ok());
    pid.and_then(|pid| stat::read(root, pid))
        .is_some_and(|stat| stat.name == "numad")
}

/// What was taken over, put back when this is dropped, and at the next start after a kill.
#[derive(Debug)]
pub struct TakenOver {
    journal: Journal,
}

impl TakenOver {
    /// Takes over from the kernel's NUMA balancing, where it is on; the second value is a sentence about
    /// what a dead process had left.
    ///
    /// # Errors
    /// The journal cannot be had, or the setting not be written.
    pub fn balancing(root: &Root) -> Result<(Self, Option<String>)> {
        let (mut journal, note) = Journal::open(root, &runtime_folder()?, JOURNAL)?;
        if let Some(setting) = Setting::of(root, BALANCING)?
            && setting.content != "0"
        {
            journal.begin(vec![setting])?;
            crate::restore::write(root, BALANCING, "0")?;
        }
        Ok((Self { journal }, note))
    }
}

impl Drop for TakenOver {
    fn drop(&mut self) {
        // The journal is kept where this fails: the next start tries again.
        let _ = self.journal.put_back();
    }
}

/// Puts back what processes of hither left that are dead; returns a sentence for each.
///
/// # Errors
/// The folder of journals cannot be had. One that cannot be put back, or whose owner lives, is a sentence.
pub fn mend_leftovers(root: &Root) -> Result<Vec<String>> {
    let folder = runtime_folder()?;
    let mut notes = Vec::new();
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".journal")) else {
            continue;
        };
        match Journal::open(root, &folder, name) {
            Ok((_, note)) => notes.extend(note),
            Err(error) => notes.push(error.to_string()),
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn those_at_work_are_found() {
        let scheme = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/action";
        let state = "sys/kernel/mm/damon/admin/kdamonds/0/state";
        let (_kept, root) = tree(&[
            (BALANCING, "1\n"),
            (scheme, "migrate_hot\n"),
            (state, "on\n"),
        ]);
        assert_eq!(find(&root), [Rival::NumaBalancing, Rival::Damon]);
        assert_eq!(
            notes(&root)[0],
            "the kernel's NUMA balancing is on and moves pages by itself, perhaps against hither: \
             switch it off by `sysctl kernel.numa_balancing=0`"
        );
        let (_kept, root) = tree(&[(BALANCING, "0\n"), (scheme, "stat\n"), (state, "on\n")]);
        assert_eq!(find(&root), []);
        let (_kept, root) = tree(&[(scheme, "migrate_cold\n"), (state, "off\n")]);
        assert_eq!(find(&root), []);
    }
}
