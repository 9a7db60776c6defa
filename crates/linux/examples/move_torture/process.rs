//! The whole process is killed at a random moment. Its children live on and must have what it had
//! when they were born; a process that reads its memory gets right bytes or none.
//!
//! Roles: this process starts *victims*, which are this program again; they move, store and make
//! children until they are killed. The verdict is in a file in memory that all share.

use crate::common::{self, Options, Random, Report, tick, value};
use crate::forks::{exit, make_child};
use crate::memory::{Field, HUGE, LANES, PAGE};
use crate::mover::Mover;
use crate::writers::{Met, write};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What victims and their children say, in shared memory, zeroed at first.
#[repr(C)]
pub struct Board {
    /// The victim's memory, for readers.
    start: AtomicU64,
    pages: AtomicU64,
    windows: AtomicU64,
    born: AtomicU64,
    /// Children that looked at all they had: before their parent was killed, and after.
    looked: AtomicU64,
    looked_alone: AtomicU64,
    wrong: AtomicU64,
    address: AtomicU64,
    expected: AtomicU64,
    found: AtomicU64,
}

impl Board {
    fn map(file: &File) -> &'static Self {
        // SAFETY: a shared mapping of a file that is a page long; it stays mapped to the end, and
        // any bits are valid.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let (bytes, fd) = (PAGE as usize, file.as_raw_fd());
            let start = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
            if start == libc::MAP_FAILED {
                common::fail("the board cannot be mapped");
            }
            &*start.cast()
        }
    }

    fn note(&self, [address, expected, found]: [u64; 3]) {
        if self.wrong.fetch_add(1, Ordering::Relaxed) == 0 {
            self.address.store(address, Ordering::Relaxed);
            self.expected.store(expected, Ordering::Relaxed);
            self.found.store(found, Ordering::Relaxed);
        }
    }

    fn assert_good(&self) {
        if self.wrong.load(Ordering::Relaxed) > 0 {
            common::fail(&format!(
                "a child of a victim has at {:#x} not {:#018x} or later, but {:#018x}",
                self.address.load(Ordering::Relaxed),
                self.expected.load(Ordering::Relaxed),
                self.found.load(Ordering::Relaxed)
            ));
        }
    }
}

fn board_file() -> File {
    // SAFETY: a name, and no flags: the victim inherits the descriptor.
    let fd = unsafe { libc::memfd_create(c"board".as_ptr(), 0) };
    if fd < 0 {
        common::fail("memfd_create failed");
    }
    // SAFETY: a new descriptor that nobody else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    if file.set_len(PAGE).is_err() {
        common::fail("the board has no memory");
    }
    file
}

/// In a child of a victim: looks at all it has, at once and when its parent is gone.
fn live_on(field: &Field, least: &[u32], board: &Board, parent: i32) -> ! {
    let look = |count: &AtomicU64| match field.check_copy(least) {
        Ok(()) => {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Err(wrong) => board.note(wrong),
    };
    look(&board.looked);
    let nap = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    for _ in 0..2000 {
        // SAFETY: no arguments; a valid time.
        unsafe {
            if libc::getppid() != parent {
                break;
            }
            libc::nanosleep(&nap, std::ptr::null_mut());
        }
    }
    look(&board.looked_alone);
    exit(0)
}

/// The victim: moves, stores and makes children until it is killed.
pub fn be_victim(options: &Options, descriptor: i32) -> ! {
    // SAFETY: the parent passed this descriptor to this process alone.
    let file = unsafe { File::from_raw_fd(descriptor) };
    let board = Board::map(&file);
    let field = Field::new(HUGE / 2, options.huge, 3);
    let mut mover = Mover::new(options, 9, None);
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let met = Met::default();
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (field, traffic, met) = (&field, &traffic, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        let (field, traffic) = (&field, &traffic);
        scope.spawn(move || {
            let mut random = Random::new(options.seed);
            let mut least = Vec::new();
            // So many children at most: they wait for their parent's end.
            for _ in 0..6 {
                std::thread::sleep(Duration::from_micros(random.below(4000)));
                field.counts(&mut least);
                if make_child(!options.unprivileged && random.one_in(2)) == 0 {
                    live_on(field, &least, board, own);
                }
                board.born.fetch_add(1, Ordering::Relaxed);
            }
        });
        board.pages.store(field.pages(), Ordering::Relaxed);
        board
            .start
            .store(field.region.range().start, Ordering::Release);
        loop {
            field.touch();
            mover.once(&field.region.range());
            board
                .windows
                .store(traffic.windows.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    })
}

/// Reads a page of the victim: right, or not at all.
fn spy(victim: &Child, board: &Board, random: &mut Random) -> Option<bool> {
    let start = board.start.load(Ordering::Acquire);
    if start == 0 {
        return None;
    }
    let mut buffer = [0u64; (PAGE / 8) as usize];
    let at = start + random.below(board.pages.load(Ordering::Relaxed)) * PAGE;
    let vector = |base: u64| libc::iovec {
        iov_base: base as *mut _,
        iov_len: PAGE as usize,
    };
    let local = vector(buffer.as_mut_ptr() as u64);
    // SAFETY: the buffer is a page long; the kernel checks the other address.
    let came = unsafe { libc::process_vm_readv(victim.id() as i32, &local, 1, &vector(at), 1, 0) };
    if came != PAGE as isize {
        return Some(false);
    }
    for word in (LANES - 1..PAGE / 8).step_by(LANES as usize) {
        let (address, found) = (at + word * 8, buffer[word as usize]);
        if found != value(address, 0) {
            common::fail(&format!(
                "process_vm_readv has {found:#x} of {address:#x} of a victim, not {:#x}",
                value(address, 0)
            ));
        }
    }
    Some(true)
}

fn start_victim(options: &Options, seed: u64, file: &File) -> Child {
    let program = std::env::current_exe().unwrap_or_else(|_| common::fail("who am I?"));
    let mut command = Command::new(program);
    command.args(["victim", "--board", &file.as_raw_fd().to_string()]);
    command.args([
        "--seed",
        &seed.to_string(),
        "--nodes",
        &options.nodes.to_string(),
    ]);
    command.args(options.huge.then_some("--huge"));
    command.args((options.recycle == Some(true)).then_some("--recycle"));
    command.args(options.no_stock.then_some("--no-stock"));
    command.args(options.unprivileged.then_some("--unprivileged"));
    match command.stdin(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => common::fail(&format!("a victim cannot be started: {error}")),
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("process");
    let mut random = Random::new(options.seed ^ 0xF1);
    let (mut killed, mut read, mut unread) = (0, 0, 0);
    let (mut born, mut looked, mut alone, mut windows) = (0, 0, 0, 0);
    for round in 0..options.rounds {
        tick();
        let file = board_file();
        let board = Board::map(&file);
        let mut victim = start_victim(options, options.seed ^ round << 20, &file);
        // Ready, then a random time of its life.
        let start = Instant::now();
        while board.windows.load(Ordering::Relaxed) == 0 {
            if let Ok(Some(status)) = victim.try_wait() {
                common::fail(&format!("a victim ended by itself: {status}"));
            }
            if start.elapsed() > Duration::from_secs(15) {
                common::fail("a victim does not begin");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let end = Instant::now() + Duration::from_micros(random.below(30_000));
        while Instant::now() < end {
            match spy(&victim, board, &mut random) {
                Some(true) => read += 1,
                Some(false) => unread += 1,
                None => {}
            }
        }
        if let Ok(Some(status)) = victim.try_wait() {
            board.assert_good();
            common::fail(&format!("a victim ended by itself: {status}"));
        }
        if victim.kill().is_err() || victim.wait().is_err() {
            common::fail("a victim cannot be killed");
        }
        killed += 1;
        // Children that had begun to live when their parent died.
        let start = Instant::now();
        let settled = |board: &Board| {
            let [looked, alone] =
                [&board.looked, &board.looked_alone].map(|count| count.load(Ordering::Relaxed));
            looked >= board.born.load(Ordering::Relaxed) && alone >= looked
        };
        while !settled(board) && board.wrong.load(Ordering::Relaxed) == 0 {
            if start.elapsed() > Duration::from_secs(15) {
                common::fail("children of a victim do not come to an end");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        board.assert_good();
        born += board.born.load(Ordering::Relaxed);
        looked += board.looked.load(Ordering::Relaxed);
        alone += board.looked_alone.load(Ordering::Relaxed);
        windows += board.windows.load(Ordering::Relaxed);
    }
    report.met("processes killed", killed);
    report.met("windows", windows);
    report.met("children", born);
    report.met("children with all they should have", looked);
    report.met("children with all of it after their parent's death", alone);
    report.met("pages read from outside", read);
    report.count("pages not to be read", unread);
    report
}
