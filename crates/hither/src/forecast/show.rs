//! The forecast of a recording as text, drawing and JSON.

use crate::draw::{Axis, LineChart, Scale, Series, Shape};
use crate::print::{self, Table, or_dash};
use crate::report::about;
use crate::terminal::Terminal;
use hither_core::foreign::Foreign;
use hither_recording::analysis::Data;
use hither_recording::analysis::what_if::{MODEL_ERROR, Row, WhatIf, WhatIfQuestion};
use serde_json::{Value, json};
use std::path::Path;

/// Letters of a command in the picture's subtitle at most: a line of it.
const MOST_SUBTITLE: usize = 90;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// A forecast and what it is of.
pub struct Shown<'a> {
    pub told: &'a WhatIf,
    pub data: &'a Data,
    pub question: &'a WhatIfQuestion<'a>,
    pub folder: &'a Path,
}

impl Shown<'_> {
    /// For a person.
    pub fn text(&self, terminal: Terminal) -> String {
        let told = self.told;
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut text = format!(
            "recording {}\non {}\n\n",
            about(self.folder, &self.data.meta),
            self.question.target.description.shown()
        );
        let stalls = match told.stall_share {
            [low, high] if high - low < 0.005 => percent(low),
            [low, high] => format!("{} to {}", percent(low), percent(high)),
        };
        text += &format!(
            "{} in memory ({}), {:.1} memory fills a microsecond, {:.0} ns each ({}).\n{} of the CPU time waits for \
             memory ({}).\n",
            print::bytes(told.footprint_bytes),
            told.footprint_basis,
            told.accesses_per_us,
            told.latency_ns,
            told.latency_basis,
            stalls,
            told.stall_basis,
        );
        text += &format!(
            "{} samples rank memory in units of {}, and {} are solved for.\n",
            told.sample_count,
            print::bytes(told.unit_bytes),
            print::count(told.window_count, "window"),
        );
        if let Some(check) = told.check {
            text += &format!(
                "The model gives the recorded run itself a speed of {check:.2}: speeds are divided by that, and what it is off adds to \
                 the ranges.\n"
            );
        }
        text.push('\n');
        let rows: Vec<Vec<String>> = told.rows.iter().map(|row| self.row(row)).collect();
        let head = [
            "fast memory",
            "used",
            "accesses served fast",
            "speed",
            "lowest",
            "highest",
        ];
        text += &Table::new(&head, &rows).text(terminal);
        text += &format!(
            "\nSpeed beside the recorded run. Lowest and highest include what samples and stalls leave open and {:.0} % of \
             the change for the model, an estimate.\n",
            100.0 * MODEL_ERROR
        );
        for note in told.notes.iter().chain(&self.data.notes) {
            text += &format!("{}\n", note.shown());
        }
        text
    }

    fn row(&self, row: &Row) -> Vec<String> {
        let speed = |speed: f64| format!("{speed:.2}");
        let [low, share, high] = row.fast_share.map(|share| 100.0 * share);
        vec![
            print::bytes(row.fast_bytes),
            print::bytes(row.used_bytes),
            match high - low < 1.0 {
                true => format!("{share:.0} %"),
                false => format!("{share:.0} % ({low:.0} to {high:.0})"),
            },
            or_dash(row.speed, speed),
            speed(row.low),
            speed(row.high),
        ]
    }

    /// Speed by size.
    pub fn chart(&self) -> LineChart {
        let points = |of: &dyn Fn(&Row) -> f64| {
            let rows = self.told.rows.iter();
            rows.map(|row| (row.fast_bytes as f64 / MIB, of(row)))
                .collect::<Vec<_>>()
        };
        let series = |name: &str, shape, points| Series {
            name: name.to_owned(),
            colour: 0,
            shape,
            points,
        };
        let subtitle = about(self.folder, &self.data.meta);
        LineChart {
            title: format!(
                "Speed on {} by size of fast memory",
                self.question.target.name
            ),
            subtitle: print::elided(&subtitle, MOST_SUBTITLE),
            x: Axis::new("fast memory (MiB)", Scale::Linear),
            y: Axis::new("speed (recorded run = 1)", Scale::Linear),
            series: vec![
                series("highest", Shape::Dashed, points(&|row| row.high)),
                series(
                    "forecast",
                    Shape::Line,
                    points(&|row| row.speed.unwrap_or(f64::NAN)),
                ),
                series("lowest", Shape::Dashed, points(&|row| row.low)),
            ],
        }
    }

    /// hither.forecast-recording/1; documented in docs/cli.md.
    pub fn json(&self) -> Value {
        let told = self.told;
        let machine = self.question.recorded_on.map(|machine| &machine.name);
        let rows = told.rows.iter().map(|row| {
            json!({
                "fast_bytes": row.fast_bytes,
                "used_bytes": row.used_bytes,
                "fast_share": row.fast_share[1],
                "fast_share_low": row.fast_share[0],
                "fast_share_high": row.fast_share[2],
                "speed": row.speed,
                "speed_low": row.low,
                "speed_high": row.high,
            })
        });
        json!({
            "schema": "hither.forecast-recording/1",
            "recording": self.data.meta,
            "machine": self.question.target.name,
            "machine_scaling": self.question.target.scaling,
            "recorded_on": machine,
            "fast_tier_bytes": told.tier_bytes[0],
            "slow_tier_bytes": told.tier_bytes[1],
            "footprint_bytes": told.footprint_bytes,
            "footprint_basis": told.footprint_basis,
            "sample_count": told.sample_count,
            "window_count": told.window_count,
            "unit_bytes": told.unit_bytes,
            "stall_share_low": told.stall_share[0],
            "stall_share_high": told.stall_share[1],
            "stall_basis": told.stall_basis,
            "latency_ns": told.latency_ns,
            "latency_basis": told.latency_basis,
            "accesses_per_us": told.accesses_per_us,
            "bytes_per_fill": told.bytes_per_fill,
            "busy_cpus": told.cpus,
            "check_speed": told.check,
            "model_error": MODEL_ERROR,
            "rows": rows.collect::<Vec<_>>(),
            "notes": told.notes.iter().chain(&self.data.notes).collect::<Vec<_>>(),
        })
    }
}
