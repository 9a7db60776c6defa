//! Keeps the standard library's machinery for panics out of the shared object.
//!
//! Nothing here panics in a release build, but the linker keeps what the unwind tables of every
//! linked object name: the personality of Rust's frames, which alone brings 40 functions of the C
//! library, libgcc_s and 500 relocations, and every program pays for them when it starts. Without a
//! personality an unwinder passes a frame by, which is what a C++ exception or a cancelled thread
//! does to the frames of this library anyway.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=rust_eh_personality=0");
}
