//! The experiments: one command each.
//!
//! `{programs}` is the folder of `hither` and of the repository's programs, `{scripts}` that of its scripts, `{traces}`
//! that of its load traces. Words are split at blanks; what stands between single quotes is one word. How long each
//! takes of the host is the time that it took on two busy CPUs, where it was run there, else an estimate by its guest
//! time: plans go by it, figures do not.

use super::read::Reads;
use super::rows::PaperRow;
use std::collections::BTreeSet;
use std::path::Path;

/// A command that gives figures.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// As formulas name it.
    pub name: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    /// Minutes of the host.
    pub minutes: f64,
    /// The command.
    pub command: &'static str,
    /// How its output is read.
    pub reads: Reads,
}

/// The experiment of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}

/// The experiments that serve any of these rows, in the order of [`ALL`].
pub fn serving<'a>(
    rows: impl IntoIterator<Item = &'a PaperRow>,
) -> impl Iterator<Item = &'static Experiment> {
    let names: BTreeSet<&str> = rows.into_iter().flat_map(PaperRow::experiments).collect();
    ALL.iter()
        .filter(move |experiment| names.contains(experiment.name))
}

impl Experiment {
    /// The command on one line, as it is declared: paths of this machine say nothing elsewhere.
    #[must_use]
    pub fn line(&self) -> String {
        self.command
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The command's words.
    #[must_use]
    pub fn words(&self, programs: &str, scripts: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (number, part) in self.command.split('\'').enumerate() {
            match number % 2 {
                1 => words.push(part.to_owned()),
                _ => words.extend(part.split_whitespace().map(str::to_owned)),
            }
        }
        // Both folders are the repository's.
        let traces = Path::new(scripts).with_file_name("workloads/traces");
        let filled = |word: String| {
            word.replace("{programs}", programs)
                .replace("{scripts}", scripts)
                .replace("{traces}", &traces.to_string_lossy())
        };
        words.into_iter().map(filled).collect()
    }
}

/// A program of the ccNUMA paper on 16 CPUs: pages striped, arrays in blocks, and one thread with local memory; with
/// what the device counts of each of the first two.
/// Each has a boot of its own (docs/workloads.md, page colours).
macro_rules! program {
    ($program:literal) => {
        program!($program, "")
    };
    ($program:literal, $arguments:literal) => {
        concat!(
            "{programs}/hither lab run --machine ibm-ccnuma --cpus 16 --timeout 15m --file {programs}/",
            $program,
            " --file {programs}/examples/transactions --file {programs}/libhither_preload.so \
             --env HITHER_PRELOAD={programs}/libhither_preload.so -- sh -c 'count={programs}/examples/transactions; \
             echo == striped; $count /hither/hither run --memory striped -- {programs}/",
            $program,
            $arguments,
            " --threads 16; echo == blocks; $count /hither/hither run --place \"size>=4K: blocks\" -- {programs}/",
            $program,
            $arguments,
            " --threads 16; echo == alone; /hither/hither run --on cpus:0 --memory local -- {programs}/",
            $program,
            $arguments,
            " --threads 1'"
        )
    };
}

/// A program on Carrefour's machine, scaled to 8 CPUs, under its policy.
macro_rules! carrefour {
    ($program:literal) => {
        concat!(
            "{programs}/hither lab compare --machine opteron8385 --cpus 8 --timeout 2h \
             --policies first-touch,interleave,carrefour@device --json=- -- {programs}/",
            $program
        )
    };
}

/// HyDM's programs, on CPUs that a seed draws.
macro_rules! mix {
    ($seed:literal) => {
        mix!("16", "24", $seed)
    };
    ($programs:literal, $mb:literal, $seed:literal) => {
        concat!(
            "{programs}/hither lab compare --machine knl7250-npb --cpus 4 --memory 768,72 --timeout 30m \
             --policies first-touch,hydm@device --file {programs}/npb --json=- -- \
             {programs}/mix --programs ",
            $programs,
            " --scale-mb ",
            $mb,
            " --seed ",
            $seed
        )
    };
}

/// Latency and bandwidth of both memories of a machine file, from the first socket's CPUs.
macro_rules! throttle {
    ($machine:literal, $cpus:literal) => {
        concat!(
            "{programs}/hither lab run --machine ",
            $machine,
            " --cpus ",
            $cpus,
            " --timeout 10m --file {programs}/memlat --file {programs}/stream -- \
             sh -c 'for node in 0 1; do echo == node$node; \
             {programs}/memlat --mb 64 --accesses 1000000 --node $node --cpu 0; \
             {programs}/stream read --mb 64 --iterations 3 --cpus 0,1,2,3,4,5 --node $node; done'"
        )
    };
}

/// A job by its load trace, with half of the fast memory and with a goal.
macro_rules! e_states {
    ($name:literal, $what:literal, $trace:literal) => {
        of(
            $name,
            10.0,
            Reads::Lines,
            concat!($what, "with half of the fast memory and with a goal; slow memory 5.2 times as slow"),
            concat!(
                "{programs}/hither lab run --machine westmere-m2 --cpus 2 --memory 512,1024 --evidence pmu --timeout 1h \
                 --file {programs}/memstore --file {scripts}/quota-guest.sh --file {traces}/",
                $trace,
                " -- sh -c 'PATH=/hither:{programs}:$PATH exec {scripts}/quota-guest.sh one_job {traces}/",
                $trace,
                "'"
            ),
        )
    };
}

const fn of(
    name: &'static str,
    minutes: f64,
    reads: Reads,
    what: &'static str,
    command: &'static str,
) -> Experiment {
    Experiment {
        name,
        what,
        minutes,
        command,
        reads,
    }
}

/// All of them, by paper.
pub const ALL: &[Experiment] = &[
    of(
        "carrefour-latency",
        0.3,
        Reads::Lines,
        "dependent loads here and on the next node, one thread",
        "{programs}/hither lab run --machine opteron8385 --cpus 16 --timeout 5m --file {programs}/memlat -- \
         sh -c 'for node in 0 1; do echo == node$node; {programs}/memlat --mb 32 --accesses 1000000 --node $node --cpu 0; done'",
    ),
    of(
        "carrefour-remote",
        0.7,
        Reads::Lines,
        "one thread, all memory on its node or on another one",
        "{programs}/hither lab run --machine opteron8385 --cpus 16 --timeout 10m --file {programs}/cluster \
         --file {programs}/cg --file {programs}/kvstore --file {programs}/gups -- sh -c 'for memory in local remote; do \
         bound=\"/hither/hither run --on cpus:0 --memory $memory --\"; \
         echo == cluster $memory; $bound {programs}/cluster shared --threads 1 --mb 32 --rounds 8; \
         echo == cg $memory; $bound {programs}/cg --threads 1 --products 8; \
         echo == kvstore $memory; $bound {programs}/kvstore --threads 1 --mb 32 --operations 400000; \
         echo == gups $memory; $bound {programs}/gups --threads 1 --mb 32 --updates 1000000; done'",
    ),
    of(
        "carrefour-streamcluster",
        0.7,
        Reads::Compare,
        "Streamcluster's pattern on 16 CPUs, first touch and interleaved",
        "{programs}/hither lab compare --machine opteron8385 --cpus 16 --timeout 20m --policies first-touch,interleave \
         --json=- -- {programs}/cluster shared --rounds 8",
    ),
    of(
        "carrefour-pca",
        0.5,
        Reads::Compare,
        "PCA's pattern on 16 CPUs, first touch and interleaved",
        "{programs}/hither lab compare --machine opteron8385 --cpus 16 --timeout 30m --policies first-touch,interleave \
         --json=- -- {programs}/pca",
    ),
    of(
        "carrefour-gain",
        3.0,
        Reads::Compare,
        "Streamcluster's pattern under the policy carrefour, with time to act",
        carrefour!("cluster shared --rounds 48"),
    ),
    of(
        "carrefour-facerec",
        15.0,
        Reads::Compare,
        "FaceRecLong's pattern under the policy carrefour",
        carrefour!("facerec --phases 8"),
    ),
    of(
        "carrefour-is",
        3.0,
        Reads::Compare,
        "IS's bursts under the policy carrefour",
        carrefour!("is"),
    ),
    of(
        "carrefour-cg",
        5.0,
        Reads::Compare,
        "CG, whose locality is good, under the policy carrefour",
        carrefour!("cg --products 200"),
    ),
    of(
        "carrefour-mg",
        8.0,
        Reads::Compare,
        "MG, whose locality is good, under the policy carrefour",
        carrefour!("mg --local --rounds 24"),
    ),
    of(
        "carrefour-ten-runs",
        12.0,
        Reads::Compare,
        "Streamcluster's pattern ten times under each of four policies",
        "{programs}/hither lab compare --machine opteron8385 --cpus 16 --timeout 1h --repeat 10 \
         --policies first-touch,interleave,kernel,carrefour@device --json=- -- {programs}/cluster shared --rounds 8",
    ),
    of(
        "ibm-two-node",
        0.5,
        Reads::Lines,
        "bandwidth on two nodes that are joined directly, by threads and by place",
        "{programs}/hither lab run --machine ibm-two-node --cpus 8 --timeout 10m --file {programs}/stream -- \
         sh -c 'for threads in 1 4; do for kernel in read write memcpy; do for memory in local remote; do \
         echo == $kernel $threads $memory; /hither/hither run --on cpus:0-$((threads - 1)) --memory $memory -- \
         {programs}/stream $kernel --mb 8 --iterations 3 --threads $threads; done; done; done'",
    ),
    of(
        "ibm-four-node",
        1.0,
        Reads::Lines,
        "bandwidth on four nodes behind a switch, by threads and by place",
        "{programs}/hither lab run --machine ibm-ccnuma --cpus 16 --timeout 10m --file {programs}/stream -- \
         sh -c 'for threads in 1 2 4; do for kernel in read write memcpy; do for memory in local remote; do \
         echo == $kernel $threads $memory; /hither/hither run --on cpus:0-$((threads - 1)) --memory $memory -- \
         {programs}/stream $kernel --mb 8 --iterations 3 --threads $threads; done; done; done'",
    ),
    of(
        "ibm-3dfft",
        1.5,
        Reads::Lines,
        "3DFFT striped, in blocks and alone",
        program!("fft3d"),
    ),
    of(
        "ibm-ocean",
        1.5,
        Reads::Lines,
        "Ocean striped, in blocks and alone",
        program!("ocean"),
    ),
    of(
        "ibm-water",
        2.0,
        Reads::Lines,
        "Water-spatial striped, in blocks and alone",
        program!("water"),
    ),
    of(
        "ibm-nsquared",
        2.0,
        Reads::Lines,
        "Water-nsquared striped, in blocks and alone",
        program!("water", " --all-pairs --side 20 --steps 1"),
    ),
    of(
        "ibm-fmm",
        2.0,
        Reads::Lines,
        "FMM striped, in blocks and alone",
        program!("fmm"),
    ),
    of(
        "ibm-barnes",
        2.0,
        Reads::Lines,
        "Barnes-Hut striped, in blocks and alone",
        program!("barnes"),
    ),
    of(
        "ibm-barnes-extra",
        2.0,
        Reads::Lines,
        "Barnes-Hut with two arrays of bodies, striped, in blocks and alone",
        program!("barnes", " --grouped"),
    ),
    of(
        "ibm-contention",
        4.0,
        Reads::Lines,
        "four threads on one, two and four nodes, arrays in blocks",
        "{programs}/hither lab run --machine ibm-ccnuma --cpus 16 --timeout 10m --file {programs}/ocean \
         --file {programs}/fft3d --file {programs}/libhither_preload.so --env HITHER_PRELOAD={programs}/libhither_preload.so -- \
         sh -c 'for program in fft3d ocean; do set -- 0-3 0 0-1,4-5 0-1 0,4,8,12 0-3; while [ $# -gt 0 ]; do echo == $program $1; \
         /hither/hither run --on \"cpus:$1 + mem:$2\" --place \"size>=4K: blocks\" -- {programs}/$program --threads 4; shift 2; done; done'",
    ),
    of(
        "memif-small",
        3.1,
        Reads::Service,
        "requests of 4 KiB pages through the mover service, and calls of move_pages",
        "{programs}/hither lab run --machine skylake8160 --cpus 8 --timeout 10m -- \
         {programs}/hither bench service --pages small --sizes 4K,64K,1M --repeat 24 --json -",
    ),
    of(
        "memif-huge",
        1.9,
        Reads::Service,
        "requests of huge pages through the mover service, and calls of move_pages",
        "{programs}/hither lab run --machine skylake8160 --cpus 8 --timeout 10m -- \
         {programs}/hither bench service --pages huge --sizes 2M --repeat 24 --json -",
    ),
    of(
        "memif-streams",
        1.8,
        Reads::Lines,
        "kernels of one thread through fast memory, beside the plain loop",
        "{programs}/hither lab run --machine spr-cxl-8 --cpus 8 --timeout 10m --file {programs}/examples/streaming -- \
         sh -c 'for kernel in triad add pgain; do echo == $kernel; {programs}/examples/streaming --slow 1 --fast 0 --cpus 0 \
         --mb 64 --huge --rounds 5 --block 512 --buffers 16 --past-cache --workers 5 --copier-cpus 1-5 --kernel $kernel; done'",
    ),
    of(
        "memif-engine",
        1.5,
        Reads::Lines,
        "copies by keystone2's copy engine and by its CPU, on one node, and the kernel's migration; one CPU is kept busy, so that time is modelled",
        "{programs}/hither lab run --machine keystone2 --cpus 4 --timeout 10m --file {programs}/examples/copy_engine -- \
         sh -c '(while :; do :; done) & {programs}/examples/copy_engine --migrate-to 1; kill $!'",
    ),
    of(
        "memif-engine-streams",
        1.5,
        Reads::Lines,
        "kernels of one thread on keystone2 through its 6 MB, filled by the copy engine, beside the plain loop",
        "{programs}/hither lab run --machine keystone2 --cpus 4 --timeout 10m --file {programs}/examples/streaming -- \
         sh -c 'for kernel in triad add pgain; do echo == $kernel; {programs}/examples/streaming --slow 0 --fast 1 --cpus 0 \
         --copier-cpus 1 --engine --block 128 --buffers 8 --mb 16 --rounds 5 --kernel $kernel; done'",
    ),
    of(
        "hydm-kernels",
        0.1,
        Reads::Lines,
        "operations and traffic of the eight kernels, by their formulas; natively",
        "sh -c 'for kernel in is ep cg mg ft bt sp lu; do echo == $kernel; \
         {programs}/npb $kernel --scale-mb 48 --rounds 1; done'",
    ),
    of(
        "hydm-mix-1",
        3.0,
        Reads::Compare,
        "16 programs on CPUs drawn by seed 1",
        mix!("1"),
    ),
    of(
        "hydm-mix-2",
        3.0,
        Reads::Compare,
        "16 programs on CPUs drawn by seed 2",
        mix!("2"),
    ),
    of(
        "hydm-mix-3",
        3.0,
        Reads::Compare,
        "16 programs on CPUs drawn by seed 3",
        mix!("3"),
    ),
    of(
        "hydm-mix-4",
        3.0,
        Reads::Compare,
        "16 programs on CPUs drawn by seed 4",
        mix!("4"),
    ),
    of(
        "hydm-mix-5",
        3.0,
        Reads::Compare,
        "16 programs on CPUs drawn by seed 5",
        mix!("5"),
    ),
    of(
        "hydm-mix-32",
        10.0,
        Reads::Compare,
        "32 programs of half the size on CPUs drawn by seed 1",
        mix!("32", "12", "1"),
    ),
    of(
        "regions-throttle-m0",
        0.4,
        Reads::Lines,
        "latency and bandwidth of both sockets' memory, not throttled",
        throttle!("westmere", "12"),
    ),
    of(
        "regions-throttle-m1",
        0.4,
        Reads::Lines,
        "latency and bandwidth of fast and slow memory, 2.5 times as slow",
        throttle!("westmere-m1", "6"),
    ),
    of(
        "regions-throttle-m2",
        0.4,
        Reads::Lines,
        "latency and bandwidth of fast and slow memory, 5.2 times as slow",
        throttle!("westmere-m2", "6"),
    ),
    of(
        "regions-memlat",
        40.0,
        Reads::Compare,
        "memlat of 332 MB in slow memory under the thesis's own rules",
        "{programs}/hither lab compare --machine westmere-m2 --cpus 2 --memory 512,1024 --timeout 2h \
         --policies tiers-paper@device,tiers@pmu --json=- -- {programs}/memlat --mb 332 --first-node 1 --cpu 0 --accesses 100000000",
    ),
    of(
        "regions-unify-clovertown",
        0.8,
        Reads::Map,
        "two regions over two 4 MB caches",
        "{programs}/hither lab run --machine clovertown --cpus 4 --timeout 15m --file {programs}/examples/tworegion -- \
         {programs}/examples/tworegion --kb 1843,3072,6144 --visits 256,4096,65536 --ms 60",
    ),
    of(
        "regions-unify-westmere",
        2.0,
        Reads::Map,
        "two regions over two 12 MB caches",
        "{programs}/hither lab run --machine westmere --cpus 12 --timeout 20m --file {programs}/examples/tworegion -- \
         {programs}/examples/tworegion --kb 4096,10240,16384 --visits 256,4096 --ms 60",
    ),
    of(
        "regions-balance-clovertown",
        1.6,
        Reads::Compare,
        "two programs of 4 MB and two of 16 KB over two 4 MB caches",
        "{programs}/hither lab compare --machine clovertown --cpus 4 --timeout 30m --policies first-touch,caches@device \
         --json=- -- {programs}/cachemix --ws 4M,4M,16K,16K --start-cpus 0,1,2,3 --divisions 1 --seconds 4",
    ),
    of(
        "regions-balance-westmere",
        3.0,
        Reads::Compare,
        "two programs of 12 MB and two of 512 KB over two 12 MB caches",
        "{programs}/hither lab compare --machine westmere --cpus 12 --timeout 30m --policies first-touch,caches@device \
         --json=- -- {programs}/cachemix --ws 12M,12M,512K,512K --start-cpus 0,1,6,7 --divisions 1 --seconds 4",
    ),
    of(
        "regions-memstore-m2",
        2.4,
        Reads::Steps,
        "a store whose quota of fast memory grows from none to all; slow memory 5.2 times as slow",
        "{programs}/hither lab run --machine westmere-m2 --cpus 2 --memory 512,1024 --evidence pmu --timeout 20m \
         --file {programs}/memstore --file {scripts}/quota-guest.sh -- \
         sh -c 'PATH=/hither:{programs}:$PATH exec {scripts}/quota-guest.sh steps 96 24 3'",
    ),
    e_states!(
        "regions-e-states-1",
        "job J1, nearly steady, ",
        "google-j1.csv"
    ),
    e_states!(
        "regions-e-states-2",
        "job J2, another load at every step, ",
        "google-j2.csv"
    ),
    e_states!(
        "regions-e-states-3",
        "job J3, one slow rise and fall, ",
        "google-j3.csv"
    ),
    e_states!("regions-e-states-4", "job J4, large, ", "google-j4.csv"),
    of(
        "regions-memstore-m1",
        2.4,
        Reads::Steps,
        "the same, slow memory 2.5 times as slow",
        "{programs}/hither lab run --machine westmere-m1 --cpus 2 --memory 512,1024 --evidence pmu --timeout 20m \
         --file {programs}/memstore --file {scripts}/quota-guest.sh -- \
         sh -c 'PATH=/hither:{programs}:$PATH exec {scripts}/quota-guest.sh steps 96 24 3'",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_all_fit_into_twelve_hours() {
        for (number, experiment) in ALL.iter().enumerate() {
            assert_eq!(
                ALL.iter().position(|other| other.name == experiment.name),
                Some(number)
            );
            assert!(experiment.minutes > 0.0);
        }
        let minutes: f64 = ALL.iter().map(|experiment| experiment.minutes).sum();
        assert!(minutes <= 12.0 * 60.0, "{minutes} minutes");
    }

    #[test]
    fn quotes_make_one_word() {
        for experiment in ALL {
            assert_eq!(
                experiment.command.matches('\'').count() % 2,
                0,
                "{}",
                experiment.name
            );
            let words = experiment.words("/p", "/s");
            assert!(words.iter().all(|word| !word.contains('{')), "{words:?}");
        }
        let words = find("hydm-kernels").unwrap().words("/p", "/s");
        assert_eq!(
            (words.len(), words[0].as_str(), words[1].as_str()),
            (3, "sh", "-c")
        );
        assert!(words[2].contains("/p/npb $kernel"));
    }
}
