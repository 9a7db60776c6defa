//! What can be refused without a boot is refused, with place and remedy. Needs no QEMU.

use hither_core::policy::Rung;
use hither_lab::error::{Error, STATUS_BAD_INPUT};
use hither_lab::qemu::{HugePages, PluginMode};
use hither_lab::session::{Lab, Options};
use std::fs;
use std::path::{Path, PathBuf};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../machines/{name}.toml"))
}

/// Options that lack nothing but QEMU: a kernel image in shape, and no plugin.
fn options(folder: &Path) -> Options {
    let kernel = folder.join("vmlinuz");
    let mut image = vec![0; 4096];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    fs::write(&kernel, image).unwrap();
    Options {
        machine_file: machine("opteron8385"),
        cpus: None,
        memory_mb: Vec::new(),
        offline: Default::default(),
        kernel: kernel.to_str().unwrap().to_owned(),
        devices: Default::default(),
        huge_pages: HugePages::Madvise,
        timeout: None,
        files: Vec::new(),
        env: Vec::new(),
        back: Vec::new(),
        plugin: None,
        agent: std::env::current_exe().unwrap(),
        evidence: Rung::Device,
        hither_arguments: Vec::new(),
    }
}

/// The refusal must name these parts.
#[track_caller]
fn refused(change: impl FnOnce(&mut Options, &Path), parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    change(&mut options, folder.path());
    let error: Error = Lab::prepare(options).map(|lab| lab.summary()).unwrap_err();
    assert_eq!(error.exit_status(), STATUS_BAD_INPUT, "{error}");
    let text = error.to_string();
    for part in parts.iter().chain(&["to mend it"]) {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn machine_files_that_cannot_be_read() {
    refused(
        |options, _| options.machine_file = "/no/such.toml".into(),
        &["/no/such.toml", "no such file"],
    );
    refused(
        |options, folder| options.machine_file = folder.into(),
        &["--machine", "directory"],
    );
}

#[test]
fn machine_files_that_are_none_name_their_line() {
    refused(
        |options, folder| {
            options.machine_file = folder.join("m.toml");
            fs::write(
                &options.machine_file,
                "format = \"hither.machine/1\"\nname = 3\n",
            )
            .unwrap();
        },
        &["m.toml", "line "],
    );
    refused(
        |options, folder| {
            options.machine_file = folder.join("m.toml");
            let text = fs::read_to_string(machine("opteron8385")).unwrap();
            fs::write(&options.machine_file, text.replace("ghz", "gigahertz")).unwrap();
        },
        &["gigahertz", "line "],
    );
    refused(
        |options, folder| {
            options.machine_file = folder.join("m.toml");
            fs::write(&options.machine_file, [0xff, 0xfe, 0]).unwrap();
        },
        &["--machine", "UTF-8"],
    );
}

#[test]
fn sizes_that_do_not_fit_the_machine() {
    refused(
        |options, _| options.cpus = Some(3),
        &["4 nodes with CPUs", "--cpus"],
    );
    refused(|options, _| options.cpus = Some(0), &["--cpus"]);
    refused(|options, _| options.cpus = Some(1000), &["16", "--cpus"]);
    refused(
        |options, _| options.memory_mb = vec![1],
        &["1 MiB", "--memory"],
    );
    refused(
        |options, _| options.memory_mb = vec![u64::MAX],
        &["--memory"],
    );
    refused(
        |options, _| options.memory_mb = vec![16 << 20],
        &["67108864 MiB", "--memory "],
    );
    refused(
        |options, _| options.memory_mb = vec![512, 1024],
        &["--memory names 2 sizes", "4 nodes", "512,1024"],
    );
    refused(
        |options, _| {
            options.machine_file = machine("knl7250");
            options.cpus = Some(68);
        },
        &["68 CPUs", "--cpus 16"],
    );
}

#[test]
fn kernels_that_are_none() {
    refused(
        |options, _| options.kernel = "7.99".into(),
        &["--kernel 7.99", "newest"],
    );
    refused(
        |options, _| options.kernel = "/bin/sh".into(),
        &["/bin/sh", "vmlinuz"],
    );
    refused(|options, _| options.kernel = "/".into(), &["--kernel /"]);
}

#[test]
fn a_plugin_that_is_not_there() {
    refused(
        |options, folder| {
            options.plugin = Some(PluginMode::Model);
            options.agent = folder.join("hither");
        },
        &["libhither_plugin.so", "make install"],
    );
}

#[test]
fn devices_that_cannot_be_had() {
    let devices = |disk_mb, network| hither_lab::devices::Devices { disk_mb, network };
    refused(
        |options, _| options.devices = devices(Some(1), false),
        &["--disk 1", "16 to"],
    );
    refused(
        |options, _| options.devices = devices(None, true),
        &["vmlinuz comes without", "--kernel newest"],
    );
}
