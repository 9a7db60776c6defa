//! `/proc/schedstat`: how long CPUs have run anything (`Documentation/scheduler/sched-stats.rst`).

/// CPU time of all that ran on this machine so far, kernel threads included, in ns, over all CPUs.
/// What runs now is counted from when it last began. `None` where the kernel keeps no such account
/// (`CONFIG_SCHEDSTATS`).
#[must_use]
pub fn busy_ns() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/schedstat").ok()?)
}

/// The seventh number of each CPU's line.
fn parse(text: &str) -> Option<u64> {
    let is_cpu = |word: &str| {
        let number = word.strip_prefix("cpu");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut sum = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next().is_some_and(is_cpu) {
            let ran: u64 = words.nth(6)?.parse().ok()?;
            sum = Some(sum.unwrap_or(0) + ran);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_summed_and_domains_are_not() {
        let text = "version 16\ntimestamp 4294937\n\
                    cpu0 0 0 0 0 0 0 1200 30 7\ndomain0 ff 1 2 3 4 5 6 7 8\n\
                    cpu1 0 0 0 0 0 0 34 5 6\n";
        assert_eq!(parse(text), Some(1234));
        assert_eq!(parse("version 16\n"), None);
        assert_eq!(parse("cpu0 1 2 3\n"), None);
    }
}
