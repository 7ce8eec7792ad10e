//! A server in this process: a batch is executed on the caller's thread, without a connection.
//!
//! Only batches go this way. Opening a session, fetching the map and notifications use the server's socket, as for
//! any other client. [`crate::Server::stop`] refuses new calls and waits at most 10 s for those in progress.

use crate::client::Replies;
use crate::server::{CallGuard, Shared};
use hekate_proto::{Error, Request, Result, SessionId};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Handle on a server in this process. Made by [`crate::Server::local`].
#[derive(Clone)]
pub struct Local(pub(crate) Arc<Shared>);

impl Local {
    pub(crate) fn call(&self, session: SessionId, requests: Vec<Request>) -> Result<Replies> {
        let shared = &*self.0;
        let stopping = || Error::Unavailable { what: "the server of this process is stopping".into() };
        let _guard = CallGuard::begin(shared).ok_or_else(stopping)?;
        // A panic fails this batch only, as on a connection.
        std::panic::catch_unwind(AssertUnwindSafe(|| shared.service.call(session, requests)))
            .map_err(|_| Error::bug("the server of this process panicked; see its log"))
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Local")
    }
}
