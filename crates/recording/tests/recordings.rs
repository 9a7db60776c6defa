//! Recordings as files: what is written is read, and what is damaged is left out and told.

use hither_recording::analysis::{Data, areas, heat, homes, sharing, use_of, verdict, working_set};
use hither_recording::meta::{Meta, MetaNode, RecordingEnd, SCHEMA};
use hither_recording::rows::{Interval, Mapping, Process, Sample};
use hither_recording::{Folder, Recording, Writer};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

fn meta() -> Meta {
    let node = |id| MetaNode {
        id,
        cpus: format!("{id}"),
        total_bytes: 1 << 30,
        spans: Vec::new(),
    };
    Meta {
        schema: SCHEMA.into(),
        hither: "test".into(),
        began_unix_ms: Some(1),
        kernel: "7.2".into(),
        nodes: vec![node(0), node(1)],
        distances: vec![vec![10, 20], vec![20, 10]],
        line_bytes: Some(64),
        command: vec!["./app".into()],
        watched: "the command".into(),
        trackers: Vec::new(),
        interval_us: 100_000,
        ended: None,
    }
}

fn sample(number: u64) -> Sample {
    let some = number.is_multiple_of(3);
    Sample {
        time_ns: number * 1000,
        pid: 7,
        tid: some.then_some(8),
        cpu: some.then_some(u32::MAX),
        from_node: Some(0),
        home_node: (!some).then_some(1),
        address: u64::MAX - number * 4096,
        code: None,
        is_write: some.then_some(number.is_multiple_of(2)),
        latency_ns: Some(100),
        from_cache: Some(false),
        weight: 512,
    }
}

/// Writes some of most tables; a segment of samples is full, and another has the rest.
fn record(folder: &Path) -> Vec<Sample> {
    let mut writer = Writer::create(Folder::make_or_take(folder).unwrap(), meta()).unwrap();
    let samples: Vec<Sample> = (0..100_000).map(sample).collect();
    for part in samples.chunks(5000) {
        writer.add(part.iter().cloned()).unwrap();
    }
    writer
        .add([Mapping {
            time_ns: 0,
            pid: 7,
            start: 4096,
            end: 8192,
            permissions: "rw-p".into(),
            name: "ü \n".into(),
        }])
        .unwrap();
    writer
        .add([Process {
            pid: 7,
            name: "app".into(),
            start_ns: 0,
            end_ns: None,
            peak_bytes: None,
        }])
        .unwrap();
    writer
        .add([Interval {
            time_ns: 5,
            length_ns: 5,
            local_access_ratio: Some(f64::NAN),
            latency_ns: None,
            controller_imbalance: Some(0.5),
            link_use: None,
            accesses_per_us: Some(1e300),
            instructions_per_us: None,
            flops_per_us: None,
            stall_share: None,
            l3_mpki: None,
            sample_count: 1,
            lost_count: u64::MAX,
            own_cpu_us: Some(3),
        }])
        .unwrap();
    writer.meta_mut().ended = Some(RecordingEnd {
        length_ns: 100_000_000,
        status: Some(0),
        signal: None,
        own_user_us: Some(1),
        own_system_us: Some(2),
        watched_cpu_us: Some(3),
        own_peak_kb: Some(3),
        notes: vec!["a note".into()],
    });
    writer.finish().unwrap();
    samples
}

/// Runs every analysis; returns how many samples were read.
fn analyse(folder: &Path) -> Option<usize> {
    let data = Data::read(&Recording::open(folder).ok()?);
    let areas = areas::areas(&data);
    let judged = use_of::judge(&data, &areas);
    let lines = sharing::lines(&data, &areas.of_access, 10);
    let overall = verdict::overall(&data, &areas);
    let verdict = verdict::verdict(&data, &overall, &areas, &judged, &lines);
    assert!(!verdict.sentence.is_empty());
    for pid in heat::processes(&data) {
        assert!(heat::heat(&data, pid, 20, 20).is_none_or(|heat| heat.rows() > 0));
    }
    let set = working_set::working_set(&data, 1_000_000_000);
    assert!(
        set.windows
            .iter()
            .all(|w| w.touched_bytes <= w.weighted_bytes)
    );
    assert!(homes::residents(&data).len() <= data.residency.len());
    assert_eq!(homes::moves(&data).len(), data.nodes.len());
    Some(data.accesses.len())
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let samples = record(folder.path());
    let recording = Recording::open(folder.path()).unwrap();
    assert!(recording.rows::<Sample>() == samples, "samples differ");
    assert_eq!(recording.rows::<Mapping>()[0].name, "ü \n");
    let interval = recording.rows::<Interval>().remove(0);
    assert!(interval.local_access_ratio.is_some_and(f64::is_nan));
    assert_eq!((interval.latency_ns, interval.lost_count), (None, u64::MAX));
    assert!(recording.notes().is_empty(), "{:?}", recording.notes());
    assert_eq!(recording.meta().ended.as_ref().unwrap().notes, ["a note"]);
    assert_eq!(analyse(folder.path()), Some(100_000));
}

#[test]
fn what_holds_something_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let error = Folder::make_or_take(folder.path()).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
}

#[test]
fn links_are_not_followed_and_only_what_was_made_is_removed() {
    let above = tempfile::tempdir().unwrap();
    let (place, victim) = (above.path().join("recording"), above.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    let folder = Folder::make(&place).unwrap();
    assert!(Folder::make(&place).unwrap_err().is_taken());
    let mut writer = Writer::create(folder.clone(), meta()).unwrap();
    for name in ["samples-00000.part", "next.part", "samples-00000.parquet"] {
        std::os::unix::fs::symlink(&victim, place.join(name)).unwrap();
    }
    writer.add((0..10).map(sample)).unwrap();
    let error = writer.flush().unwrap_err().to_string();
    assert!(error.contains("cannot be written"), "{error}");
    fs::remove_file(place.join("next.part")).unwrap();
    writer.add((0..10).map(sample)).unwrap();
    writer.flush().unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // What others have put into it keeps it there.
    writer.abandon();
    assert!(place.join("samples-00000.part").is_symlink());
    fs::create_dir(place.join("sites")).unwrap();
    std::os::unix::fs::symlink(above.path(), place.join("sites/link")).unwrap();
    // Another folder that has its name by now is not the one that was made.
    let moved = above.path().join("moved");
    fs::rename(&place, &moved).unwrap();
    fs::create_dir(&place).unwrap();
    folder.remove_all();
    assert!(place.exists() && fs::read_dir(&moved).unwrap().next().is_none());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    let temporary = Folder::make_temporary(above.path(), "x-").unwrap();
    assert_ne!(
        Folder::make_temporary(above.path(), "x-").unwrap().path(),
        temporary.path()
    );
    temporary.remove_all();
    assert!(!temporary.path().exists());
}

#[test]
fn a_killed_recorder_leaves_what_was_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(Folder::make_or_take(folder.path()).unwrap(), meta()).unwrap();
    // Two whole segments, however many rows come at once.
    writer.add((0..2 << 16).map(sample)).unwrap();
    writer.add((0..10).map(sample)).unwrap();
    // Not finished: as after a kill.
    drop(writer);
    fs::write(folder.path().join("samples-00002.part"), "half").unwrap();
    let recording = Recording::open(folder.path()).unwrap();
    assert_eq!(recording.rows::<Sample>().len(), 2 << 16);
    assert!(recording.meta().ended.is_none());
    let notes = Data::read(&recording).notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("did not come to its end"))
    );
}

#[test]
fn other_versions_and_no_recordings_are_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |content: &str| {
        fs::write(folder.path().join("recording.json"), content).unwrap();
        Recording::open(folder.path()).unwrap_err().to_string()
    };
    assert!(refused("{\"schema\": \"hither.recording/2\"}").contains("use the release"));
    assert!(refused("{\"schema\": \"hither.recording/1\"}").contains("is damaged"));
    assert!(refused("{").contains("is no JSON") && refused("[]").contains("names no schema"));
    let missing = Recording::open(Path::new("/nonexistent")).unwrap_err();
    assert!(missing.to_string().contains("give the folder"), "{missing}");
}

/// Copies the recording so that it can be damaged.
fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

#[test]
fn a_damaged_segment_is_left_out_and_told() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let name = "samples-00000.parquet";
    for damage in ["cut", "flip", "remove"] {
        let copy = copy(folder.path());
        let path = copy.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            "cut" => bytes.truncate(bytes.len() / 2),
            _ => bytes[1000] ^= 1,
        }
        fs::write(&path, &bytes).unwrap();
        if damage == "remove" {
            fs::remove_file(&path).unwrap();
        }
        let recording = Recording::open(copy.path()).unwrap();
        assert_eq!(recording.rows::<Sample>().len(), 30_000, "{damage}");
        assert!(
            recording.notes()[0].contains(name),
            "{:?}",
            recording.notes()
        );
    }
}

#[test]
fn tables_of_another_shape_are_left_out() {
    // A mapping's file under the name of samples, with a sum that is right.
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let sums = fs::read_to_string(folder.path().join("SHA256SUMS")).unwrap();
    let of = |name: &str| {
        let line = sums.lines().find(|line| line.ends_with(name)).unwrap();
        line.split_once(' ').unwrap().0.to_owned()
    };
    let swapped = sums.replace(&of("samples-00001.parquet"), &of("mappings-00000.parquet"));
    fs::write(folder.path().join("SHA256SUMS"), swapped).unwrap();
    let from = folder.path().join("mappings-00000.parquet");
    fs::copy(from, folder.path().join("samples-00001.parquet")).unwrap();
    let recording = Recording::open(folder.path()).unwrap();
    assert_eq!(recording.rows::<Sample>().len(), 70_000);
    let notes = recording.notes();
    assert!(notes[0].contains("has no column `address`"), "{notes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is done to a file of a recording, reading and analysing it comes to an end.
    #[test]
    fn damage_anywhere_is_survived(
        file in 0_usize..64,
        at in any::<prop::sample::Index>(),
        cut in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 1..8),
    ) {
        static WHOLE: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
        let whole = WHOLE.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            record(folder.path());
            folder
        });
        let copy = copy(whole.path());
        let files = files(copy.path());
        let path = &files[file % files.len()];
        let mut content = fs::read(path).unwrap();
        let at = at.index(content.len().max(1));
        match cut {
            true => content.truncate(at),
            false => {
                let end = (at + bytes.len()).min(content.len());
                content.splice(at..end, bytes);
            }
        }
        fs::write(path, content).unwrap();
        let read = analyse(copy.path());
        prop_assert!(read.is_none_or(|count| count <= 100_000));
    }
}

#[test]
fn the_documentation_names_every_column() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recording.md");
    let text = fs::read_to_string(path).unwrap();
    for (table, columns) in hither_recording::rows::tables() {
        let (_, after) = text
            .split_once(&format!("\n### {table}\n"))
            .unwrap_or_else(|| panic!("docs/recording.md has no section {table}"));
        let section = after.split("\n### ").next().unwrap_or("");
        for column in columns {
            let optional = if column.is_optional { "?" } else { "" };
            let row = format!(
                "| `{}` | {}{optional} |{} |",
                column.name, column.cell, column.meaning
            );
            assert!(section.contains(&row), "docs/recording.md, {table}: {row}");
        }
    }
}
