//! What `make install` installs, from scripts/install.sh.

use crate::common::{mirror_shim, shim, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tree() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// As cargo leaves it. The plugin is an empty file: nothing here loads it.
fn built(folder: &Path) -> PathBuf {
    let built = folder.join("built");
    fs::create_dir(&built).unwrap();
    symlink(env!("CARGO_BIN_EXE_hither"), built.join("hither")).unwrap();
    symlink(shim(), built.join("libhither_preload.so")).unwrap();
    symlink(mirror_shim(), built.join("libhither_mirror.so")).unwrap();
    fs::write(built.join("libhither_plugin.so"), "").unwrap();
    built
}

fn install(built: &Path, prefix: &Path) -> Output {
    Command::new(tree().join("scripts/install.sh"))
        .arg(built)
        .env("PREFIX", prefix)
        .env_remove("DESTDIR")
        .env_remove("MANDIR")
        .env_remove("SYSCONFDIR")
        .output()
        .unwrap()
}

/// Runs a command that must succeed; what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    text(&output.stdout)
}

#[test]
fn the_installed_command_has_its_parts_manual_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("usr");
    let done = install(&built(folder.path()), &prefix);
    assert!(done.status.success(), "{}", text(&done.stderr));

    // From anywhere, also through a link.
    let link = folder.path().join("h");
    symlink(prefix.join("bin/hither"), &link).unwrap();
    let hither = |words: &[&str]| {
        let mut command = Command::new(&link);
        command
            .args(words)
            .current_dir("/")
            .env_remove("HITHER_PRELOAD");
        command
    };
    let version = run(&mut hither(&["--version"]));
    assert_eq!(version, format!("hither {}\n", env!("CARGO_PKG_VERSION")));
    let recording = folder.path().join("r");
    run(hither(&["record", "--sites", "-o"])
        .arg(&recording)
        .args(["--", "true"]));
    assert!(recording.join("recording.json").is_file());

    // A page for every command that --help names, and for those below them.
    let page = |name: &str| fs::read_to_string(prefix.join("share/man/man1").join(name)).unwrap();
    let help = run(&mut hither(&["--help"]));
    let commands = help.split("Commands:\n").nth(1).unwrap();
    let names: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|&name| name != "help")
        .collect();
    assert!(names.len() > 10, "{help}");
    for name in names {
        assert!(
            page(&format!("hither-{name}.1")).contains(".SH SYNOPSIS"),
            "{name}"
        );
    }
    assert!(page("hither-lab-run.1").contains("\\-\\-machine"));
    assert!(page("hither-record.1").contains("[OPTIONS] \\-\\-cgroup PATH"));

    // The shells take their completions.
    let share = prefix.join("share");
    let completions = share.join("bash-completion/completions/hither");
    let complete = format!(
        ". '{}'; COMP_WORDS=(hither rec) COMP_CWORD=1; _hither hither rec hither; echo \"${{COMPREPLY[*]}}\"",
        completions.display()
    );
    assert_eq!(
        run(Command::new("bash").args(["-c", &complete])),
        "record\n"
    );
    let zsh = fs::read_to_string(share.join("zsh/site-functions/_hither")).unwrap();
    assert!(zsh.starts_with("#compdef hither\n"));
    let fish = fs::read_to_string(share.join("fish/vendor_completions.d/hither.fish")).unwrap();
    assert!(fish.contains("complete -c hither"));
}

#[test]
fn the_installed_command_names_its_machines_and_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("usr");
    let built = built(folder.path());
    assert!(install(&built, &prefix).status.success());
    let refused = |words: &[&str]| {
        let mut command = Command::new(prefix.join("bin/hither"));
        command.args(words).current_dir("/");
        for variable in ["HITHER_PRELOAD", "HITHER_SCOPE"] {
            command.env_remove(variable);
        }
        let output = command.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        error
    };
    let error = refused(&["lab", "run", "--machine", "no-such", "--", "true"]);
    assert!(
        error.contains("that comes with hither: clovertown, genoa, ibm-ccnuma, ibm-two-node"),
        "{error}"
    );
    // Found by its name: it is the number of CPUs that is refused.
    let many = [
        "lab",
        "run",
        "--machine",
        "opteron8385",
        "--cpus",
        "3",
        "--",
        "true",
    ];
    let error = refused(&many);
    assert!(error.contains("--cpus"), "{error}");

    fs::remove_dir_all(prefix.join("lib/hither")).unwrap();
    let error = refused(&["record", "--sites", "--", "true"]);
    assert!(
        error.contains("libhither_preload.so is neither in"),
        "{error}"
    );
    assert!(
        error.contains("run `make install` in hither's sources again"),
        "{error}"
    );

    fs::remove_file(built.join("libhither_plugin.so")).unwrap();
    let done = install(&built, &prefix);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("libhither_plugin.so is not there; run `make build`"));
}

#[test]
fn the_daemon_gets_its_units_and_a_configuration_that_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("usr");
    let built = built(folder.path());
    assert!(install(&built, &prefix).status.success());

    // Outside of /usr everything stays below the prefix, and the unit says where.
    let units = prefix.join("lib/systemd/system");
    let service = fs::read_to_string(units.join("hither.service")).unwrap();
    let configuration = prefix.join("etc/hither/hither.toml");
    let start = format!(
        "ExecStart={}/bin/hither daemon --config {}",
        prefix.display(),
        configuration.display()
    );
    assert!(service.lines().any(|line| line == start), "{service}");
    let socket = fs::read_to_string(units.join("hither.socket")).unwrap();
    assert!(socket.contains("FileDescriptorName=control\n"), "{socket}");
    for name in ["metrics-tcp.conf", "cpu-goals.conf"] {
        let path = prefix.join("share/hither/systemd").join(name);
        assert!(path.is_file(), "{name}");
    }
    for script in ["prolog.sh", "epilog.sh"] {
        let path = prefix.join("share/hither/slurm").join(script);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{script}");
    }

    fs::write(&configuration, "mine").unwrap();
    assert!(install(&built, &prefix).status.success());
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "mine");
}
