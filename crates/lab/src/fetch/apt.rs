//! Debian's own tools, with a state folder and a source list of the lab's own.

use super::sources::Mirrors;
use super::{KEYRING, Suites};
use crate::cache::{About, is_kernel_image};
use crate::error::{Error, Result};
use hither_core::foreign::Foreign;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// apt with a state of its own.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Writes source list and configuration into a scratch folder.
    pub fn prepare(folder: &Path, place: &Suites) -> Result<Self> {
        let doing = || format!("preparing {}", folder.shown());
        for part in ["state/lists/partial", "cache/archives/partial", "empty"] {
            fs::create_dir_all(folder.join(part)).map_err(Error::io(doing()))?;
        }
        let mirrors = Mirrors::of_machine();
        let list: String = place
            .suites
            .iter()
            .map(|&(suite, security)| {
                let uri = if security {
                    &mirrors.security
                } else {
                    &mirrors.archive
                };
                format!("deb [arch=amd64 signed-by={KEYRING}] {uri} {suite} main\n")
            })
            .collect();
        let root = folder.to_string_lossy();
        let configuration = format!(
            "#clear APT::Update;\n#clear DPkg;\n\
             Dir::State \"{root}/state\";\nDir::State::status \"{root}/status\";\n\
             Dir::Cache \"{root}/cache\";\nDir::Etc::SourceList \"{root}/sources.list\";\n\
             Dir::Etc::SourceParts \"{root}/empty\";\nDir::Etc::Preferences \"{root}/empty/none\";\n\
             Dir::Etc::PreferencesParts \"{root}/empty\";\nAcquire::Languages \"none\";\n\
             Acquire::Retries \"2\";\nAPT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; }};\nAPT::Sandbox::User \"root\";\n"
        );
        for (name, text) in [
            ("status", ""),
            ("sources.list", list.as_str()),
            ("apt.conf", &configuration),
        ] {
            fs::write(folder.join(name), text).map_err(Error::io(doing()))?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command
            .arg("-c")
            .arg(self.folder.join("apt.conf"))
            .arg("-q")
            .current_dir(&self.folder);
        command.env("LC_ALL", "C.UTF-8");
        command
    }

    /// Reads the signed package indexes.
    pub fn update(&self) -> Result<()> {
        let mut command = self.command("apt-get");
        command.args(["update", "--error-on=any"]);
        run(&mut command, "reading Debian's package index", "check the network and the mirror in /etc/apt; or name a kernel image of your own with --kernel FILE").map(drop)
    }

    /// Names of packages that begin with one of these.
    pub fn package_names(&self, prefixes: &[&str]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for prefix in prefixes {
            let mut command = self.command("apt-cache");
            command.args(["pkgnames", prefix]);
            let text = run(
                &mut command,
                "searching Debian's package index",
                "run `hither lab setup` again",
            )?;
            names.extend(text.lines().map(str::to_owned));
        }
        Ok(names)
    }

    /// Downloads a package; apt checks it against the signed index.
    pub fn download(&self, package: &str) -> Result<(PathBuf, About)> {
        let mut show = self.command("apt-cache");
        show.args(["show", "--no-all-versions", package]);
        let text = run(
            &mut show,
            "reading Debian's package index",
            "run `hither lab setup` again",
        )?;
        // Lines such as `Version: 7.2.12-1~bpo13+1` and `SHA256: aa672082...`.
        let field = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(|value| value.trim().to_owned())
                .unwrap_or_default()
        };
        let mut command = self.command("apt-get");
        command.args(["download", package]);
        run(
            &mut command,
            &format!("downloading {package}"),
            "check the network; or name a kernel image of your own with --kernel FILE",
        )?;
        let file = fs::read_dir(&self.folder)
            .map_err(Error::io("looking for the package"))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.extension().is_some_and(|end| end == "deb")
                    && path.file_name().is_some_and(|name| {
                        name.to_string_lossy().starts_with(&format!("{package}_"))
                    })
            })
            .ok_or_else(|| {
                Error::missing(
                    format!("apt-get did not leave {package}"),
                    "run `hither lab setup` again",
                )
            })?;
        let about = About {
            release: String::new(),
            package: format!("{package} {}", field("Version")),
            sha256: field("SHA256"),
        };
        Ok((file, about))
    }
}

/// Where a package is unpacked, in the scratch folder.
pub const TREE: &str = "tree";

/// Unpacks a package; the folder that it was unpacked to, and it alone.
pub fn extract(scratch: &Path, package: &Path) -> Result<PathBuf> {
    let tree = scratch.join(TREE);
    let _ = fs::remove_dir_all(&tree);
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(package).arg(&tree);
    run(
        &mut command,
        &format!("unpacking {}", package.shown()),
        "free some disk space and run `hither lab setup` again",
    )?;
    let _ = fs::remove_file(package);
    Ok(tree)
}

/// Takes an image out of the way of the next package that is unpacked.
pub fn set_aside(scratch: &Path, image: &Path) -> Result<PathBuf> {
    let aside = scratch.join("image");
    fs::rename(image, &aside).map_err(Error::io(format!("moving {}", image.shown())))?;
    Ok(aside)
}

/// Unpacks a package and finds the kernel image in it.
pub fn unpack(scratch: &Path, package: &Path, about: About) -> Result<(PathBuf, About)> {
    let tree = extract(scratch, package)?;
    // Older packages hold `boot/vmlinuz-RELEASE`, newer ones `usr/lib/modules/RELEASE/vmlinuz`.
    let below = |path: &str| {
        fs::read_dir(tree.join(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let newer = below("usr/lib/modules")
        .filter_map(|path| Some((path.join("vmlinuz"), path.file_name()?.to_str()?.to_owned())));
    let older = below("boot").filter_map(|path| {
        let release = path
            .file_name()?
            .to_str()?
            .strip_prefix("vmlinuz-")?
            .to_owned();
        Some((path, release))
    });
    newer
        .chain(older)
        .find(|(image, _)| fs::read(image).is_ok_and(|bytes| is_kernel_image(&bytes)))
        .map(|(image, release)| {
            (
                image,
                About {
                    release,
                    ..about.clone()
                },
            )
        })
        .ok_or_else(|| {
            Error::missing(
                format!("{} holds no kernel image", about.package),
                "name a kernel image of your own with --kernel FILE",
            )
        })
}

/// Runs a tool to its end; its output, or an error with its last lines.
pub fn run(command: &mut Command, doing: &str, remedy: &str) -> Result<String> {
    let output = command.output().map_err(Error::io(doing.to_owned()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let tail = lines[lines.len().saturating_sub(6)..].join("\n  | ");
    Err(Error::missing(
        format!("{doing} failed:\n  | {tail}"),
        remedy,
    ))
}
