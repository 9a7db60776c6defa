//! What all scenarios need: their options, what they count, random numbers, the values in memory,
//! and the two ways to end: a wrong byte, and a hang.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the command line asks for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Repetitions where a scenario counts in those.
    pub rounds: u64,
    /// Stores to pages whose request is in flight, where a scenario counts in those.
    pub stores: u64,
    /// Nodes that pages move between; 1: they are exchanged in place.
    pub nodes: u32,
    /// Of all random numbers.
    pub seed: u64,
    /// Huge pages.
    pub huge: bool,
    /// Pages that moves leave behind are used again, or not; `None`: by chance.
    pub recycle: Option<bool>,
    /// Nothing is ever in stock: small pages are got on the way.
    pub no_stock: bool,
    /// Threads that store.
    pub threads: usize,
    /// As an ordinary user, without the kernel's events of forks.
    pub unprivileged: bool,
}

/// What a scenario met.
#[derive(Debug, Default)]
pub struct Report {
    pub scenario: &'static str,
    pub counts: BTreeMap<String, u64>,
    /// What it is about and did not meet: it has failed.
    pub unmet: Vec<String>,
    /// Parts that this machine cannot run, and why.
    pub not_run: Vec<String>,
    pub duration: Duration,
}

impl Report {
    pub fn new(scenario: &'static str) -> Self {
        Self {
            scenario,
            ..Self::default()
        }
    }

    /// Adds to a count.
    pub fn count(&mut self, name: &str, count: u64) {
        *self.counts.entry(name.to_owned()).or_default() += count;
    }

    /// A count that must not be zero: without it the scenario has shown nothing.
    pub fn met(&mut self, name: &str, count: u64) {
        self.count(name, count);
        if count == 0 {
            self.unmet.push(name.to_owned());
        }
    }

    /// Part of it cannot run here.
    pub fn not_run(&mut self, why: impl Into<String>) {
        self.not_run.push(why.into());
    }

    /// As one line of JSON.
    pub fn json(&self, options: &Options) -> serde_json::Value {
        serde_json::json!({
            "scenario": self.scenario,
            "huge": options.huge,
            "no_stock": options.no_stock,
            "nodes": options.nodes,
            "threads": options.threads,
            "seed": options.seed,
            "unprivileged": options.unprivileged,
            "seconds": self.duration.as_secs_f64(),
            "counts": self.counts,
            "unmet": self.unmet,
            "not_run": self.not_run,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scenario)?;
        for (index, (name, count)) in self.counts.iter().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { "" } else { "," })?;
        }
        for why in &self.not_run {
            write!(f, "; not run: {why}")?;
        }
        for name in &self.unmet {
            write!(f, "; FAILED: never met: {name}")?;
        }
        write!(f, " ({:.1} s)", self.duration.as_secs_f64())
    }
}

/// Random numbers that a seed gives again (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// From 0 to `end`, which it never is.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// Once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }
}

/// Spreads all bits over all bits (the finaliser of splitmix64).
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// What the word at an address holds after so many stores: a checksum of both, and the count.
pub fn value(address: u64, count: u32) -> u64 {
    let sum = mix(address ^ (u64::from(count) << 48) ^ 0x5EED);
    (sum & !0xFFFF_FFFF) | u64::from(count)
}

/// The count in a word, if its checksum is right.
pub fn count_of(address: u64, found: u64) -> Option<u32> {
    let count = found as u32;
    (value(address, count) == found).then_some(count)
}

/// Settings of the machine and what they were, put back however this program ends.
static SETTINGS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Changes a setting of the machine until [`put_back`].
pub fn set(path: &str, value: &str) -> std::io::Result<()> {
    let before = std::fs::read_to_string(path)?;
    std::fs::write(path, value)?;
    SETTINGS.lock().unwrap().push((path.to_owned(), before));
    Ok(())
}

/// Puts all settings back.
pub fn put_back() {
    if let Ok(mut settings) = SETTINGS.try_lock() {
        while let Some((path, before)) = settings.pop() {
            let _ = std::fs::write(path, before.trim());
        }
    }
}

static SEED: AtomicU64 = AtomicU64::new(0);
static PHASE: Mutex<String> = Mutex::new(String::new());
static TICKS: AtomicU64 = AtomicU64::new(0);

/// Says which seed everything random comes from, for reports.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// Says what goes on from now on, for reports.
pub fn phase(text: &str) {
    *PHASE.lock().unwrap() = text.to_owned();
    tick();
}

/// Something went on: nothing hangs.
pub fn tick() {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the program: a byte was lost, or something as bad happened.
pub fn fail(text: &str) -> ! {
    let phase = PHASE
        .try_lock()
        .map_or_else(|_| "?".to_owned(), |phase| phase.clone());
    let seed = SEED.load(Ordering::Relaxed);
    eprintln!("move_torture: {phase}: WRONG: {text}; seed {seed}");
    put_back();
    // SAFETY: ends the process at once: other threads go on with wrong memory otherwise.
    unsafe { libc::_exit(1) }
}

/// Ends the program with the address, what should be there and what is.
pub fn wrong(address: u64, expected: u64, found: u64) -> ! {
    let meaning = match (count_of(address, expected), count_of(address, found)) {
        (Some(due), Some(old)) => format!(" (store {old} of this word instead of {due})"),
        _ if found == 0 => " (zeros)".to_owned(),
        _ => String::new(),
    };
    // SAFETY: a word that was read before.
    let now = unsafe { std::ptr::read_volatile(address as *const u64) };
    fail(&format!(
        "at {address:#x} expected {expected:#018x}, found {found:#018x}{meaning}; \
         read again: {now:#018x}"
    ))
}

/// Ends the program where nothing has gone on for so long, and says where every thread is.
pub fn start_watchdog(limit: Duration) {
    std::thread::spawn(move || {
        let mut seen = (TICKS.load(Ordering::Relaxed), Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let ticks = TICKS.load(Ordering::Relaxed);
            if ticks != seen.0 {
                seen = (ticks, Instant::now());
            } else if seen.1.elapsed() > limit {
                // Whoever hangs may hold the allocator's lock, which the report needs.
                // SAFETY: an integer; the signal ends the process.
                unsafe { libc::alarm(5) };
                eprintln!(
                    "move_torture: nothing goes on; seed {}",
                    SEED.load(Ordering::Relaxed)
                );
                print_threads();
                fail(&format!("nothing went on for {} s", limit.as_secs()));
            }
        }
    });
}

fn print_threads() {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name));
        let text = |name: &str| read(name).unwrap_or_default().trim().replace('\n', " < ");
        eprintln!(
            "  thread {} {}: in {} (call {}) {}",
            task.file_name().to_string_lossy(),
            text("comm"),
            text("wchan"),
            text("syscall"),
            text("stack")
        );
    }
}
