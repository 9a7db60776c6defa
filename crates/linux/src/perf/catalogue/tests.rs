//! The tables against the folders of `fixtures/pmu`: every event of every line is put together there.

use super::*;
use crate::perf::refusal::paranoid;
use crate::root::Root;
use hither_core::perf::events::FAMILIES;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

const MACHINES: [(&str, &str); 8] = [
    ("intel-cascade-lake-sp", "Intel Skylake-SP, Cascade Lake-SP"),
    ("intel-ice-lake-sp", "Intel Ice Lake-SP"),
    (
        "intel-sapphire-rapids",
        "Intel Sapphire Rapids, Emerald Rapids",
    ),
    ("amd-rome", "AMD Zen 2 (Rome)"),
    ("amd-milan", "AMD Zen 3 (Milan)"),
    ("amd-genoa", "AMD Zen 4 (Genoa)"),
    ("amd-turin", "AMD Zen 5 (Turin)"),
    ("arm-neoverse-n1", "Arm Neoverse N1"),
];

fn folder(machine: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/pmu")
        .join(machine)
}

fn catalogue(machine: &str) -> Catalogue {
    Catalogue::read(&Root::new(folder(machine))).unwrap()
}

fn words(machine: &str, role: Role) -> Vec<u64> {
    let catalogue = catalogue(machine);
    let served = catalogue.of(role).unwrap();
    let codes = served.sources[0].codes.iter();
    codes.map(|code| code.words[0]).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// A copy in which some files say something else.
fn changed(machine: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let place = tempfile::tempdir().unwrap();
    copy(&folder(machine), place.path());
    for (below, text) in files {
        let path = place.path().join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = Root::new(place.path());
    (place, root)
}

const DEVICES: &str = "sys/bus/event_source/devices";

#[test]
fn every_line_of_a_table_resolves_on_a_machine_of_its_family() {
    for (machine, name) in MACHINES {
        let root = Root::new(folder(machine));
        let catalogue = catalogue(machine);
        assert_eq!(catalogue.family.name, name, "{machine}");
        assert!(!catalogue.is_generic());
        assert_eq!(paranoid(&root), Some(2));
        let names = pmu::names(&root).unwrap();
        for line in catalogue.family.lines {
            let sources = resolve(&root, line, &names)
                .unwrap_or_else(|error| panic!("{machine}, {:?}: {error}", line.role));
            assert!(!sources.is_empty(), "{machine}, {:?}", line.role);
            for source in &sources {
                assert_eq!(source.codes.len(), line.events.len());
                // What the kernel says of a count is what the table says.
                let each = table_each(line);
                assert!(
                    (source.each - each).abs() < 1e-6 * each,
                    "{machine}: {source:?}"
                );
                if line.role.is_uncore() {
                    let cpus = source.cpus.as_ref().unwrap();
                    assert!(!cpus.is_empty(), "{machine}: {source:?}");
                }
            }
        }
        // What is served and what is missing are all roles, and what is missing is the table's.
        assert_eq!(
            catalogue.served.len() + catalogue.missing.len(),
            Role::ALL.len()
        );
        let lacks = catalogue.family.lacks.len();
        assert_eq!(catalogue.missing.len(), lacks, "{machine}");
    }
    // Tables without a machine here resolve on that of a family with the same formats.
    for (name, like) in [
        ("Granite", "intel-sapphire-rapids"),
        ("V1", "arm-neoverse-n1"),
    ] {
        let family = FAMILIES.iter().find(|family| family.name.contains(name));
        let root = Root::new(folder(like));
        let names = pmu::names(&root).unwrap();
        for line in family.unwrap().lines {
            assert!(!resolve(&root, line, &names).unwrap().is_empty(), "{name}");
        }
    }
}

#[test]
fn the_words_are_those_of_the_manuals() {
    let intel = "intel-cascade-lake-sp";
    assert_eq!(words(intel, Role::LocalMemory), [0x1d3]);
    assert_eq!(words(intel, Role::RemoteCache), [0xcd3]);
    // The counter mask has bits 24 to 31.
    assert_eq!(words(intel, Role::MemoryStalls), [0x0600_06a3]);
    assert_eq!(words(intel, Role::ControllerReads), [0x304]);
    assert_eq!(
        words("intel-sapphire-rapids", Role::ControllerWrites),
        [0xf005]
    );
    assert_eq!(words("amd-milan", Role::RemoteMemory), [0x4044]);
    // Event 0x1c7: its upper four bits have bits 32 to 35. As hither found them in use elsewhere:
    // 0x3807 for channel 0, 0x1_0000_38c7 for channel 7.
    let channels = words("amd-rome", Role::ControllerTraffic);
    assert_eq!((channels[0], channels[7]), (0x3807, 0x1_0000_38c7));
    assert_eq!(words("amd-genoa", Role::ControllerReads), [0x10a]);
    // Event 0xd5f, mask 0xf3e: the upper halves have bits 32 to 37 and 24 to 27.
    assert_eq!(words("amd-genoa", Role::LinkTraffic)[0], 0xd_0f00_3e5f);
    assert_eq!(words("arm-neoverse-n1", Role::Remote), [0x31]);
    assert_eq!(
        words("arm-neoverse-n1", Role::ControllerTraffic),
        [0xd_0005]
    );
}

#[test]
fn controllers_are_read_where_their_files_say() {
    let catalogue = catalogue("amd-genoa");
    let reads = catalogue.of(Role::ControllerReads).unwrap();
    let place = |source: &Source| {
        (
            source.name.clone(),
            source.cpus.clone().unwrap().to_string(),
        )
    };
    let places: Vec<_> = reads.sources.iter().map(place).collect();
    assert_eq!(places[0], ("amd_umc_0".into(), "0".into()));
    assert_eq!(places[3], ("amd_umc_3".into(), "64".into()));
    // What counts elsewhere is no controller.
    let ice_lake = super::tests::catalogue("intel-ice-lake-sp");
    let reads = ice_lake.of(Role::ControllerReads).unwrap();
    assert!(
        reads
            .sources
            .iter()
            .all(|source| !source.name.contains("free"))
    );
}

#[test]
fn without_controllers_the_fabric_counts_on_older_kernels() {
    let (place, root) = changed("amd-genoa", &[]);
    for index in 0..4 {
        fs::remove_dir_all(place.path().join(format!("{DEVICES}/amd_umc_{index}"))).unwrap();
    }
    let catalogue = Catalogue::read(&root).unwrap();
    let reads = catalogue.of(Role::ControllerReads).unwrap();
    assert_eq!(reads.sources[0].name, "amd_df");
    assert_eq!(reads.sources[0].codes.len(), 12);
}

#[test]
fn the_tables_terms_outweigh_an_old_kernels() {
    let reads = "uncore_imc_0/events/cas_count_read";
    let file = format!("{DEVICES}/{reads}");
    let (_place, root) = changed("intel-ice-lake-sp", &[(&file, "event=0x04,umask=0x03\n")]);
    let catalogue = Catalogue::read(&root).unwrap();
    let source = &catalogue.of(Role::ControllerReads).unwrap().sources[0];
    assert_eq!((source.codes[0].words[0], source.each), (0xf04, 64.0));
}

#[test]
fn unknown_processors_have_what_the_kernel_maps_and_say_so() {
    let cpuinfo = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 158\n";
    let (_place, root) = changed("intel-cascade-lake-sp", &[("proc/cpuinfo", cpuinfo)]);
    let catalogue = Catalogue::read(&root).unwrap();
    assert!(catalogue.is_generic());
    let instructions = catalogue.of(Role::Instructions).unwrap();
    let source = &instructions.sources[0];
    assert_eq!((source.kind, source.codes[0].words), (0, [1, 0, 0]));
    let lacking = &catalogue.missing[0];
    assert!(lacking.why.contains("no event table") && !lacking.remedy.is_empty());
}

#[test]
fn a_machine_without_a_pmu_says_what_would_help() {
    let place = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::read(&Root::new(place.path())).unwrap();
    assert!(catalogue.served.is_empty() && catalogue.processor.is_none());
    for missing in &catalogue.missing {
        assert!(
            !missing.why.is_empty() && !missing.remedy.is_empty(),
            "{missing:?}"
        );
    }
    // A virtual machine of a known processor.
    let (place, root) = changed("amd-milan", &[]);
    fs::remove_dir_all(place.path().join(DEVICES)).unwrap();
    let catalogue = Catalogue::read(&root).unwrap();
    assert!(catalogue.served.is_empty());
    let why = |role| {
        let found = catalogue
            .missing
            .iter()
            .find(|missing| missing.role == role);
        let found = found.unwrap();
        format!("{}; {}", found.why, found.remedy)
    };
    assert!(why(Role::Cycles).contains("no event source cpu"));
    assert!(why(Role::LinkTraffic).contains("amd_uncore"));
    assert!(why(Role::MemoryStalls).contains("before Zen 4"));
}

#[test]
fn roles_that_another_tells_are_not_wanting() {
    let of = |machine| -> Vec<Role> {
        let catalogue = catalogue(machine);
        catalogue.wanting().map(|missing| missing.role).collect()
    };
    assert_eq!(of("intel-sapphire-rapids"), []);
    assert_eq!(of("amd-milan"), [Role::MemoryStalls]);
    assert_eq!(
        of("arm-neoverse-n1"),
        [Role::RemoteCache, Role::Operations, Role::LinkTraffic]
    );
}

#[test]
fn files_that_make_no_sense_cost_their_role_alone() {
    for (file, text, role) in [
        ("cpu/format/cmask", "config:24-99\n", Role::MemoryStalls),
        ("cpu/format/cmask", "config:24\n", Role::MemoryStalls),
        ("uncore_imc_0/type", "many\n", Role::ControllerReads),
        ("uncore_imc_0/cpumask", "0-\n", Role::ControllerReads),
        (
            "uncore_imc_0/events/cas_count_read.scale",
            "NaN\n",
            Role::ControllerReads,
        ),
        ("uncore_upi_0/format/umask", "", Role::LinkTraffic),
    ] {
        let file = format!("{DEVICES}/{file}");
        let (_place, root) = changed("intel-cascade-lake-sp", &[(&file, text)]);
        let catalogue = Catalogue::read(&root).unwrap();
        let missing = catalogue
            .missing
            .iter()
            .find(|missing| missing.role == role);
        let missing = missing.unwrap_or_else(|| panic!("{file} {text}"));
        let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
        assert!(missing.why.contains(name), "{missing:?}");
        assert!(catalogue.of(Role::Cycles).is_some(), "{file}");
    }
}

/// Files of one machine that a table reads.
const READ: [&str; 9] = [
    "cpu/type",
    "cpu/format/event",
    "cpu/format/cmask",
    "cpu/format/ldlat",
    "uncore_imc_0/type",
    "uncore_imc_0/cpumask",
    "uncore_imc_0/format/umask",
    "uncore_imc_0/events/cas_count_read.scale",
    "uncore_imc_0/events/cas_count_read.unit",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_text_in_any_file_is_survived(
        file in 0..READ.len(),
        text in prop_oneof![
            ".*",
            "config[0-9]?:[0-9,-]{0,12}",
            "[0-9.e-]{1,20}",
            "event=0x[0-9a-f]{1,20}(,umask=\\?)?",
        ],
        cpuinfo in ".{0,40}",
    ) {
        let file = format!("{DEVICES}/{}", READ[file]);
        let (place, root) = changed("intel-cascade-lake-sp", &[(&file, &text)]);
        let catalogue = Catalogue::read(&root).unwrap();
        prop_assert_eq!(
            catalogue.served.len() + catalogue.missing.len(),
            Role::ALL.len()
        );
        fs::write(place.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        prop_assert!(Catalogue::read(&root).unwrap().served.len() <= Role::ALL.len());
    }
}
