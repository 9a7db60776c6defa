//! The counters of memory controllers that the kernel offers to perf: which there are, on which
//! CPUs they are read, and what they count. They are found here and not opened.

use crate::error::Result;
use crate::parse::{self, Parsed};
use crate::root::Root;
use hither_core::set::CpuSet;

const FOLDER: &str = "sys/bus/event_source/devices";
/// Names of the kernel's drivers for memory controllers: Intel, AMD.
const PREFIXES: [&str; 2] = ["uncore_imc", "amd_umc"];

/// A memory controller, or one of its channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Controller {
    /// The kernel's name: `uncore_imc_0`.
    pub name: String,
    /// Number of the event source (`perf_event_attr.type`).
    pub source: u64,
    /// One CPU per package, on which it is read; empty where the kernel names none.
    pub cpus: CpuSet,
    /// What it counts by name; empty where only raw events are known.
    pub events: Vec<ControllerEvent>,
}

/// A named event of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerEvent {
    /// The kernel's name: `cas_count_read`.
    pub name: String,
    /// Its terms: `event=0x04,umask=0x03`.
    pub terms: String,
    /// What one count stands for, in units; 1 where the kernel says nothing.
    pub scale: f64,
    /// The unit: `MiB`; may be empty.
    pub unit: String,
}

/// All memory controllers, by name; none on a machine without a PMU.
///
/// # Errors
/// A file that cannot be read, or is not what the kernel prints.
pub fn controllers(root: &Root) -> Result<Vec<Controller>> {
    let mut found = Vec::new();
    for name in root.names(FOLDER)? {
        if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let folder = format!("{FOLDER}/{name}");
        found.push(Controller {
            source: root.parse(&format!("{folder}/type"), parse::number)?,
            cpus: root
                .parse_if_any(&format!("{folder}/cpumask"), parse::list)?
                .unwrap_or_else(CpuSet::new),
            events: events(root, &folder)?,
            name,
        });
    }
    Ok(found)
}

fn events(root: &Root, folder: &str) -> Result<Vec<ControllerEvent>> {
    let mut found = Vec::new();
    for name in root.names(&format!("{folder}/events"))? {
        // `x.scale` and `x.unit` stand beside `x`.
        if name.contains('.') {
            continue;
        }
        let file = format!("{folder}/events/{name}");
        let scale = root.parse_if_any(&format!("{file}.scale"), parse_scale)?;
        let unit = root.text_if_any(&format!("{file}.unit"))?;
        found.push(ControllerEvent {
            terms: root.text(&file)?.trim().to_owned(),
            scale: scale.unwrap_or(1.0),
            unit: unit.unwrap_or_default().trim().to_owned(),
            name,
        });
    }
    Ok(found)
}

/// ```text
/// 6.103515625e-5
/// ```
fn parse_scale(text: &str) -> Parsed<f64> {
    let word = text.trim();
    let scale = word.parse().ok().filter(|scale: &f64| scale.is_finite());
    scale.ok_or_else(|| crate::error::Fault::new(1, format!("`{}` is no scale", parse::clip(word))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (below, text) in files {
            let path = folder.path().join(FOLDER).join(below);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn controllers_and_their_events_are_found() {
        let (_folder, root) = captured(&[
            ("uncore_imc_0/type", "14\n"),
            ("uncore_imc_0/cpumask", "0,24\n"),
            (
                "uncore_imc_0/events/cas_count_read",
                "event=0x04,umask=0x03\n",
            ),
            (
                "uncore_imc_0/events/cas_count_read.scale",
                "6.103515625e-5\n",
            ),
            ("uncore_imc_0/events/cas_count_read.unit", "MiB\n"),
            ("amd_umc_0/type", "20\n"),
            ("uncore_cha_0/type", "31\n"),
            ("cpu/type", "4\n"),
        ]);
        let found = controllers(&root).unwrap();
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["amd_umc_0", "uncore_imc_0"]);
        let imc = &found[1];
        assert_eq!((imc.source, imc.cpus.to_string().as_str()), (14, "0,24"));
        let event = &imc.events[0];
        assert_eq!(imc.events.len(), 1);
        assert_eq!(event.terms, "event=0x04,umask=0x03");
        // 64 bytes in MiB.
        assert_eq!(
            (event.scale, event.unit.as_str()),
            (64.0 / 1_048_576.0, "MiB")
        );
        assert!(found[0].events.is_empty() && found[0].cpus.is_empty());
    }

    #[test]
    fn malformed_files_are_named() {
        let (_folder, root) = captured(&[("uncore_imc/type", "many\n")]);
        let error = controllers(&root).unwrap_err().to_string();
        assert!(error.contains("uncore_imc/type:1"), "{error}");
        let (_folder, root) = captured(&[
            ("uncore_imc/type", "14\n"),
            ("uncore_imc/events/x", "event=1\n"),
            ("uncore_imc/events/x.scale", "inf\n"),
        ]);
        let error = controllers(&root).unwrap_err().to_string();
        assert!(error.contains("`inf` is no scale"), "{error}");
    }

    #[test]
    fn a_machine_without_any_has_none() {
        let (_folder, root) = captured(&[("software/type", "1\n")]);
        assert_eq!(controllers(&root).unwrap(), []);
    }
}
