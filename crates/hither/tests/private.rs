//! What hither writes belongs to its user: folders and files that others have put in the way are
//! neither used nor followed nor taken away.

use crate::common::{hither, output, refused, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65_534;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    fixtures.join(name).to_str().unwrap().to_owned()
}

/// Every command that writes a recording into a folder that is named.
fn writers(folder: &Path) -> Vec<Vec<String>> {
    let folder = folder.to_str().unwrap();
    let file = fixture("damo/records.json");
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    vec![
        words(&["record", "--tracker", "none", "-o", folder, "--", "true"]),
        words(&["zoom", "--tracker", "none", "-o", folder, "--", "true"]),
        words(&["import", &file, "-o", folder]),
    ]
}

#[test]
fn a_recording_can_be_read_by_its_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (number, words) in writers(&folder.path().join("above/recording"))
        .iter()
        .enumerate()
    {
        let place = folder.path().join(format!("above{number}/recording"));
        let words = words
            .join(" ")
            .replace("above/", &format!("above{number}/"));
        let script = format!("umask 0; exec {} {words}", env!("CARGO_BIN_EXE_hither"));
        let run = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(run.status.success(), "{words}: {}", text(&run.stderr));
        assert_eq!(mode(&place), 0o700, "{words}");
        let files = names(&place);
        assert!(files.contains(&"recording.json".to_owned()), "{files:?}");
        for file in files {
            assert_eq!(mode(&place.join(&file)), 0o600, "{words}: {file}");
        }
    }
}

#[test]
fn folders_of_others_are_refused_and_own_ones_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    for name in ["open", "target", "own", "kept"] {
        fs::create_dir(place(name)).unwrap();
    }
    fs::set_permissions(place("open"), fs::Permissions::from_mode(0o777)).unwrap();
    symlink(place("target"), place("link")).unwrap();
    let mut bad = vec![
        ("open", "can be written by others (mode 777)"),
        ("link", "is no folder, or only a link to one"),
    ];
    // Only root can give a folder away.
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        fs::create_dir(place("other")).unwrap();
        chown(place("other"), Some(NOBODY), None).unwrap();
        bad.push(("other", "is somebody else's"));
    }
    for (name, words) in bad {
        for command in writers(&place(name)) {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            refused(&command, words);
        }
        assert!(place(name).exists(), "{name}");
        assert_eq!(names(&place(name)), [""; 0], "{name}");
    }
    let own = place("own");
    let own = [
        "record",
        "--tracker",
        "none",
        "-o",
        own.to_str().unwrap(),
        "--",
        "true",
    ];
    assert!(output(&own).status.success());
    // One that was there is left there.
    let kept = place("kept");
    let kept = ["record", "-o", kept.to_str().unwrap(), "--", "/no/such"];
    refused(&kept, "cannot be started");
    assert_eq!(names(&place("kept")), [""; 0]);
}

#[test]
fn a_folder_whose_name_was_guessed_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    // The shell becomes hither, whose number it knows therefore.
    let script = "mkdir \"$TMPDIR/hither-zoom-$$\"; exec \"$@\"";
    let look = "stat -c '%a %n' \"$TMPDIR\"/hither-zoom-*/ \"$TMPDIR\"/hither-zoom-*/*; exit 3";
    let run = Command::new("sh")
        .env("TMPDIR", folder.path())
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_hither"), "zoom"])
        .args([
            "--tracker",
            "none",
            "--seconds",
            "0.2",
            "--",
            "sh",
            "-c",
            look,
        ])
        .output()
        .unwrap();
    let (told, errors) = (text(&run.stdout), text(&run.stderr));
    assert_eq!(run.status.code(), Some(3), "{errors}");
    let left = names(folder.path());
    assert_eq!(
        left.len(),
        1,
        "the guessed one stays, the other goes: {left:?}"
    );
    assert_eq!(names(&folder.path().join(&left[0])), [""; 0]);
    let lines: Vec<&str> = told
        .lines()
        .filter(|line| !line.contains(&left[0]))
        .collect();
    assert!(lines.len() >= 3, "{told}");
    for line in lines {
        let (mode, name) = line.split_once(' ').unwrap();
        let expected = if name.ends_with('/') { "700" } else { "600" };
        assert_eq!(mode, expected, "{told}");
    }
}

#[test]
fn the_last_number_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let last = folder.path().join(format!("hither-recording-{}", u64::MAX));
    fs::create_dir(&last).unwrap();
    for words in [
        &["record", "--tracker", "none", "--", "true"][..],
        &["import", &fixture("damo/records.json")],
    ] {
        let run = hither(words).current_dir(folder.path()).output().unwrap();
        let errors = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains("has the last number that there is"),
            "{errors}"
        );
    }
    assert_eq!(names(&last), [""; 0]);
}

#[test]
fn looking_whether_a_file_can_be_written_takes_nothing_away() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink(folder.path().join("target"), &link).unwrap();
    let words = ["zoom", "999999999", "--json", link.to_str().unwrap()];
    refused(&words, "no such process");
    assert_eq!(names(folder.path()), ["link"]);
}
