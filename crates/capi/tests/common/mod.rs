//! Programs of C, compiled against the library that this test was built with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder of this crate.
pub fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo built beside this test: `libhither.a`, `libhither.so`.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join(name);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// An empty folder for one test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command that must succeed, and returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{printed}{errors}",
        output.status
    );
    printed
}

fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Is this program installed? Says so where not, since a test then leaves something out.
pub fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("LEFT OUT: {program} is not installed (scripts/setup.sh installs it)");
    }
    found
}

/// The shared library with its versions, linked once per test file.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let folder = scratch(test.file_name().unwrap().to_str().unwrap());
        run(Command::new(home().join("link.sh"))
            .arg(built("libhither.a"))
            .arg(&folder));
        folder
    })
}

/// A compiler with the header at hand and every warning an error.
pub fn compiler(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args([
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-pthread",
        "-I",
    ]);
    command.arg(home().join("include"));
    command
}

/// Compiles a C file of this crate and links it with the shared library.
pub fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    compile_by(compiler("gcc").arg("-std=gnu11").args(flags), source, name)
}

/// The same by a compiler that is told all else.
pub fn compile_by(compiler: &mut Command, source: &str, name: &str) -> PathBuf {
    let program = library().join(name);
    run(compiler
        .arg(home().join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library())
        .arg("-lhither")
        .arg(format!("-Wl,-rpath,{}", library().display())));
    program
}

/// Names of the functions that the header declares, in order.
pub fn declared() -> Vec<String> {
    let header = fs::read_to_string(home().join("include/hither.h")).unwrap();
    let mut names = Vec::new();
    for line in header.lines().filter(|line| !line.starts_with("//")) {
        let Some((before, _)) = line.split_once('(') else {
            continue;
        };
        let name = before.rsplit([' ', '*']).next().unwrap();
        if name.starts_with("hither_") {
            names.push(name.to_owned());
        }
    }
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    names
}
