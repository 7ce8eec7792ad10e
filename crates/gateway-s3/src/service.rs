//! S3's operations over the storage.
//!
//! `operations` is the table of them, with the check of who may do what; `dispatch` implements s3s's trait by the
//! functions of the other files, one file a kind of operation. `transfer` moves bytes, `checksums` is what they are
//! compared with. All calls of the storage go through [`Service::call`].

mod acl;
mod attributes;
mod buckets;
mod checksums;
mod conditions;
mod copies;
mod dispatch;
mod errors;
mod listing;
mod metadata;
mod multipart;
mod objects;
pub(crate) mod operations;
mod reads;
mod removal;
mod tags;
mod transfer;

pub(crate) use checksums::{Expected, Sums};
pub(crate) use metadata::EXPIRES;

use crate::access::Caller;
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::storage::{Actor, Store, Time};
use hyper::http::Extensions;
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::{Owner, Timestamp};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Response, S3Result};
use std::sync::Arc;
use transfer::Budget;

/// Longest body in XML. The longest that S3 allows is a completion of 10,000 parts with two checksums each.
const XML_MAX: usize = 4 << 20;

/// What an operation answers.
type Answer<T> = S3Result<S3Response<T>>;

/// The operations of one volume. Clones share everything.
#[derive(Clone)]
pub(crate) struct Service {
    store: Store,
    pool: Pool,
    budget: Budget,
    region: Arc<str>,
}

impl Service {
    /// `buffer_bytes`: memory for bytes of objects on their way, of all requests together.
    pub(crate) fn new(store: Store, pool: Pool, region: &str, buffer_bytes: usize) -> Self {
        Self { store, pool, budget: Budget::new(buffer_bytes), region: region.into() }
    }

    /// Runs `work` with the storage on a thread that may block.
    async fn call<T, F>(&self, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> Result<T, Refusal> + Send + 'static,
    {
        let store = self.store.clone();
        self.pool.run(move || work(&store)).await.map_err(|_| failed())?
    }
}

/// A fault of ours.
fn failed() -> Refusal {
    Refusal::new("InternalError", "We encountered an internal error. Please try again.")
}

/// The service that parses requests, has `service` execute them, and writes answers.
pub(crate) fn build(service: Service) -> S3Service {
    let mut config = S3Config::default();
    config.xml_max_body_size = XML_MAX;
    let mut builder = S3ServiceBuilder::new(service.clone());
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.set_auth(Verified);
    builder.set_access(service);
    builder.build()
}

/// Signatures are verified before the service, which sees requests without any: s3s asks for no secret. It checks
/// access only if it could.
struct Verified;

#[async_trait::async_trait]
impl S3Auth for Verified {
    async fn get_secret_key(&self, _: &str) -> S3Result<SecretKey> {
        Err(operations::denied().into())
    }
}

/// The sender of the request.
fn caller(extensions: &Extensions) -> Result<Caller, Refusal> {
    extensions.get::<Caller>().cloned().ok_or_else(failed)
}

/// The user for whom a signed request is executed.
///
/// # Errors
/// `AccessDenied` if the request is anonymous.
fn actor(extensions: &Extensions) -> Result<Actor, Refusal> {
    let caller = caller(extensions)?;
    let user = &caller.key().ok_or_else(operations::denied)?.user;
    Ok(Actor { uid: user.uid, gid: user.gid })
}

/// S3 says times in whole seconds.
fn timestamp(time: Time) -> Timestamp {
    let seconds = time.0.div_euclid(1_000_000_000);
    time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH).into()
}

/// A user as S3 names owners: by the uid.
fn owner(user: Actor) -> Owner {
    let id = user.uid.to_string();
    Owner { display_name: Some(id.clone()), id: Some(id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::dto::TimestampFormat;

    #[test]
    fn times_are_cut_to_seconds() {
        let text = |nanoseconds| {
            let mut text = Vec::new();
            timestamp(Time(nanoseconds)).format(TimestampFormat::DateTime, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(text(1_369_353_600_999_999_999), "2013-05-24T00:00:00.000Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.000Z");
    }
}
