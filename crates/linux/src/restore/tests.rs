use super::*;
use crate::root::captured::Captured;
use std::os::unix::fs::PermissionsExt;

struct Machine(Captured);

impl std::ops::Deref for Machine {
    type Target = Captured;

    fn deref(&self) -> &Captured {
        &self.0
    }
}

impl Machine {
    fn new() -> Self {
        let machine = Captured::new();
        machine.put("sys/a", "1\n");
        machine.put("proc/sys/b", "some words\n");
        Self(machine)
    }

    fn runtime(&self) -> PathBuf {
        self.beside("run")
    }

    fn file(&self) -> PathBuf {
        self.runtime().join("test.journal")
    }

    fn open(&self) -> Result<(Journal, Option<String>)> {
        Journal::open(&self.root, &self.runtime(), "test")
    }

    fn settings(&self) -> Vec<Setting> {
        ["sys/a", "proc/sys/b"]
            .map(|path| Setting::of(&self.root, path).unwrap().unwrap())
            .to_vec()
    }

    /// A journal in which both are noted, with both changed since.
    fn changed(&self) -> Journal {
        let (mut journal, note) = self.open().unwrap();
        assert_eq!(note, None);
        journal.begin(self.settings()).unwrap();
        self.put("sys/a", "2");
        self.put("proc/sys/b", "others");
        journal
    }
}

#[test]
fn what_was_there_is_put_back() {
    let machine = Machine::new();
    let mut journal = machine.changed();
    journal.put_back().unwrap();
    assert_eq!(
        (machine.get("sys/a"), machine.get("proc/sys/b")),
        ("1".into(), "some words".into())
    );
    assert_eq!(std::fs::read(machine.file()).unwrap(), b"");
    // Put back once: what somebody sets later stays.
    machine.put("sys/a", "7");
    journal.put_back().unwrap();
    drop(journal);
    assert_eq!(machine.open().unwrap().1, None);
    assert_eq!(machine.get("sys/a"), "7");
    assert!(Setting::of(&machine.root, "sys/nothing").unwrap().is_none());
}

#[test]
fn what_was_never_changed_is_not_written() {
    let machine = Machine::new();
    let (mut journal, _) = machine.open().unwrap();
    journal.begin(machine.settings()).unwrap();
    let written = || {
        std::fs::metadata(machine.root.path("sys/a"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = written();
    std::thread::sleep(std::time::Duration::from_millis(20));
    journal.put_back().unwrap();
    assert_eq!(written(), before);
    assert_eq!(std::fs::read(machine.file()).unwrap(), b"");
}

#[test]
fn the_next_start_puts_back_what_a_dead_owner_left() {
    let machine = Machine::new();
    // Dropped without putting back: the lock goes, the text stays, as after `kill -9`.
    drop(machine.changed());
    let (_journal, note) = machine.open().unwrap();
    let note = note.unwrap();
    assert!(
        note.contains(&format!("process {}", std::process::id())),
        "{note}"
    );
    assert_eq!(
        (machine.get("sys/a"), machine.get("proc/sys/b")),
        ("1".into(), "some words".into())
    );
}

#[test]
fn a_living_owner_is_left_alone() {
    let machine = Machine::new();
    let journal = machine.changed();
    let error = machine.open().unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    assert!(error.contains("end it"), "{error}");
    assert_eq!(machine.get("sys/a"), "2");
    drop(journal);
    machine.open().unwrap();
    assert_eq!(machine.get("sys/a"), "1");
}

#[test]
fn a_process_that_was_killed_has_no_lock() {
    let machine = Machine::new();
    drop(machine.changed());
    // Another process holds the lock, then is killed.
    let mut holder = std::process::Command::new("flock")
        .arg("--no-fork")
        .arg(machine.file())
        .args(["sleep", "60"])
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    // Opening would put things back: ask for the lock as it does.
    let lock = || File::open(machine.file()).unwrap().try_lock().is_ok();
    while lock() && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(machine.open().is_err());
    assert_eq!(machine.get("sys/a"), "2");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(machine.open().unwrap().1.is_some());
    assert_eq!(machine.get("sys/a"), "1");
}

#[test]
fn a_cut_journal_changes_nothing_and_any_text_is_safe() {
    let machine = Machine::new();
    drop(machine.changed());
    let whole = std::fs::read(machine.file()).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(machine.file(), &whole[..cut]).unwrap();
        let (_journal, note) = machine.open().unwrap();
        assert_eq!(
            (note, machine.get("sys/a")),
            (None, "2".into()),
            "cut at {cut}"
        );
        assert_eq!(std::fs::read(machine.file()).unwrap(), b"");
    }
    // Any byte changed is an error, or a journal of other paths and texts; never a panic.
    for at in 0..whole.len() {
        for byte in [0, b'\n', b'\t', b'9', 0xff] {
            let mut text = whole.clone();
            text[at] = byte;
            let _ = std::str::from_utf8(&text).map(parse);
        }
    }
}

#[test]
fn what_no_hither_writes_is_refused_with_its_line() {
    let machine = Machine::new();
    drop(machine.open().unwrap());
    let head = format!("{HEADER}\nowner 1 2\n");
    for (text, line, what) in [
        ("hello\n".to_owned(), 1, "no journal"),
        (format!("{HEADER}\nput\tsys/a\t1\n"), 2, "not understood"),
        (
            format!("{head}put\tsys/a\nend 1\n"),
            3,
            "a text for each path",
        ),
        (
            format!("{head}put\tsys/a\t1\tx\nend 1\n"),
            3,
            "a text for each path",
        ),
        (
            format!("{head}put\tetc/passwd\tx\nend 1\n"),
            3,
            "no file of /sys",
        ),
        (
            format!("{head}put\tproc/1/mem\tx\nend 1\n"),
            3,
            "no file of /sys",
        ),
        (
            format!("{head}put\tsys/../etc/passwd\tx\nend 1\n"),
            3,
            "no file of /sys",
        ),
        (format!("{head}put\tsys/a\t9\nend 2\n"), 4, "not understood"),
    ] {
        std::fs::write(machine.file(), &text).unwrap();
        let error = machine.open().unwrap_err();
        assert_eq!(error.line, Some(line), "{text}");
        assert!(error.reason.contains(what), "{text}: {error}");
        // It is kept, for a person to look at.
        assert_eq!(std::fs::read_to_string(machine.file()).unwrap(), text);
        assert_eq!(machine.get("sys/a"), "1");
    }
}

#[test]
fn conditions_keep_off_what_somebody_else_set_up() {
    let machine = Machine::new();
    machine.put("sys/count", "16");
    let (mut journal, _) = machine.open().unwrap();
    let settings = vec![
        Setting::new("sys/a", "kept").only_if("sys/count", "9"),
        Setting::new("proc/sys/b", "back")
            .only_if("sys/count", "16")
            .only_if("sys/a", "1"),
        Setting::new("sys/gone", "1"),
    ];
    journal.begin(settings).unwrap();
    drop(journal);
    machine.open().unwrap();
    assert_eq!(
        (machine.get("sys/a"), machine.get("proc/sys/b")),
        ("1".into(), "back".into())
    );
    assert!(!machine.root.has("sys/gone"));
}

#[test]
fn what_cannot_be_put_back_is_kept_for_the_next_time() {
    let machine = Machine::new();
    drop(machine.changed());
    let text = std::fs::read(machine.file()).unwrap();
    // A folder in place of the file: it can be neither read nor written.
    std::fs::remove_file(machine.root.path("proc/sys/b")).unwrap();
    std::fs::create_dir(machine.root.path("proc/sys/b")).unwrap();
    let (mut journal, _) = machine.open().unwrap();
    // What cannot be read is not there: the other was put back.
    assert_eq!(machine.get("sys/a"), "1");
    journal.begin(vec![Setting::new("sys/a", "4")]).unwrap();
    drop(journal);
    assert_ne!(std::fs::read(machine.file()).unwrap(), text);
    let mut one_line = machine.open().unwrap().0;
    let error = one_line
        .begin(vec![Setting::new("sys/a", "two\nlines")])
        .unwrap_err();
    assert!(error.to_string().contains("one plain line"), "{error}");
}

#[test]
fn folders_and_files_that_others_can_write_are_not_believed() {
    let machine = Machine::new();
    drop(machine.changed());
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&machine.file(), 0o666);
    assert!(
        machine
            .open()
            .unwrap_err()
            .to_string()
            .contains("not believed")
    );
    mode(&machine.file(), 0o600);
    mode(&machine.runtime(), 0o777);
    assert!(
        machine
            .open()
            .unwrap_err()
            .to_string()
            .contains("not believed")
    );
    mode(&machine.runtime(), 0o700);
    let link = machine.runtime().join("link.journal");
    std::os::unix::fs::symlink(machine.root.path("sys/a"), link).unwrap();
    assert!(Journal::open(&machine.root, &machine.runtime(), "link").is_err());
    assert_eq!(machine.get("sys/a"), "2");
}
