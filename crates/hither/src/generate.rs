//! `hither generate`: what goes with an installed command, made from the parsers themselves: manual
//! pages and completions of shells.

use crate::print;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use hither_core::foreign::Foreign;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell, or write the manual pages
///
/// `make install` installs both. Without it, as after `cargo install`:
///
///   hither generate completions bash > ~/.local/share/bash-completion/completions/hither
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a page for hither and one for each subcommand, as hither-lab-run.1
    Man {
        /// Folder for the pages, which must be there; pages in it are replaced
        folder: PathBuf,
    },
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let command = crate::Arguments::command();
        match self.what {
            What::Completions { shell } => {
                print::out(&completions(command, shell)?)?;
            }
            What::Man { folder } => clap_mangen::generate_to(pages(command), &folder)
                .with_context(|| format!("writing manual pages into {}", folder.shown()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn completions(mut command: clap::Command, shell: Shell) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "hither", &mut text);
    String::from_utf8(text).context("completions of this shell")
}

/// The commands as the manual has them: `help` repeats what the pages say.
fn pages(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, pages))
        .disable_help_subcommand(true)
}
