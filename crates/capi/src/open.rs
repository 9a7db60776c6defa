//! Opening: from a configuration of C to a service.

use crate::constants::{
    HITHER_CONFIG_BYTES_0_1, HITHER_EFAULT, HITHER_EINVAL, HITHER_ENOENT, HITHER_ENOMEM,
    HITHER_EXCHANGE_ALWAYS, HITHER_EXCHANGE_NEVER, HITHER_NO_SPIN, HITHER_RECYCLE,
};
use crate::failure::{Failure, Outcome, invalid};
use crate::instance::Instance;
use crate::structures::{self, or};
use crate::types::HitherConfig;
use crate::{lifetime, registry};
use hither_core::ids::CpuId;
use hither_linux::backend::own::{self, Exchange, Settings};
use hither_mover::{Config, Notify, OpenError, room};
use rustix::fd::AsRawFd;
use std::ffi::{CStr, c_char};

/// Entries of a list of CPUs.
const MOST_CPUS: usize = 4096;
/// Threads that share a replication.
const MOST_COPIERS: u32 = 256;
/// Memory that there must be before anything is set up: a backend and its threads take some of it.
const BACKEND_BYTES: usize = 4 << 20;
const KNOWN_FLAGS: u32 =
    HITHER_EXCHANGE_ALWAYS | HITHER_EXCHANGE_NEVER | HITHER_NO_SPIN | HITHER_RECYCLE;

/// Opens a mover with default settings.
///
/// # Safety
/// `name` is NULL or a text with a final zero.
pub(crate) unsafe fn by_name(name: *const c_char) -> Outcome<i32> {
    let config = HitherConfig {
        name,
        ..HitherConfig::default()
    };
    // SAFETY: the caller vouches for `name`; there is no list of CPUs.
    unsafe { open(&config) }
}

/// Opens a mover as a program's configuration of `size` bytes says.
///
/// # Safety
/// `config` is NULL or has `size` bytes, with pointers as the structure says.
pub(crate) unsafe fn by_config(config: *const HitherConfig, size: usize) -> Outcome<i32> {
    if config.is_null() {
        let text = "config is NULL: pass a configuration, or call hither_open()";
        return Err(Failure::new(HITHER_EFAULT, text));
    }
    let least = HITHER_CONFIG_BYTES_0_1;
    // SAFETY: the caller vouches for `size` bytes; every field may have any value.
    let known = unsafe { structures::read(config, size, least, "hither_config")? };
    let known = known.unwrap_or_default();
    // SAFETY: the caller vouches for the pointers in it.
    unsafe { open(&known) }
}

/// # Safety
/// The pointers of `asked` are as the structure says.
unsafe fn open(asked: &HitherConfig) -> Outcome<i32> {
    lifetime::begin()?;
    // SAFETY: the caller vouches for the name.
    unsafe { check_name(asked.name)? };
    // SAFETY: the caller vouches for the list.
    let cpus = unsafe { cpus(asked)? };
    let config = config(asked, cpus.clone())?;
    let capacity = config.capacity;
    let settings = settings(asked, cpus)?;
    let no_memory = |error| failure(OpenError::System(error));
    room(BACKEND_BYTES).map_err(no_memory)?;
    let (mover, chosen) = own::open(config, settings).map_err(failure)?;
    let Some(handle) = mover.notify_fd().map(|descriptor| descriptor.as_raw_fd()) else {
        unreachable!("opened with an eventfd");
    };
    let instance = Instance::new(handle, mover, chosen, capacity).map_err(no_memory)?;
    Ok(registry::add(instance))
}

/// # Safety
/// `name` is NULL or a text with a final zero.
unsafe fn check_name(name: *const c_char) -> Outcome<()> {
    if name.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let name = unsafe { CStr::from_ptr(name) };
    if matches!(name.to_bytes(), b"" | b"self") {
        return Ok(());
    }
    let text = format!(
        "there is no mover `{}`: pass \"self\" for this process's own memory",
        name.to_string_lossy()
    );
    Err(Failure::new(HITHER_ENOENT, text))
}

/// # Safety
/// `cpus` is NULL or has `cpu_count` entries.
unsafe fn cpus(asked: &HitherConfig) -> Outcome<Vec<CpuId>> {
    let count = asked.cpu_count;
    if count > MOST_CPUS {
        return invalid(format!("cpu_count is {count}: it is at most {MOST_CPUS}"));
    }
    match (asked.cpus.is_null(), count) {
        (true, 0) => return Ok(Vec::new()),
        (true, _) => {
            let text = "cpus is NULL but cpu_count is not 0: pass the list";
            return Err(Failure::new(HITHER_EFAULT, text));
        }
        (false, 0) => return invalid("cpus is set but cpu_count is 0: count its entries"),
        (false, _) => {}
    }
    // SAFETY: the caller vouches for the entries, which may be unaligned in C only by mistake;
    // reading them one by one minds neither.
    let cpu = |index| unsafe { asked.cpus.add(index).read_unaligned() };
    Ok((0..count).map(|index| CpuId(cpu(index))).collect())
}

fn config(asked: &HitherConfig, cpus: Vec<CpuId>) -> Outcome<Config> {
    if asked.flags & !KNOWN_FLAGS != 0 {
        return invalid(format!(
            "flags of the configuration has unknown bits {:#x}: clear them, or use the library \
             that knows them",
            asked.flags & !KNOWN_FLAGS
        ));
    }
    let Ok(capacity) = u16::try_from(asked.capacity) else {
        return invalid(format!("capacity is {}: it is 1 to 32768", asked.capacity));
    };
    let default = Config::default();
    let spin_us = match (asked.flags & HITHER_NO_SPIN, asked.spin_us) {
        (0, 0) => default.spin_us,
        (0, spin_us) => spin_us,
        (_, 0) => 0,
        (_, spin_us) => {
            return invalid(format!(
                "spin_us is {spin_us} with HITHER_NO_SPIN: leave one out"
            ));
        }
    };
    Ok(Config {
        capacity: or(capacity, default.capacity),
        workers: or(asked.workers as usize, default.workers),
        cpus,
        rate_limit_bytes_per_s: (asked.rate_limit_bytes_per_s > 0)
            .then_some(asked.rate_limit_bytes_per_s),
        spin_us,
        small_bytes: or(asked.small_bytes, default.small_bytes),
        batch_requests: or(asked.batch_requests as usize, default.batch_requests),
        batch_bytes: or(asked.batch_bytes, default.batch_bytes),
        first_bytes: asked.first_bytes,
        notify: Notify::Eventfd,
    })
}

fn settings(asked: &HitherConfig, copier_cpus: Vec<CpuId>) -> Outcome<Settings> {
    let exchange = match asked.flags & (HITHER_EXCHANGE_ALWAYS | HITHER_EXCHANGE_NEVER) {
        0 => Exchange::WhereSafe,
        HITHER_EXCHANGE_ALWAYS => Exchange::Always,
        HITHER_EXCHANGE_NEVER => Exchange::Never,
        _ => return invalid("flags has two HITHER_EXCHANGE_*: set one"),
    };
    if asked.copiers > MOST_COPIERS {
        let text = format!("copiers is {}: it is 1 to {MOST_COPIERS}", asked.copiers);
        return invalid(text);
    }
    let mut settings = Settings {
        exchange,
        copiers: asked.copiers as usize,
        copier_cpus,
        ..Settings::default()
    };
    settings.swap.limits.recycle = asked.flags & HITHER_RECYCLE != 0;
    Ok(settings)
}

fn failure(error: OpenError) -> Failure {
    let text = error.to_string();
    match error {
        OpenError::System(cause) => {
            // A filter of system calls that forbids threads is no lack of them.
            let remedy = hither_linux::filter::remedy("clone3", &cause)
                .unwrap_or_else(|| "free some, or raise the limits".to_owned());
            let text = format!("{text}: {cause}; {remedy}");
            Failure::new(HITHER_ENOMEM, text)
        }
        OpenError::Cpus(cause) => {
            Failure::new(HITHER_EINVAL, format!("{text}: {cause}; name others"))
        }
        _ => Failure::new(HITHER_EINVAL, text),
    }
}
