//! The ways of moving memory that are compared, and the place where they are.
//!
//! One more method is one more entry of [`METHODS`]: say where it can be measured (`check`), and
//! in `run` carry out one request and time only that ([`timed`]); what it left behind is put in
//! order by whoever needs it, outside of any timing ([`Place::settle`]).

use super::migspeed;
use hither_core::ids::NodeId;
use hither_linux::backend::copy::{Copier, CopyStores};
use hither_linux::backend::engine::EngineDriver;
use hither_linux::filter;
use hither_linux::proc::pagemap::Pagemap;
use hither_linux::root::Root;
use hither_linux::sys::{self, PAGE_IS_HUGE, PAGE_IS_PRESENT, Present, PrivateMemory};
use hither_linux::tracker::opium::OwnTime;
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a huge page.
pub const HUGE_BYTES: usize = 2 << 20;

/// Pages of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// 4 KiB.
    Small,
    /// 2 MiB, transparent.
    Huge,
}

impl PageKind {
    /// The word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Huge => "huge",
        }
    }

    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Small => PAGE_BYTES,
            Self::Huge => HUGE_BYTES,
        }
    }
}

/// What a method does with the bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Moves the pages.
    Move,
    /// Only copies the bytes to pages that are there: the limit of every move.
    Copy,
}

/// A way of moving memory.
#[derive(Debug)]
pub struct Method {
    /// Names it in tables.
    pub name: &'static str,
    /// What it is: half a sentence for a person.
    pub about: &'static str,
    /// Move or copy.
    pub role: Role,
    /// Can it be measured in this place? If not, half a sentence that says why.
    pub check: fn(&Place) -> Result<(), String>,
    /// One request.
    pub run: fn(&mut Place, Request) -> Result<Sample, Failure>,
}

/// All methods, in the order of the tables.
pub const METHODS: &[Method] = &[
    Method {
        name: "move_pages",
        about: "one call of move_pages(2) per request, one address per page",
        role: Role::Move,
        check: two_nodes,
        run: run_move_pages,
    },
    Method {
        name: "mbind",
        about: "one call of mbind(2) per request, with MPOL_MF_MOVE",
        role: Role::Move,
        check: two_nodes,
        run: run_mbind,
    },
    Method {
        name: "migspeed",
        about: "the program of numactl (migrate_pages(2) of a whole process), as it times itself",
        role: Role::Move,
        check: migspeed_works,
        run: run_migspeed,
    },
    Method {
        name: "memcpy",
        about: "the bytes alone, to pages that are there, by the C library",
        role: Role::Copy,
        check: |_| Ok(()),
        run: |place, request| run_copy(place, request, CopyStores::Library),
    },
    Method {
        name: "memcpy-nt",
        about: "the same with non-temporal stores",
        role: Role::Copy,
        check: |_| Ok(()),
        run: |place, request| run_copy(place, request, CopyStores::NonTemporal),
    },
    Method {
        name: "engine",
        about: "the same by the machine's copy engine, where that is cheaper than the CPU",
        role: Role::Copy,
        check: engine_works,
        run: run_engine,
    },
];

/// Which bytes of the place to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// From the start, a multiple of `bytes`.
    pub offset: usize,
    /// A multiple of the page size.
    pub bytes: usize,
}

/// What one request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From its start to its end, in ns.
    pub wall_ns: u64,
    /// CPU time of all threads of this process, in ns; `None` where other processes worked.
    pub cpu_ns: Option<u64>,
}

/// Why there is no sample.
#[derive(Debug)]
pub enum Failure {
    /// Some pages did not arrive: this repetition does not count.
    Incomplete,
    /// The method does not work at all: half a sentence for a person.
    Broken(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Memory on two nodes, or twice on one.
#[derive(Debug)]
pub struct Place {
    /// Where pages are before a request.
    pub from: NodeId,
    /// Where they are afterwards.
    pub to: NodeId,
    /// Size of their pages.
    pub kind: PageKind,
    /// The program migspeed, where it is installed.
    pub migspeed: Option<PathBuf>,
    /// What is moved, on `from`.
    source: PrivateMemory,
    /// What bytes are copied to, on `to`.
    target: PrivateMemory,
    addresses: Vec<u64>,
    nodes: Vec<i32>,
    status: Vec<i32>,
    /// With the machine's copy engine; or why there is none.
    copier: Result<Copier, String>,
}

impl Place {
    /// Maps and touches `bytes` on each of the two nodes.
    ///
    /// # Errors
    /// The kernel gives no memory there, or none in pages of this kind: half a sentence.
    pub fn new(kind: PageKind, bytes: usize, from: NodeId, to: NodeId) -> Result<Self, String> {
        let memory = |node: NodeId| {
            let huge = kind == PageKind::Huge;
            let doing = |error| format!("mapping memory on {node}: {error}");
            let mut memory = PrivateMemory::new(bytes, huge).map_err(doing)?;
            sys::bind_memory(memory.address(), memory.len() as u64, node.0, Present::Stay)
                .or_else(|error| match filter::needs_no_policy(&error) {
                    true => Ok(()),
                    false => Err(error),
                })
                .map_err(doing)?;
            memory.fill_pages(node.0 as u8);
            Ok::<_, String>(memory)
        };
        let place = Self {
            from,
            to,
            kind,
            migspeed: migspeed::find(),
            source: memory(from)?,
            target: memory(to)?,
            addresses: Vec::new(),
            nodes: Vec::new(),
            status: Vec::new(),
            copier: copier_with_engine(),
        };
        if let Some(share) = place.huge_share() {
            match kind {
                PageKind::Huge if share < 1.0 => Err(format!(
                    "the kernel gave huge pages for {:.0} % of the memory only; free some memory, \
                     or set /sys/kernel/mm/transparent_hugepage/enabled to madvise",
                    100.0 * share
                )),
                PageKind::Small if share > 0.0 => Err("the kernel gave huge pages".to_owned()),
                _ => Ok(place),
            }
        } else {
            Ok(place)
        }
    }

    /// Share of the memory that is in huge pages; `None` where the kernel does not tell (before
    /// Linux 6.7).
    #[must_use]
    pub fn huge_share(&self) -> Option<f64> {
        let pagemap = Pagemap::open(&Root::host(), std::process::id() as i32).ok()?;
        let (mut huge, mut all) = (0, 0);
        for memory in [&self.source, &self.target] {
            let first = memory.address() >> 12;
            let pages = (memory.len() / PAGE_BYTES) as u64;
            let required = PAGE_IS_PRESENT | PAGE_IS_HUGE;
            let count = |range: std::ops::Range<u64>| huge += range.end - range.start;
            pagemap.scan(first..first + pages, required, count).ok()?;
            all += pages;
        }
        Some(huge as f64 / all.max(1) as f64)
    }

    /// Bytes on each node.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.source.len()
    }

    /// Has every page of the memory that is moved its own content still?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let first = self.from.0 as u8;
        let mut pages = self.source.bytes().chunks_exact(PAGE_BYTES).enumerate();
        pages.all(|(index, page)| {
            let byte = first.wrapping_add(index as u8);
            page[0] == byte && page[PAGE_BYTES - 1] == byte
        })
    }

    fn address(&self, request: Request) -> u64 {
        self.source.address() + request.offset as u64
    }

    /// One address per page of a request, and a target for each: what `move_pages` is given.
    fn list(&mut self, request: Request, node: NodeId) {
        let first = self.address(request);
        let pages = 0..(request.bytes / self.kind.bytes()) as u64;
        let step = self.kind.bytes() as u64;
        self.addresses.clear();
        self.addresses.extend(pages.map(|page| first + page * step));
        self.nodes.clear();
        self.nodes.resize(self.addresses.len(), node.0 as i32);
        self.status.clear();
        self.status.resize(self.addresses.len(), i32::MIN);
    }

    /// Are all listed pages on the node?
    fn are_on(&mut self, node: NodeId) -> io::Result<bool> {
        sys::query_pages(0, &self.addresses, &mut self.status)?;
        Ok(self.status.iter().all(|&status| status == node.0 as i32))
    }

    /// Brings the pages of a request to a node, whatever was done with them before.
    pub fn settle(&mut self, request: Request, node: NodeId) -> Result<(), Failure> {
        self.list(request, node);
        if self.are_on(node)? {
            return Ok(());
        }
        sys::move_pages(0, &self.addresses, &self.nodes, &mut self.status)?;
        match self.are_on(node)? {
            true => Ok(()),
            false => Err(Failure::Incomplete),
        }
    }

    /// The sample, if the request's pages have all arrived.
    fn arrived(&mut self, sample: Sample) -> Result<Sample, Failure> {
        match self.are_on(self.to)? {
            true => Ok(sample),
            false => Err(Failure::Incomplete),
        }
    }
}

fn copier_with_engine() -> Result<Copier, String> {
    let engine = EngineDriver::open().map_err(|unavailable| unavailable.why)?;
    let copier = Copier::new(1, &[]).map_err(|error| error.to_string())?;
    Ok(copier.with_engine(Some(engine)))
}

/// After a string instruction of any length the device's account is up to date when the CPU has looked at its
/// clock, which it does every 8 us, but for 100 us that come and go.
const UP_TO_DATE_NS: u64 = 12_000;

/// CPU time of all threads of this process in ns: in the laboratory by its device, as the kernel tells little
/// of what is shorter than a tick there.
pub fn cpu_ns() -> u64 {
    thread_local! {
        static CLOCK: RefCell<Option<OwnTime>> = RefCell::new(OwnTime::open());
    }
    CLOCK.with_borrow_mut(|clock| match clock {
        Some(clock) => {
            let until = sys::monotonic_ns() + UP_TO_DATE_NS;
            while sys::monotonic_ns() < until {}
            clock.cpu_ns()
        }
        None => sys::own_cpu_ns(),
    })
}

/// Times a piece of work of this process.
pub fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Sample> {
    let before_ns = cpu_ns();
    let start_ns = sys::monotonic_ns();
    work()?;
    let wall_ns = sys::monotonic_ns() - start_ns;
    Ok(Sample {
        wall_ns,
        cpu_ns: Some(cpu_ns() - before_ns),
    })
}

fn two_nodes(place: &Place) -> Result<(), String> {
    match place.from == place.to {
        true => Err("there is one node, so nothing would move".to_owned()),
        false => Ok(()),
    }
}

fn migspeed_works(place: &Place) -> Result<(), String> {
    two_nodes(place)?;
    if place.kind == PageKind::Huge {
        return Err("it moves small pages only".to_owned());
    }
    match &place.migspeed {
        Some(_) => Ok(()),
        None => Err("it is not installed (Debian package numactl)".to_owned()),
    }
}

fn run_move_pages(place: &mut Place, request: Request) -> Result<Sample, Failure> {
    place.settle(request, place.from)?;
    place.list(request, place.to);
    let sample =
        timed(|| sys::move_pages(0, &place.addresses, &place.nodes, &mut place.status).map(drop))?;
    place.arrived(sample)
}

fn run_mbind(place: &mut Place, request: Request) -> Result<Sample, Failure> {
    place.settle(request, place.from)?;
    let (address, bytes) = (place.address(request), request.bytes as u64);
    let sample = timed(|| sys::bind_memory(address, bytes, place.to.0, Present::Move))?;
    // The binding goes back, so that the mapping does not fall to pieces; its pages do not.
    sys::bind_memory(address, bytes, place.from.0, Present::Stay)?;
    place.arrived(sample)
}

fn run_migspeed(place: &mut Place, request: Request) -> Result<Sample, Failure> {
    let Some(program) = &place.migspeed else {
        return Err(Failure::Broken("it is not installed".to_owned()));
    };
    let pages = request.bytes / PAGE_BYTES;
    match migspeed::run(program, pages, place.from, place.to) {
        Ok(wall_ns) => Ok(Sample {
            wall_ns,
            cpu_ns: None,
        }),
        Err(why) => Err(Failure::Broken(why)),
    }
}

fn run_copy(place: &mut Place, request: Request, stores: CopyStores) -> Result<Sample, Failure> {
    place.settle(request, place.from)?;
    let (source, target) = (&place.source, &mut place.target);
    Ok(timed(|| {
        target.copy_from(source, request.offset, request.bytes, stores);
        Ok(())
    })?)
}

fn engine_works(place: &Place) -> Result<(), String> {
    place.copier.as_ref().map(drop).map_err(Clone::clone)
}

fn run_engine(place: &mut Place, request: Request) -> Result<Sample, Failure> {
    place.settle(request, place.from)?;
    let Ok(copier) = &mut place.copier else {
        return Err(Failure::Broken("there is no copy engine".to_owned()));
    };
    let part = request.offset..request.offset + request.bytes;
    let (source, target) = (&place.source, &mut place.target);
    Ok(timed(|| {
        target.copy_shared(source, part, copier);
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> NodeId {
        let topology = hither_linux::topology::Topology::read(&Root::host()).unwrap();
        topology.memory_nodes().first().unwrap()
    }

    #[test]
    fn copies_work_in_place_and_moves_say_why_not() {
        let mut place = Place::new(PageKind::Small, 4 << 20, home(), home()).unwrap();
        assert_eq!(place.bytes(), 4 << 20);
        let request = Request {
            offset: 64 << 10,
            bytes: 64 << 10,
        };
        for method in METHODS {
            match ((method.check)(&place), method.role) {
                (Ok(()), Role::Copy) => {
                    let sample = (method.run)(&mut place, request).unwrap();
                    assert!(
                        sample.wall_ns > 0 && sample.cpu_ns.is_some(),
                        "{}",
                        method.name
                    );
                }
                (Err(why), Role::Move) => assert!(why.contains("one node"), "{why}"),
                (Err(why), Role::Copy) if method.name == "engine" => {
                    assert!(why.contains("no copy engine"), "{why}");
                }
                (check, role) => panic!("{}: {check:?} {role:?}", method.name),
            }
        }
        let copied = request.offset..request.offset + request.bytes;
        assert_eq!(
            place.source.bytes()[copied.clone()],
            place.target.bytes()[copied]
        );
        assert!(place.is_whole());
        place.source.bytes_mut()[5 * PAGE_BYTES] ^= 1;
        assert!(!place.is_whole());
    }

    /// What a machine with one node can say of the calls that move: they find the pages there.
    #[test]
    fn the_calls_find_pages_that_are_there() {
        let mut place = Place::new(PageKind::Small, 2 << 20, home(), home()).unwrap();
        let request = Request {
            offset: 0,
            bytes: 256 << 10,
        };
        for run in [run_move_pages, run_mbind] {
            run(&mut place, request).unwrap();
        }
        assert_eq!(place.addresses.len(), 64);
        assert!(place.is_whole());
    }

    #[test]
    fn huge_pages_are_huge_or_refused() {
        match Place::new(PageKind::Huge, 4 << 20, home(), home()) {
            Ok(mut place) => {
                assert!(place.huge_share().is_none_or(|share| share == 1.0));
                place.list(
                    Request {
                        offset: 0,
                        bytes: 4 << 20,
                    },
                    home(),
                );
                assert_eq!(place.addresses.len(), 2, "one address per huge page");
            }
            // No free huge page just now, or a kernel without.
            Err(why) => assert!(
                why.contains("huge pages") || why.contains("mapping"),
                "{why}"
            ),
        }
    }
}
