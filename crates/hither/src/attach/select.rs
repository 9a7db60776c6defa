//! Who is meant: from words of the command line to scopes.

use super::Command;
use crate::watchable;
use anyhow::{Context, bail, ensure};
use hither_core::foreign::Foreign;
use hither_core::ids::Pid;
use hither_core::policy::{self, tiers};
use hither_core::quota::Quota;
use hither_core::scope::Selector;
use hither_linux::proc::cgroup;
use hither_linux::proc::pressure;
use hither_linux::proc::tree::Scope;
use hither_linux::proc::users;
use hither_linux::root::Root;
use hither_linux::sys;

/// A scope that was asked for.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The word that it was chosen by, which names it.
    pub name: String,
    /// Who belongs to it, for the engine.
    pub selector: Selector,
    /// The same for who looks at processes.
    pub watched: Scope,
    /// What decides for it.
    pub policy: String,
    /// How much of the fastest memory tier it may have.
    pub quota: Quota,
}

/// Running programs that are meant.
#[derive(Debug, clap::Args)]
pub struct Who {
    /// These processes and their children, judged together
    #[arg(short, long, value_name = "PID,..")]
    pub pid: Vec<String>,
    /// The processes of a control group and of those below it, by its path below /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// Processes by command name, as `postgres*`, and their children
    #[arg(long, value_name = "GLOB")]
    pub name: Vec<String>,
    /// The processes of a user, by name or number
    #[arg(long, value_name = "NAME")]
    pub user: Vec<String>,
}

/// A scope for each word, in the order of their kinds: the first that takes a process has it.
///
/// # Errors
/// What is wrong with a word, where, and how to mend it.
pub fn scopes(who: &Who, root: &Root) -> anyhow::Result<Vec<Chosen>> {
    ensure!(
        who.pid.len() + who.cgroup.len() + who.name.len() + who.user.len() > 0,
        "nobody is chosen; give --pid, --cgroup, --name or --user"
    );
    let mut chosen = Vec::new();
    for word in &who.pid {
        chosen.push(pids(word, root).with_context(|| format!("--pid {}", word.shown()))?);
    }
    for word in &who.cgroup {
        chosen.push(group(word, root)?);
    }
    for word in &who.name {
        ensure!(
            !word.is_empty(),
            "--name is empty; give a command name, as `postgres*`"
        );
        chosen.push(of(
            word,
            Selector::Name(word.clone()),
            Scope::Named(word.clone()),
        ));
    }
    for word in &who.user {
        let user = user(word, root).with_context(|| format!("--user {}", word.shown()))?;
        chosen.push(of(word, Selector::User(user), Scope::OfUser(user)));
    }
    for (at, one) in chosen.iter().enumerate() {
        let is_twice = chosen[..at].iter().any(|other| other.name == one.name);
        ensure!(
            !is_twice,
            "`{}` is chosen twice; name each once",
            one.name.shown()
        );
    }
    Ok(chosen)
}

/// The same with what decides for each, and how much fast memory it may have.
///
/// # Errors
/// As [`scopes`].
pub fn choose(command: &Command, root: &Root) -> anyhow::Result<Vec<Chosen>> {
    let mut chosen = scopes(&command.who, root)?;
    for word in &command.policy {
        let set = |one: &mut Chosen, name: &str| {
            policy::by_name(name)?;
            name.clone_into(&mut one.policy);
            Ok(())
        };
        of_scopes("--policy", word, &mut chosen, set)?;
    }
    for word in &command.fast {
        let set = |one: &mut Chosen, quota: &str| {
            one.quota = quota.parse()?;
            ensure!(
                tiers::keeps(&one.policy, one.quota),
                "policy {} does not decide on fast memory; give --policy {} as well",
                one.policy,
                tiers::NAME
            );
            Ok(())
        };
        of_scopes("--fast", word, &mut chosen, set)?;
    }
    Ok(chosen)
}

/// Sets something of all scopes, or, where a word has the form SCOPE=VALUE, of the one that was chosen so.
fn of_scopes(
    option: &str,
    word: &str,
    chosen: &mut [Chosen],
    set: impl Fn(&mut Chosen, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (scope, value) = match word.rsplit_once('=') {
        Some((scope, value)) => (Some(scope), value),
        None => (None, word),
    };
    let mut any = false;
    for one in chosen.iter_mut() {
        if scope.is_none_or(|scope| scope == one.name) {
            set(one, value).with_context(|| format!("{option} {}", word.shown()))?;
            any = true;
        }
    }
    ensure!(
        any,
        "{option} {}: nothing was chosen by the word `{}`; give --pid, --cgroup, --name or --user so",
        word.shown(),
        scope.unwrap_or_default().shown()
    );
    Ok(())
}

fn of(name: &str, selector: Selector, watched: Scope) -> Chosen {
    Chosen {
        name: name.to_owned(),
        selector,
        watched,
        policy: policy::DEFAULT.to_owned(),
        quota: Quota::default(),
    }
}

/// `12` or `12,34`.
fn pids(word: &str, root: &Root) -> anyhow::Result<Chosen> {
    let mut pids = Vec::new();
    for part in word.split(',') {
        let Ok(pid) = part.trim().parse::<i32>() else {
            bail!(
                "`{}` is no number of a process; give numbers, as 12 or 12,34",
                part.shown()
            );
        };
        ensure!(
            pid != std::process::id() as i32,
            "{pid} is this process itself; give another's number"
        );
        watchable::check(root, pid).with_context(|| format!("{pid}"))?;
        pids.push(pid);
    }
    let trees = pids.iter().map(|&pid| Selector::Tree(Pid(pid))).collect();
    Ok(of(word, Selector::Any(trees), Scope::Processes(pids)))
}

fn group(word: &str, root: &Root) -> anyhow::Result<Chosen> {
    let of_word = || format!("--cgroup {}", word.shown());
    let folder = watchable::cgroup(root, word).with_context(of_word)?;
    // Older trees are listed as well, but processes do not tell their groups by one path there.
    cgroup::controllers(root).with_context(of_word)?;
    // What processes say of their group is seen from the root of this process's own view.
    let inner = folder.trim_start_matches(watchable::CGROUPS);
    let path = match inner {
        "" => "/".to_owned(),
        inner => inner.to_owned(),
    };
    let own = pressure::group_of(root, std::process::id() as i32);
    ensure!(
        own.is_none_or(|own| !own.starts_with("/..")),
        "--cgroup {}: this is a container's view of control groups, in which processes of others cannot be \
         told by their group; run hither on the host",
        word.shown()
    );
    Ok(of(word, Selector::Cgroup(path), Scope::Cgroup(folder)))
}

/// A user's number, by name or number.
fn user(word: &str, root: &Root) -> anyhow::Result<u32> {
    let number = match word.parse::<u32>() {
        Ok(number) => number,
        Err(_) => {
            let number = users::number(root, word)?;
            number.context(
                "there is no such user in /etc/passwd; give a number (`id -u NAME`), which works for all",
            )?
        }
    };
    let own = sys::effective_uid();
    ensure!(
        own == 0 || own == number,
        "processes of other users are not yours; run hither as root, or as that user"
    );
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        command: Command,
    }

    fn chosen(words: &[&str]) -> Result<Vec<Chosen>, String> {
        let line = Line::try_parse_from(std::iter::once(&"attach").chain(words)).unwrap();
        choose(&line.command, &Root::host()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_option_is_a_scope_with_its_policy() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let words = [
            "-p",
            &pid,
            "--name",
            "sh*",
            "--policy",
            "none",
            "--policy",
            "sh*=wrong-node",
        ];
        let scopes = chosen(&words).unwrap();
        let told: Vec<_> = scopes
            .iter()
            .map(|one| (one.name.as_str(), one.policy.as_str()))
            .collect();
        assert_eq!(told, [(pid.as_str(), "none"), ("sh*", "wrong-node")]);
        assert_eq!(scopes[1].selector, Selector::Name("sh*".to_owned()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn refusals_say_what_and_how_to_mend_it() {
        for (words, expected) in [
            (&[][..], "nobody is chosen; give --pid"),
            (&["-p", "x"][..], "--pid x: `x` is no number of a process"),
            (&["-p", "2147483647"][..], "there is no such process"),
            (
                &["--cgroup", "no/such"][..],
                "there is no such control group",
            ),
            (&["--cgroup", "../x"][..], "there is no such control group"),
            (
                &["--user", "nobody-here"][..],
                "there is no such user in /etc/passwd",
            ),
            (&["--name", "a", "--name", "a"][..], "`a` is chosen twice"),
            (
                &["--name", "a", "--policy", "carefour"][..],
                "there is no policy `carefour`",
            ),
            (
                &["--name", "a", "--policy", "b=none"][..],
                "nothing was chosen by the word `b`",
            ),
        ] {
            let error = chosen(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }
}
