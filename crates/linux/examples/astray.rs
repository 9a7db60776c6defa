//! Programs whose memory lies badly, for the laboratory's test of what mends it (`crates/lab/tests/
//! astray.rs`). Each prints what it did, and waits for a line of standard input between steps.
//!
//! ```text
//! astray late CPU OTHER MIB POLICY  touches 22 % of its memory on one CPU and the rest on another, to
//!                                   which it binds itself then: by its CPUs, or by `bind:NODE` as well
//! astray make FILE MIB              writes a file
//! astray read FILE CPU PASSES WAY   reads it again and again (map or read), and prints ns of each pass
//! astray ring MIB                   registers half of its memory with io_uring
//! ```

use hither_core::set::CpuSet;
use hither_linux::sys;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["late", cpu, other, mib, policy] => late(cpu, other, mib.parse()?, policy),
        ["make", file, mib] => Ok(std::fs::write(file, vec![7; mib.parse::<usize>()? << 20])?),
        ["read", file, cpu, passes, way] => read(file, cpu, passes.parse()?, way == "map"),
        ["ring", mib] => ring(mib.parse()?),
        _ => Err("late, make, read or ring: see the head of the source".into()),
    }
}

/// Says what is so far, and waits for a line.
fn wait(what: &str) -> Result<(), Failed> {
    println!("{what}");
    io::stdout().flush()?;
    let mut byte = [0];
    while io::stdin().read(&mut byte)? == 1 && byte[0] != b'\n' {}
    Ok(())
}

fn stay_on(cpu: &str) -> Result<(), Failed> {
    Ok(sys::stay_on(&cpu.parse::<CpuSet>()?)?)
}

fn late(cpu: &str, other: &str, mib: usize, policy: &str) -> Result<(), Failed> {
    stay_on(cpu)?;
    let bytes = mib << 20;
    let early = (bytes * 22 / 100) & !4095;
    let mut memory = sys::PrivateMemory::unadvised(bytes)?;
    touch(&mut memory.bytes_mut()[..early]);
    stay_on(other)?;
    if policy != "default" {
        sys::set_own_policy(&policy.parse()?)?;
    }
    touch(&mut memory.bytes_mut()[early..]);
    wait("ready")?;
    let kept = memory.bytes().iter().step_by(4096).all(|&byte| byte == 1);
    println!("{}", if kept { "kept" } else { "lost" });
    Ok(())
}

fn touch(bytes: &mut [u8]) {
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

fn read(path: &str, cpu: &str, passes: u32, is_mapped: bool) -> Result<(), Failed> {
    stay_on(cpu)?;
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len() as usize;
    let window = match is_mapped {
        // SAFETY: a mapping that is only read, of a file that nobody cuts short; it lives to the end.
        true => Some(unsafe {
            let (any, read) = (std::ptr::null_mut(), libc::PROT_READ);
            let start = libc::mmap(any, bytes, read, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error().into());
            }
            std::slice::from_raw_parts(start.cast::<u8>(), bytes)
        }),
        false => None,
    };
    let mut buffer = vec![0u8; 1 << 16];
    let mut pass = || -> Result<u64, Failed> {
        let mut sum = 0;
        match window {
            Some(window) => sum = window.iter().step_by(64).map(|&byte| u64::from(byte)).sum(),
            None => {
                file.rewind()?;
                while file.read(&mut buffer)? > 0 {
                    sum += u64::from(buffer[0]);
                }
            }
        }
        Ok(black_box(sum))
    };
    pass()?;
    for _ in 0..2 {
        let mut told = "pass".to_owned();
        for _ in 0..passes {
            let start = Instant::now();
            pass()?;
            told += &format!(" {}", start.elapsed().as_nanos());
        }
        wait(&told)?;
    }
    Ok(())
}

fn ring(mib: usize) -> Result<(), Failed> {
    let mut memory = sys::PrivateMemory::unadvised(mib << 20)?;
    touch(memory.bytes_mut());
    let mut parameters = [0u32; 30];
    // SAFETY: `struct io_uring_params` is 120 bytes of plain numbers, which the call fills in.
    let opened = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if opened < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let ring = unsafe { OwnedFd::from_raw_fd(opened as i32) };
    let vector = libc::iovec {
        iov_base: memory.address() as *mut _,
        iov_len: memory.len() / 2,
    };
    let (fd, vector) = (ring.as_raw_fd(), &raw const vector);
    // SAFETY: IORING_REGISTER_BUFFERS (0) with one vector of memory that outlives the ring.
    if unsafe { libc::syscall(libc::SYS_io_uring_register, fd, 0, vector, 1) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    wait(&format!(
        "ready {:x} {}",
        memory.address(),
        memory.len() / 2 / 4096
    ))?;
    Ok(())
}
