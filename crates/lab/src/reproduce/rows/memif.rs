//! memif. What is a ratio of requests is measured on another machine, which is named; streams and the copy engine are
//! measured on the paper's own, `machines/keystone2.toml`.

use super::Rows;
use crate::reproduce::Paper::Memif;

const MIGRATIONS: &str = "the laboratory's processor is x86-64 and its kernel another and newer one, whose instructions are timed by keystone2's file; \
                          as many of the 1500 pages as the fast node has room for";
const FILE: &str = "machines/keystone2.toml";
const ENGINE: &str = "on machines/skylake8160.toml worker threads copy; the row below is the copy engine's (docs/mover.md)";
const OTHER: &str = "on machines/skylake8160.toml, by threads that copy instead of a DMA engine (docs/mover.md, what bounds a move)";

pub fn add(rows: &mut Rows) {
    rows.table(Memif, "linux", "2.2, page migration for NUMA");
    for (name, figure, unit, formula) in [
        (
            "1500 pages of 4 KB by one mbind, Keystone II",
            0.30,
            "GB/s",
            "4.096 / memif-engine/migration.page_us",
        ),
        ("a page", 15.0, "us", "memif-engine/migration.page_us"),
        (
            "of which copying",
            4.0,
            "us",
            "memif-engine/migration.copy_us",
        ),
    ] {
        rows.near(name, figure, unit)
            .measured(formula)
            .why(MIGRATIONS);
    }
    for (name, figure) in [
        ("1500 pages of 4 KB by one mbind, Xeon E5-4650", 0.66),
        ("a million pages by one call, Xeon E5-4650", 1.41),
    ] {
        rows.near(name, figure, "GB/s")
            .beyond("there is no file of that machine, and the text tells neither its memory nor its kernel");
    }

    rows.table(
        Memif,
        "cpu",
        "6.3 and figure 6, as the abstract sums them up",
    );
    rows.at_least("CPU use less than Linux's, 4 KB pages, up to", 15.0, "%")
        .measured(format!(
            "100 * ( 1 - {} / {} )",
            best("small", "cpu_ns_per_kb", "service,_recycling"),
            best("small", "cpu_ns_per_kb", "move_pages")
        ))
        .why(OTHER);
    rows.at_least(
        "CPU use beside Linux's, 2 MB pages, up to",
        38.0,
        "times less",
    )
    .measured(
        "memif-huge/huge.2097152.both_ways.move_pages.cpu_ns_per_kb / \
             memif-huge/huge.2097152.both_ways.service,_recycling.cpu_ns_per_kb",
    )
    .why(ENGINE);
    rows.at_least(
        "CPU use of a copy of 2 MB pages by the engine beside the CPU's, up to",
        38.0,
        "times less",
    )
    .measured("memif-engine/huge_2097152.cpu_less")
    .why("on machines/keystone2.toml: copies (the paper's replication), not migrations");
    rows.at_least(
        "CPU use of a copy of 4 KB pages by the engine less than the CPU's, 256 of them",
        15.0,
        "%",
    )
    .measured("100 * ( 1 - 1 / memif-engine/small_1048576.cpu_less )");
    rows.near("a page of 4 KB copied by the CPU", 4.0, "us")
        .measured("memif-engine/small_1048576.copy_ns / 256000");

    rows.table(
        Memif,
        "latency",
        "6.4 and figure 7: eight requests of sixteen 4 KB pages",
    );
    rows.at_least("mean latency less than by one call with all eight, up to", 63.0, "%")
        .measured("100 * ( 1 - memif-small/latency.service.mean_ns / memif-small/latency.move_pages.mean_ns )")
        .why("on machines/skylake8160.toml; each window of a request flushes translations twice (docs/mover.md, what bounds a move)");
    rows.near("system calls for the eight", 1.0, "calls")
        .measured("memif-small/latency.service.system_calls");

    rows.table(Memif, "throughput", "6.5 and figure 8");
    for (name, bytes) in [("16", 65_536), ("256", 1_048_576)] {
        rows.at_least(format!("requests of {name} pages of 4 KB, faster than migspeed by"), 40.0, "%")
            .measured(format!(
                "100 * ( memif-small/small.{bytes}.both_ways.service,_recycling.gbs / memif-small/small.{bytes}.both_ways.move_pages.gbs - 1 )"
            ))
            .why(OTHER);
    }
    rows.unprinted("requests of one page of 4 KB, faster than migspeed by (the paper loses there)", "%").measured(
        "100 * ( memif-small/small.4096.both_ways.service,_recycling.gbs / memif-small/small.4096.both_ways.move_pages.gbs - 1 )",
    );
    rows.near("requests of large pages, beside migspeed, up to", 3.0, "times")
        .measured(
            "memif-huge/huge.2097152.both_ways.service,_recycling.gbs / memif-huge/huge.2097152.both_ways.move_pages.gbs",
        )
        .why(ENGINE);

    rows.table(Memif, "table-4", "table 4");
    for (kernel, name, linux, memif) in [
        ("pgain", "StreamCluster.pgain", 1440.1, 1778.4),
        ("triad", "STREAM.triad", 2384.1, 3184.4),
        ("add", "STREAM.add", 2390.1, 3186.9),
    ] {
        rows.near(format!("{name}, Linux"), linux, "MB/s")
            .measured(format!("memif-engine-streams/{kernel}.plain"))
            .why("one core's bandwidth is another board's, scaled by its clock (the machine file says how); stores fetch their lines first here");
        rows.near(format!("{name}, memif"), memif, "MB/s")
            .measured(format!("memif-engine-streams/{kernel}.stream"))
            .why("see the row before; the gain is the figure of the runtime");
        rows.near(format!("{name}, gain"), 100.0 * (memif / linux - 1.0), "%")
            .measured(format!("100 * ( memif-engine-streams/{kernel}.speed-up - 1 )"))
            .why("the latency of SRAM is that of another chip of the maker's beside its DDR (machines/keystone2.toml)");
        rows.unprinted(
            format!(
                "{name}, gain where threads of CPUs fill the buffers (machines/spr-cxl-8.toml)"
            ),
            "%",
        )
        .measured(format!("100 * ( memif-streams/{kernel}.speed-up - 1 )"));
    }

    rows.table(Memif, "platform", "table 2");
    for (name, figure, unit) in [
        ("fast memory", 6.0, "MB"),
        ("bandwidth of fast memory", 24.0, "GB/s"),
        ("bandwidth of slow memory", 6.2, "GB/s"),
        ("CPUs", 4.0, "CPUs"),
        ("descriptors of the DMA engine", 512.0, "descriptors"),
    ] {
        rows.near(name, figure, unit).input(FILE);
    }
    rows.table(Memif, "driver", "5.2 to 5.4");
    rows.near("a change of a page table and its TLB flush", 2.0, "us")
        .measured("memif-engine/page_table.change_us")
        .why(
            "by mprotect of a page, with its system call; the processor and its kernel are x86-64",
        );
    rows.between("writing a descriptor", 4.0, 5.0, "us")
        .input(FILE);
    rows.near("reusing a descriptor instead, cheaper by", 4.0, "times")
        .input(FILE);
    rows.near("requests below this are polled for", 512.0, "KB")
        .measured("memif-engine/rule.slept_from_kb")
        .why("learned from how late sleeps end (docs/mover.md, the copy engine); in the laboratory that hangs on the host's load");
    rows.table(Memif, "source", "table 3");
    rows.near("lines of source", 6.6, "1000 lines")
        .beyond("a count of another program's lines says nothing of ours");
}

/// A figure of the largest requests that the experiment has of these pages: where the paper gains most.
fn best(pages: &str, figure: &str, by: &str) -> String {
    format!("memif-{pages}/{pages}.1048576.both_ways.{by}.{figure}")
}
