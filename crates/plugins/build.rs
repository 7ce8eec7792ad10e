//! The package for Python is part of the program: it is built again when a file there is added or removed.

fn main() {
    println!("cargo:rerun-if-changed=../../python/hekate");
}
