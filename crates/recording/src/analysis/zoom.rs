//! Successive refinement (IBM ccNUMA paper, section 2): from the areas of a program to pages to cache
//! lines, each step only where the one before leaves something open.

use super::areas::{Area, Areas};
use super::data::Data;
use super::pages::{CountedPage, PAGE_BYTES, PagesSummary};
use super::sharing::{self, SharedLine};
use super::use_of::{AreaUse, Judged, Remedy};
use super::verdict;
use hither_core::snapshot::Evidence;

/// Share of all accesses and transfers below which nothing is worth a look.
const WORTH: f64 = 0.03;
/// Share of an area's own accesses and transfers that are to shared lines from which on those are
/// looked for.
const CONTESTED: f64 = 0.1;
/// Lines that are told of an area at most.
const MOST_LINES: usize = 16;

/// What is done about an area, a page or a line after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// It is known what would help.
    Settled,
    /// Its pages are looked at.
    Pages,
    /// The lines of its contested pages are looked at.
    Lines,
    /// More would have to be seen.
    Longer,
}

impl Next {
    /// One or two words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Pages => "its pages",
            Self::Lines => "its lines",
            Self::Longer => "look longer",
        }
    }
}

/// What would help in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ZoomAdvice {
    /// Placement of memory.
    Place(Remedy),
    /// Data of one thread on a line of its own.
    Pad,
    /// Threads that use the same words near each other.
    Gather,
}

impl ZoomAdvice {
    /// One or a few words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Place(remedy) => remedy.name(),
            Self::Pad => "pad",
            Self::Gather => "move the threads",
        }
    }

    /// In a sentence, with what is known of writes to the place.
    #[must_use]
    pub fn sentence(self, data: &Data, written: &Evidence<bool>) -> String {
        match self {
            Self::Place(remedy) => verdict::advice(data, remedy, written),
            Self::Pad => {
                "give what belongs to one thread a line of its own: pad or align it".to_owned()
            }
            Self::Gather => {
                "they use the same words, so the program means it: run its users on CPUs that share \
                 a cache, or let each collect for itself and add up at the end"
                    .to_owned()
            }
        }
    }
}

/// A row of a step: its choice, with the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoomChoice {
    /// What would help as far as is known; `None` where it is open.
    pub advice: Option<ZoomAdvice>,
    /// What is done next.
    pub next: Next,
    /// A clause that says why.
    pub why: String,
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn settled(advice: ZoomAdvice, why: String) -> ZoomChoice {
    ZoomChoice {
        advice: Some(advice),
        next: Next::Settled,
        why,
    }
}

/// Of memory whose users are known, and its nodes are not.
fn homeless() -> ZoomChoice {
    ZoomChoice {
        advice: None,
        next: Next::Longer,
        why: "samples do not tell which node's memory serves it".to_owned(),
    }
}

/// Share of all accesses and transfers that an area has.
#[must_use]
pub fn share(areas: &Areas, area: &Area) -> f64 {
    let all = areas.list.iter().map(|a| a.accesses + a.transfers);
    let all: f64 = all.sum();
    if all > 0.0 {
        (area.accesses + area.transfers) / all
    } else {
        0.0
    }
}

/// Step 1: of every area, what is known and what is looked at next.
#[must_use]
pub fn of_areas(data: &Data, areas: &Areas, judged: &[Judged]) -> Vec<ZoomChoice> {
    let mut shared = vec![0.0; areas.list.len()];
    // Where nothing tells of transfers, lines that several write must do.
    let tells = areas.list.iter().any(|area| area.transfers > 0.0);
    let lines = (!tells).then(|| sharing::lines(data, &areas.of_access, usize::MAX));
    for line in lines.iter().flatten() {
        if let Some(sum) = shared.get_mut(line.area as usize) {
            *sum += line.accesses;
        }
    }
    let rows = areas.list.iter().zip(judged).zip(shared);
    rows.map(|((area, judged), shared)| {
        let all = area.accesses + area.transfers;
        let share = share(areas, area);
        let contested = shared.max(area.transfers) / all.max(1.0);
        if share < WORTH {
            return settled(
                ZoomAdvice::Place(Remedy::Nothing),
                format!("it has {} of all accesses", percent(share)),
            );
        }
        if contested >= CONTESTED {
            return ZoomChoice {
                advice: None,
                next: Next::Pages,
                why: format!(
                    "{} of what it costs are lines that bounce between caches (HITM): which pages have \
                     them?",
                    percent(contested)
                ),
            };
        }
        let local = area.local_ratio().map_or(String::new(), |local| {
            format!("{} of its accesses are local", percent(local))
        });
        match (judged.by, judged.remedy) {
            (AreaUse::Unknown, _) => ZoomChoice {
                advice: None,
                next: Next::Pages,
                why: format!("{} samples do not tell its users", area.sample_count),
            },
            (_, Remedy::Unknown) => homeless(),
            (_, Remedy::Nothing) => settled(ZoomAdvice::Place(Remedy::Nothing), local),
            // Parts were made large for want of samples: their pages may have one user each.
            (AreaUse::Shared, _) if judged.part_bytes > PAGE_BYTES => ZoomChoice {
                advice: Some(ZoomAdvice::Place(judged.remedy)),
                next: Next::Pages,
                why: format!(
                    "its parts of {} KiB have several users: have its pages, too?",
                    judged.part_bytes >> 10
                ),
            },
            (_, remedy) => settled(
                ZoomAdvice::Place(remedy),
                format!("{local}, {}", verdict::describe(data, area, judged)),
            ),
        }
    })
    .collect()
}

/// Step 2: what the pages of an area leave open.
#[must_use]
pub fn of_pages(pages: &[CountedPage], summary: &PagesSummary) -> ZoomChoice {
    let contested: f64 = pages
        .iter()
        .filter(|page| page.is_contested())
        .map(CountedPage::transferred)
        .sum();
    let all = summary.accesses + summary.transfers;
    if contested >= CONTESTED * all && contested > 0.0 {
        return ZoomChoice {
            advice: None,
            next: Next::Lines,
            why: format!(
                "lines of {} of its {} pages bounce between caches (HITM), {} of what it costs: which \
                 lines?",
                summary.contested_count,
                summary.page_count,
                percent(contested / all)
            ),
        };
    }
    let owned = format!(
        "{} of the accesses to its pages are by the node that uses the page most",
        percent(summary.owned)
    );
    match summary.by {
        AreaUse::Unknown => ZoomChoice {
            advice: None,
            next: Next::Longer,
            why: format!(
                "only {} of its accesses are to pages of which enough was seen",
                percent(summary.known)
            ),
        },
        _ if summary.remedy == Remedy::Unknown => homeless(),
        AreaUse::One(_) => settled(
            ZoomAdvice::Place(summary.remedy),
            "one node uses its pages".to_owned(),
        ),
        AreaUse::Divided | AreaUse::Shared => settled(ZoomAdvice::Place(summary.remedy), owned),
    }
}

/// The lines of an area that several users share, by accesses and transfers, most first.
#[must_use]
pub fn lines_of(data: &Data, areas: &Areas, area: usize) -> Vec<SharedLine> {
    let mut lines = sharing::lines(data, &areas.of_access, usize::MAX);
    lines.retain(|line| line.area as usize == area);
    lines.truncate(MOST_LINES);
    lines
}

/// Step 3: what a shared line is.
#[must_use]
pub fn of_line(line: &SharedLine) -> ZoomChoice {
    let users = line.users.len();
    match line.is_false() {
        None => ZoomChoice {
            advice: None,
            next: Next::Longer,
            why: format!(
                "{users} users; too few samples tell whether they use the same words, or each its own"
            ),
        },
        Some(true) => settled(
            ZoomAdvice::Pad,
            format!(
                "false sharing: {users} users, {} of their accesses to words that one alone uses",
                percent(line.apart)
            ),
        ),
        Some(false) => settled(
            ZoomAdvice::Gather,
            format!(
                "true sharing: {users} users, {} of their accesses to words of several",
                percent(1.0 - line.apart)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::tests::{empty, transfer, write};
    use super::super::pages;
    use super::super::use_of::judge;
    use super::*;
    use crate::rows::Mapping;

    fn mapping(start: u64, end: u64, name: &str) -> Mapping {
        Mapping {
            time_ns: 0,
            pid: 7,
            start,
            end,
            permissions: "rw-p".into(),
            name: name.into(),
        }
    }

    /// `counters`: two words of a line, used by a CPU each; `array`: 64 pages on position 0, used by
    /// `user(page, turn)`.
    fn planted(user: impl Fn(u64, u64) -> u16, counters: bool) -> Data {
        let mut data = empty();
        data.mappings = vec![
            mapping(0x1000, 0x2000, "counters"),
            mapping(0x10_0000, 0x14_0000, "array"),
        ];
        for turn in 0..64 {
            for page in 0..64 {
                let address = 0x10_0000 + page * PAGE_BYTES + 64 * turn;
                data.accesses
                    .push(write(turn, address, user(page, turn), 0));
                if counters {
                    let cpu = (page % 2) as u16;
                    data.accesses
                        .push(transfer(turn, 0x1000 + 8 * u64::from(cpu), cpu, 0));
                }
            }
        }
        data
    }

    #[test]
    fn areas_that_tell_are_settled_at_once() {
        let data = planted(|page, _| u16::from(page >= 32), false);
        let areas = areas(&data);
        let choices = of_areas(&data, &areas, &judge(&data, &areas));
        assert_eq!(choices.len(), 1);
        assert_eq!(choices[0].next, Next::Settled, "{choices:?}");
        assert_eq!(
            choices[0].advice,
            Some(ZoomAdvice::Place(Remedy::MakeLocal))
        );
    }

    #[test]
    fn false_sharing_is_followed_down_to_its_line() {
        let data = planted(|_, _| 0, true);
        let areas = areas(&data);
        let choices = of_areas(&data, &areas, &judge(&data, &areas));
        let at = areas
            .list
            .iter()
            .position(|area| area.name == "counters")
            .unwrap();
        assert_eq!(choices[at].next, Next::Pages, "{choices:?}");
        assert_eq!(choices[1 - at].next, Next::Settled, "{choices:?}");
        let pages = pages::of_samples(&data, &areas, at);
        let summary = pages::summary(&pages, 2);
        let choice = of_pages(&pages, &summary);
        assert_eq!(choice.next, Next::Lines, "{choice:?}");
        let lines = lines_of(&data, &areas, at);
        assert_eq!(lines.len(), 1);
        assert_eq!(of_line(&lines[0]).advice, Some(ZoomAdvice::Pad));
        assert!(of_line(&lines[0]).why.contains("2 users, 100 %"));
    }

    #[test]
    fn words_of_several_users_are_meant() {
        let mut data = planted(|_, _| 0, false);
        for turn in 0..4096 {
            data.accesses
                .push(transfer(turn, 0x1000, (turn % 2) as u16, 0));
        }
        let areas = areas(&data);
        let at = areas.list.iter().position(|area| area.name == "counters");
        let lines = lines_of(&data, &areas, at.unwrap());
        assert_eq!(of_line(&lines[0]).advice, Some(ZoomAdvice::Gather));
    }

    #[test]
    fn little_is_left_alone_and_too_little_is_said() {
        let mut data = planted(|_, turn| (turn % 2) as u16, false);
        data.accesses.push(write(0, 0x1000, 0, 0));
        let areas = areas(&data);
        let choices = of_areas(&data, &areas, &judge(&data, &areas));
        // Parts of one page already: nothing finer could tell more.
        assert_eq!(
            choices[0].advice,
            Some(ZoomAdvice::Place(Remedy::Interleave)),
            "{choices:?}"
        );
        assert_eq!(choices[0].next, Next::Settled);
        assert_eq!(choices[1].advice, Some(ZoomAdvice::Place(Remedy::Nothing)));
        let few = pages::of_samples(&data, &areas, 1);
        let mut summary = pages::summary(&few, 2);
        summary.by = AreaUse::Unknown;
        assert_eq!(of_pages(&few, &summary).next, Next::Longer);
    }
}
