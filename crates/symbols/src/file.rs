//! One object file with its debug file, open for questions.

use crate::table::{Mapped, Table};
use crate::{Build, locate};
use addr2line::Loader;
use object::{Object, ObjectSegment, SymbolKind};
use std::path::{Path, PathBuf};

/// Segments are mapped in whole pages.
const PAGE_BYTES: u64 = 4096;

/// A function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Its name, demangled; `NAME+0x123` where there is none.
    pub function: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it, from 1.
    pub line: Option<u32>,
}

/// A variable that an address is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name, demangled.
    pub name: String,
    /// Its first address, in the file's own addresses.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// An object file of which the build is right.
pub struct File {
    /// Lines, where there is DWARF data.
    lines: Option<Loader>,
    /// Symbols, of the file with the fullest tables.
    symbols: Mapped,
    table: Table,
}

impl File {
    /// Opens a build's file, or its debug file, whichever tells more.
    ///
    /// # Errors
    /// A sentence: neither is there, or the file is of another build.
    pub fn open(build: &Build, debug_folder: &Path) -> Result<Self, String> {
        let own = Mapped::open(&build.path).and_then(|own| {
            let Some(file) = own.parse() else {
                return Err(format!("{}: is no object file", build.path.display()));
            };
            let id = locate::build_id(&file);
            if !build.id.is_empty() && id != build.id {
                return Err(format!(
                    "{}: was replaced after the program ran (its build id is another): its \
                     functions are not named",
                    build.path.display()
                ));
            }
            Ok((id, own))
        });
        let (found, fallback) = match own {
            Ok((id, own)) => {
                let file = own.parse();
                let separate = file.as_ref().and_then(|file| {
                    if locate::has_lines(file) {
                        return None;
                    }
                    locate::by_id(debug_folder, &id)
                        .or_else(|| locate::by_link(debug_folder, build, file))
                });
                drop(file);
                match separate {
                    Some(found) => (found, Some(own)),
                    None => ((build.path.clone(), own), None),
                }
            }
            // The file itself is gone or another one; its debug file may still be there.
            Err(note) => (locate::by_id(debug_folder, &build.id).ok_or(note)?, None),
        };
        Ok(Self::with(found, fallback, debug_folder))
    }

    fn with(
        (path, symbols): (PathBuf, Mapped),
        fallback: Option<Mapped>,
        debug_folder: &Path,
    ) -> Self {
        let file = symbols.parse();
        let shared = file
            .as_ref()
            .and_then(|file| locate::shared(debug_folder, &path, file));
        let has_lines = file.as_ref().is_some_and(locate::has_lines);
        // Damaged DWARF data is as good as none.
        let lines = has_lines
            .then(|| hither_files::contained(|| Loader::new_with_sup(&path, shared).ok()))
            .flatten()
            .flatten();
        let table = file.as_ref().map(Table::new);
        drop(file);
        let mut opened = Self {
            lines,
            table: table.unwrap_or_else(Table::empty),
            symbols,
        };
        if let Some(own) = fallback.filter(|_| opened.table.is_empty()) {
            opened.table = own
                .parse()
                .map_or_else(Table::empty, |file| Table::new(&file));
            opened.symbols = own;
        }
        opened
    }

    /// Functions at an offset, innermost first; empty where nothing is known.
    pub fn frames(&self, offset: u64) -> Vec<SourceFrame> {
        let mut frames = self.frames_of_lines(offset).unwrap_or_default();
        // The outermost is the function that the symbol table has too.
        let unnamed = frames.last().is_none_or(|last| last.function.is_empty());
        if let Some(symbol) = unnamed
            .then(|| self.symbol(SymbolKind::Text, offset))
            .flatten()
        {
            match frames.last_mut() {
                Some(last) => last.function = symbol.name,
                None => frames.push(SourceFrame {
                    function: symbol.name,
                    ..SourceFrame::default()
                }),
            }
        }
        frames
    }

    /// DWARF data may contradict itself in ways that its reader panics at: it is as good as none then.
    fn frames_of_lines(&self, offset: u64) -> Option<Vec<SourceFrame>> {
        hither_files::contained(|| self.find_frames(offset)).flatten()
    }

    fn find_frames(&self, offset: u64) -> Option<Vec<SourceFrame>> {
        let lines = self.lines.as_ref()?;
        let mut found = lines.find_frames(offset).ok()?;
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let function = frame
                .function
                .as_ref()
                .and_then(|name| name.demangle().ok());
            let place = frame.location.as_ref();
            frames.push(SourceFrame {
                function: function.map(|name| name.into_owned()).unwrap_or_default(),
                file: place.and_then(|place| place.file).map(str::to_owned),
                line: place.and_then(|place| place.line).filter(|line| *line > 0),
            });
        }
        Some(frames)
    }

    fn symbol(&self, kind: SymbolKind, offset: u64) -> Option<crate::table::Found> {
        self.table.find(&self.symbols.parse()?, kind, offset)
    }

    /// The first address of its segments, rounded down to a page.
    pub fn first_address(&self) -> Option<u64> {
        let file = self.symbols.parse()?;
        let first = file.segments().map(|segment| segment.address()).min()?;
        Some(first & !(PAGE_BYTES - 1))
    }

    /// The variable that an offset is in.
    pub fn variable(&self, offset: u64) -> Option<Variable> {
        let symbol = self.symbol(SymbolKind::Data, offset)?;
        Some(Variable {
            name: symbol.name,
            offset: symbol.address,
            bytes: symbol.bytes,
        })
    }
}
