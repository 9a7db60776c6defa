//! Memory policies of files in tmpfs and hugetlbfs, and of System V segments: they belong to the
//! memory and hold for whoever maps it, until it is gone.

use crate::error::{Error, Result};
use crate::root::Root;
use crate::sys::{self, Access, Present, Segment};
use hither_core::bind::KernelPolicy;
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Which part of what, and what to make where there is nothing.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// Its length in bytes; `None` is all from `offset` on. Needed where something is made.
    pub length: Option<u64>,
    /// Permissions of what is made.
    pub mode: u32,
    /// Is a segment that is made of huge pages?
    pub is_huge: bool,
    /// Number that makes several segments of one key file (`ftok(3)`); 1 to 255, 0 counts too.
    pub id: u8,
}

/// A part of shared memory, mapped.
#[derive(Debug)]
pub struct Shared {
    name: PathBuf,
    segment: Segment,
    /// The part, within the mapping.
    within: Range<u64>,
    /// What `within.start` is called outside.
    offset: u64,
    page_bytes: u64,
    /// What had to be made, for a person.
    pub made: Vec<String>,
}

impl Shared {
    /// A file of tmpfs or hugetlbfs; made, or made longer, where need be.
    ///
    /// # Errors
    /// It cannot be opened or mapped, or the part is not of whole pages.
    pub fn open_file(path: &Path, part: &Part) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (opened, is_new) = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                part.length.ok_or_else(|| needs_length(path, "file"))?;
                (options.create_new(true).mode(part.mode).open(path), true)
            }
            opened => (opened, false),
        };
        let file = opened.map_err(|error| file_fails(path, "cannot be opened", error))?;
        let shared = Self::over_file(path, part, &file, is_new);
        if shared.is_err() && is_new {
            let _ = std::fs::remove_file(path);
        }
        shared
    }

    fn over_file(path: &Path, part: &Part, file: &File, is_new: bool) -> Result<Self> {
        let failed = |what: &str, error| file_fails(path, what, error);
        let mut made = Vec::new();
        if is_new {
            made.push(format!("file {} is made", path.shown()));
        }
        if !sys::keeps_policies(file).map_err(|error| failed("cannot be looked at", error))? {
            let only = "is on a file system that keeps no memory policies";
            return Err(Error::new(
                path,
                only,
                "give a file in tmpfs or hugetlbfs, as in /dev/shm",
            ));
        }
        let about = file
            .metadata()
            .map_err(|error| failed("cannot be looked at", error))?;
        let (bytes, page_bytes) = (about.size(), about.blksize().max(4096));
        let length = length(path, part, bytes, page_bytes)?;
        let end = part.offset + length;
        if end > bytes {
            file.set_len(end)
                .map_err(|error| failed("cannot be made longer", error))?;
            made.push(format!("file {} is {end} bytes long now", path.shown()));
        }
        let segment = Segment::map(file, part.offset, length);
        let segment = segment.map_err(|error| failed("cannot be mapped", error))?;
        Ok(Self {
            name: path.to_owned(),
            segment,
            within: 0..length,
            offset: part.offset,
            page_bytes,
            made,
        })
    }

    /// A System V segment, by its key file; both are made where need be.
    ///
    /// # Errors
    /// It cannot be found, made or attached, or the part is not of whole pages.
    pub fn open_segment(path: &Path, part: &Part) -> Result<Self> {
        let is_there = path
            .try_exists()
            .map_err(|error| key_fails(path, "cannot be looked at", error))?;
        if is_there {
            return Self::over_key_file(path, part, Vec::new());
        }
        part.length.ok_or_else(|| needs_length(path, "segment"))?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(part.mode);
        options
            .open(path)
            .map_err(|error| key_fails(path, "cannot be made", error))?;
        let made = vec![format!("key file {} is made", path.shown())];
        let shared = Self::over_key_file(path, part, made);
        if shared.is_err() {
            let _ = std::fs::remove_file(path);
        }
        shared
    }

    fn over_key_file(path: &Path, part: &Part, mut made: Vec<String>) -> Result<Self> {
        let failed = |what: &str, error| key_fails(path, what, error);
        let key = key(path, part.id).map_err(|e| failed("cannot be looked at", e))?;
        let (id, is_new) = match sys::segment_id(key, 0, None, part.is_huge) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let length = part.length.ok_or_else(|| needs_length(path, "segment"))?;
                let bytes = part.offset.saturating_add(length);
                made.push(format!(
                    "segment of {bytes} bytes is made with key {key:#010x}"
                ));
                let id = sys::segment_id(key, bytes, Some(part.mode), part.is_huge);
                (id, true)
            }
            found => (found, false),
        };
        let id = id.map_err(|e| failed("names a segment that cannot be had", e))?;
        let shared = Self::over_segment(path, part, id, made);
        if shared.is_err() && is_new {
            let _ = sys::remove_segment(id);
        }
        shared
    }

    fn over_segment(path: &Path, part: &Part, id: i32, made: Vec<String>) -> Result<Self> {
        let segment = Segment::attach(id)
            .map_err(|error| key_fails(path, "names a segment that cannot be attached", error))?;
        let page_bytes = match part.is_huge {
            true => huge_page_bytes()?,
            false => 4096,
        };
        let length = length(path, part, segment.len(), page_bytes)?;
        let end = part.offset + length;
        if end > segment.len() {
            return Err(Error::new(
                path,
                format!("names a segment of {} bytes, not {end}", segment.len()),
                "give a smaller --length or --offset, or remove the segment first (ipcrm)",
            ));
        }
        Ok(Self {
            name: path.to_owned(),
            segment,
            within: part.offset..end,
            offset: part.offset,
            page_bytes,
            made,
        })
    }

    /// Gives it a policy.
    ///
    /// # Errors
    /// The kernel refuses the policy; or, if `is_strict`, a page is where it does not want it.
    pub fn bind(&self, policy: &KernelPolicy, is_strict: bool) -> Result<()> {
        let present = match is_strict {
            true => Present::Checked,
            false => Present::Stay,
        };
        sys::bind_range(self.address(), self.bytes(), policy, present).map_err(|error| {
            let (reason, remedy) = match error.kind() {
                _ if error.raw_os_error() == Some(sys::EIO) => (
                    format!("has pages where `{policy}` does not want them"),
                    "leave --strict away, or look with --dump-nodes",
                ),
                _ => (
                    format!("does not take `{policy}`"),
                    "name nodes that have memory and that the cpuset allows",
                ),
            };
            Error::io(&self.name, reason, remedy, error)
        })
    }

    /// Brings all its pages into memory, by its policy; their content stays.
    ///
    /// # Errors
    /// There is no memory, or the file was cut short meanwhile.
    pub fn touch(&self) -> Result<()> {
        sys::populate(self.address(), self.bytes(), Access::Write).map_err(|error| {
            let remedy = "free memory on the nodes of its policy";
            Error::io(&self.name, "cannot be brought into memory", remedy, error)
        })
    }

    /// Runs of like policies, by offset in bytes.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn policies(&self) -> Result<Vec<(Range<u64>, KernelPolicy)>> {
        self.runs(|address| sys::policy_at(address).map(Some))
    }

    /// Runs of pages on one node, by offset in bytes; those that are not in memory stay out of it
    /// and are left out.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn nodes(&self) -> Result<Vec<(Range<u64>, NodeId)>> {
        let resident = self
            .segment
            .resident()
            .map_err(|error| self.untold(error))?;
        self.runs(|address| {
            let page = (address - self.segment.address()) / 4096;
            let is_there = resident.get(page as usize).is_some_and(|&there| there);
            is_there.then(|| sys::node_at(address)).transpose()
        })
    }

    fn runs<T: PartialEq>(
        &self,
        at: impl Fn(u64) -> io::Result<Option<T>>,
    ) -> Result<Vec<(Range<u64>, T)>> {
        let mut runs: Vec<(Range<u64>, T)> = Vec::new();
        for from in (0..self.bytes()).step_by(self.page_bytes as usize) {
            let Some(found) = at(self.address() + from).map_err(|error| self.untold(error))? else {
                continue;
            };
            let page = self.offset + from..self.offset + from + self.page_bytes;
            match runs.last_mut() {
                Some((run, of)) if run.end == page.start && *of == found => run.end = page.end,
                _ => runs.push((page, found)),
            }
        }
        Ok(runs)
    }

    fn untold(&self, error: io::Error) -> Error {
        Error::io(
            &self.name,
            "does not tell where its pages are",
            "try again",
            error,
        )
    }

    fn address(&self) -> u64 {
        self.segment.address() + self.within.start
    }

    fn bytes(&self) -> u64 {
        self.within.end - self.within.start
    }
}

fn file_fails(path: &Path, what: &str, error: io::Error) -> Error {
    let remedy = "give a file in tmpfs or hugetlbfs that is yours";
    Error::io(path, what, remedy, error)
}

fn key_fails(path: &Path, what: &str, error: io::Error) -> Error {
    let remedy = "give a key file and a segment that are yours (ipcs -m)";
    Error::io(path, what, remedy, error)
}

fn needs_length(path: &Path, what: &str) -> Error {
    Error::new(
        path,
        format!("is no {what} yet"),
        "say how long it is to be, with --length",
    )
}

/// Bytes of the part, in whole pages.
fn length(path: &Path, part: &Part, bytes: u64, page_bytes: u64) -> Result<u64> {
    let rest = bytes.saturating_sub(part.offset);
    let length = part.length.unwrap_or(rest.next_multiple_of(page_bytes));
    let fault = |reason: String| Err(Error::new(path, reason, "mend --offset or --length"));
    if length == 0 {
        return fault(format!("has nothing behind byte {}", part.offset));
    }
    if !part.offset.is_multiple_of(page_bytes) || !length.is_multiple_of(page_bytes) {
        return fault(format!(
            "has pages of {page_bytes} bytes, which the part would cut"
        ));
    }
    if part
        .offset
        .checked_add(length)
        .is_none_or(|end| end > 1 << 46)
    {
        return fault("cannot be that long".to_owned());
    }
    Ok(length)
}

/// `ftok(3)` as the C library makes it: low bits of inode and device, and the number.
fn key(path: &Path, id: u8) -> io::Result<i32> {
    let about = File::open(path)?.metadata()?;
    let bits = (about.ino() & 0xffff) | (about.dev() & 0xff) << 16 | u64::from(id) << 24;
    Ok(bits as u32 as i32)
}

fn huge_page_bytes() -> Result<u64> {
    let text = Root::host().text("proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    let bytes = kilobytes.map(|kilobytes: u64| kilobytes << 10);
    bytes.ok_or_else(|| {
        Error::new(
            "/proc/meminfo",
            "tells of no huge pages",
            "leave --huge away",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn part(offset: u64, length: Option<u64>) -> Part {
        Part {
            offset,
            length,
            mode: 0o600,
            ..Part::default()
        }
    }

    fn policy(text: &str) -> KernelPolicy {
        text.parse().unwrap()
    }

    #[test]
    fn a_file_keeps_its_policies_and_its_bytes() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("a");
        let none = Shared::open_file(&path, &part(0, None)).unwrap_err();
        assert!(
            none.to_string().contains("--length") && !path.exists(),
            "{none}"
        );
        let whole = Shared::open_file(&path, &part(0, Some(16 * PAGE))).unwrap();
        assert_eq!(whole.made.len(), 2);
        whole.bind(&policy("interleave:0"), false).unwrap();
        assert_eq!(whole.nodes().unwrap(), [], "nothing is there yet");
        let some = Shared::open_file(&path, &part(4 * PAGE, Some(2 * PAGE))).unwrap();
        some.bind(&policy("bind:0"), true).unwrap();
        std::fs::write(&path, vec![7; 5 * PAGE as usize]).unwrap();
        // Writing cut it short; it is made long again, and its policies are the file's.
        drop((whole, some));
        let whole = Shared::open_file(&path, &part(0, Some(16 * PAGE))).unwrap();
        let told: Vec<String> = whole
            .policies()
            .unwrap()
            .iter()
            .map(|(run, policy)| format!("{}-{} {policy}", run.start / PAGE, run.end / PAGE))
            .collect();
        assert_eq!(
            told,
            ["0-4 interleave:0", "4-6 bind:0", "6-16 interleave:0"]
        );
        assert_eq!(whole.nodes().unwrap(), [(0..5 * PAGE, NodeId(0))]);
        whole.touch().unwrap();
        assert_eq!(whole.nodes().unwrap(), [(0..16 * PAGE, NodeId(0))]);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[..5 * PAGE as usize].iter().all(|&byte| byte == 7));
        assert!(bytes[5 * PAGE as usize..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn parts_are_checked() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, [1; 4096]).unwrap();
        for (offset, length, reason) in [
            (1, None, "which the part would cut"),
            (0, Some(100), "which the part would cut"),
            (PAGE, None, "nothing behind byte 4096"),
            (0, Some(0), "nothing behind byte 0"),
            (0, Some(1 << 60), "cannot be that long"),
            (1 << 63, Some(1 << 63), "cannot be that long"),
        ] {
            let error = Shared::open_file(&path, &part(offset, length)).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
        let missing = folder.path().join("no/such");
        assert!(Shared::open_file(&missing, &part(0, Some(PAGE))).is_err());
    }

    #[test]
    fn a_segment_is_made_once_and_found_by_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(Shared::open_segment(&path, &part(0, None)).is_err());
        // A part that is refused leaves neither the key file nor, with one that was there, a segment.
        assert!(Shared::open_segment(&path, &part(0, Some(100))).is_err());
        assert!(!path.exists());
        File::create(&path).unwrap();
        assert!(Shared::open_segment(&path, &part(0, Some(100))).is_err());
        assert!(path.exists());
        let none = sys::segment_id(key(&path, 0).unwrap(), 0, None, false).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        std::fs::remove_file(&path).unwrap();
        let first = Shared::open_segment(&path, &part(0, Some(8 * PAGE))).unwrap();
        assert_eq!(first.made.len(), 2);
        first.bind(&policy("prefer:0"), false).unwrap();
        let again = Shared::open_segment(&path, &part(2 * PAGE, None)).unwrap();
        assert!(again.made.is_empty());
        again.bind(&policy("local"), false).unwrap();
        again.touch().unwrap();
        assert_eq!(again.nodes().unwrap(), [(2 * PAGE..8 * PAGE, NodeId(0))]);
        let told = first.policies().unwrap();
        assert_eq!(
            (told[0].1.to_string(), told.len()),
            ("prefer:0".to_owned(), 2)
        );
        let large = Shared::open_segment(&path, &part(0, Some(9 * PAGE))).unwrap_err();
        assert!(
            large.to_string().contains("of 32768 bytes, not 36864"),
            "{large}"
        );
        let id = sys::segment_id(key(&path, 0).unwrap(), 0, None, false).unwrap();
        sys::remove_segment(id).unwrap();
    }
}
