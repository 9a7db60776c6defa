//! Parts of hither that are files of their own: shared objects and machine files.
//!
//! A part is searched where its variable says, else beside the program (as cargo builds it), else where
//! `make install` puts it: `lib/hither` and `share/hither` beside the program's `bin`. All but the
//! variable follow from the program's own path, so that the working directory does not matter and an
//! installation can be moved as a whole.

use hither_core::foreign::Foreign;
use std::fmt;
use std::path::{Path, PathBuf};

/// A shared object that comes with hither.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its file name.
    pub file: &'static str,
    /// The environment variable that names another file.
    pub variable: &'static str,
    /// The package that cargo builds it from.
    package: &'static str,
}

/// The shim that is preloaded into programs.
pub const SHIM: Part = Part {
    file: "libhither_preload.so",
    variable: "HITHER_PRELOAD",
    package: "hither-preload",
};

/// The shim that gives files that programs map a copy on their node.
pub const MIRROR: Part = Part {
    file: "libhither_mirror.so",
    variable: "HITHER_MIRROR",
    package: "hither-mirror",
};

/// The laboratory's plugin for QEMU.
pub const PLUGIN: Part = Part {
    file: "libhither_plugin.so",
    variable: "HITHER_SCOPE",
    package: "hither-plugin",
};

/// A part that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What is missing, and where it was searched.
    pub what: String,
    /// How to get it.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl std::error::Error for Missing {}

impl Part {
    /// Its path; `own` is the path of the running program, `named` the value of its variable.
    ///
    /// # Errors
    /// It is in none of its places.
    pub fn find(&self, own: &Path, named: Option<PathBuf>) -> Result<PathBuf, Missing> {
        if let Some(path) = named {
            return if path.is_file() {
                Ok(path)
            } else {
                Err(Missing {
                    what: format!("{} names {}: no such file", self.variable, path.shown()),
                    remedy: format!("correct or unset {}", self.variable),
                })
            };
        }
        let folder = folder_of(own);
        let places = ["", "../lib/hither", "../lib64/hither"]
            .map(|place| folder.join(place).join(self.file));
        if let Some(path) = places.iter().find(|path| path.is_file()) {
            return Ok(path.clone());
        }
        let get = if build_tree(own).is_some() {
            format!("build it with `cargo build --release -p {}`", self.package)
        } else {
            "run `make install` in hither's sources again".to_owned()
        };
        Err(Missing {
            what: format!(
                "{} is neither in {} nor in {}",
                self.file,
                folder.shown(),
                folder.join("../lib/hither").shown()
            ),
            remedy: format!("{get}, or name the file in {}", self.variable),
        })
    }
}

/// The path of a machine file: the file of this name, else one that comes with hither, whose name may
/// be given without `.toml`.
///
/// # Errors
/// Neither exists.
pub fn find_machine(own: &Path, name: &Path) -> Result<PathBuf, Missing> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let folder = machines(own);
    let is_bare = name.components().count() == 1;
    if let Some(folder) = folder.as_deref().filter(|_| is_bare) {
        let plain = folder.join(name);
        let mut with_ending = plain.clone().into_os_string();
        with_ending.push(".toml");
        let found = [plain, with_ending.into()];
        if let Some(path) = found.into_iter().find(|path| path.is_file()) {
            return Ok(path);
        }
    }
    let known = match &folder {
        Some(folder) => format!(
            "a machine file, or one that comes with hither: {}",
            names(folder).join(", ")
        ),
        None => "a machine file".to_owned(),
    };
    Err(Missing {
        what: format!("{}: no such file", name.shown()),
        remedy: format!("name {known}"),
    })
}

/// Names of the machine files in a folder, sorted, without their ending.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// The folder of the machine files that come with hither.
fn machines(own: &Path) -> Option<PathBuf> {
    let installed = folder_of(own).join("../share/hither/machines");
    let built = build_tree(own).map(|tree| tree.join("machines"));
    [Some(installed), built]
        .into_iter()
        .flatten()
        .find(|folder| folder.is_dir())
}

/// The sources that the program was built in, where it still lies in their `target`.
fn build_tree(own: &Path) -> Option<&Path> {
    own.ancestors()
        .skip(1)
        .find(|folder| folder.file_name().is_some_and(|name| name == "target"))
        .and_then(Path::parent)
        .filter(|tree| tree.join("Cargo.toml").is_file())
}

fn folder_of(own: &Path) -> &Path {
    own.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_part_is_found_beside_the_program_or_installed_or_by_its_variable() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("bin/hither");
        put(&own);
        assert!(SHIM.find(&own, None).is_err());
        for place in ["lib64/hither", "lib/hither", "bin"] {
            let path = folder.path().join(place).join(SHIM.file);
            put(&path);
            let found = SHIM.find(&own, None).unwrap();
            assert_eq!(found.canonicalize().unwrap(), path.canonicalize().unwrap());
        }
        let other = folder.path().join("other.so");
        put(&other);
        assert_eq!(SHIM.find(&own, Some(other.clone())), Ok(other));
        let error = SHIM.find(&own, Some("/no/such.so".into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "HITHER_PRELOAD names /no/such.so: no such file; correct or unset HITHER_PRELOAD"
        );
    }

    #[test]
    fn the_remedy_fits_where_the_program_lies() {
        let folder = tempfile::tempdir().unwrap();
        let installed = folder.path().join("bin/hither");
        let remedy = |own: &Path| PLUGIN.find(own, None).unwrap_err().remedy;
        assert_eq!(
            remedy(&installed),
            "run `make install` in hither's sources again, or name the file in HITHER_SCOPE"
        );
        put(&folder.path().join("Cargo.toml"));
        let built = folder.path().join("target/release/hither");
        assert_eq!(
            remedy(&built),
            "build it with `cargo build --release -p hither-plugin`, or name the file in HITHER_SCOPE"
        );
    }

    #[test]
    fn machine_files_are_found_by_path_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("bin/hither");
        let machine = folder.path().join("share/hither/machines/two.toml");
        put(&own);
        put(&machine);
        put(&folder.path().join("share/hither/machines/four.toml"));
        let find = |name: &str| find_machine(&own, Path::new(name));
        for name in ["two", "two.toml"] {
            let found = find(name).unwrap().canonicalize().unwrap();
            assert_eq!(found, machine.canonicalize().unwrap());
        }
        assert_eq!(find(machine.to_str().unwrap()), Ok(machine.clone()));
        assert_eq!(
            find("six").unwrap_err().to_string(),
            "six: no such file; name a machine file, or one that comes with hither: four, two"
        );
        // A path is never looked for elsewhere.
        assert!(find("machines/two.toml").is_err());
    }
}
