//! Names of a program of C that is built here, whole, stripped, and with its debug data elsewhere.

use hither_symbols::{Build, Symbols};
use object::{Object, ObjectSymbol};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "\
#include <stdlib.h>
int table[1000];
static long counts[8] = {1};
static inline __attribute__((always_inline)) void *inner(long n)
{
    return malloc(n * 4096 + counts[0]);
}
__attribute__((noinline)) void *outer(long n)
{
    void *got = inner(n);
    table[n] = counts[n & 7]++;
    return got;
}
int main(int argc, char **argv) { (void)argv; return outer(argc) == 0; }
";

/// Line of the call in `inner`, and of the call of `inner` in `outer`.
const LINES: [u32; 2] = [6, 10];

struct Program {
    _folder: tempfile::TempDir,
    folder: PathBuf,
    path: PathBuf,
    id: Vec<u8>,
    /// Offset of the call of malloc in `outer`, of `table` and of `counts`.
    call: u64,
    table: u64,
    counts: u64,
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Program {
    fn build(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().canonicalize().unwrap();
        let source = own.join("program.c");
        fs::write(&source, SOURCE).unwrap();
        let path = own.join("program");
        let mut arguments = vec!["-O1", "-Wl,--build-id", text(&source), "-o", text(&path)];
        arguments.extend(flags);
        run("cc", &arguments);
        let bytes = fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let symbol = |name: &str| {
            let mut symbols = file.symbols();
            let found = symbols.find(|symbol| symbol.name() == Ok(name)).unwrap();
            (found.address(), found.size())
        };
        // The call is somewhere in the function: where addr2line(1) says so.
        let (start, bytes) = symbol("outer");
        let lines = |address: u64| {
            let output = Command::new("addr2line")
                .args(["-i", "-e", text(&path), &format!("{address:#x}")])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let line = |line: &str| line.rsplit(':').next()?.split(' ').next()?.parse().ok();
            text.lines().filter_map(line).collect::<Vec<u32>>()
        };
        let call = (start..start + bytes).find(|address| lines(*address) == LINES);
        Self {
            id: file.build_id().unwrap().unwrap().to_vec(),
            call: call.unwrap_or(start),
            table: symbol("table").0,
            counts: symbol("counts").0,
            folder: own,
            path,
            _folder: folder,
        }
    }

    fn build_key(&self) -> Build {
        Build {
            path: self.path.clone(),
            id: self.id.clone(),
        }
    }

    /// Functions with their lines at the call.
    fn names(&self, symbols: &mut Symbols) -> Vec<(String, Option<u32>)> {
        let frames = symbols.code(&self.build_key(), self.call);
        let pair = |frame: &hither_symbols::SourceFrame| (frame.function.clone(), frame.line);
        frames.iter().map(pair).collect()
    }

    fn symbols(&self) -> Symbols {
        Symbols::new(&self.folder.join("debug"))
    }

    fn separate(&self, at: &Path) {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        run(
            "objcopy",
            &["--only-keep-debug", text(&self.path), text(at)],
        );
    }
}

fn whole() -> Vec<(String, Option<u32>)> {
    vec![
        ("inner".to_owned(), Some(LINES[0])),
        ("outer".to_owned(), Some(LINES[1])),
    ]
}

#[test]
fn inlined_functions_lines_and_variables_are_named() {
    let program = Program::build(&["-g"]);
    let mut symbols = program.symbols();
    assert_eq!(program.names(&mut symbols), whole());
    let frames = symbols.code(&program.build_key(), program.call);
    assert_eq!(
        frames[0].file.as_deref(),
        Some(text(&program.folder.join("program.c")))
    );
    let key = program.build_key();
    let inside = symbols.variable(&key, program.table + 3999).unwrap();
    assert_eq!((&*inside.name, inside.bytes), ("table", 4000));
    assert_eq!(inside.offset, program.table);
    assert_eq!(
        symbols.variable(&key, program.counts).unwrap().name,
        "counts"
    );
    assert_eq!(symbols.variable(&key, program.call), None);
    assert_eq!(symbols.variable(&key, u64::MAX), None);
    assert_eq!(symbols.notes().count(), 0);
}

#[test]
fn without_dwarf_data_symbol_tables_name_and_without_them_the_offset() {
    let program = Program::build(&["-rdynamic"]);
    assert_eq!(
        program.names(&mut program.symbols()),
        [("outer".to_owned(), None)]
    );
    // The table that the dynamic linker uses is left.
    run("strip", &[text(&program.path)]);
    let mut symbols = program.symbols();
    assert_eq!(program.names(&mut symbols), [("outer".to_owned(), None)]);
    let key = program.build_key();
    assert_eq!(
        symbols.variable(&key, program.table + 4).unwrap().name,
        "table"
    );
    assert_eq!(symbols.variable(&key, program.counts), None);

    let program = Program::build(&["-no-pie"]);
    run("strip", &[text(&program.path)]);
    let expected = format!("program+{:#x}", program.call);
    assert_eq!(program.names(&mut program.symbols()), [(expected, None)]);
}

#[test]
fn debug_files_are_found_by_build_id_and_by_link() {
    let program = Program::build(&["-g"]);
    let debug = program.folder.join("debug");
    let (first, rest) = program.id.split_first().unwrap();
    let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let by_id = debug.join(format!(".build-id/{first:02x}/{hex}.debug"));
    program.separate(&by_id);
    let whole_file = fs::read(&program.path).unwrap();
    run("strip", &[text(&program.path)]);
    assert_eq!(program.names(&mut program.symbols()), whole());
    let variable = program
        .symbols()
        .variable(&program.build_key(), program.counts);
    assert_eq!(variable.unwrap().name, "counts");
    // Even where the program itself is gone.
    let stripped = fs::read(&program.path).unwrap();
    fs::remove_file(&program.path).unwrap();
    assert_eq!(program.names(&mut program.symbols()), whole());

    fs::remove_file(&by_id).unwrap();
    for place in [
        program.folder.join(".debug/program.debug"),
        debug
            .join(program.folder.strip_prefix("/").unwrap())
            .join("program.debug"),
    ] {
        fs::write(&program.path, &whole_file).unwrap();
        program.separate(&place);
        fs::write(&program.path, &stripped).unwrap();
        let link = format!("--add-gnu-debuglink={}", place.display());
        run("objcopy", &[&link, text(&program.path)]);
        assert_eq!(program.names(&mut program.symbols()), whole(), "{place:?}");
        fs::remove_file(&place).unwrap();
        assert_ne!(program.names(&mut program.symbols()), whole());
    }
}

#[test]
fn another_build_is_not_asked() {
    let program = Program::build(&["-g"]);
    let key = Build {
        id: vec![1; 20],
        ..program.build_key()
    };
    let mut symbols = program.symbols();
    let plain = format!("program+{:#x}", program.call);
    assert_eq!(symbols.code(&key, program.call)[0].function, plain);
    assert_eq!(symbols.variable(&key, program.table), None);
    assert!(symbols.notes().next().unwrap().contains("was replaced"));
    // Nor one that a link names.
    let other = program.folder.join(".debug/program.debug");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    let changed = Program::build(&["-g", "-O2"]);
    changed.separate(&other);
    let link = format!("--add-gnu-debuglink={}", other.display());
    run("objcopy", &["--strip-all", &link, text(&program.path)]);
    assert_ne!(program.names(&mut program.symbols()), whole());
    // Where no build id is known, the file is taken as it is.
    let unknown = Build {
        id: Vec::new(),
        ..changed.build_key()
    };
    let mut symbols = changed.symbols();
    assert_eq!(symbols.code(&unknown, changed.call).len(), 2);
}

#[test]
fn missing_and_damaged_files_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lib.so");
    let build = Build {
        path: path.clone(),
        id: Vec::new(),
    };
    let mut symbols = Symbols::new(folder.path());
    assert_eq!(symbols.code(&build, 0x123)[0].function, "lib.so+0x123");
    assert!(symbols.notes().next().unwrap().contains("No such file"));
    for bytes in [&b""[..], b"\x7fELF", b"text"] {
        fs::write(&path, bytes).unwrap();
        let mut symbols = Symbols::new(folder.path());
        assert_eq!(symbols.code(&build, 0x123)[0].function, "lib.so+0x123");
        assert_eq!(symbols.notes().count(), 1);
    }
    // Cut anywhere, or with holes, a file gives an answer.
    let program = Program::build(&["-g"]);
    let whole = fs::read(&program.path).unwrap();
    for part in 1..24 {
        let mut bytes = whole.clone();
        let at = whole.len() * part / 24;
        if part % 2 == 0 {
            bytes.truncate(at);
        } else {
            let end = (at + 600).min(bytes.len());
            bytes[at..end].fill(0xff);
        }
        fs::write(&path, bytes).unwrap();
        let mut symbols = Symbols::new(folder.path());
        assert!(!symbols.code(&build, program.call).is_empty());
        let _ = symbols.variable(&build, program.table);
    }
}

#[test]
fn a_pipe_in_place_of_an_object_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    run("mkfifo", &[text(&path)]);
    let mut symbols = Symbols::default();
    let build = Build {
        path,
        id: Vec::new(),
    };
    assert_eq!(symbols.code(&build, 16)[0].function, "pipe+0x10");
    let told: Vec<&str> = symbols.notes().collect();
    assert!(told[0].contains("it is a pipe"), "{told:?}");
}

/// Headers with extremes, tables cut off, DWARF data with flipped bits.
#[test]
fn object_files_that_were_changed_are_read_or_refused() {
    let set = std::env::var("HITHER_FUZZ_INPUTS");
    let inputs = set.map_or(300, |text| text.parse().expect("a whole number"));
    let program = Program::build(&["-g"]);
    let whole = fs::read(&program.path).unwrap();
    let path = program.folder.join("changed");
    let mut state = 1_u64;
    let mut below = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % limit
    };
    for _ in 0..inputs {
        let mut bytes = whole.clone();
        for _ in 0..1 + below(4) {
            // Most of them in the headers, at the beginning and at the end.
            let at = match below(3) {
                0 => below(1024),
                1 => bytes.len() - 1 - below(2048),
                _ => below(bytes.len()),
            };
            bytes[at] = [0, 0xff, 0x7f, 0x80, below(256) as u8][below(5)];
        }
        if below(8) == 0 {
            bytes.truncate(below(whole.len()));
        }
        fs::write(&path, bytes).unwrap();
        let build = Build {
            path: path.clone(),
            id: Vec::new(),
        };
        let mut symbols = Symbols::new(&program.folder);
        for offset in [0, program.call, program.table, u64::MAX] {
            assert!(!symbols.code(&build, offset).is_empty());
            symbols.variable(&build, offset);
        }
        symbols.first_address(&build);
        let _ = hither_symbols::functions(&path, "outer");
    }
}
