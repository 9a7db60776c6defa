//! The map of cache unification as a drawing: `cargo xtask unification-map SVG FILE...`.
//!
//! Each file is an output of the example `tworegion` of `crates/regions`; other lines in it are skipped. Each gets two
//! maps, speed over size and length of visits: unified by confined, and as `Unified` decided by confined. What the
//! memory-regions thesis says in prose of its two machines (section 2.3.1) stands below; its figure 18 has no numbers.

use crate::files;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// What the thesis says of a machine, by the name of our file.
const THESIS: [(&str, &str); 2] = [
    (
        "clovertown",
        "Thesis: up to +45 %; no gain at 2 x 1.8 MB and less, nor beyond both caches; a switch of CPUs takes 15.86 us.",
    ),
    (
        "westmere",
        "Thesis: more than +300 %; no gain at 2 x 4 MB and less, nor beyond both caches; a switch of CPUs takes 6.36 us.",
    ),
];
/// What it says of visits, on Clovertown.
const VISITS: &str = "Thesis, of visits on Clovertown: none pays at 2^12 loads and less, gains are marginal from 2^16 on.";

/// What the colours are.
const LEGEND: &str = "Speed, by that of the thread that is confined to one cache: blue is faster, orange slower, full from 4 times on.";

/// Of a cell.
const WIDTH: f64 = 74.0;
const HEIGHT: f64 = 38.0;
/// What is left of a map, for its rows' names, and above it.
const LEFT: f64 = 86.0;
const ABOVE: f64 = 88.0;
/// Below a map: columns' names, titles, sentences.
const BELOW: f64 = 138.0;
/// Of the drawing: what its sentences need.
const LEAST_WIDTH: f64 = 860.0;
/// A speed so many times as high, or as low, has the full colour.
const FULL: f64 = 4.0;
/// Of Okabe and Ito's, which people with colour-blindness tell apart: faster, slower.
const COLOURS: [[f64; 3]; 2] = [[0.0, 114.0, 178.0], [213.0, 94.0, 0.0]];

/// An output.
#[derive(Debug)]
struct Map {
    machine: String,
    cache_kb: f64,
    awake_ns: f64,
    asleep_ns: f64,
    points: Vec<Point>,
}

/// One size and length of visits.
#[derive(Debug)]
struct Point {
    kb: u64,
    visit: u64,
    /// Speed by that of the confined thread.
    unified: f64,
    auto: f64,
    is_on: bool,
    reason: String,
}

/// Draws the maps of some files.
pub fn draw(svg: &Path, paths: &[&str]) -> Result<()> {
    let mut maps = Vec::new();
    for path in paths {
        let path = Path::new(path);
        maps.push(parse(&files::read(path)?).with_context(|| path.display().to_string())?);
    }
    std::fs::write(svg, picture(&maps)).with_context(|| format!("cannot write {}", svg.display()))
}

fn parse(text: &str) -> Result<Map> {
    let mut map = None;
    for (number, line) in text.lines().enumerate() {
        // The lab may put the policy's name before.
        let Some(start) = line.find("{\"tworegion\":") else {
            continue;
        };
        let fault = || format!("line {}", number + 1);
        let value: Value = serde_json::from_str(&line[start..]).with_context(fault)?;
        match value["tworegion"].as_str() {
            Some("setting") => {
                ensure!(map.is_none(), "{}: a second setting", fault());
                map = Some(setting(&value).with_context(fault)?);
            }
            _ => {
                let map = map.as_mut().context("a point before its setting")?;
                map.points.push(point(&value).with_context(fault)?);
            }
        }
    }
    let map = map.context("no output of `tworegion` is in it")?;
    ensure!(!map.points.is_empty(), "it has no points");
    Ok(map)
}

fn setting(value: &Value) -> Result<Map> {
    let machine = value["machine"].as_str().context("no `machine`")?;
    Ok(Map {
        machine: machine.to_owned(),
        cache_kb: number(value, "cache_kb")?,
        awake_ns: number(value, "awake_ns")?,
        asleep_ns: number(value, "asleep_ns")?,
        points: Vec::new(),
    })
}

fn point(value: &Value) -> Result<Point> {
    let whole = |key: &str| value[key].as_u64().with_context(|| format!("no `{key}`"));
    let confined = number(value, "confined_ns")?;
    Ok(Point {
        kb: whole("kb")?,
        visit: whole("visit")?,
        unified: confined / number(value, "unified_ns")?,
        auto: confined / number(value, "auto_ns")?,
        is_on: value["is_on"].as_bool().context("no `is_on`")?,
        reason: value["reason"].as_str().context("no `reason`")?.to_owned(),
    })
}

fn number(value: &Value, key: &str) -> Result<f64> {
    let number = value[key].as_f64().filter(|number| *number > 0.0);
    number.with_context(|| format!("`{key}` is no number above 0"))
}

/// All maps, one below the other.
fn picture(maps: &[Map]) -> String {
    let (mut body, mut y, mut right) = (String::new(), 0.0, LEAST_WIDTH);
    for map in maps {
        let (width, height) = drawn(map, y, &mut body);
        (y, right) = (y + height, right.max(width));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{right}\" height=\"{y}\" \
         viewBox=\"0 0 {right} {y}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{right}\" height=\"{y}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Both maps of an output from `y` on; how much room they take.
fn drawn(map: &Map, y: f64, body: &mut String) -> (f64, f64) {
    let sizes: Vec<u64> = (map.points.iter().map(|point| point.kb))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let visits: Vec<u64> = (map.points.iter().map(|point| point.visit))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let (across, down) = (sizes.len() as f64 * WIDTH, visits.len() as f64 * HEIGHT);
    let panel = LEFT + across + 24.0;
    let title = format!(
        "{}: two regions in turns, caches of {}",
        map.machine,
        mib(map.cache_kb as u64)
    );
    text(
        body,
        (24.0, y + 30.0),
        "font-size=\"18\" font-weight=\"bold\"",
        &title,
    );
    let cost = format!(
        "A hand-over there and back takes {:.2} us while the worker is awake, {:.2} us where it sleeps.",
        map.awake_ns / 1e3,
        map.asleep_ns / 1e3
    );
    text(body, (24.0, y + 50.0), QUIET, &cost);
    let titles = [
        "unified / confined",
        "as it pays / confined, and what was decided",
    ];
    for (index, title) in titles.into_iter().enumerate() {
        let left = index as f64 * panel + LEFT;
        let top = y + ABOVE;
        text(body, (left, top - 10.0), "font-weight=\"bold\"", title);
        for (row, visit) in visits.iter().rev().enumerate() {
            let middle = top + (row as f64 + 0.5) * HEIGHT + 4.0;
            text(body, (left - 8.0, middle), END, &power(*visit));
        }
        for (column, kb) in sizes.iter().enumerate() {
            let middle = left + (column as f64 + 0.5) * WIDTH;
            text(body, (middle, top + down + 18.0), MIDDLE, &mib(*kb));
        }
        text(
            body,
            (left + across / 2.0, top + down + 38.0),
            MIDDLE,
            "size of each region",
        );
        let turned = format!(
            "{MIDDLE} transform=\"rotate(-90 {0} {1})\"",
            left - 66.0,
            top + down / 2.0
        );
        text(
            body,
            (left - 66.0, top + down / 2.0),
            &turned,
            "loads of a visit",
        );
        for point in &map.points {
            let column = sizes.iter().position(|kb| *kb == point.kb).unwrap_or(0);
            let row = visits
                .iter()
                .rev()
                .position(|visit| *visit == point.visit)
                .unwrap_or(0);
            let at = (left + column as f64 * WIDTH, top + row as f64 * HEIGHT);
            match index {
                0 => cell(body, at, point.unified, None),
                _ => cell(body, at, point.auto, Some(point)),
            }
        }
    }
    let mut line = y + ABOVE + down + 62.0;
    let of_machine = THESIS.iter().find(|(name, _)| *name == map.machine);
    let of_machine = of_machine.map(|(_, words)| *words);
    for words in [LEGEND].into_iter().chain(of_machine).chain([VISITS]) {
        text(body, (24.0, line), QUIET, words);
        line += 20.0;
    }
    (2.0 * panel, ABOVE + down + BELOW)
}

const QUIET: &str = "fill=\"#555\"";
const END: &str = "text-anchor=\"end\"";
const MIDDLE: &str = "text-anchor=\"middle\"";

/// A speed, and below it what was decided.
fn cell(body: &mut String, (x, y): (f64, f64), speed: f64, decided: Option<&Point>) {
    let (fill, ink) = colours(speed);
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"{fill}\" stroke=\"#fff\"/>"
    );
    let middle = x + WIDTH / 2.0;
    let attributes = format!("{MIDDLE} fill=\"{ink}\"");
    let Some(point) = decided else {
        text(
            body,
            (middle, y + HEIGHT / 2.0 + 4.0),
            &attributes,
            &format!("{speed:.2}"),
        );
        return;
    };
    let is_on = if point.is_on { "on" } else { "off" };
    text(
        body,
        (middle, y + 16.0),
        &attributes,
        &format!("{speed:.2} {is_on}"),
    );
    let small = format!("{attributes} font-size=\"10\"");
    text(body, (middle, y + 30.0), &small, &point.reason);
}

/// Of a cell and of what is written on it.
fn colours(speed: f64) -> (String, &'static str) {
    let share = (speed.ln() / FULL.ln()).clamp(-1.0, 1.0);
    let full = COLOURS[usize::from(share < 0.0)];
    let mix = full.map(|part| (255.0 + (part - 255.0) * share.abs()).round() as u8);
    let [red, green, blue] = mix;
    let ink = if share.abs() > 0.6 { "#fff" } else { "#222" };
    (format!("#{red:02x}{green:02x}{blue:02x}"), ink)
}

fn text(body: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let mut safe = String::new();
    for letter in words.chars().filter(|letter| !letter.is_control()) {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            letter => safe.push(letter),
        }
    }
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{safe}</text>"
    );
}

/// "1.8 MB", "512 KB".
fn mib(kb: u64) -> String {
    match kb {
        ..1024 => format!("{kb} KB"),
        kb if kb.is_multiple_of(1024) => format!("{} MB", kb / 1024),
        kb => format!("{:.2} MB", kb as f64 / 1024.0),
    }
}

/// "2^12" where it is a power of two.
fn power(number: u64) -> String {
    match number.is_power_of_two() {
        true => format!("2^{}", number.ilog2()),
        false => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str = "{\"tworegion\":\"setting\",\"machine\":\"clovertown\",\"caches\":2,\"cache_kb\":4096,\
                           \"ms\":100,\"awake_ns\":900,\"asleep_ns\":7000}\n";

    fn line(kb: u64, visit: u64, unified: f64, is_on: bool) -> String {
        format!(
            "{{\"tworegion\":\"point\",\"kb\":{kb},\"visit\":{visit},\"confined_ns\":100,\"unified_ns\":{unified},\
             \"auto_ns\":50,\"is_on\":{is_on},\"reason\":\"gained\",\"why\":\"<&>\"}}\n"
        )
    }

    #[test]
    fn points_become_cells_of_two_maps() {
        let output = format!(
            "tworegion: hello\n{SETTING}{}none | {}",
            line(3072, 4096, 25.0, true),
            line(1843, 1000, 200.0, false)
        );
        let map = parse(&output).unwrap();
        assert_eq!((map.points.len(), map.points[0].unified), (2, 4.0));
        let svg = picture(&[map]);
        for part in [
            "clovertown: two regions in turns, caches of 4 MB",
            "takes 0.90 us while",
            ">3 MB</text>",
            ">1.80 MB</text>",
            ">2^12</text>",
            ">1000</text>",
            // Four times as fast has the full colour, half as fast half of the other one.
            "fill=\"#0072b2\"",
            "fill=\"#eaaf80\"",
            ">4.00</text>",
            ">0.50</text>",
            ">2.00 on</text>",
            ">2.00 off</text>",
            "up to +45 %",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!(svg.matches("stroke=\"#fff\"").count(), 4);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn what_is_no_output_is_refused() {
        for (text, part) in [
            (String::new(), "no output"),
            (SETTING.to_owned(), "no points"),
            (line(1, 1, 1.0, true), "before its setting"),
            (SETTING.repeat(2), "second setting"),
            (format!("{SETTING}{}", line(1, 1, 0.0, true)), "line 2"),
            (format!("{SETTING}{{\"tworegion\":"), "line 2"),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
