//! Set-up: QEMU is checked (or installed on request), kernels are fetched and unpacked.
//!
//! Kernels come through the machine's own `apt`, with a state folder and a source list of their
//! own: no root, nothing of the system's package state is touched, nothing is installed, and apt
//! checks the signature of the index and the hash of the package. The machine's proxy settings
//! and mirror are used.

use crate::cache::{About, Cache, IMAGE, Label, MODULES, UNPACKED};
use crate::error::{Error, Result};
use hither_core::foreign::Foreign;
use std::cmp::Reverse;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

mod apt;
mod modules;
mod sources;

use apt::Apt;
use sources::Mirrors;

/// Debian's signing keys, of the package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Oldest QEMU whose plugins (API 4) the lab's plugin can use.
const QEMU_MAJOR: u32 = 10;
/// Packages tried for one kernel: an index may name files that the mirror has dropped.
const ATTEMPTS: usize = 4;

/// Tells the person what is going on, one line at a time.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// One place to look for a kernel: suites that are searched together.
struct Suites {
    /// `(suite, from the security archive)`.
    suites: &'static [(&'static str, bool)],
    /// Package names start with one of these, followed by a version and `-cloud-amd64`.
    prefixes: &'static [&'static str],
    /// Lowest and highest major and minor version.
    range: ((u32, u32), (u32, u32)),
}

/// Where Debian keeps each kernel, best place first.
fn places(label: Label) -> &'static [Suites] {
    match label {
        Label::Newest => &[
            Suites {
                suites: &[("trixie-backports", false)],
                prefixes: &["linux-binary-", "linux-image-"],
                range: ((7, 0), (u32::MAX, u32::MAX)),
            },
            Suites {
                suites: &[("forky", false)],
                prefixes: &["linux-binary-", "linux-image-"],
                range: ((7, 0), (u32::MAX, u32::MAX)),
            },
        ],
        Label::Lts612 => &[
            Suites {
                suites: &[("bookworm-backports", false), ("bookworm-security", true)],
                prefixes: &["linux-image-"],
                range: ((6, 12), (6, 12)),
            },
            Suites {
                suites: &[("trixie", false), ("trixie-security", true)],
                prefixes: &["linux-image-"],
                range: ((6, 12), (6, 12)),
            },
        ],
    }
}

/// A QEMU that the lab can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub path: PathBuf,
    /// Its version as printed.
    pub version: String,
}

/// The command that installs QEMU on this machine.
fn install_command() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    match sources::codename(&release).as_deref() {
        Some("bookworm") => {
            let mirror = Mirrors::of_machine().archive;
            format!(
                "as root: echo 'deb [signed-by={KEYRING}] {mirror} bookworm-backports main' > /etc/apt/sources.list.d/bookworm-backports.list && apt-get update && apt-get install -y -t bookworm-backports qemu-system-x86 (or `hither lab setup --install`)"
            )
        }
        Some(_) => "as root: apt-get update && apt-get install -y qemu-system-x86 (or `hither lab setup --install`)".into(),
        None => format!("install QEMU {QEMU_MAJOR} or newer with its x86-64 system emulator"),
    }
}

/// QEMU is not there, with what to do.
#[must_use]
pub fn qemu_missing() -> Error {
    Error::missing("qemu-system-x86_64 is not installed", install_command())
}

/// Finds QEMU and checks its version.
///
/// # Errors
/// Where it is missing or too old, with the command that mends it.
pub fn find_qemu() -> Result<Qemu> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let path = match std::env::var_os("HITHER_QEMU") {
        Some(path) if Path::new(&path).is_file() => PathBuf::from(path),
        Some(path) => {
            return Err(Error::missing(
                format!("HITHER_QEMU names {}, which is no file", path.shown()),
                "name QEMU's x86-64 system emulator, or unset the variable",
            ));
        }
        None => std::env::split_paths(&search)
            .map(|folder| folder.join("qemu-system-x86_64"))
            .find(|path| path.is_file())
            .ok_or_else(qemu_missing)?,
    };
    let output = Command::new(&path)
        .arg("--version")
        .output()
        .map_err(|cause| {
            Error::missing(
                format!("{} cannot be run: {cause}", path.shown()),
                install_command(),
            )
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = qemu_version(&text).ok_or_else(|| {
        Error::missing(
            format!("{} does not print a QEMU version", path.shown()),
            install_command(),
        )
    })?;
    let major = version
        .split('.')
        .next()
        .and_then(|part| part.parse::<u32>().ok());
    if major.is_none_or(|major| major < QEMU_MAJOR) {
        return Err(Error::missing(
            format!(
                "{} is version {version}, the lab needs {QEMU_MAJOR} or newer",
                path.shown()
            ),
            install_command(),
        ));
    }
    Ok(Qemu { path, version })
}

/// A line such as `QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)`.
fn qemu_version(text: &str) -> Option<String> {
    let rest = text.lines().next()?.split_once("version ")?.1;
    rest.split_whitespace().next().map(str::to_owned)
}

/// Does QEMU have plugins? Asked at set-up only: it costs a start of QEMU.
fn has_plugins(qemu: &Qemu) -> Result<()> {
    let doing = || format!("asking {} for its options", qemu.path.shown());
    let output = Command::new(&qemu.path)
        .arg("-help")
        .output()
        .map_err(Error::io(doing()))?;
    if String::from_utf8_lossy(&output.stdout)
        .lines()
        .any(|line| line.starts_with("-plugin"))
    {
        return Ok(());
    }
    Err(Error::missing(
        format!("{} was built without plugins", qemu.path.shown()),
        "use Debian's package (see `hither lab setup --install`) or build QEMU with --enable-plugins",
    ))
}

/// Checks and fetches everything that the lab needs; quick where it is there already.
///
/// # Errors
/// What cannot be had, with what to do.
pub fn setup(install: bool, refresh: bool, progress: Progress<'_>) -> Result<()> {
    let qemu = match find_qemu() {
        Err(Error::Missing { .. }) if install => {
            install_packages(&["qemu-system-x86"], progress)?;
            find_qemu()?
        }
        other => other?,
    };
    has_plugins(&qemu)?;
    progress(&format!("QEMU {} at {}", qemu.version, qemu.path.shown()));
    match crate::image::find_program("busybox") {
        Ok(path) => progress(&format!("busybox at {}", path.shown())),
        Err(_) if install => install_packages(&["busybox-static"], progress)?,
        Err(_) => progress(
            "no busybox: `hither lab shell` will lack most commands (apt-get install busybox-static)",
        ),
    }
    let cache = Cache::of_user()?;
    for label in Label::ALL {
        let about = match cache.kernel(label).filter(|_| !refresh) {
            Some((_, about)) => about,
            None => fetch_kernel(&cache, label, progress)?,
        };
        unpack(&cache, label)?;
        if !modules::are_there(&cache.folder(label).join(MODULES)) {
            modules::fetch(&cache, label, &about, progress)?;
        }
        progress(&format!(
            "kernel {}: Linux {} from {}",
            label.name(),
            about.release,
            about.package
        ));
    }
    Ok(())
}

fn install_packages(packages: &[&str], progress: Progress<'_>) -> Result<()> {
    // SAFETY: asks for the caller's own user id.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Error::missing(
            format!("--install needs root to install {}", packages.join(" ")),
            install_command(),
        ));
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let backports = sources::codename(&release).as_deref() == Some("bookworm");
    if backports && !sources::has_suite("bookworm-backports") {
        let path = "/etc/apt/sources.list.d/bookworm-backports.list";
        let line = format!(
            "deb [signed-by={KEYRING}] {} bookworm-backports main\n",
            Mirrors::of_machine().archive
        );
        progress(&format!("adding {path}"));
        fs::write(path, line).map_err(Error::io(format!("writing {path}")))?;
    }
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    if backports {
        arguments.extend(["-t", "bookworm-backports"]);
    }
    arguments.extend(packages);
    for arguments in [vec!["update"], arguments] {
        progress(&format!("apt-get {}", arguments.join(" ")));
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(&arguments);
        apt::run(
            &mut command,
            "installing packages",
            "run the command above by hand and see what it says",
        )?;
    }
    Ok(())
}

fn fetch_kernel(cache: &Cache, label: Label, progress: Progress<'_>) -> Result<About> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        if crate::image::find_program(tool).is_err() {
            return Err(Error::missing(
                format!("{tool} is not on this machine, so no Debian kernel can be fetched"),
                "give the lab a kernel image of your own with --kernel FILE",
            ));
        }
    }
    if !Path::new(KEYRING).is_file() {
        return Err(Error::missing(
            format!("{KEYRING} is missing, so Debian's signatures cannot be checked"),
            "as root: apt-get install -y debian-archive-keyring",
        ));
    }
    fs::create_dir_all(cache.root())
        .map_err(Error::io(format!("making {}", cache.root().shown())))?;
    remove_stale(cache.root());
    let mut last = None;
    for place in places(label) {
        let names: Vec<&str> = place.suites.iter().map(|&(suite, _)| suite).collect();
        progress(&format!(
            "kernel {}: looking in Debian {}",
            label.name(),
            names.join(", ")
        ));
        match fetch_from(cache, label, place, progress) {
            Ok(Some(about)) => return Ok(about),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::missing(
            format!("no Debian suite has the kernel `{}` any more", label.name()),
            "name a kernel image of your own with --kernel FILE",
        )
    }))
}

fn fetch_from(
    cache: &Cache,
    label: Label,
    place: &Suites,
    progress: Progress<'_>,
) -> Result<Option<About>> {
    let scratch = Scratch::new(cache.root())?;
    let apt = Apt::prepare(&scratch.0, place)?;
    apt.update()?;
    let mut candidates: Vec<(Vec<u32>, String)> = apt
        .package_names(place.prefixes)?
        .into_iter()
        .filter_map(|name| Some((kernel_version(&name, place.prefixes)?, name)))
        .filter(|(version, _)| (place.range.0..=place.range.1).contains(&(version[0], version[1])))
        .collect();
    // The newest first; of one version, `linux-binary` comes first, which is the image alone.
    candidates.sort_by_key(|(version, name)| (Reverse(version.clone()), name.clone()));
    let mut failure = None;
    for (_, package) in candidates.into_iter().take(ATTEMPTS) {
        progress(&format!("kernel {}: fetching {package}", label.name()));
        match apt
            .download(&package)
            .and_then(|(file, about)| apt::unpack(&scratch.0, &file, about))
        {
            Ok((image, about)) => {
                let tree = scratch.0.join(apt::TREE);
                let image = apt::set_aside(&scratch.0, &image)?;
                modules::of_new(&apt, &scratch.0, &tree, &about, &scratch.0.join(MODULES))?;
                return keep(cache, label, &scratch.0, &image, &about).map(|()| Some(about));
            }
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(None), Err)
}

/// Version of a package such as `linux-binary-7.2.12+deb13-cloud-amd64`: `[7, 2, 12, 13]`.
fn kernel_version(name: &str, prefixes: &[&str]) -> Option<Vec<u32>> {
    let version = prefixes
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?
        .strip_suffix("-cloud-amd64")?;
    // `unsigned-7.3.4` has the same content before Debian has signed it; wait for the signed one.
    if !version.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let parts = version
        .split(|letter: char| !letter.is_ascii_digit())
        .filter(|part| !part.is_empty());
    let parts: Vec<u32> = parts
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    // `linux-image-6.12-cloud-amd64` is a name for whatever is newest, without content.
    (parts.len() >= 3).then_some(parts)
}

/// Moves image and origin into the cache in one step.
fn keep(cache: &Cache, label: Label, scratch: &Path, image: &Path, about: &About) -> Result<()> {
    let staged = scratch.join("staged");
    let target = cache.folder(label);
    let doing = || format!("keeping the kernel in {}", target.shown());
    let text = serde_json::to_string_pretty(about).unwrap_or_default();
    fs::create_dir_all(&staged).map_err(Error::io(doing()))?;
    fs::rename(image, staged.join(IMAGE)).map_err(Error::io(doing()))?;
    fs::set_permissions(staged.join(IMAGE), fs::Permissions::from_mode(0o644))
        .map_err(Error::io(doing()))?;
    fs::write(staged.join("about.json"), text).map_err(Error::io(doing()))?;
    fs::rename(scratch.join(MODULES), staged.join(MODULES)).map_err(Error::io(doing()))?;
    fs::create_dir_all(cache.root().join("kernels")).map_err(Error::io(doing()))?;
    let _ = fs::remove_dir_all(&target);
    match fs::rename(&staged, &target) {
        // Another set-up was faster; its kernel is as good.
        Err(_) if cache.kernel(label).is_some() => Ok(()),
        other => other.map_err(Error::io(doing())),
    }
}

/// Puts the kernel beside its image, where it is not yet and can be had.
fn unpack(cache: &Cache, label: Label) -> Result<()> {
    let folder = cache.folder(label);
    let doing = || format!("unpacking the kernel in {}", folder.shown());
    if folder.join(UNPACKED).is_file() {
        return Ok(());
    }
    let image = fs::read(folder.join(IMAGE)).map_err(Error::io(doing()))?;
    let Some(kernel) = crate::vmlinux::unpack(&image) else {
        return Ok(());
    };
    let scratch = Scratch::new(cache.root())?;
    let whole = scratch.0.join(UNPACKED);
    fs::write(&whole, kernel).map_err(Error::io(doing()))?;
    fs::rename(whole, folder.join(UNPACKED)).map_err(Error::io(doing()))
}

/// A folder that goes when this does.
struct Scratch(PathBuf);

impl Scratch {
    fn new(root: &Path) -> Result<Self> {
        // New, under a name that nobody can foresee: what is in it is trusted from then on.
        let random = RandomState::new().build_hasher().finish();
        let path = root.join(format!("scratch-{}-{random:016x}", std::process::id()));
        fs::create_dir(&path).map_err(Error::io(format!("making {}", path.shown())))?;
        let path = path
            .canonicalize()
            .map_err(Error::io(format!("resolving {}", path.shown())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what a set-up that was killed has left: folders of processes that are gone.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("scratch-")?.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_give_versions() {
        let version = |name: &str| kernel_version(name, &["linux-binary-", "linux-image-"]);
        assert_eq!(
            version("linux-binary-7.2.12+deb13-cloud-amd64"),
            Some(vec![7, 2, 12, 13])
        );
        assert_eq!(
            version("linux-image-6.12.90+deb12.1-cloud-amd64"),
            Some(vec![6, 12, 90, 12, 1])
        );
        assert_eq!(
            version("linux-binary-unsigned-7.3.4+deb13-cloud-amd64"),
            None
        );
        assert_eq!(version("linux-image-6.12-cloud-amd64"), None);
        assert_eq!(version("linux-image-6.12.9+deb12-cloud-amd64-dbg"), None);
        assert_eq!(version("linux-image-6.12.9+deb12-amd64"), None);
        assert_eq!(version("linux-image-99999999999.1.1-cloud-amd64"), None);
    }

    #[test]
    fn qemu_versions_are_read() {
        let line = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright";
        assert_eq!(qemu_version(line).as_deref(), Some("10.0.2"));
        assert_eq!(qemu_version(""), None);
        assert_eq!(qemu_version("version "), None);
    }

    #[test]
    fn missing_qemu_names_the_command() {
        let error = qemu_missing();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("install"), "{error}");
    }

    #[test]
    fn scratch_folders_go_and_stale_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        // Above the kernel's largest process number (2^22), so never a live process.
        let stale = directory.path().join("scratch-99999999-1a2b");
        fs::create_dir(&stale).unwrap();
        let scratch = Scratch::new(directory.path()).unwrap();
        let path = scratch.0.clone();
        remove_stale(directory.path());
        assert!(!stale.exists() && path.exists());
        drop(scratch);
        assert!(!path.exists());
    }
}
