//! Records of a perf ring.

/// Bytes of a record's header: `u32` type, `u16` mode, `u16` size of the whole record.
pub const HEADER_BYTES: usize = 8;
