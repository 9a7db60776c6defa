//! The repository's own text files.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Folders that hold build results, downloads or captured data, not the project's own text.
const SKIPPED: [&str; 5] = ["target", ".git", ".hither", "fixtures", "evidence"];

/// One text file.
pub struct Source {
    /// Path relative to the repository.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

impl Source {
    /// Has it this ending (without the dot)?
    pub fn is(&self, ending: &str) -> bool {
        self.path.extension().is_some_and(|found| found == ending)
    }
}

/// Every text file of the repository, in order of path.
pub fn all(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    walk(root, root, &mut sources)?;
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(sources)
}

fn walk(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("{}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry
            .file_type()
            .with_context(|| format!("{}", path.display()))?;
        if kind.is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(root, &path, sources)?;
            }
        } else if kind.is_file() && is_text(&path) {
            let text = read(&path)?;
            let path = path
                .strip_prefix(root)
                .map_or(path.clone(), Path::to_path_buf);
            sources.push(Source { path, text });
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let known = ["rs", "toml", "md", "sh", "c", "h", "py"];
    ending.is_some_and(|ending| known.contains(&ending))
        || path
            .file_name()
            .is_some_and(|name| name == "Makefile" || name == "run")
}

/// Reads a file, naming it where that fails.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
