//! Small programs with a documented access pattern, for tests, demonstrations and evidence.
//!
//! Each is an ordinary program: it neither knows nor asks whether something moves its memory. It
//! prints its own time and a checksum that depends on its arguments alone, never on placement or
//! on the timing of its threads, so that a lost write shows. A marker instruction around the
//! measured part (window 0 of the Opium device) is a no-operation everywhere but in the lab.
//!
//! `docs/workloads.md` describes the patterns; [`PROGRAMS`] lists them.

pub mod barnes;
pub mod cachemix;
pub mod cg;
pub mod churn;
pub mod cli;
pub mod cluster;
pub mod counted;
pub mod csr;
pub mod facerec;
pub mod fft3d;
pub mod floats;
pub mod fmm;
pub mod grow;
pub mod gups;
pub mod hotspot;
pub mod is;
pub mod kvstore;
pub mod marker;
pub mod memlat;
pub mod memory;
pub mod memstore;
pub mod mg;
pub mod mix;
pub mod npb;
pub mod ocean;
pub mod pca;
pub mod planted;
pub mod random;
pub mod ring;
pub mod scan;
pub mod series;
pub mod stream;
pub mod team;
pub mod water;
pub mod zipf;

/// Every program, in the order of the documentation.
pub const PROGRAMS: [&cli::Workload; 24] = [
    &cluster::PROGRAM,
    &memlat::PROGRAM,
    &stream::PROGRAM,
    &gups::PROGRAM,
    &cg::PROGRAM,
    &kvstore::PROGRAM,
    &memstore::PROGRAM,
    &hotspot::PROGRAM,
    &scan::PROGRAM,
    &grow::PROGRAM,
    &planted::PROGRAM,
    &fft3d::PROGRAM,
    &ocean::PROGRAM,
    &water::PROGRAM,
    &fmm::PROGRAM,
    &barnes::PROGRAM,
    &pca::PROGRAM,
    &facerec::PROGRAM,
    &is::PROGRAM,
    &mg::PROGRAM,
    &churn::PROGRAM,
    &npb::PROGRAM,
    &mix::PROGRAM,
    &cachemix::PROGRAM,
];
