//! Programs and the fast memory: what `hither roofline` counts of them, and the policy hydm.

use crate::common::{bare, built};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Two kernels, each with little and with more work, below `hither roofline`: what is counted of the difference is
/// of the kernel alone; the evidence `npb` has all eight. Then a decoy under hydm: it waits for memory, computes
/// next to nothing, and is no faster in fast memory, which it fills; and a program that has to wait for its place.
const SCRIPT: &str = r#"
cd /tmp
PATH=$PATH:@BARE
for kernel in ft bt; do
  for divide in 16000 4000; do
    hither roofline --name npb --interval 20ms --json r.json > /dev/null 2>&1 &
    sleep 0.1
    npb $kernel --divide $divide > t.txt
    wait $!
    echo "ROOF $kernel $divide $(sed -n 's/^flops: //p' t.txt) $(sed -n 's/^read_bytes: //p' t.txt) \
$(sed -n 's/^write_bytes: //p' t.txt) $(tr -d '\n' < r.json)"
  done
done
# Fast memory in use, as the greatest share that was seen.
(while sleep 0.05; do awk '/MemTotal/ { t = $4 } /MemFree/ { print "USED", 1 - $4 / t }' \
  /sys/devices/system/node/node1/meminfo; done) > used.txt & watcher=$!
# The decoy first: of two that begin together, the one with fewer faults in a window goes first, which is chance.
hither run --policy hydm --explain -- \
  sh -c 'memlat --mb 70 --accesses 15000000 & sleep 1; npb ft --divide 1000; wait' 2>&1 | sed 's/^/HYDM /'
kill $watcher
sort -k 2 -g used.txt | tail -n 1
"#;

#[test]
#[ignore = "boots the laboratory"]
fn operations_and_bytes_are_those_worked_by_hand_and_a_decoy_goes_back() {
    let bare_folder = bare("npb");
    let bare_folder = bare_folder.parent().unwrap();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/knl7250-npb.toml");
    let script = SCRIPT.replace("@BARE", bare_folder.to_str().unwrap());
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--timeout", "20m", "--cpus", "2"])
        .args(["--memory", "768,112", "--machine"])
        .arg(&machine)
        .arg("--file")
        .arg(bare("npb"))
        .arg("--file")
        .arg(bare("memlat"))
        .arg("--")
        .args(["sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let mut rows = Vec::new();
    for line in said.lines().filter_map(|line| line.strip_prefix("ROOF ")) {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let by_hand = |at: usize| words[at].parse::<f64>().unwrap();
        let told: Value = serde_json::from_str(words[5]).unwrap();
        let counted = |field: &str| told["programs"][0][field].as_f64().unwrap();
        rows.push((
            words[0].to_owned(),
            [by_hand(2), by_hand(3) + by_hand(4)],
            [counted("flops"), counted("bytes")],
        ));
    }
    assert_eq!(rows.len(), 4, "{said}\n{errors}");
    for pair in rows.chunks(2) {
        for (at, what) in ["operations", "bytes"].into_iter().enumerate() {
            let by_hand = pair[1].1[at] - pair[0].1[at];
            let counted = pair[1].2[at] - pair[0].2[at];
            let ratio = counted / by_hand;
            assert!(
                (0.95..1.05).contains(&ratio),
                "{what} of {}: {counted} counted, {by_hand} by hand",
                pair[0].0
            );
        }
    }
    let has = |text: &str| {
        said.lines()
            .any(|line| line.starts_with("HYDM") && line.contains(text))
    };
    assert!(has("has the lowest intensity one window ahead"), "{said}");
    assert!(has("computes no faster in fast memory"), "{said}");
    let used = said.lines().find_map(|line| line.strip_prefix("USED "));
    let used: f64 = used.unwrap().parse().unwrap();
    assert!((0.3..=0.9).contains(&used), "{used}\n{said}");
}
