//! What can be made out of a recording: pure functions from its rows to figures.
//!
//! | file | makes |
//! |---|---|
//! | `data` | the rows in memory, compact, with ids resolved |
//! | `areas` | per data area, who reads and writes it from where: the Opium table (IBM paper, section 2) |
//! | `use_of` | is an area used by one node, by parts, or by all; what would help |
//! | `pages` | the pages of an area, from samples or counters |
//! | `written` | was an area written, and what says so |
//! | `sharing` | cache lines that several use and one writes: false sharing |
//! | `heat` | address by time |
//! | `working_set` | how much memory is in use |
//! | `phases` | stretches of time in which about the same memory is used |
//! | `forming` | regions that are used together, by access and idle time |
//! | `homes` | where pages are, and from where to where they went |
//! | `verdict` | what it comes to, and the one thing to try next |
//! | `page` | one page, or a few: who uses which line of it, from which code |
//! | `what_if` | what other sizes of fast memory, or another machine, would bring |
//! | `zoom` | step by step from areas to pages to lines, until remedies are known |

pub mod areas;
pub mod data;
pub mod forming;
pub mod heat;
pub mod homes;
pub mod page;
pub mod pages;
pub mod phases;
pub mod sharing;
pub mod use_of;
pub mod verdict;
pub mod what_if;
pub mod working_set;
pub mod written;
pub mod zoom;

pub use data::Data;
