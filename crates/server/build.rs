//! The pages are embedded: when they were built anew, so must be this crate.

fn main() {
    println!("cargo:rerun-if-changed=../../web/pack");
}
