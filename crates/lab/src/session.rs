//! A lab made ready, and what one boot of it does.
//!
//! [`Lab::prepare`] checks everything that can be checked without booting, so that bad input
//! costs no boot. [`Lab::boot`] packs, starts QEMU and hands what the guest sends to a
//! [`Viewer`].

use crate::back::Back;
use crate::boot::{Emulator, Start};
use crate::cache::Cache;
use crate::compare::{Comparison, Run, Setting};
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::fetch::{self, Qemu};
use crate::image::{self, AGENT_PATH, Image};
use crate::os;
use crate::policies::{Choice, Launch};
use crate::protocol::{self, Job, RunSpec, Stdin};
use crate::qemu::{self, HugePages, Parts, Plugin, PluginMode};
use crate::viewer::{self, Show, Viewer};
use crate::waiting;
use hither_core::foreign::Foreign;
use hither_core::machine::{Machine, parse, scale, write};
use hither_core::opium;
use hither_core::policy::Rung;
use hither_core::set::NodeSet;
use hither_linux::parts;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// CPUs where the command line names no number: what a small host emulates at bearable speed.
const DEFAULT_CPUS: usize = 8;
/// Memory per node where the command line names none, in MiB: room for programs of some 100 MB
/// anywhere, on a host of 8 GB.
const DEFAULT_MEMORY_MB: u64 = 1024;
/// Guest time between points of a timeline, in ms: a read costs some 50 us of one CPU, 0.05 %.
const SAMPLE_MS: u64 = 100;
/// How often an emulator that crashes before the guest is up is started.
const MOST_STARTS: u32 = 3;
/// Folder of hither and of busybox's commands in the guest, last in `PATH`.
const APPLETS: &str = "/hither/bin";

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Machine file.
    pub machine_file: PathBuf,
    /// CPUs to scale it to.
    pub cpus: Option<usize>,
    /// MiB of memory: nothing, one size for all nodes, or one for each.
    pub memory_mb: Vec<u64>,
    /// `newest`, `6.12` or a kernel image.
    pub kernel: String,
    /// Nodes that the guest does not get.
    pub offline: NodeSet,
    /// Disk and network.
    pub devices: Devices,
    /// Transparent huge pages.
    pub huge_pages: HugePages,
    /// Host time for the whole boot.
    pub timeout: Option<Duration>,
    /// Extra files.
    pub files: Vec<PathBuf>,
    /// Extra variables of the program's environment.
    pub env: Vec<(String, String)>,
    /// Files to bring back.
    pub back: Vec<Back>,
    /// What the plugin does; without it time is the host's: for trying out the lab itself.
    pub plugin: Option<PluginMode>,
    /// The hither binary that becomes the guest's agent; the plugin is looked for beside it.
    pub agent: PathBuf,
    /// What hither may decide by, where a policy names nothing else.
    pub evidence: Rung,
    /// More arguments for `hither run` in the guest.
    pub hither_arguments: Vec<String>,
}

/// A lab that can boot.
#[derive(Debug)]
pub struct Lab {
    options: Options,
    machine: Machine,
    /// What was scaled, memory left out: it is told by its numbers.
    scaling: String,
    qemu: Qemu,
    kernel: PathBuf,
    plugin: Option<PathBuf>,
}

/// A program that a boot runs.
#[derive(Debug)]
struct Program {
    argv: Vec<String>,
    path: PathBuf,
}

impl Program {
    fn find(argv: &[String]) -> Result<Self> {
        Ok(Self {
            path: image::find_program(&argv[0])?,
            argv: argv.to_vec(),
        })
    }

    /// A run of it. The program is named as typed where it is a path, so that a script sees the same name
    /// of itself; the working folder is the same there.
    fn run(&self, policy: &str, evidence: Rung, reset: bool) -> Result<RunSpec> {
        let choice = Choice::parse(policy, evidence)?;
        Ok(RunSpec {
            argv: self.argv.clone(),
            program: match self.argv[0].contains('/') {
                true => self.argv[0].clone(),
                false => text_of(&self.path)?,
            },
            policy: choice.policy,
            launch: choice.launch,
            evidence: choice.evidence,
            learns: choice.learns,
            reset,
        })
    }
}

impl Lab {
    /// Reads the machine file and finds QEMU, kernel and plugin.
    ///
    /// # Errors
    /// What is wrong or missing, with place and remedy.
    pub fn prepare(options: Options) -> Result<Self> {
        let (machine, scaling) = machine(&options)?;
        qemu::check(&machine)?;
        qemu::offline::kernel_arguments(&machine, &options.offline)?;
        let cache = Cache::of_user()?;
        let kernel = cache.choose(&options.kernel)?;
        let plugin = if options.plugin.is_some() {
            Some(find_plugin(&options.agent)?)
        } else {
            None
        };
        check_memory(&machine, os::physical_memory_mb())?;
        (options.devices).check(&cache, &options.kernel, os::physical_memory_mb())?;
        let qemu = fetch::find_qemu()?;
        Ok(Self {
            options,
            machine,
            scaling,
            qemu,
            kernel,
            plugin,
        })
    }

    /// The machine as the guest gets it.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// One line for a person: what is about to be emulated.
    #[must_use]
    pub fn summary(&self) -> String {
        let memory: Vec<String> = self
            .machine
            .nodes
            .iter()
            .map(|node| node.memory_mb.to_string())
            .collect();
        let mut text = format!(
            "{}: {} CPUs, {} with {} MiB, huge pages {}, QEMU {}",
            self.machine.name,
            self.machine.cpu_count(),
            crate::compare::nodes(self.machine.nodes.len()),
            memory.join(" + "),
            self.options.huge_pages.name(),
            self.qemu.version
        );
        if !self.scaling.is_empty() {
            text.push_str(&format!("\n{}", self.scaling));
        }
        if !qemu::cache_sharing_is_visible(&self.machine) {
            text.push_str("\nthe guest's sysfs cannot show which CPUs share a cache; hither reads it from the machine file");
        }
        text
    }

    /// Runs a program once; the result and where it was made.
    ///
    /// # Errors
    /// As [`Lab::boot`].
    pub fn run(&self, argv: &[String], policy: &str) -> Result<(Run, Setting)> {
        let program = Program::find(argv)?;
        let spec = program.run(policy, self.options.evidence, false)?;
        if spec.launch == Launch::Oracle {
            return Err(Error::bad(
                format!("`{policy}` places by what a run before has counted, and this is one run"),
                format!("use `hither lab compare --policies first-touch,{policy}`"),
            ));
        }
        let show = Show::Stream;
        let viewer = self.boot(
            &[program],
            vec![spec],
            Stdin::Pipe,
            Viewer::new(show, vec![policy.into()], self.options.back.clone()),
        )?;
        let setting = self.setting(argv, &viewer.kernel);
        let run = viewer
            .runs
            .into_iter()
            .next()
            .ok_or_else(|| Error::guest_sent("no result"))?;
        Ok((run, setting))
    }

    /// Runs one program after another under each policy, `repeat` times, in one boot. Under one that begins with
    /// what was learned each program runs once more, first of all, to be learned.
    ///
    /// # Errors
    /// As [`Lab::boot`].
    pub fn compare(
        &self,
        commands: &[Vec<String>],
        policies: &[String],
        repeat: usize,
    ) -> Result<Vec<Comparison>> {
        let programs = commands.iter().map(|argv| Program::find(argv));
        let programs: Vec<Program> = programs.collect::<Result<_>>()?;
        let mut order = Vec::new();
        for (at, policy) in policies.iter().enumerate() {
            if Choice::parse(policy, self.options.evidence)?.learns {
                order.push(at);
            }
        }
        let teaching = order.len();
        order.extend(crate::compare::order(policies.len(), repeat));
        let (mut specs, mut names) = (Vec::new(), Vec::new());
        for program in &programs {
            for &policy in &order {
                let policy = &policies[policy];
                specs.push(program.run(policy, self.options.evidence, true)?);
                names.push(policy.clone());
            }
        }
        let mut viewer = self.boot(
            &programs,
            specs,
            Stdin::Null,
            Viewer::new(Show::Prefixed, names, self.options.back.clone()),
        )?;
        for (run, &policy) in viewer.runs.iter_mut().zip(order.iter().cycle()) {
            run.policy = policy;
        }
        let of_each = commands.iter().zip(viewer.runs.chunks(order.len()));
        let comparisons = of_each.map(|(argv, runs)| {
            let runs = runs.get(teaching..).unwrap_or_default();
            Comparison::new(self.setting(argv, &viewer.kernel), policies, runs)
        });
        Ok(comparisons.collect())
    }

    /// A shell for a person; its exit status.
    ///
    /// # Errors
    /// As [`Lab::boot`], and where there is no shell.
    pub fn shell(&self) -> Result<u8> {
        let (path, name) = match image::find_program("busybox") {
            Ok(path) => (path, "sh"),
            Err(_) => (image::find_program("/bin/sh")?, "/bin/sh"),
        };
        let terminal = os::is_terminal(0) && os::is_terminal(1);
        let program = Program {
            path,
            argv: vec![name.into()],
        };
        let stdin = if terminal {
            Stdin::Terminal
        } else {
            Stdin::Pipe
        };
        let show = if terminal {
            Show::Terminal
        } else {
            Show::Stream
        };
        let names = vec!["shell".into()];
        let spec = program.run("first-touch", self.options.evidence, false)?;
        let viewer = self.boot(
            &[program],
            vec![spec],
            stdin,
            Viewer::new(show, names, self.options.back.clone()),
        )?;
        Ok(viewer.runs.first().map_or(0, |run| run.ended.status))
    }

    /// Is time modelled, and the Opium device alive?
    fn models(&self) -> bool {
        self.options.plugin == Some(PluginMode::Model)
    }

    fn setting(&self, argv: &[String], kernel: &str) -> Setting {
        Setting {
            machine: self.machine.name.clone(),
            scaling: self.scaling.clone(),
            cpus: self.machine.cpu_count(),
            memory_mb: self
                .machine
                .nodes
                .iter()
                .map(|node| node.memory_mb)
                .collect(),
            kernel: kernel.to_owned(),
            thp: self.options.huge_pages.name().to_owned(),
            modelled: self.models(),
            command: argv.to_vec(),
        }
    }

    /// One boot: everything from packing to power-off. An emulator that crashes or hangs before the
    /// guest is up is started again: QEMU 10.0's map of the machine's memory has a race between its CPUs
    /// (`iotlb_to_section: Assertion`, QEMU's issue 1921), met once in some hundred boots.
    fn boot(
        &self,
        programs: &[Program],
        runs: Vec<RunSpec>,
        stdin: Stdin,
        mut viewer: Viewer,
    ) -> Result<Viewer> {
        let machine_text = write::to_toml(&self.machine);
        let image = self.image(programs, &self.job(runs, stdin)?, &machine_text)?;
        let initrd =
            os::memory_file(c"hither-image").map_err(Error::io("making the guest image"))?;
        image.write(std::io::BufWriter::new(&initrd))?;
        drop(image);
        let others = waiting::laboratories(Path::new("/proc"));
        viewer::note(&waiting::announcement(self.options.timeout, &others));
        let mut starts = 1;
        loop {
            match self.start(&initrd, &machine_text)?.serve(&mut viewer) {
                Err(Error::Crashed { what, .. }) if starts < MOST_STARTS => {
                    viewer::note(&format!("{what}\nstarting it again"));
                    starts += 1;
                }
                ended => {
                    ended?;
                    viewer.finish()?;
                    return Ok(viewer);
                }
            }
        }
    }

    /// Starts QEMU on an image.
    fn start(&self, initrd: &File, machine_text: &str) -> Result<Emulator> {
        let machine_file =
            os::memory_file(c"hither-machine").map_err(Error::io("handing the machine over"))?;
        std::io::Write::write_all(&mut &machine_file, machine_text.as_bytes())
            .map_err(Error::io("handing the machine over"))?;
        let device =
            os::memory_file(c"hither-opium").map_err(Error::io("making the Opium device"))?;
        device
            .set_len(opium::SIZE as u64)
            .map_err(Error::io("making the Opium device"))?;
        let disk = self.options.devices.disk()?;
        let (ours, theirs) =
            os::socket_pair().map_err(Error::io("making the channel to the guest"))?;
        let memory = self.shared_memory()?;
        let plugin = self.plugin.as_ref().map(|path| Plugin {
            path: path.to_string_lossy().into_owned(),
            machine: inherited(&machine_file),
            opium: inherited(&device),
            memory: memory.iter().map(inherited).collect(),
            mode: self.options.plugin.unwrap_or(PluginMode::Model),
        });
        let parts = Parts {
            kernel: self.kernel.to_string_lossy().into_owned(),
            initrd: inherited(initrd),
            channel_fd: theirs.as_raw_fd(),
            plugin,
            devices: self.options.devices,
            disk: disk.as_ref().map(inherited),
            huge_pages: self.options.huge_pages,
            kernel_arguments: qemu::offline::kernel_arguments(
                &self.machine,
                &self.options.offline,
            )?,
        };
        let mut inherit: Vec<RawFd> = vec![
            initrd.as_raw_fd(),
            machine_file.as_raw_fd(),
            device.as_raw_fd(),
            theirs.as_raw_fd(),
        ];
        inherit.extend(disk.as_ref().map(AsRawFd::as_raw_fd));
        inherit.extend(memory.iter().map(AsRawFd::as_raw_fd));
        let start = Start {
            qemu: &self.qemu.path,
            arguments: qemu::arguments(&self.machine, &parts)?,
            preload: self.plugin.clone(),
            inherit,
            timeout: self.options.timeout,
            cpus: self.machine.cpu_count() as u32,
        };
        // What QEMU inherits closes here: it has its copies, and with our copy of the channel's other side
        // open the end of the channel would never be seen.
        Emulator::start(start, ours)
    }

    /// Files for the nodes' memory, where a copy engine is to reach it. Other machines have none: memory of
    /// files may get no huge pages on the host.
    fn shared_memory(&self) -> Result<Vec<File>> {
        if self.machine.engine.is_none() || !self.models() {
            return Ok(Vec::new());
        }
        let file = |node: &hither_core::machine::Node| {
            let file = os::memory_file(c"hither-memory")?;
            file.set_len(node.memory_mb << 20)?;
            Ok(file)
        };
        let files: std::io::Result<_> = self.machine.nodes.iter().map(file).collect();
        files.map_err(Error::io("making the guest's memory"))
    }

    fn job(&self, runs: Vec<RunSpec>, stdin: Stdin) -> Result<Job> {
        let cwd = std::env::current_dir().map_err(Error::io("asking for the current folder"))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut env = vec![
            (
                "PATH".to_owned(),
                format!("{path}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:{APPLETS}"),
            ),
            ("HOME".to_owned(), "/root".to_owned()),
            ("USER".to_owned(), "root".to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            (
                "TERM".to_owned(),
                std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned()),
            ),
            (
                "HITHER_MACHINE".to_owned(),
                protocol::MACHINE_PATH.to_owned(),
            ),
        ];
        env.extend(self.options.env.iter().cloned());
        Ok(Job {
            version: protocol::VERSION,
            cwd: text_of(&cwd)?,
            env,
            stdin,
            runs,
            back: self
                .options
                .back
                .iter()
                .map(|back| back.guest.clone())
                .collect(),
            devices: self.options.devices,
            sample_ms: SAMPLE_MS,
            opium: self.models(),
            node_cpus: self
                .machine
                .nodes
                .iter()
                .map(|node| {
                    let online = !self.options.offline.contains(node.id);
                    online.then(|| node.cpus.to_string())
                })
                .collect(),
            hither_arguments: self.options.hither_arguments.clone(),
        })
    }

    fn image(&self, programs: &[Program], job: &Job, machine_text: &str) -> Result<Image> {
        let mut image = Image::new();
        image.add_closure_of(&self.options.agent)?;
        image.add_stripped(&self.options.agent, AGENT_PATH)?;
        image.add_link(&format!("{APPLETS}/hither"), AGENT_PATH);
        if let Some(shim) = find_shim(&self.options.agent) {
            // It needs no library beyond the C library, which hither needs, too.
            image.add_stripped(&shim, &format!("/hither/{}", parts::SHIM.file))?;
        }
        for program in programs {
            image.add_program(&program.path)?;
        }
        // Programs reach the shell through system(3), scripts by its name.
        image.add_program(Path::new("/bin/sh"))?;
        for file in &self.options.files {
            image.add_extra(&named_file(file)?)?;
        }
        if let Ok(busybox) = image::find_program("busybox") {
            image.add_program(&busybox)?;
            add_applets(&mut image, &busybox)?;
        }
        if Path::new("/etc/ld.so.cache").is_file() {
            image.add_as(Path::new("/etc/ld.so.cache"), "/etc/ld.so.cache")?;
        }
        (self.options.devices).pack(&Cache::of_user()?, &self.options.kernel, &mut image)?;
        image.add_text(protocol::MACHINE_PATH, machine_text);
        let text = serde_json::to_vec(job)
            .map_err(|error| Error::bad(format!("the job: {error}"), "use plain text arguments"))?;
        image.add_text(protocol::JOB_PATH, text);
        let content_mb = image.content_bytes() >> 20;
        let total_mb: u64 = self.machine.nodes.iter().map(|node| node.memory_mb).sum();
        // While it is unpacked the guest holds it twice.
        if content_mb * 4 > total_mb {
            return Err(Error::bad(
                format!(
                    "program and files have {content_mb} MiB, too much for a guest of {total_mb} MiB"
                ),
                format!(
                    "give each node more with --memory {}",
                    content_mb * 4 / self.machine.nodes.len() as u64 + 64
                ),
            ));
        }
        Ok(image)
    }
}

/// Where a child that inherits a file finds it.
fn inherited(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn text_of(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::bad(
            format!("{}: the path is not UTF-8", path.shown()),
            "give it a plain name",
        )
    })
}

/// Machine file, scaled to the CPUs and memory asked for, and what scaling the CPUs changed.
fn machine(options: &Options) -> Result<(Machine, String)> {
    let file = parts::find_machine(&options.agent, &options.machine_file)
        .map_err(|part| Error::bad(format!("--machine {}", part.what), part.remedy))?;
    let path = file.shown();
    let text = hither_files::read_named_text(&file, parse::limits::TEXT_BYTES as u64).map_err(
        |cause| {
            Error::bad(
                format!("--machine {path}: {cause}"),
                "name a machine file; docs/machine-files.md describes them",
            )
        },
    )?;
    let machine = parse::parse(&text).map_err(|error| {
        Error::bad(
            format!("{path}: {error}"),
            "correct that line; docs/machine-files.md describes every field",
        )
    })?;
    let cpus = options
        .cpus
        .unwrap_or_else(|| machine.cpu_count().min(DEFAULT_CPUS));
    let machine = scale::scale(&machine, cpus)
        .map_err(|error| Error::bad(error.to_string(), "choose another --cpus"))?;
    let scaling = machine.scaling.clone();
    let sizes = memory_of(&machine, &options.memory_mb)?;
    let memory = |node: &hither_core::machine::Node| {
        machine
            .node_position(node.id)
            .map_or(node.memory_mb, |position| sizes[position])
    };
    let machine = scale::with_memory_mb(&machine, &memory)
        .map_err(|error| Error::bad(error.to_string(), "choose another --memory"))?;
    Ok((machine, scaling))
}

/// MiB of each node, by position, for what `--memory` asks: nothing, one size for all, or one for each.
fn memory_of(machine: &Machine, asked_mb: &[u64]) -> Result<Vec<u64>> {
    let nodes = &machine.nodes;
    match asked_mb {
        [] => Ok((nodes.iter())
            .map(|node| node.memory_mb.min(DEFAULT_MEMORY_MB))
            .collect()),
        &[all] => Ok(vec![all; nodes.len()]),
        each if each.len() == nodes.len() => Ok(each.to_vec()),
        each => Err(Error::bad(
            format!(
                "--memory names {} sizes, {} has {}",
                each.len(),
                machine.name,
                crate::compare::nodes(nodes.len())
            ),
            "give one size for all nodes, or one for each as in 512,1024",
        )),
    }
}

/// The guest's memory is taken as it is touched, but more than the host has cannot end well.
fn check_memory(machine: &Machine, host_mb: u64) -> Result<()> {
    let total_mb: u64 = machine.nodes.iter().map(|node| node.memory_mb).sum();
    if host_mb == 0 || total_mb <= host_mb {
        return Ok(());
    }
    let fitting = host_mb / 2 / machine.nodes.len() as u64;
    Err(Error::bad(
        format!("the guest's {total_mb} MiB are more than the {host_mb} MiB of this machine"),
        format!("give each node less, as with --memory {fitting}"),
    ))
}

/// The plugin that comes with this program, by an absolute path: QEMU gets it by its variable, too.
fn find_plugin(agent: &Path) -> Result<PathBuf> {
    let own = agent.canonicalize().unwrap_or_else(|_| agent.to_owned());
    let named = std::env::var_os(parts::PLUGIN.variable).map(PathBuf::from);
    let path = parts::PLUGIN.find(&own, named).map_err(missing)?;
    path.canonicalize()
        .map_err(Error::io(format!("resolving {}", path.shown())))
}

/// The shim, which the guest's hither looks for beside itself. Where there is none, it says so itself
/// once a program asks for it.
fn find_shim(agent: &Path) -> Option<PathBuf> {
    let named = std::env::var_os(parts::SHIM.variable).map(PathBuf::from);
    parts::SHIM.find(agent, named).ok()
}

fn missing(part: parts::Missing) -> Error {
    Error::missing(part.what, part.remedy)
}

/// A `--file`: a path, or a program's name found through `PATH`.
fn named_file(file: &Path) -> Result<PathBuf> {
    if fs::symlink_metadata(file).is_ok() {
        return Ok(file.to_owned());
    }
    let name = file.to_string_lossy();
    let bare = !name.contains('/');
    let found = if bare {
        image::find_program(&name).ok()
    } else {
        None
    };
    found.ok_or_else(|| {
        Error::bad(
            format!("--file {name}: there is no such file"),
            "check the path",
        )
    })
}

fn add_applets(image: &mut Image, busybox: &Path) -> Result<()> {
    let output = Command::new(busybox)
        .arg("--list")
        .output()
        .map_err(Error::io("asking busybox for its commands"))?;
    let target = text_of(busybox)?;
    for name in String::from_utf8_lossy(&output.stdout).lines() {
        image.add_link(&format!("{APPLETS}/{name}"), &target);
    }
    Ok(())
}
