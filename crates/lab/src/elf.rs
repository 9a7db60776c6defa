//! What the packer must know of a program file: is it ELF, a script, and for which machine.
//!
//! Only the fixed fields are read (System V ABI, "ELF header" and "program header"); libraries
//! are resolved by the host's own loader, which alone knows its caches and search paths.

/// `e_type` of what nothing can execute: objects and kernel modules.
const TYPE_RELOCATABLE: u16 = 1;
/// `e_machine` of x86-64.
const MACHINE_X86_64: u16 = 62;
/// Program header that names the loader.
const PT_INTERP: u32 = 3;

/// A program file, as far as packing cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramFile {
    /// ELF for x86-64 with a loader: needs its libraries.
    Dynamic {
        /// Path of the loader.
        loader: String,
    },
    /// ELF for x86-64 without a loader: a static program, or a library.
    NoLoader,
    /// ELF for something else, or broken: half a sentence.
    Unusable(String),
    /// A script with its interpreter, and the interpreter's argument where there is one.
    Script {
        /// Path of the interpreter.
        interpreter: String,
        /// The rest of the line: with `/usr/bin/env` the real interpreter.
        argument: Option<String>,
    },
    /// Plain data, objects of compilers among it, whatever machine they are for.
    Data,
}

/// Looks at a file's first bytes. `bytes` is the whole file or a prefix of it.
#[must_use]
pub fn inspect(bytes: &[u8]) -> ProgramFile {
    if bytes.starts_with(b"#!") {
        return script(bytes);
    }
    let is_object = bytes.get(16..18) == Some(&TYPE_RELOCATABLE.to_le_bytes());
    if !bytes.starts_with(b"\x7fELF") || is_object {
        return ProgramFile::Data;
    }
    match loader(bytes) {
        Ok(Some(loader)) => ProgramFile::Dynamic { loader },
        Ok(None) => ProgramFile::NoLoader,
        Err(reason) => ProgramFile::Unusable(reason),
    }
}

/// A first line such as `#!/usr/bin/env python3`.
fn script(bytes: &[u8]) -> ProgramFile {
    let line = bytes[2..]
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim().splitn(2, char::is_whitespace);
    match words.next() {
        Some(interpreter) if interpreter.starts_with('/') => ProgramFile::Script {
            interpreter: interpreter.to_owned(),
            argument: words.next().map(|rest| rest.trim().to_owned()),
        },
        _ => ProgramFile::Data,
    }
}

fn loader(bytes: &[u8]) -> Result<Option<String>, String> {
    let cut = || "a truncated ELF file".to_owned();
    let u16_at = |at: usize| {
        bytes
            .get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .ok_or_else(cut)
    };
    let u32_at = |at: usize| {
        bytes
            .get(at..at.checked_add(4)?)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    let u64_at = |at: usize| {
        let b = bytes.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok()
    };
    if bytes.len() < 64 {
        return Err(cut());
    }
    if bytes[4] != 2 || bytes[5] != 1 || u16_at(18)? != MACHINE_X86_64 {
        return Err("an ELF file for another machine than x86-64".to_owned());
    }
    let table = u64_at(32).ok_or_else(cut)?;
    let entry_bytes = usize::from(u16_at(54)?);
    for index in 0..usize::from(u16_at(56)?) {
        let at = table.checked_add(index * entry_bytes).ok_or_else(cut)?;
        if u32_at(at).ok_or_else(cut)? != PT_INTERP {
            continue;
        }
        let offset = u64_at(at.saturating_add(8)).ok_or_else(cut)?;
        let length = u64_at(at.saturating_add(32)).ok_or_else(cut)?;
        let end = offset.checked_add(length).ok_or_else(cut)?;
        let name = bytes.get(offset..end).ok_or_else(cut)?;
        let name = name.strip_suffix(b"\0").unwrap_or(name);
        return String::from_utf8(name.to_vec())
            .map(Some)
            .map_err(|_| cut());
    }
    Ok(None)
}

/// A program or library as the kernel and the loader read it: up to the end of its last segment, without the
/// sections behind (symbols, lines of source) and their table. `None` where that cannot be told.
#[must_use]
pub fn without_sections(bytes: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize, length: usize| {
        let field = bytes.get(at..at.checked_add(length)?)?;
        let whole = field
            .iter()
            .rev()
            .fold(0, |sum, &b| sum << 8 | u64::from(b));
        usize::try_from(whole).ok()
    };
    let (ProgramFile::Dynamic { .. } | ProgramFile::NoLoader) = inspect(bytes) else {
        return None;
    };
    let (table, entry_bytes, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut end = table.checked_add(entry_bytes * count)?;
    for index in 0..count {
        let at = table.checked_add(index * entry_bytes)?;
        let segment =
            number(at.checked_add(8)?, 8)?.checked_add(number(at.checked_add(32)?, 8)?)?;
        end = end.max(segment);
    }
    let mut rest = bytes.get(..end)?.to_vec();
    // e_shoff; e_shentsize, e_shnum and e_shstrndx.
    rest[40..48].fill(0);
    rest[58..64].fill(0);
    Some(rest)
}

/// Paths in what a loader prints for `--list`, with lines such as
/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3c5a600000)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x00007f3c5a81c000)`.
///
/// # Errors
/// The names of libraries that the loader did not find.
pub fn parse_library_list(text: &str) -> Result<Vec<String>, Vec<String>> {
    let mut found = Vec::new();
    let mut lacking = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if place == "not found" {
            lacking.push(name.to_owned());
            continue;
        }
        // The address stands in the last parenthesis; a path may hold spaces.
        let path = place.rsplit_once(" (").map_or(place, |(path, _)| path);
        if path.starts_with('/') {
            found.push(path.to_owned());
        }
    }
    if lacking.is_empty() {
        Ok(found)
    } else {
        Err(lacking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_test_is_dynamic_and_cut_off_it_is_unusable() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let ProgramFile::Dynamic { loader } = inspect(&bytes) else {
            panic!("{:?}", inspect(&bytes));
        };
        assert!(loader.contains("ld-linux-x86-64"), "{loader}");
        for length in [5, 40, 70, 100] {
            assert!(
                matches!(inspect(&bytes[..length]), ProgramFile::Unusable(_)),
                "{length}"
            );
        }
        let mut other = bytes[..4096].to_vec();
        other[18] = 183; // AArch64
        assert!(
            matches!(inspect(&other), ProgramFile::Unusable(reason) if reason.contains("x86-64"))
        );
        // An object for the kernel's BPF machine is carried as it is, and one for x86-64 keeps its sections.
        for machine in [247, 62] {
            other[16] = 1;
            other[18] = machine;
            assert_eq!(inspect(&other), ProgramFile::Data);
            assert_eq!(without_sections(&other), None);
        }
        // Wild offsets are an answer, not an overflow.
        let mut wild = bytes[..4096].to_vec();
        wild[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(inspect(&wild), ProgramFile::Unusable(_)));
    }

    #[test]
    fn without_its_sections_a_program_is_as_before_and_smaller() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let rest = without_sections(&bytes).unwrap();
        assert!(rest.len() < bytes.len() / 2, "{} bytes", rest.len());
        assert_eq!(rest[64..], bytes[64..rest.len()]);
        assert_eq!(inspect(&rest), inspect(&bytes));
        assert_eq!(without_sections(&rest).unwrap(), rest);
        assert_eq!(without_sections(&rest[..rest.len() - 1]), None);
        assert_eq!(without_sections(b"#!/bin/sh\n"), None);
        let mut wild = bytes[..4096].to_vec();
        wild[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(without_sections(&wild), None);
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let script = |text: &str| inspect(text.as_bytes());
        let expect = |interpreter: &str, argument: Option<&str>| ProgramFile::Script {
            interpreter: interpreter.into(),
            argument: argument.map(str::to_owned),
        };
        assert_eq!(script("#!/bin/sh\necho\n"), expect("/bin/sh", None));
        assert_eq!(
            script("#! /usr/bin/env  python3\n"),
            expect("/usr/bin/env", Some("python3"))
        );
        assert_eq!(script("#!relative\n"), ProgramFile::Data);
        assert_eq!(script("#!"), ProgramFile::Data);
        assert_eq!(script("hello"), ProgramFile::Data);
        assert_eq!(script(""), ProgramFile::Data);
    }

    #[test]
    fn library_lists_are_read_and_gaps_named() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3c)\n\
                    \tlibx.so => /opt/my libs/libx.so (0x01)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f3c)\n";
        let paths = parse_library_list(text).unwrap();
        assert_eq!(
            paths,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/opt/my libs/libx.so",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        let lacking = parse_library_list("\tlibgone.so.1 => not found\n").unwrap_err();
        assert_eq!(lacking, ["libgone.so.1"]);
        assert_eq!(
            parse_library_list("\tstatically linked\n").unwrap(),
            Vec::<String>::new()
        );
    }
}
