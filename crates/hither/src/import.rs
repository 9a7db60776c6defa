//! `hither import`: recordings of other tools become recordings of hither.

use crate::print;
use crate::record;
use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;
use hither_core::foreign::Foreign;
use hither_recording::Writer;
use hither_recording::exchange::{self, Format, MOST_BYTES};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a recording out of what damo or perf recorded
///
/// Reads damo's records (JSON, compressed JSON), lines of damon_aggregated as perf, trace-cmd and damo
/// print them, and memory samples of perf (perf mem record, perf c2c record, perf record -d). What the
/// file does not tell is left empty, and said, and so is what of it is left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither import damon.data -o before
  hither import perf.data -o samples && hither report samples
  perf script -i damon.perf.data > lines.txt; hither import lines.txt")]
pub struct Command {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folder for the recording; it must not hold anything [default: hither-recording, -2, -3, ...]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Whose file it is, where its content should not decide
    #[arg(long, value_name = "TOOL")]
    format: Option<Tool>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tool {
    Damo,
    Perf,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Files that cannot be read, or are of no such tool; a folder in use.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let bytes = read(&self.file)?;
        let name = || self.file.shown().to_string();
        let format = match self.format {
            Some(Tool::Damo) => Format::Damo,
            Some(Tool::Perf) => Format::Perf,
            None => exchange::detect(&bytes).with_context(name)?,
        };
        let imported = exchange::import(&bytes, format).with_context(name)?;
        drop(bytes);
        let folder = record::folder(self.output.as_deref())?;
        let mut meta = imported.about.meta(env!("CARGO_PKG_VERSION"));
        // It has not ended before it is written.
        let ended = meta.ended.take();
        let mut writer = Writer::create(folder.clone(), meta)?;
        let told = format!(
            "{} samples, {} regions, {} processes and {} mappings in {}",
            imported.samples.len(),
            imported.regions.len(),
            imported.processes.len(),
            imported.mappings.len(),
            folder.path().shown()
        );
        writer.add(imported.samples)?;
        writer.add(imported.regions)?;
        writer.add(imported.intervals)?;
        writer.add(imported.processes)?;
        writer.add(imported.mappings)?;
        writer.meta_mut().ended = ended;
        writer.finish()?;
        for note in &imported.about.notes {
            print::err_report(&note.shown().to_string());
        }
        print::err_report(&told);
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    const REMEDY: &str = "give a file that `damo record` or `perf mem record` wrote";
    let name = path.shown();
    ensure!(
        !path.is_dir(),
        "{name} is a folder; {REMEDY}, and record with perf without --threads"
    );
    hither_files::read_named(path, MOST_BYTES).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => anyhow!(
            "{name} has more than {}, which are the most that are read; record a shorter time, or \
             fewer samples",
            print::size(MOST_BYTES >> 10)
        ),
        _ => anyhow::Error::new(error).context(format!("{name} cannot be read; {REMEDY}")),
    })
}
