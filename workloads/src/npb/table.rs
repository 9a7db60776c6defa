//! Table I of the HyDM paper, and the work of a kernel to hold against it.

/// A row of the table: NPB of class C on a Xeon Phi 7250, alone.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The kernel, as the operand of `npb` names it.
    pub name: &'static str,
    /// Floating-point operations, in thousands of millions.
    pub gflop: f64,
    /// Memory accesses that read, in millions.
    pub reads: f64,
    /// Memory accesses that write, in millions.
    pub writes: f64,
    /// Peak memory use in megabytes.
    pub mb: f64,
}

/// Bytes of a memory access: a line.
pub const LINE_BYTES: f64 = 64.0;

/// The table.
pub const TABLE: [Row; 8] = [
    row("is", 23.0, 758.0, 338.0, 1572.0),
    row("ep", 494.0, 2739.0, 1028.0, 20.0),
    row("cg", 261.0, 31_174.0, 810.0, 1102.0),
    row("mg", 213.0, 7507.0, 2940.0, 3536.0),
    row("ft", 837.0, 18_555.0, 10_197.0, 7188.0),
    row("bt", 2560.0, 45_682.0, 17_270.0, 1676.0),
    row("sp", 1918.0, 92_526.0, 47_727.0, 1416.0),
    row("lu", 2504.0, 84_716.0, 38_302.0, 760.0),
];

/// Megabytes of the largest, to which `--scale-mb` refers.
pub const LARGEST_MB: f64 = 7188.0;

const fn row(name: &'static str, gflop: f64, reads: f64, writes: f64, mb: f64) -> Row {
    Row {
        name,
        gflop,
        reads,
        writes,
        mb,
    }
}

impl Row {
    /// The row of a kernel.
    ///
    /// # Panics
    /// Where there is no such kernel.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let row = TABLE.iter().find(|row| row.name == name);
        *row.expect("kernels are those of the table")
    }

    /// Floating-point operations per byte of memory traffic.
    #[must_use]
    pub fn flops_per_byte(&self) -> f64 {
        self.gflop * 1e9 / ((self.reads + self.writes) * 1e6 * LINE_BYTES)
    }

    /// Bytes for a machine on which the largest has `scale_mb` MB (of 2^20 bytes).
    #[must_use]
    pub fn bytes(&self, scale_mb: u64) -> usize {
        (self.mb / LARGEST_MB * (scale_mb << 20) as f64) as usize
    }
}

/// Work by a kernel's formula.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of the lines that come from memory, those that a store fetches included.
    pub read_bytes: u64,
    /// Bytes of the lines that go back to memory.
    pub write_bytes: u64,
}

impl Work {
    /// So much, `times` times.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self {
            flops: self.flops * times,
            read_bytes: self.read_bytes * times,
            write_bytes: self.write_bytes * times,
        }
    }

    /// Floating-point operations per byte of memory traffic.
    #[must_use]
    pub fn flops_per_byte(&self) -> f64 {
        self.flops as f64 / (self.read_bytes + self.write_bytes) as f64
    }
}
