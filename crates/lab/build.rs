//! The page of reports is embedded: when it was built anew, so must be this crate.

fn main() {
    println!("cargo:rerun-if-changed=../../web/single");
}
