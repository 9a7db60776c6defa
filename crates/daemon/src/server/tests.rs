use super::*;
use crate::protocol::Question;
use crate::publish::{OwnRow, Published, ScopeRow};
use hither_core::engine::{Standing, Summary};
use proptest::prelude::*;

pub fn published() -> Published {
    let scope = |target: &str, user: u32| ScopeRow {
        name: format!("{target}@{user}"),
        target: target.to_owned(),
        user,
        user_name: user.to_string(),
        policy: "auto".to_owned(),
        standing: Standing::Working,
        dry_run: false,
        outside_window: false,
        retired: false,
        processes: Vec::new(),
        local_access_ratio: None,
        fast: None,
        cpu: None,
        forecast: None,
        summary: Summary::default(),
    };
    Published {
        schema: "hither.status/1",
        version: "0",
        pid: 1,
        seconds: 1.0,
        tracker: "none".to_owned(),
        evidence: None,
        missing: Vec::new(),
        rivals: Vec::new(),
        holding_back: Vec::new(),
        dry_run: false,
        turns: 3,
        failed_observations: 0,
        nodes: Vec::new(),
        scopes: vec![scope("db", 1000), scope("db", 1001), scope("web", 1001)],
        own: OwnRow::default(),
        at: None,
        log: Vec::new(),
    }
}

/// What a user is answered, where the loop obeys at once.
fn answered(user: u32, question: &Question) -> Value {
    let desk = Desk::new(published()).unwrap();
    let loops = Arc::clone(&desk);
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let obey = std::thread::spawn(move || {
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            for order in loops.take_orders() {
                order.answer.send(Ok(order.wanted.scopes.clone())).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let pid = std::process::id() as i32;
    let asker = Asker { user, pid };
    let answer = answer(&serde_json::to_vec(question).unwrap(), asker, &desk);
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    obey.join().unwrap();
    answer
}

fn names(answer: &Value, path: &str) -> Vec<String> {
    let found = answer.pointer(path).and_then(Value::as_array);
    let names = found
        .into_iter()
        .flatten()
        .map(|name| match name["name"].as_str() {
            Some(name) => name.to_owned(),
            None => name.as_str().unwrap_or_default().to_owned(),
        });
    names.collect()
}

#[test]
fn a_user_sees_and_changes_own_scopes_alone() {
    let ask = |user, ask, scopes: &[&str]| {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        answered(user, &Question::new(ask, scopes))
    };
    let status = "/status/scopes";
    assert_eq!(names(&ask(0, Ask::Status, &[]), status).len(), 3);
    assert_eq!(
        names(&ask(1001, Ask::Status, &[]), status),
        ["db@1001", "web@1001"]
    );
    assert_eq!(names(&ask(1001, Ask::Status, &["db"]), status), ["db@1001"]);
    assert_eq!(names(&ask(1002, Ask::Status, &[]), status), [""; 0]);
    assert_eq!(
        names(&ask(1001, Ask::Pause, &[]), "/did"),
        ["db@1001", "web@1001"]
    );
    assert_eq!(names(&ask(1001, Ask::Undo, &["db"]), "/did"), ["db@1001"]);
    for (user, scope) in [(1001, "db@1000"), (1000, "web"), (0, "x")] {
        for verb in [
            Ask::Status,
            Ask::Pause,
            Ask::Resume,
            Ask::Undo,
            Ask::Explain,
        ] {
            let answer = ask(user, verb, &[scope]);
            assert!(
                answer["error"]
                    .as_str()
                    .unwrap()
                    .contains("no target or scope"),
                "{answer}"
            );
        }
    }
    assert!(
        ask(1002, Ask::Pause, &[])["error"]
            .as_str()
            .unwrap()
            .contains("no scope of yours")
    );
}

#[test]
fn a_user_speaks_for_own_processes_alone() {
    let mut question = Question::new(Ask::OptOut, Vec::new());
    // Without a number it is about who asks.
    assert!(answered(1000, &question)["did"].is_array());
    question.pid = Some(1);
    let own = rustix::process::geteuid().as_raw();
    assert!(
        answered(own + 1, &question)["error"]
            .as_str()
            .unwrap()
            .contains("no such process of yours")
    );
    question.pid = Some(std::process::id() as i32);
    assert!(answered(own, &question)["did"].is_array());
}

/// As programs ask by the libraries: the daemon understands the question, knows by the socket who asks, and
/// its refusal arrives.
#[test]
fn a_program_speaks_for_itself_by_the_library() {
    use hither_linux::opting::{Answer, Opting, tell};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let desk = Desk::new(published()).unwrap();
    serve_control(bind(&path, 0o666).unwrap(), &desk).unwrap();
    let told = |opting, obeyed: Result<Vec<String>, String>| {
        let path = path.clone();
        let program = std::thread::spawn(move || tell(&path, opting).unwrap());
        let start = Instant::now();
        let order = loop {
            assert!(start.elapsed().as_secs() < 20, "no order came");
            match desk.take_orders().pop() {
                Some(order) => break order,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        order.answer.send(obeyed).unwrap();
        (order.wanted.ask, order.wanted.pid, program.join().unwrap())
    };
    let own = Some(std::process::id() as i32);
    let heard = Ok(vec!["7".to_owned()]);
    let out = told(Opting::Out, heard.clone());
    assert_eq!(out, (Ask::OptOut, own, Answer::Heard));
    assert_eq!(told(Opting::In, heard), (Ask::OptIn, own, Answer::Heard));
    let refused = told(Opting::In, Err("it says off".to_owned()));
    let expected = Answer::Refused("the daemon refuses: it says off".to_owned());
    assert_eq!(refused.2, expected);
}

#[test]
fn the_socket_answers_its_user_and_survives_bad_questions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let desk = Desk::new(published()).unwrap();
    serve_control(bind(&path, 0o666).unwrap(), &desk).unwrap();
    let talk = |bytes: &[u8]| {
        let stream = UnixStream::connect(&path).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        // The daemon may have hung up in the middle of too long a question.
        let _ = (&stream).write_all(bytes);
        let mut text = String::new();
        let _ = BufReader::new(&stream).read_line(&mut text);
        text
    };
    let status = b"{\"hither\":1,\"ask\":\"status\"}\n";
    assert!(talk(status).contains("hither.status/1"));
    assert!(talk(b"x\n").contains("not understood"));
    assert!(talk(&vec![b'['; 2 * MOST_BYTES]).contains("bytes at most"));
    // More than may be at once, of one user that may be root: those before them are answered.
    let idle: Vec<UnixStream> = (0..MOST_CONNECTIONS)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    let begun = Instant::now();
    while !talk(status).contains("too many connections") && begun.elapsed() < Duration::from_secs(4)
    {
    }
    assert!(begun.elapsed() < Duration::from_secs(4));
    drop(idle);
    let begun = Instant::now();
    while !talk(status).contains("hither.status/1") {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    // A socket that was left is taken away, another file is not.
    bind(&path, 0o600).unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert!(bind(&folder.path().join("file"), 0o600).is_err());
}

/// What is answered to bytes by HTTP.
fn scrape(bytes: &[u8]) -> String {
    struct Both<'a>(&'a [u8], Vec<u8>);
    impl Read for Both<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }
    impl Write for Both<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut both = Both(bytes, Vec::new());
    scraped(&mut both, &Desk::new(published()).unwrap());
    String::from_utf8(both.1).unwrap()
}

#[test]
fn metrics_are_served_by_http() {
    let good = scrape(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("# EOF\n"),
        "{good}"
    );
    assert!(scrape(b"GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(scrape(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(scrape(b"\x00\x01\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(2 * MOST_HEAD));
    assert!(scrape(long.as_bytes()).starts_with("HTTP/1.1 400"));
    assert_eq!(scrape(b"GET /met"), "");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_request_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), rest in "[ -~\r\n]{0,200}") {
        let _ = scrape(&bytes);
        let _ = scrape(format!("GET /metrics HTTP/1.1\r\n{rest}\r\n\r\n").as_bytes());
    }

    #[test]
    fn no_question_panics_or_tells_of_others(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let desk = Desk::new(published()).unwrap();
        let mut line = br#"{"hither":1,"ask":"status","scopes":[""#.to_vec();
        line.extend_from_slice(&bytes);
        line.extend_from_slice(br#""]}"#);
        let text = answer(&line, Asker { user: 1000, pid: 1 }, &desk).to_string();
        prop_assert!(!text.contains("1001") || bytes.windows(4).any(|part| part == b"1001"));
    }
}
