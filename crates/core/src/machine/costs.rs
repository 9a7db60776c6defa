//! Prices of events: one declaration for the struct, the reader, the writer, the documents and the machine
//! files that `hither probe` writes.

/// A price as a machine file has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Its key in `[costs]`.
    pub name: &'static str,
    /// The event that it is paid for.
    pub about: &'static str,
    /// What holds for a machine file without it; `None`: each file must state it.
    pub absent_ns: Option<f64>,
    /// An estimate for a processor of today, where nobody measured it.
    pub typical_ns: f64,
}

macro_rules! prices {
    ($($name:ident, absent $absent:expr, typical $typical:literal: $about:literal;)+) => {
        /// Prices of events in ns, on top of the instructions that the kernel executes for them.
        #[derive(Clone, Debug, PartialEq)]
        pub struct EventCosts {
            $(#[doc = $about] pub $name: f64,)+
        }

        impl EventCosts {
            /// All of them, in the order of a machine file.
            pub const PRICES: &'static [Price] = &[$(Price {
                name: stringify!($name),
                about: $about,
                absent_ns: $absent,
                typical_ns: $typical,
            },)+];

            /// From what a file says of each.
            ///
            /// # Errors
            /// Those of `read`.
            pub(super) fn read<E>(mut read: impl FnMut(&Price) -> Result<f64, E>) -> Result<Self, E> {
                let mut prices = Self::PRICES.iter();
                let mut next = || read(prices.next().expect("a price for each field"));
                Ok(Self { $($name: next()?,)+ })
            }

            /// Each with its value, in the same order.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, f64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

prices! {
    syscall_ns, absent None, typical 60.0: "`syscall` and its `sysret` together";
    exception_ns, absent None, typical 180.0: "a page fault or other exception: entry and `iret` together";
    interrupt_ns, absent None, typical 300.0:
        "a device, timer or inter-processor interrupt: entry, acknowledge and `iret` together";
    ipi_ns, absent None, typical 600.0: "from the sender's write to the interrupt controller to the receiver";
    wakeup_ns, absent None, typical 1000.0: "from the interrupt to the first instruction of a halted CPU";
    page_table_switch_ns, absent None, typical 80.0: "a page-table switch (`mov cr3`), its refills not included";
    invlpg_ns, absent None, typical 50.0: "`invlpg` or `invpcid`";
    device_access_ns, absent None, typical 100.0: "an uncached device access (port or memory-mapped)";
}
