//! The shim in programs of C: what they read, and what is left of copies.

mod programs;
