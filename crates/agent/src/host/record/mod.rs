//! Recording what programs do, as a client of the loop.

mod places;
mod session;

pub use session::{Session, Setup, Totals};

use super::supervisor::{Client, End, Supervisor};
use super::{Error, Result};
use hither_linux::sys;
use hither_recording::Writer;
use hither_recording::meta::RecordingEnd;

/// What a recording came to.
pub struct Recorded {
    /// How the loop ended.
    pub end: End,
    /// Length of the recording.
    pub length_ns: u64,
    /// CPU time of what was watched, in us.
    pub watched_us: u64,
    /// How writing ended: a full disk must not harm the program, which is waited for all the same.
    pub written: Result<()>,
}

/// Records until the program ends, a signal comes, or `limit_ns` is over; a program that was started
/// here is then waited for. `beside` has its turn before each of the recording's, with the time and
/// who is watched.
///
/// # Errors
/// What the loop says.
pub fn run(
    supervisor: &Supervisor,
    session: &mut Session,
    writer: &mut Writer,
    limit_ns: Option<u64>,
    notes: &[String],
    mut beside: impl FnMut(u64, &[i32]),
) -> Result<Recorded> {
    let now_ns = || sys::monotonic_ns().saturating_sub(supervisor.start_ns());
    let mut length_ns = 0;
    let mut written: Option<Result<()>> = None;
    let first_us = session.interval_us();
    let end = supervisor.run::<Error>(&mut [Client::new(first_us, |_| {
        length_ns = now_ns();
        if limit_ns.is_some_and(|limit| length_ns >= limit) || session.is_over() {
            let finished = session.finish(writer);
            // A command runs on for who knows how long.
            let mut ended = ended(End::Done, length_ns, notes.to_vec());
            ended.watched_cpu_us = Some(session.totals().watched_us);
            writer.meta_mut().ended = Some(ended);
            written = Some(finished.and_then(|()| Ok(writer.flush()?)));
            return Ok(None);
        }
        beside(length_ns, &session.pids());
        Ok(match session.turn(writer) {
            Ok(sleep_us) => Some(sleep_us),
            Err(error) => {
                written = Some(Err(error));
                None
            }
        })
    })])?;
    // The kernel's own account of a command that was watched to its end, with all that ran too
    // shortly to be seen.
    let children = written.is_none().then(sys::children_usage);
    let watched_us = children.map_or(0, |children| children.user_us + children.system_us);
    let written = written.unwrap_or_else(|| {
        length_ns = now_ns();
        session.finish(writer)
    });
    Ok(Recorded {
        end,
        length_ns,
        watched_us: session.totals().watched_us.max(watched_us),
        written,
    })
}

/// The end of a recording that ends now. Who knows the CPU time of what was watched adds it.
#[must_use]
pub fn ended(end: End, length_ns: u64, notes: Vec<String>) -> RecordingEnd {
    let (status, signal) = match end {
        End::Ended(ended @ sys::Ended::Killed(signal)) => (Some(ended.status()), Some(signal)),
        End::Ended(ended) => (Some(ended.status()), None),
        End::Gone | End::Signal(_) | End::Done => (None, None),
    };
    let usage = sys::own_usage();
    RecordingEnd {
        length_ns,
        status,
        signal,
        own_user_us: Some(usage.user_us),
        own_system_us: Some(usage.system_us),
        watched_cpu_us: None,
        own_peak_kb: Some(usage.peak_resident_kb),
        notes,
    }
}
