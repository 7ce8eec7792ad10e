//! CopyObject, and the source of UploadPartCopy.

use super::checksums::{self, Sums};
use super::conditions::{ReadConditions, precondition_failed};
use super::objects::{ONE_REQUEST_MAX, set_checksum, set_value};
use super::transfer::PIECE;
use super::{Answer, Service, actor, caller, conditions, metadata, operations, timestamp};
use crate::access::Right;
use crate::refusal::Refusal;
use crate::server::encode;
use crate::storage::{Algorithm, Checksum, ChecksumKind, Metadata, Object, ObjectInfo, Store};
use hyper::HeaderMap;
use hyper::http::Extensions;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// What a copy is made of.
pub(super) struct Source {
    bucket: String,
    key: String,
    conditions: ReadConditions,
}

impl Source {
    /// # Errors
    /// `AccessDenied` if the caller may not read the source's bucket, `NotImplemented` if it is named otherwise than by
    /// bucket and key, `NoSuchVersion` if it has a version.
    pub(super) fn of(source: CopySource, conditions: ReadConditions, extensions: &Extensions) -> Result<Self, Refusal> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(Refusal::new("NotImplemented", "Sources of copies are named by bucket and key only"));
        };
        if version_id.is_some_and(|version| &*version != "null") {
            return Err(Refusal::new("NoSuchVersion", "The bucket has no versions: the only one is null"));
        }
        let caller = caller(extensions)?;
        match caller.key().is_some_and(|key| key.allows(Right::Read, &bucket)) {
            true => Ok(Self { bucket: bucket.into(), key: key.into(), conditions }),
            false => Err(operations::denied()),
        }
    }

    /// # Errors
    /// `NoSuchBucket`, `NoSuchKey`, which name the source; `PreconditionFailed` if it is not as the request demands.
    pub(super) fn open(&self, store: &Store) -> Result<Object, Refusal> {
        let object = store.open(&self.bucket, &self.key).map_err(|error| self.named(error.into()))?;
        self.conditions.check(object.info()).map_err(|_| precondition_failed())?;
        Ok(object)
    }

    /// An error has the bucket or object that it is about, which is not the request's address.
    /// Source: "REST error responses" of the Amazon S3 API reference.
    fn named(&self, refusal: Refusal) -> Refusal {
        let Self { bucket, key, .. } = self;
        match refusal.code {
            "NoSuchKey" => {
                let resource = format!("/{bucket}/{}", encode(key.as_bytes(), true));
                refusal.with("Key", key).with("Resource", resource)
            }
            "NoSuchBucket" | "InvalidBucketName" => {
                refusal.with("BucketName", bucket).with("Resource", format!("/{bucket}"))
            }
            _ => refusal,
        }
    }
}

/// What of the metadata is the source's.
struct Directives {
    replaces_metadata: bool,
    replaces_tags: bool,
    algorithm: Option<Algorithm>,
    /// Metadata as the request has it.
    given: Metadata,
}

impl Directives {
    fn of(input: &CopyObjectInput, headers: &HeaderMap) -> Result<Self, Refusal> {
        let replaces = |directive: Option<&str>, name: &str| match directive {
            None | Some("COPY") => Ok(false),
            Some("REPLACE") => Ok(true),
            Some(_) => Err(Refusal::new("InvalidArgument", format!("Unknown {name} directive."))),
        };
        let algorithm = input.checksum_algorithm.as_ref().map(|name| checksums::algorithm(name.as_str()));
        Ok(Self {
            replaces_metadata: replaces(input.metadata_directive.as_ref().map(|it| it.as_str()), "metadata")?,
            replaces_tags: replaces(input.tagging_directive.as_ref().map(|it| it.as_str()), "tagging")?,
            algorithm: algorithm.transpose()?,
            given: metadata::of(headers, input.metadata.clone())?,
        })
    }

    /// True if the copy would be the source itself.
    fn changes_nothing(&self) -> bool {
        let Metadata { storage_class, website_redirect, .. } = &self.given;
        !self.replaces_metadata && storage_class.is_none() && website_redirect.is_none()
    }

    /// Metadata of the copy. Class, redirection and ACL are never copied.
    fn apply(self, source: &ObjectInfo, checksum: Option<Checksum>) -> Metadata {
        let Metadata { storage_class, website_redirect, acl, tags, .. } = self.given.clone();
        let base = if self.replaces_metadata { self.given } else { source.metadata.clone() };
        let tags = if self.replaces_tags { tags } else { source.metadata.tags.clone() };
        Metadata { storage_class, website_redirect, acl, tags, checksum, parts: Vec::new(), ..base }
    }
}

pub(super) async fn copy(service: &Service, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
    let actor = actor(&request.extensions)?;
    let directives = Directives::of(&request.input, &request.headers)?;
    let condition = conditions::of_write(&request.headers)?;
    let input = request.input;
    let conditions = ReadConditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let source = Source::of(input.copy_source, conditions, &request.extensions)?;
    let (bucket, key) = (input.bucket, input.key);
    if source.bucket == bucket && source.key == key && directives.changes_nothing() {
        return Err(Refusal::new(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without changing the \
             object's metadata, storage class, website redirect location or encryption attributes.",
        )
        .into());
    }
    let work = move |store: &Store| {
        let object = source.open(store)?;
        if object.info().size > ONE_REQUEST_MAX {
            let message =
                "The specified copy source is larger than the maximum allowable size for a copy source: 5368709120";
            return Err(Refusal::new("InvalidRequest", message));
        }
        let checksum = checksum_of_copy(&object, directives.algorithm)?;
        let metadata = directives.apply(object.info(), checksum);
        Ok(store.copy(&object, &bucket, &key, &actor, metadata, condition)?)
    };
    let info = service.call(work).await?;
    let mut result = CopyObjectResult {
        e_tag: Some(ETag::Strong(info.etag)),
        last_modified: Some(timestamp(info.modified)),
        ..Default::default()
    };
    if let Some(checksum) = &info.metadata.checksum {
        set_checksum!(result, checksum);
    }
    Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
}

/// The checksum of all bytes: the source's, if it is that and of the algorithm that is asked for; else it is computed.
/// A source that has none, or only one of its parts' checksums, needs none if none is asked for.
fn checksum_of_copy(object: &Object, asked: Option<Algorithm>) -> Result<Option<Checksum>, Refusal> {
    let known = object.info().metadata.checksum.clone().filter(|checksum| checksum.kind == ChecksumKind::Full);
    match (known, asked) {
        (known, None) => Ok(known),
        (Some(known), Some(algorithm)) if known.algorithm == algorithm => Ok(Some(known)),
        (_, Some(algorithm)) => compute(object, 0..object.info().size, algorithm).map(Some),
    }
}

/// Computes the checksum of a range by reading it.
fn compute(object: &Object, range: std::ops::Range<u64>, algorithm: Algorithm) -> Result<Checksum, Refusal> {
    let mut sums = Sums::new(&[algorithm]);
    each_piece(object, range, |bytes| {
        sums.update(&bytes);
        Ok(())
    })?;
    let (_, mut checksums) = sums.finish(&super::Expected::default())?;
    let (algorithm, value) = checksums.pop().ok_or_else(super::failed)?;
    Ok(Checksum { algorithm, value, kind: ChecksumKind::Full })
}

/// Reads a range in pieces.
pub(super) fn each_piece(
    object: &Object,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(bytes::Bytes) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut offset = range.start;
    while offset < range.end {
        let length = (range.end - offset).min(PIECE as u64);
        let bytes = object.read(offset, length as usize)?;
        if bytes.is_empty() {
            return Err(Refusal::new("InternalError", "The object became shorter while it was read"));
        }
        offset += bytes.len() as u64;
        each(bytes)?;
    }
    Ok(())
}
