//! The program that is watched: its use of a mapping is known, and changes from phase to phase when
//! its parent says so.

use crate::options::Options;
use crate::scratch::Scratch;
use crate::{MB, PAGE};
use hither_workloads::memory::{Placement, RegionMemory};
use hither_workloads::random::FastRandom;
use hither_workloads::zipf::Zipf;
use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Updates between two looks at whether the phase is over.
const BATCH: usize = 20_000;
/// `stride`: one page in so many.
const STRIDE: u64 = 8;
/// `zipf`: its exponent.
const EXPONENT: f64 = 0.99;

/// How the mapping is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Random words of one area.
    Area,
    /// The same, of an area that is elsewhere in each phase.
    Moving,
    /// The same, of two areas in turn.
    TwoPhase,
    /// Random words of pages by Zipf's law; in each phase other pages are the hot ones.
    Zipf,
    /// A line of every eighth page, then the next line of each; in each phase other pages.
    Stride,
}

impl Pattern {
    pub fn of(options: &Options) -> Result<Self, String> {
        Ok(match options.word("pattern", "area") {
            "area" => Self::Area,
            "moving" => Self::Moving,
            "two-phase" => Self::TwoPhase,
            "zipf" => Self::Zipf,
            "stride" => Self::Stride,
            other => {
                return Err(format!(
                    "pattern: `{other}` is none of area, moving, two-phase, zipf, stride"
                ));
            }
        })
    }

    /// How many pages count as the hot ones; by Zipf's law there is a list to choose from.
    pub fn hot_pages(self, options: &Options) -> Result<Vec<usize>, String> {
        let pages = options.number("mb", 256.0)? * (MB / PAGE) as f64;
        let hot = match self {
            Self::Zipf => {
                let shares = options.numbers("top", &[1.0, 10.0])?;
                shares.iter().map(|top| top / 100.0 * pages).collect()
            }
            Self::Stride => vec![pages / STRIDE as f64],
            _ => vec![options.number("hot", 25.0)? * (MB / PAGE) as f64],
        };
        if hot.iter().any(|&hot| hot < 1.0 || hot >= pages) {
            return Err("there must be hot pages and others: mb, hot, top".to_owned());
        }
        Ok(hot.into_iter().map(|hot| hot as usize).collect())
    }

    /// First page of the area in a phase. Not at a round place, and then elsewhere.
    fn area(self, phase: u64, pages: u64, hot: u64) -> u64 {
        let place = match self {
            Self::Moving => (37 + 31 * phase) % 100,
            Self::TwoPhase => 37 + 25 * (phase % 2),
            _ => 37,
        };
        (pages - hot) * place / 100
    }
}

/// What all threads share.
struct Shared {
    pattern: Pattern,
    region: RegionMemory,
    hot: u64,
    rest: Duration,
    flush: bool,
    zipf: Option<Zipf>,
    threads: u64,
    phase: AtomicU64,
    is_over: AtomicBool,
    /// Passed twice between two phases: when the old one is over, and when the new one begins.
    gate: Barrier,
}

/// Uses its mapping, in phases: at each line that it reads it stops, tells the mapping's addresses,
/// and goes on at the next. The end of its input is its own.
pub fn load(options: &Options) -> Result<(), String> {
    let pattern = Pattern::of(options)?;
    let bytes = options.number("mb", 256.0)? as usize * MB as usize;
    let threads = options.number("threads", 1.0)?.clamp(1.0, 1024.0) as u64;
    let region =
        RegionMemory::new(bytes, Placement::default()).map_err(|error| format!("{error:?}"))?;
    if options.number("touch", 1.0)? != 0.0 {
        let first_words = region.words().iter().step_by(512);
        first_words.for_each(|word| word.store(1, Relaxed));
    }
    let pages = bytes as u64 / PAGE;
    let start = region.words().as_ptr() as u64;
    let shared = Shared {
        pattern,
        region,
        hot: pattern.hot_pages(options)?[0] as u64,
        rest: Duration::from_secs_f64(options.number("rest", 0.0)?.max(0.0) / 1e3),
        flush: options.number("flush", 1.0)? != 0.0,
        zipf: (pattern == Pattern::Zipf).then(|| Zipf::new(pages, EXPONENT)),
        threads,
        phase: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        gate: Barrier::new(threads as usize + 1),
    };
    std::thread::scope(|scope| {
        for id in 0..threads {
            let shared = &shared;
            scope.spawn(move || work(shared, id));
        }
        let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let mut out = std::io::stdout();
        for phase in 0.. {
            if lines.next().is_none() {
                break;
            }
            shared.is_over.store(true, SeqCst);
            shared.gate.wait();
            let line = format!("{start} {}\n", start + bytes as u64);
            let told = out.write_all(line.as_bytes()).and_then(|()| out.flush());
            if told.is_err() || lines.next().is_none() {
                break;
            }
            shared.phase.store(phase, SeqCst);
            shared.is_over.store(false, SeqCst);
            shared.gate.wait();
        }
        // Its threads wait or work for ever.
        std::process::exit(0)
    })
}

fn work(shared: &Shared, id: u64) {
    let mut random = FastRandom::new(id);
    let scratch = shared.flush.then(Scratch::new);
    loop {
        shared.gate.wait();
        shared.gate.wait();
        let phase = shared.phase.load(SeqCst);
        let mut strides = Strides::new(shared, phase, id);
        while !shared.is_over.load(Relaxed) {
            batch(shared, phase, &mut random, &mut strides);
            if let Some(scratch) = &scratch {
                scratch.flush();
            }
            if !shared.rest.is_zero() {
                std::thread::sleep(shared.rest);
            }
        }
    }
}

fn batch(shared: &Shared, phase: u64, random: &mut FastRandom, strides: &mut Strides) {
    let words = shared.region.words();
    let pages = words.len() as u64 / 512;
    let update = |page: u64, word: u64| {
        words[(page * 512 + word) as usize].fetch_add(1, Relaxed);
    };
    match &shared.zipf {
        Some(zipf) => {
            for _ in 0..BATCH {
                // Scattered: a prime, so that every rank has a page of its own.
                let rank = zipf.draw(random).wrapping_add(phase * 7919);
                update(rank * 2_654_435_761 % pages, random.below(512));
            }
        }
        None if shared.pattern == Pattern::Stride => {
            for _ in 0..BATCH {
                let (page, line) = strides.next();
                update(page, line * 8);
            }
        }
        None => {
            let first = shared.pattern.area(phase, pages, shared.hot) * 512;
            for _ in 0..BATCH {
                update(0, first + random.below(shared.hot * 512));
            }
        }
    }
}

/// Pages and lines of `stride`; each thread begins at a line of its own.
struct Strides {
    first: u64,
    page: u64,
    line: u64,
    pages: u64,
    step: u64,
}

impl Strides {
    fn new(shared: &Shared, phase: u64, id: u64) -> Self {
        let first = phase * 3 % STRIDE;
        Self {
            first,
            page: first,
            line: id % 64,
            pages: shared.region.words().len() as u64 / 512,
            step: shared.threads,
        }
    }

    fn next(&mut self) -> (u64, u64) {
        let at = (self.page, self.line);
        self.page += STRIDE;
        if self.page >= self.pages {
            self.page = self.first;
            self.line = (self.line + self.step) % 64;
        }
        at
    }
}

/// The program as a child of who watches it. It ends with this.
pub struct Load {
    child: Child,
    input: ChildStdin,
    output: std::io::BufReader<ChildStdout>,
}

impl Load {
    pub fn start(words: &[String]) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(own)
            .arg("load")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            input: input.ok_or("no input")?,
            output: std::io::BufReader::new(output.ok_or("no output")?),
            child,
        })
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Ends the phase; the addresses of the mapping. Nothing is used until [`Load::go_on`].
    pub fn pause(&mut self) -> Result<std::ops::Range<u64>, String> {
        self.go_on()?;
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.map_err(|error| error.to_string())?;
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        match numbers[..] {
            [start, end] => Ok(start..end),
            _ => Err("the load has ended".to_owned()),
        }
    }

    /// Begins the next phase.
    pub fn go_on(&mut self) -> Result<(), String> {
        let told = self.input.write_all(b"\n");
        told.map_err(|error| format!("the load has ended: {error}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
