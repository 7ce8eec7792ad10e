//! `hekate network`.

use crate::cli::{Cli, Network};
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use crate::output;
use hekate_control::access::NetworkStatus;
use hekate_control::status::NetworkTraffic;
use hekate_control::{NetworkList, NetworkSet};

pub fn network(cli: &Cli, command: &Network) -> Result<(), Failure> {
    let networks = match command {
        Network::Set { name, .. } => ask(cli, NetworkSet { network: name.clone() })?,
        Network::List | Network::Show { .. } => look(cli, NetworkList {})?,
    };
    let Network::Show { name } = command else {
        match cli.json {
            true => output::json(&networks),
            false => networks.iter().for_each(print),
        }
        return Ok(());
    };
    let names: Vec<&str> = networks.iter().map(|row| &row.traffic.network[..]).collect();
    let missing = || Failure::usage(format!("there is no network called {name}; there are: {}", names.join(", ")));
    let row = networks.iter().find(|row| row.traffic.network == *name).ok_or_else(missing)?;
    if cli.json {
        output::json(row);
    } else {
        print(row);
    }
    Ok(())
}

fn print(row: &NetworkStatus) {
    let users = if row.for_servers { "servers among themselves" } else { "clients" };
    println!("network {}, for {users}: {}", row.traffic.network, carried(&row.traffic));
    for address in &row.addresses {
        println!("  server {} at {}", address.server, address.address);
    }
}

/// What a network has carried, in words.
pub fn carried(traffic: &NetworkTraffic) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "{} connections; {:.1} MiB in, {:.1} MiB out, {} round trips since the servers started",
        traffic.connections,
        mib(traffic.received_bytes),
        mib(traffic.sent_bytes),
        traffic.round_trips
    )
}
