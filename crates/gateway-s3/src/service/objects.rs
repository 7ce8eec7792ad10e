//! PutObject, and what answers say of an object's checksums.

use super::checksums::{DEFAULT, Expected};
use super::transfer::{Incoming, Received, receive};
use super::{Answer, Service, actor, conditions, metadata};
use crate::refusal::Refusal;
use crate::server::BodyOutcome;
use crate::storage::{Algorithm, Checksum, ChecksumKind, Condition};
use s3s::dto::{ETag, PutObjectInput, PutObjectOutput};
use s3s::{S3Request, S3Response};
use std::sync::Arc;

/// Longest object that one request may bring, in bytes: 5 GiB, as S3.
pub(super) const ONE_REQUEST_MAX: u64 = 5 << 30;

pub(super) async fn put(service: &Service, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
    let actor = actor(&request.extensions)?;
    let condition = conditions::of_write(&request.headers)?;
    let mut metadata = metadata::of(&request.headers, request.input.metadata)?;
    let expected = Expected::of(&request.headers)?;
    let algorithm = expected.algorithm().unwrap_or(DEFAULT);
    let length = length(request.input.content_length)?;
    let PutObjectInput { body, bucket, key, .. } = request.input;
    let outcome = request.extensions.get::<Arc<BodyOutcome>>().cloned();
    let incoming = Incoming { body, length, expected, algorithms: vec![algorithm], outcome };
    let names = (bucket.clone(), key.clone());
    let is_conditional = matches!(condition, Condition::Matches { .. } | Condition::Exists);
    let begin = move |store: &crate::storage::Store| store.begin(&bucket, &key, &actor, length);
    let finish = move |upload: crate::storage::Upload, received: Received| {
        metadata.checksum = chosen(algorithm, &received);
        upload.finish(received.md5, metadata, condition)
    };
    let info = match receive(service, incoming, begin, finish).await {
        Err(refusal) if refusal.code == "PreconditionFailed" && is_conditional => {
            return Err(or_missing(service, names, refusal).await.into());
        }
        outcome => outcome?,
    };
    let mut output = PutObjectOutput { e_tag: Some(ETag::Strong(info.etag)), ..Default::default() };
    if let Some(checksum) = &info.metadata.checksum {
        set_checksum!(output, checksum);
    }
    Ok(S3Response::new(output))
}

/// `If-Match` on a key that does not exist is answered `NoSuchKey`.
pub(super) async fn or_missing(service: &Service, (bucket, key): (String, String), failed: Refusal) -> Refusal {
    match service.call(move |store| Ok(store.head(&bucket, &key)?)).await {
        Err(missing) if missing.code == "NoSuchKey" => missing,
        _ => failed,
    }
}

/// # Errors
/// `EntityTooLarge` if the body is longer than one request may bring.
pub(super) fn length(content_length: Option<i64>) -> Result<Option<u64>, Refusal> {
    match content_length.and_then(|length| u64::try_from(length).ok()) {
        Some(length) if length > ONE_REQUEST_MAX => {
            let message = "Your proposed upload exceeds the maximum allowed size";
            Err(Refusal::new("EntityTooLarge", message).with("MaxSizeAllowed", ONE_REQUEST_MAX.to_string()))
        }
        length => Ok(length),
    }
}

/// The checksum of this algorithm, of all bytes.
pub(super) fn chosen(algorithm: Algorithm, received: &Received) -> Option<Checksum> {
    let (_, value) = received.checksums.iter().find(|(known, _)| *known == algorithm)?;
    Some(Checksum { algorithm, value: value.clone(), kind: ChecksumKind::Full })
}

/// Sets the fields for a checksum: value by algorithm, and the kind.
macro_rules! set_checksum {
    ($output:expr, $checksum:expr) => {{
        set_value!($output, $checksum);
        $output.checksum_type =
            Some(s3s::dto::ChecksumType::from_static(crate::service::checksums::kind_name($checksum.kind)));
    }};
}

/// Sets the field for a checksum's value, where there is none for the kind.
macro_rules! set_value {
    ($output:expr, $checksum:expr) => {{
        let value = Some($checksum.value.clone());
        match $checksum.algorithm {
            crate::storage::Algorithm::Crc32 => $output.checksum_crc32 = value,
            crate::storage::Algorithm::Crc32c => $output.checksum_crc32c = value,
            crate::storage::Algorithm::Crc64Nvme => $output.checksum_crc64nvme = value,
            crate::storage::Algorithm::Sha1 => $output.checksum_sha1 = value,
            crate::storage::Algorithm::Sha256 => $output.checksum_sha256 = value,
        }
    }};
}

pub(super) use {set_checksum, set_value};
