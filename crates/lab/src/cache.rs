//! Where fetched things are kept: `$HITHER_CACHE`, `$XDG_CACHE_HOME/hither` or `~/.cache/hither`.

use crate::error::{Error, Result};
use hither_core::foreign::Foreign;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest image of a kernel that is read.
const MOST_BYTES: u64 = 1 << 30;

/// Name of a kernel's image in its folder, as Debian ships it.
pub const IMAGE: &str = "vmlinuz";
/// Name of the kernel that was in it.
pub const UNPACKED: &str = "vmlinux";

/// Folder of the drivers beside it.
pub const MODULES: &str = "modules";

/// The two kernels that the lab fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// Debian's newest.
    Newest,
    /// The oldest that hither supports fully.
    Lts612,
}

impl Label {
    /// Both, in the order of fetching.
    pub const ALL: [Self; 2] = [Self::Newest, Self::Lts612];

    /// The word on the command line and in the cache.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Lts612 => "6.12",
        }
    }
}

/// Where a kernel came from, kept beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Kernel release.
    pub release: String,
    /// Debian package and version.
    pub package: String,
    /// SHA-256 of the package file, as the signed index has it.
    pub sha256: String,
}

/// A cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache.
    ///
    /// # Errors
    /// Where no variable says where it is.
    pub fn of_user() -> Result<Self> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    /// The cache that these variables name.
    ///
    /// # Errors
    /// Where none of them is set.
    pub fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name: &str| {
            get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        set("HITHER_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|path| path.join("hither")))
            .or_else(|| set("HOME").map(|path| path.join(".cache/hither")))
            .map(|root| Self { root })
            .ok_or_else(|| {
                Error::bad(
                    "no cache folder: HOME is not set",
                    "set HITHER_CACHE to a folder",
                )
            })
    }

    /// Its path.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of a kernel.
    #[must_use]
    pub fn folder(&self, label: Label) -> PathBuf {
        self.root.join("kernels").join(label.name())
    }

    /// Folder of the drivers of the kernel that `--kernel` names: fetched ones alone have it.
    #[must_use]
    pub fn modules(&self, kernel: &str) -> Option<PathBuf> {
        let label = Label::ALL
            .into_iter()
            .find(|label| label.name() == kernel)?;
        Some(self.folder(label).join(MODULES))
    }

    /// A fetched kernel's image, unpacked where it could be, and its origin.
    #[must_use]
    pub fn kernel(&self, label: Label) -> Option<(PathBuf, About)> {
        let folder = self.folder(label);
        let about = fs::read_to_string(folder.join("about.json")).ok()?;
        let about = serde_json::from_str(&about).ok()?;
        let images = [UNPACKED, IMAGE].map(|name| folder.join(name));
        let image = images.into_iter().find(|image| image.is_file())?;
        Some((image, about))
    }

    /// The kernel that `--kernel` names: a label or a file.
    ///
    /// # Errors
    /// Where it is not there.
    pub fn choose(&self, wanted: &str) -> Result<PathBuf> {
        if let Some(label) = Label::ALL.into_iter().find(|label| label.name() == wanted) {
            return self.kernel(label).map(|(image, _)| image).ok_or_else(|| {
                Error::missing(
                    format!("the kernel `{wanted}` is not in {}", self.root.shown()),
                    "run `hither lab setup`, which fetches it, or name a kernel image with --kernel FILE",
                )
            });
        }
        let path = Path::new(wanted);
        let bytes = hither_files::read(path, MOST_BYTES).map_err(|cause| {
            Error::bad(
                format!("--kernel {wanted}: {cause}"),
                "use newest, 6.12 or the path of a kernel image (vmlinuz)",
            )
        })?;
        if is_kernel_image(&bytes) {
            std::path::absolute(path).map_err(Error::io(format!("resolving {wanted}")))
        } else {
            Err(Error::bad(
                format!("--kernel {wanted} is no Linux kernel image for x86"),
                "name the compressed image, `vmlinuz` or `bzImage`",
            ))
        }
    }
}

/// The boot header's magic: `HdrS` at 0x202 (Linux `Documentation/arch/x86/boot.rst`).
#[must_use]
pub fn is_kernel_image(bytes: &[u8]) -> bool {
    bytes.get(0x202..0x206) == Some(b"HdrS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let cache = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|&(a, b)| (a.into(), b.into())).collect();
            Cache::from_variables(&move |name| {
                pairs
                    .iter()
                    .find(|(key, _)| key == name)
                    .map(|(_, value)| value.into())
            })
        };
        let all = [
            ("HITHER_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ];
        assert_eq!(cache(&all).unwrap().root(), Path::new("/a"));
        assert_eq!(cache(&all[1..]).unwrap().root(), Path::new("/b/hither"));
        assert_eq!(
            cache(&all[2..]).unwrap().root(),
            Path::new("/c/.cache/hither")
        );
        assert_eq!(
            cache(&[("HITHER_CACHE", ""), ("HOME", "/c")])
                .unwrap()
                .root(),
            Path::new("/c/.cache/hither")
        );
        assert_eq!(cache(&[]).unwrap_err().exit_status(), 2);
    }

    #[test]
    fn a_kernel_is_a_label_or_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache {
            root: directory.path().to_owned(),
        };
        let missing = cache.choose("newest").unwrap_err();
        assert!(
            missing.to_string().contains("hither lab setup"),
            "{missing}"
        );
        let folder = cache.folder(Label::Newest);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(IMAGE), "x").unwrap();
        let about = About {
            release: "7.2".into(),
            package: "p".into(),
            sha256: "0".into(),
        };
        fs::write(
            folder.join("about.json"),
            serde_json::to_string(&about).unwrap(),
        )
        .unwrap();
        assert_eq!(cache.choose("newest").unwrap(), folder.join(IMAGE));
        fs::write(folder.join(UNPACKED), "x").unwrap();
        assert_eq!(cache.choose("newest").unwrap(), folder.join(UNPACKED));
        assert_eq!(cache.kernel(Label::Newest).unwrap().1, about);

        let file = directory.path().join("image");
        fs::write(&file, vec![0; 2048]).unwrap();
        let refused = cache.choose(file.to_str().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("vmlinuz"), "{refused}");
        let mut image = vec![0; 2048];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        fs::write(&file, image).unwrap();
        assert_eq!(cache.choose(file.to_str().unwrap()).unwrap(), file);
        assert_eq!(
            cache.choose("/no/such/kernel").unwrap_err().exit_status(),
            2
        );
    }

    #[test]
    fn a_device_is_no_kernel() {
        let cache = Cache::from_variables(&|name| (name == "HOME").then(|| "/none".into()));
        let error = cache.unwrap().choose("/dev/zero").unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("is a device"), "{error}");
    }
}
