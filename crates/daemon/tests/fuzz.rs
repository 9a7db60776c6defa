//! Changed configurations, and changed questions over a socket: each is understood or refused, nothing
//! panics or hangs, and memory does not grow.
//!
//! `HITHER_FUZZ_INPUTS` sets the number of inputs of each kind (20,000 by default), `HITHER_FUZZ_SEED` the
//! seed.

use hither_core::policy::random::Random;
use hither_daemon::config;
use hither_daemon::publish::Published;
use hither_daemon::server::{self, Desk};
use hither_linux::root::Root;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const CONFIG: &str = r#"format = "hither.daemon/1"
[daemon]
interval = "200ms"
dry_run = true
socket = "/run/hither/c.sock"
metrics = "127.0.0.1:9752"
take_over = ["numa_balancing"]
[limits]
move_rate = "500M"
cpu_share = 0.01
memory_pressure = 20.0
[[target]]
name = "db"
cgroup = "system.slice/postgresql.service"
policy = "carrefour"
windows = ["Mon-Fri 22:00-06:00", "Sun"]
[[target]]
name = "any"
opt_in = true
"#;
const QUESTIONS: [&str; 3] = [
    r#"{"hither":1,"ask":"status","scopes":["db","web@alice"]}"#,
    r#"{"hither":1,"ask":"explain"}"#,
    r#"{"hither":1,"ask":"opt_out","pid":2147483647}"#,
];
/// Words that break readers, put where others were.
const NASTY: [&str; 12] = [
    "-1",
    "18446744073709551616",
    "1e400",
    "nan",
    "\"",
    "[[[[[[[[",
    "{",
    "\\u0000",
    "\u{202e}",
    "-",
    "\\",
    "''",
];
/// Growth that is no leak: what allocators keep.
const MOST_GROWTH_PAGES: u64 = 4096;

/// Below a limit; 0 where that is 0.
fn below(random: &mut Random, limit: usize) -> usize {
    (random.next_u64() % limit.max(1) as u64) as usize
}

/// A text with some places changed.
fn changed(random: &mut Random, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + below(random, 4) {
        let at = below(random, bytes.len());
        match below(random, 5) {
            0 => bytes[at] = below(random, 256) as u8,
            1 => bytes.truncate(at.max(1)),
            2 => {
                let length = below(random, 20);
                let end = (at + length).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let end = (at + below(random, 8)).min(bytes.len());
                let word = NASTY[below(random, NASTY.len())];
                bytes.splice(at..end, word.bytes());
            }
        }
    }
    bytes
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn inputs() -> (Random, u64) {
    (
        Random::new(number("HITHER_FUZZ_SEED", 1)),
        number("HITHER_FUZZ_INPUTS", 20_000),
    )
}

/// Resident pages of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn changed_configurations_are_read_or_refused() {
    let (mut random, count) = inputs();
    let root = Root::host();
    let mut refused = 0;
    for _ in 0..count {
        let bytes = changed(&mut random, CONFIG);
        let text = String::from_utf8_lossy(&bytes);
        match config::read(&text, &root) {
            Ok(config) => assert_eq!(
                config::read(&config.to_string(), &root),
                Ok(config),
                "{text}"
            ),
            Err(fault) => {
                assert!(fault.line >= 1 && !fault.reason.contains('\n'), "{fault}");
                refused += 1;
            }
        }
    }
    println!("{count} inputs: configurations, {refused} refused");
    assert!(refused > count / 2, "{refused}");
}

#[test]
fn changed_questions_are_answered_and_nothing_grows() {
    let (mut random, count) = inputs();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let desk = Desk::new(Published::empty()).unwrap();
    server::serve_control(server::bind(&path, 0o600).unwrap(), &desk).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut answers = BufReader::new(&stream);
    let (mut refused, mut before) = (0, 0);
    for at in 0..count {
        if at == count / 10 {
            before = resident();
        }
        let mut question = changed(&mut random, QUESTIONS[at as usize % QUESTIONS.len()]);
        // An end of line would make two questions of it.
        question.retain(|&byte| byte != b'\n');
        question.push(b'\n');
        (&stream).write_all(&question).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["hither"], 1);
        refused += u64::from(answer["error"].is_string());
    }
    let grown = resident().saturating_sub(before);
    println!("{count} inputs: questions, {refused} refused, {grown} pages more");
    assert!(
        refused > count / 2 && grown < MOST_GROWTH_PAGES,
        "{refused} {grown}"
    );
}
