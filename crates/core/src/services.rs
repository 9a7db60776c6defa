//! Operating-system work on CPUs of its own: whose work is what, and whether it paid.
//!
//! The memory-region thesis gives the kernel's work, the file system's or the network's, cores and a cache of its
//! own (chapter III). Its data are not moved here, its work is: what of it the kernel lets be placed has a
//! [`Class`], by which it is chosen. An arrangement is judged by pairs of stretches of the same program, one of
//! plain scheduling and one arranged, one right after the other and in changing order, so that what drifts
//! hits both alike ([`judge`]).

use std::fmt;
use std::str::FromStr;

/// Whose work it is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// File systems and the disks under them: their interrupts, writeback, journals.
    File,
    /// Networks: interrupts and queues of cards, what receives packets.
    Network,
    /// Work that the kernel gives to any idle CPU, for whomever: it cannot be told apart.
    Any,
}

impl Class {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::File, Self::Network, Self::Any];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Network => "network",
            Self::Any => "any",
        }
    }

    /// Of a device, by the upper byte of its PCI class (PCI Code and ID Assignment: 01 storage, 02 network).
    #[must_use]
    pub fn of_device(pci_class: u32) -> Option<Self> {
        match pci_class >> 16 {
            0x01 => Some(Self::File),
            0x02 => Some(Self::Network),
            _ => None,
        }
    }

    /// Of a thread of the kernel, or one that it runs for a program, by its name. `None`: not known to serve
    /// either, such as what looks after memory or time: it is left alone.
    #[must_use]
    pub fn of_thread(name: &str) -> Option<Self> {
        THREADS
            .iter()
            .find(|(start, _)| name.starts_with(start))
            .map(|&(_, class)| class)
    }

    /// Of a workqueue that can be placed.
    #[must_use]
    pub fn of_workqueue(name: &str) -> Option<Self> {
        let is_file = [
            "writeback",
            "blkcg_punt_bio",
            "nvme",
            "scsi",
            "xfs",
            "raid",
            "md_",
        ];
        is_file
            .iter()
            .any(|start| name.starts_with(start))
            .then_some(Self::File)
    }
}

/// Beginnings of names of threads, and whose work they do.
const THREADS: &[(&str, Class)] = &[
    ("jbd2/", Class::File),
    ("ext4lazyinit", Class::File),
    ("xfsaild/", Class::File),
    ("btrfs-", Class::File),
    ("f2fs_", Class::File),
    ("dmcrypt_write", Class::File),
    ("loop", Class::File),
    ("nfsd", Class::File),
    ("napi/", Class::Network),
    ("vhost-", Class::Network),
    ("ksmbd", Class::Network),
    // It submits what a program asked for by io_uring, files or sockets.
    ("iou-sqp-", Class::Any),
];

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|class| class.name() == text)
            .ok_or_else(|| format!("`{text}` is no class of work: it is file, network or any"))
    }
}

/// Gain below which an arrangement is not kept, though it is surely one: policy `caches` takes back what falls
/// 1 % below; here nothing is lost by leaving the kernel alone, so it must be 1 % above.
pub const LEAST_GAIN: f64 = 0.01;
/// Fewer pairs tell nothing of how far they scatter.
pub const LEAST_PAIRS: usize = 3;
/// Standard errors by which the gain must exceed nothing.
const ERRORS: f64 = 2.0;

/// What pairs of stretches say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Geometric mean of arranged over plain, less one.
    pub gain: f64,
    /// Standard error of it, from how far the pairs scatter.
    pub error: f64,
    /// Is the arrangement kept?
    pub keeps: bool,
}

/// Judges pairs of what a program got done in a time, plain and arranged. `None`: too few pairs with anything
/// done in both.
#[must_use]
pub fn judge(pairs: &[(f64, f64)]) -> Option<Judgement> {
    let logs: Vec<f64> = pairs
        .iter()
        .map(|(plain, arranged)| (arranged / plain).ln())
        .filter(|log| log.is_finite())
        .collect();
    if logs.len() < LEAST_PAIRS {
        return None;
    }
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    let gain = mean.exp() - 1.0;
    Some(Judgement {
        gain,
        error,
        keeps: gain >= LEAST_GAIN && mean > ERRORS * error,
    })
}

/// Which of a pair's two stretches comes first: arranged in every second pair, so that a drift is no gain.
#[must_use]
pub fn arranged_is_first(pair: usize) -> bool {
    pair % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_known_by_device_and_name() {
        assert_eq!(Class::of_device(0x01_08_02), Some(Class::File));
        assert_eq!(Class::of_device(0x02_00_00), Some(Class::Network));
        assert_eq!(Class::of_device(0x03_00_00), None);
        for (name, class) in [
            ("jbd2/vda-8", Some(Class::File)),
            ("iou-sqp-4711", Some(Class::Any)),
            ("napi/eth0-8193", Some(Class::Network)),
            ("kswapd0", None),
            ("rcu_preempt", None),
        ] {
            assert_eq!(Class::of_thread(name), class, "{name}");
        }
        assert_eq!(Class::of_workqueue("writeback"), Some(Class::File));
        assert_eq!(Class::of_workqueue("nvme-reset-wq"), Some(Class::File));
        assert_eq!(Class::of_workqueue("ttyS-serial_8250"), None);
        for class in Class::ALL {
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert!(
            "disk"
                .parse::<Class>()
                .unwrap_err()
                .contains("file, network or any")
        );
    }

    #[test]
    fn a_gain_is_kept_where_pairs_agree() {
        // 10 % each time: no scatter.
        let sure = judge(&[(100.0, 110.0), (200.0, 220.0), (50.0, 55.0)]).unwrap();
        assert!(sure.keeps && (sure.gain - 0.1).abs() < 1e-9 && sure.error < 1e-9);
        // +30 %, -10 %, +10 %: logs 0.262, -0.105, 0.095, mean 0.084, error 0.106.
        let chance = judge(&[(100.0, 130.0), (100.0, 90.0), (100.0, 110.0)]).unwrap();
        assert!(!chance.keeps && chance.gain > 0.08 && (chance.error - 0.106).abs() < 1e-3);
        // Sure, but not worth it; and a loss.
        assert!(!judge(&[(1000.0, 1005.0); 4]).unwrap().keeps);
        assert!(!judge(&[(100.0, 90.0); 4]).unwrap().keeps);
    }

    #[test]
    fn too_few_pairs_tell_nothing() {
        assert_eq!(judge(&[(100.0, 150.0); 2]), None);
        // Stretches in which nothing was done are no pairs.
        assert_eq!(
            judge(&[(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 2.0), (1.0, 2.0)]),
            None
        );
        assert_eq!(
            [0, 1, 2, 3].map(arranged_is_first),
            [false, true, false, true]
        );
    }
}
