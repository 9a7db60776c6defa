//! What a person is told while a guest boots: that it takes its time, and why it may take more.

use crate::image::AGENT_PATH;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time between two lines about a guest that is not up yet: two boots' time on a machine of two CPUs
/// with nothing else to do, so that most boots need no line.
const EVERY: Duration = Duration::from_secs(15);

/// Says now and then that a guest is still booting.
#[derive(Debug, Default)]
pub struct Waiting {
    told_count: u32,
}

impl Waiting {
    /// The line that is due after so much waiting, if any, and the time until the next.
    pub fn turn(&mut self, waited: Duration) -> (Option<String>, Duration) {
        let mut line = None;
        if waited >= EVERY * (self.told_count + 1) {
            self.told_count = (waited.as_secs() / EVERY.as_secs()) as u32;
            line = Some(format!("still booting after {} s", waited.as_secs()));
        }
        (line, (EVERY * (self.told_count + 1)).saturating_sub(waited))
    }
}

/// CPU time in which a guest of one CPU is up wherever it comes up at all: ten times what a boot takes, and as
/// much again for every [`CPUS_MORE`] CPUs.
const MOST_CPU_TIME: Duration = Duration::from_secs(60);
/// CPUs that take as long again to boot, at the most.
const CPUS_MORE: u32 = 4;
/// Windows of [`EVERY`] in which an emulator that does next to nothing waits for what does not come.
const MOST_IDLE: u32 = 4;
/// CPU time of such a window, at the most.
const IDLE: Duration = Duration::from_millis(500);

/// Tells a guest that will never be up from one that is slow, by its emulator's CPU time: QEMU's CPUs can
/// wait for each other for ever, met once in some thousand boots.
#[derive(Debug, Default)]
pub struct Stuck {
    window_ends: Duration,
    used_before: Duration,
    idle_windows: u32,
}

impl Stuck {
    /// The reason, where the guest of so many CPUs will not be up any more. `waited` is time since the start,
    /// `used` the emulator's CPU time.
    pub fn turn(&mut self, waited: Duration, used: Duration, cpus: u32) -> Option<String> {
        if used > MOST_CPU_TIME * (1 + cpus / CPUS_MORE) {
            return Some(format!("it used {} s of CPU time", used.as_secs()));
        }
        if waited < self.window_ends {
            return None;
        }
        let idle = self.window_ends > Duration::ZERO && used - self.used_before < IDLE;
        self.idle_windows = if idle { self.idle_windows + 1 } else { 0 };
        self.window_ends = waited + EVERY;
        self.used_before = used;
        let idle_s = EVERY.as_secs() * u64::from(MOST_IDLE);
        (self.idle_windows == MOST_IDLE).then(|| format!("it did nothing for {idle_s} s"))
    }
}

/// What is said when a boot begins: its limit, and what else makes it slow.
#[must_use]
pub fn announcement(limit: Option<Duration>, others: &[u32]) -> String {
    let mut text = match limit {
        Some(limit) => format!(
            "booting; all is stopped after {} s (--timeout)",
            limit.as_secs()
        ),
        None => "booting, without a limit of time (--timeout 0)".to_owned(),
    };
    if let Some(first) = others.first() {
        let others = match others.len() {
            1 => "another laboratory runs".to_owned(),
            count => format!("{count} other laboratories run"),
        };
        text.push_str(&format!(
            "\n{others} on this machine (process {first}): they share its CPUs, so this one takes longer"
        ));
    }
    text
}

/// Numbers of the processes that emulate a machine for another laboratory, as far as `proc` shows them.
#[must_use]
pub fn laboratories(proc: &Path) -> Vec<u32> {
    let mark = format!("rdinit={AGENT_PATH} ");
    let runs_one = |pid: &u32| {
        // Gone meanwhile, or another user's behind hidepid: none that can be named.
        let words = fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
        words
            .split(|&byte| byte == 0)
            .any(|word| String::from_utf8_lossy(word).contains(&mark))
    };
    let mut found: Vec<u32> = fs::read_dir(proc)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(runs_one)
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_now_and_then() {
        let mut waiting = Waiting::default();
        let seconds = Duration::from_secs;
        assert_eq!(waiting.turn(seconds(0)), (None, seconds(15)));
        assert_eq!(waiting.turn(seconds(14)), (None, seconds(1)));
        let line = |after: u64| Some(format!("still booting after {after} s"));
        assert_eq!(waiting.turn(seconds(15)), (line(15), seconds(15)));
        assert_eq!(waiting.turn(seconds(16)), (None, seconds(14)));
        // After a stop of everything (Ctrl-Z) one line, not all that were missed.
        assert_eq!(waiting.turn(seconds(50)), (line(50), seconds(10)));
        assert_eq!(waiting.turn(seconds(51)), (None, seconds(9)));
    }

    #[test]
    fn a_guest_is_stuck_where_its_emulator_rests_or_never_ends() {
        let seconds = Duration::from_secs;
        let mut stuck = Stuck::default();
        // A slow host: it goes on.
        for at in 0..30 {
            assert_eq!(stuck.turn(seconds(at * 15), seconds(at), 4), None);
        }
        // It rests from here on, looked at more often than a window is long.
        let rests = (450..540).find(|&at| stuck.turn(seconds(at), seconds(29), 4).is_some());
        assert_eq!(rests, Some(495));
        let used = |used, cpus| Stuck::default().turn(seconds(20), seconds(used), cpus);
        assert_eq!(used(120, 4), None);
        assert_eq!(used(121, 4), Some("it used 121 s of CPU time".into()));
        assert_eq!(used(121, 8), None);
    }

    #[test]
    fn other_laboratories_are_found_by_their_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let put = |pid: &str, words: &str| {
            let process = folder.path().join(pid);
            fs::create_dir(&process).unwrap();
            fs::write(process.join("cmdline"), words.replace(' ', "\0")).unwrap();
        };
        put("12", "qemu-system-x86_64 -m 4096");
        put("self", "");
        fs::create_dir(folder.path().join("13")).unwrap();
        assert!(laboratories(folder.path()).is_empty());
        for pid in ["40", "7"] {
            put(pid, "qemu -append X");
            let append = "console=ttyS0 rdinit=/hither/hither -- lab guest";
            let words = format!("qemu\0-append\0{append}\0");
            fs::write(folder.path().join(pid).join("cmdline"), words).unwrap();
        }
        assert_eq!(laboratories(folder.path()), [7, 40]);
    }

    #[test]
    fn the_announcement_tells_limit_and_company() {
        assert_eq!(
            announcement(Some(Duration::from_secs(1800)), &[]),
            "booting; all is stopped after 1800 s (--timeout)"
        );
        assert_eq!(
            announcement(None, &[7]),
            "booting, without a limit of time (--timeout 0)\nanother laboratory runs on this machine \
             (process 7): they share its CPUs, so this one takes longer"
        );
        assert!(announcement(None, &[7, 40]).contains("2 other laboratories run "));
    }
}
