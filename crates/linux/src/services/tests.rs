//! A machine of a few files.

use super::*;
use crate::root::captured::Captured;
use std::fs;

struct Machine(Captured);

impl std::ops::Deref for Machine {
    type Target = Captured;

    fn deref(&self) -> &Captured {
        &self.0
    }
}

impl Machine {
    fn new() -> Self {
        let machine = Self(Captured::new());
        let pci = |at: u32| format!("sys/bus/pci/devices/0000:00:0{at}.0");
        for (path, text) in [
            (format!("{}/class", pci(1)), "0x078000\n"),
            (format!("{}/msi_irqs/24", pci(1)), "msix\n"),
            (format!("{}/class", pci(3)), "0x010000\n"),
            (format!("{}/msi_irqs/26", pci(3)), "msix\n"),
            (format!("{}/msi_irqs/27", pci(3)), "msix\n"),
            (format!("{}/class", pci(4)), "0x020000\n"),
            (format!("{}/msi_irqs/29", pci(4)), "msix\n"),
            (format!("{}/virtio2/net/eth0/mtu", pci(4)), "1500\n"),
            // Another network namespace's card.
            (format!("{}/class", pci(5)), "0x020000\n"),
            (format!("{}/msi_irqs/32", pci(5)), "msix\n"),
            (format!("{}/virtio3/device", pci(5)), "1\n"),
            ("proc/irq/24/smp_affinity_list".into(), "0-7\n"),
            ("proc/irq/24/virtio0-config/x".into(), ""),
            ("proc/irq/26/smp_affinity_list".into(), "0-7\n"),
            ("proc/irq/27/smp_affinity_list".into(), "0-7\n"),
            ("proc/irq/27/virtio1-virtqueues/x".into(), ""),
            ("proc/irq/29/smp_affinity_list".into(), "0-7\n"),
            ("proc/irq/29/virtio2-input.0/x".into(), ""),
            ("proc/irq/32/smp_affinity_list".into(), "0-7\n"),
            ("proc/irq/32/virtio3-input.0/x".into(), ""),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus".into(), "00\n"),
            ("sys/class/net/eth0/queues/tx-0/xps_cpus".into(), "ff\n"),
            ("sys/block/vda/queue/rq_affinity".into(), "1\n"),
            ("sys/devices/virtual/workqueue/cpumask".into(), "ff\n"),
            (
                "sys/devices/virtual/workqueue/writeback/cpumask".into(),
                "ff\n",
            ),
            ("sys/devices/virtual/workqueue/ttyS/cpumask".into(), "ff\n"),
        ] {
            machine.put(&path, text);
        }
        machine.thread(166, 166, "jbd2/vda-8", 0x24_0040);
        machine.thread(14, 14, "ksoftirqd/0", 0x420_8040);
        // Tied, whatever it is called.
        machine.thread(15, 15, "jbd2/tied", 0x420_8040);
        machine.thread(200, 200, "server", 0x40_0000);
        machine.thread(200, 203, "iou-sqp-200", 0x40_0010);
        // A program's thread that only has the name.
        machine.thread(200, 204, "iou-sqp-200", 0x40_0000);
        machine
    }

    fn thread(&self, process: i32, thread: i32, name: &str, flags: u64) {
        let stat = format!(
            "{thread} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 8342 0 0 0 0 0 0 0 0 0\n"
        );
        self.put(&format!("proc/{thread}/stat"), &stat);
        self.put(
            &format!("proc/{process}/task/{thread}/comm"),
            &format!("{name}\n"),
        );
        self.put(
            &format!("proc/{thread}/status"),
            "Cpus_allowed_list:\t0-7\n",
        );
    }

    fn names(&self, classes: &[Class]) -> Vec<String> {
        let found = find(&self.root, classes).unwrap();
        found
            .iter()
            .map(|work| format!("{} {}", work.kind.name(), work.name))
            .collect()
    }

    /// Text of all settings but threads', whose place no file holds.
    fn state(&self) -> Vec<String> {
        let found = find(&self.root, &Class::ALL).unwrap();
        let read = |work: &ServiceWork| self.root.text_if_any(&work.setting.path).ok().flatten();
        found
            .iter()
            .filter(|work| work.kind != Kind::Thread)
            .map(|work| read(work).unwrap())
            .collect()
    }
}

#[test]
fn each_class_has_its_work_and_what_is_tied_or_unknown_is_left_alone() {
    let machine = Machine::new();
    assert_eq!(
        machine.names(&[Class::File]),
        [
            "interrupt 27 virtio1-virtqueues",
            "completion vda",
            "workqueue writeback",
            "thread 166 jbd2/vda-8",
        ]
    );
    assert_eq!(
        machine.names(&[Class::Network]),
        [
            "interrupt 29 virtio2-input.0",
            "receive eth0 rx-0",
            "send eth0 tx-0"
        ]
    );
    assert_eq!(
        machine.names(&[Class::Any]),
        ["workqueue all unbound", "thread 203 iou-sqp-200"]
    );
}

#[test]
fn what_is_arranged_is_put_back_also_by_the_next_who_comes() {
    let machine = Machine::new();
    let before = machine.state();
    let journals = machine.beside("journals");
    let cpus: CpuSet = "4-5".parse().unwrap();
    // Threads of this test's own machine are never touched.
    let files = [Class::File, Class::Network];
    for number in [166, 15] {
        fs::remove_dir_all(machine.root.path(&format!("proc/{number}"))).unwrap();
    }
    let (mut services, note) = Services::open(&machine.root, &journals, &files).unwrap();
    assert_eq!(note, None);
    let arranged = services.arrange(&cpus).unwrap();
    assert_eq!((arranged.moved, arranged.refused), (6, Vec::new()));
    let text = |path: &str| machine.root.text(path).unwrap();
    assert_eq!(text("proc/irq/27/smp_affinity_list"), "4-5");
    assert_eq!(
        text("proc/irq/24/smp_affinity_list"),
        "0-7\n",
        "no file, no network"
    );
    assert_eq!(text("proc/irq/32/smp_affinity_list"), "0-7\n", "the peer's");
    assert_eq!(text("sys/class/net/eth0/queues/rx-0/rps_cpus"), "00000030");
    assert_eq!(text("sys/block/vda/queue/rq_affinity"), "0");
    assert_eq!(
        text("sys/devices/virtual/workqueue/cpumask"),
        "ff\n",
        "class any"
    );
    services.put_back().unwrap();
    let same = |now: Vec<String>| {
        now.iter()
            .map(|text| text.trim())
            .eq(before.iter().map(|text| text.trim()))
    };
    assert!(same(machine.state()));
    // One that dies meanwhile.
    services.arrange(&cpus).unwrap();
    drop(services);
    assert!(!same(machine.state()));
    let (_, note) = Services::open(&machine.root, &journals, &files).unwrap();
    assert!(note.unwrap().contains("ended without putting back"));
    assert!(same(machine.state()));
}

#[test]
fn one_cpu_needs_nobody_to_receive_for_it() {
    let machine = Machine::new();
    let found = find(&machine.root, &[Class::Network]).unwrap();
    let one: CpuSet = "4".parse().unwrap();
    let wanted: Vec<Option<String>> = found.iter().map(|work| work.wanted(&one)).collect();
    assert_eq!(wanted, [Some("4".into()), None, Some("00000010".into())]);
}
