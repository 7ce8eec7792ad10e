//! How a command that works in a volume reaches it.

use crate::cli::Cli;
use crate::commands::translator;
use crate::failure::Failure;
use crate::paths::{Paths, elsewhere, endpoints_of, unreachable};
use hekate_client::{OpenOptions, Volume};
use hekate_proto::Error;
use hekate_transport::{Endpoint, TlsContext};
use std::sync::Arc;

/// How a volume is reached.
pub struct Way {
    /// The servers' endpoints, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    pub elsewhere: Option<Arc<TlsContext>>,
}

impl Way {
    pub fn of(cli: &Cli) -> Result<Self, Failure> {
        let paths = Paths::of(cli)?;
        let server = cli.server.as_deref();
        Ok(Self { endpoints: endpoints_of(&paths, server)?, elsewhere: elsewhere(&paths, server)? })
    }

    /// Opens the volume at the first server that answers.
    pub fn open(&self, cli: &Cli, name: &str) -> Result<Arc<Volume>, Failure> {
        let catalogue = Some(translator::catalogue(&Paths::of(cli)?));
        let options = OpenOptions { elsewhere: self.elsewhere.clone(), catalogue, ..OpenOptions::default() };
        let mut away = String::new();
        for endpoint in &self.endpoints {
            match Volume::open(endpoint.clone(), name, &options) {
                Err(Error::Unavailable { what }) => away = what,
                opened => return Ok(Arc::new(opened?)),
            }
        }
        Err(unreachable(&Paths::of(cli)?, cli.state.as_deref(), cli.server.as_deref(), &away))
    }
}
