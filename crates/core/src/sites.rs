//! Layout of the log of allocation sites: what the preload shim writes, and `hither_linux::sites`
//! reads.
//!
//! One file per process image, `PID.sites`. A header of one page, then slots of 64 bytes. A slot is
//! whole once its first word is not zero (the word is written last), so that a writer killed at any
//! moment leaves a slot that is skipped, and never a wrong one. No record depends on the slot before
//! it. Little-endian; every field is naturally aligned; times are ns of CLOCK_MONOTONIC.
//!
//! ```text
//! first word of every slot: u8 kind, u8 a, u16 b, u32 c      second: u64 time
//! ALLOCATION  a = how, c = thread      u64 address, u64 bytes, u32 site
//! FREE                                 u64 address
//! UNMAP       c = thread               u64 address, u64 bytes
//! SITE        a = frames in this slot (at most 6), b = index of the first of them, c = site
//!             u64 return addresses, innermost first
//! MODULE      a = part, c = module     part 0: u64 bias, u64 start, u64 end, u16 bytes of the
//!             build id, u16 bytes of the path; parts from 1: 48 bytes each of build id and path
//! ```

/// First eight bytes: `HITHSITE`. Written last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HITHSITE");
/// Version of this layout. A reader refuses any other.
pub const VERSION: u32 = 1;
/// Bytes before the first slot.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 64;
/// Most return addresses of a site.
pub const MAX_FRAMES: usize = 16;
/// Return addresses in one slot.
pub const SLOT_FRAMES: usize = 6;
/// Bytes of build id and path in one slot.
pub const SLOT_TEXT: usize = 48;
/// Offset in a slot of what comes after the time.
pub const BODY: usize = 16;

/// Allocations of at least this many bytes are recorded where nothing else was asked for.
pub const DEFAULT_THRESHOLD_BYTES: u64 = 64 << 10;
/// A log grows to this many bytes at most where nothing else was asked for: a million events.
pub const DEFAULT_LIMIT_BYTES: u64 = 64 << 20;

/// Variables of the environment that the shim reads.
pub mod environment {
    /// Absolute path of the folder for the logs. Without it nothing is recorded.
    pub const FOLDER: &str = "HITHER_PRELOAD_DIR";
    /// Smallest allocation that is recorded, in bytes.
    pub const THRESHOLD: &str = "HITHER_PRELOAD_THRESHOLD";
    /// Most bytes of a log.
    pub const LIMIT: &str = "HITHER_PRELOAD_LIMIT";
}

/// Fields of the header.
pub mod header {
    /// u64 [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32 [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// u32 process.
    pub const PID: usize = 16;
    /// u32 its parent when the log was begun.
    pub const PARENT: usize = 20;
    /// u64 time at which the log was begun: the first large allocation.
    pub const START_NS: usize = 24;
    /// u64 smallest allocation that is recorded.
    pub const THRESHOLD_BYTES: usize = 32;
    /// u64 slots that were asked for so far; some may not have been granted.
    pub const NEXT_SLOT: usize = 40;
    /// u64 allocations that found no room: in the log, or in the table of live ones.
    pub const DROPPED_ALLOCATIONS: usize = 48;
    /// u64 other records that found no room.
    pub const DROPPED_OTHERS: usize = 56;
}

/// Kinds of slots.
pub mod kind {
    /// Memory was given to the program.
    pub const ALLOCATION: u8 = 1;
    /// Heap memory was given back.
    pub const FREE: u8 = 2;
    /// Mappings were undone, in whole or in part.
    pub const UNMAP: u8 = 3;
    /// A call stack, or part of one.
    pub const SITE: u8 = 4;
    /// A loaded object, or part of its description.
    pub const MODULE: u8 = 5;
}

/// How memory was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum How {
    /// `malloc`, and what is built on it (`operator new`).
    Malloc = 1,
    /// `calloc`.
    Calloc = 2,
    /// `realloc`, `reallocarray`.
    Realloc = 3,
    /// `posix_memalign`, `aligned_alloc`, `memalign`, `valloc`, `pvalloc`.
    Aligned = 4,
    /// `mmap` of anonymous memory.
    Map = 5,
    /// `mmap` of a file.
    MapFile = 6,
    /// `mmap` without any access: a reservation of addresses.
    Reserve = 7,
    /// `mremap`.
    Remap = 8,
}

impl How {
    /// Every one.
    pub const ALL: [How; 8] = [
        How::Malloc,
        How::Calloc,
        How::Realloc,
        How::Aligned,
        How::Map,
        How::MapFile,
        How::Reserve,
        How::Remap,
    ];

    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|how| *how as u8 == number)
    }

    /// Is it a mapping, which ends by `munmap`, rather than memory of the heap?
    #[must_use]
    pub fn is_mapping(self) -> bool {
        self as u8 >= How::Map as u8
    }

    /// One word for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            How::Malloc => "malloc",
            How::Calloc => "calloc",
            How::Realloc => "realloc",
            How::Aligned => "aligned",
            How::Map => "mmap",
            How::MapFile => "mmap-file",
            How::Reserve => "reserve",
            How::Remap => "mremap",
        }
    }
}
