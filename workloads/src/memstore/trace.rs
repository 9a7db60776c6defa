//! Load traces: how much of the data is in use, and how many requests come, by time.
//!
//! Text, a line for each change: `second,active_mb,requests_per_second`. Seconds ascend from 0; 0 requests
//! mean as many as can be; the last line has the second at which the trace ends, and nothing else. Lines
//! that begin with `#` are comments.

/// Most lines, and the latest second.
const MOST: u64 = 1 << 16;

/// What holds from a second on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// From this second on.
    pub second: u64,
    /// Data in use, in MiB.
    pub active_mb: u64,
    /// Requests a second of all clients; 0 for as many as can be.
    pub requests: u64,
}

/// Loads in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    loads: Vec<Load>,
    seconds: u64,
}

impl Trace {
    /// One load for so many seconds.
    #[must_use]
    pub fn steady(load: Load, seconds: u64) -> Self {
        Self {
            loads: vec![load],
            seconds,
        }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// The line that is wrong, and what should stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut loads: Vec<Load> = Vec::new();
        let mut end = None;
        for (line, number) in text.lines().zip(1u64..) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fault = |what: &str| {
                format!(
                    "line {number}, `{line}`: {what}; write second,active_mb,requests_per_second, and \
                     the second of the end alone on the last line"
                )
            };
            if end.is_some() {
                return Err(fault("it follows the end"));
            }
            let words: Result<Vec<u64>, _> =
                line.split(',').map(|word| word.trim().parse()).collect();
            let words = words.map_err(|_| fault("it has a word that is no whole number"))?;
            let second = words[0];
            let is_next = match loads.last() {
                None => second == 0,
                Some(last) => second > last.second,
            };
            if !is_next || second > MOST {
                return Err(fault("seconds ascend from 0 to 65536 at most"));
            }
            match words[..] {
                [_] if !loads.is_empty() => end = Some(second),
                [_, active_mb, requests] if active_mb > 0 => loads.push(Load {
                    second,
                    active_mb,
                    requests,
                }),
                _ => return Err(fault("it has not these three numbers, or no data in use")),
            }
        }
        match end {
            Some(seconds) => Ok(Self { loads, seconds }),
            None => Err("the last line must be the second of the end, alone".to_owned()),
        }
    }

    /// How long it lasts.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// What holds at a second.
    #[must_use]
    pub fn at(&self, second: u64) -> Load {
        let after = self.loads.partition_point(|load| load.second <= second);
        self.loads[after.saturating_sub(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_hold_until_the_next() {
        let trace = Trace::parse("# a comment\n\n0,64,0\n 5, 128 ,1000\n9\n").unwrap();
        assert_eq!(trace.seconds(), 9);
        assert_eq!((trace.at(4).active_mb, trace.at(4).requests), (64, 0));
        assert_eq!((trace.at(5).active_mb, trace.at(8).requests), (128, 1000));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, part) in [
            ("", "last line"),
            ("0,64,0\n", "last line"),
            ("9\n", "seconds ascend"),
            ("1,64,0\n", "seconds ascend"),
            ("0,64,0\n0,64,0\n", "line 2"),
            ("0,64,0\n5,x,0\n", "no whole number"),
            ("0,64\n", "three numbers"),
            ("0,0,0\n", "no data in use"),
            ("0,64,0\n5\n6\n", "follows the end"),
            ("0,64,0\n99999999\n", "65536"),
        ] {
            let error = Trace::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_traces_that_come_along_can_be_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            Trace::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            count += 1;
        }
        assert_eq!(count, 4);
    }
}
