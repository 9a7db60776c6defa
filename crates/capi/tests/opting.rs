//! What a program of C tells the daemon, against a socket that plays its protocol. The daemon's own side is
//! tested in `crates/daemon`.

use crate::common::{compile, run, scratch};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;

#[test]
fn a_program_tells_the_daemon_of_itself() {
    let program = compile("tests/opting.c", "opting", &[]);
    let socket = scratch("opting").join("s");
    let say = |words: &[&str]| {
        let mut command = Command::new(&program);
        run(command.args(words).env("HITHER_SOCKET", &socket))
    };
    let nobody = say(&["out"]);
    let expected = format!("-111 {}: no daemon answers", socket.display());
    assert!(nobody.starts_with(&expected), "{nobody}");

    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = std::thread::spawn(move || {
        let answers = [
            "{\"did\":[\"1\"],\"hither\":1}\n",
            "{\"error\":\"it says off\",\"hither\":1}\n",
            "{\"did\":[\"1\"],\"hither\":1}\n",
            "{\"did\":[\"1\"],\"hither\":1}\n",
            // Hangs up: the program must not end by a signal.
            "",
        ];
        answers.map(|answer| {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            question
        })
    });
    let told = say(&["out", "in", "pin", "none", "beyond", "77", "out"]);
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(
        told[..4],
        ["0 ", "-1 the daemon refuses: it says off", "0 ", "0 "]
    );
    assert!(
        told[4].starts_with("-22 18446744073709551615 bytes from 0x10000 on end"),
        "{}",
        told[4]
    );
    assert_eq!(
        told[5],
        "-22 there is no hint 77; the hints are HITHER_HINT_*"
    );
    assert!(told[6].starts_with("-111 "), "{}", told[6]);
    let out = "{\"hither\":1,\"ask\":\"opt_out\"}\n";
    let back = "{\"hither\":1,\"ask\":\"opt_in\"}\n";
    let pin =
        "{\"ask\":\"declare\",\"hint\":\"pin_slow\",\"hither\":1,\"ranges\":[[65536,77824]]}\n";
    let none = "{\"ask\":\"declare\",\"hither\":1,\"ranges\":[[65536,77824]]}\n";
    assert_eq!(daemon.join().unwrap(), [out, back, pin, none, out]);
}
