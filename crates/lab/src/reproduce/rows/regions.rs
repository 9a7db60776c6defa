//! The memory-region thesis. Westmere's clock is 2.666 GHz in the machine files of chapter IV.

use super::Rows;
use crate::reproduce::Paper::Regions;

const SPEC: &str = "needs SPEC CPU2006, Asterisk, PHP or web servers of their time; their bars have no numbers in the text";
const GUEST: &str = "the thesis measures a hypervisor's own work; here no hypervisor takes part (docs/caches.md, the thesis's mechanisms)";
const CPU_LOADS: &str = "the text has neither the web server's load nor its program nor its goal: any figure would follow from what we put in. States of CPUs \
                         themselves are built (`cpu_goal`, docs/tiers.md, goals)";
const TRACES: &str = "figure 69's traces are not in the text; ours have its words, and their means in use are derived from these very figures \
                      (docs/workloads.md), so that the row shows that a quota follows a load, and no more";
const SCORE: &str = "requests a second with a goal (a quarter above the latency with all data fast, hither at work) beside those with E4; the text defines no score and names no \
                     goal, and the traces are ours (docs/workloads.md)";
const STORE: &str = "of a store whose size and requests the text does not tell; ours answers in microseconds, and ratios are compared";
const STEPS: &str = "figure 72 is of one configuration, which the text does not name; the last step is not complete after its 3 s (docs/tiers.md)";
const LOADED: &str = "the table's factors are of STREAM, which fills the queues; memlat loads one line after the other, for which the thesis itself has 900 \
                      by 367 cycles (table 9), and a walk of page tables is part of each load (machines/westmere-m1.toml)";

pub fn add(rows: &mut Rows) {
    caches(rows);
    tiers(rows);
    states(rows);
    regions(rows);
    rows.table(Regions, "applications", "2.5.3 to 2.5.6, 3.5 to 3.7, 4.3.3");
    for (name, figure, unit) in [
        ("Sphinx, cache balancing, faster by", 15.0, "%"),
        (
            "namd at 2000 micro-schedulings a second, faster by",
            10.0,
            "%",
        ),
        ("Asterisk's response alone", 7.765, "ms"),
        (
            "Asterisk's response, consolidated with regions",
            19.415,
            "ms",
        ),
        (
            "Asterisk's response, consolidated with credits",
            32.535,
            "ms",
        ),
        (
            "sphinx beside the preferred server, slower by up to",
            15.0,
            "%",
        ),
        (
            "cache misses of omnetpp beside raytrace, fewer by",
            8.39,
            "%",
        ),
        ("MediaWiki", 1.8, "%"),
        ("WordPress", 4.6, "%"),
        ("XpressEngine", -2.8, "%"),
        (
            "file-system cores beside kernel cores, 2 VCPUs, up to",
            10.0,
            "%",
        ),
        ("SPEC guests consolidated, up to", 5.0, "%"),
        ("mcf in slow memory, M2", 1431.0, "% longer"),
        ("mcf in slow memory, M1", 537.0, "% longer"),
        ("kvstore in slow memory, M2", 7.0, "times"),
        ("kvstore in slow memory, M1", 4.0, "times"),
    ] {
        rows.near(name, figure, unit).beyond(SPEC);
    }
}

fn caches(rows: &mut Rows) {
    rows.table(
        Regions,
        "unification",
        "2.3.1 and figure 18: two regions over two caches",
    );
    rows.near("Clovertown, up to", 45.0, "% faster")
        .measured("100 * ( regions-unify-clovertown/best.gain - 1 )")
        .why("of the points of this map; a hand-over costs less than the thesis's switch");
    rows.at_least("Westmere, \"over\"", 300.0, "% faster")
        .measured("100 * ( regions-unify-westmere/best.gain - 1 )")
        .why("of the two sizes of this map that exceed one cache; with five sizes the best is +280 % (docs/regions.md). In the model a cache \
              that both regions exceed still serves a part of the loads: if it served none, 82 ns of memory in place of 15.4 ns of cache \
              were +430 % (machines/westmere.toml; an inference)");
    rows.at_most(
        "Clovertown, both regions fit one cache (2 x 1.8 MB)",
        0.0,
        "% faster",
    )
    .measured("100 * ( regions-unify-clovertown/1843.4096.gain - 1 )");
    rows.at_most(
        "Westmere, both regions fit one cache (2 x 4 MB)",
        0.0,
        "% faster",
    )
    .measured("100 * ( regions-unify-westmere/4096.4096.gain - 1 )");
    rows.at_most(
        "Clovertown, the regions exceed both caches (2 x 6 MB)",
        0.0,
        "% faster",
    )
    .measured("100 * ( regions-unify-clovertown/6144.4096.gain - 1 )")
    .why("a region of 6 MB finds more of itself in a cache of 4 MB that it has alone than in one that two such regions share, and a \
          hand-over costs less than the thesis's switch (an inference)");
    rows.at_most("Clovertown, visits of 256 loads, too short", 0.0, "% faster")
        .measured("100 * ( regions-unify-clovertown/3072.256.gain - 1 )")
        .why("a hand-over between CPUs takes less than a microsecond where the thesis's switch takes 15.86 us, so that shorter visits pay \
              (docs/regions.md)");
    for (machine, figure) in [("clovertown", 15.86), ("westmere", 6.36)] {
        rows.near(format!("one micro-scheduling, {machine}"), figure, "us")
            .measured(format!("regions-unify-{machine}/awake_ns / 1000"))
            .why("no thread is moved: a visit is handed to a thread that was kept there from the beginning (docs/regions.md); less is better");
    }
    rows.table(Regions, "balancing", "2.5.2");
    for (machine, sizes) in [("clovertown", "4 MB"), ("westmere", "12 MB")] {
        for program in [0, 1] {
            let of =
                |policy: &str| format!("regions-balance-{machine}/{policy}.{program}.last_half");
            rows.at_least(format!("{machine}, program {program} of {sizes}, \"more than\""), 50.0, "% faster")
                .measured(format!("100 * ( {} / {} - 1 )", of("caches@device"), of("first-touch")))
                .why("the baseline is the newest Linux, which schedules by caches itself (docs/caches.md)");
        }
    }
    rows.table(Regions, "overhead", "2.5.1 and figure 28");
    for (name, figure, unit) in [
        (
            "all, without page tables for each cache, at 700 switches a second",
            5.5,
            "%",
        ),
        ("page-table scans and regioning", 1.0, "%"),
        ("all, with the optimisation", 3.0, "%"),
    ] {
        rows.at_most(name, figure, unit).beyond(GUEST);
    }
}

fn tiers(rows: &mut Rows) {
    rows.table(
        Regions,
        "table-7",
        "table 7: beside the unthrottled machine",
    );
    for (machine, bandwidth, latency) in [("m1", 0.42, 2.5), ("m2", 0.2, 5.2)] {
        let of = |key: &str| {
            format!("regions-throttle-{machine}/node1.{key} / regions-throttle-m0/node1.{key}")
        };
        rows.near(format!("{machine}: bandwidth"), bandwidth, "of M0")
            .measured(of("read_gbs"))
            .why("the machine file's capacity is made from this figure: no independent check (machines/westmere-m1.toml)");
        rows.near(format!("{machine}: latency"), latency, "of M0")
            .measured(of("ns_per_access"))
            .why(LOADED);
    }
    rows.table(Regions, "table-9", "table 9: memlat, cycles of a load");
    for (second, figure) in [
        (0, 900.0),
        (5, 792.0),
        (10, 620.0),
        (15, 498.0),
        (20, 367.0),
        (25, 367.0),
        (30, 367.0),
    ] {
        let row = rows
            .near(format!("after {second} s"), figure, "cycles")
            .percent(5.0);
        match second {
            0..=20 => row
                .measured(format!(
                    "2.666 * regions-memlat/tiers-paper@device.second.{}.ns_per_access",
                    // The first second is numbered 1: at 0 s the mean of it.
                    second + 1
                ))
                .why("looking at 85,000 pages ten times a second takes 77 % of the other CPU and disturbs the loads, by 7 % before anything has moved \
                      (docs/tiers.md, table 9)"),
            _ => row.beyond("ours has made all its loads by then: 10^8 of them take 23 s; the last figure stays"),
        };
    }
    rows.table(Regions, "hot-pages", "4.2.1");
    for (name, figure, unit, declared) in [
        (
            "time between two scans",
            100.0,
            "ms",
            "declared/tiers.look_us / 1000",
        ),
        (
            "ones of 32 from which a page is hot",
            22.0,
            "bits",
            "declared/tiers.hot_bits",
        ),
        (
            "entries of a scan",
            512.0,
            "entries",
            "declared/tiers.max_scan",
        ),
        (
            "time without an access from which a page is inactive",
            3000.0,
            "ms",
            "declared/tiers.window_us / 1000",
        ),
    ] {
        rows.near(name, figure, unit)
            .percent(0.0)
            .measured(declared);
    }
}

fn states(rows: &mut Rows) {
    rows.table(
        Regions,
        "memstore",
        "4.4 and figure 72: from no fast memory to all of it",
    );
    for (machine, latency) in [("m1", 34.0), ("m2", 42.0)] {
        rows.near(
            format!("{machine}: latency without fast memory"),
            latency,
            "ms",
        )
        .beyond(STORE);
    }
    rows.near("latency with all of it", 8.0, "ms").beyond(STORE);
    for machine in ["m1", "m2"] {
        let of = |key: &str| format!("regions-memstore-{machine}/{key}");
        rows.near(
            format!("{machine}: throughput with all beside none"),
            4.3,
            "times",
        )
        .measured(format!(
            "{} / {}",
            of("last.requests"),
            of("first.requests")
        ))
        .why(STEPS);
        rows.near(
            format!("{machine}: latency with none beside all"),
            34.0 / 8.0,
            "times",
        )
        .measured(format!("{} / {}", of("first.us"), of("last.us")))
        .why(STEPS);
    }
    rows.table(Regions, "e-states", "4.4 and figure 73");
    rows.near("memory: a step of 512 MB", 64.0, "MB")
        .input("`steps` of a goal, 8 of what `fast` says (docs/tiers.md, goals)");
    let job =
        |number: u32, how: &str, figure: &str| format!("regions-e-states-{number}/{how}.{figure}");
    let steps = |how: &str| {
        let all: Vec<String> = (1..=4).map(|number| job(number, how, "steps")).collect();
        format!("( {} )", all.join(" + "))
    };
    rows.near("memory saved in the mean", 30.0, "%")
        .measured(format!(
            "100 * ( 1 - {} / {} )",
            steps("scaled"),
            steps("base")
        ))
        .why(TRACES);
    for (number, figure) in [(1, -75.0), (2, -70.0), (3, -25.0), (4, 50.0)] {
        rows.near(format!("fast memory of J{number}, changed by"), figure, "%")
            .measured(format!(
                "100 * ( {} / {} - 1 )",
                job(number, "scaled", "steps"),
                job(number, "base", "steps")
            ))
            .why(TRACES);
    }
    let speed = |number: u32| {
        format!(
            "{} / {}",
            job(number, "scaled", "requests"),
            job(number, "base", "requests")
        )
    };
    rows.near("QoS score of J4", 2.3, "times better")
        .measured(speed(4))
        .why(SCORE);
    rows.near("J2, loss by scaling", 15.0, "%")
        .measured(format!("100 * ( 1 - {} )", speed(2)))
        .why(SCORE);
    for number in [1, 3] {
        rows.unprinted(
            format!("QoS score of J{number} (\"comparable\")"),
            "times better",
        )
        .measured(speed(number));
    }
    for (name, figure, unit) in [
        ("CPU saved in the mean", 21.0, "%"),
        ("CPU: base case, E5 of the CPU's states", 1.0, "U"),
    ] {
        rows.near(name, figure, unit).beyond(CPU_LOADS);
    }
}

fn regions(rows: &mut Rows) {
    rows.table(Regions, "regions", "2.3.2, 2.4 and 3.4");
    rows.near("time spent forming regions", 1.0, "% of run time")
        .beyond("regions are formed from a recording's samples and not while the program runs (docs/forming.md)");
    rows.unprinted("shrinking: a region loses pages where its micro-scheduling rate is abnormally high", "pages")
        .refused("a region that is entered too often becomes global as a whole (docs/micro-scheduling.md); pages taken from it one by one \
                 would each be a mapping with a key of its own. Regions formed from a recording are torn down, the largest each second (docs/forming.md)");
    rows.near("history of a page", 3.2, "s")
        .measured("32 * declared/tiers.look_us / 1e6");
    rows.near("run time after which a moved thread may be moved again", 10.0, "ms")
        .refused("threads are kept to the CPUs of a cache, so that the kernel's balancer has nothing to undo (docs/caches.md)");
}
