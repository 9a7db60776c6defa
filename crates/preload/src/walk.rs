//! The call stack of an allocation, as a site's number.
//!
//! A stack is walked by the unwinder of the compiler's run time, which follows the program's own
//! unwind tables and needs no frame pointers; it takes some microseconds. It is loaded where stacks
//! are going to be walked, as every program that is started would pay for it. A program that allocates
//! in a loop comes with the same stack again and again: so a walked stack is remembered with the
//! places of its return addresses, and the next time at the same place it is enough to see that they
//! are still there. Each place is read only after the one below it was found unchanged, so that
//! what is read is always the live stack of this thread.

use crate::hash::{mix, top};
use crate::{modules, place, record, sites, state::STATE};
use hither_core::sites::MAX_FRAMES;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const BITS: u32 = 9;
/// Threads that can walk at a time; a further one writes its caller only.
const WALKERS: usize = 64;
/// Frames of this library and of the unwinder below the program's first.
const MOST_OWN: usize = 16;

/// A walked stack.
#[derive(Clone, Copy)]
struct Walk {
    /// Return addresses, innermost first.
    frames: [usize; MAX_FRAMES],
    /// Where they lie on the stack.
    places: [usize; MAX_FRAMES],
    count: usize,
    /// Do all of them lie there? Not behind a signal's frame.
    is_sure: bool,
    /// Its number in the log; nothing where it was not asked for yet.
    site: Option<u32>,
    /// Rules about call sites that mean it, a bit each; nothing where nobody asked yet.
    rules: Option<u16>,
}

/// One of the cache, used by who can take it at once.
struct Entry {
    taken: AtomicU32,
    walk: UnsafeCell<Walk>,
}
// SAFETY: `walk` is used only by who has set `taken`.
unsafe impl Sync for Entry {}

/// Stacks walked lately, and who walks now.
pub struct Cache {
    entries: [Entry; 1 << BITS],
    walkers: [AtomicU32; WALKERS],
}

impl Walk {
    const NOTHING: Self = Self {
        frames: [0; MAX_FRAMES],
        places: [0; MAX_FRAMES],
        count: 0,
        is_sure: false,
        site: None,
        rules: None,
    };

    fn frames(&self) -> &[usize] {
        self.frames.get(..self.count).unwrap_or(&[])
    }

    /// Is this the stack of a thread whose innermost return address lies at `caller`?
    ///
    /// # Safety
    /// `caller` is the place of a return address on this thread's stack.
    unsafe fn is_now(&self, caller: usize) -> bool {
        if self.count == 0 || !self.is_sure || self.places[0] != caller {
            return false;
        }
        let mut pairs = self.frames.iter().zip(&self.places).take(self.count);
        pairs.all(|(frame, place)| {
            // SAFETY: the first is the caller's own frame. Given that a frame's return address is
            // what it was, its caller's frame ends where it did, and that is still on the stack.
            let now = unsafe { (*place as *const usize).read() };
            now == *frame
        })
    }
}

impl Cache {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            entries: [const {
                Entry {
                    taken: AtomicU32::new(0),
                    walk: UnsafeCell::new(Walk::NOTHING),
                }
            }; 1 << BITS],
            walkers: [const { AtomicU32::new(0) }; WALKERS],
        }
    }

    fn with<T>(&self, index: usize, act: impl FnOnce(&mut Walk) -> T) -> Option<T> {
        let entry = &self.entries[index];
        if entry.taken.swap(1, Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: `taken` was 0 and is now this thread's.
        let done = act(unsafe { &mut *entry.walk.get() });
        entry.taken.store(0, Ordering::Release);
        Some(done)
    }

    /// Notes that a thread walks; nothing where it does already, or too many do.
    fn enter(&self, thread: u32) -> Option<Walking<'_>> {
        if self
            .walkers
            .iter()
            .any(|walker| walker.load(Ordering::Relaxed) == thread)
        {
            return None;
        }
        let place = self.walkers.iter().find(|walker| {
            walker.load(Ordering::Relaxed) == 0
                && walker
                    .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })?;
        Some(Walking(place))
    }
}

/// A thread is walking until this is dropped.
struct Walking<'a>(&'a AtomicU32);

impl Drop for Walking<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The site of an allocation by this thread. `caller` is where the return address of the function
/// that the program called lies on the stack; 0 where that is not known.
pub fn site(caller: usize, thread: u32) -> u32 {
    let site = |walk: &mut Walk| match walk.site {
        Some(site) => site,
        None => {
            let site = sites::number(walk.frames());
            walk.site = Some(site);
            site
        }
    };
    with_walk(caller, || thread, site)
}

/// The rules about call sites that mean an allocation by this thread, a bit each.
pub fn rules(caller: usize) -> u16 {
    let rules = |walk: &mut Walk| match walk.rules {
        Some(rules) => rules,
        None => {
            let rules = place::rules_of_frames(walk.frames());
            walk.rules = Some(rules);
            rules
        }
    };
    with_walk(caller, record::thread, rules)
}

/// The return address of the program's call into this library; 0 where the stack does not tell.
pub fn first() -> usize {
    walked(0, record::thread()).frames[0]
}

fn with_walk<T>(caller: usize, thread: impl Fn() -> u32, ask: impl Fn(&mut Walk) -> T) -> T {
    if caller == 0 {
        return ask(&mut walked(caller, thread()));
    }
    // SAFETY: this thread's stack, at an address that the replaced function was entered with.
    let frame = unsafe { (caller as *const usize).read() };
    let index = top(mix(mix(0, caller as u64), frame as u64), BITS);
    let known = STATE.walks.with(index, |walk| {
        // SAFETY: `caller` is as above.
        unsafe { walk.is_now(caller) }.then(|| ask(walk))
    });
    if let Some(Some(told)) = known {
        return told;
    }
    let mut new = walked(caller, thread());
    let told = ask(&mut new);
    STATE.walks.with(index, |walk| *walk = new);
    told
}

fn walked(caller: usize, thread: u32) -> Walk {
    let mut walk = Walk::NOTHING;
    // The unwinder's own tables may allocate, with its lock held.
    if let Some(unwinder) = Unwinder::known()
        && let Some(_walking) = STATE.walks.enter(thread)
    {
        let mut gather = Gather {
            walk: Walk::NOTHING,
            unwinder,
            caller,
            own: 0,
            has_begun: false,
        };
        // SAFETY: the callback gets what it is given here, and does not unwind.
        unsafe { (unwinder.backtrace)(gather_frame, (&raw mut gather).cast()) };
        walk = gather.walk;
    }
    if walk.count == 0 && caller != 0 {
        walk.count = 1;
        walk.places[0] = caller;
        // SAFETY: as in `site`.
        walk.frames[0] = unsafe { (caller as *const usize).read() };
    }
    walk
}

struct Gather {
    walk: Walk,
    unwinder: Unwinder,
    caller: usize,
    own: usize,
    has_begun: bool,
}

/// Opaque to everybody but the unwinder.
enum Context {}

type Trace = extern "C" fn(*mut Context, *mut c_void) -> c_int;
type Backtrace = unsafe extern "C" fn(Trace, *mut c_void) -> c_int;
type Ask = unsafe extern "C" fn(*mut Context) -> usize;

/// Functions of libgcc_s.
#[derive(Clone, Copy)]
struct Unwinder {
    backtrace: Backtrace,
    instruction: Ask,
    stack: Ask,
}

const NAMES: [&CStr; 3] = [c"_Unwind_Backtrace", c"_Unwind_GetIP", c"_Unwind_GetCFA"];
/// Where they are; 0 where stacks are not walked.
static ADDRESSES: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// Prepares for walking stacks, while the process has one thread. Without the library each stack has
/// the caller alone.
pub fn start() {
    modules::find_own();
    // SAFETY: the names end in zeros; the library stays loaded.
    unsafe {
        let library = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_LAZY);
        if library.is_null() {
            return;
        }
        for (name, place) in NAMES.iter().zip(&ADDRESSES) {
            let address = libc::dlsym(library, name.as_ptr()) as usize;
            place.store(address, Ordering::Relaxed);
        }
    }
}

impl Unwinder {
    fn known() -> Option<Self> {
        let [backtrace, instruction, stack] = &ADDRESSES;
        let address = |place: &AtomicUsize| match place.load(Ordering::Relaxed) {
            0 => None,
            address => Some(address),
        };
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(Self {
                backtrace: std::mem::transmute::<usize, Backtrace>(address(backtrace)?),
                instruction: std::mem::transmute::<usize, Ask>(address(instruction)?),
                stack: std::mem::transmute::<usize, Ask>(address(stack)?),
            })
        }
    }
}

const GO_ON: c_int = 0;
const STOP: c_int = 5;

/// One frame, from the innermost out: this library's own first, which are left out.
extern "C" fn gather_frame(context: *mut Context, argument: *mut c_void) -> c_int {
    // SAFETY: `walked` passes its own `Gather`, and the unwinder hands it on.
    let gather = unsafe { &mut *argument.cast::<Gather>() };
    // SAFETY: the unwinder's own context.
    let (frame, stack) = unsafe {
        let Unwinder {
            instruction, stack, ..
        } = gather.unwinder;
        (instruction(context), stack(context))
    };
    let place = stack.wrapping_sub(size_of::<usize>());
    if !gather.has_begun {
        gather.own += 1;
        gather.has_begun = match gather.caller {
            0 => !modules::is_own(frame),
            caller => caller == place,
        };
        if !gather.has_begun {
            return if gather.own > MOST_OWN { STOP } else { GO_ON };
        }
        gather.walk.is_sure = cfg!(target_arch = "x86_64");
    }
    let walk = &mut gather.walk;
    let mut free = walk.frames.iter_mut().zip(&mut walk.places);
    let Some(known) = free.nth(walk.count) else {
        return STOP;
    };
    // The outermost frame of a thread has none to return to.
    if frame == 0 {
        return STOP;
    }
    if cfg!(target_arch = "x86_64") && walk.is_sure {
        // SAFETY: the word below the end of a frame that the unwinder has just left.
        walk.is_sure = unsafe { (place as *const usize).read() } == frame;
    }
    (*known.0, *known.1) = (frame, place);
    walk.count += 1;
    if walk.count == MAX_FRAMES {
        STOP
    } else {
        GO_ON
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_again_until_a_return_address_changes() {
        let mut stack = [11usize, 0, 22, 0, 0, 33];
        let place = |index: usize, stack: &[usize; 6]| &raw const stack[index] as usize;
        let mut walk = Walk::NOTHING;
        for (count, index) in [0, 2, 5].into_iter().enumerate() {
            walk.frames[count] = stack[index];
            walk.places[count] = place(index, &stack);
        }
        walk.count = 3;
        let caller = place(0, &stack);
        // SAFETY: all places are in `stack`.
        let is_now = |walk: &Walk, caller| unsafe { walk.is_now(caller) };
        assert!(!is_now(&walk, caller));
        walk.is_sure = true;
        assert!(is_now(&walk, caller));
        assert!(!is_now(&walk, caller + 8));
        stack[1] = 7;
        assert!(is_now(&walk, std::hint::black_box(caller)));
        stack[5] = 34;
        std::hint::black_box(&stack);
        assert!(!is_now(&walk, std::hint::black_box(caller)));
    }

    #[test]
    fn a_thread_walks_once_at_a_time() {
        // SAFETY: zeros are an empty cache.
        let cache = unsafe { Box::<Cache>::new_zeroed().assume_init() };
        let one = cache.enter(5);
        assert!(one.is_some() && cache.enter(5).is_none());
        let others: Vec<_> = (6..100).map_while(|thread| cache.enter(thread)).collect();
        assert_eq!(others.len(), WALKERS - 1);
        drop(one);
        assert!(cache.enter(5).is_some());
    }

    #[test]
    fn the_unwinder_finds_this_test() {
        start();
        let unwinder = Unwinder::known().unwrap();
        let mut gather = Gather {
            walk: Walk::NOTHING,
            unwinder,
            caller: 0,
            own: 0,
            has_begun: true,
        };
        // SAFETY: as in `walked`.
        unsafe { (unwinder.backtrace)(gather_frame, (&raw mut gather).cast()) };
        assert!(gather.walk.count >= 3, "{}", gather.walk.count);
    }
}
