//! Grids of three dimensions that are periodic, and lines through them.

use std::ops::Range;

/// Points along each axis; x runs fastest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Along x, a power of two.
    pub x: usize,
    /// Along y, as many as along x.
    pub y: usize,
    /// Along z.
    pub z: usize,
}

/// Points that a solver goes through one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Number of the first.
    pub first: usize,
    /// Distance between two.
    pub stride: usize,
    /// How many.
    pub len: usize,
}

impl Grid {
    /// About `points` points, those along z a multiple of `multiple`, and so that z is the longest
    /// axis: planes are small then, and several fit into a cache.
    #[must_use]
    pub fn of(points: usize, multiple: usize) -> Self {
        let side = 1 << (points.max(64).ilog2() / 3);
        let units = (points as f64 / (side * side * multiple) as f64).round() as usize;
        Self {
            x: side,
            y: side,
            z: units.max(1) * multiple,
        }
    }

    /// All points.
    #[must_use]
    pub fn points(self) -> usize {
        self.x * self.y * self.z
    }

    /// Number of a point.
    #[inline(always)]
    #[must_use]
    pub fn at(self, z: usize, y: usize, x: usize) -> usize {
        (z * self.y + y) * self.x + x
    }

    /// The six neighbours of a point, around the edges.
    #[inline(always)]
    #[must_use]
    pub fn neighbours(self, z: usize, y: usize, x: usize) -> [usize; 6] {
        [
            self.at(z, y, before(x, self.x)),
            self.at(z, y, after(x, self.x)),
            self.at(z, before(y, self.y), x),
            self.at(z, after(y, self.y), x),
            self.at(before(z, self.z), y, x),
            self.at(after(z, self.z), y, x),
        ]
    }

    /// Calls `body` with each line along an axis (0 is x, 1 is y, 2 is z), in the order of memory. `own` are the
    /// planes of z that the thread has, or for lines along z its planes of y.
    pub fn lines(self, axis: usize, own: Range<usize>, mut body: impl FnMut(Line)) {
        for outer in own {
            let inner = if axis == 0 { self.y } else { self.x };
            for at in 0..inner {
                let (first, stride, len) = match axis {
                    0 => (self.at(outer, at, 0), 1, self.x),
                    1 => (self.at(outer, 0, at), self.x, self.y),
                    _ => (self.at(0, outer, at), self.x * self.y, self.z),
                };
                body(Line { first, stride, len });
            }
        }
    }

    /// Planes that threads share out for lines along an axis.
    #[must_use]
    pub fn planes(self, axis: usize) -> usize {
        if axis == 2 { self.y } else { self.z }
    }

    /// Lines along each axis and their length.
    #[must_use]
    pub fn line_counts(self) -> [(u64, u64); 3] {
        [self.x, self.y, self.z].map(|len| ((self.points() / len) as u64, len as u64))
    }
}

impl Line {
    /// The number of its point `at`.
    #[inline(always)]
    #[must_use]
    pub fn at(self, at: usize) -> usize {
        self.first + at * self.stride
    }
}

/// The neighbour below, around the edge.
#[inline(always)]
#[must_use]
pub fn before(at: usize, count: usize) -> usize {
    if at == 0 { count - 1 } else { at - 1 }
}

/// The neighbour above, around the edge.
#[inline(always)]
#[must_use]
pub fn after(at: usize, count: usize) -> usize {
    if at + 1 == count { 0 } else { at + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_reach_each_point_once_along_each_axis() {
        let grid = Grid { x: 4, y: 4, z: 5 };
        for axis in 0..3 {
            let mut seen = vec![0; grid.points()];
            grid.lines(axis, 0..grid.planes(axis), |line| {
                (0..line.len).for_each(|at| seen[line.at(at)] += 1);
            });
            assert_eq!(seen, vec![1; grid.points()], "axis {axis}");
        }
    }

    #[test]
    fn a_grid_is_near_what_is_asked_for() {
        for points in [1000, 38_000, 1 << 20] {
            let grid = Grid::of(points, 1);
            assert!(grid.points().abs_diff(points) * 20 < points, "{grid:?}");
            assert!(grid.z >= grid.x && grid.z <= 8 * grid.x, "{grid:?}");
        }
        assert_eq!(Grid::of(941_000, 8).z % 8, 0);
    }

    #[test]
    fn neighbours_go_around_the_edges() {
        let grid = Grid { x: 4, y: 4, z: 5 };
        assert_eq!(grid.neighbours(0, 0, 0), [3, 1, 12, 4, 64, 16]);
        assert_eq!(grid.neighbours(4, 3, 3)[5], 15);
    }
}
