//! `hekate token` and `hekate ca`: invitations of servers, and the cluster's authority.

use crate::cli::{Ca, Cli, Rotate, TokenCreate};
use crate::commands::client::date;
use crate::commands::control::ask;
use crate::failure::Failure;
use crate::output;
use hekate_control as calls;
use hekate_control::access::AuthorityStatus;
use hekate_server::write_private;
use std::path::{Path, PathBuf};

pub fn create_token(cli: &Cli, options: &TokenCreate) -> Result<(), Failure> {
    let made = ask(cli, calls::TokenCreate { expires_s: options.expires.as_secs() })?;
    match cli.json {
        true => output::json(&made),
        false => println!("{}", made.token),
    }
    Ok(())
}

pub fn ca(cli: &Cli, command: &Ca) -> Result<(), Failure> {
    match command {
        Ca::Show => print(cli, &ask(cli, calls::CaShow {})?),
        Ca::Set { servers, clients } => {
            print(cli, &ask(cli, calls::CaSet { server_days: *servers, client_days: *clients })?)
        }
        Ca::Rotate(step) => rotate(cli, step),
    }
}

fn print(cli: &Cli, status: &AuthorityStatus) -> Result<(), Failure> {
    if cli.json {
        output::json(status);
        return Ok(());
    }
    for root in &status.roots {
        println!("root                 {} until {}", root.fingerprint, date(root.expires));
    }
    println!("issuing certificate  until {}", date(status.issuing.expires));
    println!("this server's        until {}", date(status.server.expires));
    println!("new certificates     {} days for servers, {} for clients", status.server_days, status.client_days);
    println!("rotation             next: hekate ca rotate {}", status.next_step);
    if !status.behind.is_empty() {
        println!("clients behind       {}: hekate client renew", status.behind.join(" "));
    }
    Ok(())
}

fn rotate(cli: &Cli, step: &Rotate) -> Result<(), Failure> {
    let (call, says) = match step {
        Rotate::Start { root_key } => {
            // What cannot be written is known before the root is made: its key is shown once.
            write_private(root_key, b"")?;
            write_private(&beside(root_key), b"")?;
            let made = ask(cli, calls::CaRotate { step: calls::RotationStep::Start, force: false })?;
            let (key, root) = (made.root_key.unwrap_or_default(), made.root.unwrap_or_default());
            write_private(root_key, key.as_bytes())?;
            write_private(&beside(root_key), root.as_bytes())?;
            return say(
                cli,
                &format!(
                    "all servers trust a new root beside the old one; its key is in {}: keep it offline\n\
                 next: hekate client renew each client, then hekate ca rotate switch",
                    root_key.display()
                ),
            );
        }
        Rotate::Switch { force } => (
            calls::CaRotate { step: calls::RotationStep::Switch, force: *force },
            "new certificates are signed below the new root\nnext: hekate client renew each client once more, then hekate \
             ca rotate finish",
        ),
        Rotate::Finish { force } => {
            (calls::CaRotate { step: calls::RotationStep::Finish, force: *force }, "the old root is trusted no more")
        }
    };
    ask(cli, call)?;
    say(cli, says)
}

fn beside(root_key: &Path) -> PathBuf {
    root_key.with_extension("pem")
}

fn say(cli: &Cli, text: &str) -> Result<(), Failure> {
    match cli.json {
        true => output::json(&serde_json::json!({ "done": true })),
        false => println!("{text}"),
    }
    Ok(())
}
