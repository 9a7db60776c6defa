//! Framing: round trips however the stream is cut, and malformed streams.

use super::*;

fn frames_of(decoder: &mut Decoder) -> Vec<Frame> {
    std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
}

#[test]
fn every_kind_survives_a_round_trip_cut_anywhere() {
    let mut stream = Vec::new();
    let mut sent = Vec::new();
    for (index, &kind) in Kind::ALL.iter().enumerate() {
        let payload = vec![SYNC; index * 3];
        stream.extend(encode(kind, index as u16 * 257, &payload));
        sent.push(Frame {
            kind,
            run: index as u16 * 257,
            payload,
        });
    }
    for step in 1..=19 {
        let mut decoder = Decoder::default();
        let mut received = Vec::new();
        for piece in stream.chunks(step) {
            decoder.push(piece);
            received.extend(frames_of(&mut decoder));
        }
        assert_eq!(received, sent, "cut every {step} bytes");
        assert_eq!(decoder.pending_bytes(), 0);
    }
}

#[test]
fn a_frame_has_the_documented_bytes() {
    let bytes = encode(Kind::Stdout, 0x0102, b"hi");
    assert_eq!(bytes, [0xa7, 2, 0x02, 0x01, 2, 0, 0, 0, b'h', b'i']);
}

#[test]
fn incomplete_frames_wait() {
    let mut decoder = Decoder::default();
    let bytes = encode(Kind::Notice, 0, b"abcdef");
    decoder.push(&bytes[..bytes.len() - 1]);
    assert_eq!(decoder.next_frame(), Ok(None));
    assert_eq!(decoder.pending_bytes(), bytes.len() - 1);
    decoder.push(&bytes[bytes.len() - 1..]);
    assert_eq!(decoder.next_frame().unwrap().unwrap().payload, b"abcdef");
}

#[test]
fn malformed_streams_are_named() {
    let decode = |bytes: &[u8]| {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.next_frame()
    };
    assert_eq!(decode(b"Kernel panic"), Err(FrameError::NoSync(b'K')));
    assert_eq!(
        decode(&[SYNC, 0, 0, 0, 0, 0, 0, 0]),
        Err(FrameError::UnknownKind(0))
    );
    assert_eq!(
        decode(&[SYNC, 200, 0, 0, 0, 0, 0, 0]),
        Err(FrameError::UnknownKind(200))
    );
    let long = [SYNC, 2, 0, 0, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(decode(&long), Err(FrameError::TooLong(0xffff_ffff)));
    // A good frame first, garbage after it.
    let mut decoder = Decoder::default();
    decoder.push(&encode(Kind::Done, 0, b""));
    decoder.push(&[0]);
    assert_eq!(decoder.next_frame().unwrap().unwrap().kind, Kind::Done);
    assert_eq!(decoder.next_frame(), Err(FrameError::NoSync(0)));
}

#[test]
fn arbitrary_bytes_never_panic() {
    // A linear congruential generator (Knuth's MMIX constants): the seed is the test's name.
    let mut state = 0x0afb_0001_u64;
    for _ in 0..2_000 {
        let mut bytes = Vec::new();
        for _ in 0..40 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bytes.push((state >> 56) as u8);
        }
        // Half of them start like a frame, so that the later checks are reached.
        if state & 1 == 0 {
            bytes[0] = SYNC;
            bytes[1] = 2;
        }
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        while let Ok(Some(frame)) = decoder.next_frame() {
            assert!(frame.payload.len() <= bytes.len());
        }
    }
}

fn job() -> Job {
    Job {
        version: VERSION,
        cwd: "/home/u".into(),
        env: vec![("PATH".into(), "/bin".into())],
        stdin: Stdin::Null,
        runs: vec![RunSpec {
            argv: vec!["./a b".into(), "--x=\"1\"".into()],
            program: "/home/u/a b".into(),
            policy: "kernel".into(),
            launch: Launch::Plain,
            evidence: Rung::Software,
            learns: false,
            reset: true,
        }],
        back: vec!["/tmp/out".into()],
        devices: Devices::default(),
        sample_ms: 100,
        opium: true,
        node_cpus: vec![Some("0-1".into()), Some(String::new()), None],
        hither_arguments: vec!["--explain".into()],
    }
}

#[test]
fn a_job_survives_its_text_form() {
    let text = serde_json::to_string(&job()).unwrap();
    assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job());
}

#[test]
fn a_job_with_a_missing_or_unknown_field_is_refused() {
    let mut value = serde_json::to_value(job()).unwrap();
    value["suprise"] = 1.into();
    let unknown = serde_json::from_value::<Job>(value.clone())
        .unwrap_err()
        .to_string();
    assert!(unknown.contains("suprise"), "{unknown}");
    let object = value.as_object_mut().unwrap();
    object.remove("suprise");
    object.remove("cwd");
    let missing = serde_json::from_value::<Job>(value)
        .unwrap_err()
        .to_string();
    assert!(missing.contains("cwd"), "{missing}");
}
