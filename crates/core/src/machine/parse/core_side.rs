//! Sections that describe a core and its private parts.

use super::document::{Place, Result, Section};
use super::limits;
use crate::machine::{Cache, CacheBandwidth, Coherence, Cpu, EventCosts, Tlb};

/// Fields of a cache.
pub(super) const CACHE: &[&str] = &["size_kb", "ways", "latency_ns"];

/// `[cpu]`
pub(super) fn cpu(root: &Section) -> Result<Cpu> {
    let section = root.section(
        "cpu",
        &[
            "ghz",
            "cpi",
            "divide_cycles",
            "pause_cycles",
            "mlp",
            "store_mlp",
            "window",
            "stream_gbs",
            "stream_overlap",
        ],
    )?;
    Ok(Cpu {
        ghz: section.number("ghz", 0.01, 100.0)?,
        cpi: section.number("cpi", 0.01, 1000.0)?,
        divide_cycles: section.number("divide_cycles", 0.0, 1e5)?,
        pause_cycles: section.number("pause_cycles", 1.0, 1000.0)?,
        mlp: section.number("mlp", 1.0, 1000.0)?,
        store_mlp: section.number_if_any("store_mlp", 1.0, 1000.0)?,
        window: section.number_if_any("window", 1.0, 1e6)?,
        stream_gbs: section.number("stream_gbs", limits::GBS_MIN, limits::GBS_MAX)?,
        stream_overlap: section.number("stream_overlap", 0.0, 1.0)?,
    })
}

/// `[costs]`
pub(super) fn costs(root: &Section) -> Result<EventCosts> {
    let names: Vec<&str> = EventCosts::PRICES.iter().map(|price| price.name).collect();
    let section = root.section("costs", &names)?;
    EventCosts::read(|price| match price.absent_ns {
        Some(absent) => Ok(section
            .number_if_any(price.name, 0.0, limits::NS)?
            .unwrap_or(absent)),
        None => section.number(price.name, 0.0, limits::NS),
    })
}

/// `[tlb]`
pub(super) fn tlb(root: &Section) -> Result<Tlb> {
    let section = root.section("tlb", &["small_entries", "huge_entries", "miss_ns"])?;
    let entries = |name: &str, low| power_of_two(&section, name, section.whole(name, low, 8192)?);
    Ok(Tlb {
        small_entries: entries("small_entries", 16)?,
        huge_entries: entries("huge_entries", 4)?,
        miss_ns: section.number("miss_ns", 0.0, limits::NS)?,
    })
}

/// `[private_cache]`
pub(super) fn private_cache(root: &Section, line_bytes: u32) -> Result<Cache> {
    cache(&root.section("private_cache", CACHE)?, line_bytes)
}

/// `[[cache_bandwidth]]`, as many as there are.
pub(super) fn cache_bandwidths(root: &Section) -> Result<Vec<CacheBandwidth>> {
    let Some(field) = root.get("cache_bandwidth") else {
        return Ok(Vec::new());
    };
    let known = ["level", "size_kb", "one_gbs", "all_gbs"];
    let mut found: Vec<CacheBandwidth> = Vec::new();
    for section in field.sections(limits::CACHE_LEVELS, &known)? {
        let level = narrow(section.whole("level", 1, limits::CACHE_LEVELS as u64)?);
        if let Some(last) = found.last().filter(|last| last.level >= level) {
            return Err(place_of(&section, "level").error(
                format!("level {level} comes after level {}", last.level),
                "list each level once, the nearest first",
            ));
        }
        found.push(CacheBandwidth {
            level,
            size_kb: section.whole("size_kb", 1, limits::CACHE_KB)?,
            one_gbs: section.number("one_gbs", limits::GBS_MIN, limits::GBS_MAX)?,
            all_gbs: section.number_if_any("all_gbs", limits::GBS_MIN, limits::GBS_MAX)?,
        });
    }
    Ok(found)
}

/// The fields of a cache, in whatever section they stand.
pub(super) fn cache(section: &Section, line_bytes: u32) -> Result<Cache> {
    let size_kb = section.whole("size_kb", 1, limits::CACHE_KB)?;
    let ways = section.whole("ways", 1, limits::WAYS)?;
    let lines = size_kb * 1024 / u64::from(line_bytes);
    if lines < ways {
        return Err(place_of(section, "ways").error(
            format!("{size_kb} KiB hold {lines} lines of {line_bytes} bytes, fewer than {ways}"),
            "lower `ways` or raise `size_kb`",
        ));
    }
    Ok(Cache {
        size_kb,
        ways: narrow(ways),
        latency_ns: section.number("latency_ns", limits::LATENCY_NS_MIN, limits::NS)?,
    })
}

/// `[coherence]`
pub(super) fn coherence(root: &Section) -> Result<Coherence> {
    let section = root.section(
        "coherence",
        &[
            "same_domain_ns",
            "cross_domain_ns",
            "invalidate_ns",
            "unit_gbs",
            "remote_ownership_ns",
        ],
    )?;
    Ok(Coherence {
        same_domain_ns: section.number("same_domain_ns", 0.0, limits::NS)?,
        cross_domain_ns: section.number("cross_domain_ns", 0.0, limits::NS)?,
        invalidate_ns: section.number("invalidate_ns", 0.0, limits::NS)?,
        unit_gbs: section.number_if_any("unit_gbs", limits::GBS_MIN, limits::GBS_MAX)?,
        remote_ownership_ns: section.number_if_any("remote_ownership_ns", 0.0, limits::NS)?,
    })
}

/// A value that must be a power of two.
pub(super) fn power_of_two(section: &Section, name: &str, value: u64) -> Result<u32> {
    if value.is_power_of_two() {
        return Ok(narrow(value));
    }
    Err(place_of(section, name).error(
        format!("{value} is no power of two"),
        format!(
            "write {} or {}",
            value.next_power_of_two() / 2,
            value.next_power_of_two()
        ),
    ))
}

/// Where a field stands; its section, where it has no line of its own.
pub(super) fn place_of<'a>(section: &Section<'a>, name: &str) -> Place<'a> {
    section
        .get(name)
        .map_or_else(|| section.place.at(name), |field| field.place)
}

/// A number that its range check has bounded far below 2^32.
pub(super) fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("bounded by its range check")
}
