//! Data areas: each column once, for the table and for the JSON.

use super::document::Part;
use super::figures::Figures;
use super::tables::{count, percent, strings};
use crate::print::{self, DASH, or_none};
use crate::units;
use hither_recording::analysis::areas::Area;
use hither_recording::analysis::use_of::{AreaUse, Judged, Remedy};
use serde_json::{Map, Value, json};

/// An area with what it is judged to be.
struct Row<'a> {
    figures: &'a Figures,
    area: &'a Area,
    judged: &'a Judged,
    /// Accesses of all areas.
    all: f64,
}

/// A row's cell of the table.
type Cell = fn(&Row) -> String;

/// A column of the table and a key of the JSON, or one of the two.
struct Column {
    /// Its heading and cell in the table; where there is none, the JSON alone has it.
    text: Option<(&'static str, Cell)>,
    /// Its key in `areas[]` of hither.report/1, and value.
    key: &'static str,
    value: fn(&Row) -> Value,
}

macro_rules! column {
    ($key:literal, $value:expr) => {
        Column {
            text: None,
            key: $key,
            value: $value,
        }
    };
    ($key:literal, $value:expr, $head:literal, $text:expr) => {
        Column {
            text: Some(($head, $text)),
            key: $key,
            value: $value,
        }
    };
}

/// All of them, in the order of the table. Documented in docs/cli.md.
const COLUMNS: &[Column] = &[
    column!("name", |row| json!(row.area.name), "area", |row| row
        .area
        .name
        .clone()),
    column!("pid", |row| json!(row.area.pid), "of", |row| {
        row.figures.data.process_name(row.area.pid)
    }),
    column!("kind", |row| json!(row.area.kind.told().0)),
    column!("start", |row| json!(row.area.kind.told().1)),
    column!("bytes", |row| json!(row.area.bytes), "size", |row| {
        print::bytes(row.area.bytes)
    }),
    column!("allocating_threads", |row| json!(row.area.threads)),
    column!(
        "accesses",
        |row| json!(row.area.accesses),
        "accesses",
        |row| { percent(row.area.accesses / row.all) }
    ),
    column!("sample_count", |row| json!(row.area.sample_count)),
    column!(
        "local_access_ratio",
        |row| json!(row.area.local_ratio()),
        "local",
        |row| { or_none(row.area.local_ratio().map(percent)) }
    ),
    column!(
        "latency_ns",
        |row| json!(row.area.latency_ns()),
        "latency",
        |row| { or_none(row.area.latency_ns().map(units::time)) }
    ),
    column!("reads", |row| json!(row.area.reads())),
    column!("writes", |row| json!(row.area.writes()), "writes", writes),
    column!("written", |row| json!(row.judged.written.get())),
    column!("written_basis", |row| json!(row.judged.written.basis())),
    column!("homes", |row| json!(row.area.homes())),
    column!(
        "used_by",
        |row| json!(row.judged.by.told(&row.figures.data.nodes).0),
        "used by",
        |row| or_none(row.judged.by.words(&row.figures.data.nodes))
    ),
    column!("user", |row| json!(
        row.judged.by.told(&row.figures.data.nodes).1
    )),
    column!("owned_share", |row| json!(
        is_judged(row).then_some(row.judged.owned)
    )),
    column!("part_bytes", |row| json!(
        is_judged(row).then_some(row.judged.part_bytes)
    )),
    column!(
        "remedy",
        |row| json!(row.judged.remedy.name()),
        "remedy",
        |row| { row.judged.remedy.name().to_owned() }
    ),
    column!("target", |row| match row.judged.remedy {
        Remedy::MoveTo(position) => json!(row.figures.data.nodes[position]),
        _ => Value::Null,
    }),
];

fn is_judged(row: &Row) -> bool {
    row.judged.by != AreaUse::Unknown
}

/// The share of sampled stores, which is a lower bound of the writes; without one, whether anything else
/// tells of writes.
fn writes(row: &Row) -> String {
    match (row.area.write_share(), row.judged.written.get()) {
        (share, _) if share > 0.0 => percent(share),
        (_, Some(true)) => "some".to_owned(),
        (_, Some(false)) => "none".to_owned(),
        (_, None) => DASH.to_owned(),
    }
}

fn rows(figures: &Figures) -> impl Iterator<Item = Row<'_>> {
    let list = &figures.areas.list;
    let all = list.iter().map(|area| area.accesses).sum();
    let judged = list.iter().zip(&figures.judged);
    judged.map(move |(area, judged)| Row {
        figures,
        area,
        judged,
        all,
    })
}

/// All areas as JSON.
pub fn json(figures: &Figures) -> Vec<Value> {
    let object = |row: Row| {
        let fields = COLUMNS.iter();
        let fields = fields.map(|column| (column.key.to_owned(), (column.value)(&row)));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    rows(figures).map(object).collect()
}

/// Per area its use and remedy, and its accesses from each node.
pub fn tables(figures: &Figures) -> Vec<Part> {
    let list = &figures.areas.list;
    if list.is_empty() {
        return Vec::new();
    }
    let shown = || COLUMNS.iter().filter_map(|column| column.text);
    let head = shown().map(|(head, _)| head.to_owned()).collect();
    let cells = rows(figures).take(figures.top);
    let cells = cells.map(|row| shown().map(|(_, text)| text(&row)).collect());
    let mut parts = vec![Part::Table(head, cells.collect())];
    if let Some(rest) = list.get(figures.top..).filter(|rest| !rest.is_empty()) {
        let all: f64 = list.iter().map(|area| area.accesses).sum();
        let accesses: f64 = rest.iter().map(|area| area.accesses).sum();
        parts.push(Part::Text(format!(
            "{} more areas have {} of the accesses.",
            rest.len(),
            percent(accesses / all)
        )));
    }
    parts.push(Part::Text(
        "Accesses from each node, scaled from samples:".to_owned(),
    ));
    parts.push(by_node(figures));
    parts
}

fn by_node(figures: &Figures) -> Part {
    let list = &figures.areas.list;
    let kinds_are_known = list.iter().any(|area| area.kind_known > 0.0);
    let nodes = 0..figures.data.nodes.len();
    let row = |area: &Area| {
        let mut row = vec![area.name.clone()];
        for node in nodes.clone() {
            let of = |from: Option<&[f64]>| or_none(from.map(|from| count(from[node])));
            row.push(of(area.reads()));
            if kinds_are_known {
                row.push(of(area.writes()));
            }
        }
        row
    };
    let mut head = strings(&["area"]);
    for node in nodes.clone() {
        let of = if kinds_are_known { " reads" } else { "" };
        head.push(format!("{}{of}", figures.node(node)));
        if kinds_are_known {
            head.push(format!("{} writes", figures.node(node)));
        }
    }
    Part::Table(head, list.iter().take(figures.top).map(row).collect())
}
