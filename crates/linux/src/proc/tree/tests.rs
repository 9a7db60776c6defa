use super::*;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Refreshes until `done`, at most 10 s.
fn until(tree: &mut Tree, mut done: impl FnMut(&Tree) -> bool) {
    let start = Instant::now();
    let mut now_us = 0;
    while start.elapsed() < Duration::from_secs(10) {
        now_us += LOOK_US;
        tree.refresh(now_us).unwrap();
        if done(tree) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it did not happen: {:?}", tree.processes());
}

#[test]
fn grandchildren_are_found_and_the_dead_are_dropped() {
    let mut shell = Command::new("sh")
        .args(["-c", "sleep 60 & echo started; read line; kill $!; wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut tree = Tree::new(Root::host(), shell.id() as i32);
    until(&mut tree, |tree| {
        tree.processes().iter().any(|p| p.name == "sleep")
    });
    let sleep = &tree.processes()[0];
    assert!(sleep.pagemap.is_some());
    let incarnation = sleep.incarnation;
    assert_eq!(
        tree.by_incarnation(incarnation).map(|p| p.pid),
        Some(sleep.pid)
    );
    drop(shell.stdin.take());
    until(&mut tree, |tree| tree.processes().is_empty());
    assert!(tree.by_incarnation(incarnation).is_none());
    shell.wait().unwrap();
}

#[test]
fn what_children_used_that_were_never_seen_counts_once() {
    const CHILDREN: &str = "for i in 1 2 3 4; do sh -c 'i=0; while [ $i -lt 60000 ]; do \
                            i=$((i+1)); done'; done; echo done; read line";
    let mut shell = Command::new("sh")
        .args(["-c", CHILDREN])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id() as i32;
    let mut tree = Tree::new(Root::host(), Scope::Processes(vec![pid]));
    let mut seen_us = 0;
    let mut look = |tree: &mut Tree, now_us| {
        tree.refresh(now_us).unwrap();
        seen_us += tree.cpu_us();
        seen_us
    };
    // Some children are seen, some not.
    for now in 1..5 {
        look(&mut tree, now * LOOK_US);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut line = [0; 5];
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
    let seen_us = look(&mut tree, 5 * LOOK_US);
    let used = stat::read(&Root::host(), pid).unwrap();
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let used_us = us(used.cpu_ticks + used.children_ticks);
    // What it had used before the first look is not counted: it began earlier.
    assert!(used_us > 50_000, "{used_us}");
    assert!(
        (used_us.saturating_sub(60_000)..=used_us + 20_000).contains(&seen_us),
        "{seen_us} us seen of {used_us}"
    );
}

#[test]
fn what_was_used_before_the_first_look_and_before_the_end_counts() {
    const BUSY: &str = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let mut shell = Command::new("sh")
        .args([
            "-c",
            &format!("exec 3<&0; sh -c '{BUSY}; echo; read line' <&3 & wait"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A line says that it has used its time, and so before anybody looks.
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let mut tree = Tree::new(Root::host(), shell.id() as i32);
    tree.refresh(0).unwrap();
    assert!(tree.cpu_us() >= 20_000, "{}", tree.cpu_us());
    // Told once.
    tree.refresh(1).unwrap();
    assert!(tree.cpu_us() <= 20_000, "{}", tree.cpu_us());
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

#[test]
fn a_renewed_process_is_another_incarnation() {
    let mut shell = Command::new("sh")
        .args(["-c", "sleep 60 & wait"])
        .spawn()
        .unwrap();
    let mut tree = Tree::new(Root::host(), shell.id() as i32);
    until(&mut tree, |tree| tree.processes().len() == 1);
    let (pid, before) = (tree.processes()[0].pid, tree.processes()[0].incarnation);
    let generation = tree.generation();
    tree.renew(pid);
    assert_ne!(tree.processes()[0].incarnation, before);
    assert_ne!(tree.generation(), generation);
    let handle = crate::sys::PidFd::open(pid).unwrap();
    handle.signal(libc::SIGKILL).unwrap();
    shell.wait().unwrap();
}

#[test]
fn a_process_that_executes_another_program_is_a_new_incarnation() {
    let mut outer = Command::new("sh")
        .args([
            "-c",
            "exec 3<&0; sh -c 'read line; exec sleep 60' <&3 & wait",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut tree = Tree::new(Root::host(), outer.id() as i32);
    until(&mut tree, |tree| tree.processes().len() == 1);
    let (pid, before) = (tree.processes()[0].pid, tree.processes()[0].incarnation);
    std::io::Write::write_all(outer.stdin.as_mut().unwrap(), b"go\n").unwrap();
    until(&mut tree, |tree| {
        tree.processes().iter().any(|p| p.name == "sleep")
    });
    let after = &tree.processes()[0];
    assert_eq!(after.pid, pid);
    assert_ne!(after.incarnation, before);
    crate::sys::PidFd::open(pid)
        .unwrap()
        .signal(libc::SIGKILL)
        .unwrap();
    outer.wait().unwrap();
}

#[test]
fn a_process_that_executes_itself_is_a_new_incarnation() {
    // The shell of the same name, with the same arguments, parent and number.
    let mut shell = Command::new("sh")
        .args([
            "-c",
            "read line; exec sh -c \"$0\" \"$0\"",
            "read line; read line",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id() as i32;
    let mut tree = Tree::new(Root::host(), Scope::Processes(vec![pid]));
    until(&mut tree, |tree| {
        tree.processes()
            .first()
            .is_some_and(|process| process.name == "sh")
    });
    let before = tree.processes()[0].incarnation;
    std::io::Write::write_all(shell.stdin.as_mut().unwrap(), b"go\n").unwrap();
    until(&mut tree, |tree| tree.processes()[0].incarnation != before);
    assert_eq!(tree.processes()[0].name, "sh");
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

#[test]
fn who_watches_is_not_among_the_watched() {
    let own = std::process::id() as i32;
    let name = stat::read(&Root::host(), own).unwrap().name;
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let of_name = Scope::Named(name);
    let of_user = Scope::OfUser(crate::sys::effective_uid());
    let mut tree = Tree::new(Root::host(), Scope::Any(vec![of_name, of_user]));
    let is_child = |process: &LiveProcess| process.pid == child.id() as i32;
    until(&mut tree, |tree| tree.processes().iter().any(is_child));
    assert!(tree.processes().iter().all(|process| process.pid != own));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_running_process_and_its_children_are_watched() {
    let mut shell = Command::new("sh")
        .args(["-c", "sleep 60 & wait"])
        .spawn()
        .unwrap();
    let pid = shell.id() as i32;
    let mut tree = Tree::new(Root::host(), Scope::Processes(vec![pid]));
    until(&mut tree, |tree| tree.processes().len() == 2);
    assert!(tree.processes().iter().any(|p| p.pid == pid));
    for process in tree.processes() {
        let handle = crate::sys::PidFd::open(process.pid).unwrap();
        handle.signal(libc::SIGKILL).unwrap();
    }
    shell.wait().unwrap();
    until(&mut tree, |tree| tree.processes().is_empty());
    assert_eq!(tree.scope(), &Scope::Processes(Vec::new()));
}

#[test]
fn who_wants_to_be_left_alone_is() {
    let mut shell = Command::new("sh")
        .args(["-c", "HITHER=off sleep 60 & sleep 61 & wait"])
        .spawn()
        .unwrap();
    let pid = shell.id() as i32;
    // Both run their own program, with its environment, before the tree looks: until then they show the shell's.
    let children = || Tree::new(Root::host(), pid).children(pid).unwrap();
    let sleeps =
        |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c == "sleep\n");
    until(&mut Tree::new(Root::host(), pid), |_| {
        children().into_iter().filter(|&pid| sleeps(pid)).count() == 2
    });
    let mut tree = Tree::new(Root::host(), Scope::Processes(vec![pid]));
    tree.ask_wishes();
    until(&mut tree, |tree| tree.processes().len() == 2);
    // The one that says nothing, and the shell.
    let others = children();
    let mut watched = tree.processes().iter().map(|process| process.pid);
    let child = watched.find(|&watched| watched != pid).unwrap();
    tree.leave_alone(child);
    tree.renew_wishes();
    tree.last_new = u64::MAX;
    tree.refresh(0).unwrap();
    let left: Vec<i32> = tree.processes().iter().map(|process| process.pid).collect();
    assert_eq!(left, [pid]);
    // It asks to be looked after; that of the other, by its environment, is not overruled.
    let other = *others.iter().find(|&&other| other != child).unwrap();
    assert!(!tree.look_after(other) && !tree.look_after(i32::MAX));
    assert!(tree.look_after(child));
    until(&mut tree, |tree| tree.processes().len() == 2);
    let mut wishes = tree
        .processes()
        .iter()
        .filter(|process| process.pid == child);
    assert_eq!(wishes.next().unwrap().belonging.wish, Wish::In);
    tree.renew_wishes();
    tree.set_scope(Scope::OptedIn);
    until(&mut tree, |tree| tree.processes().len() == 1);
    assert_eq!(tree.processes()[0].pid, child);
    tree.leave_alone(child);
    until(&mut tree, |tree| tree.processes().is_empty());
    tree.set_scope(Scope::Processes(vec![pid]));
    until(&mut tree, |tree| tree.processes().len() == 1);
    // Others are to be watched: who is among both keeps what is known.
    let life = tree.processes()[0].incarnation;
    tree.set_scope(Scope::Any(vec![
        Scope::Processes(vec![pid]),
        Scope::OptedIn,
    ]));
    tree.refresh(0).unwrap();
    assert_eq!(tree.processes()[0].incarnation, life);
    tree.set_scope(Scope::Processes(Vec::new()));
    tree.refresh(0).unwrap();
    assert!(tree.processes().is_empty());
    for pid in others {
        let handle = crate::sys::PidFd::open(pid).unwrap();
        handle.signal(libc::SIGKILL).unwrap();
    }
    shell.wait().unwrap();
}

#[test]
fn the_base_may_be_gone() {
    let mut tree = Tree::new(Root::host(), i32::MAX);
    tree.refresh(0).unwrap();
    assert!(tree.processes().is_empty());
}

#[test]
fn a_program_that_starts_is_noticed_under_the_name_that_it_executes() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hither-young");
    // Not by this process: a file that one of its children holds open cannot be executed.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    let own = std::process::id() as i32;
    for scope in [
        Scope::Named("hither-y?ung".to_owned()),
        Scope::Any(vec![
            Scope::OfUser(u32::MAX - 1),
            Scope::Named("*-young".to_owned()),
        ]),
    ] {
        let mut tree = Tree::new(Root::host(), scope);
        assert_eq!(tree.notice(), Noticed::TooMany, "nothing was known before");
        let mut child = Command::new(&program).arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        while tree.notice() != Noticed::Wanted && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(tree.has_noticed());
        tree.refresh(1).unwrap();
        let watched: Vec<i32> = tree.processes().iter().map(|process| process.pid).collect();
        assert!(
            watched.contains(&pid) && !watched.contains(&own),
            "{watched:?}"
        );
        assert!(!tree.has_noticed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn threads_are_not_noticed() {
    let name = stat::read(&Root::host(), std::process::id() as i32)
        .unwrap()
        .name;
    let mut tree = Tree::new(Root::host(), Scope::Named(name.clone()));
    tree.notice();
    let (end, is_end) = std::sync::mpsc::channel::<()>();
    // It has the name of its process.
    let thread = std::thread::Builder::new().name(name);
    let thread = thread.spawn(move || is_end.recv()).unwrap();
    for _ in 0..20 {
        tree.notice();
    }
    let noticed = tree.young.wanted.clone();
    let threads = Root::host().numbered("proc/self/task", "").unwrap();
    assert!(
        noticed.iter().all(|pid| !threads.contains(&(*pid as u32))),
        "{noticed:?}"
    );
    drop(end);
    assert!(thread.join().unwrap().is_err());
}
