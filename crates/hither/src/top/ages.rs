//! Ages of memory, for a person and for JSON.

use super::figures::memory;
use hither_linux::counters::lru_gen::{Ages, WITHIN_MS};
use serde_json::{Value, json};

/// KiB of a base page.
const PAGE_KB: u64 = 4;

/// All nodes together.
pub fn sum(nodes: &[Ages]) -> Ages {
    let mut sum = Ages::default();
    for ages in nodes {
        for class in 0..=WITHIN_MS.len() {
            sum.anonymous_pages[class] += ages.anonymous_pages[class];
            sum.file_pages[class] += ages.file_pages[class];
        }
    }
    sum
}

/// Names of the classes.
pub fn heads() -> Vec<String> {
    let head = |ms: &u64| match ms / 1000 {
        seconds if seconds < 60 => format!("{seconds} s"),
        seconds if seconds < 3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    };
    let mut heads: Vec<String> = WITHIN_MS.iter().map(head).collect();
    heads.push("longer ago".to_owned());
    heads
}

/// Memory by class.
pub fn cells(ages: &Ages) -> Vec<String> {
    let classes = 0..=WITHIN_MS.len();
    classes
        .map(|class| memory(ages.pages(class).saturating_mul(PAGE_KB)))
        .collect()
}

/// In one line, without what is empty.
pub fn line(ages: &Ages) -> String {
    let filled = heads().into_iter().zip(cells(ages)).enumerate();
    let told: Vec<String> = filled
        .filter(|(class, _)| ages.pages(*class) > 0)
        .map(|(_, (head, cell))| format!("{head} {cell}"))
        .collect();
    match told.is_empty() {
        true => "nothing".to_owned(),
        false => told.join(", "),
    }
}

/// For JSON.
pub fn value(ages: &Ages) -> Value {
    let limits = WITHIN_MS.iter().map(|&ms| Some(ms)).chain([None]);
    let bytes = |pages: u64| pages.saturating_mul(PAGE_KB << 10);
    let value = |(class, within_ms): (usize, Option<u64>)| {
        json!({
            "within_ms": within_ms,
            "anonymous_bytes": bytes(ages.anonymous_pages[class]),
            "file_bytes": bytes(ages.file_pages[class]),
        })
    };
    limits.enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many pages of each class, from the latest on.
    fn ages(anonymous: [u64; 6], file: [u64; 6]) -> Ages {
        let mut ages = Ages::default();
        ages.anonymous_pages.copy_from_slice(&anonymous);
        ages.file_pages.copy_from_slice(&file);
        ages
    }

    #[test]
    fn classes_that_hold_memory_are_told() {
        let nodes = [
            ages([512, 0, 256, 0, 0, 0], [256, 0, 0, 0, 0, 0]),
            ages([0, 0, 0, 0, 0, 256], [1024, 0, 0, 0, 0, 0]),
            Ages::default(),
        ];
        let names = heads();
        assert_eq!(names.len(), cells(&nodes[0]).len());
        let first = format!("{} 3.0M, {} 1.0M", names[0], names[2]);
        assert_eq!(line(&nodes[0]), first);
        assert_eq!(
            line(&nodes[1]),
            format!("{} 4.0M, longer ago 1.0M", names[0])
        );
        assert_eq!(line(&nodes[2]), "nothing");
        let all = format!("{} 7.0M, {} 1.0M, longer ago 1.0M", names[0], names[2]);
        assert_eq!(line(&sum(&nodes)), all);
        let value = value(&nodes[1]);
        assert_eq!(value[0]["file_bytes"], 4 << 20);
        assert_eq!(value[5]["within_ms"], Value::Null);
        assert_eq!(value[5]["anonymous_bytes"], 1 << 20);
    }
}
