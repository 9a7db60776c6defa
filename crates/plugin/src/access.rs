//! Callbacks of memory accesses: from QEMU's words to the model's.

use crate::model::Access;
use crate::plugin::{Owned, Plugin, plugin};
use crate::vcpu::{Score, Vcpu};
use hither_core::opium::vcpu as block;
use qemu_plugin_sys as sys;
use std::ffi::{c_uint, c_void};

fn charge(vcpu: &mut Vcpu, score: &mut Score, ps: u64) {
    score.pass(ps);
    vcpu.stall_ps += ps;
}

/// An instruction loads, or stores.
pub extern "C" fn on_access<const STORE: bool>(
    vcpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    pc: *mut c_void,
) {
    if !plugin().model.filter.answers::<STORE>(vcpu as usize, vaddr) {
        access(vcpu as usize, info, vaddr, pc as u64, STORE);
    }
}

fn size_bytes(info: sys::qemu_plugin_meminfo_t) -> u64 {
    // SAFETY: `info` comes from the callback that is running.
    1 << unsafe { sys::qemu_plugin_mem_size_shift(info) }
}

/// A repeated string instruction loads or stores.
pub extern "C" fn on_string(
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
        on_access::<true>(vcpu, info, vaddr, pc);
    } else {
        on_access::<false>(vcpu, info, vaddr, pc);
    }
}

/// A store past the caches.
pub extern "C" fn on_store_past(
    vcpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    vaddr: u64,
    pc: *mut c_void,
) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu as usize);
    if let Some(paddr) = translate(plugin, owned, score, info, vaddr, true) {
        let pc = pc as u64;
        let Owned { vcpu, guest } = owned;
        let access = Access {
            vaddr,
            paddr,
            pc,
            executed: &|| guest.executed(pc),
            value: &|| 0,
            store: true,
            kernel: pc >> 63 != 0,
        };
        let stall = plugin.model.write_past(vcpu, score, &access);
        charge(vcpu, score, stall);
    }
}

#[inline(never)]
fn access(vcpu: usize, info: sys::qemu_plugin_meminfo_t, vaddr: u64, pc: u64, store: bool) {
    let plugin = plugin();
    let (owned, score) = plugin.own(vcpu);
    let Some(paddr) = translate(plugin, owned, score, info, vaddr, store) else {
        return;
    };
    let Owned { vcpu, guest } = owned;
    let access = Access {
        vaddr,
        paddr,
        pc,
        executed: &|| guest.executed(pc),
        value: &|| loaded_value(info),
        store,
        kernel: pc >> 63 != 0,
    };
    let stall = plugin.model.access(vcpu, score, &access);
    charge(vcpu, score, stall);
    // An access across two lines touches the second too.
    let line = 1u64 << plugin.model.line_shift;
    let next = (vaddr | (line - 1)) + 1;
    if vaddr + size_bytes(info) > next
        && let Some(paddr) = vcpu.tlb.find(next)
    {
        let second = Access {
            vaddr: next,
            paddr,
            ..access
        };
        let stall = plugin.model.access(vcpu, score, &second);
        charge(vcpu, score, stall);
    }
    // A repeated string instruction is one block: it must not run far ahead within it.
    if score.since_ps() >= plugin.model.clock.quantum_ps * 17 / 16 {
        plugin.model.synchronise(vcpu, score, true);
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
        charge(&mut owned.vcpu, score, plugin.prices.device as u64);
        if store {
            interrupt_command(plugin, owned, score, paddr, loaded_value(info));
        }
        return None;
    }
    owned.vcpu.count(device, block::TLB_MISSES, 1);
    charge(
        &mut owned.vcpu,
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
            for target in (0..plugin.nodes.len()).filter(|&target| target != owned.vcpu.id) {
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
