//! A sparse matrix in compressed rows, made row by row so that each thread can make its own.
//!
//! 64-bit column numbers, as solvers for large systems use them: 16 bytes per element, so that the
//! product is bound by memory. A row has [`ROW_ELEMENTS`] elements: one on the diagonal, one
//! anywhere, the others within [`BAND`] of the diagonal, in ascending order. The columns of a row
//! depend on its number alone.

use crate::random::{FastRandom, mix};

/// Elements per row.
pub const ROW_ELEMENTS: usize = 16;
/// How far from the diagonal the near elements lie, in rows.
pub const BAND: usize = 4096;

/// Column numbers of row `row` in a matrix of `rows` rows, ascending; they may repeat.
#[must_use]
pub fn columns(row: usize, rows: usize) -> [u64; ROW_ELEMENTS] {
    let mut random = FastRandom::new(mix(row as u64));
    let low = row.saturating_sub(BAND);
    let high = (row + BAND + 1).min(rows);
    let mut columns = [0u64; ROW_ELEMENTS];
    columns[0] = row as u64;
    columns[1] = random.below(rows as u64);
    for column in &mut columns[2..] {
        *column = low as u64 + random.below((high - low) as u64);
    }
    columns.sort_unstable();
    columns
}

/// Value of the element at a position: positive, and large on the diagonal.
#[must_use]
pub fn value(row: usize, column: u64) -> f64 {
    if row as u64 == column {
        return ROW_ELEMENTS as f64;
    }
    // 1/256 to 1: exact in binary.
    ((mix(column ^ ((row as u64) << 32)) & 0xff) + 1) as f64 / 256.0
}

/// Product of one row (column numbers, bits of values) with a vector, in the order of its columns.
#[inline(always)]
pub fn dot(columns: &[u64], values: &[u64], vector: impl Fn(u64) -> f64) -> f64 {
    columns
        .iter()
        .zip(values)
        .fold(0.0, |sum, (column, value)| {
            sum + f64::from_bits(*value) * vector(*column)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_inside_the_matrix_and_near_the_diagonal() {
        for rows in [1usize, 2, 100, 20_000] {
            for row in (0..rows).step_by(rows.div_ceil(50)) {
                let columns = columns(row, rows);
                assert!(columns.is_sorted());
                assert!(columns.iter().all(|&column| column < rows as u64));
                assert!(columns.contains(&(row as u64)));
                let far = columns
                    .iter()
                    .filter(|&&column| column.abs_diff(row as u64) > BAND as u64);
                assert!(far.count() <= 1, "row {row}: {columns:?}");
            }
        }
    }

    #[test]
    fn rows_differ_and_repeat_on_demand() {
        assert_ne!(columns(500, 20_000), columns(501, 20_000));
        assert_eq!(columns(500, 20_000), columns(500, 20_000));
    }

    #[test]
    fn the_product_is_the_sum_over_columns() {
        let vector = [1.0, 10.0, 100.0];
        let values = [2.0f64, 0.5, 0.25].map(f64::to_bits);
        let product = dot(&[0, 2, 2], &values, |column| vector[column as usize]);
        assert_eq!(product, 2.0 + 50.0 + 25.0);
    }
}
