//! Results of `hither lab compare --json` (`hither.lab.compare/1`, `docs/lab.md`) as Markdown.
//!
//! A result has its setting (`machine`, `scaling`, `cpus`, `kernel`, `thp`, `modelled`) and `rows`,
//! one per policy; a figure is a number, or an object with `median`, `min` and `max`; shares
//! (`local_access_ratio`, `controller_imbalance`, `link_use`, `link_imbalance`) are fractions of 1.
//! A figure that is not there prints as a dash.

use crate::files;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// The schema that this reads.
const SCHEMA: &str = "hither.lab.compare/1";
/// The policy that others are compared with.
const BASE: &str = "first-touch";
/// What the names of results on a machine of two tiers begin with.
const TIERS: &str = "tiers-";

/// Prints one result: its setting and its table.
pub fn print(path: &Path) -> Result<()> {
    let result = load(path)?;
    print!("{}\n{}", setting(&result), table(&result)?);
    Ok(())
}

/// Where the result was made, as a list.
fn setting(result: &Value) -> String {
    let text = |name: &str| result[name].as_str().unwrap_or("unknown").to_owned();
    let mut lines = format!(
        "- machine: {}, {} CPUs; Linux {}; huge pages {}\n",
        text("machine"),
        result["cpus"],
        text("kernel"),
        text("thp")
    );
    if let Some(scaling) = result["scaling"]
        .as_str()
        .filter(|scaling| !scaling.is_empty())
    {
        let _ = writeln!(lines, "- scaled: {scaling}");
    }
    if result["modelled"] == false {
        lines.push_str("- time is the host's, not modelled: it says nothing about placement\n");
    }
    lines
}

fn load(path: &Path) -> Result<Value> {
    let value: Value = serde_json::from_str(&files::read(path)?)
        .with_context(|| format!("{} is no JSON", path.display()))?;
    let schema = value["schema"].as_str().unwrap_or("(none)");
    if schema != SCHEMA {
        bail!(
            "{}: the schema is {schema}, this reads {SCHEMA}",
            path.display()
        );
    }
    Ok(value)
}

fn rows(result: &Value) -> Result<&Vec<Value>> {
    result["rows"]
        .as_array()
        .context("the result has no list `rows`")
}

/// The middle value of a figure.
fn median(figure: &Value) -> Option<f64> {
    figure.as_f64().or_else(|| figure["median"].as_f64())
}

fn spread(figure: &Value) -> String {
    match (figure["min"].as_f64(), figure["max"].as_f64()) {
        (Some(min), Some(max)) => format!(" ({min:.2} to {max:.2})"),
        _ => String::new(),
    }
}

fn show(figure: &Value, factor: f64, digits: usize) -> String {
    median(figure).map_or("–".to_owned(), |value| {
        format!("{:.digits$}", value * factor)
    })
}

/// Speed against first-touch, as `+12.3 %`.
fn gain(base: Option<f64>, seconds: Option<f64>) -> String {
    match (base, seconds) {
        (Some(base), Some(seconds)) if seconds > 0.0 => points(base / seconds),
        _ => "–".to_owned(),
    }
}

fn base<'a>(rows: &'a [Value], figure: &str) -> Option<&'a Value> {
    rows.iter()
        .find(|row| row["policy"] == BASE)
        .map(|row| &row[figure])
}

fn table(result: &Value) -> Result<String> {
    let rows = rows(result)?;
    let first_touch = base(rows, "seconds").and_then(median);
    let steady = base(rows, "steady_seconds").and_then(median);
    let mut text = "| policy | seconds (min to max) | speed | steady s | steady speed | local % | \
                    latency ns | controller imbalance % | link use % | link imbalance % | \
                    moved pages | host s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for row in rows {
        let policy = row["policy"].as_str().context("a row has no `policy`")?;
        let _ = writeln!(
            text,
            "| {policy} | {}{} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            show(&row["seconds"], 1.0, 2),
            spread(&row["seconds"]),
            gain(first_touch, median(&row["seconds"])),
            show(&row["steady_seconds"], 1.0, 2),
            gain(steady, median(&row["steady_seconds"])),
            show(&row["local_access_ratio"], 100.0, 0),
            show(&row["latency_ns"], 1.0, 0),
            show(&row["controller_imbalance"], 100.0, 0),
            show(&row["link_use"], 100.0, 0),
            show(&row["link_imbalance"], 100.0, 0),
            show(&row["moved_pages"], 1.0, 0),
            show(&row["host_seconds"], 1.0, 0),
        );
    }
    Ok(text)
}

/// One row per result in `docs/evidence` that has a policy on evidence of real machines: how much faster each
/// policy is than first-touch.
pub fn summary(root: &Path) -> Result<String> {
    let mut results = recorded(root)?;
    results.retain(|(name, result)| {
        let mut names = result["rows"].as_array().into_iter().flatten();
        let is_of_hither = names.any(|row| {
            row["policy"]
                .as_str()
                .is_some_and(|name| name.contains('@'))
        });
        // Those have a table of their own.
        is_of_hither && !name.starts_with(TIERS)
    });
    if results.is_empty() {
        return Ok("\nNo results are recorded yet: `make evidence` records them.\n\n".to_owned());
    }
    summarise(&results)
}

/// Speeds of the comparisons on a machine of two tiers, against first-touch, with their geometric means.
pub fn tiers(root: &Path) -> Result<String> {
    let mut results = recorded(root)?;
    results.retain(|(name, _)| name.starts_with(TIERS));
    means(&results)
}

/// What was expected of runs before their first move, or when they declined, beside what came.
pub fn forecasts(root: &Path) -> Result<String> {
    forecast_table(&recorded(root)?)
}

/// Results with their names.
fn recorded(root: &Path) -> Result<Vec<(String, Value)>> {
    let folder = root.join("docs/evidence");
    let mut paths = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            paths.push(entry?.path());
        }
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.sort();
    let mut results = Vec::new();
    for path in paths {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        results.push((name, load(&path)?));
    }
    Ok(results)
}

/// A forecast and how many times as fast as by first touch the program's steady part ran.
fn forecast_table(results: &[(String, Value)]) -> Result<String> {
    let mut text =
        "\n| run | expected, times as fast | came | error |\n|---|--:|--:|--:|\n".to_owned();
    let (mut errors, mut within, mut in_points, mut wrong_signs) = (Vec::new(), 0, 0, 0);
    for (name, result) in results {
        let rows = rows(result)?;
        let first_touch = base(rows, "steady_seconds").and_then(median);
        for row in rows {
            let runs = row["runs"].as_array().into_iter().flatten();
            for run in runs {
                let forecast = &run["hither"]["decided"]["summary"]["forecast"];
                let figures = forecast["speed_up"]
                    .as_f64()
                    .zip(forecast["error"].as_f64());
                let came = first_touch.zip(run["steady_seconds"].as_f64());
                let (Some((expected, error)), Some((first_touch, steady))) = (figures, came) else {
                    continue;
                };
                let came = first_touch / steady;
                let off = expected / came - 1.0;
                errors.push(off.abs());
                within += usize::from((came - expected).abs() <= error);
                in_points += usize::from((came - expected).abs() <= 0.1);
                let is_told = (expected - 1.0).abs() > error;
                wrong_signs += usize::from(is_told && (expected > 1.0) != (came > 1.0));
                let policy = row["policy"].as_str().unwrap_or("");
                let _ = writeln!(
                    text,
                    "| [{name}](evidence/{name}.md), {policy} | {expected:.2} ({:.2} to {:.2}) | {came:.2} | {:+.0} % |",
                    expected - error,
                    expected + error,
                    off * 100.0
                );
            }
        }
    }
    if errors.is_empty() {
        return Ok("\nNo forecast is recorded yet: `make evidence` records them.\n\n".to_owned());
    }
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| 100.0 * errors[((errors.len() - 1) as f64 * share).round() as usize];
    let _ = write!(
        text,
        "\nOf {} forecasts half are off by {:.0} % at most, nine in ten by {:.0} %, the worst by {:.0} %; {} came \
         within the range that was told, {in_points} within 10 points. The direction was wrong in {wrong_signs} of \
         those that told one.\n\n",
        errors.len(),
        at(0.5),
        at(0.9),
        at(1.0),
        within,
    );
    Ok(text)
}

/// Steady speed of each result and policy over first-touch's; then the geometric mean of each policy over the
/// results that have it, and the worst of the speeds end to end.
fn means(results: &[(String, Value)]) -> Result<String> {
    if results.is_empty() {
        return Ok("\nNone is recorded yet: `make evidence` records them.\n\n".to_owned());
    }
    let policies = others(results)?;
    let mut text = heading("steady speed", &policies);
    let speed = |rows: &[Value], policy: &str, figure: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy)?;
        Some(base(rows, figure).and_then(median)? / median(&row[figure])?)
    };
    let (mut steady, mut worst) = (
        vec![Vec::new(); policies.len()],
        vec![f64::MAX; policies.len()],
    );
    for (name, result) in results {
        let rows = rows(result)?;
        let link = format!("[{name}](evidence/{name}.md)");
        let first_touch = seconds(base(rows, "steady_seconds").and_then(median));
        let _ = write!(text, "| {link} | {first_touch} |");
        for (at, policy) in policies.iter().enumerate() {
            let told = speed(rows, policy, "steady_seconds");
            steady[at].extend(told);
            if let Some(speed) = speed(rows, policy, "seconds") {
                worst[at] = worst[at].min(speed);
            }
            let _ = write!(text, " {} |", told.map_or("–".to_owned(), points));
        }
        text.push('\n');
    }
    text.push_str("| geometric mean | |");
    for speeds in &steady {
        let sum: f64 = speeds.iter().map(|speed| speed.ln()).sum();
        let mean = (sum / speeds.len() as f64).exp();
        let _ = write!(text, " {} of {} |", points(mean), speeds.len());
    }
    text.push_str("\n| worst end to end | |");
    for &speed in &worst {
        let _ = write!(text, " {} |", points(speed));
    }
    text.push_str("\n\n");
    Ok(text)
}

/// Of first-touch, as `1.23 s`.
fn seconds(figure: Option<f64>) -> String {
    figure.map_or("–".to_owned(), |seconds| format!("{seconds:.2} s"))
}

/// A speed as `+12.3 %`.
fn points(speed: f64) -> String {
    format!("{:+.1} %", (speed - 1.0) * 100.0)
}

/// The policies of these results but the one that they are compared with, each once.
fn others(results: &[(String, Value)]) -> Result<Vec<&str>> {
    let mut policies: Vec<&str> = Vec::new();
    for (_, result) in results {
        for policy in rows(result)?
            .iter()
            .filter_map(|row| row["policy"].as_str())
        {
            if policy != BASE && !policies.contains(&policy) {
                policies.push(policy);
            }
        }
    }
    Ok(policies)
}

fn heading(first: &str, policies: &[&str]) -> String {
    let mut text = format!("\n| {first} | {BASE} |");
    policies
        .iter()
        .for_each(|policy| text.push_str(&format!(" {policy} |")));
    let _ = writeln!(text, "\n|---|--:|{}", "--:|".repeat(policies.len()));
    text
}

fn summarise(results: &[(String, Value)]) -> Result<String> {
    let policies = others(results)?;
    let mut text = heading("program", &policies);
    for (name, result) in results {
        let rows = rows(result)?;
        let first_touch = base(rows, "seconds").and_then(median);
        let told = seconds(first_touch);
        let _ = write!(text, "| [{name}](docs/evidence/{name}.md) | {told} |");
        for policy in &policies {
            let row = rows.iter().find(|row| row["policy"] == *policy);
            let _ = write!(
                text,
                " {} |",
                gain(first_touch, row.and_then(|row| median(&row["seconds"])))
            );
        }
        text.push('\n');
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result() -> Value {
        json!({"schema": SCHEMA, "machine": "square", "cpus": 8, "kernel": "7.2.12",
               "thp": "madvise", "scaling": "8 of 16 CPUs", "modelled": true, "rows": [
            {"policy": "first-touch", "seconds": {"median": 10.0, "min": 9.9, "max": 10.2},
             "local_access_ratio": 0.25, "moved_pages": 0},
            {"policy": "carrefour", "seconds": {"median": 5.0, "min": 4.9, "max": 5.3},
             "local_access_ratio": 0.26, "controller_imbalance": 0.08, "moved_pages": 12288},
        ]})
    }

    #[test]
    fn a_table_has_speed_against_first_touch_and_dashes_for_what_is_missing() {
        let text = table(&result()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            lines[3],
            "| carrefour | 5.00 (4.90 to 5.30) | +100.0 % | – | – | 26 | – | 8 | – | – | 12288 | – |"
        );
    }

    #[test]
    fn the_setting_says_what_was_scaled() {
        assert_eq!(
            setting(&result()),
            "- machine: square, 8 CPUs; Linux 7.2.12; huge pages madvise\n\
             - scaled: 8 of 16 CPUs\n"
        );
    }

    #[test]
    fn the_summary_has_one_row_per_program() {
        let text = summarise(&[("cluster".to_owned(), result())]).unwrap();
        assert!(
            text.contains("| program | first-touch | carrefour |"),
            "{text}"
        );
        assert!(text.contains("| [cluster](docs/evidence/cluster.md) | 10.00 s | +100.0 % |"));
    }

    #[test]
    fn speeds_have_a_geometric_mean_and_a_worst() {
        let result = |steady: f64, seconds: f64| {
            json!({"schema": SCHEMA, "rows": [
                {"policy": "first-touch", "seconds": 12.0, "steady_seconds": 10.0},
                {"policy": "tiers@pmu", "seconds": seconds, "steady_seconds": steady},
            ]})
        };
        let results = [
            ("tiers-a", result(5.0, 6.0)),
            ("tiers-b", result(20.0, 15.0)),
        ];
        let results = results.map(|(name, result)| (name.to_owned(), result));
        let text = means(&results).unwrap();
        assert!(
            text.contains("| [tiers-a](evidence/tiers-a.md) | 10.00 s | +100.0 % |"),
            "{text}"
        );
        assert!(
            text.contains("| geometric mean | | +0.0 % of 2 |"),
            "{text}"
        );
        assert!(text.contains("| worst end to end | | -20.0 % |"), "{text}");
    }

    #[test]
    fn forecasts_are_held_against_what_came() {
        let run = |expected: f64, steady: f64| {
            json!({"steady_seconds": steady, "hither": {"decided": {"summary": {"forecast":
                {"speed_up": expected, "error": 0.3}}}}})
        };
        let result = json!({"schema": SCHEMA, "rows": [
            {"policy": "first-touch", "steady_seconds": {"median": 10.0}, "runs": [{"hither": null}]},
            {"policy": "auto@pmu", "steady_seconds": {"median": 5.0},
             "runs": [run(2.2, 5.0), run(1.5, 12.5)]},
        ]});
        let text = forecast_table(&[("x".to_owned(), result)]).unwrap();
        assert!(
            text.contains("| [x](evidence/x.md), auto@pmu | 2.20 (1.90 to 2.50) | 2.00 | +10 % |"),
            "{text}"
        );
        assert!(text.contains("Of 2 forecasts"), "{text}");
        assert!(
            text.contains("1 came within the range that was told, 0 within"),
            "{text}"
        );
        assert!(text.contains("wrong in 1 of"), "{text}");
    }

    #[test]
    fn other_schemas_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        std::fs::write(&path, "{\"schema\": \"other/1\"}").unwrap();
        assert!(format!("{:#}", load(&path).unwrap_err()).contains("the schema is other/1"));
    }
}
