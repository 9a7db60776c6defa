//! The rate limit: a token bucket that may go into debt once.
//!
//! Tokens are bytes and come at the rate, up to a tenth of a second's worth. A batch may start as
//! soon as the bucket is not in debt, and takes all its bytes then; so that a batch larger than the
//! bucket is served too, and the mean rate holds all the same. Time is an argument.

/// Allows so many bytes a second.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_s: u64,
    /// In bytes times 10^9, so that every nanosecond adds a whole number. Negative: debt.
    tokens: i128,
    filled_ns: u64,
}

const NS_PER_S: i128 = 1_000_000_000;

impl TokenBucket {
    /// A full bucket. A rate of 0 is taken as 1.
    pub fn new(bytes_per_s: u64, now_ns: u64) -> Self {
        let mut bucket = Self::empty(bytes_per_s, now_ns);
        bucket.tokens = bucket.most();
        bucket
    }

    /// One that has nothing, and no debt: the first batch goes, the second waits for it.
    pub fn empty(bytes_per_s: u64, now_ns: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.max(1),
            tokens: 0,
            filled_ns: now_ns,
        }
    }

    fn most(&self) -> i128 {
        i128::from(self.bytes_per_s) * NS_PER_S / 10
    }

    /// Takes the bytes and returns `None`, or takes nothing and returns the ns until it can.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> Option<u64> {
        let passed_ns = i128::from(now_ns.saturating_sub(self.filled_ns));
        self.filled_ns = self.filled_ns.max(now_ns);
        let more = passed_ns * i128::from(self.bytes_per_s);
        self.tokens = (self.tokens + more).min(self.most());
        if self.tokens >= 0 {
            self.tokens -= i128::from(bytes) * NS_PER_S;
            return None;
        }
        let rate = i128::from(self.bytes_per_s);
        let delay_ns = (-self.tokens + rate - 1) / rate;
        Some(u64::try_from(delay_ns).unwrap_or(u64::MAX))
    }

    /// Returns bytes that were taken and not used.
    pub fn give_back(&mut self, bytes: u64) {
        self.tokens = (self.tokens + i128::from(bytes) * NS_PER_S).min(self.most());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_waits_until_the_debt_is_paid() {
        // 1000 bytes/s: a full bucket has 100 bytes. 600 leave a debt of 500, which is half a
        // second.
        let mut bucket = TokenBucket::new(1000, 0);
        assert_eq!(bucket.take(600, 0), None);
        assert_eq!(bucket.take(1, 0), Some(500_000_000));
        assert_eq!(bucket.take(1, 499_999_999), Some(1));
        assert_eq!(bucket.take(1, 500_000_000), None);
    }

    #[test]
    fn an_idle_bucket_does_not_overflow() {
        let mut bucket = TokenBucket::new(1000, 0);
        let year_ns = 31_536_000_000_000_000;
        assert_eq!(bucket.take(101, year_ns), None);
        assert_eq!(bucket.take(1, year_ns), Some(1_000_000));
        assert_eq!(TokenBucket::new(0, 0).take(u64::MAX, 0), None);
    }

    proptest! {
        /// Over any sequence, what passes is at most the rate times the time, plus the bucket,
        /// plus the one batch that went into debt.
        #[test]
        fn the_mean_rate_holds(
            rate in 1u64..1 << 40,
            steps in prop::collection::vec((0u64..1 << 30, 0u64..1_000_000_000), 1..100),
        ) {
            let mut bucket = TokenBucket::new(rate, 0);
            let (mut now_ns, mut passed, mut largest) = (0, 0u128, 0);
            for (bytes, wait_ns) in steps {
                now_ns += wait_ns;
                largest = largest.max(bytes);
                match bucket.take(bytes, now_ns) {
                    None => passed += u128::from(bytes),
                    Some(delay_ns) => {
                        now_ns += delay_ns;
                        prop_assert_eq!(bucket.take(bytes, now_ns), None);
                        passed += u128::from(bytes);
                    }
                }
                let allowed = u128::from(rate) * u128::from(now_ns) / 1_000_000_000
                    + u128::from(rate) / 10 + u128::from(largest) + 1;
                prop_assert!(passed <= allowed, "{} of {}", passed, allowed);
            }
        }
    }
}
