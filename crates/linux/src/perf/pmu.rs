//! Events as sysfs describes them:
//! `/sys/bus/event_source/devices/NAME/{type,format,events,cpus,cpumask,caps}`.
//!
//! An event is a list of terms (`event=0xcd,umask=0x1,ldlat=3`); each term is a field of the
//! attribute, and a file of its name in `format` says which bits of which word
//! (`config1:0-15`).

use crate::error::{Error, Fault, Result};
use crate::parse::{self, Parsed, clip};
use crate::root::Root;
use hither_core::set::CpuSet;

const SOURCES: &str = "sys/bus/event_source/devices";

/// A word of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `config`.
    Config,
    /// `config1`.
    Config1,
    /// `config2`.
    Config2,
}

/// Where the value of a term goes: bits of one word, the value's lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The word.
    pub word: Word,
    /// First and last bit, both included, of each part.
    pub parts: Vec<(u32, u32)>,
}

/// An event, ready to be put into an attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCode {
    /// `config`, `config1`, `config2`.
    pub words: [u64; 3],
}

/// An event source.
#[derive(Clone, Debug)]
pub struct Pmu {
    root: Root,
    /// Its name.
    pub name: String,
    /// The number that stands for it in attributes.
    pub kind: u32,
    /// The CPUs that it counts; `None` where sysfs does not say, which means all.
    pub cpus: Option<CpuSet>,
    /// Of a source outside the cores: the CPUs on which it is read, one for each package or die.
    /// `None`: it is a core's.
    pub readers: Option<CpuSet>,
}

/// Names of all sources, sorted; none without perf.
pub fn names(root: &Root) -> Result<Vec<String>> {
    root.names(SOURCES)
}

impl Pmu {
    /// Reads a source; `None` where the machine has it not.
    pub fn read(root: &Root, name: &str) -> Result<Option<Self>> {
        let kind = root.parse_if_any(&format!("{SOURCES}/{name}/type"), parse::number)?;
        let Some(kind) = kind else { return Ok(None) };
        let kind = u32::try_from(kind).map_err(|_| {
            let path = root.path(&format!("{SOURCES}/{name}/type"));
            Error::new(
                path,
                format!("{kind} is no type of events"),
                root.tree_remedy(),
            )
        })?;
        // Core sources of hybrid machines have `cpus`; others, with one CPU for many, `cpumask`.
        let cpus = root.parse_if_any(&format!("{SOURCES}/{name}/cpus"), parse::list)?;
        let readers = root.parse_if_any(&format!("{SOURCES}/{name}/cpumask"), parse::list)?;
        Ok(Some(Self {
            root: root.clone(),
            name: name.to_owned(),
            kind,
            cpus,
            readers,
        }))
    }

    /// A capability (`caps/max_precise`), where it has one of this name.
    pub fn capability(&self, name: &str) -> Result<Option<String>> {
        let text = self
            .root
            .text_if_any(&self.below(&format!("caps/{name}")))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }

    /// Bytes that one count of a named event stands for, by its scale and unit; `None` where sysfs
    /// tells neither, or the unit is none of bytes.
    pub fn bytes_of(&self, event: &str) -> Result<Option<f64>> {
        let file = self.below(&format!("events/{event}"));
        let each = self.root.parse_if_any(&format!("{file}.scale"), scale)?;
        let unit = self.root.text_if_any(&format!("{file}.unit"))?;
        let bytes = unit.as_deref().and_then(unit_bytes);
        Ok(each.zip(bytes).map(|(each, bytes)| each * bytes))
    }

    /// Has it an event of this name?
    #[must_use]
    pub fn has_event(&self, event: &str) -> bool {
        self.root.has(&self.below(&format!("events/{event}")))
    }

    /// Has it a term of this name?
    #[must_use]
    pub fn has_term(&self, term: &str) -> bool {
        self.root.has(&self.below(&format!("format/{term}")))
    }

    /// A named event, with values of our own for some of its terms.
    pub fn event(&self, event: &str, own: &[(&str, u64)]) -> Result<EventCode> {
        let below = self.below(&format!("events/{event}"));
        let mut terms = self.root.parse(&below, event_terms)?;
        for &(name, value) in own {
            match terms.iter_mut().find(|term| term.0 == name) {
                Some(term) => term.1 = Some(value),
                None => terms.push((name.to_owned(), Some(value))),
            }
        }
        let mut code = EventCode::default();
        for (name, value) in &terms {
            let Some(value) = *value else {
                return Err(Error::new(
                    self.root.path(&below),
                    format!("the term `{name}` has no value and wants one"),
                    self.root.tree_remedy(),
                ));
            };
            self.set(&mut code, name, value)?;
        }
        Ok(code)
    }

    /// An event made of terms as sysfs writes them: `event=0xcd,umask=0x1`.
    pub fn event_of_text(&self, text: &str) -> Result<EventCode> {
        let place = self.root.path(&self.below("format"));
        let fail = |fault: Fault| fault.at(&place, "check the event's terms");
        let mut code = EventCode::default();
        for (name, value) in event_terms(text).map_err(fail)? {
            let value = value.ok_or_else(|| {
                fail(Fault::new(
                    1,
                    format!("the term `{name}` has no value and wants one"),
                ))
            })?;
            self.set(&mut code, &name, value)?;
        }
        Ok(code)
    }

    /// An event made of terms alone.
    pub fn event_of(&self, terms: &[(&str, u64)]) -> Result<EventCode> {
        let mut code = EventCode::default();
        for &(name, value) in terms {
            self.set(&mut code, name, value)?;
        }
        Ok(code)
    }

    fn below(&self, what: &str) -> String {
        format!("{SOURCES}/{}/{what}", self.name)
    }

    fn set(&self, code: &mut EventCode, term: &str, value: u64) -> Result<()> {
        // Some events name a word itself.
        let whole = match term {
            "config" => Some(0),
            "config1" => Some(1),
            "config2" => Some(2),
            _ => None,
        };
        if let Some(index) = whole {
            code.words[index] |= value;
            return Ok(());
        }
        let below = self.below(&format!("format/{term}"));
        let format = self.root.parse(&below, format_bits)?;
        let bits = format.place(value).ok_or_else(|| {
            Error::new(
                self.root.path(&below),
                format!("the value {value:#x} has more bits than the field"),
                self.root.tree_remedy(),
            )
        })?;
        code.words[format.word as usize] |= bits;
        Ok(())
    }
}

impl Format {
    /// The value in its place; `None` where it does not fit.
    #[must_use]
    pub fn place(&self, value: u64) -> Option<u64> {
        let (mut left, mut word) = (value, 0);
        for &(first, last) in &self.parts {
            let mask = u64::MAX >> (63 - (last - first));
            word |= (left & mask) << first;
            left = left.checked_shr(last - first + 1).unwrap_or(0);
        }
        (left == 0).then_some(word)
    }
}

/// The terms of an event, each with its value; `None` where sysfs leaves the value open (`?`).
///
/// ```text
/// event=0xcd,umask=0x1,ldlat=3
/// ```
pub fn event_terms(text: &str) -> Parsed<Vec<(String, Option<u64>)>> {
    let term = |term: &str| {
        let fail = || Fault::new(1, format!("`{}` is no term of an event", clip(term)));
        let (name, value) = match term.split_once('=') {
            None => (term, Some(1)),
            Some((name, "?")) => (name, None),
            Some((name, value)) => (name, Some(number(value).ok_or_else(fail)?)),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        // A name becomes part of a path.
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
            return Err(fail());
        }
        Ok((name.to_owned(), value))
    };
    text.trim().split(',').map(term).collect()
}

/// Where a term's value goes.
///
/// ```text
/// config:0-7,32-35
/// ```
pub fn format_bits(text: &str) -> Parsed<Format> {
    let text = text.trim();
    let fail = || {
        Fault::new(
            1,
            format!("`{}` is no place like `config1:0-15`", clip(text)),
        )
    };
    let (word, parts) = text.split_once(':').ok_or_else(fail)?;
    let word = match word {
        "config" => Word::Config,
        "config1" => Word::Config1,
        "config2" => Word::Config2,
        _ => return Err(fail()),
    };
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (first <= last && last < 64).then_some((first, last))
    };
    let parts: Option<Vec<_>> = parts.split(',').map(part).collect();
    Ok(Format {
        word,
        parts: parts.ok_or_else(fail)?,
    })
}

/// What one count of an event stands for, in its unit.
///
/// ```text
/// 6.103515625e-5
/// ```
pub fn scale(text: &str) -> Parsed<f64> {
    let word = text.trim();
    let scale = word.parse().ok();
    scale
        .filter(|scale: &f64| scale.is_finite() && *scale > 0.0)
        .ok_or_else(|| Fault::new(1, format!("`{}` is no scale", clip(word))))
}

/// Bytes of a unit, as kernels and perf's tables write it; `None`: it is none of bytes.
#[must_use]
pub fn unit_bytes(unit: &str) -> Option<f64> {
    match unit.trim() {
        "Bytes" | "B" => Some(1.0),
        "KB" => Some(1e3),
        "MB" => Some(1e6),
        "GB" => Some(1e9),
        "KiB" => Some(1024.0),
        "MiB" => Some(1_048_576.0),
        "GiB" => Some(1_073_741_824.0),
        _ => None,
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with the files that Intel's cores have.
    fn intel() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("cpu/type", "4\n"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("cpu/events/mem-loads-aux", "event=0x03,umask=0x82\n"),
            ("cpu/events/open", "event=0xcd,ldlat=?\n"),
            ("cpu/events/bad", "event=0xcd,ldlat=0x10000\n"),
            ("cpu/format/event", "config:0-7\n"),
            ("cpu/format/umask", "config:8-15\n"),
            ("cpu/format/ldlat", "config1:0-15\n"),
            ("cpu/caps/max_precise", "3\n"),
            ("uncore_imc_0/type", "14\n"),
            ("uncore_imc_0/cpumask", "0,24\n"),
            (
                "uncore_imc_0/events/cas_count_read",
                "event=0x04,umask=0x03\n",
            ),
            (
                "uncore_imc_0/events/cas_count_read.scale",
                "6.103515625e-5\n",
            ),
            ("uncore_imc_0/events/cas_count_read.unit", "MiB\n"),
            ("uncore_imc_0/events/bad", "event=0x04\n"),
            ("uncore_imc_0/events/bad.scale", "inf\n"),
            ("wide/type", "99999999999\n"),
            ("cpu_core/type", "4\n"),
            ("cpu_core/cpus", "0-7\n"),
        ] {
            let path = folder.path().join(SOURCES).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn an_event_is_put_together_from_its_files() {
        let (_folder, root) = intel();
        let pmu = Pmu::read(&root, "cpu").unwrap().unwrap();
        assert_eq!((pmu.kind, &pmu.cpus), (4, &None));
        let words = |event, own: &[_]| pmu.event(event, own).unwrap().words;
        assert_eq!(words("mem-loads", &[]), [0x1cd, 3, 0]);
        assert_eq!(words("mem-loads", &[("ldlat", 30)]), [0x1cd, 30, 0]);
        assert_eq!(words("mem-loads-aux", &[]), [0x8203, 0, 0]);
        assert_eq!(words("open", &[("ldlat", 5)]), [0xcd, 5, 0]);
        assert!(pmu.has_event("mem-loads") && !pmu.has_event("mem-stores"));
        assert!(pmu.has_term("ldlat") && !pmu.has_term("cnt_ctl"));
        let own = pmu.event_of(&[("umask", 2), ("config1", 9)]).unwrap();
        assert_eq!(own.words, [0x200, 9, 0]);
    }

    #[test]
    fn controllers_have_readers_scale_and_unit() {
        let (_folder, root) = intel();
        assert!(names(&root).unwrap().contains(&"uncore_imc_0".to_owned()));
        let imc = Pmu::read(&root, "uncore_imc_0").unwrap().unwrap();
        assert_eq!(imc.readers.as_ref().unwrap().to_string(), "0,24");
        assert_eq!(imc.bytes_of("cas_count_read").unwrap(), Some(64.0));
        assert_eq!(imc.bytes_of("clockticks").unwrap(), None);
        let error = imc.bytes_of("bad").unwrap_err().to_string();
        assert!(error.contains("bad.scale:1: `inf` is no scale"), "{error}");
        let cpu = Pmu::read(&root, "cpu").unwrap().unwrap();
        assert_eq!(
            (&cpu.readers, cpu.capability("none").unwrap()),
            (&None, None)
        );
        assert_eq!(cpu.capability("max_precise").unwrap().as_deref(), Some("3"));
        assert_eq!(unit_bytes("Joules"), None);
    }

    #[test]
    fn terms_of_a_table_are_put_together_too() {
        let (_folder, root) = intel();
        let pmu = Pmu::read(&root, "cpu").unwrap().unwrap();
        let code = pmu.event_of_text("event=0xd3,umask=0x01").unwrap();
        assert_eq!(code.words, [0x1d3, 0, 0]);
        for (terms, why) in [
            ("event=0xd3,edge=1", "format/edge: there is no such file"),
            ("event=?", "`event` has no value"),
            ("event=0x1d3", "0x1d3 has more bits"),
            ("event=", "`event=` is no term"),
        ] {
            let error = pmu.event_of_text(terms).unwrap_err().to_string();
            assert!(error.contains(why), "{terms}: {error}");
        }
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let (_folder, root) = intel();
        let pmu = Pmu::read(&root, "cpu").unwrap().unwrap();
        let error = |event| pmu.event(event, &[]).unwrap_err().to_string();
        assert!(error("open").contains("`ldlat` has no value"));
        assert!(error("bad").contains("0x10000 has more bits"));
        assert!(error("none").contains("events/none: there is no such file"));
        assert!(Pmu::read(&root, "ibs_op").unwrap().is_none());
        let wide = Pmu::read(&root, "wide").unwrap_err().to_string();
        assert!(wide.contains("is no type of events"), "{wide}");
        let core = Pmu::read(&root, "cpu_core").unwrap().unwrap();
        assert_eq!(core.cpus.unwrap().to_string(), "0-7");
    }

    #[test]
    fn values_are_split_over_parts() {
        let format = format_bits("config:0-7,32-35").unwrap();
        assert_eq!(format.place(0x1fe), Some(0xfe | 1 << 32));
        assert_eq!(format.place(0x1000), None);
        assert_eq!(format_bits("config2:5\n").unwrap().place(1), Some(32));
        assert_eq!(
            format_bits("config1:0-63").unwrap().place(u64::MAX),
            Some(u64::MAX)
        );
        for bad in [
            "",
            "config",
            "config:",
            "config3:0",
            "config:64",
            "config:5-4",
        ] {
            assert!(format_bits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn terms_without_value_are_one() {
        let terms = event_terms("event=0x10,edge,x=?\n").unwrap();
        let find = |name: &str| terms.iter().find(|term| term.0 == name).unwrap().1;
        assert_eq!(
            [find("event"), find("edge"), find("x")],
            [Some(16), Some(1), None]
        );
        for bad in ["", "a=b", "a,,b", "../x=1", "a/b", "=1", "event=0xg"] {
            assert!(event_terms(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text: String) {
            let _ = event_terms(&text);
            let _ = format_bits(&text);
            let _ = scale(&text);
            let _ = unit_bytes(&text);
        }

        #[test]
        fn a_value_that_fits_keeps_its_bits(first in 0u32..60, bits in 1u32..5, value: u64) {
            let format = format_bits(&format!("config:{first}-{}", first + bits - 1)).unwrap();
            let value = value & ((1 << bits) - 1);
            proptest::prop_assert_eq!(format.place(value), Some(value << first));
        }
    }
}
