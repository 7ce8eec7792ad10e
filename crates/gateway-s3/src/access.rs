//! Access keys: their secrets, their users, and the buckets that they give access to.

use hekate_proto::Result;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The access keys that a door accepts.
pub trait Keys: Send + Sync + 'static {
    /// The key with this access key id; `None` if there is none, or if it is disabled. Called for each signed request
    /// and never from an asynchronous task, so it may block.
    ///
    /// # Errors
    /// The keys cannot be read: the request is answered `ServiceUnavailable`.
    fn lookup(&self, id: &str) -> Result<Option<Arc<Key>>>;

    /// The key, if [`Keys::lookup`] would return it without waiting. Called from asynchronous tasks: it waits for no IO
    /// and for no thread that does any.
    fn known(&self, id: &str) -> Option<Arc<Key>>;
}

/// A secret, its owner, and what requests that are signed with it may do.
#[derive(Clone)]
pub struct Key {
    pub secret: String,
    pub user: User,
    /// Requests that change anything are refused.
    pub read_only: bool,
    /// Buckets that the key may use. `None`: all, and it may create and list buckets.
    pub buckets: Option<BTreeMap<String, Grant>>,
}

/// The user of a volume that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
}

/// What a key may do in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    Read,
    Write,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("user", &self.user).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// What an operation needs of the key that signed its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Any key: the answer is filtered by the key's grants.
    Any,
    /// Reads a bucket, or something in it.
    Read,
    /// Changes something in a bucket.
    Write,
    /// Creates, removes or sets up a bucket.
    Own,
}

impl Key {
    /// True if the key may do this to a bucket.
    pub fn allows(&self, right: Right, bucket: &str) -> bool {
        let granted = match &self.buckets {
            None => Some(Grant::Write),
            Some(grants) => grants.get(bucket).copied(),
        };
        match right {
            Right::Any => true,
            Right::Read => granted.is_some(),
            Right::Write => !self.read_only && granted == Some(Grant::Write),
            Right::Own => !self.read_only && self.buckets.is_none(),
        }
    }
}

/// The sender of a request: the key that signed it, or an anonymous client.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// The request's signature by this key was verified.
    Signed(Arc<Key>),
    Anonymous,
}

impl Caller {
    /// The key, if the request was signed.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Caller::Signed(key) => Some(key),
            Caller::Anonymous => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(read_only: bool, buckets: Option<&[(&str, Grant)]>) -> Key {
        Key {
            secret: "s".into(),
            user: User { uid: 1, gid: 1, name: "u".into() },
            read_only,
            buckets: buckets.map(|all| all.iter().map(|(name, grant)| (name.to_string(), *grant)).collect()),
        }
    }

    #[test]
    fn a_key_without_grants_may_do_everything() {
        for right in [Right::Any, Right::Read, Right::Write, Right::Own] {
            assert!(key(false, None).allows(right, "b"));
        }
    }

    #[test]
    fn a_read_only_key_changes_nothing() {
        let key = key(true, Some(&[("b", Grant::Write)]));
        assert!(key.allows(Right::Read, "b") && !key.allows(Right::Write, "b") && !key.allows(Right::Own, "b"));
    }

    #[test]
    fn grants_name_buckets() {
        let key = key(false, Some(&[("r", Grant::Read), ("w", Grant::Write)]));
        assert!(key.allows(Right::Read, "r") && !key.allows(Right::Write, "r"));
        assert!(key.allows(Right::Read, "w") && key.allows(Right::Write, "w") && !key.allows(Right::Own, "w"));
        assert!(!key.allows(Right::Read, "other") && !key.allows(Right::Write, "other"));
    }

    #[test]
    fn a_printed_key_has_no_secret() {
        assert!(!format!("{:?}", Key { secret: "hidden".into(), ..key(false, None) }).contains("hidden"));
    }
}
