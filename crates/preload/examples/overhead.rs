//! What the shim costs: calls one by one, and whole programs.
//!
//! `cargo run --release -p hither-preload --example overhead [ROUNDS]`
//!
//! Everything is run with and without the shim in turns, and the ratio is taken within each turn, so
//! that what else the machine does falls on both. CPU time of the program, not wall time. Programs that
//! are not installed are left out, and named.

use std::ffi::c_void;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Bytes of allocations and what they are, for the calls one by one.
const SIZES: [(usize, &str); 4] = [
    (32, "malloc + free of 32 B"),
    (4096, "malloc + free of 4 KiB"),
    (96 << 10, "malloc + free of 96 KiB, recorded"),
    (1 << 20, "malloc + free of 1 MiB, recorded"),
];

/// Whole programs, by name: a shell's line each, in a folder with `data` of 32 MB.
const PROGRAMS: [(&str, &str); 8] = [
    ("zstd -3", "zstd -q -3 -f -T1 data -o out"),
    (
        "zstd -15, 8 MB",
        "head -c 8000000 data | zstd -q -15 -T1 > out",
    ),
    (
        "sqlite3, 300,000 rows",
        "sqlite3 :memory: 'create table t(a integer, b text); with recursive c(x) as (select 1 \
         union all select x+1 from c where x<300000) insert into t select x, hex(x*7919) from c; \
         create index i on t(b); select count(*) from t a join t b on a.b=b.b where a.a%3=0;'",
    ),
    ("sort, 32 MB", "sort -S 64M --parallel=2 data -o out"),
    (
        "gcc -O2",
        "for i in 1 2 3 4; do gcc -O2 -x c -c source -o out; done",
    ),
    (
        "python3, lists",
        "python3 -c 'x=[str(i)*3 for i in range(600000)]; x.sort(); print(len(set(x)))'",
    ),
    (
        "perl, hash",
        "perl -e 'my %h; $h{$_ * 7 % 300007} .= $_ for 1..1500000; print scalar keys %h'",
    ),
    (
        "true, 400 processes",
        "for i in $(seq 400); do /bin/true; done",
    ),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--calls") {
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(1);
        let bytes = number(arguments.next());
        return calls(bytes, number(arguments.next()));
    }
    let rounds: usize = first.and_then(|text| text.parse().ok()).unwrap_or(7);
    let own = std::env::current_exe().expect("the path of this program");
    let shim = own.with_file_name("../libhither_preload.so");
    let shim = shim.canonicalize().unwrap_or_else(|_| {
        eprintln!(
            "{} is not built: cargo build --release -p hither-preload",
            shim.display()
        );
        std::process::exit(2)
    });
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = temporary.path().to_owned();
    fs::create_dir(folder.join("logs")).expect("a folder for logs");
    let bench = Bench {
        shim,
        folder,
        rounds,
    };
    bench.prepare();
    println!(
        "{:<36} {:>12} {:>12} {:>9}",
        "calls, ns", "without", "with", "cost"
    );
    for (bytes, name) in SIZES {
        let count = if bytes < 65536 { 5_000_000 } else { 100_000 };
        let mut command = Command::new(&own);
        command.args(["--calls", &bytes.to_string(), &count.to_string()]);
        let [without, with] = bench.compare(&mut command, |printed, _| {
            printed.trim().parse().unwrap_or(f64::NAN)
        });
        let (without, with) = (median(&without), median(&with));
        println!(
            "{name:<36} {without:>12.1} {with:>12.1} {:>6.1} ns",
            with - without
        );
    }
    println!(
        "\n{:<36} {:>12} {:>12} {:>9}",
        "programs, CPU s", "without", "with", "cost"
    );
    for (name, line) in PROGRAMS {
        bench.program(name, line);
    }
}

/// Allocates and frees, and prints the ns of one pair.
fn calls(bytes: usize, count: usize) {
    let start = Instant::now();
    for _ in 0..count {
        // SAFETY: what is allocated is freed, and not used.
        unsafe {
            let pointer: *mut c_void = libc::malloc(black_box(bytes));
            libc::free(black_box(pointer));
        }
    }
    println!("{}", start.elapsed().as_nanos() as f64 / count as f64);
}

struct Bench {
    shim: PathBuf,
    folder: PathBuf,
    rounds: usize,
}

impl Bench {
    fn prepare(&self) {
        let mut data = Vec::new();
        let mut seed = 1u64;
        while data.len() < 32_000_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            data.extend(format!("{:x} line {}\n", seed >> 40, seed >> 58).bytes());
        }
        fs::write(self.folder.join("data"), data).expect("room for 32 MB");
        let mut source = String::from("#include <stdio.h>\n");
        for index in 0..400 {
            source += &format!(
                "int f{index}(int a, int *b) {{ for (int i = 0; i < a; i++) b[i] += a * {index}; \
                 return printf(\"%d\", b[a / 2]); }}\n"
            );
        }
        fs::write(self.folder.join("source"), source).expect("room for a source");
    }

    /// Runs a command with and without the shim in turns; what `measure` makes of the output and
    /// the CPU time of each.
    fn compare(&self, command: &mut Command, measure: impl Fn(&str, f64) -> f64) -> [Vec<f64>; 2] {
        let mut found = [Vec::new(), Vec::new()];
        command.current_dir(&self.folder).stdin(Stdio::null());
        for round in 0..self.rounds {
            for turn in 0..2 {
                let with = (round + turn) % 2;
                if with == 1 {
                    command.env("LD_PRELOAD", &self.shim);
                    command.env("HITHER_PRELOAD_DIR", self.folder.join("logs"));
                } else {
                    command.env_remove("LD_PRELOAD");
                }
                let before = children_cpu_s();
                let output = command.output().expect("a program that can be started");
                let cpu_s = children_cpu_s() - before;
                assert!(output.status.success(), "{command:?}: {output:?}");
                found[with].push(measure(&String::from_utf8_lossy(&output.stdout), cpu_s));
            }
            self.clear_logs();
        }
        found
    }

    fn clear_logs(&self) {
        let logs = self.folder.join("logs");
        let _ = fs::remove_dir_all(&logs);
        let _ = fs::create_dir_all(&logs);
    }

    fn program(&self, name: &str, line: &str) {
        let program = name.split([' ', ',']).next().unwrap_or(name);
        if !PATHS
            .iter()
            .any(|path| Path::new(path).join(program).is_file())
        {
            return println!("{name:<36} not measured: it is not installed");
        }
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        let [without, with] = self.compare(&mut command, |_, cpu_s| cpu_s);
        let ratios: Vec<f64> = with.iter().zip(&without).map(|(a, b)| a / b).collect();
        let cost = (median(&ratios) - 1.0) * 100.0;
        let least = |times: &[f64]| times.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "{name:<36} {:>12.3} {:>12.3} {cost:>+7.1} %   of the least: {:+.1} %",
            median(&without),
            median(&with),
            (least(&with) / least(&without) - 1.0) * 100.0
        );
    }
}

const PATHS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// CPU seconds of all children that have ended.
fn children_cpu_s() -> f64 {
    // SAFETY: an all-zero rusage is one, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
