//! Several commands in the rounds of one comparison, as a boot takes as long as a run.

/// A script for `sh -c` that executes the next command after every `times` of its runs.
pub fn in_turns(commands: &[String], times: usize) -> String {
    let mut script =
        format!("echo >> /tmp/runs; case $((($(wc -l < /tmp/runs) - 1) / {times})) in ");
    for (number, command) in commands.iter().enumerate() {
        script += &format!("{number}) exec {command};; ");
    }
    script + "esac"
}
