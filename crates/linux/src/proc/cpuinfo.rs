//! Which processor this is, from `/proc/cpuinfo`.

use crate::error::Result;
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
    let text = match root.is_host() {
        // It is longer than what sysfs prints: 1.4 KiB for each CPU.
        true => std::fs::read_to_string("/proc/cpuinfo").ok(),
        false => root.text_if_any(FILE)?,
    };
    Ok(text.as_deref().and_then(parse))
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
    use hither_core::perf::events::family_of;

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
