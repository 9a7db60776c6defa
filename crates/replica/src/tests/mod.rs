#[cfg(not(loom))]
mod coherence;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod limits;
#[cfg(loom)]
mod loom;
