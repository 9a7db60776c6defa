//! `--place` and `--threads` through the preload shim: rules worked out before the program starts,
//! and what came of them.

use crate::print;
use crate::sites::Shim;
use anyhow::{Context, anyhow, bail, ensure};
use hither_core::bind::Mode;
use hither_core::bind::rules::WrittenRule;
use hither_core::foreign::Foreign;
use hither_core::ids::CpuId;
use hither_core::rset::{ResourceSet, Resources};
use hither_core::shim::{self, MOST_RULES, Plan, Rule};
use hither_linux::bind::board::{Board, Counts, RuleCounts};
use hither_linux::bind::loaded::Missed;
use hither_linux::bind::range;
use hither_linux::root::Root;
use serde_json::json;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// Bytes of a call: an address in front of it or in it names it.
const CALL_BYTES: u64 = 8;

/// What the shim is told.
#[derive(Debug)]
pub struct Redirect {
    /// `None` where threads alone are to be placed and there is no shim: they are looked for.
    shim: Option<Shim>,
    plan: Plan,
    /// Rules as written, and how many of the plan's each has become.
    written: Vec<(String, usize)>,
    /// Shared with the programs.
    pub board: Rc<Board>,
    missed: Missed,
    /// Why there is no shim.
    pub warning: Option<String>,
}

impl Redirect {
    /// Works rules out. `set` is meant where a rule names none; `program` is what will be run.
    ///
    /// # Errors
    /// Rules that come to nothing or are refused by the kernel, sites that are not there, no shim.
    pub fn new(
        rules: &[WrittenRule],
        order: &[CpuId],
        set: &ResourceSet,
        program: &OsStr,
        resources: &Resources,
    ) -> anyhow::Result<Self> {
        let mut plan = Plan {
            board: None,
            cpus: order.to_vec(),
            nodes: resources.usable().nodes.iter().map(|node| node.0).collect(),
            rules: Vec::new(),
        };
        let mut written = Vec::new();
        for rule in rules {
            let sites = match &rule.site {
                None => vec![None],
                Some(words) => sites(words, program)
                    .with_context(|| format!("--place '{}'", rule.text()))?
                    .into_iter()
                    .map(Some)
                    .collect(),
            };
            written.push((rule.text().to_owned(), sites.len()));
            for site in sites {
                let rule = rule
                    .resolve(set, site, resources)
                    .map_err(|why| anyhow!(why))?;
                plan.rules.push(rule);
            }
        }
        ensure!(
            plan.rules.len() <= MOST_RULES,
            "--place: {} rules are too many, as functions of one name count one by one; give \
             {MOST_RULES} at most",
            plan.rules.len()
        );
        plan.rules.iter().try_for_each(try_out)?;
        let (shim, warning) = match Shim::find() {
            Ok(shim) => (Some(shim), None),
            Err(error) if rules.is_empty() => {
                let told = format!("threads are looked for, as there is no shim: {error:#}");
                (None, Some(told))
            }
            Err(error) => return Err(error.context("--place")),
        };
        let mut redirect = Self {
            shim,
            plan,
            written,
            board: Rc::new(Board::new(order.len())?),
            missed: Missed::default(),
            warning,
        };
        redirect.plan.board = redirect.board.id();
        redirect.do_without_board();
        Ok(redirect)
    }

    /// Without a board rules are followed all the same, and not counted. Who sits where would be known
    /// to nobody: threads are looked for.
    fn do_without_board(&mut self) {
        let (Some(_), Some(error)) = (&self.shim, self.board.refusal()) else {
            return;
        };
        let why = format!("this system gives no memory to share with the program: {error}");
        self.plan.cpus.clear();
        self.warning = Some(match self.plan.rules.is_empty() {
            true => format!("threads are looked for, as {why}"),
            false => format!("what rules do is not counted, as {why}"),
        });
        if self.plan.rules.is_empty() {
            self.shim = None;
        }
    }

    /// Does the program load the shim, and tell what it does?
    #[must_use]
    pub fn has_shim(&self) -> bool {
        self.shim.is_some() && self.board.refusal().is_none()
    }

    /// For the program and what it starts.
    pub fn attach(&self, command: &mut Command) {
        if let Some(shim) = &self.shim {
            shim.preload(command);
            command.env(shim::environment::PLAN, self.plan.to_string());
            match self.board.path() {
                Some(path) => command.env(shim::environment::BOARD, path),
                None => command.env_remove(shim::environment::BOARD),
            };
        }
    }

    /// Looks which of these processes did not load the shim, if it is time. Returns when it is next.
    pub fn turn(&mut self, now_us: u64, root: &Root, pids: &[i32]) -> u64 {
        let Some(shim) = &self.shim else {
            return u64::MAX;
        };
        let variable = shim::environment::PLAN;
        (self.missed).turn(now_us, root, pids, shim.path(), variable);
        self.missed.next_us()
    }

    /// What came of it.
    #[must_use]
    pub fn finish(self) -> Redirected {
        let mut numbers = 0..;
        let rules = self.written.iter().map(|(text, count)| {
            let mut sum = RuleCounts::default();
            for number in numbers.by_ref().take(*count) {
                let counts = self.board.rule(number);
                sum.block_count += counts.block_count;
                sum.bytes += counts.bytes;
                sum.map_count += counts.map_count;
                sum.unplaced_count += counts.unplaced_count;
                sum.coarse_count += counts.coarse_count;
            }
            (text.clone(), sum)
        });
        let rules = match self.has_shim() {
            true => rules.collect(),
            // Nobody counts.
            false => Vec::new(),
        };
        Redirected {
            rules,
            counts: self.board.counts(),
            has_shim: self.has_shim(),
            missed: self.missed,
        }
    }
}

/// A policy that the kernel does not take is refused before anything runs.
fn try_out(rule: &Rule) -> anyhow::Result<()> {
    // The default one leaves memory to the allocator: the kernel is not asked.
    if rule.policy.mode == Mode::Default {
        return Ok(());
    }
    range::try_out(&rule.policy).context("--place")
}

/// Code that a rule means: `FUNCTION` of the program, `FILE:FUNCTION`, `FILE+0x123`.
fn sites(words: &str, program: &OsStr) -> anyhow::Result<Vec<shim::Site>> {
    let name = |path: &Path| -> anyhow::Result<String> {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_told = !name.is_empty() && name.len() < 256 && !name.contains([' ', ';']);
        ensure!(is_told, "{}: no rule can name this file", path.shown());
        Ok(name.to_owned())
    };
    if let Some((file, offset)) = words.rsplit_once("+0x") {
        let start = u64::from_str_radix(offset, 16).map_err(|_| {
            anyhow!("`{words}`: write an offset in hexadecimal, as in libfoo.so+0x1a2b")
        })?;
        return Ok(vec![shim::Site {
            module: name(Path::new(file))?,
            start,
            end: start.saturating_add(CALL_BYTES),
        }]);
    }
    // Names of functions may have colons, by two.
    let own = || -> anyhow::Result<PathBuf> {
        found(program).with_context(|| format!("program `{}` is not there", program.shown()))
    };
    let (path, function) = match words.split_once(':') {
        Some((file, function)) if !function.starts_with(':') => (PathBuf::from(file), function),
        _ => (own()?, words),
    };
    let ranges = hither_symbols::functions(&path, function).map_err(|why| anyhow!(why))?;
    if ranges.is_empty() {
        bail!(
            "{} has no function `{function}` in its symbol table; inlined ones are part of who calls \
             them. Name the file of another object, as in ./libfoo.so:{function}, or an address, as \
             in libfoo.so+0x1a2b",
            path.shown()
        );
    }
    let module = name(&path)?;
    let site = |(start, end)| shim::Site {
        module: module.clone(),
        start,
        end,
    };
    Ok(ranges.into_iter().map(site).collect())
}

/// The file that a command's first word means.
pub fn found(program: &OsStr) -> Option<PathBuf> {
    let named = Path::new(program);
    let candidates = match named.components().count() {
        0 | 1 if !program.as_encoded_bytes().contains(&b'/') => {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path)
                .map(|folder| folder.join(named))
                .collect()
        }
        _ => vec![named.to_owned()],
    };
    let file = candidates.into_iter().find(|path| path.is_file())?;
    file.canonicalize().ok()
}

/// What the shim did.
#[derive(Debug)]
pub struct Redirected {
    rules: Vec<(String, RuleCounts)>,
    counts: Counts,
    has_shim: bool,
    missed: Missed,
}

impl Redirected {
    /// Were there rules?
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let missed = self.missed.told();
        if self.has_shim && self.counts.process_count == 0 && missed.is_empty() {
            text += "shim: no program loaded it (static ones, and those of other users, do not)\n";
        }
        for sentence in missed {
            text += &format!("{sentence}\n");
        }
        if self.counts.aside_count > 0 {
            text += &format!(
                "shim: stands aside in {} that a sanitizer checks (AddressSanitizer and others): \
                 nothing is placed there; build without it\n",
                print::count(self.counts.aside_count as usize, "program")
            );
        }
        for (rule, counts) in &self.rules {
            text += &format!(
                "rule '{rule}': {} of {} placed",
                print::count(counts.block_count as usize, "block"),
                print::bytes(counts.bytes)
            );
            for (count, what) in [
                (counts.map_count, "of them by mmap"),
                (counts.coarse_count, "in fewer parts than asked for"),
                (counts.unplaced_count, "went elsewhere"),
            ] {
                if count > 0 {
                    text += &format!(", {count} {what}");
                }
            }
            if counts.unplaced_count > 0 && self.counts.narrow_count > 0 {
                text += ", as address space is limited: raise the limit (ulimit -v)";
            }
            text.push('\n');
        }
        if self.counts.thread_count > 0 {
            text += &format!(
                "threads: {} placed before their first instruction\n",
                self.counts.thread_count
            );
        }
        if self.counts.refused_count > 0 {
            text += &format!("threads: {} could not be\n", self.counts.refused_count);
        }
        text
    }

    /// The same for programs (`placed.shim` of hither.run/1).
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        if !self.has_shim {
            return serde_json::Value::Null;
        }
        let rule = |(rule, counts): &(String, RuleCounts)| {
            json!({
                "rule": rule,
                "blocks": counts.block_count,
                "bytes": counts.bytes,
                "mappings": counts.map_count,
                "unplaced_blocks": counts.unplaced_count,
                "coarse_blocks": counts.coarse_count,
            })
        };
        let missed = self.missed.names();
        let missed = missed.map(|(why, names)| json!({"why": why.name(), "programs": names}));
        json!({
            "processes": self.counts.process_count,
            "threads": self.counts.thread_count,
            "refused_threads": self.counts.refused_count,
            "freed_blocks": self.counts.freed_count,
            "sanitized_processes": self.counts.aside_count,
            "narrow_processes": self.counts.narrow_count,
            "missed": missed.collect::<Vec<_>>(),
            "rules": self.rules.iter().map(rule).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_functions_files_and_offsets() {
        let own = std::env::current_exe().unwrap();
        let told = sites("libfoo.so.1+0x1a2b", OsStr::new("none")).unwrap();
        assert_eq!(
            told,
            [shim::Site {
                module: "libfoo.so.1".to_owned(),
                start: 0x1a2b,
                end: 0x1a33
            }]
        );
        let name = "redirect::tests::sites_are_functions_files_and_offsets";
        let told = sites(name, own.as_os_str()).unwrap();
        assert_eq!(told[0].module, own.file_name().unwrap().to_str().unwrap());
        let file = format!("{}:{name}", own.display());
        assert_eq!(sites(&file, OsStr::new("none")).unwrap(), told);
        for (words, part) in [
            ("no_such_function", "has no function"),
            ("a b+0x1", "can name"),
            ("libfoo.so+0xg", "hexadecimal"),
            ("/no/such/file:load", "No such file"),
        ] {
            let why = format!("{:#}", sites(words, own.as_os_str()).unwrap_err());
            assert!(why.contains(part), "{words}: {why}");
        }
        let why = sites("load", OsStr::new("hither-no-such-program")).unwrap_err();
        assert!(why.to_string().contains("is not there"));
        assert!(found(OsStr::new("sh")).unwrap().is_absolute());
    }
}
