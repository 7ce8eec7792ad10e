//! `hekate join`: a further server of a cluster.

use crate::cli::{Cli, Join, address as addresses};
use crate::commands::control::ask_at;
use crate::commands::state::{brick_directories, make_bricks, make_state_with};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_cluster::{BrickInfo, Coordinator, Registry, ServerInfo};
use hekate_control::status::Identity;
use hekate_control::{Enroll, Identify};
use hekate_etcd::EtcdCoordinator;
use hekate_proto::{Error, ServerId};
use hekate_server::authority::{hex, unhex};
use hekate_server::state_directory::{is_coordinator, is_member};
use hekate_server::{Membership, NewBrick, Place, RemoteCoordinator, etcd};
use hekate_tls::{Context, Credential, SealKey, Token};
use hekate_transport::Endpoint;
use std::sync::Arc;
use std::time::Duration;

/// Limit for the reply of each address that is tried.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

pub fn join(cli: &Cli, options: &Join) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    let (membership, bricks) = enter(cli, &paths, options)?;
    if options.witness && !cli.json {
        println!("server {} of cluster {} has no bricks", membership.server, membership.cluster);
        println!("next: {}, then hekate coordinator etcd", cli.line_to_serve());
        return Ok(());
    }
    if cli.json {
        output::json(&serde_json::json!({
            "server": membership.server, "cluster": membership.cluster, "pool": options.pool, "bricks": bricks,
        }));
    } else {
        let Membership { server, cluster, .. } = &membership;
        println!("server {server} of cluster {cluster}: {} brick(s) in pool {}", bricks.len(), options.pool);
        println!("next: {}", cli.line_to_serve());
    }
    Ok(())
}

/// Makes the server's state and bricks, and records them at the coordinator.
///
/// # Errors
///
/// The invitation is refused, the coordinator does not answer or refuses, or the state directory or a brick cannot be
/// made.
pub fn enter(cli: &Cli, paths: &Paths, options: &Join) -> Result<(Membership, Vec<BrickInfo>), Failure> {
    refuse_member(paths)?;
    let invitation = Invitation::parse(&options.invitation)?;
    let directories = brick_directories(&options.bricks)?;
    let pool = (!options.witness).then(|| options.pool.clone());
    let enrolled = invitation.enroll(pool, options.witness)?;
    let context = Arc::new(Context::of(enrolled.credential.clone())?);
    let (coordinator, store) = enrolled.coordinator(&context)?;
    let membership = Membership {
        server: enrolled.server,
        cluster: enrolled.credential.cluster.clone(),
        coordinator,
        servers: Vec::new(),
    };
    let registry = Registry::of(store, enrolled.server);
    registry.check_version()?;
    make_state_with(paths, &enrolled.credential, &enrolled.seal)?;
    if let Some(credential) = &enrolled.etcd {
        etcd::write_credential(&paths.state, credential)?;
    }
    let wanted = NewBrick {
        cluster: &membership.cluster,
        server: membership.server,
        pool: &options.pool,
        journal_mib: options.journal,
    };
    let bricks = make_bricks(cli, &directories, &wanted)?;
    // Before the cluster records the server: after a crash in between, a server that the cluster records must know its
    // number.
    membership.write(&paths.state)?;
    registry.join(&ServerInfo::new(membership.server), &bricks)?;
    Ok((membership, bricks))
}

/// What lets a process into a cluster.
pub enum Invitation {
    /// `hekate token create` made it.
    Token(Token),
    /// The unix socket of a server or a coordinator of this machine, which knows the user who asks: `unix:PATH`.
    Local(String),
}

/// The place of a new server in its cluster.
pub struct Enrolled {
    pub server: ServerId,
    pub credential: Credential,
    pub seal: SealKey,
    /// Where the coordinator answers.
    pub places: Vec<String>,
    /// What lets the new server into etcd, if that is the coordinator.
    pub etcd: Option<hekate_etcd::Credential>,
    is_local: bool,
}

impl Invitation {
    /// # Errors
    ///
    /// The text is neither a token nor the path of a socket, nor `-` for a token on the standard input.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if text == "-" {
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line);
            read.map_err(|e| Error::io("read the token from the standard input", e))?;
            return Self::parse(line.trim());
        }
        if text.starts_with("unix:") || text.starts_with('/') {
            return Ok(Self::Local(addresses::server(text).map_err(Failure::usage)?));
        }
        Token::parse(text).map(Self::Token).map_err(|error| {
            let fix = "name a token, or the socket of a server of this machine (unix:PATH)";
            Failure::usage(format!("{error}; {fix}"))
        })
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, Failure> {
        Ok(match self {
            Self::Local(address) => vec![Endpoint::parse(address, None)?],
            Self::Token(token) => {
                let context = Arc::new(Context::joining(&token.fingerprint)?);
                token.addresses.iter().map(|address| Endpoint::Tcp(address.clone(), context.clone())).collect()
            }
        })
    }

    /// Asks for a number and a certificate. `pool`: the pool of the bricks; `None` for the first server of a cluster
    /// that is made at a coordinator, and for a `witness`.
    ///
    /// # Errors
    ///
    /// No address answers, or the invitation is refused.
    pub fn enroll(&self, pool: Option<String>, witness: bool) -> Result<Enrolled, Failure> {
        let (key, public) = Credential::make_key()?;
        let (token, secret) = match self {
            Self::Token(token) => (token.id.clone(), token.secret.clone()),
            Self::Local(_) => Default::default(),
        };
        let call = Enroll { token, secret, public_key: hex(&public), pool, witness };
        let mut away = None;
        for endpoint in self.endpoints()? {
            let said = match ask_at(&endpoint, call.clone(), Some(ANSWER_LIMIT)) {
                Err(error @ Error::Unavailable { .. }) => {
                    away = Some(error);
                    continue;
                }
                other => other??,
            };
            if let Self::Token(token) = self
                && token.cluster != said.cluster
            {
                let what =
                    format!("{endpoint} answers for cluster {}, the token is of {}", said.cluster, token.cluster);
                return Err(Failure::new(77, what));
            }
            let seal = SealKey::from_bytes(&unhex(&said.seal_key).unwrap_or_default())?;
            let (cluster, roots, chain) = (said.cluster, said.roots, said.chain);
            let credential = Credential { cluster, network: String::new(), servers: Vec::new(), roots, chain, key };
            let is_local = matches!(self, Self::Local(_));
            let etcd = said.etcd.map(|access| hekate_etcd::Credential {
                ca: access.ca,
                certificate: access.certificate,
                key: access.key,
            });
            return Ok(Enrolled { server: said.server, credential, seal, places: said.coordinator, etcd, is_local });
        }
        Err(match away {
            Some(error) => Failure::from(error),
            None => Failure::usage("the token names no address"),
        })
    }
}

impl Enrolled {
    /// Where the coordinator is, and the coordinator.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn coordinator(&self, context: &Arc<Context>) -> Result<(String, Arc<dyn Coordinator>), Failure> {
        let in_etcd = self.places.iter().find(|place| place.starts_with("etcd:"));
        if let (Some(text), Some(credential)) = (in_etcd, &self.etcd)
            && let Place::Etcd(endpoints) = Place::parse(text, self.server)?
        {
            return Ok((text.clone(), Arc::new(EtcdCoordinator::new(endpoints, credential)?)));
        }
        let address = self.find_coordinator(context)?;
        let remote = RemoteCoordinator::new(Endpoint::parse(&address, Some(context))?, None);
        Ok((address, Arc::new(remote)))
    }

    /// The address at which the coordinator answers the new server.
    ///
    /// # Errors
    ///
    /// It answers at none.
    fn find_coordinator(&self, context: &Arc<Context>) -> Result<String, Failure> {
        let mut why = String::from("it has no address over TCP; serve with --listen ADDRESS:PORT");
        for address in self.places.iter().filter(|address| self.is_local || address.starts_with("tcp:")) {
            match identify(address, context) {
                Ok(said) if said.holds_coordinator => return Ok(address.clone()),
                Ok(_) => why = format!("{address} does not hold the coordinator"),
                Err(failure) => why = failure.text,
            }
        }
        Err(Failure::new(69, format!("the coordinator of the cluster does not answer: {why}")))
    }
}

fn refuse_member(paths: &Paths) -> Result<(), Failure> {
    let state = paths.state.display();
    let holds = match Membership::read(&paths.state)? {
        Some(membership) => format!("belongs to server {} of cluster {}", membership.server, membership.cluster),
        None if is_member(&paths.state) => "holds a cluster of its own".into(),
        None if is_coordinator(&paths.state) => "belongs to a coordinator".into(),
        None => return Ok(()),
    };
    Err(Failure::new(73, format!("{state} {holds} already; name another --state DIR, or serve it with `hekate serve`")))
}

/// An address in the form of the cluster's records.
///
/// # Errors
///
/// The address is malformed, or its name cannot be resolved.
pub fn address(text: &str) -> Result<String, Failure> {
    addresses::server(text).map_err(Failure::usage)
}

/// Asks the process that answers at an address for its identity.
///
/// # Errors
///
/// The process does not answer, or one end refuses the other (exit status 77).
pub fn identify(address: &str, context: &Arc<Context>) -> Result<Identity, Failure> {
    let endpoint = Endpoint::parse(address, Some(context))?;
    ask_at(&endpoint, Identify {}, Some(ANSWER_LIMIT))?
}
