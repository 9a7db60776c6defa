//! How the shared object is linked: every program that is started pays for loading it, most of it to
//! the kernel, for each mapping and each page that is touched.

/// Arguments of the linker, for the shared object alone.
const ARGUMENTS: [&str; 5] = [
    // Keeps the standard library's machinery for panics out. Nothing here panics in a release build,
    // but the linker keeps what unwind tables name: the personality of Rust's frames, which alone
    // brings 40 functions of the C library, libgcc_s and 500 relocations. An unwinder passes a frame
    // without a personality by, which is what a C++ exception or a cancelled thread does to the
    // frames of this library anyway.
    "-Wl,--defsym=rust_eh_personality=0",
    // What the compiler's own start files do is for libraries that are unloaded.
    "-nostartfiles",
    "-Wl,--defsym=__dso_handle=0",
    // One mapping for code and constants, one for data: what is read-only after relocation would
    // have a third. It would protect little, as addresses of the allocator behind are found at start
    // and lie in data.
    "-Wl,--no-rosegment",
    "-Wl,-z,norelro",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=large.ld");
    // Elsewhere the toolchain does not bring LLVM's linker, and others do not know all of this.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let script = format!("-Wl,-T,{folder}/large.ld");
    for argument in ARGUMENTS.into_iter().chain([script.as_str()]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
