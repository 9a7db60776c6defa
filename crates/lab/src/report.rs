//! The result of `hither lab run`: JSON document and a few lines for a person. Pure.

use crate::compare::{Run, Setting};
use crate::measure::{self, Figures};
use serde::{Deserialize, Serialize};

/// Schema of the JSON form; `docs/lab.md` documents it.
pub const SCHEMA: &str = "hither.lab.run/1";

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where and how.
    #[serde(flatten)]
    pub setting: Setting,
    /// Its policy.
    pub policy: String,
    /// Exit status of the program.
    pub status: u8,
    /// Guest seconds from exec to exit.
    pub seconds: f64,
    /// Host seconds.
    pub host_seconds: f64,
    /// Figures of the whole run.
    pub figures: Figures,
    /// Report of `hither run`, schema `hither.run/1`.
    pub hither: Option<serde_json::Value>,
}

impl RunReport {
    /// From what the guest sent.
    #[must_use]
    pub fn new(setting: Setting, policy: &str, run: Run) -> Self {
        let timeline = &run.ended.timeline;
        let ends = timeline.first().zip(timeline.last());
        Self {
            schema: SCHEMA.to_owned(),
            setting,
            policy: policy.to_owned(),
            status: run.ended.status,
            seconds: run.ended.end_ns.saturating_sub(run.ended.start_ns) as f64 / 1e9,
            host_seconds: run.host_seconds,
            figures: ends.map_or_else(Figures::default, |(from, to)| measure::between(from, to)),
            hither: run.ended.report,
        }
    }
}

/// Lines for a person, each beginning with `lab: `.
#[must_use]
pub fn summary(report: &RunReport) -> String {
    let time = format!(
        "lab: {:.3} s in the guest ({:.1} s of the host), {}, exit status {}\n",
        report.seconds, report.host_seconds, report.policy, report.status
    );
    if !report.setting.modelled {
        return time
            + "lab: without the plugin: times are the host's and say nothing about placement\n";
    }
    let percent =
        |value: Option<f64>| value.map_or("-".into(), |value| format!("{:.0} %", value * 100.0));
    let number = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
    let figures = &report.figures;
    let latency = figures
        .latency_ns
        .map_or("-".into(), |value| format!("{value:.0} ns"));
    format!(
        "{time}lab: local accesses {}, latency {latency}, controllers {} used, imbalance {}, links {} used, {} pages moved\n\
         lab: {} instructions, {} of the fills from the kernel, {} lines written back\n",
        percent(figures.local_access_ratio),
        percent(figures.controller_use),
        percent(figures.controller_imbalance),
        percent(figures.link_use),
        number(figures.moved_pages),
        number(figures.instructions),
        percent(figures.kernel_fill_share),
        number(figures.write_backs)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Counters, Point};
    use crate::protocol::RunEnded;

    fn report(timeline: Vec<Point>, modelled: bool) -> RunReport {
        let ended = RunEnded {
            status: 0,
            start_ns: 0,
            end_ns: 1_500_000_000,
            timeline,
            report: None,
        };
        let setting = Setting {
            modelled,
            ..Setting::default()
        };
        RunReport::new(
            setting,
            "kernel",
            Run {
                policy: 0,
                ended,
                host_seconds: 4.0,
            },
        )
    }

    #[test]
    fn the_summary_names_time_and_placement() {
        let mut end = Counters {
            user_fills: 10,
            user_local_fills: 5,
            ..Counters::default()
        };
        end.moved_pages = 7;
        let timeline = vec![
            Point::default(),
            Point {
                time_ns: 1_500_000_000,
                counters: end,
            },
        ];
        let text = summary(&report(timeline, true));
        assert!(
            text.starts_with(
                "lab: 1.500 s in the guest (4.0 s of the host), kernel, exit status 0\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("local accesses 50 %") && text.contains("7 pages moved"),
            "{text}"
        );
    }

    #[test]
    fn without_the_plugin_nothing_is_claimed() {
        let text = summary(&report(vec![], false));
        assert!(text.contains("say nothing about placement"), "{text}");
        assert!(!text.contains("local accesses"), "{text}");
    }

    #[test]
    fn the_document_reads_back() {
        let report = report(vec![], true);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
        assert!(text.contains("\"schema\":\"hither.lab.run/1\""));
    }
}
