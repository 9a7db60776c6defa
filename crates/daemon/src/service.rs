//! The daemon: makes scopes, hears orders, holds back where it must, and tells how everything stands.

mod cpu;
mod evidence;
mod hold;
mod tell;

use crate::config::{self, Choice, Config, Endpoint};
use crate::journal::{self, Earlier, Journal};
use crate::protocol::Ask;
use crate::publish::Published;
use crate::roll::Roll;
use crate::server::{self, Desk, Wanted};
use hither_agent::host::drive::{DriveReport, Session};
use hither_agent::host::{Client, End, Hands, Supervisor};
use hither_agent::{Execute, Gate, LEAST_SLEEP_US};
use hither_core::engine::{Engine, EngineConfig};
use hither_core::explain::Entry;
use hither_core::foreign::Foreign;
use hither_core::ids::{Pid, SpaceId};
use hither_core::policy::{EvidenceKind, Rung};
use hither_core::snapshot::PAGE_BYTES;
use hither_linux::proc::cgroup;
use hither_linux::proc::tree::{Birth, Noticed, Scope};
use hither_linux::rivals::{self, Rival, TakenOver};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, TrackerInputs};
use hither_linux::watch::Watch;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;

/// Time between two accounts of how everything stands, in us.
const TELL_US: u64 = 1_000_000;
/// Time between two looks for what changes seldom: rivals, wishes of control groups, in us.
const LOOK_US: u64 = 10_000_000;
/// Time between two looks whether a process was made that is to be watched, in us: a read of one small file,
/// and of one more for each process that was made.
const NOTICE_US: u64 = 50_000;
/// Time between two turns at rest that new processes bring forward, in us.
const SOON_US: u64 = 300_000;
/// At rest a turn comes so many times its own CPU time after the last: a sixth of a percent of one CPU.
const REST: u64 = 600;
/// But so soon at the latest, in us.
const LONGEST_REST_US: u64 = 10_000_000;
/// Entries of the log that are kept for who asks.
const MOST_ENTRIES: usize = 2048;
/// Name of the file that tells which pages were moved.
const JOURNAL: &str = "moved-pages";

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The loop.
    #[error(transparent)]
    Agent(#[from] hither_agent::host::Error),
    /// The machine.
    #[error(transparent)]
    Linux(#[from] hither_linux::Error),
    /// The journal of moved pages.
    #[error(transparent)]
    Journal(#[from] crate::journal::Error),
    /// A socket.
    #[error("{place} cannot be listened on ({source}); {remedy}")]
    Socket {
        /// Which.
        place: String,
        /// How to mend it.
        remedy: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Where a configuration comes from, again at every reload.
pub type Source = Box<dyn Fn() -> Result<Config, String>>;
/// Takes sentences for the log of the system.
pub type Sink = Rc<dyn Fn(&str)>;

/// The part of the journal that the witness shares with the service.
struct Kept {
    journal: Journal,
    births: HashMap<SpaceId, Birth>,
}

/// The daemon's state.
struct Service {
    config: Config,
    source: Source,
    root: Root,
    topology: Topology,
    session: Session<'static, Gate<Box<dyn Execute>>>,
    roll: Roll,
    cpus: cpu::CpuStates,
    kept: Rc<RefCell<Kept>>,
    /// What an earlier daemon moved of processes that were not met yet.
    earlier: Earlier,
    desk: Arc<Desk>,
    log: Rc<RefCell<VecDeque<Arc<Entry>>>>,
    sink: Sink,
    taken_over: Option<TakenOver>,
    rivals: Vec<Rival>,
    holding_back: Vec<String>,
    /// Why nothing can move pages here.
    without_hands: Vec<String>,
    /// What is missing for deciding, that included.
    missing: Vec<String>,
    /// What the tracker of accesses was opened for, once some target wants one.
    served: Option<Vec<EvidenceKind>>,
    /// Where its evidence comes from.
    evidence: Option<Rung>,
    /// When the last turn was, and when the next is due.
    turned_us: u64,
    due_us: u64,
    /// When new processes may bring a turn forward again.
    meet_us: u64,
    /// Of the watched processes, when their lives were put down for the journal.
    generation: u32,
    tell_us: u64,
    look_us: u64,
    has_told_ready: bool,
}

/// Runs until a signal ends it.
///
/// # Errors
/// Why it cannot.
pub fn run(config: Config, source: Source, sink: Sink) -> Result<End, Error> {
    let root = Root::host();
    for note in rivals::mend_leftovers(&root)? {
        sink(&note);
    }
    hither_linux::restore::make_runtime_folder()?;
    let (journal, earlier, note) = Journal::open(&config::runtime_file(JOURNAL))?;
    note.iter().for_each(|note| sink(note));
    if !earlier.is_empty() {
        sink(&format!(
            "an earlier daemon moved pages of {} processes: they can be put back by `hither undo` where they live",
            earlier.len()
        ));
    }
    let mut sockets = Vec::new();
    if let Endpoint::Unix(path) = &config.metrics {
        sockets.push(path.clone());
    }
    let control = match passed_socket() {
        Some(control) => control,
        None => {
            sockets.push(config.socket.clone());
            server::bind(&config.socket, 0o666).map_err(|source| Error::Socket {
                place: config.socket.shown().to_string(),
                remedy: "make its folder, or name another path by `socket` of [daemon]",
                source,
            })?
        }
    };
    let supervisor = Supervisor::alone(&[sys::SIGHUP])?;
    let mut service = Service::new(config, source, sink, root, journal, earlier)?;
    service.listen(control)?;
    let desk = Arc::clone(&service.desk);
    let turn = |beat: &hither_agent::host::Beat| {
        if beat.signal == Some(sys::SIGHUP) {
            service.reload(beat.now_us);
        }
        service.obey_all(beat.now_us);
        service.notice(beat.now_us);
        service.pursue(beat.now_us);
        service.pursue_cpus(beat.now_us);
        let now_us = supervisor.now_us();
        if now_us >= service.due_us {
            service.turn(now_us);
        }
        let sleep_us = service.due_us.saturating_sub(now_us);
        Ok(Some(sleep_us.clamp(LEAST_SLEEP_US, NOTICE_US)))
    };
    let end = supervisor.run_with::<Error>(Some(desk.bell()), &mut [Client::new(0, turn)])?;
    service.end(supervisor.now_us());
    // Whoever asks now learns that nobody is there.
    sockets
        .iter()
        .for_each(|path| drop(std::fs::remove_file(path)));
    Ok(end)
}

/// The control socket, where systemd passes one.
fn passed_socket() -> Option<UnixListener> {
    let mut passed = sd_notify::listen_fds().ok()?;
    let descriptor = passed.next()?;
    // SAFETY: systemd has opened it for this process, and nobody else here takes it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Some(UnixListener::from(owned))
}

impl Service {
    fn new(
        config: Config,
        source: Source,
        sink: Sink,
        root: Root,
        journal: Journal,
        earlier: Earlier,
    ) -> Result<Self, Error> {
        let topology = Topology::read(&root)?;
        let rivals = rivals::find(&root);
        let mut taken_over = None;
        if config.take_over.contains(&Rival::NumaBalancing) {
            let (taken, note) = TakenOver::balancing(&root)?;
            note.iter().for_each(|note| sink(note));
            taken_over = Some(taken);
        }
        let nobody = (table::NONE.open)(&TrackerInputs {
            root: &root,
            topology: &topology,
            ghz: None,
        });
        let nobody = nobody.map_err(hither_agent::host::Error::Refused)?;
        let watch = Watch::new(&root, &topology, scope_of(&config), nobody);
        let engine = Engine::new(engine_config(&config));
        let mut missing = Vec::new();
        let executor: Box<dyn Execute> = match Hands::find() {
            Ok(hands) => Box::new(hands.movers()?),
            Err(why) => {
                missing.push(why.to_string());
                Box::new(hither_agent::Dry)
            }
        };
        let log = Rc::new(RefCell::new(VecDeque::new()));
        let entries = Rc::clone(&log);
        let heard = move |told: DriveReport<'_>| {
            if let DriveReport::Entry(entry) = told {
                let mut entries = entries.borrow_mut();
                if entries.len() >= MOST_ENTRIES {
                    entries.pop_front();
                }
                entries.push_back(Arc::new(entry.clone()));
            }
        };
        let mut session = Session::new(
            watch,
            engine,
            Gate::new(executor),
            config.interval_us,
            Box::new(heard),
        );
        session.follow_log();
        session.agent_mut().observer_mut().tree_mut().ask_wishes();
        let kept = Rc::new(RefCell::new(Kept {
            journal,
            births: HashMap::new(),
        }));
        let witness = Rc::clone(&kept);
        session
            .agent_mut()
            .set_witness(Box::new(move |engine, snapshot, requests| {
                let Kept { journal, births } = &mut *witness.borrow_mut();
                let noted = journal.note(engine, snapshot, requests, births);
                noted.map_err(|error| format!("what is moved could not be noted ({error})"))
            }));
        let desk = Desk::new(Published::empty()).map_err(|source| Error::Socket {
            place: "what orders ring (eventfd)".to_owned(),
            remedy: "close files, or raise the limit (ulimit -n)",
            source,
        })?;
        let mut service = Self {
            config,
            source,
            root,
            topology,
            session,
            roll: Roll::default(),
            cpus: cpu::CpuStates::default(),
            kept,
            earlier,
            desk,
            log,
            sink,
            taken_over,
            rivals,
            holding_back: Vec::new(),
            without_hands: missing.clone(),
            missing,
            served: None,
            evidence: None,
            turned_us: 0,
            due_us: 0,
            meet_us: 0,
            generation: 0,
            tell_us: 0,
            look_us: LOOK_US,
            has_told_ready: false,
        };
        service.watch_accesses();
        service
            .rivals
            .clone()
            .iter()
            .for_each(|&rival| service.tell_rival(rival));
        Ok(service)
    }

    /// Targets by control group take nobody in a container that sees these otherwise than the host does.
    fn check_groups(&mut self) {
        let mut targets = self.config.targets.iter();
        if targets.any(|target| matches!(target.choice, Choice::Cgroup(_)))
            && !cgroup::is_one_view(&self.root)
        {
            let why = "targets by cgroup take nobody here: this container has its own view of control groups; \
                       give it the host's (`nsenter --cgroup --target 1`, cgroupns=host)";
            (self.sink)(why);
            self.missing.push(why.to_owned());
        }
    }

    fn listen(&self, control: UnixListener) -> Result<(), Error> {
        let desk = &self.desk;
        let fail = |place: String, remedy| {
            move |source| Error::Socket {
                place,
                remedy,
                source,
            }
        };
        let no_thread = "let this process have more threads";
        server::serve_control(control, desk)
            .map_err(fail("the control socket".to_owned(), no_thread))?;
        match &self.config.metrics {
            Endpoint::Off => Ok(()),
            Endpoint::Unix(path) => {
                let place = path.shown().to_string();
                let remedy = "make its folder, or name another place by `metrics` of [daemon]";
                let listener = server::bind(path, 0o600).map_err(fail(place.clone(), remedy))?;
                server::serve_metrics(move || Ok(listener.accept()?.0), desk)
                    .map_err(fail(place, no_thread))
            }
            Endpoint::Loopback(address) => {
                let place = address.to_string();
                let remedy = "choose another port by `metrics` of [daemon]; as a service of systemd, install the \
                              drop-in metrics-tcp.conf (docs/install.md), which lets it have a network";
                let listener = TcpListener::bind(address).map_err(fail(place.clone(), remedy))?;
                server::serve_metrics(move || Ok(listener.accept()?.0), desk)
                    .map_err(fail(place, no_thread))
            }
        }
    }

    /// What was asked for since the last look; who asks next is told of it.
    fn obey_all(&mut self, now_us: u64) {
        let orders = self.desk.take_orders();
        if orders.is_empty() {
            return;
        }
        if orders.iter().any(|order| order.wanted.ask == Ask::Status) {
            self.turn(now_us);
        }
        let done: Vec<_> = orders
            .iter()
            .map(|order| self.obey(&order.wanted, now_us))
            .collect();
        self.desk.publish(self.published(now_us));
        // Pages that are to go back need not wait; what is declared may.
        if orders
            .iter()
            .any(|order| !matches!(order.wanted.ask, Ask::Status | Ask::Declare))
        {
            self.due_us = self.due_us.min(now_us);
        }
        for (order, done) in orders.iter().zip(done) {
            // Who asked may have gone.
            let _ = order.answer.try_send(done);
        }
    }

    /// At rest turns are rare: a process that was made since has one at once.
    fn notice(&mut self, now_us: u64) {
        let tree = self.session.agent_mut().observer_mut().tree_mut();
        let due_us = match tree.notice() {
            Noticed::Nobody => return,
            Noticed::Wanted => self.meet_us.max(now_us),
            // They are found by a search.
            Noticed::TooMany => self.turned_us + SOON_US,
        };
        self.due_us = self.due_us.min(due_us);
    }

    /// Goals: a quota that changes has a turn at once.
    fn pursue(&mut self, now_us: u64) {
        let engine = self.session.agent_mut().engine_mut();
        let (notes, has_changed) = self.roll.pursue(now_us, engine);
        notes.iter().for_each(|note| (self.sink)(note));
        if has_changed {
            self.due_us = self.due_us.min(now_us);
        }
    }

    fn turn(&mut self, now_us: u64) {
        let begun_ns = sys::thread_cpu_ns();
        if self.session.agent().observer().tree().has_noticed() {
            self.meet_us = now_us + SOON_US;
        }
        let mut notes = Vec::new();
        let (roll, config, root) = (&mut self.roll, &self.config, &self.root);
        let mut sleep_us = self.session.turn_with(now_us, |engine, snapshot| {
            notes = roll.meet(config, engine, snapshot, root);
        });
        let is_resting = sleep_us > self.config.interval_us;
        notes.iter().for_each(|note| (self.sink)(note));
        let (notes, more) = self.session.take_notes();
        notes.iter().for_each(|note| (self.sink)(note));
        if more > 0 {
            (self.sink)(&format!("{more} more of these"));
        }
        self.keep();
        if now_us >= self.look_us {
            self.look_us = now_us + LOOK_US;
            self.look();
        }
        if now_us >= self.tell_us {
            self.tell_us = now_us + TELL_US;
            self.hold_back();
            self.desk.publish(self.published(now_us));
            self.notify();
        }
        if is_resting {
            let took_us = sys::thread_cpu_ns().saturating_sub(begun_ns) / 1000;
            sleep_us = sleep_us.max((took_us * REST).min(LONGEST_REST_US));
        }
        self.turned_us = now_us;
        self.due_us = now_us.saturating_add(sleep_us);
    }

    /// Lives of memory for the journal; what an earlier daemon moved is taken over where it lives.
    fn keep(&mut self) {
        let kept = Rc::clone(&self.kept);
        let mut kept = kept.borrow_mut();
        let agent = self.session.agent_mut();
        let tree = agent.observer().tree();
        if self.generation != tree.generation() {
            self.generation = tree.generation();
            let processes = tree.processes().iter();
            let births = processes.map(|process| (SpaceId(process.incarnation), process.birth()));
            kept.births = births.collect();
        }
        if !self.earlier.is_empty() {
            let mut taken = 0;
            for (&space, birth) in &kept.births {
                let pid = Pid(birth.pid);
                if agent.engine().is_member(pid, space) {
                    let moved = self.earlier.remove(birth).unwrap_or_default();
                    taken += journal::adopt(agent.engine_mut(), pid, space, moved);
                }
            }
            if taken > 0 {
                (self.sink)(&format!(
                    "{taken} pages that an earlier daemon moved can be put back"
                ));
            }
        }
        let should_rewrite = kept.journal.should_rewrite(self.session.agent().engine());
        drop(kept);
        if should_rewrite {
            self.rewrite_journal();
        }
    }

    fn rewrite_journal(&self) {
        let agent = self.session.agent();
        let processes = agent.observer().tree().processes();
        let journal = &mut self.kept.borrow_mut().journal;
        if let Err(error) = journal.rewrite(agent.engine(), processes, &self.earlier) {
            let what = "the journal of moved pages could not be written anew";
            (self.sink)(&format!("{what}: {error}"));
        }
    }

    /// Takes in what a process says of its own memory.
    fn declare(&mut self, pid: i32, order: &Wanted, now_us: u64) -> Result<Vec<String>, String> {
        let engine = self.session.agent_mut().engine_mut();
        for &(start, end) in &order.ranges {
            let pages = start.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
            engine
                .declare(Pid(pid), pages, order.hint, now_us)
                .map_err(|error| error.to_string())?;
        }
        Ok(vec![pid.to_string()])
    }

    fn obey(&mut self, order: &Wanted, now_us: u64) -> Result<Vec<String>, String> {
        if let Some(pid) = order.pid {
            if order.ask == Ask::Declare {
                return self.declare(pid, order, now_us);
            }
            let tree = self.session.agent_mut().observer_mut().tree_mut();
            if order.ask == Ask::OptOut {
                tree.leave_alone(pid);
                (self.sink)(&format!("process {pid} is left alone: it was asked for"));
            } else if tree.look_after(pid) {
                (self.sink)(&format!(
                    "process {pid} may be looked after: it was asked for"
                ));
            } else {
                return Err(format!(
                    "process {pid} is to be left alone: HITHER=off is in its environment, or user.hither \
                     of its control group is off"
                ));
            }
            return Ok(vec![pid.to_string()]);
        }
        let mut did = Vec::new();
        for name in &order.scopes {
            let Some(seat) = self.roll.by_name(name) else {
                continue;
            };
            let engine = self.session.agent_mut().engine_mut();
            match order.ask {
                Ask::Pause => {
                    seat.is_paused = true;
                    engine.pause(seat.scope);
                }
                Ask::Resume => {
                    if !engine.resume(seat.scope) {
                        return Err(format!(
                            "{name}: pages are on their way back; ask again when they are"
                        ));
                    }
                    seat.is_paused = false;
                }
                Ask::Undo => {
                    seat.is_paused = true;
                    engine.pause(seat.scope);
                    engine.begin_undo(seat.scope);
                }
                Ask::Status | Ask::Explain | Ask::OptOut | Ask::OptIn | Ask::Declare => continue,
            }
            did.push(name.clone());
        }
        if !did.is_empty() {
            let word = match order.ask {
                Ask::Pause => "paused",
                Ask::Resume => "resumed",
                _ => "undo",
            };
            (self.sink)(&format!("{}: {word}, as asked for", did.join(", ")));
        }
        Ok(did)
    }

    /// Another configuration, without losing what is known.
    fn reload(&mut self, now_us: u64) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Reloading]);
        match (self.source)() {
            Err(why) => (self.sink)(&format!("the configuration is kept as it was: {why}")),
            Ok(new) => {
                let old = std::mem::replace(&mut self.config, new);
                if old.socket != self.config.socket
                    || old.metrics != self.config.metrics
                    || old.take_over != self.config.take_over
                {
                    (self.sink)("socket, metrics and take_over change at the next start");
                }
                let agent = self.session.agent_mut();
                let notes = self.roll.change(&old, &self.config, agent.engine_mut());
                *agent.engine_mut().config_mut() = engine_config(&self.config);
                agent
                    .observer_mut()
                    .tree_mut()
                    .set_scope(scope_of(&self.config));
                notes.iter().for_each(|note| (self.sink)(note));
                self.missing.clone_from(&self.without_hands);
                self.watch_accesses();
                self.check_groups();
                (self.sink)("the configuration was read anew");
            }
        }
        // At rest the next turn would be late.
        self.due_us = self.due_us.min(now_us);
        self.hold_back();
        self.desk.publish(self.published(now_us));
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }

    /// Pages stay where they are, and the journal remembers them; settings go back.
    fn end(mut self, now_us: u64) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let agent = self.session.agent_mut();
        agent.finish(now_us);
        agent.observer_mut().tracker().stop();
        self.rewrite_journal();
    }
}

/// Who is watched.
fn scope_of(config: &Config) -> Scope {
    let one = |target: &crate::config::Target| match &target.choice {
        Choice::Cgroup(path) => Scope::Cgroup(format!("sys/fs/cgroup{path}")),
        Choice::Command(pattern) => Scope::Named(pattern.clone()),
        Choice::User(user) => Scope::OfUser(*user),
        Choice::OptIn => Scope::OptedIn,
    };
    Scope::Any(config.targets.iter().map(one).collect())
}

fn engine_config(config: &Config) -> EngineConfig {
    EngineConfig {
        rate_bytes_per_s: config.move_rate,
        disturbance_share: config.cpu_share,
        ..EngineConfig::at_interval(config.interval_us)
    }
}
