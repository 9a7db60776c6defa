//! Where it is kept what was learned of programs: one small file each, in a folder of this user alone.
//!
//! ```text
//! $XDG_STATE_HOME/hither/learned/KEY.json      or ~/.local/state/hither/learned/KEY.json
//! ```
//!
//! A record is written to a file of another name, which then takes the place of the old one: a reader sees one or
//! the other, whole. Links are not followed, nor is anything believed that somebody else could have written. Of
//! more records than [`MOST_PROGRAMS`] the oldest go.

use anyhow::{Context, anyhow, bail, ensure};
use hither_core::foreign::Foreign;
use hither_core::learned::{FORMAT, Key, Program};
use hither_linux::sys;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Programs that are kept.
const MOST_PROGRAMS: usize = 1000;
/// Bytes of a record that are read: a key of 64 KiB of which JSON writes each byte as six.
const MOST_BYTES: u64 = 512 << 10;
/// Ending of a record's file.
const ENDING: &str = ".json";
/// Ending of a file that is being written.
const UNFINISHED: &str = ".new";
/// A file that has been written for so long was left by a hither that was killed.
const LEFT: Duration = Duration::from_secs(60 * 60);

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    most: usize,
}

/// A file in it.
#[derive(Debug)]
pub struct Entry {
    /// Its name without the ending.
    pub name: String,
    /// What it holds, or why that is not used.
    pub program: anyhow::Result<Program>,
}

impl Store {
    /// This user's.
    ///
    /// # Errors
    /// The environment does not say where that is.
    pub fn of_user() -> anyhow::Result<Self> {
        Self::of(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
    }

    fn of(state: Option<OsString>, home: Option<OsString>) -> anyhow::Result<Self> {
        let path = |text: Option<OsString>| text.filter(|text| !text.is_empty()).map(PathBuf::from);
        let state = match (path(state), path(home)) {
            // The rules of XDG: a relative one does not count.
            (Some(state), _) if state.is_absolute() => state,
            (_, Some(home)) if home.is_absolute() => home.join(".local/state"),
            _ => bail!(
                "there is no place for what is learned: neither XDG_STATE_HOME nor HOME names a folder; set one of \
                 them"
            ),
        };
        Ok(Self::at(&state.join("hither/learned"), MOST_PROGRAMS))
    }

    fn at(folder: &Path, most: usize) -> Self {
        Self {
            folder: folder.to_owned(),
            most,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{ENDING}"))
    }

    /// What is known of a program. A record whose name is the same by chance is another program's: `None`.
    ///
    /// # Errors
    /// There is a record that is not used.
    pub fn find(&self, key: &Key) -> anyhow::Result<Option<Program>> {
        let path = self.path(&key.name());
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            _ => self.check_folder()?,
        }
        let program = read(&path)?;
        Ok((program.key == *key).then_some(program))
    }

    /// Everything, by name.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn all(&self) -> anyhow::Result<Vec<Entry>> {
        let Some(names) = self.names(ENDING)? else {
            return Ok(Vec::new());
        };
        self.check_folder()?;
        let entry = |name: String| Entry {
            program: read(&self.path(&name)),
            name,
        };
        Ok(names.into_iter().map(entry).collect())
    }

    /// Keeps a record in the place of what was known.
    ///
    /// # Errors
    /// It cannot be written; what was known is then as before.
    pub fn keep(&self, program: &Program) -> anyhow::Result<()> {
        let name = program.key.name();
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&self.folder);
        made.with_context(|| self.unwritten("its folder cannot be made"))?;
        self.check_folder()?;
        let text =
            serde_json::to_string_pretty(program).context("writing a record as JSON")? + "\n";
        let unfinished = format!("{name}.{}{UNFINISHED}", std::process::id());
        let unfinished = self.folder.join(unfinished);
        let written =
            write(&unfinished, &text).and_then(|()| fs::rename(&unfinished, self.path(&name)));
        if let Err(error) = written {
            // It may not be there, and what counts is why it could not be written.
            let _ = fs::remove_file(&unfinished);
            return Err(anyhow!(error).context(self.unwritten("the folder takes no file")));
        }
        self.prune()
    }

    fn unwritten(&self, what: &str) -> String {
        format!(
            "what was learned cannot be kept in {}: {what}; make room, or let XDG_STATE_HOME name a folder of yours",
            self.folder.shown()
        )
    }

    /// Deletes a record. Says whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget(&self, name: &str) -> anyhow::Result<bool> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(anyhow!(error).context(format!(
                "{} cannot be deleted; delete it by hand",
                path.shown()
            ))),
        }
    }

    /// Nobody else may put anything there.
    fn check_folder(&self) -> anyhow::Result<()> {
        let shown = self.folder.shown();
        let seen = fs::symlink_metadata(&self.folder)
            .with_context(|| format!("{shown} cannot be looked at; make it a folder of yours"))?;
        let is_own = seen.is_dir() && seen.uid() == sys::effective_uid();
        ensure!(
            is_own && seen.mode() & 0o022 == 0,
            "{shown} is not a folder of this user alone, so that what it says is not believed; look at it and delete it"
        );
        Ok(())
    }

    /// Names with this ending, without it, in order; `None` where there is no folder.
    fn names(&self, ending: &str) -> anyhow::Result<Option<Vec<String>>> {
        let fail = || {
            format!(
                "{} cannot be read; make it a folder of yours",
                self.folder.shown()
            )
        };
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(anyhow!(error).context(fail())),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.with_context(fail)?.file_name();
            names.extend(
                name.to_str()
                    .and_then(|name| name.strip_suffix(ending))
                    .map(str::to_owned),
            );
        }
        names.sort();
        Ok(Some(names))
    }

    /// The oldest of too many go, and what was left unfinished.
    fn prune(&self) -> anyhow::Result<()> {
        let changed = |path: &Path| {
            fs::symlink_metadata(path)
                .and_then(|seen| seen.modified())
                .ok()
        };
        for name in self.names(UNFINISHED)?.unwrap_or_default() {
            let path = self.folder.join(name + UNFINISHED);
            let age = changed(&path).and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > LEFT) {
                // Another hither may have done so.
                let _ = fs::remove_file(&path);
            }
        }
        let mut names = self.names(ENDING)?.unwrap_or_default();
        if names.len() <= self.most {
            return Ok(());
        }
        names.sort_by_cached_key(|name| changed(&self.path(name)));
        let surplus = names.len() - self.most;
        names[..surplus]
            .iter()
            .try_for_each(|name| self.forget(name).map(drop))
    }
}

/// A record, checked.
fn read(path: &Path) -> anyhow::Result<Program> {
    let name = path.file_stem().unwrap_or_default().shown();
    let mend = format!("forget it: hither learned forget {name}");
    let why = |why: &dyn std::fmt::Display| anyhow!("{}: {why}; {mend}", path.shown());
    let bytes = hither_files::read_own(path, sys::effective_uid(), MOST_BYTES);
    let bytes = bytes.map_err(|error| why(&error))?;
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| why(&format!("it is no record ({error})")))?;
    // Of another version it may have other fields.
    if value["format"] != FORMAT {
        return Err(why(&format!(
            "it was written by another version of hither (its format is {}, not {FORMAT})",
            value["format"]
        )));
    }
    let program: Program = serde_json::from_value(value)
        .map_err(|error| why(&format!("it is no record ({error})")))?;
    program.check().map_err(|wrong| why(&wrong))?;
    Ok(program)
}

/// A file that was not there, of this user alone.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // One that a killed hither of the same number left. `create_new` follows no link.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests;
