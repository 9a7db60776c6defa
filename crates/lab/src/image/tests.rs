//! The image: closure, links, directories, and what is refused. Needs busybox only where noted.

use super::*;
use std::os::unix::fs::symlink;

fn paths(image: &Image) -> Vec<String> {
    image.paths().map(str::to_owned).collect()
}

#[test]
fn a_program_brings_its_loader_and_libraries() {
    let mut image = Image::new();
    image.add_program(Path::new("/bin/sh")).unwrap();
    let paths = paths(&image);
    let has = |part: &str| paths.iter().any(|path| path.contains(part));
    assert!(has("libc.so.6"), "{paths:?}");
    assert!(has("ld-linux-x86-64"), "{paths:?}");
    assert!(paths.contains(&"/bin".to_owned()));
    assert!(image.content_bytes() > 100_000);
}

#[test]
fn links_stay_links_and_their_targets_come_too() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    fs::create_dir(root.join("real")).unwrap();
    fs::write(root.join("real/data"), "x").unwrap();
    symlink("real", root.join("alias")).unwrap();
    symlink("../alias/data", root.join("real/again")).unwrap();
    let mut image = Image::new();
    image.add_extra(&root.join("alias/again")).unwrap();
    let prefix = root.to_str().unwrap();
    assert_eq!(
        image.nodes[&format!("{prefix}/alias")],
        Node::Link("real".into())
    );
    assert_eq!(
        image.nodes[&format!("{prefix}/real/again")],
        Node::Link("../alias/data".into())
    );
    assert!(matches!(
        &image.nodes[&format!("{prefix}/real/data")],
        Node::HostFile(..)
    ));
}

#[test]
fn a_directory_comes_with_everything_below_it() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("a/b")).unwrap();
    fs::write(directory.path().join("a/b/c.txt"), "c").unwrap();
    symlink("/nowhere/at/all", directory.path().join("a/dangling")).unwrap();
    let mut image = Image::new();
    image.add_extra(directory.path()).unwrap();
    let paths = paths(&image);
    assert!(
        paths.iter().any(|path| path.ends_with("/a/b/c.txt")),
        "{paths:?}"
    );
    assert!(
        paths.iter().any(|path| path.ends_with("/a/dangling")),
        "{paths:?}"
    );
}

#[test]
fn link_loops_and_missing_files_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    symlink("loop", directory.path().join("loop")).unwrap();
    let mut image = Image::new();
    let looped = image.add_extra(&directory.path().join("loop")).unwrap_err();
    assert!(looped.to_string().contains("symbolic links"), "{looped}");
    let missing = image.add_extra(&directory.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
}

#[test]
fn scripts_bring_their_interpreter() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/bin/sh\necho hi\n").unwrap();
    let mut image = Image::new();
    image.add_program(&script).unwrap();
    assert!(paths(&image).iter().any(|path| path.contains("libc.so.6")));
}

#[test]
fn programs_that_cannot_run_are_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "x").unwrap();
    for (name, part) in [
        ("", "empty"),
        ("no-such-program-anywhere", "PATH"),
        ("/no/such/program", "No such file"),
        (directory.path().to_str().unwrap(), "directory"),
        (plain.to_str().unwrap(), "chmod +x"),
    ] {
        let error = find_program(name).unwrap_err();
        assert_eq!(error.exit_status(), 2, "{name}");
        assert!(error.to_string().contains(part), "{name}: {error}");
        assert!(error.to_string().contains("to mend it"), "{name}: {error}");
    }
    // An ELF head for another machine.
    let mut foreign = fs::read("/bin/sh").unwrap();
    foreign[18] = 183;
    fs::write(&plain, &foreign).unwrap();
    let error = Image::new().add_program(&plain).unwrap_err();
    assert!(error.to_string().contains("x86-64"), "{error}");
}

#[test]
fn relative_and_bare_names_are_found() {
    assert!(find_program("sh").unwrap().is_absolute());
    assert!(find_program("/bin/sh").unwrap().ends_with("sh"));
}

#[test]
fn busybox_cpio_reads_what_was_written() {
    let Ok(busybox) = find_program("busybox") else {
        // Without busybox the byte-exact test of the writer stands alone.
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host-file");
    fs::write(&host, "some content\n").unwrap();
    let mut image = Image::new();
    image.add_as(&host, "/opt/x/copied").unwrap();
    image.add_text("/etc/odd", "abc");
    image
        .nodes
        .insert("/opt/link".into(), Node::Link("x/copied".into()));
    let archive = directory.path().join("archive");
    let bytes = image.write(fs::File::create(&archive).unwrap()).unwrap();
    assert_eq!(bytes, fs::metadata(&archive).unwrap().len());
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    // Device nodes need root, so only the rest is unpacked.
    let status = Command::new(busybox)
        .args(["cpio", "-i", "-d", "opt/x/copied", "opt/link", "etc/odd"])
        .current_dir(&out)
        .stdin(fs::File::open(&archive).unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(
        fs::read_to_string(out.join("opt/link")).unwrap(),
        "some content\n"
    );
    assert_eq!(fs::read_to_string(out.join("etc/odd")).unwrap(), "abc");
}

#[test]
fn devices_and_pipes_are_no_files_of_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for path in [Path::new("/dev/zero"), &pipe] {
        let error = Image::new().add_extra(path).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("is no regular file"), "{error}");
    }
}
