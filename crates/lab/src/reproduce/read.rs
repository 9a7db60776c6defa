//! What a command printed, as values by name. Pure.
//!
//! | how | what is read | names |
//! |---|---|---|
//! | [`Reads::Compare`] | `hither.lab.compare/1` on standard output; lines of the programs on standard error | `POLICY.FIGURE`, `POLICY.PROGRAM.WORD`, `POLICY.mean.WORD` |
//! | [`Reads::Lines`] | lines `key: number` and `words number`, below `== SECTION` | `SECTION.key` |
//! | [`Reads::Service`] | `hither.bench-service/1` | `PAGES.BYTES.TRAFFIC.BY.FIGURE`, `latency.BY.FIGURE` |
//! | [`Reads::Map`] | lines of `tworegion` | `KB.VISIT.gain`, `best.gain`, `awake_ns` |
//! | [`Reads::Steps`] | lines of `scripts/quota-guest.sh steps` | `first.FIGURE`, `last.FIGURE` |
//!
//! Blanks in names become `_`.

use super::formula::Values;
use serde_json::Value;

/// How an output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Policies side by side.
    Compare,
    /// Lines of programs.
    Lines,
    /// The mover service beside calls of the kernel.
    Service,
    /// Two regions over two caches.
    Map,
    /// A store under growing quotas.
    Steps,
}

/// Values of an output.
///
/// # Errors
/// Why it cannot be read.
pub fn read(how: Reads, out: &str, err: &str) -> Result<Values, String> {
    let values = match how {
        Reads::Compare => compare(out, err)?,
        Reads::Lines => lines(out),
        Reads::Service => service(out)?,
        Reads::Map => map(out)?,
        Reads::Steps => steps(out),
    };
    match values.is_empty() {
        true => Err("its output has no figures".into()),
        false => Ok(values),
    }
}

/// A name without blanks.
fn name(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join("_")
}

/// A number, with what follows it in a sentence.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_end_matches([',', ';', '%']);
    let value: f64 = word.parse().ok()?;
    value.is_finite().then_some(value)
}

fn json(text: &str) -> Result<Value, String> {
    // The program's own lines come before it, where it was run by `lab run`.
    let start = text.find('{').ok_or("its output has no JSON")?;
    serde_json::from_str(&text[start..]).map_err(|error| format!("its output is no JSON: {error}"))
}

fn compare(out: &str, err: &str) -> Result<Values, String> {
    let document = json(out)?;
    let mut values = Values::new();
    if let Some(cpus) = document["cpus"].as_f64() {
        values.insert("cpus".into(), cpus);
    }
    let rows = document["rows"]
        .as_array()
        .ok_or("its output has no `rows`")?;
    for row in rows {
        let policy = row["policy"].as_str().ok_or("a row has no `policy`")?;
        let has_failed = |run: &Value| run["status"].as_u64() != Some(0);
        if row["runs"]
            .as_array()
            .is_none_or(|runs| runs.iter().any(has_failed))
        {
            return Err(format!("a run under {policy} failed"));
        }
        for (key, value) in row.as_object().into_iter().flatten() {
            let median = value.as_f64().or_else(|| value["median"].as_f64());
            if let Some(median) = median {
                values.insert(format!("{policy}.{key}"), median);
            }
        }
    }
    // `hydm@device | program: cg.0 cpu 3 seconds 0.098127 checksum 0x99`
    for line in err.lines() {
        let Some((policy, rest)) = line.split_once(" | ") else {
            continue;
        };
        pairs(&format!("{}.", policy.trim()), rest, &mut values);
    }
    means(&mut values);
    Ok(values)
}

/// `program: NAME word number ...` and `second: N word number ...`.
fn pairs(before: &str, line: &str, values: &mut Values) -> bool {
    let (before, rest) = match (
        line.strip_prefix("program: "),
        line.strip_prefix("second: "),
    ) {
        (Some(rest), _) => (before.to_owned(), rest),
        (None, Some(rest)) => (format!("{before}second."), rest),
        (None, None) => return false,
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let Some(first) = words.first() else {
        return false;
    };
    for pair in words[1..].windows(2) {
        if let (None, Some(value)) = (number(pair[0]), number(pair[1])) {
            values.insert(format!("{before}{first}.{}", pair[0]), value);
        }
    }
    true
}

/// Mean of each word over a policy's programs, as `POLICY.mean.WORD`.
fn means(values: &mut Values) {
    let mut sums: std::collections::BTreeMap<String, (f64, f64)> = Default::default();
    for (key, value) in values.iter() {
        // Policies have no dot; names of programs may have one.
        let (Some((policy, rest)), Some((_, word))) = (key.split_once('.'), key.rsplit_once('.'))
        else {
            continue;
        };
        if rest != word && !rest.starts_with("second.") {
            let sum = sums.entry(format!("{policy}.mean.{word}")).or_default();
            *sum = (sum.0 + value, sum.1 + 1.0);
        }
    }
    values.extend(
        sums.into_iter()
            .map(|(key, (sum, count))| (key, sum / count)),
    );
}

fn lines(out: &str) -> Values {
    let mut values = Values::new();
    let mut section = String::new();
    for line in out.lines() {
        if let Some(words) = line.strip_prefix("== ") {
            section = format!("{}.", name(words));
            continue;
        }
        if pairs(&section, line, &mut values) {
            continue;
        }
        // `seconds: 1.234`, `  plain   5316.2 MB/s, median`
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| number(word).is_some()) else {
            continue;
        };
        let key = words[..at].join("_");
        let key = key.trim_end_matches(':');
        if let (false, Some(value)) = (key.is_empty(), number(words[at])) {
            // The first of several is the one that is meant: `speed-up 1.34, median of pairs`.
            values.entry(format!("{section}{key}")).or_insert(value);
        }
    }
    values
}

fn service(out: &str) -> Result<Values, String> {
    let document = json(out)?;
    let mut values = Values::new();
    for stream in document["streams"]
        .as_array()
        .ok_or("its output has no `streams`")?
    {
        let text = |key: &str| stream[key].as_str().map(name).ok_or(format!("no `{key}`"));
        let of = |key: &str| stream[key].as_f64().ok_or(format!("no `{key}`"));
        let head = format!(
            "{}.{}.{}.{}",
            text("pages")?,
            of("bytes")?,
            text("traffic")?,
            text("by")?
        );
        let moved = of("moved_bytes")?;
        values.insert(format!("{head}.gbs"), moved / of("wall_ns")?);
        values.insert(
            format!("{head}.cpu_ns_per_kb"),
            of("cpu_ns")? / moved * 1024.0,
        );
        values.insert(format!("{head}.refused_pages"), of("refused_pages")?);
    }
    for by in ["service", "move_pages"] {
        for key in ["mean_ns", "submitter_cpu_ns", "system_calls"] {
            if let Some(value) = document["latency"][by][key].as_f64() {
                values.insert(format!("latency.{by}.{key}"), value);
            }
        }
    }
    Ok(values)
}

fn map(out: &str) -> Result<Values, String> {
    let mut values = Values::new();
    let mut best: Option<f64> = None;
    for line in out
        .lines()
        .filter_map(|line| line.find('{').map(|at| &line[at..]))
    {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("a line is no JSON: {error}"))?;
        let of = |key: &str| value[key].as_f64().ok_or(format!("a line has no `{key}`"));
        match value["tworegion"].as_str() {
            Some("setting") => {
                for key in ["cache_kb", "awake_ns", "asleep_ns"] {
                    values.insert(key.into(), of(key)?);
                }
            }
            Some("point") => {
                let head = format!("{}.{}", of("kb")?, of("visit")?);
                let gain = of("confined_ns")? / of("unified_ns")?;
                values.insert(format!("{head}.gain"), gain);
                values.insert(
                    format!("{head}.auto_gain"),
                    of("confined_ns")? / of("auto_ns")?,
                );
                best = Some(best.map_or(gain, |best| best.max(gain)));
            }
            _ => {}
        }
    }
    values.extend(best.map(|best| ("best.gain".to_owned(), best)));
    Ok(values)
}

/// `quota 24 MiB: 22 74 MiB fast and slow, 56084 requests a second, 17.8 us each`
fn steps(out: &str) -> Values {
    let mut values = Values::new();
    for line in out.lines().filter(|line| line.starts_with("quota ")) {
        let numbers: Vec<f64> = line.split_whitespace().filter_map(number).collect();
        let [quota, fast, _, requests, us] = numbers[..] else {
            continue;
        };
        for (key, value) in [
            ("quota_mb", quota),
            ("fast_mb", fast),
            ("requests", requests),
            ("us", us),
        ] {
            values.entry(format!("first.{key}")).or_insert(value);
            values.insert(format!("last.{key}"), value);
        }
    }
    values
}

#[cfg(test)]
mod tests;
