//! Unmodified programs whose blocks and threads the shim places: they work as ever, blocks have the
//! policy of their rule and no other memory has one, and nothing is lost.

use crate::common::{Stage, compile, shim};
use hither_core::bind::KernelPolicy;
use hither_core::ids::CpuId;
use hither_core::shim::{BoardId, Kinds, Plan, Rule, Site, Stride, board as layout, environment};
use hither_linux::bind::board::Board;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

/// Modes as the kernel numbers them.
const NONE: &str = "0";
const PREFERRED: &str = "1";
const BIND: &str = "2";
const INTERLEAVE: &str = "3";

const MIB: u64 = 1 << 20;
const ALLOCATORS: [&str; 2] = ["libjemalloc.so.2", "libmimalloc.so.2"];

fn stage() -> Stage {
    Stage::new("placed.c", None, &[])
}

fn rule(least_bytes: u64, policy: &str, stride: Stride) -> Rule {
    Rule {
        kinds: Kinds {
            heap: true,
            maps: true,
        },
        least_bytes,
        most_bytes: u64::MAX,
        site: None,
        policy: policy.parse::<KernelPolicy>().unwrap(),
        stride,
    }
}

fn plan(rules: Vec<Rule>) -> Plan {
    Plan {
        board: None,
        cpus: Vec::new(),
        nodes: vec![0],
        rules,
    }
}

/// The same with this board.
fn on(board: &Board, plan: Plan) -> Plan {
    Plan {
        board: board.id(),
        ..plan
    }
}

/// Rules under which all blocks, or large ones alone, are placed, in every way that there is.
fn plans() -> Vec<Plan> {
    let all = [
        rule(1, "bind:0", Stride::Kernel),
        rule(1, "local", Stride::Kernel),
        rule(1000, "interleave:0", Stride::Blocks),
        rule(MIB, "interleave:0", Stride::Pages(3)),
    ];
    all.map(|rule| plan(vec![rule])).into()
}

fn command(stage: &Stage, plan: &Plan, words: &[&str]) -> Command {
    let mut command = Command::new(&stage.program);
    command
        .args(words)
        .env("LD_PRELOAD", shim())
        .env(environment::PLAN, plan.to_string());
    command
}

fn told(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (told, errors) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8_lossy(&stderr),
    );
    assert!(
        status.success() && errors.is_empty(),
        "{status}: {told}{errors}"
    );
    told
}

/// What a program said of its blocks: lines `NAME MODE`.
fn modes(told: &str) -> Vec<(&str, &str)> {
    told.lines()
        .map(|line| line.split_once(' ').unwrap())
        .collect()
}

#[test]
fn size_and_kind_decide() {
    let stage = stage();
    let mut heap = rule(MIB, "interleave:0", Stride::Kernel);
    heap.kinds.maps = false;
    let mut small = rule(1, "bind:0", Stride::Kernel);
    small.most_bytes = 1000;
    let run = told(&mut command(&stage, &plan(vec![heap, small]), &["kinds"]));
    let expected = [
        ("small", BIND),
        ("medium", NONE),
        ("large", INTERLEAVE),
        ("here", BIND),
        ("map", NONE),
        ("shared", NONE),
    ];
    assert_eq!(modes(&run), expected);
    let both = plan(vec![rule(2 * MIB, "prefer:0", Stride::Kernel)]);
    let run = told(&mut command(&stage, &both, &["kinds"]));
    let placed: Vec<_> = modes(&run)
        .into_iter()
        .filter(|pair| pair.1 != NONE)
        .collect();
    assert_eq!(placed, [("large", PREFERRED), ("map", PREFERRED)]);
}

#[test]
fn call_sites_decide() {
    let stage = stage();
    let program = stage.program.canonicalize().unwrap();
    let [(start, end)] = hither_symbols::functions(&program, "from_here").unwrap()[..] else {
        panic!("one function has that name");
    };
    let mut here = rule(1, "bind:0", Stride::Kernel);
    here.site = Some(Site {
        module: "program".to_owned(),
        start,
        end,
    });
    let run = told(&mut command(&stage, &plan(vec![here.clone()]), &["kinds"]));
    let placed: Vec<_> = modes(&run)
        .into_iter()
        .filter(|pair| pair.1 != NONE)
        .collect();
    assert_eq!(placed, [("here", BIND)]);
    // With the allocations recorded as well, and of another object of the same addresses.
    let mut both = command(&stage, &plan(vec![here.clone()]), &["kinds"]);
    assert_eq!(told(both.env("HITHER_PRELOAD_DIR", stage.logs())), run);
    here.site.as_mut().unwrap().module = "other".to_owned();
    let run = told(&mut command(&stage, &plan(vec![here]), &["kinds"]));
    assert!(modes(&run).iter().all(|pair| pair.1 == NONE), "{run}");
}

#[test]
fn every_function_works() {
    let stage = stage();
    for plan in plans() {
        let mut command = command(&stage, &plan, &["functions"]);
        assert_eq!(told(&mut command), "functions work\n", "{plan}");
        command.env("HITHER_PRELOAD_DIR", stage.logs());
        assert_eq!(told(&mut command), "functions work\n", "{plan}");
    }
}

#[test]
fn no_policy_is_left_behind() {
    let mut even = rule(2 * MIB, "bind:0", Stride::Kernel);
    even.most_bytes = 3 * MIB;
    let odd = rule(2 * MIB, "interleave:0", Stride::Kernel);
    let run = told(&mut command(&stage(), &plan(vec![even, odd]), &["left"]));
    assert_eq!(run.lines().count(), 80);
    for (name, mode) in modes(&run) {
        let expected = match name {
            "even" => BIND,
            "odd" => INTERLEAVE,
            _ => NONE,
        };
        assert_eq!(mode, expected, "{run}");
    }
}

#[test]
fn sixty_four_threads_lose_no_block_and_no_mapping() {
    let stage = stage();
    for plan in plans() {
        let mut command = command(&stage, &plan, &["storm", "64", "300"]);
        for beneath in ["", ALLOCATORS[0], ALLOCATORS[1]] {
            command.env("LD_PRELOAD", format!("{}:{beneath}", shim().display()));
            assert_eq!(told(&mut command), "storm is over\n", "{beneath}: {plan}");
        }
    }
    // Above the sizes that the C library itself asks for.
    let board = Board::new(0).unwrap();
    let mut heap = rule(5000, "bind:0", Stride::Kernel);
    heap.kinds.maps = false;
    let mut command = command(
        &stage,
        &on(&board, plan(vec![heap])),
        &["storm", "16", "2000"],
    );
    told(command.env(environment::BOARD, board.path().unwrap()));
    let (rule, counts) = (board.rule(0), board.counts());
    assert_eq!((counts.process_count, rule.unplaced_count), (1, 0));
    assert!(rule.block_count > 1000, "{rule:?}");
    assert_eq!(counts.freed_count, rule.block_count);
}

#[test]
fn forks_find_everything_whole() {
    let stage = stage();
    for plan in plans() {
        let mut command = command(&stage, &plan, &["forks", "50"]);
        assert_eq!(told(&mut command), "50 forks\n", "{plan}");
    }
}

#[test]
fn addresses_and_memory_that_are_short_are_no_error() {
    let stage = stage();
    let rules = plan(vec![rule(1, "bind:0", Stride::Kernel)]);
    let run = command(&stage, &rules, &[]);
    let line = format!("ulimit -v 4000000; exec {} kinds", stage.program.display());
    let mut limited = Command::new("sh");
    limited.args(["-c", &line]);
    for (name, value) in run.get_envs() {
        limited.env(name, value.unwrap());
    }
    let told = told(&mut limited);
    assert_eq!(modes(&told).len(), 6, "{told}");
    for bad in [
        "",
        "rule",
        "rule hm 1 2 - 0 0 9 kernel 0",
        "cpus 99999999999",
    ] {
        let mut command = command(&stage, &plan(Vec::new()), &["functions"]);
        command
            .env(environment::PLAN, bad)
            .env(environment::BOARD, "/no/such");
        assert_eq!(self::told(&mut command), "functions work\n", "{bad}");
    }
}

#[test]
fn a_file_that_is_not_the_board_is_left_alone() {
    let stage = stage();
    let board = Board::new(0).unwrap();
    let id = board.id().unwrap();
    // This process stands for one that has the number of a hither that has ended, and another file
    // open under the number that the board had.
    let name = stage.folder.path().join("database");
    let bytes = vec![7; layout::TOTAL_BYTES];
    fs::write(&name, &bytes).unwrap();
    let open = fs::File::options().read(true).write(true).open(&name);
    let open = open.unwrap();
    let file = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    let file = Path::new(&file);
    let about = open.metadata().unwrap();
    // Whatever of the three is the same, the path leads to a file of somebody else's.
    let same = BoardId {
        device: about.dev(),
        inode: about.ino(),
        word: u64::from_ne_bytes([7; 8]),
    };
    let none_of = [
        None,
        Some(id),
        Some(BoardId {
            device: id.device + 1,
            ..same
        }),
        Some(BoardId {
            inode: same.inode + 1,
            ..same
        }),
        Some(BoardId { word: 1, ..same }),
    ];
    let run = |board, path: &Path| {
        let plan = Plan {
            board,
            ..plan(vec![rule(5000, "bind:0", Stride::Kernel)])
        };
        let mut command = command(&stage, &plan, &["kinds"]);
        told(command.env(environment::BOARD, path));
        fs::read(&name).unwrap()
    };
    for board in none_of {
        assert!(
            run(board, file) == bytes,
            "{board:?} was taken for the board"
        );
    }
    // All three are what the board is known by; and a board that is meant is counted on.
    assert!(run(Some(same), file) != bytes);
    run(Some(id), &board.path().unwrap());
    assert_eq!(board.counts().process_count, 1);
    // What only looks like a file for a moment hangs nobody.
    let pipe = stage.folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    run(Some(same), &pipe);
}

#[test]
fn threads_have_cpus_before_they_begin() {
    let allowed = hither_linux::sys::allowed_cpus().unwrap();
    let cpus: Vec<CpuId> = allowed.iter().collect();
    let backwards: Vec<CpuId> = cpus.iter().rev().copied().collect();
    let rules = Plan {
        cpus: backwards.clone(),
        ..Plan::default()
    };
    let board = Board::new(cpus.len()).unwrap();
    let stage = stage();
    let mut command = command(&stage, &on(&board, rules), &["threads"]);
    let run = told(command.env(environment::BOARD, board.path().unwrap()));
    let at = |place: usize| format!("{} of 1", backwards[place % cpus.len()].0);
    let expected = [
        ("first", at(0)),
        ("thread", at(1)),
        ("thread", at(1)),
        ("thread", at(1)),
        ("after", at(1)),
        ("child", at(1)),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, at)| (*name, at.as_str()))
        .collect();
    assert_eq!(modes(&run), expected);
    // The first, three, five that were cancelled, one after them, and the child.
    let counts = board.counts();
    assert_eq!((counts.thread_count, counts.refused_count), (11, 0));
    // Who ends as a process says nothing, and is found gone.
    assert_eq!(board.seats().threads().count(), 2);
}

const FORMS: &str = r#"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>
struct alignas(128) Wide { char bytes[4 << 20]; };
static int failures;
static void check(const void *pointer, uintptr_t align)
{
    failures += pointer == nullptr || (uintptr_t)pointer % align != 0;
    *(volatile char *)pointer = 1;
}
int main()
{
    for (int round = 0; round < 3; round++) {
        for (size_t bytes : {size_t(16), size_t(32), size_t(5000), size_t(3) << 20}) {
            void *all[8] = {
                ::operator new(bytes),
                ::operator new[](bytes),
                ::operator new(bytes, std::nothrow),
                ::operator new[](bytes, std::nothrow),
                ::operator new(bytes, std::align_val_t(64)),
                ::operator new[](bytes, std::align_val_t(64)),
                ::operator new(bytes, std::align_val_t(64), std::nothrow),
                ::operator new[](bytes, std::align_val_t(64), std::nothrow),
            };
            for (int at = 0; at < 8; at++)
                check(all[at], at < 4 ? 16 : 64);
            ::operator delete(all[0]);
            ::operator delete[](all[1]);
            ::operator delete(all[2], std::nothrow);
            ::operator delete[](all[3], std::nothrow);
            ::operator delete(all[4], bytes, std::align_val_t(64));
            ::operator delete[](all[5], std::align_val_t(64));
            ::operator delete(all[6], std::align_val_t(64), std::nothrow);
            ::operator delete[](all[7], bytes, std::align_val_t(64));
        }
        Wide *wide = new Wide[2];
        check(wide, 128);
        delete[] wide;
        std::vector<long> numbers;
        for (long number = 0; number < 400000; number++)
            numbers.push_back(number);
        failures += numbers[399999] != 399999;
    }
    // Debian's mimalloc ends the program, with or without the shim.
    if (std::getenv("HITHER_TEST_NO_HUGE"))
        return failures;
    volatile size_t huge = size_t(1) << 61;
    failures += ::operator new(huge, std::nothrow) != nullptr;
    try {
        check(::operator new(huge), 1);
        failures++;
    } catch (const std::bad_alloc &) {
        std::puts("caught");
    }
    std::printf("%d failures\n", failures);
}
"#;

#[test]
fn operator_new_is_placed_in_all_its_forms() {
    let stage = Stage::new("forms.cpp", Some(FORMS), &["-std=c++17"]);
    // A program that knows no C++ loads a library that does, for itself alone.
    let folder = stage.folder.path();
    let library = folder.join("libforms.so");
    let text = FORMS
        .replace("int main()", "extern \"C\" int forms()")
        .replace(
            "std::printf(\"%d failures\\n\", failures);",
            "std::printf(\"%d failures\\n\", failures); return 0;",
        );
    fs::write(folder.join("library.cpp"), text).unwrap();
    let flags = ["-std=c++17", "-shared", "-fPIC"];
    compile("c++", &folder.join("library.cpp"), &library, &flags);
    let loader = folder.join("loader.c");
    let text = "#include <dlfcn.h>\nint main(int count, char **words) { (void)count; int (*forms)(void) \
                = (int (*)(void))dlsym(dlopen(words[1], RTLD_NOW | RTLD_LOCAL), \"forms\"); return forms(); }";
    fs::write(&loader, text).unwrap();
    compile("cc", &loader, &folder.join("loader"), &[]);
    let run = |program: &Path, plan: &Plan, beneath: &str| {
        let board = Board::new(0).unwrap();
        let mut command = Command::new(program);
        command
            .arg(&library)
            .env(environment::PLAN, on(&board, plan.clone()).to_string());
        command.env("LD_PRELOAD", format!("{}:{beneath}", shim().display()));
        let is_quiet = beneath == ALLOCATORS[1];
        if is_quiet {
            command.env("HITHER_TEST_NO_HUGE", "1");
        }
        let told = told(command.env(environment::BOARD, board.path().unwrap()));
        let expected = match is_quiet {
            true => "",
            false => "caught\n0 failures\n",
        };
        assert_eq!(told, expected, "{beneath}: {plan}");
        board.rule(0).block_count
    };
    for plan in plans() {
        let least = plan.rules[0].least_bytes;
        for beneath in ["", ALLOCATORS[0], ALLOCATORS[1]] {
            // Large blocks of eight forms, an array, and the last of a vector, in each round.
            let count = run(&stage.program, &plan, beneath);
            assert!(count >= 30, "{beneath}: {count}, from {least} bytes on");
        }
        assert!(run(&folder.join("loader"), &plan, "") >= 30);
    }
}
