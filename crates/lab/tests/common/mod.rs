//! What several tests of the laboratory need.

pub mod together;
pub mod turns;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program as built with this test's profile.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    assert!(
        path.is_file(),
        "{} is not built: run `cargo build --release`",
        path.display()
    );
    path
}

/// The same for a guest that needs no names of it: without symbols and lines of source, which are nineteen
/// twentieths of the file and which the guest would unpack in emulated time.
pub fn bare(name: &str) -> PathBuf {
    let program = built(name);
    let bytes = std::fs::read(&program).unwrap();
    let bytes = hither_lab::elf::without_sections(&bytes).unwrap();
    let file = program.file_name().unwrap();
    let folder = program.parent().unwrap().join("bare");
    std::fs::create_dir_all(&folder).unwrap();
    // Put there whole, as tests may run side by side.
    let mut copy = tempfile::NamedTempFile::new_in(&folder).unwrap();
    copy.write_all(&bytes).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(copy.path(), mode).unwrap();
    let path = folder.join(file);
    copy.persist(&path).unwrap();
    path
}

/// Runs a laboratory that must end well. What it said on its standard output, and on its standard error; both are
/// printed for whoever looks at a test that failed.
pub fn ran(lab: &mut Command) -> (String, String) {
    let output = lab.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{told}{said}");
    assert!(output.status.success());
    (told, said)
}

/// An example of the C library, compiled and linked with the library of this build.
pub fn compiled_example(name: &str, folder: &Path) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]);
    compiler.arg(home.join("include"));
    compiler.arg(home.join(format!("examples/{name}.c")));
    compiler.arg(built("libhither.a")).arg("-o").arg(&program);
    compiler.args(["-lgcc_s", "-lrt", "-lpthread", "-lm", "-ldl"]);
    let output = compiler.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    program
}
