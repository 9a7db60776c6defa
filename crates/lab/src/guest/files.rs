//! Files that go back to the host.

use super::{Result, doing, port::Port};
use crate::protocol::{CHUNK_BYTES, FileBegin, Kind};
use hither_core::foreign::Foreign;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Sends a file, or every file below a directory. A missing one is a notice: the program's own
/// exit status says more than a lost result would.
pub fn send(port: &mut Port, asked: usize, cwd: &str, path: &str) -> Result<()> {
    let full = Path::new(cwd).join(path);
    let mut sent = 0;
    match fs::metadata(&full) {
        Err(cause) => {
            return port.notice(&format!("--back {path}: {cause}; nothing was brought back"));
        }
        Ok(data) if data.is_dir() => walk(port, asked, &full, &mut String::new(), &mut sent)?,
        Ok(_) => {
            one(port, asked, &full, "")?;
            sent = 1;
        }
    }
    if sent == 0 {
        port.notice(&format!("--back {path}: the directory holds no file"))?;
    }
    Ok(())
}

fn walk(
    port: &mut Port,
    asked: usize,
    top: &Path,
    below: &mut String,
    sent: &mut usize,
) -> Result<()> {
    let here = top.join(&*below);
    let entries = fs::read_dir(&here).map_err(doing(format!("reading {}", here.shown())))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        let length = below.len();
        if !below.is_empty() {
            below.push('/');
        }
        below.push_str(&name);
        let full = top.join(&*below);
        // Links are not followed: they may lead out of what was asked for, or round in circles.
        match fs::symlink_metadata(&full).map(|data| data.file_type()) {
            Ok(kind) if kind.is_dir() => walk(port, asked, top, below, sent)?,
            Ok(kind) if kind.is_file() => {
                one(port, asked, &full, below)?;
                *sent += 1;
            }
            _ => {}
        }
        below.truncate(length);
    }
    Ok(())
}

fn one(port: &mut Port, asked: usize, full: &Path, below: &str) -> Result<()> {
    let reading = || format!("reading {}", full.shown());
    let mut file = File::open(full).map_err(doing(reading()))?;
    let mode = file
        .metadata()
        .map_err(doing(reading()))?
        .permissions()
        .mode()
        & 0o777;
    port.send_json(
        Kind::FileBegin,
        0,
        &FileBegin {
            asked,
            below: below.to_owned(),
            mode,
        },
    )?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = file.read(&mut buffer).map_err(doing(reading()))?;
        if count == 0 {
            return port.send(Kind::FileEnd, 0, b"");
        }
        port.send(Kind::FileData, 0, &buffer[..count])?;
    }
}
