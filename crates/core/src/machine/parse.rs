//! Reads a machine file (`hither.machine/1`, described in `docs/machine-files.md`).
//!
//! Mechanism: the text becomes a tree whose values know their lines ([`document`]); each section
//! is read and checked where it stands ([`core_side`], [`memory`], [`network`]); what involves
//! several sections (CPUs without holes, domains within nodes, routes between all nodes) is
//! checked once they are all there.
//!
//! Properties: a [`Machine`] that comes out keeps every promise of its fields' documentation; no
//! text makes the reader panic; the first fault is reported with line, path and remedy; sizes
//! are bounded ([`limits`]), so that later arithmetic in `f64`, `u64` and `usize` cannot
//! overflow.

mod core_side;
mod document;
mod memory;
mod network;

pub use document::Error;

use super::Machine;
use document::{Result, Section, clip, line_at};
use toml::de::DeTable;

/// The format that this reader knows, in the file's `format`.
pub const FORMAT: &str = "hither.machine/1";

/// Upper and lower bounds of what a file may say. They are wide: they keep slips of units and
/// overflows out, not unusual machines.
pub mod limits {
    /// Bytes of a file's text.
    pub const TEXT_BYTES: usize = 1 << 20;
    /// Bytes of a machine's name.
    pub const NAME_BYTES: usize = 64;
    /// Nodes of a machine.
    pub const NODES: usize = 64;
    /// CPUs of a machine.
    pub const CPUS: usize = 1024;
    /// Directed links of a machine.
    pub const LINKS: usize = 256;
    /// Alternatives between two nodes.
    pub const ROUTES: usize = 8;
    /// Highest node id (the kernel's own limit is 1024 nodes).
    pub const NODE_ID: u64 = 1023;
    /// Least memory of a node with CPUs in MiB: less does not boot a kernel.
    pub const MEMORY_MB_MIN: u64 = 64;
    /// Least memory of a node without CPUs in MiB: x86 kernels take no smaller node
    /// (`NODE_MIN_SIZE`).
    pub const MEMORY_MB_MIN_ALONE: u64 = 4;
    /// Most memory of a node in MiB (16 TiB).
    pub const MEMORY_MB_MAX: u64 = 16 << 20;
    /// Largest cache in KiB (4 GiB).
    pub const CACHE_KB: u64 = 4 << 20;
    /// Channels of a copy engine.
    pub const CHANNELS: u64 = 64;
    /// Levels of caches.
    pub const CACHE_LEVELS: usize = 8;
    /// Highest associativity.
    pub const WAYS: u64 = 64;
    /// Largest latency, queueing term or event cost in ns (10 ms).
    pub const NS: f64 = 1e7;
    /// Smallest latency of a cache or memory in ns.
    pub const LATENCY_NS_MIN: f64 = 0.01;
    /// Smallest bandwidth in GB/s (1 KB/s): scaling must not reach zero.
    pub const GBS_MIN: f64 = 1e-6;
    /// Largest bandwidth in GB/s.
    pub const GBS_MAX: f64 = 1e5;
    /// Points of a capacity.
    pub const CAPACITY_POINTS: usize = 64;
    /// Highest performance rank.
    pub const TIER: u64 = 63;
    /// Shares of the routes between two nodes sum to 1 within this.
    pub const SHARE_SUM: f64 = 1e-6;
}

/// Top-level fields and sections.
const ROOT: &[&str] = &[
    "format",
    "name",
    "description",
    "scaling",
    "line_bytes",
    "route_split",
    "distances",
    "cpu",
    "costs",
    "tlb",
    "private_cache",
    "cache_bandwidth",
    "llc",
    "coherence",
    "engine",
    "domain",
    "node",
    "node_defaults",
    "link",
    "link_defaults",
    "route",
];

/// Reads and validates a machine file's text.
///
/// # Errors
/// The first fault, with its line, field and remedy.
pub fn parse(text: &str) -> std::result::Result<Machine, Error> {
    if text.len() > limits::TEXT_BYTES {
        return Err(Error {
            line: 1,
            field: String::new(),
            problem: format!("the file has {} bytes", text.len()),
            remedy: format!("a machine file has at most {}", limits::TEXT_BYTES),
        });
    }
    let document = DeTable::parse(text).map_err(|error| syntax_error(text, &error))?;
    let root = Section::root(text, document.get_ref(), ROOT)?;
    check_format(&root)?;
    let line_bytes = line_bytes(&root)?;
    let nodes = memory::nodes(&root)?;
    let domains = memory::domains(&root, &nodes, line_bytes)?;
    let network = network::read(&root, &nodes)?;
    Ok(Machine {
        name: name(&root)?,
        description: root
            .need("description", "one line for a person")?
            .text(400)?
            .to_owned(),
        scaling: root
            .get("scaling")
            .map_or(Ok(""), |field| field.text(1000))?
            .to_owned(),
        cpu: core_side::cpu(&root)?,
        costs: core_side::costs(&root)?,
        line_bytes,
        private_cache: core_side::private_cache(&root, line_bytes)?,
        cache_bandwidths: core_side::cache_bandwidths(&root)?,
        domains,
        nodes,
        links: network.links,
        routes: network.routes,
        distances: network.distances,
        tlb: core_side::tlb(&root)?,
        coherence: core_side::coherence(&root)?,
        engine: core_side::engine(&root)?,
    })
}

fn syntax_error(text: &str, error: &toml::de::Error) -> Error {
    let offset = error.span().map_or(0, |span| span.start);
    let remedy = if error.message().contains("duplicate key") {
        "keep one of the two"
    } else {
        "write `name = value` lines below [section] headers"
    };
    Error {
        line: line_at(text, offset),
        field: String::new(),
        problem: format!("this is no TOML: {}", error.message().replace('\n', " ")),
        remedy: remedy.to_owned(),
    }
}

fn check_format(root: &Section) -> Result<()> {
    let field = root.need("format", &format!("\"{FORMAT}\""))?;
    let format = field.text(100)?;
    if format != FORMAT {
        return Err(field.place.error(
            format!("the format is \"{}\"", clip(format)),
            format!("this program reads \"{FORMAT}\""),
        ));
    }
    Ok(())
}

/// May a machine be called so? Lower-case letters, digits and `-`, [`limits::NAME_BYTES`] at most.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=limits::NAME_BYTES).contains(&name.len()) && name.chars().all(fits)
}

fn name(root: &Section) -> Result<String> {
    let field = root.need("name", "the file's name without `.toml`")?;
    let name = field.text(limits::NAME_BYTES)?;
    if !is_name(name) {
        return Err(field.place.error(
            format!("\"{}\" is no machine name", clip(name)),
            "use lower-case letters, digits and `-`, as in \"opteron8385\"",
        ));
    }
    Ok(name.to_owned())
}

fn line_bytes(root: &Section) -> Result<u32> {
    let bytes = root.whole("line_bytes", 32, 256)?;
    core_side::power_of_two(root, "line_bytes", bytes)
}
