//! Programs of C, run with the shim that this test was built with.

use hither_linux::sites::{self, SiteAllocation, Sites};
use hither_symbols::{Build, SourceFrame, Symbols};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What cargo built beside this test.
pub fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.with_file_name("libhither_preload.so");
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// A folder with a program in it and room for logs.
pub struct Stage {
    pub folder: tempfile::TempDir,
    pub program: PathBuf,
    source: PathBuf,
}

/// One log, with names.
pub struct Log {
    pub sites: Sites,
    pub allocations: Vec<SiteAllocation>,
}

/// What a run left.
pub struct Run {
    pub output: Output,
    pub logs: Vec<Log>,
    /// Lines `NAME ADDRESS THREAD` that the program printed: address and thread by name.
    pub told: BTreeMap<String, Vec<(u64, i32)>>,
}

pub fn compile(program: &str, source: &Path, output: &Path, flags: &[&str]) {
    let done = Command::new(program)
        .args(["-g", "-O1", "-Wall", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(output)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program}: {errors}");
}

impl Stage {
    /// Builds a C or C++ file of this folder, or one that is given as text.
    pub fn new(name: &str, text: Option<&str>, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(name);
        let source = folder.path().canonicalize().unwrap().join(name);
        match text {
            Some(text) => fs::write(&source, text).unwrap(),
            None => drop(fs::copy(own, &source).unwrap()),
        }
        let program = folder.path().join("program");
        let compiler = if name.ends_with(".c") { "cc" } else { "c++" };
        compile(compiler, &source, &program, flags);
        fs::create_dir(folder.path().join("logs")).unwrap();
        Self {
            folder,
            program,
            source,
        }
    }

    pub fn logs(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("LD_PRELOAD", shim())
            .env("HITHER_PRELOAD_DIR", self.logs());
        command
    }

    /// Runs the program with the shim.
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.run_command(&mut self.command(arguments))
    }

    pub fn run_command(&self, command: &mut Command) -> Run {
        let output = command.output().unwrap();
        let mut logs: Vec<Log> = fs::read_dir(self.logs())
            .unwrap()
            .map(|entry| {
                let sites = sites::read(&entry.unwrap().path()).unwrap();
                let allocations = sites.allocations();
                Log { sites, allocations }
            })
            .collect();
        logs.sort_by_key(|log| log.sites.start_ns);
        let mut told = BTreeMap::<String, Vec<(u64, i32)>>::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let [name, address, thread] = words[..] {
                let address = address.trim_start_matches("0x");
                let pair = (u64::from_str_radix(address, 16), thread.parse());
                if let (Ok(address), Ok(thread)) = pair {
                    told.entry(name.to_owned())
                        .or_default()
                        .push((address, thread));
                }
            }
        }
        Run { output, logs, told }
    }

    /// The line that is marked with a name.
    pub fn line(&self, mark: &str) -> u32 {
        let text = fs::read_to_string(&self.source).unwrap();
        let found = text
            .lines()
            .position(|line| line.contains(&format!("@{mark} ")));
        found.unwrap_or_else(|| panic!("no line is marked @{mark}")) as u32 + 1
    }

    /// Lines of an allocation's call stack that are in the program's source, innermost first.
    pub fn lines(&self, log: &Log, allocation: &SiteAllocation) -> Vec<u32> {
        let frames = frames(log, allocation);
        let own = frames
            .iter()
            .filter(|frame| frame.file.as_deref() == self.source.to_str());
        own.filter_map(|frame| frame.line).collect()
    }
}

pub fn frames(log: &Log, allocation: &SiteAllocation) -> Vec<SourceFrame> {
    let mut symbols = Symbols::default();
    let Some(stack) = log.sites.stacks.get(&allocation.site) else {
        return Vec::new();
    };
    let mut frames = Vec::new();
    for address in &stack.frames {
        if let Some(module) = log.sites.module_at(address - 1, stack.time_ns) {
            let build = Build {
                path: PathBuf::from(&module.path),
                id: module.build_id.clone(),
            };
            frames.extend_from_slice(symbols.code(&build, address - 1 - module.bias));
        }
    }
    frames
}
