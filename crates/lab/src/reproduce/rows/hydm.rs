//! HyDM.

use super::Rows;
use crate::reproduce::Paper::Hydm;

/// Table I: kernel, seconds, operations (10^9), memory accesses read and written (10^6), peak memory (MB).
const TABLE_1: [(&str, [f64; 5]); 8] = [
    ("is", [31.0, 23.0, 758.0, 338.0, 1572.0]),
    ("ep", [462.0, 494.0, 2739.0, 1028.0, 20.0]),
    ("cg", [319.0, 261.0, 31_174.0, 810.0, 1102.0]),
    ("mg", [129.0, 213.0, 7507.0, 2940.0, 3536.0]),
    ("ft", [335.0, 837.0, 18_555.0, 10_197.0, 7188.0]),
    ("bt", [920.0, 2560.0, 45_682.0, 17_270.0, 1676.0]),
    ("sp", [626.0, 1918.0, 92_526.0, 47_727.0, 1416.0]),
    ("lu", [733.0, 2504.0, 84_716.0, 38_302.0, 760.0]),
];
/// Bytes of an access, so that accesses become traffic: a cache line of the machine.
const LINE: f64 = 64.0;
/// Experiments that each draw other CPUs.
const SEEDS: [&str; 5] = ["1", "2", "3", "4", "5"];

const SCALED: &str = "the original's operations divided by 4000 on a few CPUs (docs/workloads.md, programs of the HyDM paper): proportions are \
                      compared, totals are not";

pub fn add(rows: &mut Rows) {
    rows.table(Hydm, "table-1", "table I");
    for (kernel, [seconds, operations, reads, writes, memory]) in TABLE_1 {
        rows.near(format!("{kernel}: seconds alone"), seconds, "s")
            .beyond(SCALED);
        let of = |value: &str| format!("hydm-kernels/{kernel}.{value}");
        let traffic = format!("( {} + {} )", of("read_bytes"), of("write_bytes"));
        rows.near(
            format!("{kernel}: operations for a byte"),
            operations * 1e9 / ((reads + writes) * 1e6 * LINE),
            "operations/B",
        )
        .measured(format!("{} / {traffic}", of("flops")));
        rows.near(
            format!("{kernel}: writes"),
            100.0 * writes / (reads + writes),
            "%",
        )
        .measured(format!("100 * {} / {traffic}", of("write_bytes")));
        rows.near(format!("{kernel}: peak memory"), memory, "MB")
            .beyond(SCALED);
    }

    rows.table(Hydm, "table-2", "table II");
    rows.near("time window", 100.0, "ms").input(
        "the policy's usual interval, `hither run --interval` (docs/roofline.md, policy hydm)",
    );
    rows.between("windows of history", 5.0, 10.0, "windows")
        .measured("declared/hydm.windows");
    rows.near("threshold of fast memory", 90.0, "%")
        .percent(0.0)
        .measured("100 * declared/hydm.threshold");
    rows.near("programs", 16.0, "programs")
        .input("`mix --programs 16`");
    rows.near("programs, the larger set", 32.0, "programs")
        .input("`mix --programs 32`, once, each of half the size");

    rows.table(Hydm, "machine", "II A");
    rows.near("bandwidth of MCDRAM", 400.0, "GB/s")
        .input("machines/knl7250.toml");
    rows.near("bandwidth of DDR4", 100.0, "GB/s")
        .input("machines/knl7250.toml");

    rows.table(
        Hydm,
        "time",
        "IV B and figure 5: beside the baseline, a mean over draws of CPUs",
    );
    const LOADED: &str = "machines/knl7250-npb.toml, whose memories are loaded as the paper's are; five draws of CPUs instead of 100 runs, which \
                          differ by 2 to 9 % (docs/roofline.md, in the laboratory)";
    rows.near("mean time of 16 programs", -6.5, "%")
        .points(3.0)
        .measured(change(&["mean"]))
        .why(LOADED);
    for (name, figure, program) in [
        ("CG, the first copy", -15.0, "cg.0"),
        ("CG, the second copy (the best)", -22.0, "cg.1"),
        ("FT, the second copy", -10.0, "ft.1"),
    ] {
        rows.near(format!("time of {name}"), figure, "%")
            .points(8.0)
            .measured(change(&[program]))
            .why(LOADED);
    }
    for (name, programs) in [("CG", ["cg.0", "cg.1"]), ("FT", ["ft.0", "ft.1"])] {
        rows.at_most(
            format!("time of both copies of {name}, \"CG and FT at least 5 %\""),
            -5.0,
            "%",
        )
        .measured(change(&programs))
        .why(LOADED);
    }
    rows.unprinted("mean time of 32 programs", "%").measured(
        "100 * ( hydm-mix-32/hydm@device.mean.seconds / hydm-mix-32/first-touch.mean.seconds - 1 )",
    );
    rows.unprinted("time of each other copy", "%")
        .beyond("figure 5 has no numbers in the text but for three copies");
    rows.unprinted("figures 2 and 4, rooflines", "GFLOP/s")
        .beyond("the drawings have no numbers in the text");
}

/// How the time of these programs changed, in the mean over the seeds, in %.
fn change(programs: &[&str]) -> String {
    let sum = |seed: &str, policy: &str| {
        let times = programs
            .iter()
            .map(|program| format!("hydm-mix-{seed}/{policy}.{program}.seconds"));
        times.collect::<Vec<_>>().join(" + ")
    };
    let ratio = |seed: &&str| {
        format!(
            "( {} ) / ( {} )",
            sum(seed, "hydm@device"),
            sum(seed, "first-touch")
        )
    };
    let ratios: Vec<String> = SEEDS.iter().map(ratio).collect();
    format!("100 * ( ( {} ) / {} - 1 )", ratios.join(" + "), SEEDS.len())
}
