//! What perf's records mean, wherever they come from: rings of this machine, files of others.

pub mod source;
