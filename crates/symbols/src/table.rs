//! Symbol tables of an ELF file: functions and variables by address.

use memmap2::Mmap;
use object::{Object, ObjectSymbol, SymbolIndex, SymbolKind};
use std::borrow::Cow;
use std::collections::HashMap;

/// An object file in memory, as far as it is touched.
pub struct Mapped {
    map: Mmap,
}

impl Mapped {
    /// Maps a file.
    pub fn open(path: &std::path::Path) -> Result<Self, String> {
        let fail = |reason: String| format!("{}: {reason}", path.display());
        let file = hither_files::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: the mapping is private and only read. Whoever truncates an object file while it is
        // looked at ends this process, as he would end every process that runs it.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let mapped = Self { map };
        mapped
            .parse()
            .ok_or_else(|| fail("is no object file".into()))?;
        Ok(mapped)
    }

    /// The file's headers: cheap, nothing is copied.
    pub fn parse(&self) -> Option<object::File<'_>> {
        object::File::parse(&*self.map).ok()
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// A symbol without its name, which stays in the file.
#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    bytes: u64,
    index: SymbolIndex,
    is_dynamic: bool,
    kind: SymbolKind,
}

/// Symbols of one kind, by address.
pub struct Table {
    entries: Vec<Entry>,
}

/// A symbol that an address is in.
pub struct Found {
    /// Its name, demangled.
    pub name: String,
    /// Its own address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

impl Table {
    /// None.
    pub fn empty() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Functions and variables of a file, from its full table if it has one, else from the one that
    /// the dynamic linker uses.
    pub fn new(file: &object::File<'_>) -> Self {
        let mut table = Self::empty();
        table.add(file.symbols(), false);
        if table.entries.is_empty() {
            table.add(file.dynamic_symbols(), true);
        }
        // Of several names for one thing, the first one in the file: its own rather than aliases.
        table.entries.sort_by_key(|entry| entry.address);
        table
    }

    fn add<'a>(&mut self, symbols: impl Iterator<Item = impl ObjectSymbol<'a>>, is_dynamic: bool) {
        let symbols = symbols.filter(|symbol| {
            let is_named = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data);
            is_named && !symbol.is_undefined()
        });
        self.entries.extend(symbols.map(|symbol| Entry {
            address: symbol.address(),
            bytes: symbol.size(),
            index: symbol.index(),
            is_dynamic,
            kind: symbol.kind(),
        }));
    }

    /// The symbol of a kind that covers an address.
    pub fn find(&self, file: &object::File<'_>, kind: SymbolKind, address: u64) -> Option<Found> {
        let end = self
            .entries
            .partition_point(|entry| entry.address <= address);
        // Symbols may nest, though hardly deeply.
        let below = self.entries[..end].iter().rev().take(16);
        let mut fitting = below.filter(|entry| {
            // Hand-written assembly may leave sizes out: its function goes up to the next.
            let is_open = entry.bytes == 0 && kind == SymbolKind::Text;
            entry.kind == kind && (is_open || address - entry.address < entry.bytes)
        });
        let entry = fitting.next()?;
        let first = fitting.take_while(|other| other.address == entry.address);
        let entry = first.last().unwrap_or(entry);
        Some(Found {
            name: name(file, entry)?,
            address: entry.address,
            bytes: entry.bytes,
        })
    }
}

/// Where the functions of a name lie in a file, in its own addresses: start and end of each.
///
/// A name is meant without parameters and without the hash that Rust adds, and may leave out the
/// namespaces or modules in front: `load` means `store::load(int)` too.
pub fn functions(file: &object::File<'_>, wanted: &str) -> Vec<(u64, u64)> {
    let table = Table::new(file);
    let mut found: Vec<(u64, u64)> = Vec::new();
    let is_function = |entry: &&Entry| entry.kind == SymbolKind::Text && entry.bytes > 0;
    let names: HashMap<SymbolIndex, &str> = match table.entries.first() {
        Some(entry) if entry.is_dynamic => names(file.dynamic_symbols()),
        _ => names(file.symbols()),
    };
    for entry in table.entries.iter().filter(is_function) {
        let Some(name) = names.get(&entry.index) else {
            continue;
        };
        let name = demangled(name);
        let range = (entry.address, entry.address + entry.bytes);
        if means(wanted, &name) && !found.contains(&range) {
            found.push(range);
        }
    }
    found
}

fn names<'a>(
    symbols: impl Iterator<Item = impl ObjectSymbol<'a>>,
) -> HashMap<SymbolIndex, &'a str> {
    symbols
        .filter_map(|symbol| Some((symbol.index(), symbol.name().ok()?)))
        .collect()
}

fn means(wanted: &str, name: &str) -> bool {
    let plain = name.split('(').next().unwrap_or(name);
    let plain = match plain.rsplit_once("::h") {
        Some((before, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            before
        }
        _ => plain,
    };
    let end = plain.strip_suffix(wanted);
    name == wanted || end.is_some_and(|before| before.is_empty() || before.ends_with("::"))
}

fn name(file: &object::File<'_>, entry: &Entry) -> Option<String> {
    let name = if entry.is_dynamic {
        let mut symbols = file.dynamic_symbols();
        let symbol = symbols.find(|symbol| symbol.index() == entry.index)?;
        symbol.name().ok()?.to_owned()
    } else {
        let symbol = file.symbol_by_index(entry.index).ok()?;
        symbol.name().ok()?.to_owned()
    };
    Some(demangled(&name).into_owned())
}

/// A name as its source has it. Names of C are what they are: `f` would be read as C++'s `float`.
fn demangled(name: &str) -> Cow<'_, str> {
    let is_mangled = ["_Z", "__Z", "___Z", "_R", "__R"]
        .iter()
        .any(|mark| name.starts_with(mark));
    match is_mangled {
        true => addr2line::demangle_auto(Cow::Borrowed(name), None),
        false => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_are_not_demangled() {
        for (name, plain) in [
            ("f", "f"),
            ("w", "w"),
            ("_start", "_start"),
            ("_Z4loadi", "load(int)"),
            ("_ZN5store4loadEv", "store::load()"),
        ] {
            assert_eq!(demangled(name), plain);
        }
    }

    #[test]
    fn names_leave_out_parameters_modules_and_hashes() {
        for (wanted, name) in [
            ("load", "load"),
            ("load", "store::load(int, char)"),
            ("store::load", "store::load(int)"),
            ("load", "app::store::load::h0123456789abcdef"),
        ] {
            assert!(means(wanted, name), "{wanted} {name}");
        }
        for name in ["reload", "load::more", "store::load::h01"] {
            assert!(!means("load", name), "{name}");
        }
    }

    #[test]
    fn this_test_is_found_in_its_own_file() {
        let own = Mapped::open(&std::env::current_exe().unwrap()).unwrap();
        let file = own.parse().unwrap();
        let found = functions(&file, "table::tests::this_test_is_found_in_its_own_file");
        assert!(!found.is_empty() && found.iter().all(|(start, end)| start < end));
        assert!(functions(&file, "no_such_function_at_all").is_empty());
    }
}
