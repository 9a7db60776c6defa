//! Mixing of addresses. Tables are indexed by the top bits of the result.

/// One more word.
#[inline(always)]
pub const fn mix(hash: u64, word: u64) -> u64 {
    // Fibonacci hashing with a rotation, as in rustc's hash: cheap, and addresses differ low down.
    (hash.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The top `bits` bits.
#[inline(always)]
pub const fn top(hash: u64, bits: u32) -> usize {
    (hash >> (64 - bits)) as usize
}

/// Finishes a hash that must be unlike others in all bits, and not zero.
pub const fn finish(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (hash ^ (hash >> 29)) | 1
}
