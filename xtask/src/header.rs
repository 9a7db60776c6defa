//! `crates/capi/include/hither.h`, made by cbindgen from the sources of `crates/capi`.
//!
//! It is made here and committed, so that a plain build needs neither cbindgen nor its time.

use anyhow::{Context, Result};
use cbindgen::{Config, DocumentationStyle, Language, Style};
use std::path::Path;

/// The header, relative to the repository.
pub const PATH: &str = "crates/capi/include/hither.h";

/// The files that define the interface, in the order of the header.
const SOURCES: [&str; 9] = [
    "constants.rs",
    "types.rs",
    "calls.rs",
    "stream.rs",
    "placement.rs",
    "replicated.rs",
    "regions.rs",
    "monitor.rs",
    "opting.rs",
];

const TOP: &str = "\
/*
 * hither: puts memory and threads of a program on parts of the machine, and moves memory without
 * blocking the program. See hither(7).
 *
 * Every call may be made by any thread at any time, but not in a signal handler. A number below 0
 * is an error (HITHER_E*); hither_last_error() says what is wrong, where, and how to mend it. A
 * child after fork() finds every call refused with HITHER_EFORK, but for hither_opt_out(),
 * hither_opt_in() and hither_declare().
 *
 * Generated from crates/capi/src by `cargo xtask gen`: change it there.
 */";

/// The text of the header.
pub fn text(root: &Path) -> Result<String> {
    let mut config = Config {
        header: Some(TOP.to_owned()),
        include_guard: Some("HITHER_H".to_owned()),
        language: Language::C,
        cpp_compat: true,
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        style: Style::Tag,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        line_length: 100,
        ..Config::default()
    };
    config.export.rename = [
        ("HitherRequest", "hither_request"),
        ("HitherConfig", "hither_config"),
        ("HitherResidency", "hither_residency"),
        ("HitherReplicatedConfig", "hither_replicated_config"),
        ("HitherView", "hither_view"),
        ("HitherStreamConfig", "hither_stream_config"),
        ("HitherStreamPart", "hither_stream_part"),
        ("HitherStreamReport", "hither_stream_report"),
        ("HitherArea", "hither_area"),
        ("HitherReached", "hither_reached"),
        ("HitherTotals", "hither_totals"),
    ]
    .map(|(rust, c)| (rust.to_owned(), c.to_owned()))
    .into();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join("crates/capi/src").join(source));
    }
    let bindings = builder
        .generate()
        .context("cbindgen cannot read crates/capi")?;
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    let text = String::from_utf8(bytes).context("cbindgen wrote no UTF-8")?;
    Ok(without_safety(&text))
}

/// Leaves out what is written for Rust: the paragraph `# Safety` at the end of a comment. What a C
/// program must keep to is in the sentences above it.
fn without_safety(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut skipping = false;
    for line in text.lines() {
        if line.trim() == "* # Safety" || line.trim() == "// # Safety" {
            skipping = true;
            while kept
                .last()
                .is_some_and(|last| matches!(last.trim(), "*" | "//"))
            {
                kept.pop();
            }
        } else if skipping && !line.trim_start().starts_with("//") {
            skipping = false;
        }
        if !skipping {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_up_to_date() {
        let root = crate::root();
        let committed = std::fs::read_to_string(root.join(PATH)).unwrap();
        let text = text(&root).unwrap();
        assert!(committed == text, "run `cargo xtask gen`");
    }

    #[test]
    fn every_item_is_documented() {
        let text = text(&crate::root()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut count = 0;
        for pair in lines.windows(2) {
            let (before, line) = (pair[0].trim(), pair[1]);
            // Further lines of a function's arguments are indented by more than a field.
            let is_field = line.starts_with("  ") && !line.starts_with("   ");
            let is_item = line.starts_with("#define HITHER_")
                || line.starts_with("struct ") && line.ends_with('{')
                || is_field && line.ends_with(';')
                || line.contains("hither_") && line.contains('(') && !line.starts_with(['/', ' ']);
            if is_item && line != "#define HITHER_H" {
                assert!(before.starts_with("//"), "not documented: {line}");
                count += 1;
            }
        }
        assert!(count > 80, "{count} items were found");
    }

    #[test]
    fn what_is_for_rust_is_left_out() {
        let text = "// One.\n//\n// # Safety\n// Two.\nint f(void);\n\n// Three.\nint g(void);\n";
        assert_eq!(
            without_safety(text),
            "// One.\nint f(void);\n\n// Three.\nint g(void);\n"
        );
    }
}
