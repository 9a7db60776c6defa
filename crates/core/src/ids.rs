//! Ids: newtypes over the kernel's own numbers.
//!
//! A [`NodeId`] or [`CpuId`] is the number the kernel prints. It may be sparse and is never an
//! index into an array; arrays are indexed by position in the machine's or topology's list.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A memory node, by the kernel's number (`/sys/devices/system/node/nodeN`).
    NodeId(u32),
    "node"
);
id!(
    /// A logical CPU, by the kernel's number.
    CpuId(u32),
    "cpu"
);
id!(
    /// A set of CPUs that share a last-level cache, by position in the machine's list.
    DomainId(u32),
    "domain"
);
id!(
    /// A process, by the kernel's number in the reader's own pid name space.
    Pid(i32),
    "pid "
);
id!(
    /// What is judged together, by its number in one engine.
    ScopeId(u32),
    "scope "
);
id!(
    /// One life of an address space: a process is given another at exec, and a number that is used
    /// again another still.
    SpaceId(u32),
    "space "
);
