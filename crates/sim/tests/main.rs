//! Tests of the engine by the simulation, and of the checkers by planted faults.

mod apart;
mod planted;
mod programs;
mod seeds;
mod street;
mod tiers;
