//! The guest image: hither, busybox, the program with its libraries, and named extra files.
//!
//! Every path keeps its host name, symbolic links included (`/lib -> usr/lib` stays a link), so
//! that loaders, scripts and programs find what they find on the host. The archive is not
//! compressed: unpacking a compressed one costs more emulated time than it saves.

use crate::cpio::{Entry, Writer};
use crate::elf::{self, ProgramFile};
use crate::error::{Error, Result};
use hither_core::foreign::Foreign;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Where the guest finds the hither binary.
pub const AGENT_PATH: &str = "/hither/hither";
/// Links followed for one path before it counts as a loop, as in Linux (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;
/// A file in an archive of this form is smaller: its header has eight digits for the size.
const MOST_FILE_BYTES: u64 = u32::MAX as u64;
/// Loader of programs that name none but are libraries.
const DEFAULT_LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory(u32),
    Link(String),
    HostFile(PathBuf, u32),
    Text(Vec<u8>, u32),
}

/// An image being collected. Keys are absolute guest paths.
#[derive(Debug)]
pub struct Image {
    nodes: BTreeMap<String, Node>,
    closed: BTreeSet<PathBuf>,
}

impl Image {
    /// An image with mount points and the few files that programs expect of a system.
    #[must_use]
    pub fn new() -> Self {
        let mut image = Self {
            nodes: BTreeMap::new(),
            closed: BTreeSet::new(),
        };
        for directory in [
            "/proc", "/sys", "/dev", "/etc", "/root", "/run", "/hither", "/var/tmp",
        ] {
            image.add_directory(directory, 0o755);
        }
        image.add_directory("/tmp", 0o1777);
        // Where the host has merged these into /usr, every path through them must work.
        for name in ["/bin", "/sbin", "/lib", "/lib64"] {
            if let Ok(target) = fs::read_link(name)
                && let Some(target) = target.to_str()
            {
                image.add_directory(&format!("/{}", target.trim_start_matches('/')), 0o755);
                image.add_link(name, target);
            }
        }
        image.add_text(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        );
        image.add_text("/etc/group", "root:x:0:\nnogroup:x:65534:\n");
        image.add_text("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
        image.add_text(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n",
        );
        image
    }

    /// Adds a small file that exists only in the guest.
    pub fn add_text(&mut self, path: &str, text: impl Into<Vec<u8>>) {
        self.parents(path);
        self.nodes
            .insert(path.to_owned(), Node::Text(text.into(), 0o644));
    }

    /// Adds a directory with its parents.
    pub fn add_directory(&mut self, path: &str, mode: u32) {
        self.parents(path);
        self.nodes
            .entry(path.to_owned())
            .or_insert(Node::Directory(mode));
    }

    /// Adds a host file under another name, without its libraries.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn add_as(&mut self, host: &Path, guest: &str) -> Result<()> {
        let data = fs::metadata(host).map_err(Error::io(format!("reading {}", host.shown())))?;
        self.parents(guest);
        let node = Node::HostFile(host.to_owned(), data.permissions().mode());
        self.nodes.insert(guest.to_owned(), node);
        Ok(())
    }

    /// Adds a program or library of hither's own, without its libraries and without what only a debugger
    /// reads: five sixths of it, which the guest would unpack byte by byte in emulated time.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn add_stripped(&mut self, host: &Path, guest: &str) -> Result<()> {
        let bytes = host_file(host)?;
        let bytes = elf::without_sections(&bytes).unwrap_or(bytes);
        self.parents(guest);
        self.nodes
            .insert(guest.to_owned(), Node::Text(bytes, 0o755));
        Ok(())
    }

    /// Adds a program, script or library with everything its loader asks for, under its own path.
    ///
    /// # Errors
    /// Where a file is missing, unreadable, for another machine, or lacks a library.
    pub fn add_program(&mut self, host: &Path) -> Result<()> {
        let real = self.add_path(host)?;
        self.add_closure(&real)
    }

    /// Adds what a program's loader asks for, but not the program itself.
    ///
    /// # Errors
    /// As [`Image::add_program`].
    pub fn add_closure_of(&mut self, host: &Path) -> Result<()> {
        let real = host
            .canonicalize()
            .map_err(Error::io(format!("reading {}", host.shown())))?;
        self.add_closure(&real)
    }

    /// Adds a symbolic link that exists only in the guest.
    pub fn add_link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.nodes
            .entry(path.to_owned())
            .or_insert_with(|| Node::Link(target.to_owned()));
    }

    /// Adds a named file or, with everything below it, a directory. Programs among them bring
    /// their libraries.
    ///
    /// # Errors
    /// As [`Image::add_program`].
    pub fn add_extra(&mut self, host: &Path) -> Result<()> {
        let real = self.add_path(host)?;
        if real.is_dir() {
            let doing = || format!("reading the directory {}", real.shown());
            let mut names = fs::read_dir(&real)
                .and_then(|entries| {
                    entries
                        .map(|entry| Ok(entry?.path()))
                        .collect::<std::io::Result<Vec<_>>>()
                })
                .map_err(Error::io(doing()))?;
            names.sort();
            for name in names {
                // Sockets and pipes mean nothing in another machine; a dangling link stays one.
                let kind = fs::symlink_metadata(&name)
                    .map_err(Error::io(doing()))?
                    .file_type();
                if kind.is_symlink() && !name.exists() {
                    let target = read_link(&name)?;
                    self.nodes
                        .insert(text_of(&name)?.to_owned(), Node::Link(target));
                } else if kind.is_dir() || kind.is_file() || kind.is_symlink() {
                    self.add_extra(&name)?;
                }
            }
            return Ok(());
        }
        self.add_closure(&real)
    }

    /// Bytes of all regular files.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        self.nodes
            .values()
            .map(|node| match node {
                Node::HostFile(path, _) => fs::metadata(path).map_or(0, |data| data.len()),
                Node::Text(text, _) => text.len() as u64,
                Node::Directory(_) | Node::Link(_) => 0,
            })
            .sum()
    }

    /// Guest paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Writes the archive; returns its size in bytes.
    ///
    /// # Errors
    /// Where a host file has gone meanwhile or the writer fails.
    pub fn write(&self, out: impl Write) -> Result<u64> {
        let mut archive = Writer::new(out);
        let failed = || "writing the guest image".to_owned();
        // The kernel opens it as the agent's standard output before anything is mounted.
        self.nodes
            .get("/dev")
            .map_or(Ok(()), |_| archive.add("dev", 0o755, Entry::Directory))
            .map_err(Error::io(failed()))?;
        archive
            .add("dev/console", 0o600, Entry::Device(5, 1))
            .map_err(Error::io(failed()))?;
        for (path, node) in &self.nodes {
            let name = path.trim_start_matches('/');
            let added = match node {
                Node::Directory(_) if path == "/dev" => Ok(()),
                Node::Directory(mode) => archive.add(name, *mode, Entry::Directory),
                Node::Link(target) => archive.add(name, 0o777, Entry::Link(target)),
                Node::Text(text, mode) => archive.add(name, *mode, Entry::File(text)),
                Node::HostFile(host, mode) => {
                    let data = host_file(host)?;
                    archive.add(name, *mode, Entry::File(&data))
                }
            };
            added.map_err(Error::io(failed()))?;
        }
        archive
            .finish()
            .map(|(_, bytes)| bytes)
            .map_err(Error::io(failed()))
    }

    /// Adds directories above a guest path.
    fn parents(&mut self, path: &str) {
        let mut end = 0;
        while let Some(next) = path[end + 1..].find('/') {
            end += 1 + next;
            self.nodes
                .entry(path[..end].to_owned())
                .or_insert(Node::Directory(0o755));
        }
    }

    /// Adds a host path with every directory and link on the way; returns the real path.
    fn add_path(&mut self, host: &Path) -> Result<PathBuf> {
        let absolute =
            std::path::absolute(host).map_err(Error::io(format!("resolving {}", host.shown())))?;
        let mut links = 0;
        let mut done = PathBuf::from("/");
        let mut rest: Vec<PathBuf> = parts_reversed(&absolute);
        while let Some(part) = rest.pop() {
            if part.as_os_str() == ".." {
                done.pop();
                continue;
            }
            let here = done.join(&part);
            let data = fs::symlink_metadata(&here)
                .map_err(Error::io(format!("reading {}", here.shown())))?;
            let name = text_of(&here)?.to_owned();
            let mode = data.permissions().mode();
            if data.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::bad(
                        format!("{}: too many symbolic links", host.shown()),
                        "name the file itself",
                    ));
                }
                let target = read_link(&here)?;
                let target_path = PathBuf::from(&target);
                self.nodes.insert(name, Node::Link(target));
                if target_path.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(parts_reversed(&target_path));
            } else {
                let node = if data.is_dir() {
                    Node::Directory(mode)
                } else if data.is_file() {
                    Node::HostFile(here.clone(), mode)
                } else {
                    return Err(Error::bad(
                        format!("{} is no regular file", host.shown()),
                        "name a file or a folder",
                    ));
                };
                self.nodes.entry(name).or_insert(node);
                done = here;
            }
        }
        Ok(done)
    }

    /// Adds what a program file needs: libraries, or its interpreter.
    fn add_closure(&mut self, real: &Path) -> Result<()> {
        if !self.closed.insert(real.to_owned()) {
            return Ok(());
        }
        let bytes = host_file(real)?;
        match elf::inspect(&bytes) {
            ProgramFile::Data => Ok(()),
            ProgramFile::NoLoader => {
                let is_library = real
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains(".so"));
                if is_library {
                    self.add_libraries(real, DEFAULT_LOADER)
                } else {
                    Ok(())
                }
            }
            ProgramFile::Dynamic { loader } => {
                self.add_path(Path::new(&loader))?;
                self.add_libraries(real, &loader)
            }
            ProgramFile::Script {
                interpreter,
                argument,
            } => {
                self.add_program(Path::new(&interpreter))?;
                if interpreter.ends_with("/env")
                    && let Some(name) = argument.as_deref().and_then(|rest| {
                        rest.split_whitespace().find(|word| !word.starts_with('-'))
                    })
                {
                    self.add_program(&find_program(name)?)?;
                }
                Ok(())
            }
            ProgramFile::Unusable(reason) => Err(Error::bad(
                format!("{} is {reason}", real.shown()),
                "name a program built for x86-64 Linux; the lab emulates no other processor",
            )),
        }
    }

    fn add_libraries(&mut self, real: &Path, loader: &str) -> Result<()> {
        let output = Command::new(loader)
            .arg("--list")
            .arg(real)
            .output()
            .map_err(Error::io(format!(
                "asking {loader} for the libraries of {}",
                real.shown()
            )))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let libraries = elf::parse_library_list(&text).map_err(|lacking| {
            Error::bad(
                format!(
                    "{} needs {}, which this machine does not have",
                    real.shown(),
                    lacking.join(", ")
                ),
                "install the package that holds it, or set LD_LIBRARY_PATH to its directory",
            )
        })?;
        for library in libraries {
            self.add_path(Path::new(&library))?;
        }
        Ok(())
    }
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

/// Finds a program as a shell does: a name with a slash is a path, any other is looked up in
/// `PATH`. The result is absolute, its links unresolved.
///
/// # Errors
/// Where there is no such program, or it is a directory or may not be executed.
pub fn find_program(name: &str) -> Result<PathBuf> {
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(Error::io(format!("resolving {}", path.shown())))
    };
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if name.is_empty() {
        return Err(Error::bad(
            "the program's name is empty",
            "put the program after `--`",
        ));
    }
    if name.contains('/') {
        let path = Path::new(name);
        return match fs::metadata(path) {
            Ok(data) if data.is_dir() => Err(Error::bad(
                format!("{name} is a directory, not a program"),
                "name the program in it",
            )),
            Ok(_) if is_program(path) => absolute(path),
            Ok(_) => Err(Error::bad(
                format!("{name} is not executable"),
                format!("chmod +x {name}"),
            )),
            Err(cause) => Err(Error::bad(
                format!("program {name}: {cause}"),
                "check its path; build it first where it is yours",
            )),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path));
    found.map_or_else(
        || {
            Err(Error::bad(
                format!("program {name} is in no directory of PATH"),
                format!("give its path, as in ./{name}, or install it"),
            ))
        },
        |path| absolute(&path),
    )
}

fn parts_reversed(path: &Path) -> Vec<PathBuf> {
    path.components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .collect()
}

fn text_of(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::bad(
            format!("{}: the path is not UTF-8", path.shown()),
            "give it a plain name",
        )
    })
}

fn read_link(path: &Path) -> Result<String> {
    let target =
        fs::read_link(path).map_err(Error::io(format!("reading the link {}", path.shown())))?;
    text_of(&target).map(str::to_owned)
}

/// Bytes of a file of the host.
fn host_file(path: &Path) -> Result<Vec<u8>> {
    hither_files::read(path, MOST_FILE_BYTES).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::FileTooLarge => Error::bad(
            format!("{}: {error}", path.shown()),
            "name files that fit the memory of the guest",
        ),
        _ => Error::io(format!("reading {}", path.shown()))(error),
    })
}

#[cfg(test)]
mod tests;
