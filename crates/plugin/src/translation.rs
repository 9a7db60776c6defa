//! Translation: what each block and instruction of the guest will call or count, and the events
//! that instructions stand for.

use crate::access::{on_access, on_store_past, on_string};
use crate::decode::{Decoded, Kind, decode};
use crate::plugin::{Owned, Plugin, plugin};
use crate::vcpu::Score;
use hither_core::machine::Machine;
use hither_core::opium::{MARKER_DOORBELL, MARKER_LOOK, MARKER_STARTED, vcpu as block};
use qemu_plugin_sys as sys;
use std::ffi::{c_uint, c_void};
use std::mem::offset_of;

/// Prices known at translation, in ps.
pub struct InstructionPrices {
    /// Any instruction.
    pub plain: f64,
    /// A division, besides.
    pub divide: f64,
    /// `pause`, besides.
    pub pause: f64,
    /// `syscall`, besides.
    pub syscall: f64,
    /// `invlpg`, besides.
    pub flush_page: f64,
    /// A page-table switch, besides.
    pub switch: f64,
    /// A port access, or one to a device.
    pub device: f64,
    /// Per byte that a repeated string instruction loads or stores.
    pub string_byte: f64,
}

impl InstructionPrices {
    /// Of this machine.
    pub fn new(machine: &Machine) -> Self {
        let nanosecond_cycles = 1000.0 / machine.cpu.ghz;
        Self {
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
        }
    }
}

extern "C" fn on_quantum(vcpu: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    if owned.vcpu.books(score) {
        book(plugin, owned, score);
    }
    plugin.model.synchronise(&mut owned.vcpu, score, true);
    if let Some(engine) = plugin.engine.as_ref().filter(|engine| engine.is_busy()) {
        let now_ps = owned.vcpu.time_ps + score.since_ps();
        engine.turn(&plugin.model, owned.guest.table(), now_ps);
    }
}

/// The copy engine's doorbell, or a look at its records.
fn on_engine(plugin: &Plugin, owned: &mut Owned, score: &mut Score, rings: bool) {
    let (Some(engine), Some(table), Some(ring)) = (
        &plugin.engine,
        owned.guest.table(),
        owned.guest.read_general(RAX),
    ) else {
        return;
    };
    let now_ps = owned.vcpu.time_ps + score.since_ps();
    if rings {
        owned
            .vcpu
            .count(&plugin.model.device, block::DEVICE_ACCESSES, 1);
        let spent_ps = engine.doorbell(&plugin.model, table, ring, now_ps);
        score.pass(plugin.prices.device as u64 + spent_ps);
    } else {
        engine.look(&plugin.model, table, now_ps);
    }
}

/// Number of `rax` in instruction encodings.
const RAX: u32 = 0;

/// Books what ran to the address space that is in force.
fn book(plugin: &Plugin, owned: &mut Owned, score: &Score) {
    let table = owned.guest.table();
    (owned.vcpu).book(&plugin.model.device, &plugin.model.spaces, score, table);
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
            // Before the instruction is executed.
            book(plugin, owned, score);
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
        Event::Marker(word) if word & 0xf == MARKER_STARTED => plugin.model_accesses(),
        Event::Marker(word) if is_for_engine(word) => {
            on_engine(plugin, owned, score, word & 0xf == MARKER_DOORBELL);
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

fn is_for_engine(word: u32) -> bool {
    matches!(word & 0xf, MARKER_DOORBELL | MARKER_LOOK)
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

/// A block is translated, with the model.
pub extern "C" fn on_translate(_: sys::qemu_plugin_id_t, tb: *mut sys::qemu_plugin_tb) {
    let plugin = plugin();
    let with_accesses = plugin.models_accesses();
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
        watch_event(insn, decoded.kind);
        if with_accesses {
            watch_accesses(insn, decoded.kind, pc);
        }
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

fn watch_event(insn: *mut sys::qemu_plugin_insn, kind: Kind) {
    use sys::qemu_plugin_cb_flags::{
        QEMU_PLUGIN_CB_NO_REGS as NO_REGS, QEMU_PLUGIN_CB_R_REGS as READ_REGS,
    };
    let (event, flags) = match kind {
        Kind::InterruptReturn => (Event::InterruptReturn, NO_REGS),
        Kind::ReadsFaultAddress => (Event::ReadsFaultAddress, NO_REGS),
        Kind::PageTableSwitch => (Event::PageTableSwitch, NO_REGS),
        Kind::FlushAll => (Event::FlushAll, NO_REGS),
        Kind::FlushPage(register) => (Event::FlushPage(register), READ_REGS),
        Kind::Marker(word) if is_for_engine(word) => (Event::Marker(word), READ_REGS),
        Kind::Marker(word) => (Event::Marker(word), NO_REGS),
        _ => return,
    };
    let data = event.to_word() as *mut c_void;
    // SAFETY: `insn` is valid during translation; the callback lives as long as the process.
    unsafe { sys::qemu_plugin_register_vcpu_insn_exec_cb(insn, Some(on_event), flags, data) };
}

/// A callback of accesses.
type Accessed = unsafe extern "C" fn(c_uint, sys::qemu_plugin_meminfo_t, u64, *mut c_void);

fn watch_accesses(insn: *mut sys::qemu_plugin_insn, kind: Kind, pc: u64) {
    use sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS as NO_REGS;
    use sys::qemu_plugin_mem_rw::{
        QEMU_PLUGIN_MEM_R as R, QEMU_PLUGIN_MEM_RW as RW, QEMU_PLUGIN_MEM_W as W,
    };
    let data = pc as *mut c_void;
    let on = |rw, callback: Accessed| {
        // SAFETY: `insn` is valid during translation; the callbacks live as long as the process.
        unsafe { sys::qemu_plugin_register_vcpu_mem_cb(insn, Some(callback), NO_REGS, rw, data) };
    };
    match kind {
        Kind::RepeatString => on(RW, on_string),
        Kind::NonTemporalStore => {
            on(R, on_access::<false>);
            on(W, on_store_past);
        }
        // Its operand is an address, not an access.
        Kind::FlushPage(_) => {}
        _ => {
            on(R, on_access::<false>);
            on(W, on_access::<true>);
        }
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

/// A block is translated, where addresses are only resolved.
pub extern "C" fn on_translate_resolve(_: sys::qemu_plugin_id_t, tb: *mut sys::qemu_plugin_tb) {
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
