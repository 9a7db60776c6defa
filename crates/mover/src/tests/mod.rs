//! Tests of the queues and the service, and models of them for loom and shuttle.

#[cfg(loom)]
mod loom;
#[cfg(not(any(loom, shuttle)))]
mod queues;
#[cfg(shuttle)]
mod shuttle;
