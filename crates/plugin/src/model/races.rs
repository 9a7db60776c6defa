//! What vCPUs' threads must never do to each other: a line that two believe to own is one whose
//! transfers nobody pays for.

use super::*;
use hither_core::machine::{parse::parse, scale::scale};
use std::sync::Barrier;

/// Lines that are fought for, far enough apart to lie in one set of every cache.
const LINES: u64 = 3;
const APART: u64 = 1 << 21;

/// The machine of these tests, with so many CPUs.
pub(super) fn model(cpus: usize) -> Model {
    let whole = parse(include_str!("../../../../machines/opteron8385.toml")).unwrap();
    let device = Device::map(None).unwrap();
    Model::new(scale(&whole, cpus).unwrap(), device, 10_000, || ())
}

/// vCPUs that store to a line without asking. (A contested line's copies may be stale: it is priced by
/// time, and looked at before the filter gets it.)
fn owners(model: &Model, vaddr: u64) -> Vec<usize> {
    let vcpus = 0..model.machine.cpu_count();
    vcpus
        .filter(|&vcpu| model.filter.answers::<true>(vcpu, vaddr))
        .collect()
}

/// Some stores and loads of each vCPU at once, so often; returns what was found of a line with
/// several owners.
fn fight(cpus: usize, rounds: u64) -> Option<String> {
    let model = model(cpus);
    let barrier = Barrier::new(cpus);
    let wrong = Mutex::new(None);
    std::thread::scope(|scope| {
        for id in 0..cpus {
            let (model, barrier, wrong) = (&model, &barrier, &wrong);
            scope.spawn(move || {
                let mut vcpu = Vcpu::new(&model.machine, id);
                let mut random = id as u64 + 1;
                for round in 0..rounds {
                    barrier.wait();
                    for _ in 0..100 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let vaddr = (random >> 33) % LINES * APART;
                        let store = random >> 40 & 3 != 0;
                        // Now and then long after the others, so that lines are not contested.
                        vcpu.time_ps += if random >> 50 & 63 == 0 {
                            50_000_000
                        } else {
                            50_000
                        };
                        let answered = match store {
                            true => model.filter.answers::<true>(id, vaddr),
                            false => model.filter.answers::<false>(id, vaddr),
                        };
                        if !answered {
                            let access = Access {
                                vaddr,
                                paddr: vaddr,
                                pc: 0x40_0000,
                                executed: &Executed::default,
                                value: &|| 0,
                                store,
                                kernel: false,
                            };
                            model.access(&mut vcpu, &Score::default(), &access);
                        }
                    }
                    barrier.wait();
                    for line in (0..LINES).filter(|_| id == 0) {
                        let owners = owners(model, line * APART);
                        if owners.len() > 1 {
                            let mut wrong = wrong.lock().unwrap();
                            wrong.get_or_insert(format!(
                                "round {round}: line {line} is owned by {owners:?}"
                            ));
                        }
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap()
}

#[test]
fn a_line_has_one_owner_at_most() {
    for cpus in [4, 8] {
        assert_eq!(fight(cpus, 3000), None, "{cpus} CPUs");
    }
}
