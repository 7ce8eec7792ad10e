//! A server of this process, asked by calls: a batch is done on the caller's thread, without a connection.
//!
//! Only batches go this way; a session is opened, its map fetched and its waits heard over the server's own socket, as any
//! other's. [`crate::Server::stop`] refuses new calls and waits for those at work, though not for ever.

use crate::server::{AtWork, Shared};
use hekate_proto::{Error, Reply, Request, Result, SessionId};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// See the module. Made by [`crate::Server::local`].
#[derive(Clone)]
pub struct Local(pub(crate) Arc<Shared>);

impl Local {
    pub(crate) fn call(&self, session: SessionId, requests: Vec<Request>) -> Result<Vec<Result<Reply>>> {
        let shared = &*self.0;
        let stopping = || Error::Unavailable { what: "the server of this process is stopping".into() };
        let _at_work = AtWork::begin(shared).ok_or_else(stopping)?;
        // A bug that a request meets costs this request and nothing else, as on a connection.
        std::panic::catch_unwind(AssertUnwindSafe(|| shared.service.call(session, requests)))
            .map_err(|_| Error::bug("the server of this process met a bug; see its log"))
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Local")
    }
}
