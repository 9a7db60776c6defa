//! Maintenance windows: the times of the week in which pages of a target may be moved.
//!
//! ```text
//! 22:00-06:00              every day, until the next morning
//! Mon-Fri 22:00-06:00      on the nights that begin on these days
//! Sat,Sun                  the whole of these days
//! ```

use std::fmt;
use std::str::FromStr;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u32 = 24 * 60;

/// An instant of the week, in the machine's local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    /// Monday is 0.
    pub day: usize,
    /// Since midnight, below 1440.
    pub minute: u32,
}

/// One window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// On which days it begins, Monday first.
    days: [bool; 7],
    /// First minute of the day.
    from: u32,
    /// Minutes that it lasts, at most a day.
    length: u32,
    text: String,
}

impl Window {
    /// Is it open?
    #[must_use]
    pub fn holds(&self, now: Instant) -> bool {
        let since = |day: usize, minutes: u32| {
            self.days[day] && (self.from..self.from + self.length).contains(&minutes)
        };
        let yesterday = (now.day + 6) % 7;
        since(now.day, now.minute) || since(yesterday, now.minute + DAY_MINUTES)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || {
            format!(
                "`{}` is no window; write days, times or both, as \"Mon-Fri 22:00-06:00\"",
                text.escape_default()
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, times) = match words[..] {
            [one] if one.starts_with(|letter: char| letter.is_ascii_digit()) => (None, Some(one)),
            [one] => (Some(one), None),
            [days, times] => (Some(days), Some(times)),
            _ => return Err(fail()),
        };
        let days = match days {
            Some(days) => parse_days(days).ok_or_else(fail)?,
            None => [true; 7],
        };
        let (from, length) = match times {
            Some(times) => {
                let (from, to) = times.split_once('-').ok_or_else(fail)?;
                let (from, to) = (
                    parse_time(from).ok_or_else(fail)?,
                    parse_time(to).ok_or_else(fail)?,
                );
                // Until a time that is not later it lasts into the next day.
                let length = if to > from {
                    to - from
                } else {
                    to + DAY_MINUTES - from
                };
                if from == DAY_MINUTES {
                    return Err(fail());
                }
                (from, length)
            }
            None => (0, DAY_MINUTES),
        };
        Ok(Self {
            days,
            from,
            length,
            text: words.join(" "),
        })
    }
}

/// `Mon`, `Mon-Fri`, `Sat,Sun`, `Fri-Mon`.
fn parse_days(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (day(first)?, day(last)?),
            None => (day(part)?, day(part)?),
        };
        let mut at = first;
        loop {
            days[at] = true;
            if at == last {
                break;
            }
            at = (at + 1) % 7;
        }
    }
    Some(days)
}

/// `00:00` to `24:00`, in minutes.
fn parse_time(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= DAY_MINUTES).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str, day: usize, hour: u32, minute: u32) -> bool {
        let minute = hour * 60 + minute;
        text.parse::<Window>()
            .unwrap()
            .holds(Instant { day, minute })
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let text = "Mon-Fri 22:00-06:00";
        assert!(open(text, 0, 22, 0) && open(text, 1, 5, 59) && open(text, 5, 3, 0));
        assert!(!open(text, 0, 5, 0) && !open(text, 1, 6, 0) && !open(text, 5, 23, 0));
        assert!(!open(text, 6, 5, 0));
        assert!(open("Sun 23:00-01:00", 0, 0, 30));
    }

    #[test]
    fn days_and_times_may_stand_alone() {
        assert!(
            open("Sat,Sun", 5, 0, 0) && open("Sat,Sun", 6, 23, 59) && !open("Sat,Sun", 0, 0, 0)
        );
        assert!(open("Fri-Mon", 0, 12, 0) && !open("Fri-Mon", 1, 12, 0));
        assert!(open("08:30-24:00", 3, 23, 59) && !open("08:30-24:00", 3, 8, 29));
        assert!(open("06:00-06:00", 3, 5, 0));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for bad in [
            "",
            "Mon-",
            "x",
            "1:00-2:00",
            "25:00-26:00",
            "24:00-01:00",
            "Mon 1",
            "Mon 10:00",
            "a b c",
            "10:60-11:00",
        ] {
            let error = bad.parse::<Window>().unwrap_err();
            assert!(error.contains("is no window"), "{bad}");
        }
    }
}
