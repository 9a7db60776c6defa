//! What programs of C depend on: layouts, exported names with their versions, the manual, the
//! installed files.

use crate::common::{built, compiler, declared, home, installed, library, run, scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn layouts_and_numbers_are_frozen_in_c() {
    run(compiler("gcc")
        .args(["-std=c11", "-fsyntax-only"])
        .arg(home().join("tests/layout.c")));
}

const VERSIONS: [&str; 2] = ["HITHER_0.1", "HITHER_0.2"];

/// Names that a shared object defines for others, with their versions.
fn exported(library: &Path) -> BTreeMap<String, String> {
    let printed = run(Command::new("objdump").arg("-T").arg(library));
    let mut names = BTreeMap::new();
    for line in printed.lines() {
        // 0000000000014510 g    DF .text  0000000000000028  HITHER_0.1  hither_open_config
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() < 5 || words.contains(&"*UND*") || !line.starts_with("0000") {
            continue;
        }
        let version = if words.len() > 6 { words[5] } else { "" };
        names.insert(words[words.len() - 1].to_owned(), version.to_owned());
    }
    names
}

#[test]
fn exactly_the_declared_functions_are_exported_with_their_version() {
    let declared: BTreeSet<String> = declared().into_iter().collect();
    let names = exported(&library().join("libhither.so"));
    let versioned: BTreeSet<String> = names
        .iter()
        .filter(|(name, version)| VERSIONS.contains(&version.as_str()) && name != version)
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(versioned, declared);
    // What was there stays as it was.
    for (name, version) in [
        ("hither_open", "HITHER_0.1"),
        ("hither_wait", "HITHER_0.1"),
        ("hither_alloc", "HITHER_0.2"),
        ("hither_where", "HITHER_0.2"),
    ] {
        assert_eq!(names[name], version);
    }
    // And nothing else but the versions themselves.
    assert_eq!(names.len(), declared.len() + VERSIONS.len(), "{names:?}");
    // Cargo's own has the same names, without versions (see link.sh).
    let plain = exported(&built("libhither.so"));
    assert_eq!(plain.keys().cloned().collect::<BTreeSet<_>>(), declared);
}

#[test]
fn the_library_has_its_soname_and_needs_only_the_systems() {
    let printed = run(Command::new("objdump")
        .arg("-p")
        .arg(library().join("libhither.so")));
    let values = |key: &str| -> Vec<String> {
        printed
            .lines()
            .filter_map(|line| line.trim().strip_prefix(key))
            .map(|value| value.trim().to_owned())
            .collect()
    };
    assert_eq!(values("SONAME"), ["libhither.so.0"]);
    for needed in values("NEEDED") {
        let system = ["libgcc_s.so", "libc.so", "libm.so", "ld-linux"];
        assert!(
            system.iter().any(|name| needed.starts_with(name)),
            "{needed}"
        );
    }
}

/// The manual pages, by path.
fn pages() -> Vec<(PathBuf, String)> {
    let folder = home().join("../../docs/man");
    let mut pages: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    pages.sort();
    assert!(pages.len() >= 6);
    pages
}

/// A section of a page, from its heading to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(&format!(".SH {heading}\n")).unwrap_or(page.len());
    let rest = &page[start..];
    let end = rest[rest.len().min(1)..].find("\n.SH ");
    &rest[..end.map_or(rest.len(), |end| end + 1)]
}

#[test]
fn every_function_and_code_is_in_the_manual() {
    let pages = pages();
    for function in declared() {
        let describing: Vec<_> = pages
            .iter()
            .filter(|(path, page)| {
                let words = section(page, "NAME").lines().filter_map(|line| {
                    let end = line.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                    Some(&line[..end?])
                });
                path.extension().unwrap() == "3" && words.into_iter().any(|word| word == function)
            })
            .collect();
        assert_eq!(describing.len(), 1, "{function} has one page");
        let synopsis = section(&describing[0].1, "SYNOPSIS");
        assert!(synopsis.contains(&format!("{function}(")), "{function}");
    }
    let header = fs::read_to_string(home().join("include/hither.h")).unwrap();
    let manual: String = pages.iter().map(|(_, page)| page.as_str()).collect();
    for line in header.lines() {
        let Some(constant) = line.strip_prefix("#define HITHER_") else {
            continue;
        };
        let Some((name, _)) = constant.split_once(' ') else {
            continue;
        };
        let internal = ["BLANK", "SUBMITTED", "REFUSED_COUNT", "CONFIG_BYTES_0_1"];
        let found = manual.contains(&format!("HITHER_{name}"));
        assert!(found || internal.contains(&name), "HITHER_{name}");
    }
}

#[test]
fn manual_pages_are_well_formed() {
    if !installed("groff") {
        return;
    }
    for (path, _) in pages() {
        let output = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-P-cbou"])
            .arg(&path)
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && complaints.is_empty(),
            "{complaints}"
        );
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("SEE") && text.lines().count() > 30,
            "{path:?}"
        );
    }
}

/// The example of hither(7), cut out of the page, runs.
#[test]
fn the_manuals_example_runs() {
    let page = fs::read_to_string(home().join("../../docs/man/hither.7")).unwrap();
    let examples = section(&page, "EXAMPLES");
    let start = examples.find(".EX\n").unwrap() + 4;
    let end = examples.find(".EE").unwrap();
    let code = examples[start..end]
        .replace("\\e", "\\")
        .replace("\\-", "-");
    let folder = scratch("manual");
    fs::write(folder.join("manual.c"), code).unwrap();
    run(compiler("gcc")
        .arg("-Wno-missing-field-initializers")
        .arg(folder.join("manual.c"))
        .arg("-o")
        .arg(folder.join("manual"))
        .arg("-L")
        .arg(library())
        .arg("-lhither")
        .arg(format!("-Wl,-rpath,{}", library().display())));
    let printed = run(&mut Command::new(folder.join("manual")));
    assert_eq!(printed, "1048576 bytes\n");
}

#[test]
fn what_is_installed_can_be_used() {
    let root = scratch("install");
    let install = |prefix: &Path, destination: &Path| {
        run(Command::new(home().join("install.sh"))
            .arg(built("libhither.a"))
            .env("PREFIX", prefix)
            .env("DESTDIR", destination)
            .env_remove("LIBDIR")
            .env_remove("INCLUDEDIR")
            .env_remove("MANDIR"));
    };
    let prefix = root.join("usr");
    install(&prefix, Path::new(""));
    for file in [
        "include/hither.h",
        "include/hither.hpp",
        "lib/libhither.a",
        "lib/libhither.so.0.2.0",
        "lib/libhither.so.0",
        "lib/libhither.so",
        "lib/pkgconfig/hither.pc",
        "share/man/man7/hither.7",
        "share/man/man3/hither_open.3",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    for function in declared() {
        let page = prefix.join(format!("share/man/man3/{function}.3"));
        let text = fs::read_to_string(&page).unwrap();
        if let Some(other) = text.strip_prefix(".so ") {
            assert!(prefix.join("share/man").join(other.trim()).is_file());
        }
    }
    // A packager's folder is in no file.
    install(Path::new("/usr"), &root.join("package"));
    let staged = root.join("package/usr/lib/pkgconfig/hither.pc");
    let staged = fs::read_to_string(staged).unwrap();
    assert!(staged.contains("prefix=/usr\n"), "{staged}");
    assert!(
        !staged.contains("package") && !staged.contains('@'),
        "{staged}"
    );

    if !installed("pkg-config") {
        return;
    }
    let flags = |more: &[&str]| -> Vec<String> {
        let printed = run(Command::new("pkg-config")
            .args(["--cflags", "--libs"])
            .args(more)
            .arg("hither = 0.2.0")
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        printed.split_whitespace().map(str::to_owned).collect()
    };
    let source = home().join("examples/figure2.c");
    let shared = root.join("figure2");
    run(Command::new("gcc")
        .arg(&source)
        .args(flags(&[]))
        .arg("-o")
        .arg(&shared));
    let printed = run(Command::new(&shared).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(printed.contains("10 of 10"), "{printed}");
    let placed = root.join("place");
    run(Command::new("gcc")
        .arg(home().join("examples/place.c"))
        .arg("-pthread")
        .args(flags(&[]))
        .arg("-o")
        .arg(&placed));
    let mut command = Command::new(&placed);
    command.args(["machine", "striped:4"]);
    let printed = run(command.env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(printed.contains("1024 of 1024 pages"), "{printed}");
    // The program asks for the version it was linked with.
    let needed = run(Command::new("objdump").arg("-T").arg(&shared));
    assert!(needed.contains("(HITHER_0.1) hither_open"), "{needed}");
    // With the static library alone.
    let fixed = root.join("figure2-static");
    let libraries = flags(&["--static"]).into_iter().map(|flag| match &*flag {
        "-lhither" => "-l:libhither.a".to_owned(),
        _ => flag,
    });
    run(Command::new("gcc")
        .arg(&source)
        .args(libraries)
        .arg("-o")
        .arg(&fixed));
    let printed = run(&mut Command::new(&fixed));
    assert!(printed.contains("10 of 10"), "{printed}");
}
