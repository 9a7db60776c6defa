#[cfg(not(loom))]
mod fork;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod order;
#[cfg(not(loom))]
mod visits;
