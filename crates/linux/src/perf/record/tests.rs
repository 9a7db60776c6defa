//! Records that this kernel wrote, records put together by hand, and bytes that are none.

use super::*;
use proptest::prelude::*;

/// A record with its header.
fn record(kind: u32, mode: u16, body: &[u64]) -> Vec<u8> {
    let size = (HEADER_BYTES + body.len() * 8) as u16;
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(mode.to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

fn halves(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

#[test]
fn every_field_is_found_behind_those_before_it() {
    // One word per bit, in the kernel's order; the call chain has a count and two addresses.
    let fields: &[(u64, &[u64])] = &[
        (field::IDENTIFIER, &[100]),
        (field::IP, &[101]),
        (field::TID, &[halves(102, 103)]),
        (field::TIME, &[104]),
        (field::ADDR, &[105]),
        (field::ID, &[106]),
        (field::STREAM_ID, &[107]),
        (field::CPU, &[halves(108, 0)]),
        (field::PERIOD, &[109]),
        (field::CALLCHAIN, &[2, 110, 111]),
        (field::WEIGHT_STRUCT, &[7 << 48 | 55 << 32 | 112]),
        (field::DATA_SRC, &[113]),
        (field::TRANSACTION, &[114]),
        (field::PHYS_ADDR, &[115]),
        (field::CGROUP, &[116]),
        (field::DATA_PAGE_SIZE, &[117]),
        (field::CODE_PAGE_SIZE, &[118]),
    ];
    let all = PerfSample {
        is_user: true,
        ip: Some(101),
        pid: Some(102),
        tid: Some(103),
        time_ns: Some(104),
        address: Some(105),
        cpu: Some(108),
        period: Some(109),
        weight: Some(112),
        instruction_weight: Some(55),
        data_source: Some(113),
        physical_address: Some(115),
        page_bytes: Some(117),
    };
    // All of them, and all but one.
    for without in std::iter::once(0).chain(fields.iter().map(|&(bit, _)| bit)) {
        let chosen: Vec<_> = fields.iter().filter(|&&(bit, _)| bit != without).collect();
        let sample_type = chosen.iter().map(|(bit, _)| bit).sum();
        let body: Vec<u64> = chosen
            .iter()
            .flat_map(|(_, words)| *words)
            .copied()
            .collect();
        let mut expected = all;
        match without {
            field::IP => expected.ip = None,
            field::TID => (expected.pid, expected.tid) = (None, None),
            field::TIME => expected.time_ns = None,
            field::ADDR => expected.address = None,
            field::CPU => expected.cpu = None,
            field::PERIOD => expected.period = None,
            field::WEIGHT_STRUCT => {
                (expected.weight, expected.instruction_weight) = (None, None);
            }
            field::DATA_SRC => expected.data_source = None,
            field::PHYS_ADDR => expected.physical_address = None,
            field::DATA_PAGE_SIZE => expected.page_bytes = None,
            _ => {}
        }
        let bytes = record(RECORD_SAMPLE, MODE_USER, &body);
        assert_eq!(decode(&bytes, sample_type), Ok(Record::Sample(expected)));
        // One word short.
        let short = record(RECORD_SAMPLE, MODE_USER, &body[..body.len() - 1]);
        assert!(matches!(
            decode(&short, sample_type),
            Err(Malformed::ShortBody { .. })
        ));
    }
}

#[test]
fn the_older_weight_is_one_number() {
    let word = 3 << 40 | 9;
    let bytes = record(RECORD_SAMPLE, 1, &[word]);
    let Ok(Record::Sample(sample)) = decode(&bytes, field::WEIGHT) else {
        panic!("no sample");
    };
    assert_eq!(
        (sample.weight, sample.instruction_weight),
        (Some(word), None)
    );
    assert!(!sample.is_user);
}

#[test]
fn other_records_are_told_apart() {
    let of = |kind, body: &[u64]| decode(&record(kind, 0, body), field::IP);
    assert_eq!(of(RECORD_LOST, &[1, 44]), Ok(Record::Lost(44)));
    assert_eq!(of(RECORD_LOST_SAMPLES, &[45]), Ok(Record::Lost(45)));
    assert_eq!(of(RECORD_THROTTLE, &[1, 2, 3]), Ok(Record::Throttled(true)));
    assert_eq!(of(RECORD_UNTHROTTLE, &[]), Ok(Record::Throttled(false)));
    assert_eq!(of(10, &[1; 20]), Ok(Record::Other(10)));
    let error = of(RECORD_LOST, &[1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a record of type 2 ends after 16 bytes, before its last field"
    );
}

#[test]
fn fields_of_unknown_length_are_refused() {
    for bit in (0..64).map(|shift| 1u64 << shift) {
        let decoded = decode(&record(RECORD_SAMPLE, 2, &[0; 8]), bit);
        let known = field::KNOWN & bit != 0;
        assert_eq!(decoded.is_ok(), known, "{bit:#x}");
        if !known {
            assert_eq!(decoded, Err(Malformed::UnknownFields { bits: bit }));
        }
    }
}

#[test]
fn a_call_chain_longer_than_its_record_is_refused() {
    for count in [3, 1 << 61, u64::MAX] {
        let bytes = record(RECORD_SAMPLE, 2, &[count, 1, 2]);
        assert!(decode(&bytes, field::CALLCHAIN).is_err(), "{count}");
    }
}

#[test]
fn sizes_that_no_record_has_are_refused() {
    let sized = |size: u16| {
        let mut bytes = record(RECORD_SAMPLE, 2, &[1, 2, 3]);
        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        bytes
    };
    for (size, words) in [
        (0, "size is 0"),
        (7, "size is 7"),
        (20, "size is 20"),
        (40, "size is 40, and there are 32 bytes left"),
    ] {
        let error = split(&sized(size)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(
        split(&[1, 2, 3]).unwrap_err().to_string(),
        "3 bytes are left, a header has 8"
    );
    assert_eq!(split(&[]), Ok(None));
}

/// What a kernel (6.18) wrote, and `perf script` reads; see `fixtures/perf/README.md`.
const PAGE_FAULTS: &[u8] = include_bytes!("../../../../../fixtures/perf/page-faults.ring");
const PAGE_FAULTS_TYPE: u64 =
    field::IP | field::TID | field::TIME | field::ADDR | field::CPU | field::DATA_SRC;
const ALL_FIELDS: &[u8] = include_bytes!("../../../../../fixtures/perf/all-fields.ring");
/// The kernel's word for a source that is not told.
const NOT_TOLD: u64 = 0x1e_0508_0021;

/// Reads all records.
fn read(mut bytes: &[u8], sample_type: u64) -> Vec<Record> {
    let mut found = Vec::new();
    while let Some((record, rest)) = split(bytes).unwrap() {
        found.push(decode(record, sample_type).unwrap());
        bytes = rest;
    }
    found
}

fn samples(records: &[Record]) -> Vec<PerfSample> {
    let sample = |record: &Record| match record {
        Record::Sample(sample) => Some(*sample),
        _ => None,
    };
    records.iter().filter_map(sample).collect()
}

#[test]
fn page_faults_that_a_kernel_recorded() {
    let samples = samples(&read(PAGE_FAULTS, PAGE_FAULTS_TYPE));
    assert_eq!(samples.len(), 156);
    let last = PerfSample {
        is_user: true,
        ip: Some(0x40_89a8),
        pid: Some(19261),
        tid: Some(19261),
        time_ns: Some(1_477_463_343_408),
        address: Some(0x4a_7130),
        cpu: Some(1),
        data_source: Some(NOT_TOLD),
        ..PerfSample::default()
    };
    assert_eq!(samples[155], last);
    // The program stored to 64 pages, 8 bytes further into each.
    let run = samples.windows(2).filter(|pair| {
        pair[1]
            .address
            .unwrap()
            .wrapping_sub(pair[0].address.unwrap())
            == 4104
    });
    assert_eq!(run.count(), 63);
}

#[test]
fn every_field_that_a_kernel_recorded() {
    let sample_type = field::KNOWN & !(field::WEIGHT | field::ID | field::STREAM_ID);
    let records = read(ALL_FIELDS, sample_type);
    let of = |kind| {
        let is = |record: &&Record| **record == Record::Other(kind);
        records.iter().filter(is).count()
    };
    // COMM, EXIT, FORK, MMAP2, and the marks of perf itself.
    assert!([3, 4, 7, 10, 68].iter().all(|&kind| of(kind) > 0));
    let samples = samples(&records);
    assert_eq!(samples.len(), 182);
    let second = PerfSample {
        is_user: true,
        ip: Some(0x7f22_dbba_67ad),
        pid: Some(19306),
        tid: Some(19306),
        time_ns: Some(1_478_703_838_147),
        address: Some(0x7f22_dbbb_ee06),
        cpu: Some(0),
        period: Some(1),
        weight: Some(0),
        instruction_weight: Some(0),
        data_source: Some(NOT_TOLD),
        physical_address: Some(0),
        page_bytes: Some(0),
    };
    assert_eq!(samples[1], second);
    let source = super::super::source::DataSource::decode(NOT_TOLD);
    assert_eq!(
        (source.level, source.hit),
        (super::super::source::Level::Unknown, None)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, sample_type: u64) {
        let mut rest = &bytes[..];
        while let Ok(Some((record, after))) = split(rest) {
            prop_assert!(record.len() >= HEADER_BYTES && after.len() < rest.len());
            let _ = decode(record, sample_type & field::KNOWN);
            let _ = decode(record, sample_type);
            rest = after;
        }
    }

    #[test]
    fn a_recording_that_is_cut_or_changed_is_survived(
        cut in 0..PAGE_FAULTS.len(),
        changes in proptest::collection::vec((0..PAGE_FAULTS.len(), any::<u8>()), 0..6),
        extra in 0..25u32,
    ) {
        let mut bytes = PAGE_FAULTS[..cut].to_vec();
        for (place, value) in changes {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        let mut rest = &bytes[..];
        let mut sum = 0;
        while let Ok(Some((record, after))) = split(rest) {
            sum += record.len();
            let _ = decode(record, PAGE_FAULTS_TYPE | 1 << extra);
            rest = after;
        }
        prop_assert!(sum <= cut);
    }
}
