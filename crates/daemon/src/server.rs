//! Who asks the daemon: the control socket and the metrics, each served by threads of their own, so that
//! nobody who asks slowly keeps the loop waiting.
//!
//! A thread answers from what was [published](crate::publish) last; what changes something is an *order*
//! that the loop carries out in its next turn. The kernel tells who is at the other end of a socket
//! (`SO_PEERCRED`); a user sees and changes what is the user's own.
//!
//! Limits: connections, and those of one user; bytes of a question; seconds that a question or an answer
//! may take. Who goes beyond them loses the connection.

use crate::protocol::{Ask, MOST_BYTES, Question, VERSION};
use crate::publish::{Published, is_named};
use hither_core::declared::Hint;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections at once, and those of one user that is not root.
const MOST_CONNECTIONS: usize = 64;
const MOST_OF_USER: usize = 8;
/// A question, or an answer, takes no longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the head of an HTTP request at most.
const MOST_HEAD: usize = 8 << 10;

/// What the loop is to do, and for whom.
#[derive(Debug)]
pub struct Order {
    /// What is to be done.
    pub wanted: Wanted,
    /// Where the answer goes: what was done, or why not.
    pub answer: SyncSender<Result<Vec<String>, String>>,
}

/// What the loop is to do.
#[derive(Debug)]
pub struct Wanted {
    /// What.
    pub ask: Ask,
    /// With these scopes, by their whole names; they are the user's own.
    pub scopes: Vec<String>,
    /// With this process.
    pub pid: Option<i32>,
    /// What it says of these addresses of its own.
    pub ranges: Vec<(u64, u64)>,
    /// What it says.
    pub hint: Option<Hint>,
}

impl Wanted {
    /// With a process, or with nobody named.
    fn of(ask: Ask, pid: Option<i32>) -> Self {
        Self {
            ask,
            scopes: Vec::new(),
            pid,
            ranges: Vec::new(),
            hint: None,
        }
    }
}

/// What the loop and the threads share.
#[derive(Debug)]
pub struct Desk {
    published: Mutex<Arc<Published>>,
    orders: Mutex<Vec<Order>>,
    /// Connections by user.
    connections: Mutex<HashMap<u32, usize>>,
    /// Has something in it while orders wait.
    bell: OwnedFd,
}

impl Desk {
    /// With what is told first.
    ///
    /// # Errors
    /// No descriptor is to be had.
    pub fn new(published: Published) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            published: Mutex::new(Arc::new(published)),
            orders: Mutex::default(),
            connections: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    /// Can be read while orders wait.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Tells something else from now on.
    pub fn publish(&self, published: Published) {
        *locked(&self.published) = Arc::new(published);
    }

    /// What is told now.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&locked(&self.published))
    }

    /// Orders since the last call.
    #[must_use]
    pub fn take_orders(&self) -> Vec<Order> {
        // It is empty where nobody has rung.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        std::mem::take(&mut locked(&self.orders))
    }

    fn enter(self: &Arc<Self>, user: u32) -> Option<Entered> {
        let mut connections = locked(&self.connections);
        let all: usize = connections.values().sum();
        let own = connections.entry(user).or_default();
        if all >= MOST_CONNECTIONS || user != 0 && *own >= MOST_OF_USER {
            return None;
        }
        *own += 1;
        Some(Entered(Arc::clone(self), user))
    }
}

/// A thread that panicked while it held the lock has left whole values.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that counts.
struct Entered(Arc<Desk>, u32);

impl Drop for Entered {
    fn drop(&mut self) {
        let Self(desk, user) = self;
        let mut connections = locked(&desk.connections);
        if let Some(count) = connections.get_mut(user) {
            *count -= 1;
            if *count == 0 {
                connections.remove(user);
            }
        }
    }
}

/// A socket in the file system, for everybody (`mode` 0666) or root alone. One that a dead daemon left is
/// taken away; whose owner lives is found by the journal's lock before.
///
/// # Errors
/// Something else is there, or the folder cannot be written.
pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if let Ok(there) = std::fs::symlink_metadata(path) {
        let is_ours =
            there.file_type().is_socket() && there.uid() == rustix::process::geteuid().as_raw();
        if !is_ours {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something else than this user's socket is there",
            ));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Serves the control socket until the process ends.
///
/// # Errors
/// No thread is to be had.
pub fn serve_control(listener: UnixListener, desk: &Arc<Desk>) -> io::Result<()> {
    let desk = Arc::clone(desk);
    spawn("hither-control", move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let Ok(peer) = rustix::net::sockopt::socket_peercred(stream.as_fd()) else {
                continue;
            };
            let asker = Asker {
                user: peer.uid.as_raw(),
                pid: peer.pid.as_raw_nonzero().get(),
            };
            let Some(entered) = desk.enter(asker.user) else {
                // The person learns why.
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = (&stream).write_all(&line(&failed("too many connections; try again")));
                continue;
            };
            let _ = spawn("hither-asked", move || {
                let _ = talk(&stream, asker, &entered.0);
            });
        }
    })
}

/// Serves metrics to whoever `accept` gives, until the process ends.
///
/// # Errors
/// No thread is to be had.
pub fn serve_metrics<S: AsFd + Read + Write>(
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    desk: &Arc<Desk>,
) -> io::Result<()> {
    let desk = Arc::clone(desk);
    spawn("hither-metrics", move || {
        loop {
            let Ok(stream) = accept() else {
                continue;
            };
            let limit = |what| set_socket_timeout(&stream, what, Some(PATIENCE));
            if limit(Timeout::Recv).and(limit(Timeout::Send)).is_ok() {
                scraped(stream, &desk);
            }
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10);
    thread.spawn(work).map(drop)
}

/// Answers questions of one connection until it is closed.
fn talk(stream: &UnixStream, asker: Asker, desk: &Arc<Desk>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut question = Vec::new();
    loop {
        question.clear();
        let got = (&mut reader)
            .take(MOST_BYTES as u64)
            .read_until(b'\n', &mut question)?;
        if got == 0 {
            return Ok(());
        }
        let is_whole = question.ends_with(b"\n");
        let answer = match is_whole || got < MOST_BYTES {
            true => answer(&question, asker, desk),
            false => failed(&format!("a question has {MOST_BYTES} bytes at most")),
        };
        (&*stream).write_all(&line(&answer))?;
        if !is_whole {
            return Ok(());
        }
    }
}

fn line(answer: &Value) -> Vec<u8> {
    let mut bytes = answer.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

fn failed(why: &str) -> Value {
    json!({ "hither": VERSION, "error": why })
}

/// Who is at the other end, as the kernel tells.
#[derive(Clone, Copy)]
struct Asker {
    user: u32,
    pid: i32,
}

/// What a user is answered.
fn answer(question: &[u8], Asker { user, pid: own }: Asker, desk: &Desk) -> Value {
    let question = match Question::parse(question) {
        Ok(question) => question,
        Err(why) => return failed(&why),
    };
    if question.ask == Ask::Status {
        look_again(desk);
    }
    let mut seen = desk.published().seen_by(user);
    if let Some(unknown) = question
        .scopes
        .iter()
        .find(|word| !seen.scopes.iter().any(|scope| is_named(word, scope)))
    {
        let why = format!(
            "there is no target or scope `{}` of yours",
            unknown.escape_default()
        );
        return failed(&why);
    }
    if !question.scopes.is_empty() {
        seen.retain(|scope| question.scopes.iter().any(|word| is_named(word, scope)));
    }
    match question.ask {
        Ask::Status => json!({ "hither": VERSION, "status": seen }),
        Ask::Explain => {
            let texts = seen
                .log
                .iter()
                .map(|entry| json!({ "text": entry.to_string(), "entry": **entry }));
            json!({ "hither": VERSION, "schema": "hither.explain/1", "seconds": seen.seconds, "log": texts.collect::<Vec<_>>() })
        }
        Ask::OptOut | Ask::OptIn => match question.pid {
            None => ordered(desk, Wanted::of(question.ask, Some(own))),
            Some(pid) if !may_speak_for(user, pid) => failed("there is no such process of yours"),
            Some(pid) => ordered(desk, Wanted::of(question.ask, Some(pid))),
        },
        // Of its own memory alone: what another says of it would be a way to move it.
        Ask::Declare if question.pid.is_some() => {
            failed("a process declares its own memory alone; leave `pid` out")
        }
        Ask::Declare => ordered(
            desk,
            Wanted {
                ranges: question.ranges,
                hint: question.hint,
                ..Wanted::of(question.ask, Some(own))
            },
        ),
        Ask::Pause | Ask::Resume | Ask::Undo => {
            let names: Vec<String> = seen.scopes.iter().map(|scope| scope.name.clone()).collect();
            match names.is_empty() {
                true => failed("no scope of yours is looked after"),
                false => ordered(
                    desk,
                    Wanted {
                        scopes: names,
                        ..Wanted::of(question.ask, None)
                    },
                ),
            }
        }
    }
}

/// Is it the user's own process?
fn may_speak_for(user: u32, pid: i32) -> bool {
    pid > 0
        && std::fs::metadata(format!("/proc/{pid}"))
            .is_ok_and(|about| user == 0 || about.uid() == user)
}

/// Has the loop do it, and waits for what came of it.
fn ordered(desk: &Desk, wanted: Wanted) -> Value {
    let (answer, receiver) = sync_channel(1);
    locked(&desk.orders).push(Order { wanted, answer });
    // It is full where the loop has not looked for 2^64 orders.
    let _ = rustix::io::write(&desk.bell, &1u64.to_ne_bytes());
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(did)) => json!({ "hither": VERSION, "did": did }),
        Ok(Err(why)) => failed(&why),
        Err(_) => failed("the daemon is busy; ask again"),
    }
}

/// At rest the loop looks rarely: who asks is told of now.
fn look_again(desk: &Desk) {
    if desk.published().is_old() {
        ordered(desk, Wanted::of(Ask::Status, None));
    }
}

/// One HTTP request for metrics.
fn scraped(mut stream: impl Read + Write, desk: &Desk) {
    let mut head = Vec::new();
    let mut piece = [0u8; 1024];
    let until = Instant::now() + PATIENCE;
    let (status, kind, body) = loop {
        match stream.read(&mut piece) {
            Ok(got) if got > 0 => head.extend_from_slice(&piece[..got]),
            _ => return,
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Partial) if head.len() < MOST_HEAD && Instant::now() < until => {}
            Ok(httparse::Status::Complete(_)) => {
                let is_get = request.method == Some("GET");
                let path = request.path.unwrap_or_default();
                break match (is_get, path) {
                    (true, "/metrics") => {
                        look_again(desk);
                        match crate::metrics::encode(&desk.published()) {
                            Ok(text) => (
                                "200 OK",
                                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                                text,
                            ),
                            Err(_) => ("500 Internal Server Error", "text/plain", String::new()),
                        }
                    }
                    (true, _) => (
                        "404 Not Found",
                        "text/plain",
                        "metrics are at /metrics\n".to_owned(),
                    ),
                    (false, _) => (
                        "405 Method Not Allowed",
                        "text/plain",
                        "GET alone is known\n".to_owned(),
                    ),
                };
            }
            _ => {
                break (
                    "400 Bad Request",
                    "text/plain",
                    "no HTTP request\n".to_owned(),
                );
            }
        }
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes());
}

#[cfg(test)]
pub(crate) mod tests;
