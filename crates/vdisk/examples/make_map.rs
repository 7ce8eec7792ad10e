//! Makes a large vDisk without its data, to measure what opening it costs (`bench/vdisk.py --maps`).
//!
//!     make_map SOCKET VOLUME VDISK BLOCKS APPENDS [writing]
//!
//! Each of the first BLOCKS blocks of 4 KiB looks as if it had been written once, in random order; APPENDS appends of 15
//! blocks follow the last checkpoint; `writing`: the owner was killed during a checkpoint.

use hekate_client::{OpenOptions, Volume};
use hekate_transport::Endpoint;
use hekate_vdisk::{Catalogue, VolumeStore, measure};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [socket, volume, name, blocks, appends, rest @ ..] = &words[..] else {
        return Err("make_map SOCKET VOLUME VDISK BLOCKS APPENDS [writing]".into());
    };
    let opened = Volume::open(Endpoint::Unix(socket.into()), volume, &OpenOptions::default())?;
    let catalogue = Catalogue::open(Arc::new(VolumeStore::open(Arc::new(opened))?))?;
    let writing = rest.iter().any(|word| word == "writing");
    measure::make_map(&catalogue, name, blocks.parse()?, appends.parse()?, writing)?;
    Ok(())
}
