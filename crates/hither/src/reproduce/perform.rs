//! Runs experiments and keeps what they give.

use crate::print;
use anyhow::{Context, bail, ensure};
use hither_core::foreign::Foreign;
use hither_lab::reproduce::kept::{self, KeptResult};
use hither_lab::reproduce::{Experiment, read};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a reason of a failure has at most.
const MOST_REASON: usize = 300;

/// Where the commands' files are.
pub struct Place {
    programs: String,
    scripts: String,
}

impl Place {
    /// Beside this program, unless said otherwise.
    ///
    /// # Errors
    /// Folders that are not there, or whose names a shell would take apart.
    pub fn find(programs: Option<&Path>, scripts: &Path) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("asking for the path of hither itself")?;
        let programs = match programs {
            Some(folder) => folder.to_owned(),
            None => own.parent().map(Path::to_owned).unwrap_or_default(),
        };
        Ok(Self {
            programs: absolute("--programs", &programs)?,
            // Without a checkout there are none; an experiment that needs them says so.
            scripts: match scripts.is_dir() {
                true => absolute("--scripts", scripts)?,
                false => scripts.shown().to_string(),
            },
        })
    }
}

fn absolute(option: &str, folder: &Path) -> anyhow::Result<String> {
    let path = std::fs::canonicalize(folder).with_context(|| {
        format!(
            "{option} {}: give it a folder that is there",
            folder.shown()
        )
    })?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    match path.to_str() {
        Some(text) if text.chars().all(is_plain) => Ok(text.to_owned()),
        _ => bail!(
            "{option} {}: its path goes into scripts of a shell; use one of letters, digits and /._-+",
            path.shown()
        ),
    }
}

/// The commit of the checkout in the present folder, with a mark where code was changed since; the version where
/// there is no checkout. Documents do not count: results are kept among them.
pub fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .args(words)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return format!("hither {}", env!("CARGO_PKG_VERSION"));
    };
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/",
        ":(exclude,top)docs",
        ":(exclude,top)*.md",
    ]);
    match changes.as_deref() {
        Some("") => commit,
        _ => format!("{commit} with changes"),
    }
}

/// Runs one after another.
pub struct Performer<'a> {
    place: Place,
    results: &'a Path,
    commit: &'a str,
}

impl<'a> Performer<'a> {
    pub fn new(place: Place, results: &'a Path, commit: &'a str) -> Self {
        Self {
            place,
            results,
            commit,
        }
    }

    /// Runs what fits into the budget, by what each is estimated to take and by what has been used; tells how many
    /// failed.
    ///
    /// # Errors
    /// Results cannot be kept, or an experiment was ended by a signal: the others would be, too.
    pub fn run_all(&self, plan: &[&Experiment], budget: Option<Duration>) -> anyhow::Result<usize> {
        let start = Instant::now();
        let mut failures = 0;
        for (number, experiment) in plan.iter().enumerate() {
            let estimate = Duration::from_secs_f64(experiment.minutes * 60.0);
            if budget.is_some_and(|budget| start.elapsed() + estimate > budget) {
                print::err_lines(&format!(
                    "{}: left out, as its {} would exceed --budget",
                    experiment.name,
                    minutes(estimate)
                ));
                continue;
            }
            print::err_lines(&format!(
                "{} of {}: {}, about {}: {}",
                number + 1,
                plan.len(),
                experiment.name,
                minutes(estimate),
                experiment.what
            ));
            let kept = self.run(experiment)?;
            match &kept.failure {
                Some(why) => {
                    failures += 1;
                    print::err_lines(&format!("{}: failed: {why}", experiment.name));
                }
                None => print::err_lines(&format!(
                    "{}: took {:.0} s",
                    experiment.name, kept.host_seconds
                )),
            }
            self.keep(&kept)?;
        }
        Ok(failures)
    }

    /// Runs one.
    fn run(&self, experiment: &Experiment) -> anyhow::Result<KeptResult> {
        let words = experiment.words(&self.place.programs, &self.place.scripts);
        let (program, arguments) = words.split_first().context("a command has a program")?;
        let start = Instant::now();
        let mut command = Command::new(program);
        let output = command.args(arguments).stdin(Stdio::null()).output();
        let outcome = match output {
            Err(error) => Err(format!(
                "{program}: {error}; build it, or give --programs its folder"
            )),
            Ok(output) => {
                let [out, err] =
                    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                ensure!(
                    output
                        .status
                        .code()
                        .is_some_and(|code| !is_interrupted(code)),
                    "{} was ended by a signal; what is done is kept, run the same again to go on",
                    experiment.name
                );
                match output.status.success() {
                    true => read::read(experiment.reads, &out, &err),
                    false => Err(format!("{}: {}", output.status, reason(&err))),
                }
            }
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let (failure, values) = match outcome {
            Ok(values) => (None, values),
            Err(why) => (Some(why), Default::default()),
        };
        Ok(KeptResult {
            schema: kept::SCHEMA.into(),
            experiment: experiment.name.into(),
            commit: self.commit.into(),
            date: kept::day(now.as_secs()),
            host_seconds: (start.elapsed().as_secs_f64() * 10.0).round() / 10.0,
            command: experiment.line(),
            failure,
            values,
        })
    }

    /// One more line.
    fn keep(&self, kept: &KeptResult) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(kept)?;
        line.push('\n');
        let file = File::options().create(true).append(true).open(self.results);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| {
            format!(
                "--results {}: cannot be written; give it a file in a folder of yours",
                self.results.shown()
            )
        })
    }
}

/// Status of what SIGINT or SIGTERM ended, as a shell and the laboratory tell it.
fn is_interrupted(code: i32) -> bool {
    [130, 143].contains(&code)
}

/// The last line that hither itself said, else the last but the laboratory's own, else the last.
fn reason(err: &str) -> String {
    let lines = || err.lines().filter(|line| !line.trim().is_empty());
    let told = lines().rfind(|line| line.starts_with("hither: "));
    let other = || lines().rfind(|line| !line.starts_with("lab: "));
    let line = told.or_else(other).or_else(|| lines().next_back());
    let line: String = line
        .unwrap_or("it said nothing")
        .chars()
        .take(MOST_REASON)
        .collect();
    line.trim_start_matches("hither: ").to_owned()
}

/// A time of the host.
pub fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 90 => format!("{seconds} s"),
        seconds if seconds < 5400 => format!("{:.0} min", seconds as f64 / 60.0),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_hither_said() {
        assert_eq!(reason("hither: no QEMU\nlab: later\n"), "no QEMU");
        assert_eq!(reason("a\nb\n\n"), "b");
        assert_eq!(
            reason("stream: no CPU\nlab: 0.9 s in the guest\n"),
            "stream: no CPU"
        );
        assert_eq!(reason("lab: booting\n"), "lab: booting");
        assert_eq!(reason(""), "it said nothing");
        assert_eq!(reason(&"é".repeat(900)).chars().count(), MOST_REASON);
    }

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let of = |seconds| minutes(Duration::from_secs(seconds));
        assert_eq!(
            (of(45), of(600), of(7200)),
            ("45 s".into(), "10 min".into(), "2.0 h".into())
        );
    }

    #[test]
    fn folders_that_a_shell_takes_apart_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let bad = folder.path().join("a b");
        std::fs::create_dir(&bad).unwrap();
        assert!(Place::find(Some(&bad), Path::new("scripts")).is_err());
        assert!(Place::find(Some(Path::new("/nowhere")), Path::new("scripts")).is_err());
        assert!(Place::find(None, Path::new("scripts")).is_ok());
    }
}
