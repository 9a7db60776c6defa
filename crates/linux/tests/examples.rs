//! The examples of the service in Rust run and find what they expect.

#[path = "../examples/mover.rs"]
mod mover;
#[path = "../examples/mover_async.rs"]
mod mover_async;

#[test]
fn a_program_moves_its_memory() {
    mover::main();
}

#[test]
fn a_future_moves_memory() {
    mover_async::main();
}
