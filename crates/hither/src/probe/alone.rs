//! Kinds of work measured alone, as a table and as `hither.probe-work/1` (`docs/cli.md`).

use super::report::{or_dash, or_null, table};
use crate::print;
use crate::terminal::Terminal;
use crate::units::short_bytes;
use hither_linux::probe::ProbeWork;
use hither_linux::probe::alone::Report;
use serde_json::{Value, json};

/// The pages that memory is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pages {
    /// 2 MiB
    Huge,
    /// 4 KiB
    Small,
}

/// How a kind of work is written in a command.
fn option(work: ProbeWork) -> String {
    work.name().replace(", ", "-")
}

/// The kind of work that is written like this.
///
/// # Errors
/// What to write instead, for a refusal by clap.
pub fn parse_work(text: &str) -> Result<ProbeWork, String> {
    let found = ProbeWork::ALL
        .into_iter()
        .find(|work| option(*work) == text);
    let known = || ProbeWork::ALL.map(option).join(", ");
    found.ok_or_else(|| format!("write one of {}", known()))
}

/// For people.
#[must_use]
pub fn text(report: &Report, rounds: usize, terminal: Terminal) -> String {
    let mut text = format!(
        "by one thread on {}, in {} of {} pages on {}; {rounds} rounds\n\n",
        report.cpu,
        short_bytes(report.bytes),
        if report.huge { "huge" } else { "small" },
        report.node,
    );
    let rows = report.works.iter().map(|one| {
        let gbs = one.gbs.as_ref();
        let spread = print::or_dash(gbs, |gbs| format!("{:.1} %", gbs.spread * 100.0));
        vec![one.work.name().to_owned(), or_dash(gbs), spread]
    });
    let head = ["work", "GB/s", "rounds differ by"].map(str::to_owned);
    table(&mut text, &head, rows.collect(), terminal);
    text
}

/// For programs.
#[must_use]
pub fn json(report: &Report, rounds: usize) -> String {
    let works = report.works.iter();
    let works: Value = works
        .map(|one| json!({"work": one.work.name(), "gbs": or_null(one.gbs.as_ref())}))
        .collect();
    let document = json!({
        "schema": "hither.probe-work/1",
        "rounds": rounds,
        "huge_pages": report.huge,
        "bytes": report.bytes,
        "cpu": report.cpu.0,
        "memory_node": report.node.0,
        "bandwidth": works,
    });
    print::json(document)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::at;
    use super::*;
    use hither_core::ids::{CpuId, NodeId};
    use hither_linux::probe::alone::Alone;

    #[test]
    fn every_kind_of_work_can_be_written() {
        for work in ProbeWork::ALL {
            assert_eq!(parse_work(&option(work)), Ok(work));
        }
        let refusal = parse_work("streaming").unwrap_err();
        assert!(refusal.contains("copy, copy-streaming"), "{refusal}");
    }

    #[test]
    fn table_and_document_say_what_was_measured_where() {
        let report = Report {
            cpu: CpuId(3),
            node: NodeId(1),
            bytes: 512 << 20,
            huge: false,
            works: vec![Alone {
                work: ProbeWork::CopyStreaming,
                gbs: Some(at(12.5)),
            }],
        };
        assert_eq!(
            text(&report, 5, Terminal::PIPE),
            "by one thread on cpu3, in 512M of small pages on node1; 5 rounds\n\n\
             work             GB/s  rounds differ by\n\
             copy, streaming  12.5  2.0 %\n"
        );
        let document: Value = serde_json::from_str(&json(&report, 5)).unwrap();
        assert_eq!(document["schema"], "hither.probe-work/1");
        assert_eq!(document["bytes"], 512 << 20);
        assert_eq!(document["bandwidth"][0]["gbs"]["median"], 12.5);
    }
}
