//! Runs a command in the laboratory's guest and prints what the device counted of the whole machine meanwhile: packets
//! between nodes, transactions of caches with memory, floating-point operations (ccNUMA paper, tables 2 and 3).
//!
//! `transactions CMD...`; as root, in the guest.

use hither_linux::opium::{OpiumDevice, Totals};
use hither_linux::root::Root;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("transactions: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<u8, String> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().ok_or("give a command to run")?;
    let device = OpiumDevice::open(&Root::host()).map_err(|error| error.to_string())?;
    let before = device.totals();
    let shown = program.to_string_lossy().into_owned();
    let status = (Command::new(program).args(words).status())
        .map_err(|error| format!("{shown}: {error}; give a program that is there"))?;
    print!("{}", told(&device.totals().since(&before)));
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

fn told(totals: &Totals) -> String {
    let each = totals.flops_per_packet();
    let each = each.map_or("none crossed".to_owned(), |each| format!("{each:.3}"));
    format!(
        "short packets: {}\nline packets: {}\npackets: {}\ntransactions: {}\noperations: {}\noperations a packet: {each}\n",
        totals.short_packets,
        totals.line_packets,
        totals.packets(),
        totals.transactions,
        totals.flops,
    )
}
