//! The edge to QEMU: installation, what all callbacks share, and vCPUs that begin, halt and resume.
//!
//! The same shared object is given to QEMU twice: by `LD_PRELOAD` (see `preload`) and by
//! `-plugin`. The dynamic linker loads it once, so both halves share one state.

use crate::clock::{Clock, host_ns};
use crate::device::Device;
use crate::engine::Engine;
use crate::guest::Guest;
use crate::model::Model;
use crate::options::{Mode, Options};
use crate::translation::{InstructionPrices, on_translate, on_translate_resolve};
use crate::vcpu::{Score, Vcpu};
use crate::window::Windows;
use hither_core::opium::{MAX_LINKS, MAX_NODES, MAX_VCPUS, header, vcpu as block};
use qemu_plugin_sys as sys;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed, Ordering::Release};

/// Plugin API that this is built for; QEMU checks it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 4;

/// Everything, once installed. Written once, before any vCPU runs.
static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The vCPU whose thread this is.
    static OWN_VCPU: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What all callbacks share.
pub struct Plugin {
    /// The machine.
    pub model: Model,
    /// Measuring windows.
    pub windows: Windows,
    /// Position of each vCPU's node.
    pub nodes: Vec<usize>,
    /// What instructions cost.
    pub prices: InstructionPrices,
    /// The copy engine, where the machine has one.
    pub engine: Option<Engine>,
    scoreboard: *mut sys::qemu_plugin_scoreboard,
    scores: [AtomicPtr<Score>; MAX_VCPUS],
    /// Each is touched by its vCPU's thread only.
    vcpus: Vec<UnsafeCell<Owned>>,
    host_start_ns: u64,
    id: sys::qemu_plugin_id_t,
    /// Do blocks translated from now on tell of their accesses? Firmware and the start of the kernel
    /// take three times as long where they do, and nobody asks what they did.
    models_accesses: AtomicBool,
}

/// What belongs to one vCPU's thread.
pub struct Owned {
    /// Its part of the model.
    pub vcpu: Vcpu,
    /// What QEMU tells of the guest's state.
    pub guest: Guest,
}

/// The plugin, once installed.
pub fn plugin() -> &'static Plugin {
    // SAFETY: set at installation, before any callback is registered, and never freed.
    unsafe { &*PLUGIN.load(Relaxed) }
}

impl Plugin {
    /// State of the calling vCPU.
    #[expect(
        clippy::mut_from_ref,
        reason = "each vCPU's state belongs to its thread"
    )]
    pub fn own(&self, vcpu: usize) -> (&mut Owned, &mut Score) {
        // SAFETY: callbacks of a vCPU run on its thread, one at a time, and none calls another.
        unsafe {
            (
                &mut *self.vcpus[vcpu].get(),
                &mut *self.scores[vcpu].load(Relaxed),
            )
        }
    }

    /// Do blocks translated now tell of their accesses?
    pub fn models_accesses(&self) -> bool {
        self.models_accesses.load(Relaxed)
    }

    /// From now on they do: QEMU is asked to drop all its blocks, which it does once no vCPU is inside
    /// one.
    pub fn model_accesses(&self) {
        if !self.models_accesses.swap(true, Relaxed) {
            // SAFETY: a valid id and a callback that lives as long as the process.
            unsafe { sys::qemu_plugin_reset(self.id, Some(register)) };
        }
    }

    /// A word of every vCPU's [`Score`], for translated code.
    pub fn entry(&self, offset: usize) -> sys::qemu_plugin_u64 {
        sys::qemu_plugin_u64 {
            score: self.scoreboard,
            offset,
        }
    }
}

/// Asks for all callbacks: at installation, and anew where QEMU has dropped its blocks, callbacks and
/// all. It tells of a vCPU's beginning once, so that this is not told again.
extern "C" fn register(id: sys::qemu_plugin_id_t) {
    // SAFETY: a valid id and callbacks that live as long as the process.
    unsafe {
        sys::qemu_plugin_register_vcpu_init_cb(id, Some(on_vcpu_init));
        sys::qemu_plugin_register_vcpu_idle_cb(id, Some(on_idle));
        sys::qemu_plugin_register_vcpu_resume_cb(id, Some(on_resume));
        sys::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translate));
    }
}

extern "C" fn on_vcpu_init(_: sys::qemu_plugin_id_t, vcpu: c_uint) {
    let plugin = plugin();
    // QEMU allots scoreboards for 16 vCPUs at once, which is our limit, so entries never move.
    // SAFETY: this vCPU is being counted in, so its entry exists.
    let entry = unsafe { sys::qemu_plugin_scoreboard_find(plugin.scoreboard, vcpu) };
    plugin.scores[vcpu as usize].store(entry.cast(), Relaxed);
    OWN_VCPU.set(Some(vcpu as usize));
    let (owned, _) = plugin.own(vcpu as usize);
    owned.guest = Guest::new();
    let model = &plugin.model;
    owned.vcpu.starts_at(model.clock.start(vcpu as usize, 0));
    let vcpu = &mut owned.vcpu;
    model
        .load
        .refresh(&model.machine, vcpu.node, &mut vcpu.prices);
}

extern "C" fn on_idle(_: sys::qemu_plugin_id_t, vcpu: c_uint) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    plugin.model.synchronise(&mut owned.vcpu, score, false);
    owned.vcpu.halted = true;
    plugin.model.clock.halt(vcpu as usize, owned.vcpu.time_ps);
}

extern "C" fn on_resume(_: sys::qemu_plugin_id_t, vcpu: c_uint) {
    OWN_VCPU.set(Some(vcpu as usize));
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    let model = &plugin.model;
    let before = owned.vcpu.time_ps;
    owned.vcpu.time_ps = model.clock.start(vcpu as usize, before);
    owned.vcpu.idle(&model.device, owned.vcpu.time_ps - before);
    if std::mem::take(&mut owned.vcpu.halted) {
        owned.vcpu.count(&model.device, block::WAKEUPS, 1);
        score.pass((model.machine.costs.wakeup_ns * 1000.0) as u64);
    }
    // It may be ahead of the others by what waking up took: its first block synchronises.
    owned.vcpu.begin(score, model.clock.quantum_ps);
    let vcpu = &mut owned.vcpu;
    model
        .load
        .refresh(&model.machine, vcpu.node, &mut vcpu.prices);
}

/// QEMU's entry point.
///
/// # Safety
/// Called by QEMU with a valid `info` and `argc` C strings in `argv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: sys::qemu_plugin_id_t,
    info: *const sys::qemu_info_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: QEMU passes argc strings and, in system emulation, the vCPU counts.
    let (words, vcpus) = unsafe {
        let words: Vec<String> = (0..argc as usize)
            .map(|index| {
                CStr::from_ptr(*argv.add(index))
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        (words, (*info).__bindgen_anon_1.system.max_vcpus as usize)
    };
    match install(id, &words, vcpus) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("hither-plugin: {reason}");
            1
        }
    }
}

fn install(id: sys::qemu_plugin_id_t, words: &[String], vcpus: usize) -> Result<(), String> {
    let options = Options::parse(words.iter().map(String::as_str))?;
    if options.mode == Mode::Resolve {
        // SAFETY: a valid id and a callback that lives as long as the process.
        unsafe { sys::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translate_resolve)) };
        return Ok(());
    }
    let path = options.machine.display();
    let text =
        std::fs::read_to_string(&options.machine).map_err(|error| format!("{path}: {error}"))?;
    let machine =
        hither_core::machine::parse::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    if machine.cpu_count() != vcpus {
        return Err(format!(
            "{path} has {} CPUs, QEMU {vcpus}: scale the file to QEMU's -smp",
            machine.cpu_count()
        ));
    }
    if vcpus > MAX_VCPUS || machine.nodes.len() > MAX_NODES || machine.links.len() > MAX_LINKS {
        return Err(format!(
            "{path}: at most {MAX_VCPUS} CPUs, {MAX_NODES} nodes and {MAX_LINKS} links"
        ));
    }
    let device =
        Device::map(options.opium.as_deref()).map_err(|error| format!("opium device: {error}"))?;
    let nodes: Vec<usize> = (0..vcpus)
        .map(|vcpu| {
            machine
                .node_of_cpu(hither_core::ids::CpuId(vcpu as u32))
                .unwrap_or(0)
        })
        .collect();
    describe(&device, &machine, &nodes, options.skew_ns);
    let prices = InstructionPrices::new(&machine);
    let engine = Engine::new(&machine, &options.memory)?;
    let owned = (0..vcpus)
        .map(|vcpu| {
            UnsafeCell::new(Owned {
                vcpu: Vcpu::new(&machine, vcpu),
                guest: Guest::default(),
            })
        })
        .collect();
    let plugin = Plugin {
        model: Model::new(machine, device, options.skew_ns, crate::preload::ring),
        windows: Windows::default(),
        // SAFETY: no preconditions.
        scoreboard: unsafe { sys::qemu_plugin_scoreboard_new(size_of::<Score>()) },
        scores: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
        vcpus: owned,
        nodes,
        host_start_ns: host_ns(),
        prices,
        engine,
        id,
        models_accesses: AtomicBool::new(false),
    };
    PLUGIN.store(Box::into_raw(Box::new(plugin)), Release);
    register(id);
    Ok(())
}

fn describe(
    device: &Device,
    machine: &hither_core::machine::Machine,
    nodes: &[usize],
    skew_ns: u64,
) {
    let put = |offset: usize, value: u32| device.u32(offset).store(value, Relaxed);
    put(header::VERSION, hither_core::opium::VERSION);
    put(header::VCPU_COUNT, nodes.len() as u32);
    put(header::NODE_COUNT, machine.nodes.len() as u32);
    put(header::LINK_COUNT, machine.links.len() as u32);
    put(header::LINE_BYTES, machine.line_bytes);
    put(header::SKEW_LIMIT_NS, skew_ns as u32);
    for (position, node) in machine.nodes.iter().enumerate() {
        put(header::NODE_IDS + 4 * position, node.id.0);
    }
    for (vcpu, &node) in nodes.iter().enumerate() {
        device
            .u8(header::VCPU_NODES + vcpu)
            .store(node as u8, Relaxed);
    }
    // Last: a reader that sees the magic sees the rest.
    device
        .u64(header::MAGIC)
        .store(hither_core::opium::MAGIC, Release);
}

/// The clock, once the plugin is installed with a model.
pub fn clock() -> Option<&'static Clock> {
    let plugin = PLUGIN.load(Relaxed);
    // SAFETY: never freed once set.
    (!plugin.is_null()).then(|| unsafe { &(*plugin).model.clock })
}

/// Host time in ns at which guest time was zero.
pub fn host_start_ns() -> u64 {
    plugin().host_start_ns
}

/// Guest time in ps as the calling thread sees it.
pub fn guest_time_ps() -> u64 {
    let plugin = plugin();
    match OWN_VCPU.get().map(|vcpu| plugin.own(vcpu)) {
        Some((owned, score)) if !owned.vcpu.halted => plugin
            .model
            .clock
            .read_from(owned.vcpu.time_ps + score.since_ps()),
        _ => plugin.model.clock.read(),
    }
}

/// Is the calling thread a vCPU's?
pub fn on_vcpu_thread() -> bool {
    OWN_VCPU.get().is_some()
}
