//! What a process tells of its mirrors: a text of one line for each file, which it writes anew whenever
//! something changes, so that it is there however the process ends.

use std::fmt;
use std::str::FromStr;

/// What became of one file in one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileReport {
    /// As the kernel names it.
    pub path: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Node of the process; none where it was not found out.
    pub node: Option<u32>,
    /// Bytes that this process copied.
    pub copied_bytes: u64,
    /// Bytes of copies that it maps now, or did when it ended.
    pub mapped_bytes: u64,
    /// Most bytes of copies that it mapped.
    pub most_bytes: u64,
    /// Bytes that it used again and again, and that were on its node already.
    pub local_bytes: u64,
    /// Time that it took to copy, in us.
    pub copy_us: u64,
    /// How often copies were given up.
    pub collapse_count: u64,
    /// Why: for the last time copies were given up, or why there are none or not all. Empty where all is well.
    pub reason: String,
}

/// What one process did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessReport {
    /// The kernel's number.
    pub pid: u32,
    /// Time that it looked and mapped, in us, without copying.
    pub look_us: u64,
    /// Its files.
    pub files: Vec<FileReport>,
}

/// Text in which tabs and ends of lines cannot be mistaken.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, true) => plain.push(match letters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                other => other.unwrap_or('\\'),
            }),
            _ => plain.push(letter),
        }
    }
    plain
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "process\t{}\t{}", self.pid, self.look_us)?;
        for file in &self.files {
            let node = file.node.map_or("-".to_owned(), |node| node.to_string());
            writeln!(
                f,
                "file\t{}\t{node}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                file.bytes,
                file.copied_bytes,
                file.mapped_bytes,
                file.most_bytes,
                file.local_bytes,
                file.copy_us,
                file.collapse_count,
                escaped(&file.path),
                escaped(&file.reason),
            )?;
        }
        Ok(())
    }
}

impl FromStr for ProcessReport {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |word: &str| word.parse::<u64>().map_err(|_| ());
        let mut lines = text.lines();
        let first: Vec<&str> = lines.next().ok_or(())?.split('\t').collect();
        let ["process", pid, look_us] = first[..] else {
            return Err(());
        };
        let mut report = Self {
            pid: pid.parse().map_err(|_| ())?,
            look_us: number(look_us)?,
            files: Vec::new(),
        };
        for line in lines {
            let words: Vec<&str> = line.split('\t').collect();
            let [
                "file",
                bytes,
                node,
                copied,
                mapped,
                most,
                local,
                copy_us,
                collapses,
                path,
                reason,
            ] = words[..]
            else {
                return Err(());
            };
            report.files.push(FileReport {
                path: unescaped(path),
                bytes: number(bytes)?,
                node: match node {
                    "-" => None,
                    node => Some(node.parse().map_err(|_| ())?),
                },
                copied_bytes: number(copied)?,
                mapped_bytes: number(mapped)?,
                most_bytes: number(most)?,
                local_bytes: number(local)?,
                copy_us: number(copy_us)?,
                collapse_count: number(collapses)?,
                reason: unescaped(reason),
            });
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_are_written() {
        let file = FileReport {
            path: "/tmp/a\tb\\n\nc".to_owned(),
            bytes: 7,
            node: Some(3),
            copied_bytes: 1,
            mapped_bytes: 2,
            most_bytes: 4,
            local_bytes: 5,
            copy_us: 6,
            collapse_count: 8,
            reason: String::new(),
        };
        let report = ProcessReport {
            pid: 12,
            look_us: 34,
            files: vec![
                file.clone(),
                FileReport {
                    node: None,
                    reason: "it is open for writing".to_owned(),
                    ..file
                },
            ],
        };
        assert_eq!(report.to_string().parse(), Ok(report));
        for bad in [
            "",
            "process\t1",
            "process\t1\t2\nfile\t3\n",
            "process\t-1\t2",
        ] {
            assert!(bad.parse::<ProcessReport>().is_err(), "{bad}");
        }
    }
}
