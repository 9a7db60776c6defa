//! The table holds together: every role of every family is served or refused in words.

use super::*;
use std::collections::HashSet;

fn processor(vendor: &str, family: u32, model: u32) -> Processor {
    Processor {
        vendor: vendor.to_owned(),
        family,
        model,
    }
}

fn all() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().chain([&GENERIC])
}

#[test]
fn every_role_is_served_or_refused_in_words() {
    for family in all() {
        for role in Role::ALL {
            let lines = family.lines_for(role).count();
            let lack = family.lack(role);
            assert_eq!(lines == 0, lack.is_some(), "{}: {role:?}", family.name);
            assert!(lack.is_none_or(|why| why.len() > 10));
        }
    }
}

#[test]
fn every_line_has_events_a_unit_that_fits_and_its_source() {
    for family in all() {
        for line in family.lines {
            let place = format!("{}: {:?}", family.name, line.role);
            assert!(!line.events.is_empty(), "{place}");
            assert!(
                line.source.contains('.') || line.source.contains('/'),
                "{place}"
            );
            assert_eq!(line.sources.is_empty(), family.vendor.is_empty(), "{place}");
            let is_bytes = matches!(line.unit, Unit::Bytes(bytes) if bytes > 0.0);
            assert_eq!(is_bytes, line.role.is_uncore(), "{place}");
            let terms: HashSet<&str> = line.events.iter().map(|event| event.terms).collect();
            assert_eq!(terms.len(), line.events.len(), "{place}: an event twice");
            for event in line.events {
                let fits = |term: &str| {
                    term.split_once('=').is_some_and(|(name, value)| {
                        let digits = value.strip_prefix("0x");
                        let number = match digits {
                            Some(digits) => u64::from_str_radix(digits, 16),
                            None => value.parse(),
                        };
                        !name.is_empty() && number.is_ok()
                    })
                };
                assert!(event.terms.split(',').all(fits), "{place}: {}", event.terms);
            }
        }
    }
}

#[test]
fn servers_are_recognised_and_others_get_what_the_kernel_maps() {
    for (vendor, family, model, name) in [
        ("GenuineIntel", 6, 85, "Skylake"),
        ("GenuineIntel", 6, 106, "Ice Lake"),
        ("GenuineIntel", 6, 143, "Sapphire"),
        ("GenuineIntel", 6, 207, "Emerald"),
        ("GenuineIntel", 6, 173, "Granite"),
        ("AuthenticAMD", 23, 49, "Zen 2"),
        ("AuthenticAMD", 25, 1, "Zen 3"),
        ("AuthenticAMD", 25, 17, "Zen 4"),
        ("AuthenticAMD", 25, 0xa0, "Zen 4"),
        ("AuthenticAMD", 26, 2, "Zen 5"),
        ("0x41", 8, 0xd0c, "N1"),
        ("0x41", 8, 0xd40, "V1"),
        ("GenuineIntel", 6, 158, "unknown"),
        ("AuthenticAMD", 23, 1, "unknown"),
        ("HygonGenuine", 24, 1, "unknown"),
        ("", 0, 0, "unknown"),
    ] {
        let found = family_of(&processor(vendor, family, model));
        assert!(
            found.name.contains(name),
            "{vendor} {family} {model}: {}",
            found.name
        );
    }
}

#[test]
fn no_two_families_claim_a_processor() {
    for (index, one) in FAMILIES.iter().enumerate() {
        for other in &FAMILIES[index + 1..] {
            let same = one.vendor == other.vendor && one.family == other.family;
            let overlap = one.models.iter().any(|&(first, last)| {
                other
                    .models
                    .iter()
                    .any(|&(low, high)| first <= high && low <= last)
            });
            assert!(!(same && overlap), "{} and {}", one.name, other.name);
        }
    }
}

#[test]
fn names_of_sources_have_a_number_at_their_end_or_are_whole() {
    assert!(source_matches("uncore_imc_#", "uncore_imc_0"));
    assert!(source_matches("uncore_imc_#", "uncore_imc_11"));
    assert!(source_matches("cpu", "cpu"));
    for name in [
        "uncore_imc_",
        "uncore_imc",
        "uncore_imc_free_running_0",
        "uncore_imc_0x",
        "cpu",
    ] {
        assert!(!source_matches("uncore_imc_#", name), "{name}");
    }
    assert!(!source_matches("cpu", "cpu_core"));
}

#[test]
fn roles_are_told_apart() {
    let names: HashSet<&str> = Role::ALL.iter().map(|role| role.name()).collect();
    assert_eq!(names.len(), Role::ALL.len());
    for role in Role::ALL {
        let kinds = [
            role == Role::MemorySamples,
            role.is_uncore(),
            role.is_counted_by_core(),
        ];
        assert_eq!(kinds.iter().filter(|&&is| is).count(), 1, "{role:?}");
    }
}
