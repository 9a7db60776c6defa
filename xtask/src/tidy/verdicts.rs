//! No campaign of the recorded evidence contradicts its figures: a success has no measured loss, and
//! a harm no measured gain.

use super::Finding;
use crate::files;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// Where results of `hither lab compare --json` are kept.
const FOLDER: &str = "docs/evidence";

/// Campaigns of all recorded comparisons below `root` that contradict their figures.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let folder = root.join(FOLDER);
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut findings = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let text = files::read(&path)?;
            let result = serde_json::from_str(&text)
                .with_context(|| format!("{} is no JSON", path.display()))?;
            let told = path.strip_prefix(root).unwrap_or(&path);
            walk(&result, &mut |text| {
                findings.push(Finding::new(told, 0, text))
            });
        }
    }
    Ok(findings)
}

fn walk(value: &Value, found: &mut impl FnMut(String)) {
    match value {
        Value::Object(fields) => {
            if let (Some(verdict), Some(gain_ns)) = (
                value["verdict"].as_str(),
                value["measured_gain_ns"].as_f64(),
            ) {
                let contradicts = match verdict {
                    "success" => gain_ns < 0.0,
                    "harmful" => gain_ns > 0.0,
                    _ => false,
                };
                if contradicts {
                    found(format!(
                        "a campaign is said to be a {verdict} and measured {:+.1} ms: record the table anew",
                        gain_ns / 1e6
                    ));
                }
            }
            fields.values().for_each(|value| walk(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_success_with_a_loss_is_found() {
        let campaign = |verdict, gain_ns| json!({"verdict": verdict, "measured_gain_ns": gain_ns});
        let rows = json!({"rows": [
            {"campaigns": [campaign("success", -2.2e8), campaign("success", 1e6)]},
            {"campaigns": [campaign("harmful", 3e6), campaign("no_effect", -1.0)]},
        ]});
        let mut found = Vec::new();
        walk(&rows, &mut |text| found.push(text));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("success and measured -220.0 ms"));
        assert!(found[1].contains("harmful and measured +3.0 ms"));
    }
}
