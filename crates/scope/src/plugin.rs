//! The edge to QEMU: callbacks and translation-time instrumentation.
//!
//! The same shared object is given to QEMU twice: by `LD_PRELOAD` (see `preload`) and by
//! `-plugin`. The dynamic linker loads it once, so both halves share one state.

use crate::clock::{Clock, host_ns};
use crate::decode::{Decoded, Kind, decode};
use crate::device::Device;
use crate::guest::Guest;
use crate::model::{Access, Model};
use crate::options::{Mode, Options};
use crate::vcpu::{Score, Vcpu};
use crate::window::Windows;
use hither_core::opium::{MAX_LINKS, MAX_NODES, MAX_VCPUS, header, vcpu as block};
use qemu_plugin_sys as sys;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed, Ordering::Release};

/// Plugin API that this is built for; QEMU checks it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 4;

/// Everything, once installed. Written once, before any vCPU runs.
static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The vCPU whose thread this is.
    static OWN_VCPU: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Plugin {
    model: Model,
    windows: Windows,
    scoreboard: *mut sys::qemu_plugin_scoreboard,
    scores: [AtomicPtr<Score>; MAX_VCPUS],
    /// Each is touched by its vCPU's thread only.
    vcpus: Vec<UnsafeCell<Owned>>,
    nodes: Vec<usize>,
    host_start_ns: u64,
    prices: InstructionPrices,
}

struct Owned {
    vcpu: Vcpu,
    guest: Guest,
}

/// Prices known at translation, in ps.
struct InstructionPrices {
    plain: f64,
    divide: f64,
    pause: f64,
    syscall: f64,
    flush_page: f64,
    switch: f64,
    device: f64,
    /// Per byte that a repeated string instruction loads or stores.
    string_byte: f64,
}

fn plugin() -> &'static Plugin {
    // SAFETY: set at installation, before any callback is registered, and never freed.
    unsafe { &*PLUGIN.load(Relaxed) }
}

impl Plugin {
    /// State of the calling vCPU.
    #[expect(
        clippy::mut_from_ref,
        reason = "each vCPU's state belongs to its thread"
    )]
    fn own(&self, vcpu: usize) -> (&mut Owned, &mut Score) {
        // SAFETY: callbacks of a vCPU run on its thread, one at a time, and none calls another.
        unsafe {
            (
                &mut *self.vcpus[vcpu].get(),
                &mut *self.scores[vcpu].load(Relaxed),
            )
        }
    }

    fn entry(&self, offset: usize) -> sys::qemu_plugin_u64 {
        sys::qemu_plugin_u64 {
            score: self.scoreboard,
            offset,
        }
    }
}

fn charge(owned: &mut Owned, score: &mut Score, ps: u64) {
    score.pass(ps);
    owned.vcpu.stall_ps += ps;
}

extern "C" fn on_load(vcpu: c_uint, info: sys::qemu_plugin_meminfo_t, vaddr: u64, pc: *mut c_void) {
    if !plugin().model.filter.answers::<false>(vcpu as usize, vaddr) {
        access(vcpu as usize, info, vaddr, pc as u64, false);
    }
}

extern "C" fn on_store(
    vcpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    pc: *mut c_void,
) {
    if !plugin().model.filter.answers::<true>(vcpu as usize, vaddr) {
        access(vcpu as usize, info, vaddr, pc as u64, true);
    }
}

fn size_bytes(info: sys::qemu_plugin_meminfo_t) -> u64 {
    // SAFETY: `info` comes from the callback that is running.
    1 << unsafe { sys::qemu_plugin_mem_size_shift(info) }
}

extern "C" fn on_string(
    vcpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    pc: *mut c_void,
) {
    let plugin = plugin();
    let (_, score) = plugin.own(vcpu as usize);
    score.pass((size_bytes(info) as f64 * plugin.prices.string_byte) as u64);
    // SAFETY: as in `size_bytes`.
    if unsafe { sys::qemu_plugin_mem_is_store(info) } {
        on_store(vcpu, info, vaddr, pc);
    } else {
        on_load(vcpu, info, vaddr, pc);
    }
}

extern "C" fn on_store_past(
    vcpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    pc: *mut c_void,
) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    if let Some(paddr) = translate(plugin, owned, score, info, vaddr, true) {
        let pc = pc as u64;
        let access = Access {
            vaddr,
            paddr,
            pc,
            value: &|| 0,
            store: true,
            kernel: pc >> 63 != 0,
        };
        let stall = plugin.model.write_past(&mut owned.vcpu, score, &access);
        charge(owned, score, stall);
    }
}

extern "C" fn on_resolve(_: c_uint, info: sys::qemu_plugin_meminfo_t, vaddr: u64, _: *mut c_void) {
    // SAFETY: `info` comes from the callback that is running.
    unsafe {
        let address = sys::qemu_plugin_get_hwaddr(info, vaddr);
        if !address.is_null() {
            std::hint::black_box(sys::qemu_plugin_hwaddr_phys_addr(address));
        }
    }
}

#[inline(never)]
fn access(vcpu: usize, info: sys::qemu_plugin_meminfo_t, vaddr: u64, pc: u64, store: bool) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu);
    let Some(paddr) = translate(plugin, owned, score, info, vaddr, store) else {
        return;
    };
    let access = Access {
        vaddr,
        paddr,
        pc,
        value: &|| loaded_value(info),
        store,
        kernel: pc >> 63 != 0,
    };
    let stall = plugin.model.access(&mut owned.vcpu, score, &access);
    charge(owned, score, stall);
    // An access across two lines touches the second too.
    let line = 1u64 << plugin.model.line_shift;
    let next = (vaddr | (line - 1)) + 1;
    if vaddr + size_bytes(info) > next
        && let Some(paddr) = owned.vcpu.tlb.find(next)
    {
        let second = Access {
            vaddr: next,
            paddr,
            ..access
        };
        let stall = plugin.model.access(&mut owned.vcpu, score, &second);
        charge(owned, score, stall);
    }
    // A repeated string instruction is one block: it must not run far ahead within it.
    if score.since_ps() >= plugin.model.clock.quantum_ps * 17 / 16 {
        plugin.model.synchronise(&mut owned.vcpu, score, true);
    }
}

fn loaded_value(info: sys::qemu_plugin_meminfo_t) -> u64 {
    use sys::qemu_plugin_mem_value_type as Type;
    // SAFETY: `info` comes from the callback that is running; the field read is the one that the
    // type names.
    unsafe {
        let value = sys::qemu_plugin_mem_get_value(info);
        match value.type_ {
            Type::QEMU_PLUGIN_MEM_VALUE_U32 => u64::from(value.data.u32_),
            Type::QEMU_PLUGIN_MEM_VALUE_U64 => value.data.u64_,
            _ => 0, // bytes and vectors are no indices or pointers
        }
    }
}

/// The physical address; `None` for device accesses, which are priced here.
fn translate(
    plugin: &Plugin,
    owned: &mut Owned,
    score: &mut Score,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    store: bool,
) -> Option<u64> {
    if let Some(paddr) = owned.vcpu.tlb.find(vaddr) {
        return Some(paddr);
    }
    let device = &plugin.model.device;
    // SAFETY: `info` comes from the callback that is running.
    let (paddr, is_io) = unsafe {
        let address = sys::qemu_plugin_get_hwaddr(info, vaddr);
        if address.is_null() {
            return None;
        }
        (
            sys::qemu_plugin_hwaddr_phys_addr(address),
            sys::qemu_plugin_hwaddr_is_io(address),
        )
    };
    if is_io {
        owned.vcpu.count(device, block::DEVICE_ACCESSES, 1);
        charge(owned, score, plugin.prices.device as u64);
        if store {
            interrupt_command(plugin, owned, score, paddr, loaded_value(info));
        }
        return None;
    }
    owned.vcpu.count(device, block::TLB_MISSES, 1);
    charge(
        owned,
        score,
        (plugin.model.machine.tlb.miss_ns * 1000.0) as u64,
    );
    let huge = owned.guest.is_huge(vaddr);
    owned.vcpu.tlb.insert(
        vaddr,
        crate::tlb::Translation {
            page: paddr & !0xfff,
            huge,
        },
    );
    if huge && paddr & 0xfff != vaddr & 0xfff {
        return None; // cannot be: guards the arithmetic of huge entries
    }
    Some(paddr)
}

const APIC_ICR_LOW: u64 = 0xfee0_0300;
const APIC_ICR_HIGH: u64 = 0xfee0_0310;

/// Stores to the interrupt controller's command register (Intel SDM vol. 3, 12.6.1): a fixed
/// interrupt to halted vCPUs starts them at the sender's time plus the machine's latency.
fn interrupt_command(plugin: &Plugin, owned: &mut Owned, score: &Score, paddr: u64, value: u64) {
    match paddr {
        APIC_ICR_HIGH => owned.vcpu.icr_high = value as u32,
        APIC_ICR_LOW => {
            owned.vcpu.count(&plugin.model.device, block::IPIS, 1);
            let fixed = value >> 8 & 7 == 0;
            let (logical, shorthand) = (value >> 11 & 1 == 1, value >> 18 & 3);
            let field = u64::from(owned.vcpu.icr_high >> 24);
            let at_ps = owned.vcpu.time_ps
                + score.since_ps()
                + (plugin.model.machine.costs.ipi_ns * 1000.0) as u64;
            for target in (0..plugin.vcpus.len()).filter(|&target| target != owned.vcpu.id) {
                let meant = match (shorthand, logical) {
                    (0, true) => target < 8 && field >> target & 1 == 1,
                    (0, false) => field == target as u64 || field == 0xff,
                    (1, _) => false,
                    _ => true,
                };
                if fixed && meant {
                    plugin.model.clock.promise(target, at_ps);
                }
            }
        }
        _ => {}
    }
}

extern "C" fn on_quantum(vcpu: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    plugin.model.synchronise(&mut owned.vcpu, score, true);
}

extern "C" fn on_event(vcpu: c_uint, what: *mut c_void) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    let device = &plugin.model.device;
    let costs = &plugin.model.machine.costs;
    match Event::from_word(what as u64) {
        Event::InterruptReturn => {
            let fault = std::mem::take(&mut owned.vcpu.fault_seen);
            let (field, ns) = if fault {
                (block::EXCEPTIONS, costs.exception_ns)
            } else {
                (block::INTERRUPTS, costs.interrupt_ns)
            };
            owned.vcpu.count(device, field, 1);
            score.pass((ns * 1000.0) as u64);
        }
        Event::ReadsFaultAddress => owned.vcpu.fault_seen = true,
        Event::PageTableSwitch => {
            owned.vcpu.count(device, block::PAGE_TABLE_SWITCHES, 1);
            owned.vcpu.tlb.flush_user();
            owned.guest.forget_all();
            plugin.model.filter.clear(vcpu as usize);
        }
        Event::FlushAll => {
            owned.vcpu.tlb.flush_all();
            owned.guest.forget_all();
            plugin.model.filter.clear(vcpu as usize);
        }
        Event::FlushPage(base_register) => {
            owned.vcpu.count(device, block::INVLPGS, 1);
            match owned.guest.read_general(base_register) {
                Some(vaddr) => {
                    owned.vcpu.tlb.flush_page(vaddr);
                    owned.guest.forget(vaddr);
                }
                None => {
                    owned.vcpu.tlb.flush_all();
                    owned.guest.forget_all();
                }
            }
            plugin.model.filter.clear(vcpu as usize);
        }
        Event::Marker(word) => {
            owned.vcpu.flush(device, score);
            plugin
                .windows
                .mark(device, &plugin.nodes, word, owned.vcpu.time_ps / 1000);
            owned.vcpu.begin(score, plugin.model.clock.quantum_ps);
        }
    }
}

/// Run-time events, packed into the callback's user data: kind in the low 8 bits.
enum Event {
    InterruptReturn,
    ReadsFaultAddress,
    PageTableSwitch,
    FlushAll,
    /// Number of the base register, 16 and above when the operand is anything else.
    FlushPage(u32),
    Marker(u32),
}

impl Event {
    fn to_word(&self) -> u64 {
        match *self {
            Self::InterruptReturn => 0,
            Self::ReadsFaultAddress => 1,
            Self::PageTableSwitch => 2,
            Self::FlushAll => 3,
            Self::FlushPage(register) => 4 | u64::from(register) << 8,
            Self::Marker(word) => 5 | u64::from(word) << 8,
        }
    }

    fn from_word(word: u64) -> Self {
        match word & 0xff {
            0 => Self::InterruptReturn,
            1 => Self::ReadsFaultAddress,
            2 => Self::PageTableSwitch,
            3 => Self::FlushAll,
            4 => Self::FlushPage((word >> 8) as u32),
            _ => Self::Marker((word >> 8) as u32),
        }
    }
}

extern "C" fn on_translate(_: sys::qemu_plugin_id_t, tb: *mut sys::qemu_plugin_tb) {
    let plugin = plugin();
    // SAFETY: `tb` is valid during this callback.
    let (count, start) = unsafe {
        (
            sys::qemu_plugin_tb_n_insns(tb),
            sys::qemu_plugin_tb_vaddr(tb),
        )
    };
    let mut cost_ps = 0.0;
    let mut flops = 0;
    let (mut syscalls, mut ports) = (0, 0);
    for index in 0..count {
        // SAFETY: `index` is below the count.
        let insn = unsafe { sys::qemu_plugin_tb_get_insn(tb, index) };
        let (decoded, pc) = inspect(insn);
        cost_ps += price(&plugin.prices, decoded.kind);
        flops += u64::from(decoded.flops);
        syscalls += u64::from(decoded.kind == Kind::Syscall);
        ports += u64::from(decoded.kind == Kind::Port);
        instrument(insn, decoded.kind, pc);
    }
    let (user, kernel) = if start >> 63 == 0 {
        (count as u64, 0)
    } else {
        (0, count as u64)
    };
    let user_flops = if kernel == 0 { flops } else { 0 };
    let spent = (cost_ps as u64) << Score::TIME_SHIFT | user;
    let adds = [
        (offset_of!(Score, spent), spent),
        (offset_of!(Score, kernel), kernel),
        (offset_of!(Score, flops), user_flops),
        (offset_of!(Score, syscalls), syscalls),
        (offset_of!(Score, ports), ports),
    ];
    for (offset, by) in adds.into_iter().filter(|&(_, by)| by > 0) {
        // SAFETY: the entry lies in our scoreboard.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
                tb,
                sys::qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
                plugin.entry(offset),
                by,
            );
        }
    }
    // SAFETY: as above.
    unsafe {
        sys::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            tb,
            Some(on_quantum),
            sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
            sys::qemu_plugin_cond::QEMU_PLUGIN_COND_GE,
            plugin.entry(offset_of!(Score, spent)),
            plugin.model.clock.quantum_ps << Score::TIME_SHIFT,
            std::ptr::null_mut(),
        );
    }
}

fn inspect(insn: *mut sys::qemu_plugin_insn) -> (Decoded, u64) {
    let mut bytes = [0u8; 16];
    // SAFETY: `insn` is valid during translation; at most 16 bytes are written.
    let (length, pc) = unsafe {
        (
            sys::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len()),
            sys::qemu_plugin_insn_vaddr(insn),
        )
    };
    (decode(&bytes[..length.min(16)]), pc)
}

fn price(prices: &InstructionPrices, kind: Kind) -> f64 {
    prices.plain
        + match kind {
            Kind::Divide => prices.divide,
            Kind::Pause => prices.pause,
            Kind::Syscall => prices.syscall,
            Kind::FlushPage(_) => prices.flush_page,
            Kind::PageTableSwitch => prices.switch,
            Kind::Port => prices.device,
            _ => 0.0,
        }
}

fn instrument(insn: *mut sys::qemu_plugin_insn, kind: Kind, pc: u64) {
    use sys::qemu_plugin_cb_flags::{
        QEMU_PLUGIN_CB_NO_REGS as NO_REGS, QEMU_PLUGIN_CB_R_REGS as READ_REGS,
    };
    use sys::qemu_plugin_mem_rw::{
        QEMU_PLUGIN_MEM_R as R, QEMU_PLUGIN_MEM_RW as RW, QEMU_PLUGIN_MEM_W as W,
    };
    let event = match kind {
        Kind::InterruptReturn => Some(Event::InterruptReturn),
        Kind::ReadsFaultAddress => Some(Event::ReadsFaultAddress),
        Kind::PageTableSwitch => Some(Event::PageTableSwitch),
        Kind::FlushAll => Some(Event::FlushAll),
        Kind::FlushPage(register) => Some(Event::FlushPage(register)),
        Kind::Marker(word) => Some(Event::Marker(word)),
        _ => None,
    };
    let data = pc as *mut c_void;
    // SAFETY: `insn` is valid during translation; the callbacks live as long as the process.
    unsafe {
        if let Some(event) = event {
            let flags = if matches!(event, Event::FlushPage(_)) {
                READ_REGS
            } else {
                NO_REGS
            };
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(on_event),
                flags,
                event.to_word() as *mut c_void,
            );
        }
        match kind {
            Kind::RepeatString => {
                sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(on_string), NO_REGS, RW, data)
            }
            Kind::NonTemporalStore => {
                sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(on_load), NO_REGS, R, data);
                sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(on_store_past), NO_REGS, W, data);
            }
            // Its operand is an address, not an access.
            Kind::FlushPage(_) => {}
            _ => {
                sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(on_load), NO_REGS, R, data);
                sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(on_store), NO_REGS, W, data);
            }
        }
    }
}

extern "C" fn on_translate_resolve(_: sys::qemu_plugin_id_t, tb: *mut sys::qemu_plugin_tb) {
    // SAFETY: `tb` is valid during this callback, the index below the count.
    unsafe {
        for index in 0..sys::qemu_plugin_tb_n_insns(tb) {
            sys::qemu_plugin_register_vcpu_mem_cb(
                sys::qemu_plugin_tb_get_insn(tb, index),
                Some(on_resolve),
                sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
                sys::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW,
                std::ptr::null_mut(),
            );
        }
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
    owned.vcpu.time_ps = model.clock.start(vcpu as usize, 0);
    owned.vcpu.begun_ps = owned.vcpu.time_ps;
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
            eprintln!("hither-scope: {reason}");
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
    describe(&device, &machine, vcpus, options.skew_ns);
    let nanosecond_cycles = 1000.0 / machine.cpu.ghz;
    let prices = InstructionPrices {
        plain: machine.cpu.cpi * nanosecond_cycles,
        divide: machine.cpu.divide_cycles * nanosecond_cycles,
        pause: machine.cpu.pause_cycles * nanosecond_cycles,
        syscall: machine.costs.syscall_ns * 1000.0,
        flush_page: machine.costs.invlpg_ns * 1000.0,
        switch: machine.costs.page_table_switch_ns * 1000.0,
        device: machine.costs.device_access_ns * 1000.0,
        // A cycle per 32 bytes loaded and as much per 32 stored: the fast-string paths of
        // present cores (Intel optimisation manual, 3.7.6).
        string_byte: nanosecond_cycles / 64.0,
    };
    let owned = (0..vcpus)
        .map(|vcpu| {
            UnsafeCell::new(Owned {
                vcpu: Vcpu::new(&machine, vcpu),
                guest: Guest::default(),
            })
        })
        .collect();
    let nodes = (0..vcpus)
        .map(|vcpu| {
            machine
                .node_of_cpu(hither_core::ids::CpuId(vcpu as u32))
                .unwrap_or(0)
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
    };
    PLUGIN.store(Box::into_raw(Box::new(plugin)), Release);
    // SAFETY: a valid id and callbacks that live as long as the process.
    unsafe {
        sys::qemu_plugin_register_vcpu_init_cb(id, Some(on_vcpu_init));
        sys::qemu_plugin_register_vcpu_idle_cb(id, Some(on_idle));
        sys::qemu_plugin_register_vcpu_resume_cb(id, Some(on_resume));
        sys::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translate));
    }
    Ok(())
}

fn describe(device: &Device, machine: &hither_core::machine::Machine, vcpus: usize, skew_ns: u64) {
    let put = |offset: usize, value: u32| device.u32(offset).store(value, Relaxed);
    put(header::VERSION, hither_core::opium::VERSION);
    put(header::VCPU_COUNT, vcpus as u32);
    put(header::NODE_COUNT, machine.nodes.len() as u32);
    put(header::LINK_COUNT, machine.links.len() as u32);
    put(header::LINE_BYTES, machine.line_bytes);
    put(header::SKEW_LIMIT_NS, skew_ns as u32);
    for (position, node) in machine.nodes.iter().enumerate() {
        put(header::NODE_IDS + 4 * position, node.id.0);
    }
    for vcpu in 0..vcpus {
        let node = machine
            .node_of_cpu(hither_core::ids::CpuId(vcpu as u32))
            .unwrap_or(0);
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
