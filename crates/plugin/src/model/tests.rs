//! Prices of accesses, by hand.

use super::*;
use hither_core::machine::parse::parse;

#[test]
fn stores_in_order_stream_at_their_latency() {
    let text = include_str!("../../../../machines/ibm-two-node.toml");
    let mut cpu = parse(text).unwrap().cpu;
    let mut prices = Prices::default();
    prices.latency_ps[..2].copy_from_slice(&[200_000, 600_000]);
    prices.stream_ps[..2].copy_from_slice(&[100_000, 300_000]);
    let costs = |cpu: &Cpu| {
        [(0, false), (0, true), (1, true)].map(|(node, store)| stream_ps(cpu, &prices, node, store))
    };
    cpu.store_mlp = None;
    assert_eq!(costs(&cpu), [100_000, 100_000, 300_000]);
    cpu.store_mlp = Some(1.0);
    assert_eq!(costs(&cpu), [100_000, 200_000, 600_000]);
    // More in flight than the stream has: the stream's own pace.
    cpu.store_mlp = Some(4.0);
    assert_eq!(costs(&cpu), [100_000, 100_000, 300_000]);
}

#[test]
fn only_what_memory_itself_costs_is_waited_for_memory() {
    let machine = parse(include_str!("../../../../machines/westmere-m2.toml")).unwrap();
    let device = Device::map(None).unwrap();
    let model = Model::new(machine, device, 10_000, || ());
    let mut vcpus = [0, 1].map(|cpu| Vcpu::new(&model.machine, cpu));
    assert_eq!(vcpus[0].domain, vcpus[1].domain);
    let access = Access {
        vaddr: 0x10_0000,
        paddr: 0x10_0000,
        pc: 0x40_0000,
        executed: &Executed::default,
        value: &|| 0,
        store: false,
        kernel: false,
    };
    let [stall, from_cache] = [0, 1].map(|cpu: usize| {
        vcpus[cpu].prices.latency_ps[0] = 120_000;
        model.access(&mut vcpus[cpu], &Score::default(), &access)
    });
    // 120 ns of eight that are under way; then the last-level cache has it.
    assert_eq!((stall, vcpus[0].waited_ps), (15_000, 15_000));
    assert!(from_cache > 0);
    assert_eq!(vcpus[1].waited_ps, 0);
}

#[test]
fn who_writes_to_what_was_loaded_from_another_node_asks_its_home() {
    let text = include_str!("../../../../machines/ibm-two-node.toml");
    let model = |ownership_ns| {
        let mut machine = parse(text).unwrap();
        machine.coherence.remote_ownership_ns = ownership_ns;
        let device = Device::map(None).unwrap();
        Model::new(machine, device, 10_000, || ())
    };
    // Stalls of a store to a line of a node, loaded before or not, and what was asked of the node.
    let store = |ownership_ns, node: usize, is_loaded: bool| {
        let model = model(ownership_ns);
        let mut vcpu = Vcpu::new(&model.machine, 0);
        vcpu.prices.latency_ps[..2].copy_from_slice(&[467_000, 1_400_000]);
        let address = (node as u64) << 30;
        let access = |store| Access {
            vaddr: address,
            paddr: address,
            pc: 0x40_0000,
            executed: &Executed::default,
            value: &|| 0,
            store,
            kernel: false,
        };
        if is_loaded {
            model.access(&mut vcpu, &Score::default(), &access(false));
        }
        let stall = model.access(&mut vcpu, &Score::default(), &access(true));
        // What is owned is written for nothing.
        let again = model.access(&mut vcpu, &Score::default(), &access(true));
        assert_eq!(again, 0);
        (stall, vcpu.traffic.asked[node])
    };
    let mlp = parse(text).unwrap().cpu.store_mlp.unwrap();
    // 933 ns there and back, and 120 there.
    let asked = ((933.0 + 120.0) * 1000.0 / mlp) as u64;
    assert_eq!(store(Some(120.0), 1, true), (asked, 1));
    assert_eq!(store(Some(120.0), 0, true), (0, 0));
    assert_eq!(store(None, 1, true), (0, 0));
    // A store that brings the line asks once, for all.
    assert_eq!(store(Some(120.0), 1, false).1, 0);
}
