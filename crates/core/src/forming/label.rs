//! To which region a page belongs, as a small number.

/// A region's position, or [`SEED`], or [`GLOBAL`].
pub type Label = u32;

/// No region yet.
pub const SEED: Label = u32::MAX;
/// Used from everywhere all the time.
pub const GLOBAL: Label = u32::MAX - 1;

/// Is it a region's position?
#[inline]
pub fn is_region(label: Label) -> bool {
    label < GLOBAL
}
