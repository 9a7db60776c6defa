//! The tables of a recording: one structure per row. `docs/recording.md` is for its readers.
//!
//! Times are ns since the recording began; addresses are virtual and in bytes; nodes and CPUs have
//! the kernel's numbers. A cell that is not there was not measured.

use crate::column::Cell;
use crate::table::{Column, Row, Source, Target};
use hither_core::observation::{AccessKind, RegionAccess, SampledAccess};

/// Defines rows with their columns, which are written and read in this order.
macro_rules! rows {
    ($($(#[doc = $about:literal])* $row:ident = $table:literal {
        $($(#[doc = $meaning:literal])* $cell:ident: $type:ty,)*
    })*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $row {
                $($(#[doc = $meaning])* pub $cell: $type,)*
            }

            impl Row for $row {
                const TABLE: &'static str = $table;
                const COLUMNS: &'static [Column] = &[$(Column {
                    name: stringify!($cell),
                    cell: <$type as Cell>::NAME,
                    is_optional: <$type as Cell>::IS_OPTIONAL,
                    meaning: concat!($($meaning),*),
                    field: <$type as Cell>::field,
                },)*];

                fn write(rows: &[Self], target: &mut Target<'_>) -> parquet::errors::Result<()> {
                    $(target.put::<$type>(rows.iter().map(|row| row.$cell.store()))?;)*
                    Ok(())
                }

                fn read(source: &Source<'_>, into: &mut Vec<Self>) -> Result<(), String> {
                    $(let mut $cell = source.take::<$type>(stringify!($cell))?;)*
                    for _ in 0..source.row_count() {
                        into.push(Self {
                            $($cell: $cell.next().ok_or(concat!("has a column `", stringify!($cell), "` that is short"))?,)*
                        });
                    }
                    Ok(())
                }
            }
        )*

        /// Every table: its name and its columns.
        #[must_use]
        pub fn tables() -> Vec<(&'static str, &'static [Column])> {
            vec![$(($table, $row::COLUMNS)),*]
        }
    };
}

rows! {
    /// A sampled access of a watched process.
    Sample = "samples" {
        /// When.
        time_ns: u64,
        /// Whose.
        pid: i32,
        /// The thread.
        tid: Option<i32>,
        /// The CPU that accessed.
        cpu: Option<u32>,
        /// The node of that CPU.
        from_node: Option<u32>,
        /// The node whose memory served it, or holds the line where a cache did.
        home_node: Option<u32>,
        /// What was accessed.
        address: u64,
        /// Address of the instruction.
        code: Option<u64>,
        /// A store?
        is_write: Option<bool>,
        /// What the access took.
        latency_ns: Option<u32>,
        /// Served by another CPU's cache that had modified the line, not by memory?
        from_cache: Option<bool>,
        /// Accesses that it stands for.
        weight: u32,
    }

    /// A range of pages, as access bits tell of it over one aggregation.
    Region = "regions" {
        /// End of the aggregation.
        time_ns: u64,
        /// Its length.
        length_ns: u64,
        /// Whose; none for physical addresses.
        pid: Option<i32>,
        /// First address.
        start: u64,
        /// End address (exclusive).
        end: u64,
        /// Checks that found it accessed.
        access_count: u32,
        /// Checks in the aggregation.
        check_count: u32,
        /// Aggregations for which it has been about as hot.
        age_count: Option<u32>,
    }

    /// The machine over one interval.
    Interval = "intervals" {
        /// End of the interval.
        time_ns: u64,
        /// Its length.
        length_ns: u64,
        /// Share of user-mode memory fills served by the requester's own node, 0..=1.
        local_access_ratio: Option<f64>,
        /// Mean latency of demand misses.
        latency_ns: Option<f64>,
        /// Standard deviation over mean of the nodes' traffic.
        controller_imbalance: Option<f64>,
        /// Mean utilisation of the links, 0..=1.
        link_use: Option<f64>,
        /// Memory fills per us.
        accesses_per_us: Option<f64>,
        /// User-mode instructions per us over all CPUs.
        instructions_per_us: Option<f64>,
        /// Floating-point operations of user mode per us over all CPUs.
        flops_per_us: Option<f64>,
        /// Share of the CPU time in which CPUs waited for memory, 0..=1.
        stall_share: Option<f64>,
        /// Last-level misses per 1000 instructions.
        l3_mpki: Option<f64>,
        /// Samples of watched processes.
        sample_count: u64,
        /// Samples lost because a buffer was full.
        lost_count: u64,
        /// CPU time that hither used in it, all threads, in us.
        own_cpu_us: Option<u64>,
    }

    /// A node over one interval.
    Node = "nodes" {
        /// End of the interval.
        time_ns: u64,
        /// Its length.
        length_ns: u64,
        /// Which.
        node: u32,
        /// Bytes read from its memory.
        read_bytes: Option<u64>,
        /// Bytes written to its memory.
        write_bytes: Option<u64>,
        /// Mean utilisation of its controller, 0..=1.
        utilisation: Option<f64>,
    }

    /// Where a mapping's pages were at a moment; one row per node that had any.
    Residency = "residency" {
        /// When.
        time_ns: u64,
        /// Whose.
        pid: i32,
        /// First address of the mapping.
        start: u64,
        /// Which node.
        node: u32,
        /// Bytes there.
        bytes: u64,
        /// Where they are an estimate: pages found there, of those that were asked about.
        asked_pages: Option<u32>,
    }

    /// A watched process.
    Process = "processes" {
        /// Its number.
        pid: i32,
        /// Command name, as last seen.
        name: String,
        /// When it was first seen.
        start_ns: u64,
        /// When it was seen to have ended.
        end_ns: Option<u64>,
        /// Resident bytes when they were most, of one look each interval.
        peak_bytes: Option<u64>,
    }

    /// A mapping of a process.
    Mapping = "mappings" {
        /// When it was first seen so.
        time_ns: u64,
        /// Whose.
        pid: i32,
        /// First address.
        start: u64,
        /// End address (exclusive).
        end: u64,
        /// As in /proc/PID/maps.
        permissions: String,
        /// Path or name; empty without one.
        name: String,
    }

    /// An allocation above the threshold.
    Allocation = "allocations" {
        /// Whose.
        pid: i32,
        /// The thread that allocated it.
        tid: i32,
        /// First address.
        address: u64,
        /// Size.
        bytes: u64,
        /// When it was allocated.
        start_ns: u64,
        /// When it was freed.
        end_ns: Option<u64>,
        /// Its site, see the table of frames.
        site: u32,
        /// Asked for as a mapping, in which an allocator may place others?
        is_mapping: bool,
    }

    /// A frame of an allocation site, the innermost of the program first.
    Frame = "frames" {
        /// Whose.
        pid: i32,
        /// The site.
        site: u32,
        /// 0 is where the allocator was called.
        depth: u32,
        /// The object file.
        module: String,
        /// Offset of the call in it.
        offset: u64,
        /// Function, where it is known.
        function: Option<String>,
        /// Source file, where it is known.
        file: Option<String>,
        /// Line in it, where it is known.
        line: Option<u32>,
    }
}

impl Sample {
    /// Of what a tracker saw, with times since `start_ns`.
    #[must_use]
    pub fn from_access(access: &SampledAccess, start_ns: u64) -> Self {
        Self {
            time_ns: access.time_ns.saturating_sub(start_ns),
            pid: access.pid.0,
            tid: access.tid,
            cpu: access.cpu.map(|cpu| cpu.0),
            from_node: access.from.map(|node| node.0),
            home_node: access.home.map(|node| node.0),
            address: access.address,
            code: access.code,
            is_write: match access.kind {
                AccessKind::Read => Some(false),
                AccessKind::Write => Some(true),
                AccessKind::Unknown => None,
            },
            latency_ns: access.latency_ns,
            from_cache: access.from_cache,
            weight: access.weight,
        }
    }
}

impl Region {
    /// Of what a tracker saw, with times since `start_ns`.
    #[must_use]
    pub fn from_access(region: &RegionAccess, start_ns: u64) -> Self {
        Self {
            time_ns: region.time_ns.saturating_sub(start_ns),
            length_ns: region.length_ns,
            pid: region.pid.map(|pid| pid.0),
            start: region.addresses.start,
            end: region.addresses.end,
            access_count: region.access_count,
            check_count: region.check_count,
            age_count: region.age_count,
        }
    }
}
