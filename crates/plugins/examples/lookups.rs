//! Look-ups of include files through the library, without a kernel: what `bench/include.py` measures beside mounts.
//!
//! `lookups CREDENTIAL VOLUME STATE ROUNDS pledges|asked`: with pledges, or each look-up is asked for anew. The volume has
//! the directories inc0 to inc9 that `bench/include.py` makes; STATE is the state directory whose translators are used.
//! Prints the milliseconds of the median round, and probes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement")]

use hekate_client::{Context, Endpoint, OpenOptions, Volume};
use hekate_plugins::Home;
use hekate_proto::{Error, InodeId, Name, ROOT};
use hekate_tls::Credential;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A small generator (xorshift64*), so that each round has the same names each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

fn round(volume: &Volume, directories: &[InodeId], seed: u64) -> (f64, usize) {
    let (mut draw, mut probes, begun) = (Draw(seed * 2 + 1), 0, Instant::now());
    for _ in 0..1000 {
        // 80 of a hundred look-ups are of 100 of the 1,000 names.
        let number = if draw.below(10) < 8 { draw.below(100) * 10 + 7 } else { draw.below(1000) };
        let name = Name::try_from(format!("lib{number:04}.php").as_str()).unwrap();
        for directory in directories {
            probes += 1;
            match volume.lookup(&Context::default(), *directory, name.clone()) {
                Ok(_) => break,
                Err(Error::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    (begun.elapsed().as_secs_f64() * 1000.0, probes)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, credential, volume, state, rounds, how] = &arguments[..] else {
        panic!("usage: lookups CREDENTIAL VOLUME STATE ROUNDS pledges|asked")
    };
    let credential = Credential::read(Path::new(credential)).unwrap();
    let address = credential.servers.join(",");
    let endpoint = Endpoint::Tcp(address, Arc::new(hekate_tls::Context::of(credential).unwrap()));
    let catalogue = Some(hekate_translators::built_in().with_installed(Home::new(Path::new(state)).finder()));
    let options = OpenOptions { catalogue, no_pledges: how == "asked", ..OpenOptions::default() };
    let volume = Volume::open(endpoint, volume, &options).unwrap();
    let directory = |number| {
        let name = Name::try_from(format!("inc{number}").as_str()).unwrap();
        volume.lookup(&Context::default(), ROOT, name).unwrap().id
    };
    let directories: Vec<InodeId> = (0..10).map(directory).collect();
    (0..2).for_each(|seed| _ = round(&volume, &directories, 1000 + seed));
    let mut found: Vec<(f64, usize)> =
        (0..rounds.parse().unwrap()).map(|seed| round(&volume, &directories, seed)).collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (milliseconds, probes) = found[found.len() / 2];
    println!("{milliseconds} {probes}");
}
