//! The store with faults: what others put there, what is damaged, what does not fit.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn program(name: &str) -> Program {
    Program::new(Key {
        program: format!("/bin/{name}"),
        build: "build-id:ab".to_owned(),
        arguments: vec!["1".to_owned()],
        nodes: "0-3".to_owned(),
    })
}

fn store(most: usize) -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(&folder.path().join("state/hither/learned"), most);
    (folder, store)
}

fn said(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

#[test]
fn records_are_kept_found_and_forgotten() {
    let (_folder, store) = store(10);
    let mut one = program("one");
    assert!(store.find(&one.key).unwrap().is_none());
    assert!(store.all().unwrap().is_empty());
    store.keep(&one).unwrap();
    one.run_count = 7;
    store.keep(&one).unwrap();
    assert_eq!(store.find(&one.key).unwrap(), Some(one.clone()));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&store.path(&one.key.name())), 0o600);
    assert_eq!(mode(&store.folder), 0o700);
    // Another program whose record has the same name by chance.
    let mut other = program("other");
    other.key = one.key.clone();
    other.key.arguments.push("2".to_owned());
    fs::copy(store.path(&one.key.name()), store.path(&other.key.name())).unwrap();
    assert_eq!(store.find(&other.key).unwrap(), None);
    assert!(store.forget(&one.key.name()).unwrap());
    assert!(!store.forget(&one.key.name()).unwrap());
    assert_eq!(store.all().unwrap().len(), 1);
    assert!(store.names(UNFINISHED).unwrap().unwrap().is_empty());
}

#[test]
fn the_oldest_go_and_what_was_left_unfinished() {
    let (_folder, store) = store(3);
    let old = |path: &Path, seconds| {
        let file = fs::File::options().append(true).open(path).unwrap();
        let at = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(at).unwrap();
    };
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        store.keep(&program(name)).unwrap();
        old(
            &store.path(&program(name).key.name()),
            100 * (3 - at as u64),
        );
    }
    let (left, young) = (store.folder.join("x.1.new"), store.folder.join("y.1.new"));
    fs::write(&left, "").unwrap();
    fs::write(&young, "").unwrap();
    old(&left, 7200);
    store.keep(&program("d")).unwrap();
    let programs = store.all().unwrap().into_iter();
    let mut names: Vec<String> = programs
        .map(|entry| entry.program.unwrap().key.program)
        .collect();
    names.sort();
    assert_eq!(names, ["/bin/b", "/bin/c", "/bin/d"]);
    assert!(!left.exists() && young.exists());
}

#[test]
fn what_is_no_record_is_refused_with_the_remedy_and_replaced() {
    let (_folder, store) = store(10);
    let own = program("one");
    store.keep(&own).unwrap();
    let path = store.path(&own.key.name());
    let good = fs::read_to_string(&path).unwrap();
    for (text, part) in [
        ("", "no record"),
        ("{", "no record"),
        ("[]", "another version"),
        (&good[..good.len() / 2], "no record"),
        (
            &good.replace("\"format\": 1", "\"format\": 2"),
            "its format is 2, not 1",
        ),
        (&good.replace("\"why\"", "\"what\""), "no record"),
        (&good.replace("\"0-3\"", "\"x\""), "its key is none"),
        (&"x".repeat(600 << 10), "more than 524288 bytes"),
    ] {
        fs::write(&path, text).unwrap();
        let told = said(&store.find(&own.key).unwrap_err());
        assert!(told.contains(part), "{told}");
        let remedy = format!("hither learned forget {}", own.key.name());
        assert!(told.ends_with(&remedy), "{told}");
        assert!(store.all().unwrap()[0].program.is_err());
    }
    store.keep(&own).unwrap();
    assert_eq!(store.find(&own.key).unwrap(), Some(own));
}

#[test]
fn links_and_folders_of_others_are_not_believed() {
    let (folder, store) = store(10);
    let own = program("one");
    store.keep(&own).unwrap();
    let (path, elsewhere) = (store.path(&own.key.name()), folder.path().join("elsewhere"));
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    let told = said(&store.find(&own.key).unwrap_err());
    assert!(told.contains("it is a link"), "{told}");
    // Written anew, the link is gone and what it named is as it was.
    let before = fs::read(&elsewhere).unwrap();
    let mut changed = own.clone();
    changed.run_count = 9;
    store.keep(&changed).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&elsewhere).unwrap(), before);
    assert_eq!(store.find(&own.key).unwrap(), Some(changed));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(said(&store.find(&own.key).unwrap_err()).contains("others may write it"));
    fs::set_permissions(&store.folder, fs::Permissions::from_mode(0o777)).unwrap();
    for told in [
        store.find(&own.key).unwrap_err(),
        store.keep(&own).unwrap_err(),
    ] {
        assert!(
            said(&told).contains("not a folder of this user alone"),
            "{told:#}"
        );
    }
}

#[test]
fn a_folder_that_takes_no_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let store = Store::at(&file.join("learned"), 10);
    let told = said(&store.keep(&program("one")).unwrap_err());
    assert!(
        told.contains("its folder cannot be made") && told.contains("XDG_STATE_HOME"),
        "{told}"
    );
}

#[test]
fn the_folder_is_where_xdg_says() {
    let folder = |state: Option<&str>, home: Option<&str>| {
        let store = Store::of(state.map(OsString::from), home.map(OsString::from));
        store.map(|store| store.folder.to_str().unwrap().to_owned())
    };
    assert_eq!(folder(Some("/s"), Some("/h")).unwrap(), "/s/hither/learned");
    for ignored in [None, Some(""), Some("relative")] {
        assert_eq!(
            folder(ignored, Some("/h")).unwrap(),
            "/h/.local/state/hither/learned"
        );
    }
    assert!(
        folder(None, None)
            .unwrap_err()
            .to_string()
            .contains("set one of them")
    );
}
