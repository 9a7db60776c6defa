//! Work that can be placed, as a table and as JSON (`hither.services/1`, docs/services.md).

use crate::print::{self, Table};
use crate::terminal::Terminal;
use hither_core::foreign::Foreign;
use hither_linux::services::ServiceWork;
use serde_json::json;

const SCHEMA: &str = "hither.services/1";

/// Prints it.
pub fn work(works: &[ServiceWork], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let works = works.iter().map(|work| {
            json!({
                "kind": work.kind.name(),
                "name": work.name,
                "class": work.class,
                "setting": work.setting.path,
                "now": work.setting.content,
            })
        });
        let document = json!({ "schema": SCHEMA, "work": works.collect::<Vec<_>>() });
        return Ok(print::out(&print::json(document))?);
    }
    let rows: Vec<Vec<String>> = works
        .iter()
        .map(|work| {
            vec![
                work.class.to_string(),
                work.kind.name().to_owned(),
                work.name.shown().to_string(),
                work.setting.content.clone(),
            ]
        })
        .collect();
    let table = Table::new(&["class", "kind", "name", "now"], &rows);
    Ok(print::out(&table.text(Terminal::of_output()))?)
}
