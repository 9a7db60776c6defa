//! Tests of the simulation, and of the engine by it.

mod seeds;
