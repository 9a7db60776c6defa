//! Tests of the queues and the service, and models of them for loom and shuttle.

#[cfg(loom)]
mod loom;
