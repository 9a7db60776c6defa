//! References to last-level caches: who may fill which ways, what is counted and sampled.

use super::*;
use crate::cache::all_ways;
use hither_core::opium::{control, ring, space};

fn model() -> Model {
    races::model(8)
}

/// Two vCPUs of one domain.
fn two(model: &Model) -> [Vcpu; 2] {
    let domain = &model.machine.domains[0];
    let mut members = domain.cpus.iter().map(|cpu| cpu.0 as usize);
    std::array::from_fn(|_| {
        let mut vcpu = Vcpu::new(&model.machine, members.next().unwrap());
        vcpu.control(&model.device, &model.regions, model.machine.line_bytes);
        vcpu.prices.latency_ps[..8].fill(100_000);
        vcpu
    })
}

fn touch(model: &Model, vcpu: &mut Vcpu, line: u64, kernel: bool) {
    let address = line << model.line_shift;
    let access = Access {
        vaddr: address,
        paddr: address,
        pc: 0x40_0000,
        executed: &Executed::default,
        value: &|| 0,
        store: false,
        kernel,
    };
    model.access(vcpu, &Score::default(), &access);
}

fn mask(model: &Model, vcpu: &mut Vcpu, mask: u32) {
    let offset = control::WAY_MASKS + 4 * vcpu.id;
    model.device.u32(offset).store(mask, Relaxed);
    vcpu.control(&model.device, &model.regions, model.machine.line_bytes);
}

/// Share of the first vCPU's lines that are still in the cache after the other has read four times what the
/// cache holds; each line lies in a set of its own.
fn kept(masks: [u32; 2]) -> f64 {
    let model = model();
    let [mut one, mut other] = two(&model);
    mask(&model, &mut one, masks[0]);
    mask(&model, &mut other, masks[1]);
    let cache = &model.machine.domains[0].cache;
    let all = (cache.size_kb << 10) / u64::from(model.machine.line_bytes);
    let own = all / u64::from(cache.ways) / 2;
    (0..own).for_each(|line| touch(&model, &mut one, line, false));
    (0..4 * all).for_each(|line| touch(&model, &mut other, 8 * all + line, false));
    let found = (0..own).filter(|&line| model.llcs[0].probe(line).is_some());
    found.count() as f64 / own as f64
}

#[test]
fn only_masks_keep_lines_from_others() {
    let all = all_ways(model().machine.domains[0].cache.ways);
    let half = all >> (all.count_ones() / 2);
    assert_eq!(kept([half, all & !half]), 1.0);
    assert_eq!(kept([half, half]), 0.0);
    for whole in [0, all, u32::MAX, !all] {
        assert_eq!(kept([half, whole]), 0.0, "{whole:#x} stands for all ways");
    }
    // A foreign way's line is no miss.
    let model = model();
    let [mut one, mut other] = two(&model);
    mask(&model, &mut one, half);
    mask(&model, &mut other, all & !half);
    touch(&model, &mut one, 7, false);
    touch(&model, &mut other, 7, false);
    let hits = block::BASE + block::STRIDE * other.id + block::LLC_HITS;
    assert_eq!(model.device.get(hits), 1);
}

#[test]
fn references_of_user_mode_are_counted_and_sampled() {
    let model = model();
    let [mut one, mut other] = two(&model);
    let head = |vcpu: &Vcpu| {
        let field = block::BASE + block::STRIDE * vcpu.id + block::RING_HEAD;
        model.device.get(field)
    };
    let all = 64;
    let walk = |vcpu: &mut Vcpu, kernel| {
        // Lines far apart, in an order that is no stream.
        (0..all).for_each(|turn| touch(&model, vcpu, (turn * 37 % all) * 1000, kernel));
    };
    walk(&mut one, false);
    assert_eq!((head(&one), head(&other)), (0, 0), "off until asked for");
    model
        .device
        .u32(control::REFERENCE_PERIOD)
        .store(1, Relaxed);
    other.control(&model.device, &model.regions, model.machine.line_bytes);
    walk(&mut other, true);
    assert_eq!(head(&other), 0, "the kernel's are left out");
    // What the kernel read is in the private cache, new lines are in memory.
    walk(&mut other, false);
    let before = head(&other);
    (0..100).for_each(|turn| touch(&model, &mut other, 999 + (turn * 37 % 100) * 1000, false));
    let taken = head(&other) - before;
    // A period of 1 draws 0 to 2, of which the least is 1.
    assert!((50..=100).contains(&taken), "{taken}");
    let sample = |number: u64| {
        let at = ring::BASE + ring::STRIDE * other.id + number as usize * ring::SAMPLE_BYTES;
        let latency = model.device.u32(at + ring::LATENCY_NS).load(Relaxed);
        (latency, model.device.u8(at + ring::FLAGS).load(Relaxed))
    };
    assert_eq!(sample(before), (100, ring::REFERENCE));
    // The last-level cache answers who has not the line itself.
    one.control(&model.device, &model.regions, model.machine.line_bytes);
    let own = head(&one);
    (0..100).for_each(|turn| touch(&model, &mut one, 999 + (turn * 37 % 100) * 1000, false));
    assert!(head(&one) > own);
    let at = ring::BASE + ring::STRIDE * one.id;
    let latency = model.device.u32(at + ring::LATENCY_NS).load(Relaxed);
    let hit = model.machine.domains[0].cache.latency_ns as u32;
    assert_eq!(latency, hit);
    // Booked to the address space: all references of user mode, sampled or not.
    one.book(
        &model.device,
        &model.spaces,
        &Score::default(),
        Some(0x1000),
    );
    let booked = model.device.get(space::BASE + space::PRIVATE_MISSES);
    let missed = block::BASE + block::STRIDE * one.id + block::PRIVATE_MISSES;
    assert_eq!(booked, model.device.get(missed));
    assert_eq!(booked, all + 100);
}
