//! hither-symbols: from an address in an object file to function, file and line, or to a variable.
//!
//! Addresses are the file's own ("offsets" below): what a process used, less the bias at which the
//! object was loaded. Names come from the DWARF data of the file, or of its separate debug file; else
//! from its symbol tables; else they are `NAME+0x123`. Where it is known which build was used, another
//! build is never asked: a file that was replaced since would give plausible names that are wrong.
//! Files are mapped, not read, and answers are kept.

mod file;
mod locate;
mod table;

pub use file::{SourceFrame, Variable};

use file::File;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Where distributions put separate debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Answers about object files.
pub struct Symbols {
    debug_folder: PathBuf,
    files: HashMap<Build, Option<File>>,
    code: HashMap<(Build, u64), Vec<SourceFrame>>,
    notes: BTreeSet<String>,
}

/// An object file, and which build of it; no build id where it has none or it is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Build {
    /// Path of the file.
    pub path: PathBuf,
    /// Its build id.
    pub id: Vec<u8>,
}

impl Default for Symbols {
    fn default() -> Self {
        Self::new(Path::new(DEBUG_FOLDER))
    }
}

impl Symbols {
    /// Looks for separate debug files in a folder like `/usr/lib/debug`.
    #[must_use]
    pub fn new(debug_folder: &Path) -> Self {
        Self {
            debug_folder: debug_folder.to_owned(),
            files: HashMap::new(),
            code: HashMap::new(),
            notes: BTreeSet::new(),
        }
    }

    /// Functions at an offset, innermost first: more than one where functions were inlined. Never
    /// empty. For a return address, ask for the byte before it: the call is there.
    pub fn code(&mut self, build: &Build, offset: u64) -> &[SourceFrame] {
        let key = (build.clone(), offset);
        if !self.code.contains_key(&key) {
            let frames = self.file(build).map(|file| file.frames(offset));
            let mut frames = frames.unwrap_or_default();
            if frames.is_empty() {
                frames.push(SourceFrame::default());
            }
            for frame in &mut frames {
                if frame.function.is_empty() {
                    frame.function = plain(&build.path, offset);
                }
            }
            self.code.insert(key.clone(), frames);
        }
        self.code.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The variable that an offset is in; `None` outside of all that have a name.
    pub fn variable(&mut self, build: &Build, offset: u64) -> Option<Variable> {
        self.file(build)?.variable(offset)
    }

    /// The first address that a file's contents are meant for, rounded down to a page: where the file
    /// was loaded less this is the bias. `None` where the file cannot be used.
    pub fn first_address(&mut self, build: &Build) -> Option<u64> {
        self.file(build)?.first_address()
    }

    /// Sentences about files that could not be used, and why.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    fn file(&mut self, build: &Build) -> Option<&File> {
        if !self.files.contains_key(build) {
            let opened = File::open(build, &self.debug_folder);
            let file = opened.map_err(|note| self.notes.insert(note)).ok();
            self.files.insert(build.clone(), file);
        }
        self.files.get(build)?.as_ref()
    }
}

/// Where the functions of a name lie in an object file, in the file's own addresses: start and end of
/// each. Parameters, and namespaces or modules in front, may be left out of the name.
///
/// # Errors
/// A sentence: the file cannot be read, or is no object file.
pub fn functions(path: &Path, name: &str) -> Result<Vec<(u64, u64)>, String> {
    let mapped = table::Mapped::open(path)?;
    Ok(mapped
        .parse()
        .map_or_else(Vec::new, |file| table::functions(&file, name)))
}

/// The build id of an object file; `None` where it has none, cannot be read, or is no object file.
#[must_use]
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let mapped = table::Mapped::open(path).ok()?;
    let id = locate::build_id(&mapped.parse()?);
    (!id.is_empty()).then_some(id)
}

/// What is said where nothing is known: the file's name and the offset.
fn plain(path: &Path, offset: u64) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    format!("{}+{offset:#x}", name.to_string_lossy())
}
