//! The systemd unit that applies a file of partitions at boot.

use anyhow::{Context, bail, ensure};
use hither_core::foreign::Foreign;
use std::path::Path;

/// The unit's text.
///
/// # Errors
/// The file is not there, or its path cannot stand in a unit.
pub fn text(file: &Path) -> anyhow::Result<String> {
    let file = file
        .canonicalize()
        .with_context(|| format!("{} is not there", file.shown()))?;
    ensure!(
        file.is_file(),
        "{} is no file; give one with partitions, as `hither partition apply` takes it",
        file.shown()
    );
    let hither = std::env::current_exe().context("finding hither's own path")?;
    let [file, hither] = [&file, &hither].map(|path| path.to_string_lossy().into_owned());
    for path in [&file, &hither] {
        if path.contains(|letter: char| letter.is_whitespace() || "\"'\\%$".contains(letter)) {
            bail!("{path} cannot stand in a systemd unit: move it to a plainer path");
        }
    }
    // Delegate: systemd keeps the controller on for the whole tree as long as a unit asks for it.
    Ok(format!(
        "\
[Unit]
Description=Partitions of {file}
Documentation=https://www.kernel.org/doc/html/latest/admin-guide/cgroup-v2.html#cpuset
DefaultDependencies=no
Wants=local-fs.target
After=local-fs.target systemd-tmpfiles-setup.service
Before=basic.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
Delegate=cpuset
ExecStart={hither} partition apply {file}
ExecStop={hither} partition stop

[Install]
WantedBy=basic.target
"
    ))
}
