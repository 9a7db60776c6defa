//! Recordings: what trackers saw, in files that pandas and DuckDB read too, and what can be made
//! out of them.
//!
//! A recording is a folder:
//!
//! ```text
//! recording.json            what was recorded where; how it ended, once it has
//! samples-00000.parquet     a segment of the table of samples; then samples-00001.parquet, ...
//! intervals-00000.parquet   and so on, for each table of [`rows`]
//! SHA256SUMS                of every segment, as sha256sum(1) writes and checks it
//! ```
//!
//! Parquet files have their index at the end, so that one that was cut off is lost. A recorder may
//! be killed at any moment: rows are therefore written in segments, each of which gets its name
//! only when it is whole. What was killed has all but the last seconds. A segment that does not
//! have its sum is left out and told, never decoded.
//!
//! [`analysis`] is pure: rows in, figures out.

#![forbid(unsafe_code)]

pub mod analysis;
mod column;
mod error;
pub mod exchange;
pub mod folder;
pub mod meta;
mod pages;
pub mod read;
pub mod rows;
mod table;
pub mod write;

pub use error::{Error, Result};
pub use folder::Folder;
pub use read::Recording;
pub use write::Writer;
