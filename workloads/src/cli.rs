//! Command line and report of the programs: declared options, one parser, one way to fail.
//!
//! A program declares its options as data, so that `--help` and the documentation come from the
//! same table as the parser. No option is read twice and none is ignored: a word that fits
//! nothing is refused with the list of what there is. Status 0 is success, 1 a failure of the
//! machine (no memory), 2 a wrong command line.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::ops::RangeInclusive;
use std::process::ExitCode;

/// One program: what it is called, what it takes, what it does.
pub struct Workload {
    /// Name of the binary.
    pub name: &'static str,
    /// One paragraph for `--help`.
    pub about: &'static str,
    /// The word without dashes, where it takes one.
    pub operand: Option<Operand>,
    /// Its options.
    pub options: &'static [Opt],
    /// The work.
    pub run: fn(&Args) -> Result<WorkloadReport, Failure>,
}

/// The one word without dashes that a program takes.
pub struct Operand {
    /// Name in the usage line, in capitals.
    pub name: &'static str,
    /// The words it may be, each with its meaning.
    pub choices: &'static [(&'static str, &'static str)],
    /// The word where none is given; `None` makes it required.
    pub default: Option<&'static str>,
}

/// One option.
pub struct Opt {
    /// Name without the dashes.
    pub name: &'static str,
    /// Name of its value in capitals; `None` for a flag.
    pub value: Option<&'static str>,
    /// Default as `--help` shows it; a number unless the program computes it. Empty for none.
    pub default: &'static str,
    /// Meaning, one line.
    pub help: &'static str,
}

/// `--threads`, as all programs with threads have it.
pub const THREADS: Opt = Opt {
    name: "threads",
    value: Some("T"),
    default: "one per CPU",
    help: "threads, 1 to 1024",
};
/// `--steps`, of programs that follow something through time.
pub const STEPS: Opt = Opt {
    name: "steps",
    value: Some("N"),
    default: "1",
    help: "steps of time",
};
/// `--seed`, of programs whose data are drawn.
pub const SEED: Opt = Opt {
    name: "seed",
    value: Some("N"),
    default: "1",
    help: "what the data are drawn from",
};
/// `--pin`, the default, so that a script can say it.
pub const PIN: Opt = Opt {
    name: "pin",
    value: None,
    default: "",
    help: "thread i stays on the i-th CPU that the process may use (default)",
};
/// `--no-pin`.
pub const NO_PIN: Opt = Opt {
    name: "no-pin",
    value: None,
    default: "",
    help: "the kernel's scheduler places the threads",
};

/// Why a program stops without a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line is wrong: status 2.
    Usage(String),
    /// The machine cannot do it: status 1.
    Machine(String),
}

/// A parsed command line.
#[derive(Debug)]
pub struct Args {
    operand: String,
    given: Vec<(&'static str, String)>,
    defaults: Vec<(&'static str, &'static str)>,
}

/// What a program prints: a title and `key: value` lines.
#[derive(Debug, Default)]
pub struct WorkloadReport {
    title: String,
    lines: Vec<(&'static str, String)>,
}

impl Workload {
    /// Parses words (without the program's own name). `Ok(None)` where help was asked for.
    ///
    /// # Errors
    /// [`Failure::Usage`] with what is wrong and what there is instead.
    pub fn parse(&self, words: &[String]) -> Result<Option<Args>, Failure> {
        let mut operand = None;
        let mut given: Vec<(&'static str, String)> = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                return Ok(None);
            }
            let Some(option) = word.strip_prefix("--") else {
                operand = Some(self.take_operand(operand.as_deref(), word)?);
                continue;
            };
            let (name, attached) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let opt = self.find_option(name)?;
            if given.iter().any(|(seen, _)| *seen == opt.name) {
                return Err(usage(format!("--{name} is given twice: give it once")));
            }
            let value = match (opt.value, attached) {
                (None, None) => String::new(),
                (None, Some(value)) => {
                    return Err(usage(format!(
                        "--{name} takes no value, but `{value}` is given"
                    )));
                }
                (Some(_), Some(value)) => value,
                (Some(shape), None) => words.next().cloned().ok_or_else(|| {
                    usage(format!(
                        "--{name} needs a value: --{name} {shape} ({})",
                        opt.help
                    ))
                })?,
            };
            given.push((opt.name, value));
        }
        let operand = self.finish_operand(operand)?;
        let defaults = self
            .options
            .iter()
            .map(|opt| (opt.name, opt.default))
            .collect();
        Ok(Some(Args {
            operand,
            given,
            defaults,
        }))
    }

    fn find_option(&self, name: &str) -> Result<&'static Opt, Failure> {
        self.options
            .iter()
            .find(|opt| opt.name == name)
            .ok_or_else(|| {
                let known: Vec<_> = self
                    .options
                    .iter()
                    .map(|opt| format!("--{}", opt.name))
                    .collect();
                usage(format!(
                    "there is no option --{name}; there are {}, --help",
                    known.join(", ")
                ))
            })
    }

    fn take_operand(&self, seen: Option<&str>, word: &str) -> Result<String, Failure> {
        let Some(operand) = &self.operand else {
            return Err(usage(format!(
                "`{word}` is not an option: options begin with --"
            )));
        };
        if let Some(seen) = seen {
            return Err(usage(format!(
                "{} is given twice: `{seen}` and `{word}`",
                operand.name
            )));
        }
        if !operand.choices.iter().any(|(choice, _)| *choice == word) {
            return Err(usage(format!(
                "`{word}` is no {}: it is {}",
                operand.name,
                operand.list()
            )));
        }
        Ok(word.to_owned())
    }

    fn finish_operand(&self, operand: Option<String>) -> Result<String, Failure> {
        match (&self.operand, operand) {
            (None, _) => Ok(String::new()),
            (Some(_), Some(word)) => Ok(word),
            (Some(spec), None) => spec
                .default
                .map(str::to_owned)
                .ok_or_else(|| usage(format!("{} is missing: it is {}", spec.name, spec.list()))),
        }
    }

    /// The text of `--help`.
    #[must_use]
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage: {}", self.about, self.name);
        if let Some(operand) = &self.operand {
            let (open, close) = if operand.default.is_some() {
                ("[", "]")
            } else {
                ("", "")
            };
            let _ = write!(text, " {open}{}{close}", operand.name);
        }
        text.push_str(" [options]\n");
        if let Some(operand) = &self.operand {
            let _ = write!(text, "\n{}:\n", operand.name);
            for (choice, meaning) in operand.choices {
                let mark = if operand.default == Some(choice) {
                    " [default]"
                } else {
                    ""
                };
                let _ = writeln!(text, "  {choice:<18} {meaning}{mark}");
            }
        }
        text.push_str("\nOptions:\n");
        for opt in self.options {
            let name = format!("--{} {}", opt.name, opt.value.unwrap_or(""));
            let default = match opt.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let _ = writeln!(text, "  {:<18} {}{default}", name.trim_end(), opt.help);
        }
        let _ = writeln!(text, "  {:<18} this text", "--help");
        text
    }
}

impl Operand {
    fn list(&self) -> String {
        let words: Vec<_> = self.choices.iter().map(|(choice, _)| *choice).collect();
        words.join(" | ")
    }
}

impl Args {
    /// The word without dashes, or its default.
    #[must_use]
    pub fn operand(&self) -> &str {
        &self.operand
    }

    /// Is this flag, or this option, on the command line?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The value of an option as given.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given
            .iter()
            .find(|(given, _)| *given == name)
            .map(|(_, value)| value.as_str())
    }

    /// A number within `range`, `None` where the option is not given.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no such number.
    pub fn optional(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Failure> {
        self.text(name)
            .map(|text| number(name, text, &range))
            .transpose()
    }

    /// A number within `range`, or the option's declared default.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no such number.
    ///
    /// # Panics
    /// Where the option declares no default: a mistake of the program.
    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<u64, Failure> {
        if let Some(value) = self.optional(name, range.clone())? {
            return Ok(value);
        }
        let default = self.defaults.iter().find(|(known, _)| *known == name);
        let (_, default) = default.expect("the program declares this option");
        number(name, default, &range)
    }

    /// A list of numbers within `range`, separated by commas; empty where not given.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no such list.
    pub fn list(&self, name: &str, range: &RangeInclusive<u64>) -> Result<Vec<u64>, Failure> {
        self.text(name).map_or(Ok(Vec::new()), |text| {
            text.split(',')
                .map(|part| number(name, part, range))
                .collect()
        })
    }
}

fn number(name: &str, text: &str, range: &RangeInclusive<u64>) -> Result<u64, Failure> {
    let (low, high) = (range.start(), range.end());
    let fault = || {
        usage(format!(
            "--{name}: `{text}` is no whole number from {low} to {high}"
        ))
    };
    let value = text.parse::<u64>().map_err(|_| fault())?;
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(fault())
    }
}

/// A wrong command line.
#[must_use]
pub fn usage(message: String) -> Failure {
    Failure::Usage(message)
}

impl WorkloadReport {
    /// A report with its title line.
    #[must_use]
    pub fn new(title: String) -> Self {
        Self {
            title,
            lines: Vec::new(),
        }
    }

    /// Adds a line.
    #[must_use]
    pub fn line(mut self, key: &'static str, value: impl ToString) -> Self {
        self.lines.push((key, value.to_string()));
        self
    }

    /// Adds the measured time and the checksum, as every program ends.
    #[must_use]
    pub fn finish(self, seconds: f64, checksum: u64) -> Self {
        self.line("seconds", format!("{seconds:.6}"))
            .line("checksum", format!("{checksum:#018x}"))
    }

    /// The value of a line.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.lines
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| value.as_str())
    }

    /// The text that is printed.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for (key, value) in &self.lines {
            let _ = writeln!(text, "{key}: {value}");
        }
        text
    }
}

/// Runs a program on this process's command line.
#[must_use]
pub fn main(program: &Workload) -> ExitCode {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let outcome = match program.parse(&words) {
        Ok(None) => return print(&program.help()),
        Ok(Some(args)) => (program.run)(&args),
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(report) => print(&report.text()),
        Err(Failure::Usage(message)) => {
            eprintln!("{0}: {message}\nTry `{0} --help`.", program.name);
            ExitCode::from(2)
        }
        Err(Failure::Machine(message)) => {
            eprintln!("{}: {message}", program.name);
            ExitCode::FAILURE
        }
    }
}

/// Prints before the report what cannot wait for it.
pub fn tell(text: &str) {
    print(text);
}

/// Prints to standard output; a reader that went away is no failure.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Workload = Workload {
        name: "sample",
        about: "A sample.",
        operand: Some(Operand {
            name: "MODE",
            choices: &[("one", "first"), ("two", "second")],
            default: None,
        }),
        options: &[
            Opt {
                name: "mb",
                value: Some("MB"),
                default: "64",
                help: "size",
            },
            Opt {
                name: "nodes",
                value: Some("LIST"),
                default: "",
                help: "nodes",
            },
            Opt {
                name: "flag",
                value: None,
                default: "",
                help: "a flag",
            },
        ],
        run: |_| Ok(WorkloadReport::default()),
    };

    fn parse(words: &[&str]) -> Result<Option<Args>, Failure> {
        SAMPLE.parse(
            &words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn reads_operand_values_flags_and_defaults() {
        let args = parse(&["--mb=8", "two", "--flag", "--nodes", "0,2"])
            .unwrap()
            .unwrap();
        assert_eq!(args.operand(), "two");
        assert_eq!(args.number("mb", 1..=10), Ok(8));
        assert!(args.has("flag"));
        assert_eq!(args.list("nodes", &(0..=7)), Ok(vec![0, 2]));
        let args = parse(&["one"]).unwrap().unwrap();
        assert_eq!(args.number("mb", 1..=100), Ok(64));
        assert!(!args.has("flag"));
        assert_eq!(args.optional("nodes", 0..=7), Ok(None));
    }

    #[test]
    fn refuses_wrong_lines_with_the_word_and_the_remedy() {
        for (words, part) in [
            (&["three"][..], "it is one | two"),
            (&[], "MODE is missing"),
            (&["one", "two"], "given twice"),
            (
                &["one", "--bm", "3"],
                "there are --mb, --nodes, --flag, --help",
            ),
            (&["one", "--mb"], "needs a value"),
            (&["one", "--mb", "1", "--mb", "2"], "given twice"),
            (&["one", "--flag=3"], "takes no value"),
        ] {
            match parse(words) {
                Err(Failure::Usage(message)) => assert!(message.contains(part), "{message}"),
                other => panic!("{words:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn refuses_numbers_outside_their_range() {
        for text in ["0", "11", "-1", "x", "", "1.5", "99999999999999999999"] {
            let args = parse(&["one", "--mb", text]).unwrap().unwrap();
            assert!(args.number("mb", 1..=10).is_err(), "`{text}` was accepted");
        }
    }

    #[test]
    fn help_names_every_option_and_is_asked_for_anywhere() {
        assert!(parse(&["nonsense-free", "--help"]).is_err());
        assert!(parse(&["one", "--help"]).unwrap().is_none());
        let help = SAMPLE.help();
        for part in [
            "--mb MB",
            "[default: 64]",
            "--flag",
            "two",
            "Usage: sample MODE",
        ] {
            assert!(help.contains(part), "{part} is not in\n{help}");
        }
    }
}
