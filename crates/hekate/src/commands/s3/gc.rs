//! `hekate s3 gc`.

use crate::cli::{Cli, S3Gc};
use crate::commands::way::Way;
use crate::failure::Failure;
use crate::output;
use hekate_gateway_s3::storage::Store;

pub fn gc(cli: &Cli, options: &S3Gc) -> Result<(), Failure> {
    let volume = Way::of(cli)?.open(cli, &options.volume)?;
    let collected = Store::new(volume.clone()).collect(options.older_than);
    volume.end();
    let collected = collected.map_err(|error| Failure::new(74, error.to_string()))?;
    if cli.json {
        output::json(&serde_json::json!({
            "uploads": collected.uploads, "directories": collected.directories,
        }));
    } else {
        println!(
            "{} uploads were aborted, and {} empty directories were removed",
            collected.uploads, collected.directories
        );
    }
    Ok(())
}
