//! The control interface of a server: each request is a type, and names the type of its reply.
//!
//! A request is the JSON body of a `Control` frame, and its reply that of a `ControlReply` frame
//! (`docs/format/wire.md`, *Control*). Programs for operators (the command line, a console) send a [`ControlRequest`];
//! [`peer`] holds what only servers send to each other. Every `--json` output of the command line is one of these
//! types.
//!
//! Invariants: a field keeps its name, its unit and its meaning once released. A reader ignores fields that it does not
//! know, and a field that the sender does not know has its default, so servers of two versions understand each other
//! while a cluster is upgraded.

pub mod access;
pub mod brick;
pub mod coordinator;
pub mod healing;
pub mod location;
pub mod nbd;
pub mod partition;
pub mod peer;
mod request;
pub mod s3;
pub mod status;
pub mod volume;

pub use access::{
    CaRotate, CaSet, CaShow, ClientCreate, ClientList, ClientRenew, ClientRevoke, Enroll, NetworkList, NetworkSet,
    RotationStep, TokenCreate,
};
pub use coordinator::{
    CoordinatorBackup, CoordinatorKind, CoordinatorMove, CoordinatorShow, EtcdFinish, EtcdPrepare, EtcdRemove,
};
pub use hekate_proto::map::Domain;
pub use request::*;

use peer::PeerRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A request of a program for people, with the type of its reply.
pub trait ControlCall: Into<ControlRequest> {
    /// The value of `ok` in the reply.
    type Reply: Serialize + DeserializeOwned;
}

/// A reply on the wire: `{"ok": …}` or `{"error": {"text": …, "exit": …}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlReply<T> {
    /// The reply to the request.
    Ok(T),
    /// The server refused the request or failed.
    Error(Refusal),
}

/// Why a server refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For people: what is wrong, and the fix.
    pub text: String,
    /// The exit status for a command line, by sysexits(3).
    pub exit: u8,
}

/// A request as a server receives it.
#[derive(Debug, Clone)]
pub enum Request {
    /// From a program for people.
    Control(ControlRequest),
    /// From another server.
    Peer(PeerRequest),
}

impl Request {
    /// Parses the body of a `Control` frame.
    ///
    /// # Errors
    ///
    /// The text is not JSON, its `request` is unknown, or a field is missing or malformed.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Tag {
            request: String,
        }
        let Tag { request } = serde_json::from_str(text)?;
        match PeerRequest::TAGS.contains(&request.as_str()) {
            true => serde_json::from_str(text).map(Self::Peer),
            false => serde_json::from_str(text).map(Self::Control),
        }
    }

    /// True if any local user may send the request: it changes nothing, and its reply names no files, sessions or
    /// secrets.
    pub fn is_open_to_all(&self) -> bool {
        match self {
            Self::Control(request) => request.is_open_to_all(),
            Self::Peer(request) => request.is_open_to_all(),
        }
    }
}

/// Implements the trait that ties a request to its reply.
macro_rules! calls {
    ($request:ident, $call:ident: $($name:ident => $reply:ty,)*) => {$(
        impl From<$name> for $request {
            fn from(call: $name) -> Self {
                Self::$name(call)
            }
        }

        impl $call for $name {
            type Reply = $reply;
        }
    )*};
}
pub(crate) use calls;

#[cfg(test)]
mod tests;
