//! `migspeed`, the measuring program of the package numactl: started, and its answer read.

use hither_core::ids::NodeId;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the program is, by PATH; administrators' folders are looked at as well.
#[must_use]
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/bin".into(), "/usr/sbin".into()]);
    folders
        .map(|folder| folder.join("migspeed"))
        .find(|program| program.is_file())
}

/// Lets it move pages of its own between two nodes; the time by its own account, in ns.
///
/// # Errors
/// It cannot be started, fails or says something else: half a sentence for a person.
pub fn run(program: &Path, pages: usize, from: NodeId, to: NodeId) -> Result<u64, String> {
    let output = Command::new(program)
        .args([
            "-p",
            &pages.to_string(),
            &from.0.to_string(),
            &to.0.to_string(),
        ])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("it cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", output.status, said.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = parse(&text).ok_or_else(|| format!("it says `{}`", text.trim()))?;
    Ok((pages as f64 * 4096.0 / rate * 1e9) as u64)
}

/// The rate in bytes per second. Its time has two digits only, so the rate is what is read; its
/// megabytes are 2^20 bytes.
///
/// ```text
/// 7fa6e94d1000 bind:0 anon=100 dirty=100 active=0 N0=100 kernelpagesize_kB=4
/// 0.4 Mbyte migrated in 0.00 secs. 140.1 Mbytes/second
/// ```
fn parse(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.contains("Mbyte migrated in"))?;
    let rate = line
        .strip_suffix(" Mbytes/second")?
        .split_whitespace()
        .next_back()?;
    let rate = rate.parse::<f64>().ok()? * f64::from(1 << 20);
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read() {
        let text = "7fa6e94d1000 bind:0 anon=100 N0=100\n\
                    0.4 Mbyte migrated in 0.00 secs. 140.1 Mbytes/second\n";
        assert_eq!(parse(text), Some(140.1 * 1_048_576.0));
        for bad in [
            "",
            "0.4 Mbyte migrated in 0.00 secs. inf Mbytes/second",
            "0.4 Mbyte migrated in 0.00 secs. 0.0 Mbytes/second",
            "0.4 Mbyte migrated in 0.00 secs.",
            "140.1 Mbytes/second",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    /// With the program itself, where it is installed.
    #[test]
    fn the_programs_own_answer_is_understood() {
        let Some(program) = find() else { return };
        // From a node to itself: it moves nothing and still times it.
        match run(&program, 1000, NodeId(0), NodeId(0)) {
            Ok(wall_ns) => assert!(wall_ns > 0),
            Err(why) => assert!(why.contains("exit status"), "{why}"),
        }
        assert!(run(&program, 1000, NodeId(999), NodeId(0)).is_err());
    }
}
