//! Allocation sites of a program that is started: the shim before it, its logs after it.

use anyhow::{Context, bail};
use hither_core::foreign::Foreign;
use hither_core::sites::{How, environment};
use hither_linux::parts;
use hither_linux::sites::{self, Module, Sites};
use hither_symbols::{Build, Symbols};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What AddressSanitizer reads its options from.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// Modules whose own frames are nobody's site: they allocate for whoever called them.
const RUNTIMES: [&str; 11] = [
    "libc.so",
    "libc-",
    "ld-linux",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "libpthread",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
];

/// Source files of languages' own libraries, which are compiled into the program.
const LIBRARY_SOURCES: [&str; 3] = ["/include/c++/", "/rustc/", "/rustlib/src/rust/library/"];

/// The shared object that is preloaded into programs.
#[derive(Debug)]
pub struct Shim {
    path: PathBuf,
}

impl Shim {
    /// Finds it: named by `HITHER_PRELOAD`, beside the running program, or where it is installed.
    ///
    /// # Errors
    /// It is nowhere, or where `LD_PRELOAD` cannot name it.
    pub fn find() -> anyhow::Result<Self> {
        Self::find_part(&parts::SHIM)
    }

    /// The same of another part that is preloaded.
    ///
    /// # Errors
    /// As of [`find`](Self::find).
    pub fn find_part(part: &parts::Part) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("asking for the path of hither itself")?;
        Self::find_near(
            part,
            &own,
            std::env::var_os(part.variable).map(PathBuf::from),
        )
    }

    fn find_near(part: &parts::Part, own: &Path, named: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = part.find(own, named)?;
        let path = path
            .canonicalize()
            .with_context(|| format!("resolving {}", path.shown()))?;
        // What LD_PRELOAD separates its entries with, or replaces in them.
        if path.to_string_lossy().contains([' ', ':', '$']) {
            bail!(
                "{}: LD_PRELOAD cannot name a path with a space, a colon or a dollar; copy the file \
                 elsewhere and name it in {}",
                path.shown(),
                part.variable
            );
        }
        Ok(Self { path })
    }

    /// Has a program, and what it starts, write logs into a folder, which must exist.
    pub fn attach(&self, command: &mut Command, folder: &Path, threshold_bytes: u64) {
        self.preload(command);
        // The program may go elsewhere before it allocates.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        command
            .env(environment::FOLDER, folder)
            .env(environment::THRESHOLD, threshold_bytes.to_string());
    }

    /// Has a program, and what it starts, load it: before what the user preloads, so that a preloaded
    /// allocator still serves the program.
    pub fn preload(&self, command: &mut Command) {
        let set = command
            .get_envs()
            .find(|(name, _)| *name == OsStr::new("LD_PRELOAD"))
            .map(|(_, value)| value.map(OsStr::to_owned));
        let before = set.unwrap_or_else(|| std::env::var_os("LD_PRELOAD"));
        let mut preload = OsString::from(&self.path);
        if let Some(before) = before.filter(|before| !before.is_empty()) {
            preload.push(":");
            preload.push(before);
        }
        command.env("LD_PRELOAD", preload);
        // Programs with AddressSanitizer refuse to start behind a library, unless they are told.
        let mut options = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
        if !options.is_empty() {
            options.push(":");
        }
        options.push("verify_asan_link_order=0");
        command.env(ASAN_OPTIONS, options);
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What one process image allocated.
#[derive(Debug, Default)]
pub struct ProcessSites {
    /// The process. Programs that it became one after the other (`exec`) are told one by one.
    pub pid: i32,
    /// Its parent when it first allocated.
    pub parent: i32,
    /// When it first allocated; ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Allocations in the order of their beginnings.
    pub allocations: Vec<Allocation>,
    /// Call stacks of allocations.
    pub sites: Vec<Site>,
    /// Loaded objects: what names the program's own data (`Symbols::variable`).
    pub modules: Vec<Module>,
    /// Allocations that found no room in the log.
    pub dropped_count: u64,
    /// Sentences about what is missing.
    pub notes: Vec<String>,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Index into [`ProcessSites::sites`].
    pub site: usize,
    /// How memory was asked for. Mappings may hold heap memory of an allocator.
    pub how: How,
    /// The thread that allocated.
    pub tid: i32,
    /// First address.
    pub address: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// When it was there; ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// When it went; `None` for what lived to the end.
    pub end_ns: Option<u64>,
    /// Did the process get it from its parent, with fork? Its end is then not known.
    pub is_inherited: bool,
}

/// Where allocations were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The call stack, innermost first, inlined functions included.
    pub frames: Vec<Frame>,
    /// Index of the innermost frame that is the program's own, rather than of the C library, an
    /// allocator, or a language's own library; 0 where there is none.
    pub first: usize,
}

/// A function of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its name; `MODULE+0x123` where it has none.
    pub function: String,
    /// Source file of the call.
    pub file: Option<String>,
    /// Line of the call.
    pub line: Option<u32>,
    /// Path of the object file; empty where the address is in none.
    pub module: String,
    /// Return address in the file's own addresses.
    pub offset: u64,
}

/// Reads the logs in a folder, those of the first processes first.
///
/// A log that cannot be read is a process without allocations, with a note that says why.
///
/// # Errors
/// The folder cannot be read.
pub fn collect(folder: &Path) -> anyhow::Result<Vec<ProcessSites>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.shown()))?;
    let mut logs = Vec::new();
    let mut damaged = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", folder.shown()))?
            .path();
        if path.extension() == Some(OsStr::new("aside")) {
            let pid = pid_of(&path).unwrap_or(0);
            damaged.push(ProcessSites {
                pid,
                notes: vec![format!(
                    "process {pid} is checked by a sanitizer: its allocations are not recorded; \
                     build it without"
                )],
                ..ProcessSites::default()
            });
        }
        if path.extension() != Some(OsStr::new("sites")) {
            continue;
        }
        match sites::read(&path) {
            Ok(log) => logs.push(log),
            Err(error) => damaged.push(ProcessSites {
                pid: pid_of(&path).unwrap_or(0),
                notes: vec![error.to_string()],
                ..ProcessSites::default()
            }),
        }
    }
    logs.sort_by_key(|log| log.start_ns);
    let mut names = Names::default();
    let mut processes = Vec::<ProcessSites>::new();
    for log in &logs {
        let own = process(log, &mut names);
        let parent = processes.iter().rfind(|other| is_fork(other, &own));
        let inherited = parent.map(|parent| living(parent, own.start_ns));
        processes.push(with_inherited(own, inherited.unwrap_or_default()));
    }
    processes.extend(damaged);
    Ok(processes)
}

/// `/folder/17.2.sites` is of process 17.
fn pid_of(path: &Path) -> Option<i32> {
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

fn process(log: &Sites, names: &mut Names) -> ProcessSites {
    let mut sites = Vec::new();
    let mut indexes = HashMap::new();
    let allocations = log.allocations();
    let allocations = allocations.into_iter().map(|allocation| Allocation {
        site: *indexes.entry(allocation.site).or_insert_with(|| {
            sites.push(names.site(log, allocation.site));
            sites.len() - 1
        }),
        how: allocation.how,
        tid: allocation.tid,
        address: allocation.address,
        bytes: allocation.bytes,
        start_ns: allocation.start_ns,
        end_ns: allocation.end_ns,
        is_inherited: false,
    });
    let allocations = allocations.collect();
    let mut notes = log.notes.clone();
    notes.extend(std::mem::take(&mut names.notes));
    ProcessSites {
        pid: log.pid,
        parent: log.parent,
        start_ns: log.start_ns,
        allocations,
        sites,
        modules: log.modules.clone(),
        dropped_count: log.dropped.allocation_count,
        notes,
    }
}

/// Did a process become the other by fork alone? Then the program lies at the same random address.
fn is_fork(parent: &ProcessSites, child: &ProcessSites) -> bool {
    let program = |process: &ProcessSites| {
        let first = process.modules.first()?;
        Some((first.bias, first.path.clone(), first.build_id.clone()))
    };
    parent.pid == child.parent && program(parent).is_some() && program(parent) == program(child)
}

/// Allocations that live at a time, with their sites.
fn living(parent: &ProcessSites, time_ns: u64) -> Vec<(Allocation, Site)> {
    let lives = |allocation: &&Allocation| {
        allocation.start_ns <= time_ns && allocation.end_ns.is_none_or(|end| end > time_ns)
    };
    let with_site = |allocation: &Allocation| {
        let inherited = Allocation {
            end_ns: None,
            is_inherited: true,
            ..*allocation
        };
        Some((inherited, parent.sites.get(allocation.site)?.clone()))
    };
    parent
        .allocations
        .iter()
        .filter(lives)
        .filter_map(with_site)
        .collect()
}

fn with_inherited(mut process: ProcessSites, living: Vec<(Allocation, Site)>) -> ProcessSites {
    for (mut allocation, site) in living {
        let known = process.sites.iter().position(|known| *known == site);
        allocation.site = known.unwrap_or_else(|| {
            process.sites.push(site);
            process.sites.len() - 1
        });
        process.allocations.push(allocation);
    }
    process
        .allocations
        .sort_by_key(|allocation| allocation.start_ns);
    process
}

/// Names of frames, asked for once.
#[derive(Default)]
struct Names {
    symbols: Symbols,
    told: usize,
    notes: Vec<String>,
}

impl Names {
    fn site(&mut self, log: &Sites, number: u32) -> Site {
        let Some(stack) = log.stacks.get(&number) else {
            return Site::default();
        };
        let mut frames = Vec::new();
        for &address in &stack.frames {
            frames.extend(self.frames(log, address, stack.time_ns));
        }
        let own = frames.iter().position(is_own);
        if self.symbols.notes().count() > self.told {
            self.told = self.symbols.notes().count();
            self.notes = self.symbols.notes().map(str::to_owned).collect();
        }
        Site {
            first: own.unwrap_or(0),
            frames,
        }
    }

    /// Functions that a return address is in.
    fn frames(&mut self, log: &Sites, address: u64, time_ns: u64) -> Vec<Frame> {
        // The call is before the address to return to, which may be another function's first.
        let call = address.saturating_sub(1);
        let Some(module) = log.module_at(call, time_ns) else {
            let function = format!("{address:#x}");
            return vec![Frame {
                function,
                offset: address,
                ..Frame::default()
            }];
        };
        let build = Build {
            path: PathBuf::from(&module.path),
            id: module.build_id.clone(),
        };
        let named = self.symbols.code(&build, call.wrapping_sub(module.bias));
        let frame = |frame: &hither_symbols::SourceFrame| Frame {
            function: frame.function.clone(),
            file: frame.file.clone(),
            line: frame.line,
            module: module.path.clone(),
            offset: address.wrapping_sub(module.bias),
        };
        named.iter().map(frame).collect()
    }
}

/// Of the functions at an address of an object file, the innermost that is the program's own.
#[must_use]
pub fn own_frame<'a>(
    module: &str,
    frames: &'a [hither_symbols::SourceFrame],
) -> Option<&'a hither_symbols::SourceFrame> {
    let is_own = |frame: &&hither_symbols::SourceFrame| {
        is_own_code(module, &frame.function, frame.file.as_deref())
    };
    frames.iter().find(is_own).or(frames.first())
}

fn is_own(frame: &Frame) -> bool {
    is_own_code(&frame.module, &frame.function, frame.file.as_deref())
}

fn is_own_code(module: &str, function: &str, file: Option<&str>) -> bool {
    let name = module.rsplit('/').next().unwrap_or("");
    let is_runtime = RUNTIMES.iter().any(|runtime| name.starts_with(runtime));
    let source = file.unwrap_or("");
    // Shims of a language without a source file of their own.
    let is_glue = ["__rust_alloc", "__rustc::__rust", "operator new"]
        .iter()
        .any(|glue| function.starts_with(glue));
    let is_library = LIBRARY_SOURCES.iter().any(|folder| source.contains(folder));
    !(module.is_empty() || is_runtime || is_glue || is_library)
}

#[cfg(test)]
mod tests;
