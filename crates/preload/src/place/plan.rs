//! The plan of this process, read from the environment before the program's first instruction. Its
//! text is that of [`hither_core::shim::Plan`].

use super::kernel::Mask;
use crate::config::number;
use hither_core::bind::Mode;
use hither_core::shim::{BoardId, MOST_CPUS, MOST_RULES, Stride};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest file name of an object.
const NAME_BYTES: usize = 256;

/// A rule, as `hither_core::shim::Rule`.
#[derive(Clone, Copy)]
pub struct Rule {
    pub heap: bool,
    pub maps: bool,
    pub least: u64,
    pub most: u64,
    name: [u8; NAME_BYTES],
    name_length: usize,
    /// First address in the object's own numbers, and the one after the last.
    pub code: (u64, u64),
    pub mode: Mode,
    pub mask: Mask,
    pub stride: Stride,
}

/// Rules and CPUs. Of most plans one page is used: a start pays for each page that it touches.
#[repr(C)]
pub struct Plan {
    rule_count: usize,
    cpu_count: usize,
    /// What the board must be.
    pub board: Option<BoardId>,
    /// Nodes that have memory.
    pub nodes: Mask,
    cpus: [u16; MOST_CPUS],
    rules: [Rule; MOST_RULES],
}

impl Rule {
    const NOTHING: Self = Self {
        heap: false,
        maps: false,
        least: 0,
        most: 0,
        name: [0; NAME_BYTES],
        name_length: 0,
        code: (0, 0),
        mode: Mode::Default,
        mask: Mask::EMPTY,
        stride: Stride::Kernel,
    };

    /// The object whose code is meant; nothing where any is.
    pub fn module(&self) -> Option<&[u8]> {
        self.name
            .get(..self.name_length)
            .filter(|name| !name.is_empty())
    }

    fn read(text: &[u8]) -> Option<Self> {
        let mut words = parts(text, b' ');
        let mut rule = Self::NOTHING;
        for kind in words.next()? {
            rule.heap |= *kind == b'h';
            rule.maps |= *kind == b'm';
        }
        (rule.least, rule.most) = (number(words.next()?)?, number(words.next()?)?);
        let name = words.next()?;
        if name != b"-" {
            rule.name.get_mut(..name.len())?.copy_from_slice(name);
            rule.name_length = name.len();
        }
        rule.code = (number(words.next()?)?, number(words.next()?)?);
        rule.mode = Mode::of_number(small(words.next()?)?)?;
        rule.stride = match words.next()? {
            b"kernel" => Stride::Kernel,
            b"blocks" => Stride::Blocks,
            pages => Stride::Pages(number(pages)?),
        };
        read_list(words.next()?, |node| rule.mask.insert(node))?;
        let is_whole = words.next().is_none() && rule.mode.has_nodes() == (rule.mask.count() > 0);
        is_whole.then_some(rule)
    }
}

/// What is between separators. Of bytes: the standard library's functions for text are not inlined,
/// and whoever calls them is taken to panic.
fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    text.split(move |letter| *letter == separator)
}

fn small(text: &[u8]) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

/// Numbers with commas between, or nothing.
fn read_list(text: &[u8], mut take: impl FnMut(u32) -> bool) -> Option<()> {
    let mut numbers = parts(text, b',').filter(|number| !number.is_empty());
    numbers.try_for_each(|number| take(small(number)?).then_some(()))
}

impl Plan {
    const fn new() -> Self {
        Self {
            rule_count: 0,
            cpu_count: 0,
            board: None,
            nodes: Mask::EMPTY,
            cpus: [0; MOST_CPUS],
            rules: [Rule::NOTHING; MOST_RULES],
        }
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        self.rules.get(..self.rule_count).unwrap_or(&[])
    }

    /// CPUs in the order in which threads get them.
    pub fn cpus(&self) -> &[u16] {
        self.cpus.get(..self.cpu_count).unwrap_or(&[])
    }

    /// Reads a text; a plan that is not whole is none.
    fn read(&mut self, text: &[u8]) -> Option<()> {
        for part in parts(text, b';') {
            let mut words = part.splitn(2, |letter| *letter == b' ');
            let (word, rest) = (words.next()?, words.next()?);
            match word {
                b"board" => {
                    let mut words = parts(rest, b' ').map(number);
                    self.board = Some(BoardId {
                        device: words.next()??,
                        inode: words.next()??,
                        word: words.next()??,
                    });
                    words.next().is_none().then_some(())?;
                }
                b"cpus" => read_list(rest, |cpu| {
                    let place = self.cpus.get_mut(self.cpu_count);
                    self.cpu_count += 1;
                    let (Some(place), Ok(cpu)) = (place, u16::try_from(cpu)) else {
                        return false;
                    };
                    *place = cpu;
                    true
                })?,
                b"nodes" => read_list(rest, |node| self.nodes.insert(node))?,
                b"rule" => {
                    *self.rules.get_mut(self.rule_count)? = Rule::read(rest)?;
                    self.rule_count += 1;
                }
                _ => return None,
            }
        }
        Some(())
    }
}

#[repr(align(4096))]
struct Own(UnsafeCell<Plan>);
// SAFETY: written by `start` alone, while the process has one thread, before `IS_READ` is set.
unsafe impl Sync for Own {}
#[unsafe(link_section = ".bss.large")]
static OWN: Own = Own(UnsafeCell::new(Plan::new()));
static NONE: Plan = Plan::new();
static IS_READ: AtomicBool = AtomicBool::new(false);

/// The plan of this process; without rules and CPUs until one was read.
pub fn plan() -> &'static Plan {
    match IS_READ.load(Ordering::Acquire) {
        // SAFETY: nobody writes it any more.
        true => unsafe { &*OWN.0.get() },
        false => &NONE,
    }
}

/// Reads the plan, once. Says whether there is one.
pub fn start(text: &[u8]) -> bool {
    // SAFETY: the process has one thread, and `IS_READ` is not set.
    let own = unsafe { &mut *OWN.0.get() };
    let is_whole = own.read(text).is_some();
    IS_READ.store(is_whole, Ordering::Release);
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::bind::KernelPolicy;
    use hither_core::ids::CpuId;
    use hither_core::shim;

    #[test]
    fn what_hither_writes_is_read() {
        let site = shim::Site {
            module: "libfoo.so".to_owned(),
            start: 0x10,
            end: 0x20,
        };
        let rule = |policy: &str, stride, site| shim::Rule {
            kinds: shim::Kinds {
                heap: true,
                maps: false,
            },
            least_bytes: 5,
            most_bytes: u64::MAX,
            site,
            policy: policy.parse::<KernelPolicy>().unwrap(),
            stride,
        };
        let board = BoardId {
            device: 1,
            inode: u64::MAX,
            word: 3,
        };
        let written = shim::Plan {
            board: Some(board),
            cpus: [4, 0, 2].map(CpuId).to_vec(),
            nodes: vec![0, 9],
            rules: vec![
                rule("local", Stride::Kernel, Some(site)),
                rule("interleave:0,9", Stride::Blocks, None),
                rule("bind:9", Stride::Pages(7), None),
            ],
        };
        let mut plan = Box::new(Plan::new());
        plan.read(written.to_string().as_bytes()).unwrap();
        assert_eq!((plan.cpus(), plan.nodes.count()), (&[4, 0, 2][..], 2));
        assert_eq!(plan.board, Some(board));
        let [local, blocks, pages] = plan.rules() else {
            panic!("{}", plan.rules().len());
        };
        assert_eq!(
            (local.module(), local.code),
            (Some(&b"libfoo.so"[..]), (0x10, 0x20))
        );
        assert_eq!(
            (local.mode, local.least, local.most),
            (Mode::Local, 5, u64::MAX)
        );
        assert!(local.heap && !local.maps && local.mask.count() == 0);
        assert_eq!((blocks.stride, blocks.mask.count()), (Stride::Blocks, 2));
        assert_eq!((pages.stride, pages.module()), (Stride::Pages(7), None));
    }

    #[test]
    fn a_text_that_is_not_whole_is_no_plan() {
        let long = format!("cpus {}", vec!["0"; MOST_CPUS + 1].join(","));
        for text in [
            "",
            "cpus",
            "cpus x",
            "board 1 2",
            "board 1 2 x",
            "board 1 2 3 4",
            "rule h 1 2 - 0 0 3 kernel",
            "rule h 1 2 - 0 0 3 kernel ",
            "rule h 1 2 - 0 0 0 kernel 1",
            "rule h 1 2 - 0 0 3 kernel 0,1 more",
            "rule h 1 2 - 0 0 9 kernel 0",
            "rule h 1 2 - 0 0 3 kernel 1024",
            &long,
        ] {
            assert!(Plan::new().read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
