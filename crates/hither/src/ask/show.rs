//! Answers of the daemon for a person.

use crate::print::{self, Table};
use crate::terminal::Terminal;
use serde_json::Value;

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn words(value: &Value, key: &str) -> Vec<String> {
    let words = list(value, key).filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

/// How a scope stands, in a word or two.
fn standing(scope: &Value) -> String {
    if scope["retired"] == true {
        return "not configured".to_owned();
    }
    let word = match word(scope, "standing") {
        "paused" if scope["outside_window"] == true => "outside window",
        "working" => "active",
        other => other,
    };
    match scope["dry_run"] == true {
        true => format!("{word}, dry run"),
        false => word.to_owned(),
    }
}

/// `1.22 (1.10 to 1.34)`.
fn speed_up(forecast: &Value) -> Option<String> {
    let (middle, error) = (forecast["speed_up"].as_f64()?, forecast["error"].as_f64()?);
    Some(format!(
        "{middle:.2} ({:.2} to {:.2})",
        middle - error,
        middle + error
    ))
}

/// How the last campaign came out.
fn last_gain(scope: &Value) -> Option<String> {
    let last = list(&scope["summary"], "campaigns").last()?;
    let rate = |when: &str| {
        last[when]["accesses_per_us"]
            .as_f64()
            .filter(|&rate| rate > 0.0)
    };
    let verdict = word(last, "verdict").replace('_', " ");
    Some(match (rate("before"), rate("after")) {
        (Some(before), Some(after)) => format!("{verdict}, {:.2}", after / before),
        _ => verdict,
    })
}

fn row(scope: &Value) -> Vec<String> {
    let summary = &scope["summary"];
    let pages = |keys: &[&str]| mib(keys.iter().map(|key| number(summary, key) * 4096.0).sum());
    let local = scope["local_access_ratio"].as_f64();
    vec![
        word(scope, "name").to_owned(),
        standing(scope),
        word(scope, "policy").to_owned(),
        list(scope, "processes").count().to_string(),
        print::or_dash(local, |local| format!("{:.0} %", 100.0 * local)),
        pages(&["moved_pages", "kernel_pages"]),
        pages(&["displaced_pages"]),
        print::or_dash(speed_up(&scope["forecast"]), |text| text),
        print::or_dash(last_gain(scope), |text| text),
    ]
}

/// Fast memory of the scopes that have some, by their quotas and goals.
fn fast_memory(scopes: &[&Value]) -> String {
    let mut text = String::new();
    for scope in scopes.iter().filter(|scope| scope["fast"].is_object()) {
        let fast = &scope["fast"];
        text += &format!(
            "{}: {} of fast memory, quota {}, uses {}",
            word(scope, "name"),
            mib(number(fast, "held_bytes")),
            word(fast, "quota"),
            mib(number(fast, "working_bytes")),
        );
        if fast["goal"].is_object() {
            text += &format!("; {}", goal_state(&fast["goal"]));
        }
        text.push('\n');
    }
    text
}

/// CPU time of the scopes whose control groups have a goal.
fn cpu_time(scopes: &[&Value]) -> String {
    let with_goal = scopes.iter().filter(|scope| scope["cpu"].is_object());
    let line = |scope: &&Value| {
        let goal = &scope["cpu"];
        let amount = word(goal, "amount");
        format!(
            "{}: at most {amount}; {}\n",
            word(scope, "name"),
            goal_state(goal)
        )
    };
    with_goal.map(line).collect()
}

fn goal_state(goal: &Value) -> String {
    let reading = print::or_dash(goal["reading"].as_f64(), |reading| reading.to_string());
    let wanted = word(goal, "wanted");
    format!("E{}, as {wanted} (now {reading})", goal["state"])
}

/// The whole.
pub fn status(status: &Value) -> String {
    let own = &status["own"];
    let evidence = status["evidence"].as_str().unwrap_or("none");
    let mut text = format!(
        "hither {}, process {}, for {:.0} s; tracker {} (evidence {evidence})\n",
        word(status, "version"),
        status["pid"],
        number(status, "seconds"),
        word(status, "tracker"),
    );
    for reason in words(status, "holding_back") {
        text += &format!("holding back: {reason}\n");
    }
    if status["dry_run"] == true {
        text += "a dry run: nothing is moved\n";
    }
    for line in words(status, "missing") {
        text += &format!("missing: {line}\n");
    }
    let scopes: Vec<&Value> = list(status, "scopes").collect();
    if scopes.is_empty() {
        text += "no program of yours is looked after\n";
    } else {
        let head = [
            "scope",
            "state",
            "policy",
            "processes",
            "local",
            "moved",
            "displaced",
            "forecast",
            "last gain",
        ];
        let resources = fast_memory(&scopes) + &cpu_time(&scopes);
        let rows: Vec<Vec<String>> = scopes.into_iter().map(row).collect();
        text += &Table::new(&head, &rows).keys(3).text(Terminal::of_output());
        text += &resources;
    }
    text + &format!(
        "own cost: {:.2} s of CPU time ({:.2} % of the machine), {} of memory at most, {} moved\n",
        number(own, "cpu_seconds"),
        100.0 * number(own, "machine_share"),
        mib(number(own, "peak_memory_bytes")),
        mib(number(own, "moved_bytes")),
    )
}

/// What moving would bring.
pub fn forecasts(status: &Value) -> String {
    let mut text = String::new();
    for scope in list(status, "scopes") {
        let name = word(scope, "name");
        let forecast = &scope["forecast"];
        text += &match speed_up(forecast) {
            Some(range) => {
                let ratio = |at: usize| 100.0 * forecast["local_ratio"][at].as_f64().unwrap_or(0.0);
                format!(
                    "{name}: {range} times as fast with its pages where they are used; local accesses {:.0} % \
                     now, {:.0} % then; from {} samples\n",
                    ratio(0),
                    ratio(1),
                    forecast["sample_count"],
                )
            }
            None => {
                format!("{name}: no forecast yet: too few samples, or this evidence gives none\n")
            }
        };
    }
    match text.is_empty() {
        true => "no program of yours is looked after\n".to_owned(),
        false => text,
    }
}

/// What was decided.
pub fn log(answer: &Value) -> String {
    let lines = list(answer, "log").map(|line| format!("{}\n", word(line, "text")));
    let text: String = lines.collect();
    match text.is_empty() {
        true => "nothing was decided yet\n".to_owned(),
        false => text,
    }
}

/// What is back.
pub fn undone(status: &Value, names: &[Value]) -> String {
    let mut text = String::new();
    for scope in list(status, "scopes").filter(|scope| names.contains(&scope["name"])) {
        let left = number(&scope["summary"], "displaced_pages");
        text += &match left > 0.0 {
            true => format!(
                "{}: {left} pages could not be put back; `hither explain` says why\n",
                word(scope, "name")
            ),
            false => format!(
                "{}: all pages are where hither found them; `hither resume` begins again\n",
                word(scope, "name")
            ),
        };
    }
    text
}
