//! The daemon's configuration (`hither.daemon/1`, described in `docs/daemon.md`).

use crate::goal::{self, Wanted};
use crate::window::Window;
pub use hither_core::fault::TextFault;
use hither_core::policy::{self, tiers};
use hither_core::quota::Quota;
use hither_core::scope::Selector;
use hither_core::size::{parse_bytes, short_bytes};
use hither_linux::cpu_limit::LEAST_MILLI_CPUS;
use hither_linux::proc::users;
use hither_linux::rivals::Rival;
use hither_linux::root::Root;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The format that this reader knows.
pub const FORMAT: &str = "hither.daemon/1";
/// Where it is read from where nobody names a file.
pub const DEFAULT_FILE: &str = "/etc/hither/hither.toml";
/// Bytes of a file at most.
const MOST_BYTES: usize = 1 << 20;
/// Targets at most: with a scope for each user, what is kept stays small.
const MOST_TARGETS: usize = 256;
/// Letters of a name or pattern at most.
const MOST_LETTERS: usize = 256;

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket in the file system, for root alone.
    Unix(PathBuf),
    /// A port of this machine's loopback: all its users can read it.
    Loopback(SocketAddr),
    /// Nowhere.
    Off,
}

/// What chooses the processes of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A control group and those below it, as in `/proc/PID/cgroup`.
    Cgroup(String),
    /// A command name with `*` and `?`.
    Command(String),
    /// A user's number.
    User(u32),
    /// Whoever asks for it.
    OptIn,
}

impl Choice {
    /// For the engine.
    #[must_use]
    pub fn selector(&self) -> Selector {
        match self {
            Self::Cgroup(path) => Selector::Cgroup(path.clone()),
            Self::Command(pattern) => Selector::Name(pattern.clone()),
            Self::User(user) => Selector::User(*user),
            Self::OptIn => Selector::OptedIn,
        }
    }
}

/// A goal of a control group's CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuGoal {
    /// The most that the group may have, in thousandths of a CPU.
    pub milli_cpus: u64,
    /// The goal.
    pub spec: goal::Spec,
}

/// Programs that are looked after alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Who belongs to it.
    pub choice: Choice,
    /// What decides.
    pub policy: String,
    /// How much of the fastest memory tier each of its scopes may have.
    pub fast: Quota,
    /// What its fast memory is to bring about, where it is to have no more than that takes.
    pub goal: Option<goal::Spec>,
    /// What its CPU time is to bring about, where it is to have no more than that takes.
    pub cpu_goal: Option<CpuGoal>,
    /// Decide, and move nothing.
    pub dry_run: bool,
    /// When pages may be moved; always where there is none.
    pub windows: Vec<Window>,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time between decisions, in us.
    pub interval_us: u64,
    /// Decide, and move nothing of anybody.
    pub dry_run: bool,
    /// The control socket.
    pub socket: PathBuf,
    /// Where metrics are served.
    pub metrics: Endpoint,
    /// From whom hither takes over.
    pub take_over: BTreeSet<Rival>,
    /// Bytes that may be moved a second.
    pub move_rate: u64,
    /// CPU time of hither's own, as a share of the machine's.
    pub cpu_share: f64,
    /// Share of the last 10 s in which tasks waited for memory, above which nothing is moved; 0..=1.
    pub memory_pressure: f64,
    /// In this order: a process belongs to the first that takes it.
    pub targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: Spanned<String>,
    #[serde(default)]
    daemon: DaemonSection,
    #[serde(default)]
    limits: LimitsSection,
    #[serde(default)]
    target: Vec<Spanned<TargetSection>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table `[daemon]`")]
struct DaemonSection {
    interval: Option<Spanned<String>>,
    #[serde(default)]
    dry_run: bool,
    socket: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    #[serde(default)]
    take_over: Vec<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table `[limits]`")]
struct LimitsSection {
    move_rate: Option<Spanned<String>>,
    cpu_share: Option<Spanned<f64>>,
    memory_pressure: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table `[[target]]` with `name` and what chooses processes"
)]
struct TargetSection {
    name: Spanned<String>,
    cgroup: Option<Spanned<String>>,
    command: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    opt_in: Option<Spanned<bool>>,
    policy: Option<Spanned<String>>,
    fast: Option<Spanned<String>>,
    goal: Option<Spanned<GoalSection>>,
    cpu_goal: Option<Spanned<GoalSection>>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    windows: Vec<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table { file, figure, and one of below, above, may_lose }"
)]
struct GoalSection {
    file: Spanned<String>,
    figure: Spanned<String>,
    below: Option<Spanned<f64>>,
    above: Option<Spanned<f64>>,
    may_lose: Option<Spanned<f64>>,
    steps: Option<Spanned<u32>>,
    every: Option<Spanned<String>>,
    cpus: Option<Spanned<f64>>,
}

/// Faults with the line of a place in the text.
struct Places<'a>(&'a str);

impl Places<'_> {
    fn at(&self, offset: usize, reason: impl Into<String>) -> TextFault {
        TextFault::at(self.0, offset, reason)
    }

    fn of<T>(&self, value: &Spanned<T>, reason: impl Into<String>) -> TextFault {
        self.at(value.span().start, reason)
    }
}

impl Default for Config {
    fn default() -> Self {
        let engine = hither_core::engine::EngineConfig::default();
        Self {
            interval_us: engine.interval_us,
            dry_run: false,
            socket: runtime_file("control.sock"),
            metrics: Endpoint::Unix(runtime_file("metrics.sock")),
            take_over: BTreeSet::new(),
            move_rate: 1 << 30,
            cpu_share: engine.disturbance_share,
            memory_pressure: 0.1,
            targets: Vec::new(),
        }
    }
}

impl Config {
    /// The target of this name.
    #[must_use]
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }
}

/// A file beside the journals; below `/run/hither` where there is no place of the user's own.
#[must_use]
pub fn runtime_file(name: &str) -> PathBuf {
    let folder = hither_linux::restore::runtime_folder();
    let folder = folder.unwrap_or_else(|_| PathBuf::from(hither_linux::restore::ROOTS_FOLDER));
    folder.join(name)
}

/// Reads a configuration. `root` is where users are looked up.
///
/// # Errors
/// The first fault, with its line.
pub fn read(text: &str, root: &Root) -> Result<Config, TextFault> {
    let places = Places(text);
    if text.len() > MOST_BYTES {
        return Err(places.at(0, "has more than 1 MiB: no configuration has"));
    }
    let document: Document = match toml::from_str(text) {
        Ok(document) => document,
        Err(error) => {
            let start = error.span().map_or(0, |span| span.start);
            return Err(places.at(start, error.message().replace('\n', " ")));
        }
    };
    if document.format.get_ref() != FORMAT {
        return Err(places.of(&document.format, format!("the format is not \"{FORMAT}\"")));
    }
    let mut config = Config::default();
    document.daemon.read(&places, &mut config)?;
    document.limits.read(&places, &mut config)?;
    if document.target.len() > MOST_TARGETS {
        return Err(places.at(0, format!("there are more than {MOST_TARGETS} targets")));
    }
    for section in &document.target {
        let target = section
            .get_ref()
            .read(&places, section.span().start, root)?;
        if config.targets.iter().any(|other| other.name == target.name) {
            let reason = format!(
                "the target `{}` is there twice; name each once",
                target.name
            );
            return Err(places.of(&section.get_ref().name, reason));
        }
        config.targets.push(target);
    }
    Ok(config)
}

impl DaemonSection {
    fn read(&self, places: &Places<'_>, config: &mut Config) -> Result<(), TextFault> {
        if let Some(interval) = &self.interval {
            let us = time_us(interval.get_ref()).filter(|us| (10_000..=10_000_000).contains(us));
            config.interval_us = us.ok_or_else(|| {
                places.of(interval, "write a time from 10ms to 10s, as \"100ms\"")
            })?;
        }
        config.dry_run = self.dry_run;
        if let Some(socket) = &self.socket {
            config.socket = absolute(socket.get_ref())
                .ok_or_else(|| places.of(socket, "write the path of a socket, from / on"))?;
        }
        if let Some(metrics) = &self.metrics {
            config.metrics = endpoint(metrics.get_ref()).ok_or_else(|| {
                places.of(
                    metrics,
                    "write \"off\", \"unix:/PATH\", or a port of this machine's loopback, as \"127.0.0.1:9752\"",
                )
            })?;
        }
        for rival in &self.take_over {
            let word = rival.get_ref();
            let found = Rival::ALL.into_iter().find(|rival| rival.name() == word);
            let Some(found) = found else {
                let names: Vec<&str> = Rival::ALL.into_iter().map(Rival::name).collect();
                let reason = format!(
                    "`{}` is not known; there are {}",
                    word.escape_default(),
                    names.join(", ")
                );
                return Err(places.of(rival, reason));
            };
            if !found.can_be_taken_over() {
                let reason = format!("hither cannot take over from it: {}", found.remedy());
                return Err(places.of(rival, reason));
            }
            config.take_over.insert(found);
        }
        Ok(())
    }
}

impl LimitsSection {
    fn read(&self, places: &Places<'_>, config: &mut Config) -> Result<(), TextFault> {
        if let Some(rate) = &self.move_rate {
            config.move_rate = match parse_bytes(rate.get_ref()) {
                Ok(0) => return Err(places.of(rate, "at 0 bytes a second nothing would ever move")),
                Ok(rate) => rate,
                Err(why) => return Err(places.of(rate, why)),
            };
        }
        let share = |value: &Option<Spanned<f64>>, most: f64, what: &str| match value {
            None => Ok(None),
            Some(value) if (0.0..=most).contains(value.get_ref()) => Ok(Some(*value.get_ref())),
            Some(value) => Err(places.of(value, what)),
        };
        let own = "write a share of the machine's CPU time from 0 to 1, as 0.02";
        if let Some(share) = share(&self.cpu_share, 1.0, own)? {
            config.cpu_share = share;
        }
        let pressure = "write percent of time from 0 to 100, as 10.0";
        if let Some(percent) = share(&self.memory_pressure, 100.0, pressure)? {
            config.memory_pressure = percent / 100.0;
        }
        Ok(())
    }
}

impl GoalSection {
    /// A goal of fast memory.
    fn read_fast(
        &self,
        places: &Places<'_>,
        start: usize,
        fast: Quota,
    ) -> Result<goal::Spec, TextFault> {
        if !matches!(fast, Quota::Pages(pages) if pages > 0) {
            let reason = "a goal needs the most that it may cost; write fast as a size, as \"4G\"";
            return Err(places.at(start, reason));
        }
        if let Some(cpus) = &self.cpus {
            return Err(places.of(
                cpus,
                "fast memory has no CPUs; a goal of CPU time is cpu_goal",
            ));
        }
        self.read(places, start)
    }

    /// A goal of CPU time.
    fn read_cpus(
        &self,
        places: &Places<'_>,
        start: usize,
        choice: &Choice,
    ) -> Result<CpuGoal, TextFault> {
        if !matches!(choice, Choice::Cgroup(_)) {
            let reason = "CPU time is that of a control group; choose the target by cgroup";
            return Err(places.at(start, reason));
        }
        let Some(cpus) = &self.cpus else {
            let reason = "a goal needs the most that it may cost; add cpus, as cpus = 4";
            return Err(places.at(start, reason));
        };
        let spec = self.read(places, start)?;
        let least = LEAST_MILLI_CPUS as f64 / 1e3;
        let per_step = *cpus.get_ref() / f64::from(spec.steps);
        if !(*cpus.get_ref() <= 65_536.0 && per_step >= least) {
            let reason = format!(
                "write CPUs, so many that each of the {} steps has {least} of one",
                spec.steps
            );
            return Err(places.of(cpus, reason));
        }
        Ok(CpuGoal {
            milli_cpus: (cpus.get_ref() * 1e3).round() as u64,
            spec,
        })
    }

    fn read(&self, places: &Places<'_>, start: usize) -> Result<goal::Spec, TextFault> {
        let file = PathBuf::from(self.file.get_ref());
        if !file.is_absolute() || self.file.get_ref().chars().any(char::is_control) {
            let reason = "write the whole path of a file that the service writes";
            return Err(places.of(&self.file, reason));
        }
        let figure = self.figure.get_ref();
        let is_word = |letter: char| letter.is_alphanumeric() || "_-.:".contains(letter);
        if figure.is_empty() || !is_short(figure) || !figure.chars().all(is_word) {
            let reason = "write the word that stands before the number, as \"mean_us\"";
            return Err(places.of(&self.figure, reason));
        }
        let given = [&self.below, &self.above, &self.may_lose].map(Option::as_ref);
        let wanted = match given {
            [Some(most), None, None] => (most, Wanted::Below(*most.get_ref())),
            [None, Some(least), None] => (least, Wanted::Above(*least.get_ref())),
            [None, None, Some(share)] => (share, Wanted::MayLose(*share.get_ref())),
            _ => return Err(places.at(start, "give one of below, above, may_lose")),
        };
        let (at, wanted) = wanted;
        let is_sound = match wanted {
            Wanted::Below(number) | Wanted::Above(number) => number.is_finite() && number > 0.0,
            Wanted::MayLose(share) => (0.001..1.0).contains(&share),
        };
        if !is_sound {
            let reason = "write a number above 0; of may_lose a share from 0.001 to 1, as 0.02";
            return Err(places.of(at, reason));
        }
        let steps = match &self.steps {
            None => goal::STEPS,
            Some(steps) if (1..=64).contains(steps.get_ref()) => *steps.get_ref(),
            Some(steps) => return Err(places.of(steps, "write a number of steps from 1 to 64")),
        };
        let every_us = match &self.every {
            None => 1_000_000,
            Some(every) => time_us(every.get_ref())
                .filter(|us| (100_000..=3_600_000_000).contains(us))
                .ok_or_else(|| places.of(every, "write a time from 100ms to 3600s"))?,
        };
        Ok(goal::Spec {
            file,
            figure: figure.clone(),
            wanted,
            steps,
            every_us,
        })
    }
}

impl TargetSection {
    fn read(&self, places: &Places<'_>, start: usize, root: &Root) -> Result<Target, TextFault> {
        let name = self.name.get_ref();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            return Err(places.of(
                &self.name,
                "a name has up to 64 letters, digits, `-`, `_` and `.`",
            ));
        }
        let choice = self.choice(places, start, root)?;
        let policy = match &self.policy {
            None => policy::DEFAULT.to_owned(),
            Some(policy) => {
                // A name may hold anything, ends of lines too.
                policy::by_name(&policy.get_ref().escape_default().to_string())
                    .map_err(|error| places.of(policy, error.to_string()))?;
                policy.get_ref().clone()
            }
        };
        let fast = match &self.fast {
            None => Quota::default(),
            Some(quota) => match quota.get_ref().parse() {
                Ok(own) if tiers::keeps(&policy, own) => own,
                Ok(_) => {
                    let reason = format!(
                        "policy {policy} does not decide on fast memory; write policy = \"{}\"",
                        tiers::NAME
                    );
                    return Err(places.of(quota, reason));
                }
                Err(why) => return Err(places.of(quota, why.to_string())),
            },
        };
        let window = |text: &Spanned<String>| {
            text.get_ref()
                .parse()
                .map_err(|why: String| places.of(text, why))
        };
        let goal = self.goal.as_ref();
        let goal = goal.map(|goal| goal.get_ref().read_fast(places, goal.span().start, fast));
        let cpu_goal = self.cpu_goal.as_ref();
        let cpu_goal =
            cpu_goal.map(|goal| goal.get_ref().read_cpus(places, goal.span().start, &choice));
        Ok(Target {
            name: name.clone(),
            policy,
            goal: goal.transpose()?,
            cpu_goal: cpu_goal.transpose()?,
            choice,
            fast,
            dry_run: self.dry_run,
            windows: self.windows.iter().map(window).collect::<Result<_, _>>()?,
        })
    }

    fn choice(&self, places: &Places<'_>, start: usize, root: &Root) -> Result<Choice, TextFault> {
        let mut choices = Vec::new();
        if let Some(group) = &self.cgroup {
            let inner = group
                .get_ref()
                .trim_start_matches("/sys/fs/cgroup")
                .trim_matches('/');
            if inner.is_empty() || !is_short(inner) || inner.split('/').any(|part| part == "..") {
                return Err(places.of(
                    group,
                    "write the path of a control group below /sys/fs/cgroup",
                ));
            }
            choices.push(Choice::Cgroup(format!("/{inner}")));
        }
        if let Some(pattern) = &self.command {
            if pattern.get_ref().is_empty() || !is_short(pattern.get_ref()) {
                return Err(places.of(pattern, "write a command name, as \"postgres*\""));
            }
            choices.push(Choice::Command(pattern.get_ref().clone()));
        }
        if let Some(user) = &self.user {
            let number = user_number(root, user.get_ref());
            let number = number.ok_or_else(|| {
                places.of(
                    user,
                    "there is no such user in /etc/passwd; give a name or a number",
                )
            })?;
            choices.push(Choice::User(number));
        }
        if let Some(opt_in) = &self.opt_in {
            if !opt_in.get_ref() {
                return Err(places.of(opt_in, "write opt_in = true, or leave it out"));
            }
            choices.push(Choice::OptIn);
        }
        match <[Choice; 1]>::try_from(choices) {
            Ok([choice]) => Ok(choice),
            Err(choices) => {
                let count = if choices.is_empty() {
                    "nothing chooses"
                } else {
                    "more than one key chooses"
                };
                let reason =
                    format!("{count} its processes; give one of cgroup, command, user, opt_in");
                Err(places.at(start, reason))
            }
        }
    }
}

fn is_short(text: &str) -> bool {
    text.len() <= MOST_LETTERS && !text.chars().any(char::is_control)
}

fn absolute(text: &str) -> Option<PathBuf> {
    // What a socket's address holds, with its final zero.
    let is_path = text.starts_with('/') && text.len() < 108 && is_short(text);
    is_path.then(|| PathBuf::from(text))
}

fn endpoint(text: &str) -> Option<Endpoint> {
    if text == "off" {
        return Some(Endpoint::Off);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return absolute(path).map(Endpoint::Unix);
    }
    let address: SocketAddr = text.parse().ok()?;
    address
        .ip()
        .is_loopback()
        .then_some(Endpoint::Loopback(address))
}

/// `100ms`, `2s`.
fn time_us(text: &str) -> Option<u64> {
    let (number, us) = match text.strip_suffix("ms") {
        Some(number) => (number, 1000),
        None => (text.strip_suffix('s')?, 1_000_000),
    };
    number.parse::<u64>().ok()?.checked_mul(us)
}

/// A user's number by name or number; of a number nobody asks whether it is somebody's.
fn user_number(root: &Root, word: &str) -> Option<u32> {
    let number = word.parse().ok();
    number.or_else(|| users::number(root, word).ok().flatten())
}

impl fmt::Display for Config {
    /// As a file that says the same, defaults included.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let metrics = match &self.metrics {
            Endpoint::Unix(path) => format!("unix:{}", path.to_string_lossy()),
            Endpoint::Loopback(address) => address.to_string(),
            Endpoint::Off => "off".to_owned(),
        };
        let rivals = self.take_over.iter().map(|rival| quoted(rival.name()));
        let rivals: Vec<String> = rivals.collect();
        write!(
            f,
            "format = \"{FORMAT}\"\n\n[daemon]\ninterval = \"{}ms\"\ndry_run = {}\nsocket = {}\nmetrics = {}\n\
             take_over = [{}]\n\n[limits]\nmove_rate = \"{}\"\ncpu_share = {}\nmemory_pressure = {}\n",
            self.interval_us / 1000,
            self.dry_run,
            quoted(&self.socket.to_string_lossy()),
            quoted(&metrics),
            rivals.join(", "),
            short_bytes(self.move_rate),
            self.cpu_share,
            100.0 * self.memory_pressure,
        )?;
        for target in &self.targets {
            let chosen = match &target.choice {
                Choice::Cgroup(path) => format!("cgroup = {}", quoted(path)),
                Choice::Command(pattern) => format!("command = {}", quoted(pattern)),
                Choice::User(user) => format!("user = \"{user}\""),
                Choice::OptIn => "opt_in = true".to_owned(),
            };
            let mut windows = String::new();
            for window in &target.windows {
                let comma = if windows.is_empty() { "" } else { ", " };
                write!(windows, "{comma}{}", quoted(&window.to_string()))?;
            }
            write!(
                f,
                "\n[[target]]\nname = {}\n{chosen}\npolicy = {}\nfast = {}\ndry_run = {}\n\
                 windows = [{windows}]\n",
                quoted(&target.name),
                quoted(&target.policy),
                quoted(&target.fast.to_string()),
                target.dry_run,
            )?;
            let written = |goal: &goal::Spec| {
                let (key, number) = match goal.wanted {
                    Wanted::Below(most) => ("below", most),
                    Wanted::Above(least) => ("above", least),
                    Wanted::MayLose(share) => ("may_lose", share),
                };
                format!(
                    "file = {}, figure = {}, {key} = {number:?}, steps = {}, every = \"{}ms\"",
                    quoted(&goal.file.to_string_lossy()),
                    quoted(&goal.figure),
                    goal.steps,
                    goal.every_us / 1000,
                )
            };
            if let Some(goal) = &target.goal {
                writeln!(f, "goal = {{ {} }}", written(goal))?;
            }
            if let Some(goal) = &target.cpu_goal {
                let cpus = goal.milli_cpus as f64 / 1e3;
                writeln!(
                    f,
                    "cpu_goal = {{ cpus = {cpus:?}, {} }}",
                    written(&goal.spec)
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
