//! Writes the sample series into crates/variation/data: cargo run -p hekate-variation --example shapes

use hekate_variation::shapes::SHAPES;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    std::fs::create_dir_all(&directory)?;
    for shape in SHAPES {
        std::fs::write(directory.join(format!("{}.csv", shape.name)), shape.csv())?;
    }
    Ok(())
}
