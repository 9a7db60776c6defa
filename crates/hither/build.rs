//! How the program is linked: at a fixed address.
//!
//! At any address the dynamic linker has 9,700 pointers to mend at each start, and the kernel the
//! pages to copy that they are in: half a million instructions, a tenth of what an empty
//! `hither record` takes, which should cost what is recorded next to nothing. The addresses of
//! libraries, heap and stacks stay random.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
