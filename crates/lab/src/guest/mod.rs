//! The guest side: the first process of the emulated machine.
//!
//! It mounts what programs expect, checks that Linux sees the nodes that the machine file asks
//! for, runs the job's runs one after another, sends everything to the host in frames, and powers
//! off. Whatever goes wrong becomes a [`Kind::Fault`] frame: an exit of process 1 would only be a
//! kernel panic without a reason.

mod child;
mod counters;
mod damon;
mod devices;
mod files;
mod home;
mod oracle;
mod port;
mod relay;
mod resctrl;
mod rivals;
mod system;
mod translations;

use crate::policies::{self, Launch};
use crate::protocol::{self, Hello, Job, Kind, RunEnded, RunSpec, Stdin};
use counters::Meter;
use hither_core::machine::parse;
use hither_core::policy::Rung;
use hither_linux::resctrl::LAB_FOLDER;
use hither_linux::restore;
use hither_linux::root::Root;
use oracle::Oracle;
use port::Port;
use resctrl::Feeder;
use std::fs;
use std::process::ExitCode;
use translations::Emptied;

/// A failure inside the guest: a sentence for the person at the host.
pub type Result<T> = std::result::Result<T, String>;

/// For `map_err`: says what was being done.
fn doing<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> String {
    let what = what.into();
    move |cause| format!("{what}: {cause}")
}

/// Entry point of `hither lab guest`. Returns only where this is no lab's guest.
#[must_use]
pub fn main() -> ExitCode {
    if std::process::id() != 1 || !std::path::Path::new(protocol::JOB_PATH).exists() {
        eprintln!(
            "hither: `lab guest` is the first process of the lab's guest and runs nowhere else\n  to mend it: use `hither lab run`"
        );
        return ExitCode::from(crate::error::STATUS_BAD_INPUT);
    }
    if let Err(reason) = system::mount_all() {
        eprintln!("hither: {reason}");
        system::power_off();
    }
    let mut port = match Port::open() {
        Ok(port) => port,
        Err(reason) => {
            eprintln!("hither: {reason}");
            system::power_off();
        }
    };
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(&mut port)));
    let failure = match served {
        Ok(Ok(())) => None,
        Ok(Err(reason)) => Some(reason),
        Err(_) => Some("the agent panicked; its message is on the console".to_owned()),
    };
    let last = match &failure {
        None => port.send(Kind::Done, 0, b""),
        Some(reason) => port.send(Kind::Fault, 0, reason.as_bytes()),
    };
    // After a power-off the host could not read what still waits in the port.
    if last.is_ok() {
        port.wait_for_bye();
    }
    system::power_off()
}

fn serve(port: &mut Port) -> Result<()> {
    let text = fs::read_to_string(protocol::JOB_PATH).map_err(doing("reading the job"))?;
    let job: Job = serde_json::from_str(&text).map_err(doing("reading the job"))?;
    if job.version != protocol::VERSION {
        return Err(format!(
            "the job has version {}, the agent {}",
            job.version,
            protocol::VERSION
        ));
    }
    system::tell_started();
    let hello = Hello {
        version: protocol::VERSION,
        kernel: hither_linux::sys::kernel_release(),
        uptime_s: crate::os::monotonic_ns() as f64 / 1e9,
    };
    port.send_json(Kind::Hello, 0, &hello)?;
    system::check_nodes(&job.node_cpus)?;
    if let Err(reason) = system::loopback_up() {
        port.notice(&format!("no loopback network: {reason}"))?;
    }
    devices::bring_up(job.devices)?;
    rivals::check(&job, &Root::host())?;
    let meter = if job.opium {
        Some(Meter::open()?)
    } else {
        None
    };
    let feeder = match &meter {
        Some(_) => offer_resctrl(port)?,
        None => None,
    };
    fs::create_dir_all(&job.cwd).map_err(doing(format!("making {}", job.cwd)))?;
    let mut hidden = system::Hidden::default();
    let mut oracle = Oracle::default();
    for (index, spec) in job.runs.iter().enumerate() {
        let index = index as u16;
        let devices = (meter.as_ref(), feeder.as_ref());
        let ended = run(port, &job, index, spec, devices, &mut hidden, &mut oracle)?;
        if let (Some(meter), Some(feeder)) = devices {
            feeder.reset(|cpu, mask| meter.device().set_way_mask(cpu, mask))?;
        }
        port.send_json(Kind::RunEnded, index, &ended)?;
    }
    for (asked, path) in job.back.iter().enumerate() {
        files::send(port, asked, &job.cwd, path)?;
    }
    Ok(())
}

/// The folder by which programs divide caches; a kernel that cannot have it is worth a notice.
fn offer_resctrl(port: &mut Port) -> Result<Option<Feeder>> {
    let text = fs::read_to_string(protocol::MACHINE_PATH).map_err(doing("reading the machine"))?;
    let machine = parse::parse(&text).map_err(doing("reading the machine file"))?;
    // Journals are kept beside it, in a folder that is nobody else's.
    restore::make_runtime_folder().map_err(|error| error.to_string())?;
    match Feeder::offer(&Root::host(), &machine) {
        Ok(feeder) => Ok(Some(feeder)),
        Err(reason) => {
            port.notice(&format!("no folder /{LAB_FOLDER}: {reason}"))?;
            Ok(None)
        }
    }
}

fn run(
    port: &mut Port,
    job: &Job,
    index: u16,
    spec: &RunSpec,
    (meter, feeder): (Option<&Meter>, Option<&Feeder>),
    hidden: &mut system::Hidden,
    oracle: &mut Oracle,
) -> Result<RunEnded> {
    let root = Root::host();
    if spec.reset {
        system::reset()?;
        home::bring_back(&root)?;
    }
    let held = rivals::hold(&spec.policy, &root)?;
    if let Some(meter) = meter {
        hidden.set(spec.evidence == Rung::Software)?;
        meter.device().set_pmu_only(spec.evidence == Rung::Pmu);
    }
    let reads_access_bits = spec.evidence == Rung::Software
        || policies::of_linux(&spec.policy).is_some_and(|rival| rival.launch == Launch::Damon);
    let emptied = match reads_access_bits {
        true => Some(Emptied::begin(&root)?),
        false => None,
    };
    let _ = fs::remove_file(child::REPORT_PATH);
    port.send(Kind::RunStarted, index, b"")?;
    let mut relay = relay::Relay::new(index, job.sample_ms, meter, feeder);
    let started = child::start(job, spec);
    let child = match started {
        Ok(child) => child,
        Err(failure) => {
            // As a shell has it: 127 not found, 126 found but not to be run.
            let status = if failure.kind() == std::io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            port.notice(&format!("{} cannot be run: {failure}", spec.argv[0]))?;
            held.put_back(&root)?;
            return Ok(RunEnded {
                status,
                start_ns: 0,
                end_ns: 0,
                timeline: Vec::new(),
                report: None,
            });
        }
    };
    let companion = match spec.launch {
        Launch::Oracle => Some(oracle.begin(&spec.argv, child.child.id())?),
        _ => None,
    };
    let ended = relay.follow(port, child)?;
    if let Some(companion) = companion {
        oracle.end(companion)?;
    }
    drop(emptied);
    held.put_back(&root)?;
    let report = fs::read_to_string(child::REPORT_PATH).ok();
    let report = report.and_then(|text| serde_json::from_str(&text).ok());
    Ok(RunEnded { report, ..ended })
}

/// Standard input of a job that has no stream of its own.
fn wants_input(job: &Job) -> bool {
    job.stdin != Stdin::Null
}
