//! Speed of the laboratory: host seconds of programs with the model, with a plugin that only
//! resolves addresses, and with plain QEMU.
//!
//! `cargo bench --package hither-lab [-- PROGRAM...]` after `cargo build --release` and
//! `hither lab setup`. Each program keeps 8 vCPUs busy: `cluster shared` waits for one memory
//! controller, `cluster local` reads its own memory in streams, `cg` computes. Each way runs twice
//! in boots of its own and the faster run counts, because other work on the host can only slow it
//! down.

use hither_core::policy::Rung;
use hither_lab::qemu::{HugePages, PluginMode};
use hither_lab::session::{Lab, Options};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Instructions a second that two host cores shall reach.
const WANTED_PER_SECOND: f64 = 80e6;
/// Most times the seconds of the resolving plugin.
const WANTED_RATIO: f64 = 2.5;
/// Boots of each way.
const REPEAT: usize = 2;
/// What is measured, unless arguments choose among them: a few seconds of the host each.
const PROGRAMS: [&str; 3] = [
    "cluster shared --rounds 8",
    "cluster local --rounds 64",
    "cg --products 20",
];

fn options(mode: Option<PluginMode>, agent: &Path) -> Options {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    Options {
        machine_file: machine,
        cpus: Some(8),
        memory_mb: vec![512],
        offline: Default::default(),
        kernel: "newest".into(),
        devices: Default::default(),
        huge_pages: HugePages::Madvise,
        timeout: Some(Duration::from_secs(600)),
        files: Vec::new(),
        env: Vec::new(),
        back: Vec::new(),
        plugin: mode,
        agent: agent.to_owned(),
        evidence: Rung::Device,
        hither_arguments: Vec::new(),
    }
}

/// Host seconds of the faster run, and its instructions where they are counted.
fn measure(words: &str, mode: Option<PluginMode>, built: &Path) -> Result<(f64, f64), String> {
    let mut argv: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    argv[0] = built.join(&argv[0]).display().to_string();
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..REPEAT {
        let lab = Lab::prepare(options(mode, &built.join("hither")))
            .map_err(|error| error.to_string())?;
        // QEMU 10.0 now and then aborts when a plugin asks for the physical address of a device
        // (`iotlb_to_section`) whose place another vCPU has just changed, as happens at boot. Seen
        // with the resolving plugin only, which asks at every access.
        let (run, _) = (lab.run(&argv, "first-touch"))
            .or_else(|error| {
                eprintln!("speed: once more, because {error}");
                lab.run(&argv, "first-touch")
            })
            .map_err(|error| error.to_string())?;
        if run.ended.status != 0 {
            return Err(format!(
                "{words} ({mode:?}): the program ended with status {}",
                run.ended.status
            ));
        }
        let counted = |points: &[hither_lab::measure::Point]| -> Option<f64> {
            let figures = hither_lab::measure::between(points.first()?, points.last()?);
            figures.instructions.map(|count| count as f64)
        };
        if run.host_seconds < best.0 {
            best = (
                run.host_seconds,
                counted(&run.ended.timeline).unwrap_or(0.0),
            );
        }
    }
    Ok(best)
}

fn bench(words: &str, built: &Path) -> Result<(), String> {
    let (model, instructions) = measure(words, Some(PluginMode::Model), built)?;
    let (resolve, _) = measure(words, Some(PluginMode::Resolve), built)?;
    let (plain, _) = measure(words, None, built)?;
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    let speed = instructions / model;
    let ratio = model / resolve;
    println!(
        "{words}, 8 vCPUs, {:.0} million instructions",
        instructions / 1e6
    );
    println!("  with the model          {model:8.2} s");
    println!("  resolving addresses     {resolve:8.2} s");
    println!("  plain QEMU              {plain:8.2} s");
    println!(
        "  instructions a second: {:.0} million (wanted {:.0}): {}",
        speed / 1e6,
        WANTED_PER_SECOND / 1e6,
        verdict(speed >= WANTED_PER_SECOND)
    );
    println!(
        "  model over resolving:  {ratio:.2} (wanted at most {WANTED_RATIO}): {}",
        verdict(ratio <= WANTED_RATIO)
    );
    println!(
        "  model over plain QEMU: {:.2}; resolving over plain QEMU: {:.2}",
        model / plain,
        resolve / plain
    );
    Ok(())
}

fn bench_all() -> Result<(), String> {
    // target/release/deps/speed-HASH
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let built: PathBuf = this.ancestors().nth(2).ok_or("no build folder")?.to_owned();
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    for words in PROGRAMS {
        if chosen.is_empty() || chosen.iter().any(|part| words.contains(part.as_str())) {
            bench(words, &built)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    // `cargo test --benches` asks every benchmark to do nothing much.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    match bench_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("speed: {reason}");
            ExitCode::FAILURE
        }
    }
}
