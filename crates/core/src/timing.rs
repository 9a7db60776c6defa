//! The memory-time model: loaded latency and capacity, shared by the emulator and the simulator.
//!
//! Source: `L = L0 + a*rho + b*rho^n/(1-rho)` fitted to measured bandwidth-latency curves, and
//! capacity as a function of the read share (Mess data; Carrefour's table 1 for the Opteron).

use crate::machine::{Capacity, Curve};

/// Utilisation is capped here: beyond it the formula has no meaning and capacity rules.
pub const MAX_UTILISATION: f64 = 0.985;

impl Curve {
    /// Time that load adds to the idle latency, in ns, at utilisation `rho` (0..=1).
    #[must_use]
    pub fn queueing_ns(&self, rho: f64) -> f64 {
        let rho = rho.clamp(0.0, MAX_UTILISATION);
        self.a_ns * rho + self.b_ns * rho.powf(self.n) / (1.0 - rho)
    }
}

impl Capacity {
    /// Capacity in GB/s at a read share (0..=1).
    #[must_use]
    pub fn at(&self, read_share: f64) -> f64 {
        let points = &self.points;
        let after = points.partition_point(|&(share, _)| share < read_share);
        if after == 0 {
            return points[0].1;
        }
        if after == points.len() {
            return points[after - 1].1;
        }
        let ((low, low_gbs), (high, high_gbs)) = (points[after - 1], points[after]);
        low_gbs + (high_gbs - low_gbs) * (read_share - low) / (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_linear_between_points_and_flat_outside() {
        // Skylake 8160: 105 GB/s at 96 % reads, 87 at 56 %; half way (76 %) is 96.
        let capacity = Capacity {
            points: vec![(0.56, 87.0), (0.96, 105.0)],
        };
        assert!((capacity.at(0.76) - 96.0).abs() < 1e-9);
        assert!((capacity.at(0.0) - 87.0).abs() < 1e-9);
        assert!((capacity.at(1.0) - 105.0).abs() < 1e-9);
    }

    #[test]
    fn queueing_follows_the_formula_and_is_capped() {
        // a=10, b=2, n=2 at 0.5: 10*0.5 + 2*0.25/0.5 = 6.
        let curve = Curve {
            a_ns: 10.0,
            b_ns: 2.0,
            n: 2.0,
        };
        assert!((curve.queueing_ns(0.5) - 6.0).abs() < 1e-9);
        assert_eq!(curve.queueing_ns(0.0), 0.0);
        assert_eq!(curve.queueing_ns(1.5), curve.queueing_ns(MAX_UTILISATION));
    }
}
