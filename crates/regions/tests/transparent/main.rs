//! Threads that follow regions: right data, right CPUs, and the program's own signals as before. One program without a test
//! harness, as page protection is for programs with one thread; its functions of the C library are stood in for.
//!
//! Keys are tried where the processor has them (in the lab: `hither lab run --machine clovertown --cpus 4 -- PATH`), page protection
//! everywhere. `--switches 1000000 --only storm` makes the long storm, `--form keys` of keys alone.

mod memory;
mod ring;
mod signals;
mod single;
mod storm;

use hither_core::ids::CpuId;
use hither_linux::sys;
use hither_regions::{Closing, Domain, Form, RegionUse, Transparent};

hither_regions::stand_in!();

/// Its name, and what it does.
type Check = (&'static str, fn(Form));

/// Two CPUs as domains; `None` on a machine with one.
fn domains() -> Option<Vec<Domain>> {
    let cpus: Vec<CpuId> = sys::allowed_cpus().unwrap().iter().take(2).collect();
    let domain = |cpu| Domain::of_cpus([cpu]).unwrap().with_cache_bytes(1 << 20);
    (cpus.len() == 2).then(|| cpus.into_iter().map(domain).collect())
}

/// Regions of this form, that threads always follow.
fn begin(form: Form) -> Option<Transparent> {
    let made = Transparent::begin(domains()?, Closing::By(form)).unwrap();
    made.set_use(RegionUse::Always).unwrap();
    Some(made)
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let switches = option("--switches").map_or(20_000, |word| word.parse().unwrap());
    let (only, alone) = (option("--only").unwrap_or_default(), option("--form"));
    if domains().is_none() {
        println!("one CPU only: nothing to go to");
        return;
    }
    let has_keys = Transparent::begin(domains().unwrap(), Closing::By(Form::Keys)).is_ok();
    let forms = [Form::Keys, Form::Protection];
    let is_tried = |form: &Form| {
        let word = if *form == Form::Keys {
            "keys"
        } else {
            "protection"
        };
        (has_keys || *form == Form::Protection) && alone.as_ref().is_none_or(|alone| alone == word)
    };
    for form in forms.into_iter().filter(is_tried) {
        let checks: [Check; 14] = [
            ("single::follows", single::follows),
            (
                "single::copies_between_domains",
                single::copies_between_domains,
            ),
            ("single::buffers_are_opened", single::buffers_are_opened),
            (
                "single::what_cannot_be_caught_is_refused",
                single::what_cannot_be_caught_is_refused,
            ),
            ("single::too_often_is_global", single::too_often_is_global),
            ("single::all_is_given_back", single::all_is_given_back),
            ("single::children_go_on", single::children_go_on),
            ("single::threads_degrade_protection", single::threads),
            ("single::keys_are_used_up", single::keys_are_used_up),
            ("signals::own_handler_before", signals::own_handler_before),
            ("signals::own_handler_after", signals::own_handler_after),
            ("signals::jumps", signals::jumps),
            ("signals::nested", signals::nested),
            ("ring::io_uring", ring::io_uring),
        ];
        for (name, check) in checks.into_iter().filter(|(name, _)| name.contains(&only)) {
            check(form);
            println!("{form:?} {name}: ok");
        }
        if "storm".contains(&only) {
            storm::storm(form, switches);
            println!("{form:?} storm: ok");
        }
    }
    if !has_keys {
        println!("no protection keys here: that form was not tried");
    }
}
