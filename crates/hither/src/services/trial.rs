//! `hither services try`: a program by turns under plain scheduling and arranged; what pays is kept until it ends.

use super::{LOOK, Place, open, told};
use crate::output;
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::units::parse_time_us;
use anyhow::Context;
use hither_core::foreign::Foreign;
use hither_core::services::{Judgement, LEAST_PAIRS, arranged_is_first, judge};
use hither_linux::root::Root;
use hither_linux::services::meter::{Meter, ServiceReading};
use hither_linux::services::{Arranged, Services};
use hither_linux::sys::{self, Ended, Signals, Started};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const SCHEMA: &str = "hither.services-try/1";

/// Run a program, measure it by turns without and with the arrangement, and keep what pays
///
/// What the program gets done is its instructions in user mode. The arrangement is kept for the
/// rest of the run where it gains 1 % or more, and more than two standard errors of the pairs.
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(flatten)]
    place: Place,
    /// Pairs of stretches, one plain and one arranged
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(3..=1000))]
    pairs: u16,
    /// Length of each stretch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time_us)]
    stretch: u64,
    /// Time after each change that is not counted, as caches fill
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_time_us)]
    settle: u64,
    /// Time before the first stretch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time_us)]
    warm: u64,
    /// Write the report to a file, as hither.services-try/1, or to standard output as -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What was measured and decided.
#[derive(Debug, Default)]
struct Trial {
    source: &'static str,
    /// Plain and arranged.
    pairs: Vec<[ServiceReading; 2]>,
    arranged: Arranged,
    judgement: Option<Judgement>,
    /// Stretches after the decision, arranged where it is kept.
    rest: ServiceReading,
}

/// The program while it runs.
struct Running {
    child: Started,
    signals: Signals,
    ended: Option<Ended>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input, missing rights, no counters.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let online = self.place.check()?;
        if let Some(path) = &self.json {
            output::can_write("--json", path)?;
        }
        let (mut services, note) = open(&self.place.classes)?;
        print::err_lines(&note.unwrap_or_default());
        let signals =
            Signals::new(&[sys::SIGINT, sys::SIGTERM]).context("reading signals as data")?;
        let mut command = std::process::Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let child = sys::spawn_with_mask(command, signals.mask_before(), false)
            .with_context(|| format!("{} cannot be started", self.command[0].shown()))?;
        let mut running = Running {
            child,
            signals,
            ended: None,
        };
        // Whatever happens, nothing stays arranged; a program that cannot be measured ends with `running`.
        let tried = Meter::open(
            &Root::host(),
            &self.place.cpus,
            &online,
            running.child.pid(),
        )
        .map_err(anyhow::Error::from)
        .and_then(|meter| self.measure(&mut services, meter, &mut running));
        services.put_back()?;
        let trial = tried?;
        self.tell(&trial)?;
        let status = running.ended.map_or(0, Ended::status);
        Ok(ExitCode::from(status))
    }

    /// Pairs, the decision, and the rest of the run.
    fn measure(
        &self,
        services: &mut Services,
        mut meter: Meter,
        running: &mut Running,
    ) -> anyhow::Result<Trial> {
        let mut trial = Trial {
            source: meter.source(),
            ..Trial::default()
        };
        running.wait(self.warm);
        for pair in 0..usize::from(self.pairs) {
            let mut readings = [ServiceReading::default(); 2];
            let first = arranged_is_first(pair);
            for is_arranged in [first, !first] {
                match is_arranged {
                    true => trial.arranged = services.arrange(&self.place.cpus)?,
                    false => services.put_back()?,
                }
                running.wait(self.settle);
                meter.take()?;
                running.wait(self.stretch);
                readings[usize::from(is_arranged)] = meter.take()?;
            }
            if running.ended.is_some() {
                // A stretch was cut: the pair tells nothing.
                break;
            }
            trial.pairs.push(readings);
        }
        let rates: Vec<(f64, f64)> = trial
            .pairs
            .iter()
            .map(|pair| (rate(&pair[0]), rate(&pair[1])))
            .collect();
        trial.judgement = judge(&rates);
        match trial.judgement.is_some_and(|judgement| judgement.keeps) {
            true => trial.arranged = services.arrange(&self.place.cpus)?,
            false => services.put_back()?,
        }
        meter.take()?;
        while running.ended.is_none() {
            running.wait(u64::MAX);
        }
        trial.rest = meter.take()?;
        Ok(trial)
    }

    fn tell(&self, trial: &Trial) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            let text = print::json(self.document(trial));
            return match output::is_standard_output(path) {
                true => Ok(print::out(&text)?),
                false => output::write("--json", path, &text),
            };
        }
        print::err_report(&self.text(trial, Terminal::of_errors()));
        Ok(())
    }

    fn text(&self, trial: &Trial, terminal: Terminal) -> String {
        let mut text = format!("{}\n", told(&trial.arranged, &self.place.cpus));
        let sums = [sum(&trial.pairs, 0), sum(&trial.pairs, 1)];
        let names = ["plain", "arranged"];
        let mut rows = Vec::new();
        for (name, reading) in names.into_iter().zip(&sums) {
            for (cpus, modes) in [
                ("others", &reading.other_cpus),
                ("service", &reading.service_cpus),
            ] {
                for (mode, used) in [("user", &modes.user), ("kernel", &modes.kernel)] {
                    let each = |figure: Option<f64>, unit: f64| {
                        print::or_dash(figure, |figure| {
                            format!("{:.1}", figure / reading.seconds.max(1e-9) / unit)
                        })
                    };
                    rows.push(vec![
                        name.to_owned(),
                        cpus.to_owned(),
                        mode.to_owned(),
                        each(used.instructions, 1e6),
                        each(used.references, 1e3),
                        each(used.misses, 1e3),
                    ]);
                }
            }
        }
        let head = [
            "",
            "CPUs",
            "mode",
            "M instructions/s",
            "k references/s",
            "k misses/s",
        ];
        text += &Table::new(&head, &rows).keys(3).text(terminal);
        text += &verdict(trial);
        text.push('\n');
        text
    }

    fn document(&self, trial: &Trial) -> Value {
        let pairs = trial
            .pairs
            .iter()
            .map(|[plain, arranged]| json!({ "plain": plain, "arranged": arranged }));
        let refused = trial
            .arranged
            .refused
            .iter()
            .map(|(name, reason)| json!({ "work": name, "reason": reason }));
        json!({
            "schema": SCHEMA,
            "cpus": self.place.cpus.to_string(),
            "classes": self.place.classes,
            "source": trial.source,
            "moved": trial.arranged.moved,
            "refused": refused.collect::<Vec<_>>(),
            "pairs": pairs.collect::<Vec<_>>(),
            "gain": trial.judgement.map(|judgement| judgement.gain),
            "error": trial.judgement.map(|judgement| judgement.error),
            "kept": trial.judgement.is_some_and(|judgement| judgement.keeps),
            "rest": trial.rest,
            "verdict": verdict(trial),
        })
    }
}

impl Running {
    /// Waits so many us, or until the program ends. A signal goes to the program, whose end is waited for.
    fn wait(&mut self, us: u64) {
        let start = Instant::now();
        let limit = Duration::from_micros(us);
        while self.ended.is_none() {
            if let Some((pid, ended)) = sys::reap_any()
                && pid == self.child.pid()
            {
                self.child.set_reaped();
                self.ended = Some(ended);
                return;
            }
            // A terminal sends it to the program itself.
            if let Some(arrived) = self.signals.take()
                && !arrived.from_kernel
            {
                self.child.signal(arrived.signal);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(LOOK.min(left));
        }
    }
}

/// What the program got done in a second.
fn rate(reading: &ServiceReading) -> f64 {
    reading.program / reading.seconds.max(1e-9)
}

fn sum(pairs: &[[ServiceReading; 2]], which: usize) -> ServiceReading {
    let mut sum = ServiceReading::default();
    pairs.iter().for_each(|pair| sum += pair[which]);
    sum
}

/// One sentence.
fn verdict(trial: &Trial) -> String {
    let count = print::count(trial.pairs.len(), "pair");
    match trial.judgement {
        None => format!(
            "not decided: {count} of stretches, where {LEAST_PAIRS} are needed: nothing was kept"
        ),
        Some(judgement) => format!(
            "{:+.1} % by the program's instructions, standard error {:.1} %, in {count}: {}",
            judgement.gain * 100.0,
            judgement.error * 100.0,
            match judgement.keeps {
                true => "kept until the program ended",
                false => "not kept",
            }
        ),
    }
}

#[cfg(test)]
mod tests;
