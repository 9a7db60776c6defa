//! Options of the plugin: `-plugin libhither_plugin.so,machine=FILE,opium=FILE,mode=model,skew_ns=10000`.

use std::path::PathBuf;

/// What the plugin does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The memory model and the virtual clock.
    Model,
    /// Only resolves the physical address of every access: the yardstick of the benchmark.
    Resolve,
}

/// Parsed options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Machine file, scaled to the vCPUs and to the guest's memory.
    pub machine: PathBuf,
    /// The Opium device's memory; without it nothing is reported.
    pub opium: Option<PathBuf>,
    /// The memory of each node by position, where QEMU shares it: a copy engine needs it.
    pub memory: Vec<PathBuf>,
    /// What to do.
    pub mode: Mode,
    /// Largest skew between running vCPUs.
    pub skew_ns: u64,
}

impl Options {
    /// Parses `key=value` words.
    ///
    /// # Errors
    /// A sentence that names the word and says what is allowed.
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut machine = None;
        let mut options = Self {
            machine: PathBuf::new(),
            opium: None,
            memory: Vec::new(),
            mode: Mode::Model,
            skew_ns: 10_000,
        };
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("`{word}` is not key=value"))?;
            match (key, value) {
                ("machine", path) => machine = Some(PathBuf::from(path)),
                ("opium", path) => options.opium = Some(PathBuf::from(path)),
                ("memory", path) => options.memory.push(PathBuf::from(path)),
                ("mode", "model") => options.mode = Mode::Model,
                ("mode", "resolve") => options.mode = Mode::Resolve,
                ("mode", other) => return Err(format!("mode={other}: use model or resolve")),
                ("skew_ns", text) => {
                    options.skew_ns = (text.parse().ok())
                        .filter(|ns| (1_000..=1_000_000).contains(ns))
                        .ok_or_else(|| format!("skew_ns={text}: use 1000 to 1000000"))?;
                }
                _ => {
                    return Err(format!(
                        "unknown option `{key}`: use machine, opium, memory, mode, skew_ns"
                    ));
                }
            }
        }
        options.machine = machine.ok_or("option machine=FILE is missing")?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options() {
        let words = "machine=m.toml,opium=/dev/shm/x,mode=resolve,skew_ns=5000";
        let options = Options::parse(words.split(',')).unwrap();
        assert_eq!(options.machine, PathBuf::from("m.toml"));
        assert_eq!(options.opium, Some(PathBuf::from("/dev/shm/x")));
        assert_eq!((options.mode, options.skew_ns), (Mode::Resolve, 5000));
    }

    #[test]
    fn faults_are_named() {
        for (words, expected) in [
            ("opium=x", "machine=FILE is missing"),
            ("machine=m,mode=fast", "mode=fast"),
            ("machine=m,skew_ns=1", "skew_ns=1"),
            ("machine=m,colour=red", "colour"),
            ("machine", "not key=value"),
        ] {
            let error = Options::parse(words.split(',')).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
