//! A program tells the daemon of itself: leave me alone, or look after me, or what its memory is for.
//!
//! One question over the daemon's control socket (`docs/daemon.md`), a JSON object on a line. It names no
//! process: the kernel tells the daemon who asks (`SO_PEERCRED`), also where the program sees another
//! number of itself, as in a container.

use crate::error::{Error, Result};
use crate::restore::{ROOTS_FOLDER, runtime_folder};
use hither_core::declared::Hint;
use rustix::net::SendFlags;
use serde_json::{Value, json};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The environment variable that names the daemon's socket.
pub const SOCKET_VARIABLE: &str = "HITHER_SOCKET";
/// The daemon itself answers within 5 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ranges in a question at most.
const MOST_RANGES: usize = 1024;
/// Bytes of an answer at most.
const MOST_BYTES: usize = 64 << 10;

/// What a program wants of the daemon from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opting {
    /// To be left alone until it ends.
    Out,
    /// To be looked after: takes back [`Opting::Out`], and is taken by targets with `opt_in = true`.
    In,
}

/// The daemon's socket: what `HITHER_SOCKET` names, else root's, also for ordinary users, unless they run a
/// daemon of their own.
#[must_use]
pub fn default_socket() -> PathBuf {
    if let Some(named) = std::env::var_os(SOCKET_VARIABLE) {
        return named.into();
    }
    let roots = Path::new(ROOTS_FOLDER).join("control.sock");
    let own = runtime_folder().map(|folder| folder.join("control.sock"));
    match own {
        Ok(own) if !roots.exists() && own.exists() => own,
        _ => roots,
    }
}

/// What the daemon says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It does so.
    Heard,
    /// It does not, for this reason.
    Refused(String),
}

/// Tells the daemon at this socket about the calling process, and waits for its answer.
///
/// # Errors
/// No daemon answers.
pub fn tell(socket: &Path, opting: Opting) -> Result<Answer> {
    ask(
        socket,
        match opting {
            Opting::Out => b"{\"hither\":1,\"ask\":\"opt_out\"}\n",
            Opting::In => b"{\"hither\":1,\"ask\":\"opt_in\"}\n",
        },
    )
}

/// Declares memory of the calling process, in ranges of addresses, of which the pages wholly within count;
/// without a hint, takes back what was declared of it. See [`hither_core::declared`]. What has been declared
/// ends with the address space, and with the daemon.
///
/// # Errors
/// No daemon answers.
pub fn declare(socket: &Path, ranges: &[Range<usize>], hint: Option<Hint>) -> Result<Answer> {
    let ranges: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    for some in ranges.chunks(MOST_RANGES) {
        let pairs: Vec<_> = some.iter().map(|range| (range.start, range.end)).collect();
        let mut question = json!({ "hither": 1, "ask": "declare", "ranges": pairs });
        if let Some(hint) = hint {
            question["hint"] = hint.name().into();
        }
        let answer = ask(socket, format!("{question}\n").as_bytes())?;
        if answer != Answer::Heard {
            return Ok(answer);
        }
    }
    Ok(Answer::Heard)
}

fn ask(socket: &Path, question: &[u8]) -> Result<Answer> {
    let answer = talk(socket, question).map_err(|error| {
        let reason = format!("no daemon answers ({error})");
        let remedy = "start it by `systemctl start hither`, or name its socket by HITHER_SOCKET";
        Error::io(socket, reason, remedy, error)
    })?;
    Ok(match answer.get("error").and_then(Value::as_str) {
        None => Answer::Heard,
        Some(why) => Answer::Refused(format!("the daemon refuses: {why}")),
    })
}

fn talk(socket: &Path, question: &[u8]) -> io::Result<Value> {
    let until = Instant::now() + PATIENCE;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut left = question;
    while !left.is_empty() {
        // A daemon that hangs up must not end the program by a signal.
        let sent = rustix::net::send(&stream, left, SendFlags::NOSIGNAL)?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        left = &left[sent..];
    }
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while !answer.ends_with(b"\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() > MOST_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => answer.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let answer: Value = serde_json::from_slice(&answer)?;
    match answer.get("did").or(answer.get("error")) {
        Some(_) => Ok(answer),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what answers there is no daemon of hither",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// What a program is told where this is answered, and what was asked.
    fn told(opting: Opting, answer: &'static str) -> (Result<Answer>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            question
        });
        (tell(&path, opting), daemon.join().unwrap())
    }

    #[test]
    fn a_program_learns_what_came_of_it() {
        let (done, asked) = told(Opting::Out, "{\"did\":[\"7\"],\"hither\":1}\n");
        assert_eq!(done.unwrap(), Answer::Heard);
        assert!(asked.contains("\"opt_out\""), "{asked}");
        let refusal = "{\"error\":\"it says \\\"off\\\"\",\"hither\":1}\n";
        let (refused, asked) = told(Opting::In, refusal);
        let expected = "the daemon refuses: it says \"off\"";
        assert_eq!(refused.unwrap(), Answer::Refused(expected.to_owned()));
        assert!(asked.contains("\"opt_in\""), "{asked}");
        for (answer, expected) in [
            ("", "no daemon answers"),
            ("{\"hither\":1", "no daemon answers"),
            ("{\"hither\":1}\n", "no daemon of hither"),
            ("220 mail\n", "no daemon answers"),
        ] {
            let error = told(Opting::Out, answer).0.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn many_ranges_are_declared_in_several_questions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            [0, 1].map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                (&stream)
                    .write_all(b"{\"did\":[\"7\"],\"hither\":1}\n")
                    .unwrap();
                let question: Value = serde_json::from_str(&question).unwrap();
                assert_eq!(question["hint"], "cold");
                question["ranges"].as_array().unwrap().len()
            })
        });
        let mut ranges = vec![4096..8192; 1500];
        ranges.push(5..5);
        let answer = declare(&path, &ranges, Some(Hint::Cold)).unwrap();
        assert_eq!(answer, Answer::Heard);
        assert_eq!(daemon.join().unwrap(), [1024, 476]);
    }

    #[test]
    fn without_a_daemon_it_says_how_to_start_one() {
        let folder = tempfile::tempdir().unwrap();
        let error = tell(&folder.path().join("none"), Opting::Out).unwrap_err();
        assert!(error.to_string().contains("systemctl start"), "{error}");
    }
}
