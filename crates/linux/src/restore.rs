//! Settings of the machine that are changed for a while, and put back: also after `kill -9`.
//!
//! Before the first change, what was there is written to a journal in a runtime folder. Whoever
//! opens the journal holds its file lock for as long as it lives, and the kernel drops the lock
//! when the process ends, however it ends. So a journal that can be locked and is not empty was
//! left by somebody dead, and is put back first; one that cannot be locked has a living owner,
//! and is left alone. Process numbers would be used again, and two starters would race.
//!
//! A journal without its last line was cut while it was being written: then nothing had been
//! changed yet, and nothing is put back. The empty file stays where it is, for the next lock.

mod threads;

use crate::error::{Error, Result};
use crate::root::Root;
use crate::sys;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// First line of a journal.
const HEADER: &str = "hither restore 1";
/// Bytes that a journal has at most.
const MAX_BYTES: u64 = 4 << 20;

/// One setting to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Setting {
    /// The file below the root folder, such as `proc/sys/kernel/numa_balancing`.
    pub path: String,
    /// What to write to it: one line.
    pub content: String,
    /// It is put back only if each of these files holds this text: what somebody else has set up
    /// since then is not touched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_if: Vec<(String, String)>,
}

/// Nothing else is a setting: what is kept in a file cannot make root write anywhere.
pub fn is_setting(path: &str) -> bool {
    if threads::parse(path).is_some() {
        return true;
    }
    let known = ["sys/", "proc/sys/", "proc/irq/"];
    known.iter().any(|folder| path.starts_with(folder)) && path.split('/').all(|part| part != "..")
}

impl Setting {
    /// A setting that is put back whatever there is.
    pub fn new(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            content: content.into(),
            only_if: Vec::new(),
        }
    }

    /// Puts it back only if a file holds this text.
    #[must_use]
    pub fn only_if(mut self, path: impl Into<String>, content: impl Into<String>) -> Self {
        self.only_if.push((path.into(), content.into()));
        self
    }

    /// Stands for the CPUs of a thread: its content is a list of them. The time of its start tells it from a later
    /// thread of the same number, which is left alone.
    #[must_use]
    pub fn thread_path(thread: i32, start_ticks: u64) -> String {
        threads::path(thread, start_ticks)
    }

    /// As it is now; `None` where there is no such file.
    pub fn of(root: &Root, path: &str) -> Result<Option<Self>> {
        let text = current(root, path)?;
        Ok(text.map(|text| Self::new(path, text.trim_end_matches('\n'))))
    }

    /// Is there anything to put back?
    fn applies(&self, root: &Root) -> bool {
        let holds = |path: &str| current(root, path).ok().flatten();
        // What holds it already was never changed: perhaps for want of the right to.
        holds(&self.path).is_some_and(|text| text.trim_end_matches('\n') != self.content)
            && self
                .only_if
                .iter()
                .all(|(path, content)| holds(path).is_some_and(|text| text.trim() == content))
    }

    /// Writes it, whatever is there.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn write(&self, root: &Root) -> Result<()> {
        write(root, &self.path, &self.content)
    }

    /// Writes it, where there is anything to put back.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn put_back(&self, root: &Root) -> Result<()> {
        if !self.applies(root) {
            return Ok(());
        }
        match self.write(root) {
            // It changed between the look and the write: a thread that ended by itself.
            Err(_) if !self.applies(root) => Ok(()),
            result => result,
        }
    }
}

/// What a setting says now; `None` where there is no such file or thread.
fn current(root: &Root, path: &str) -> Result<Option<String>> {
    match threads::parse(path) {
        Some(thread) => Ok(thread.cpus(root)),
        None => root.text_if_any(path),
    }
}

/// Writes a setting. Errors name the path and the text.
pub fn write(root: &Root, below: &str, content: &str) -> Result<()> {
    let path = root.path(below);
    let written = match threads::parse(below) {
        Some(thread) => thread.keep_on(root, content),
        None => OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes())),
    };
    written.map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                "run hither as root, where /sys and /proc may be written to"
            }
            Some(libc::EBUSY) => "somebody else uses it: end that first",
            _ => "this kernel takes no such value",
        };
        let reason = format!("`{content}` cannot be written to it ({error})");
        Error::io(&path, reason, remedy, error)
    })
}

/// What root keeps of this machine's settings.
pub const ROOTS_FOLDER: &str = "/run/hither";

/// The folder of journals: [`ROOTS_FOLDER`] for root, else one below `$XDG_RUNTIME_DIR`.
///
/// # Errors
/// Neither can be had.
pub fn runtime_folder() -> Result<PathBuf> {
    if sys::effective_uid() == 0 {
        return Ok(PathBuf::from(ROOTS_FOLDER));
    }
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(|base| Path::new(&base).join("hither"))
        .ok_or_else(|| {
            Error::new(
                "$XDG_RUNTIME_DIR",
                "XDG_RUNTIME_DIR is not set, so that there is no place to note what is to be put back",
                "set it to a folder of your own, or run hither as root",
            )
        })
}

/// Makes the [folder of journals](runtime_folder), where it is not there, and lets other users reach what
/// in it is theirs to use, as a socket; they cannot list it, and journals are their owner's alone.
///
/// # Errors
/// It is not this user's alone, or cannot be made.
pub fn make_runtime_folder() -> Result<()> {
    let folder = runtime_folder()?;
    private_folder(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).map_err(|error| {
        let remedy = "make it a folder of your own";
        Error::io(&folder, "its mode cannot be set", remedy, error)
    })
}

/// A journal, locked by this process.
#[derive(Debug)]
pub struct Journal {
    root: Root,
    path: PathBuf,
    file: File,
    settings: Vec<Setting>,
}

impl Journal {
    /// Opens the journal `name`, and puts back what a dead owner left in it: then the second
    /// value is a sentence for a person.
    ///
    /// # Errors
    /// Its owner lives; the folder or the journal is not this user's alone; the journal holds
    /// what no hither writes; something cannot be put back (the journal is kept).
    pub fn open(root: &Root, folder: &Path, name: &str) -> Result<(Self, Option<String>)> {
        private_folder(folder)?;
        let path = folder.join(format!("{name}.journal"));
        let fail = |error| Error::io(&path, "cannot be opened", "check the folder", error);
        let mut file = open_private(&path).map_err(fail)?;
        let seen = file.metadata().map_err(fail)?;
        if !seen.is_file() || seen.uid() != sys::effective_uid() || seen.mode() & 0o022 != 0 {
            return Err(Error::new(
                &path,
                "is not a file of this user alone, so that what it says is not believed",
                "look at it and delete it",
            ));
        }
        let locked = lock(&file);
        let mut text = String::new();
        let read = (&mut file).take(MAX_BYTES).read_to_string(&mut text);
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    &path,
                    format!("{} has changed this machine's `{name}`", owner(&text)),
                    "end it, or wait for it, and try again",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        read.map_err(fail)?;
        let settings = parse(&text).map_err(|(line, reason)| Error {
            line: Some(line),
            ..Error::new(
                &path,
                reason,
                "look what it says, put it back and delete it",
            )
        })?;
        let mut journal = Self {
            root: root.clone(),
            path,
            file,
            settings,
        };
        let note = (!journal.settings.is_empty()).then(|| {
            format!(
                "{} ended without putting back what it had changed of `{name}`: that was done now",
                owner(&text)
            )
        });
        journal.put_back()?;
        Ok((journal, note))
    }

    /// Notes what is to be put back, in this order, before it is changed.
    ///
    /// # Errors
    /// It cannot be written: then nothing may be changed.
    pub fn begin(&mut self, settings: Vec<Setting>) -> Result<()> {
        let text = print(&settings).map_err(|reason| Error::new(&self.path, reason, ""))?;
        self.settings = settings;
        self.replace(&text)
    }

    /// Puts everything back, and empties the journal.
    ///
    /// # Errors
    /// The first that failed: what follows it is not tried, and the journal is kept.
    pub fn put_back(&mut self) -> Result<()> {
        for setting in &self.settings {
            setting.put_back(&self.root)?;
        }
        self.settings.clear();
        self.replace("")
    }

    fn replace(&mut self, text: &str) -> Result<()> {
        let mut put = || {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())
        };
        put().map_err(|error| {
            Error::io(
                &self.path,
                "cannot be written",
                "make room in that folder",
                error,
            )
        })
    }
}

/// Opens a file of this user alone, and makes it where it is not there.
pub(crate) fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Locks the journal. It waits for a second: an owner that was killed just now is still ending, and
/// a child that was forked just now holds a copy of the lock until it executes its program.
pub(crate) fn lock(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..20 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
    file.try_lock()
}

/// Makes the folder, or checks that nobody else can put a journal into it.
pub(crate) fn private_folder(folder: &Path) -> Result<()> {
    let fail = |error| {
        let remedy = "make it, or let XDG_RUNTIME_DIR name a folder of your own";
        Error::io(folder, "cannot be used", remedy, error)
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(fail(error)),
        _ => {}
    }
    let seen = std::fs::symlink_metadata(folder).map_err(fail)?;
    if !seen.is_dir() || seen.uid() != sys::effective_uid() || seen.mode() & 0o022 != 0 {
        return Err(Error::new(
            folder,
            "others can write to it, so that what it holds is not believed",
            "delete it, or make it a folder of your own with mode 700",
        ));
    }
    Ok(())
}

/// Who wrote a journal, for a person.
fn owner(text: &str) -> String {
    let pid = text.lines().nth(1).and_then(|line| {
        let mut words = line.strip_prefix("owner ")?.split(' ');
        Some((words.next()?.parse::<i32>().ok()?, words.next()?))
    });
    match pid {
        Some((pid, start)) => format!("hither (process {pid}, started at tick {start})"),
        None => "another hither".to_owned(),
    }
}

/// The journal's text: a line per setting, its words parted by tabs (shown as two spaces).
///
/// ```text
/// hither restore 1
/// owner 4711 8342
/// put  sys/module/damon_stat/parameters/enabled  Y
/// put  sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds  0  sys/.../nr_kdamonds  16
/// end 2
/// ```
fn print(settings: &[Setting]) -> std::result::Result<String, String> {
    let start = std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|text| crate::proc::stat::parse(&text).ok())
        .map_or(0, |stat| stat.start_ticks);
    let mut text = format!("{HEADER}\nowner {} {start}\n", std::process::id());
    for setting in settings {
        let pairs = std::iter::once((&setting.path, &setting.content));
        text += "put";
        for (path, content) in pairs.chain(setting.only_if.iter().map(|(a, b)| (a, b))) {
            if [path, content]
                .iter()
                .any(|word| word.contains(['\n', '\t']))
            {
                return Err(format!(
                    "cannot hold `{path}`: its text is not one plain line"
                ));
            }
            text += &format!("\t{path}\t{content}");
        }
        text += "\n";
    }
    Ok(text + &format!("end {}\n", settings.len()))
}

/// Settings of a journal; none where it is empty or was cut. A fault is a line and a reason.
fn parse(text: &str) -> std::result::Result<Vec<Setting>, (usize, String)> {
    let mut settings = Vec::new();
    if !text.ends_with('\n') {
        return Ok(settings);
    }
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Err((index + 1, what.to_owned()));
        let mut words = line.split('\t');
        match (index, words.next().unwrap_or("")) {
            (0, HEADER) => {}
            (0, _) => return fail("is no journal of this release of hither"),
            (1, word) if word.starts_with("owner ") => {}
            (2.., "put") => {
                let words: Vec<&str> = words.collect();
                if words.is_empty() || !words.len().is_multiple_of(2) {
                    return fail("has not a text for each path");
                }
                let mut pairs = words.chunks(2).map(|pair| (pair[0], pair[1]));
                let (path, content) = pairs.next().unwrap_or_default();
                if !is_setting(path) {
                    return fail("names no file of /sys, /proc/sys or /proc/irq, and no thread");
                }
                settings.push(Setting {
                    only_if: pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
                    ..Setting::new(path, content)
                });
            }
            (2.., word) if word == format!("end {}", settings.len()) => return Ok(settings),
            _ => return fail("is not understood"),
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests;
