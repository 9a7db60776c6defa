//! Recordings that were made to do harm: their sums are right, and what they say is not. Whatever a file
//! holds, reading it ends with rows or with a sentence, and takes memory in proportion to the file.
//!
//! `HITHER_FUZZ_INPUTS` sets the number of inputs (800 by default), `HITHER_FUZZ_SEED` the seed.
//! `fixtures/hostile` holds files at which the decoder of Parquet panics, or would take memory without end.

use hither_recording::analysis::Data;
use hither_recording::meta::{Meta, MetaNode, SCHEMA};
use hither_recording::rows::{Frame, Interval, Mapping, Process, Sample};
use hither_recording::{Folder, Recording, Writer};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

fn meta() -> Meta {
    Meta {
        schema: SCHEMA.into(),
        hither: "test".into(),
        began_unix_ms: Some(1),
        kernel: "7.2".into(),
        nodes: vec![MetaNode {
            id: 0,
            cpus: "0".into(),
            total_bytes: 1 << 30,
            spans: Vec::new(),
        }],
        distances: vec![vec![10]],
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
        cpu: some.then_some(3),
        from_node: Some(0),
        home_node: (!some).then_some(0),
        address: (number * 7919 % 4096) << 12,
        code: None,
        is_write: some.then_some(number.is_multiple_of(2)),
        latency_ns: Some(100),
        from_cache: Some(false),
        weight: 512,
    }
}

/// Writes a recording of some tables, `rows` of each: few are stored plainly, many are encoded, and more
/// are compressed.
fn write(folder: &Path, rows: u64) {
    let mut writer = Writer::create(Folder::make_or_take(folder).unwrap(), meta()).unwrap();
    writer.add((0..rows).map(sample)).unwrap();
    writer
        .add((0..rows).map(|number| Mapping {
            time_ns: number,
            pid: 7,
            start: number << 12,
            end: (number + 1) << 12,
            permissions: "rw-p".into(),
            name: format!("/usr/lib/{}.so", number % 9),
        }))
        .unwrap();
    writer
        .add((0..rows).map(|number| Frame {
            pid: 7,
            site: number as u32,
            depth: 0,
            module: "app".into(),
            offset: number * 16,
            function: number.is_multiple_of(2).then(|| format!("f{number}")),
            file: None,
            line: Some(number as u32),
        }))
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
        .add((0..rows).map(|number| Interval {
            time_ns: number,
            length_ns: 1,
            local_access_ratio: Some(0.5),
            latency_ns: None,
            controller_imbalance: None,
            link_use: None,
            accesses_per_us: Some(number as f64),
            instructions_per_us: None,
            flops_per_us: None,
            stall_share: None,
            l3_mpki: None,
            sample_count: number,
            lost_count: 0,
            own_cpu_us: Some(3),
        }))
        .unwrap();
    writer.finish().unwrap();
}

/// Gives a recording one segment of these bytes, with the sum that they have.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
    let sum: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    fs::write(folder.join("SHA256SUMS"), format!("{sum}  {name}\n")).unwrap();
}

/// A recording without segments.
fn empty() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Writer::create(Folder::make_or_take(folder.path()).unwrap(), meta())
        .unwrap()
        .finish()
        .unwrap();
    folder
}

/// Reads it; returns what is said of it.
fn read(folder: &Path) -> Vec<String> {
    match Recording::open(folder) {
        Ok(recording) => {
            let data = Data::read(&recording);
            assert!(data.accesses.len() <= 1 << 21 && data.mappings.len() <= 1 << 21);
            recording.notes()
        }
        Err(error) => vec![error.to_string()],
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name);
    set.map_or(default, |text| text.parse().expect("a whole number"))
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Extremes of Thrift's numbers, as they stand in headers of pages and at the end of the file.
const EXTREMES: [&[u8]; 8] = [
    &[0x00],
    &[0x01],
    &[0x7f],
    &[0xfe, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x08],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff],
];

/// A place to change: headers are short, and most of what goes wrong begins there.
fn place(random: &mut Random, length: usize) -> usize {
    match random.below(4) {
        0 => random.below(length.min(64)),
        1 | 2 => length - 1 - random.below(length.min(900)),
        _ => random.below(length),
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        let at = place(random, bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let with = EXTREMES[random.below(EXTREMES.len())];
                // In place of the number that is there, or at least of its first byte.
                let end = (at + 1 + random.below(3)).min(bytes.len());
                bytes.splice(at..end, with.iter().copied());
            }
            3 => {
                bytes.remove(at);
            }
            _ => {
                let from = place(random, bytes.len());
                let end = (from + 1 + random.below(12)).min(bytes.len());
                let piece = bytes[from..end].to_vec();
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece);
            }
        }
    }
    // The length of what stands at the end, so that more than its magic is tried.
    if random.below(3) > 0 && bytes.len() > 12 {
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(b"PAR1");
    }
}

fn segments(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<(String, Vec<u8>)> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| name.ends_with(".parquet"))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect();
    found.sort();
    found
}

#[test]
fn segments_that_were_changed_are_read_or_refused() {
    let (inputs, seed) = (
        setting("HITHER_FUZZ_INPUTS", 800),
        setting("HITHER_FUZZ_SEED", 1),
    );
    let mut whole = Vec::new();
    for rows in [3, 300, 5000] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), rows);
        whole.extend(segments(folder.path()));
    }
    let keep = std::env::var_os("HITHER_FUZZ_KEEP").map(PathBuf::from);
    let mut random = Random(seed);
    let folder = empty();
    let (mut accepted, mut caught) = (0, 0);
    for input in 0..inputs {
        let (name, bytes) = &whole[random.below(whole.len())];
        let mut bytes = bytes.clone();
        mutate(&mut random, &mut bytes);
        put(folder.path(), name, &bytes);
        let told = read(folder.path());
        accepted += u64::from(told.is_empty());
        if told.iter().any(|note| note.contains("contradicts itself")) {
            caught += 1;
            if let Some(keep) = &keep {
                fs::write(keep.join(format!("{seed}-{input}-{name}")), &bytes).unwrap();
            }
        }
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    println!("segments: seed {seed}, {inputs} inputs, {accepted} accepted, {caught} panics caught");
    assert!(accepted > inputs / 100 && accepted < inputs, "{accepted}");
}

/// The decoder of Parquet panicked at each of them.
#[test]
fn files_that_panics_came_from_are_refused_with_a_sentence() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hostile");
    let files = segments(&corpus);
    assert!(files.len() >= 4, "{}", files.len());
    for (file, bytes) in files {
        let table = file.split('-').next().unwrap();
        let folder = empty();
        let name = format!("{table}-00000.parquet");
        put(folder.path(), &name, &bytes);
        let told = read(folder.path());
        assert!(
            told.len() == 1 && told[0].starts_with(&format!("{name} was left out: it ")),
            "{file}: {told:?}"
        );
    }
}

/// Constant columns take next to no bytes, however many rows there are.
#[test]
fn rows_beyond_what_a_file_can_hold_are_refused() {
    use parquet::basic::{Encoding, Repetition, Type as Physical};
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::types::Type;
    use std::sync::Arc;

    let file = |rows: usize| {
        let column = |name, physical| {
            let field = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::REQUIRED)
                .build();
            Arc::new(field.unwrap())
        };
        let schema = Type::group_type_builder("processes").with_fields(vec![
            column("pid", Physical::INT32),
            column("name", Physical::BYTE_ARRAY),
            column("start_ns", Physical::INT64),
        ]);
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_column_encoding("pid".into(), Encoding::DELTA_BINARY_PACKED)
            .set_column_encoding("start_ns".into(), Encoding::DELTA_BINARY_PACKED)
            .set_column_dictionary_enabled("name".into(), true);
        let mut writer = SerializedFileWriter::new(
            Vec::new(),
            Arc::new(schema.build().unwrap()),
            Arc::new(properties.build()),
        )
        .unwrap();
        let mut group = writer.next_row_group().unwrap();
        macro_rules! put {
            ($type:ty, $value:expr) => {
                let mut column = group.next_column().unwrap().unwrap();
                let values = vec![$value; rows];
                column
                    .typed::<$type>()
                    .write_batch(&values, None, None)
                    .unwrap();
                column.close().unwrap();
            };
        }
        put!(Int32Type, 7);
        put!(ByteArrayType, ByteArray::from("app"));
        put!(Int64Type, 0);
        group.close().unwrap();
        writer.into_inner().unwrap()
    };
    let folder = empty();
    let rows = |rows| {
        let bytes = file(rows);
        put(folder.path(), "processes-00000.parquet", &bytes);
        let recording = Recording::open(folder.path()).unwrap();
        let found = recording.rows::<Process>().len();
        (bytes.len(), found, recording.notes().join("\n"))
    };
    assert_eq!(rows(100_000).1, 100_000);
    let (bytes, found, told) = rows(2_000_000);
    assert!(bytes < 400_000, "{bytes}");
    assert_eq!(found, 0);
    assert!(told.contains("says that it has 2000000 rows"), "{told}");
}

/// A pipe that nobody writes to, and a device that never ends, in place of each file.
#[test]
fn what_is_no_file_does_not_hang() {
    for name in ["recording.json", "SHA256SUMS", "processes-00000.parquet"] {
        for what in ["pipe", "device"] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), 3);
            let path = folder.path().join(name);
            fs::remove_file(&path).unwrap();
            match what {
                "pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status();
                    assert!(made.unwrap().success());
                }
                _ => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            }
            let told = read(folder.path()).join("\n");
            assert!(told.contains(name), "{told}");
        }
    }
}

/// Descriptions with values of other kinds and sizes than belong there.
#[test]
fn descriptions_that_were_changed_are_read_or_refused() {
    let (inputs, seed) = (
        setting("HITHER_FUZZ_INPUTS", 800),
        setting("HITHER_FUZZ_SEED", 1),
    );
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 3);
    let whole = fs::read_to_string(folder.path().join("recording.json")).unwrap();
    let values: [&str; 9] = [
        "-1",
        "18446744073709551615",
        "1e400",
        "null",
        "[]",
        "{}",
        "\"\"",
        "[[[[",
        "\u{0}",
    ];
    let mut random = Random(seed);
    for _ in 0..inputs {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            let end = (at + random.below(20)).min(bytes.len());
            let with = values[random.below(values.len())];
            bytes.splice(at..end, with.bytes());
        }
        fs::write(folder.path().join("recording.json"), bytes).unwrap();
        read(folder.path());
    }
}
