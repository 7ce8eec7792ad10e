//! A door over a volume in this process, for clients of other languages: prints `endpoint http://…` and serves until
//! its standard input ends. Its keys: `tests/support/keys.rs`.

#![allow(clippy::unwrap_used, reason = "an example for tests")]

include!("../../client/tests/support/scratch.rs");
include!("../tests/support/keys.rs");

use hekate_client::{OpenOptions, Volume};
use hekate_gateway_s3::{Door, Limits, Settings};
use std::net::SocketAddr;

fn main() {
    let scratch = Scratch::new("serve");
    let volume = Arc::new(Volume::open(scratch.endpoint(), "v1", &OpenOptions::default()).unwrap());
    let settings = Settings {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        tls: None,
        domain: Some("s3.localhost".into()),
        region: "us-east-1".into(),
        limits: Limits::default(),
    };
    let door = Door::start(volume, Arc::new(Fixed), settings).unwrap();
    println!("endpoint http://{}", door.addresses()[0]);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    door.stop();
}
