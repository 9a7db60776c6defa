//! Reading what `hither probe --json` wrote.

use anyhow::{Context, anyhow, bail};
use hither_core::foreign::Foreign;
use serde_json::Value;
use std::path::Path;

/// Largest file that is read.
const MOST_BYTES: u64 = 16 << 20;
const REMEDY: &str = "give what `hither probe --json FILE` wrote";

/// A `hither.probe/1`, which this option names.
///
/// # Errors
/// It cannot be read, or is no such document.
pub fn read(option: &str, path: &Path) -> anyhow::Result<Value> {
    let name = path.shown();
    let text = hither_files::read_named(path, MOST_BYTES)
        .with_context(|| format!("{option} {name}: {REMEDY}"))?;
    let probe: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{option} {name}: it is no JSON; {REMEDY}"))?;
    if probe["schema"] != "hither.probe/1" {
        bail!("{option} {name}: it is no hither.probe/1; {REMEDY}");
    }
    Ok(probe)
}

/// One in which what a roofline needs was not measured.
pub fn without_roofline(option: &str, path: &Path) -> anyhow::Error {
    let name = path.shown();
    anyhow!("{option} {name}: it has no roofline; measure peak and reading: {REMEDY}")
}
