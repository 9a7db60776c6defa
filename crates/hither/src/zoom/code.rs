//! Names: from the address of an instruction to its source line, from that of data to its variable.
//!
//! A file's bias is where its first mapping is, less the first address that the file itself wants.
//! Recordings do not tell which build of a file ran: the file that lies there now is asked.

use crate::sites::own_frame;
use hither_recording::analysis::Data;
use hither_recording::analysis::page::{Code, WordUse};
use hither_symbols::{Build, Symbols};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

/// A source line, or what is known of it.
pub struct SourceLine {
    /// The function; `MODULE+0x123` where it has no name, an address where it is in no file.
    pub function: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The object file; empty where the address is in none.
    pub module: String,
    /// Accesses by its instructions.
    pub by: WordUse,
    /// Threads or CPUs that ran it.
    pub users: BTreeSet<i32>,
}

impl SourceLine {
    /// `planted.rs:160 (count)`, or what is known of that.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => {
                let name = file.rsplit('/').next().unwrap_or(file);
                format!("{name}:{line} ({})", self.function)
            }
            _ => self.function.clone(),
        }
    }
}

/// Names of one process.
pub struct Names {
    symbols: Symbols,
    /// First address of a mapping to its end and the file in it; what follows a file's mapping without
    /// a name of its own is that file's variables that begin with zeros.
    files: BTreeMap<u64, (u64, String)>,
    /// File to where it is loaded.
    loaded: BTreeMap<String, u64>,
}

impl Names {
    /// Of a process as a recording has it.
    pub fn new(data: &Data, pid: i32) -> Self {
        let mut rows: Vec<_> = data.mappings.iter().filter(|row| row.pid == pid).collect();
        // Of two at one place the later one, which comes last.
        rows.sort_by_key(|row| row.start);
        let mut files: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        let mut loaded = BTreeMap::new();
        for row in rows {
            let before = files.range(..row.start).next_back();
            let name = match (row.name.as_str(), before) {
                ("", Some((_, (end, file)))) if *end == row.start => file.clone(),
                (name, _) if name.starts_with('/') => name.to_owned(),
                _ => continue,
            };
            loaded.entry(name.clone()).or_insert(row.start);
            files.insert(row.start, (row.end, name));
        }
        Self {
            symbols: Symbols::default(),
            files,
            loaded,
        }
    }

    /// The file at an address, and the address in the file's own terms.
    fn place(&mut self, address: u64) -> Option<(Build, u64)> {
        let (_, (end, name)) = self.files.range(..=address).next_back()?;
        let start = self.loaded.get(name).filter(|_| address < *end)?;
        let build = Build {
            path: PathBuf::from(name),
            id: Vec::new(),
        };
        let bias = start.wrapping_sub(self.symbols.first_address(&build)?);
        Some((build, address.wrapping_sub(bias)))
    }

    /// Source lines of instructions, those with most accesses first.
    pub fn source(&mut self, code: &[Code]) -> Vec<SourceLine> {
        let mut found: Vec<SourceLine> = Vec::new();
        for code in code {
            let named = self.named(code.address);
            let known = found.iter_mut().find(|other| {
                (&other.module, &other.function, &other.file, other.line)
                    == (&named.module, &named.function, &named.file, named.line)
            });
            let line = match known {
                Some(known) => known,
                None => {
                    found.push(named);
                    let last = found.len() - 1;
                    &mut found[last]
                }
            };
            line.by.reads += code.by.reads;
            line.by.writes += code.by.writes;
            line.by.transfers += code.by.transfers;
            line.users.extend(&code.users);
        }
        found.sort_by(|a, b| b.by.all().total_cmp(&a.by.all()));
        found
    }

    fn named(&mut self, address: u64) -> SourceLine {
        let mut line = SourceLine {
            function: format!("{address:#x}"),
            file: None,
            line: None,
            module: String::new(),
            by: WordUse::default(),
            users: BTreeSet::new(),
        };
        if let Some((build, offset)) = self.place(address) {
            line.module = build.path.to_string_lossy().into_owned();
            let frames = self.symbols.code(&build, offset);
            if let Some(frame) = own_frame(&line.module, frames) {
                line.function.clone_from(&frame.function);
                line.file.clone_from(&frame.file);
                line.line = frame.line;
            }
        }
        line
    }

    /// Variables that lie in a range, by address, each as `NAME of FILE`. Asked word by word, as
    /// symbol tables are: a page has 512.
    pub fn variables(&mut self, range: Range<u64>) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut address = range.start;
        while address < range.end {
            let Some((build, offset)) = self.place(address) else {
                // The rest of a page without a file has none either.
                address = (address | 4095) + 1;
                continue;
            };
            let Some(variable) = self.symbols.variable(&build, offset) else {
                address += 8;
                continue;
            };
            let file = build.path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{} of {file}", variable.name);
            if found.last() != Some(&name) {
                found.push(name);
            }
            let rest = variable.offset + variable.bytes - offset;
            address = address.saturating_add(rest.max(1)).next_multiple_of(8);
        }
        found
    }

    /// Sentences about files that could not be used.
    pub fn notes(&self) -> Vec<String> {
        self.symbols.notes().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::proc::maps;
    use hither_linux::root::Root;
    use hither_recording::Recording;
    use hither_recording::rows::Mapping;
    use std::path::Path;

    /// A variable of this program that lies in its data.
    static TURNS: [std::sync::atomic::AtomicU64; 8] =
        [const { std::sync::atomic::AtomicU64::new(3) }; 8];

    #[inline(never)]
    fn marked() -> u64 {
        TURNS[1].fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    fn own() -> Names {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/whole");
        let mut data = Data::read(&Recording::open(&corpus).unwrap());
        let pid = std::process::id() as i32;
        data.mappings = maps::read(&Root::host(), pid)
            .unwrap()
            .into_iter()
            .map(|mapping| Mapping {
                time_ns: 0,
                pid,
                start: mapping.range.start,
                end: mapping.range.end,
                permissions: String::new(),
                name: mapping.name,
            })
            .collect();
        Names::new(&data, pid)
    }

    #[test]
    fn code_and_data_of_this_program_have_their_names() {
        assert!(marked() >= 3);
        let code = |address: u64, writes: f64, user: i32| Code {
            address,
            by: WordUse {
                writes,
                ..WordUse::default()
            },
            users: BTreeSet::from([user]),
        };
        let address = marked as *const () as usize as u64;
        let mut names = own();
        // Twice the same place is one line; nobody's address stays a number.
        let lines = names.source(&[
            code(address, 2.0, 1),
            code(address, 3.0, 2),
            code(16, 1.0, 1),
        ]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].function.ends_with("marked"), "{}", lines[0].name());
        assert_eq!(
            (lines[0].by.writes, &lines[0].users),
            (5.0, &BTreeSet::from([1, 2]))
        );
        assert_eq!(
            (lines[1].name(), lines[1].module.as_str()),
            ("0x10".to_owned(), "")
        );
        let at = TURNS.as_ptr() as usize as u64;
        let variables = names.variables(at & !4095..(at | 4095) + 1);
        assert!(
            variables
                .iter()
                .any(|name| name.contains("TURNS of hither")),
            "{variables:?}"
        );
        assert!(names.variables(0x1000..0x2000).is_empty());
    }
}
