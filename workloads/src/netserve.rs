//! `netserve`: a server of values over TCP, and the peer that asks it.
//!
//! Each connection has a thread of the server, which waits for a request of eight bytes (a number), looks the value up in a
//! table, adds up some more words of the table at random, and answers with the value. The peer is as many threads in
//! the network namespace of `--peer`, each of which asks again when it has its answer and checks the answer's ends. In
//! the laboratory the peer's namespace has a card of its own on the same wire, so that packets go through two drivers, their
//! interrupts and the kernel's network on both sides; without `--peer` they go over the loopback. Latency and throughput
//! are the peer's.

use crate::cli::{Args, Failure, NO_PIN, Opt, PIN, Workload, WorkloadReport};
use crate::latency::{Latencies, in_us};
use crate::random::{FastRandom, mix};
use crate::series;
use crate::team::{Member, ThreadTeam, check_cpu, stay_on};
use std::fs::File;
use std::io::{Error, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a side waits for the other before it says that there is none.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "netserve",
    about: "A server of values over TCP and the peer that asks it, each connection with a thread on both sides.",
    operand: None,
    options: &[
        Opt {
            name: "address",
            value: Some("IP"),
            default: "127.0.0.1",
            help: "where the server listens; 10.77.0.1 in the laboratory",
        },
        Opt {
            name: "peer",
            value: Some("FILE"),
            default: "",
            help: "network namespace of the peer; /run/netns/peer in the laboratory",
        },
        Opt {
            name: "peer-cpus",
            value: Some("LIST"),
            default: "all that the process may use",
            help: "CPUs of the peer's threads",
        },
        Opt {
            name: "threads",
            value: Some("T"),
            default: "4",
            help: "connections, 1 to 1024",
        },
        Opt {
            name: "cpus",
            value: Some("LIST"),
            default: "all that the process may use",
            help: "CPUs of the server's threads, one thread on each in turns",
        },
        PIN,
        NO_PIN,
        Opt {
            name: "value-bytes",
            value: Some("BYTES"),
            default: "4096",
            help: "size of a value, a multiple of 8",
        },
        Opt {
            name: "table-kb",
            value: Some("KB"),
            default: "2048",
            help: "all values",
        },
        Opt {
            name: "lookups",
            value: Some("N"),
            default: "500",
            help: "more words of the table that a request adds up",
        },
        Opt {
            name: "seconds",
            value: Some("S"),
            default: "5",
            help: "how long it runs",
        },
    ],
    run,
};

/// What the command line says.
struct Plan {
    value_words: usize,
    values: u64,
    lookups: u64,
    peer: Option<File>,
    peer_cpus: Vec<usize>,
    limit: Duration,
}

/// What one side of a connection did.
#[derive(Default)]
struct Done {
    latencies: Latencies,
    wrong: u64,
    sum: u64,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let threads = args.number("threads", 1..=1024)? as usize;
    let team = ThreadTeam::with_cpus(args, threads)?;
    let seconds = args.number("seconds", 1..=1 << 16)?;
    let value_bytes = args.number("value-bytes", 8..=1 << 24)?;
    let table_bytes = args.number("table-kb", 1..=1 << 20)? << 10;
    if value_bytes % 8 != 0 || value_bytes > table_bytes {
        return Err(crate::cli::usage(format!(
            "--value-bytes {value_bytes}: give a multiple of 8 that is no larger than the table"
        )));
    }
    let machine = |what: String| move |error: Error| Failure::Machine(format!("{what}: {error}"));
    let address = args.text("address").unwrap_or("127.0.0.1");
    let address: std::net::IpAddr = address.parse().map_err(|_| {
        crate::cli::usage(format!(
            "--address {address} is no IP address: give one as 10.77.0.1"
        ))
    })?;
    let peer = args.text("peer").filter(|path| !path.is_empty());
    let open = |path: &str| {
        let refused = |error| crate::cli::usage(format!("--peer {path} cannot be opened: {error}"));
        File::open(path).map_err(refused)
    };
    let peer = peer.map(open).transpose()?;
    let peer_cpus = args.list("peer-cpus", &(0..=u64::from(u16::MAX)))?;
    let peer_cpus: Vec<usize> = peer_cpus.iter().map(|&cpu| cpu as usize).collect();
    for &cpu in &peer_cpus {
        check_cpu("peer-cpus", cpu)?;
    }
    let plan = Plan {
        value_words: value_bytes as usize / 8,
        values: table_bytes / value_bytes,
        lookups: args.number("lookups", 0..=1 << 30)?,
        peer,
        peer_cpus,
        limit: Duration::from_secs(seconds),
    };
    let started = Instant::now();
    let words = plan.values * plan.value_words as u64;
    let table: Vec<u64> = (0..words).map(mix).collect();
    let listener = TcpListener::bind((address, 0));
    let listener = listener.map_err(machine(format!("listening at {address}")))?;
    let place = listener
        .local_addr()
        .map_err(machine("asking for the port".into()))?;
    let setup = started.elapsed().as_secs_f64();
    let served = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..threads)
            .map(|client| {
                let plan = &plan;
                scope.spawn(move || plan.ask(client, place))
            })
            .collect();
        let results =
            team.run(|member| member.measure(|| plan.serve(member, &listener, &table)))?;
        let mut all = Done::default();
        for thread in asking {
            let done = thread
                .join()
                .unwrap_or_else(|_| Err(Error::other("the peer panicked")));
            let done = done.map_err(machine(format!("asking {place}")))?;
            all.latencies.merge(&done.latencies);
            all.wrong += done.wrong;
        }
        let took = results[0].1;
        for (done, _) in results {
            all.sum ^= done.map_err(machine(format!("serving at {place}")))?;
        }
        Ok((all, took))
    });
    let (all, took) = served?;
    let title = format!(
        "netserve: {threads} connections, {} values of {value_bytes} bytes",
        plan.values
    );
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{setup:.6}"));
    let report = series::lines(report, seconds, |second| all.latencies.line(second));
    let whole = all.latencies.as_one();
    let requests = whole.total() as f64;
    Ok(report
        .line("requests_per_second", format!("{:.0}", requests / took))
        .line(
            "mb_per_second",
            format!("{:.1}", requests * value_bytes as f64 / took / 1e6),
        )
        .line("p50_us", in_us(whole.quantile_ns(0, 0.5)))
        .line("p99_us", in_us(whole.quantile_ns(0, 0.99)))
        .line("wrong_words", all.wrong)
        .finish(took, mix(words) ^ all.wrong))
}

impl Plan {
    /// The server's side of one connection, until the peer closes it.
    fn serve(
        &self,
        member: &Member<'_>,
        listener: &TcpListener,
        table: &[u64],
    ) -> Result<u64, Error> {
        let mut stream = accept(listener)?;
        let mut random = FastRandom::new(mix(member.id as u64 + 1));
        let mut answer = vec![0; self.value_words * 8];
        let mut sum = 0_u64;
        let mut number = [0; 8];
        loop {
            match stream.read_exact(&mut number) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(sum),
                other => other?,
            }
            let value = (u64::from_le_bytes(number) % self.values) as usize;
            let words = &table[value * self.value_words..][..self.value_words];
            for (to, word) in answer.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            for _ in 0..self.lookups {
                sum = sum.wrapping_add(table[random.below(table.len() as u64) as usize]);
            }
            stream.write_all(&answer)?;
        }
    }

    /// The peer's side of one connection.
    fn ask(&self, client: usize, place: SocketAddr) -> Result<Done, Error> {
        if let Some(peer) = &self.peer {
            // SAFETY: an open descriptor; what it names concerns this thread alone.
            if unsafe { libc::setns(peer.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(Error::last_os_error());
            }
        }
        if !self.peer_cpus.is_empty() {
            stay_on(&self.peer_cpus)?;
        }
        let mut stream = TcpStream::connect_timeout(&place, PATIENCE)?;
        settle(&stream)?;
        let mut random = FastRandom::new(mix(!(client as u64)));
        let mut answer = vec![0; self.value_words * 8];
        let mut done = Done::default();
        let start = Instant::now();
        let mut next = start.elapsed();
        while next < self.limit {
            let from = next;
            let value = random.below(self.values);
            stream.write_all(&value.to_le_bytes())?;
            stream.read_exact(&mut answer)?;
            let first = value * self.value_words as u64;
            let ends = [first, first + self.value_words as u64 - 1];
            let got = [answer.first_chunk::<8>(), answer.last_chunk::<8>()];
            for (word, at) in got.into_iter().zip(ends) {
                done.wrong += u64::from(word != Some(&mix(at).to_le_bytes()));
            }
            next = start.elapsed();
            (done.latencies).add(next.min(self.limit - Duration::from_nanos(1)), next - from);
        }
        Ok(done)
    }
}

/// The next connection; an error where none comes.
fn accept(listener: &TcpListener) -> Result<TcpStream, Error> {
    let mut wish = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry that lives through the call.
    if unsafe { libc::poll(&raw mut wish, 1, PATIENCE.as_millis() as libc::c_int) } != 1 {
        return Err(Error::other("no peer came"));
    }
    let (stream, _) = listener.accept()?;
    settle(&stream)?;
    Ok(stream)
}

fn settle(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}
