//! `hekate pool`.

use crate::cli::{Cli, Pool};
use crate::commands::brick::table::print_bricks;
use crate::commands::control::look;
use crate::failure::Failure;
use crate::output;
use hekate_control::PoolList;
use hekate_control::volume::PoolStatus;

pub fn pool(cli: &Cli, command: &Pool) -> Result<(), Failure> {
    let pools = look(cli, PoolList {})?;
    match command {
        Pool::List if cli.json => output::json(&pools),
        Pool::List => pools.iter().for_each(print),
        Pool::Show { name } => {
            let known: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
            let missing =
                || Failure::new(66, format!("there is no pool called {name}; there are: {}", known.join(", ")));
            let pool = pools.iter().find(|pool| pool.name == *name).ok_or_else(missing)?;
            if cli.json { output::json(pool) } else { print(pool) }
        }
    }
    Ok(())
}

fn print(pool: &PoolStatus) {
    println!("pool {}", pool.name);
    for ring in &pool.rings {
        println!(
            "  ring {}: {} copies, no two on one {}; {} partitions",
            ring.ring,
            ring.copies,
            ring.domain.text(),
            ring.partitions
        );
    }
    print_bricks(&pool.bricks);
}
