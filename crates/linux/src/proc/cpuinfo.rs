//! Which processor this is, from `/proc/cpuinfo`.

use crate::error::Result;
use crate::parse;
use crate::root::Root;
use hither_core::perf::events::Processor;

const FILE: &str = "proc/cpuinfo";
/// What is of interest stands in the first CPU's block; one of a large machine has a few KiB.
const MOST_LINES: usize = 64;

/// The processor; `None` where the file is missing or names none.
///
/// # Errors
/// The file cannot be read.
pub fn read(root: &Root) -> Result<Option<Processor>> {
    Ok(text(root)?.as_deref().and_then(parse))
}

fn text(root: &Root) -> Result<Option<String>> {
    match root.is_host() {
        // It is longer than what sysfs prints: 1.4 KiB for each CPU.
        true => Ok(std::fs::read_to_string("/proc/cpuinfo").ok()),
        false => root.text_if_any(FILE),
    }
}

/// The clock of the first CPU in GHz, as samples that tell cycles need it: the nominal one where cpufreq
/// (`base_frequency` of intel_pstate) or firmware (`nominal_freq` of ACPI CPPC) tells it, else the one that it runs
/// at now (`cpu MHz`). Boost makes cycles shorter than this says. `None` where nothing tells.
#[must_use]
pub fn clock_ghz(root: &Root) -> Option<f64> {
    const CPU: &str = "sys/devices/system/cpu/cpu0";
    let number = |file: &str, per_ghz: f64| {
        let told = root.parse_if_any(&format!("{CPU}/{file}"), parse::number);
        told.ok().flatten().map(|number| number as f64 / per_ghz)
    };
    let now = || clock_now(&text(root).ok()??);
    number("cpufreq/base_frequency", 1e6)
        .or_else(|| number("acpi_cppc/nominal_freq", 1e3))
        .or_else(now)
        .filter(|ghz| *ghz > 0.0)
}

/// `cpu MHz         : 2499.998`
fn clock_now(text: &str) -> Option<f64> {
    let mut lines = text.lines().take(MOST_LINES);
    let (_, mhz) = lines
        .find(|line| line.starts_with("cpu MHz"))?
        .split_once(':')?;
    mhz.trim()
        .parse::<f64>()
        .ok()
        .map(|mhz| mhz / 1e3)
        .filter(|ghz| ghz.is_finite())
}

/// The first block that names a processor.
///
/// ```text
/// vendor_id       : GenuineIntel
/// cpu family      : 6
/// model           : 85
/// ```
///
/// On Arm:
///
/// ```text
/// CPU implementer : 0x41
/// CPU architecture: 8
/// CPU part        : 0xd0c
/// ```
#[must_use]
pub fn parse(text: &str) -> Option<Processor> {
    let (mut vendor, mut family, mut model) = (None, None, None);
    for line in text.lines().take(MOST_LINES) {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key.trim() {
            "vendor_id" | "CPU implementer" => vendor = vendor.or(Some(value.to_owned())),
            "cpu family" | "CPU architecture" => family = family.or(number(value)),
            "model" | "CPU part" => model = model.or(number(value)),
            _ => {}
        }
    }
    Some(Processor {
        vendor: vendor?,
        family: family?,
        model: model?,
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;
    use hither_core::perf::events::family_of;

    #[test]
    fn the_nominal_clock_comes_before_that_of_the_moment() {
        let captured = Captured::new();
        let clock = || clock_ghz(&captured.root);
        assert_eq!(clock(), None);
        captured.put("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 1200.500\n");
        assert_eq!(clock(), Some(1.2005));
        captured.put(
            "sys/devices/system/cpu/cpu0/acpi_cppc/nominal_freq",
            "2450\n",
        );
        assert_eq!(clock(), Some(2.45));
        captured.put(
            "sys/devices/system/cpu/cpu0/cpufreq/base_frequency",
            "2100000\n",
        );
        assert_eq!(clock(), Some(2.1));
        captured.put("sys/devices/system/cpu/cpu0/cpufreq/base_frequency", "0\n");
        assert_eq!(clock(), None);
    }

    #[test]
    fn the_first_block_names_the_processor() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
                     model name\t: Intel(R) Xeon(R) Gold 6248: 2.5 GHz\n\nvendor_id\t: Other\n";
        let processor = parse(intel).unwrap();
        assert_eq!((processor.family, processor.model), (6, 85));
        assert_eq!(processor.vendor, "GenuineIntel");
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n\
                   CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(family_of(&parse(arm).unwrap()).name, "Arm Neoverse N1");
    }

    #[test]
    fn what_names_none_is_none() {
        for text in [
            "",
            "vendor_id : x\n",
            "vendor_id: x\ncpu family: y\nmodel: 1\n",
            "vendor_id: x\ncpu family: 6\nmodel: 99999999999\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        let _ = read(&Root::host()).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text: String) {
            let _ = parse(&text);
        }
    }
}
