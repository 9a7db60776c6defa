//! The text of `schemata` files: who may fill which ways of each last-level cache, and how much of the memory
//! bandwidth is theirs. Pure.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use std::collections::BTreeMap;
use std::fmt;

/// What a group has, or is to get. Caches go by the kernel's number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata {
    /// A mask of ways for each last-level cache; what is not named stays as it is.
    pub ways: BTreeMap<u32, u32>,
    /// Bandwidth for each, in the kernel's unit: percent on Intel, eighths of a GB/s on AMD.
    pub bandwidth: BTreeMap<u32, u32>,
}

impl Schemata {
    /// The same ways on each of these caches.
    pub fn of_ways(caches: impl IntoIterator<Item = u32>, mask: u32) -> Self {
        Self {
            ways: caches.into_iter().map(|cache| (cache, mask)).collect(),
            bandwidth: BTreeMap::new(),
        }
    }

    /// Reads a file. Lines of other resources (`L2`, `SMBA`) are left out, and what a group that is still
    /// being set up has not got (`uninitialized`).
    ///
    /// ```text
    ///     MB:0= 50;1=100
    ///     L3:0=00f;1=7ff
    /// ```
    ///
    /// # Errors
    /// The cache is divided for code and data apart, or the text is not what the kernel prints.
    pub fn parse(text: &str) -> Parsed<Self> {
        let mut schemata = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let fault = |reason: String| Fault::new(index + 1, reason);
            let Some((resource, values)) = line.split_once(':') else {
                match line.is_empty() {
                    true => continue,
                    false => return Err(fault(format!("`{}` names no resource", clip(line)))),
                }
            };
            let (values_of, radix) = match resource.trim() {
                "L3" => (&mut schemata.ways, 16),
                "MB" => (&mut schemata.bandwidth, 10),
                divided @ ("L3CODE" | "L3DATA") => {
                    let reason = format!(
                        "`{divided}` divides the last-level cache for code and data apart, which hither \
                         does not do (mount resctrl again without `-o cdp`)"
                    );
                    return Err(fault(reason));
                }
                _ => continue,
            };
            if values.trim() == "uninitialized" {
                continue;
            }
            for part in values.split(';') {
                let value = part.split_once('=').and_then(|(cache, value)| {
                    let cache = cache.trim().parse().ok()?;
                    Some((cache, u32::from_str_radix(value.trim(), radix).ok()?))
                });
                let (cache, value) =
                    value.ok_or_else(|| fault(format!("`{}` is not understood", clip(part))))?;
                values_of.insert(cache, value);
            }
        }
        Ok(schemata)
    }
}

/// The lines that the kernel takes, each with its end: it refuses a last one without.
impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |resource: &str, values: Vec<String>| match values.is_empty() {
            true => Ok(()),
            false => writeln!(f, "{resource}:{}", values.join(";")),
        };
        let ways = self.ways.iter();
        line(
            "L3",
            ways.map(|(id, mask)| format!("{id}={mask:x}")).collect(),
        )?;
        let bandwidth = self.bandwidth.iter();
        line(
            "MB",
            bandwidth.map(|(id, part)| format!("{id}={part}")).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_prints_is_read() {
        let text = "    MB:0= 50;1=100\n  SMBA:0=2048;1=2048\n    L3:0=00f;1=7ff\n    L2:0=ff\n";
        let read = Schemata::parse(text).unwrap();
        assert_eq!(read.ways, BTreeMap::from([(0, 0xf), (1, 0x7ff)]));
        assert_eq!(read.bandwidth, BTreeMap::from([(0, 50), (1, 100)]));
        assert_eq!(read.to_string(), "L3:0=f;1=7ff\nMB:0=50;1=100\n");
        assert_eq!(Schemata::parse(&read.to_string()), Ok(read));
        let none = Schemata::parse("L3:uninitialized\n").unwrap();
        assert_eq!((none.to_string().as_str(), none), ("", Schemata::default()));
    }

    #[test]
    fn what_it_does_not_print_is_refused() {
        for (bad, words) in [
            ("L3CODE:0=f\nL3DATA:0=f\n", "code and data apart"),
            ("L3:0=f\nL3DATA:0=f\n", "without `-o cdp`"),
            ("L3\n", "names no resource"),
            ("L3:0\n", "`0` is not understood"),
            ("L3:0=xyz\n", "`0=xyz`"),
            ("L3:0=1ffffffff\n", "not understood"),
            ("MB:0=-1\n", "`0=-1`"),
            ("L3:0=f;\n", "``"),
        ] {
            let fault = Schemata::parse(bad).unwrap_err();
            assert!(fault.reason.contains(words), "{bad:?}: {}", fault.reason);
        }
        assert_eq!(Schemata::parse("MB:0=1\nL3:a=1\n").unwrap_err().line, 2);
    }
}
