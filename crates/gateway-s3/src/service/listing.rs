//! ListObjects, both versions, and ListObjectVersions.

use super::{Answer, Service, owner, timestamp};
use crate::refusal::Refusal;
use crate::server::encode;
use crate::storage::{Actor, ListQuery, Listed, ObjectInfo};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// Most keys of a page.
const KEYS_MAX: usize = 1000;
/// The id of the only version that an object has.
const NULL_VERSION: &str = "null";

/// What both versions ask for.
struct Asked {
    bucket: String,
    query: ListQuery,
    /// Keys and prefixes are answered URL-encoded.
    is_encoded: bool,
}

impl Asked {
    /// # Errors
    /// `InvalidArgument` if the number of keys is negative or the encoding is unknown.
    fn new(
        bucket: String,
        prefix: Option<String>,
        delimiter: Option<String>,
        after: String,
        max: Option<i32>,
        encoding: Option<&EncodingType>,
    ) -> Result<Self, Refusal> {
        let query = ListQuery {
            prefix: prefix.unwrap_or_default(),
            delimiter: delimiter.filter(|delimiter| !delimiter.is_empty()),
            after,
            max: page_size(max, KEYS_MAX, "max-keys")?,
        };
        Ok(Self { bucket, query, is_encoded: is_url(encoding)? })
    }

    fn text(&self, text: String) -> String {
        match self.is_encoded {
            true => encode(text.as_bytes(), true),
            false => text,
        }
    }

    fn encoding(&self) -> Option<EncodingType> {
        self.is_encoded.then(|| EncodingType::from_static(EncodingType::URL))
    }

    /// A page, and the bucket's owner.
    async fn list(&self, service: &Service) -> Result<(Listed, Actor), Refusal> {
        let (bucket, query) = (self.bucket.clone(), self.query.clone());
        let work = move |store: &crate::storage::Store| {
            let owner = store.bucket(&bucket)?.owner;
            let listed = match query.max {
                0 => Listed::default(),
                _ => store.list(&bucket, &query)?,
            };
            Ok((listed, owner))
        };
        service.call(work).await
    }

    fn objects(&self, infos: Vec<ObjectInfo>, owner: Option<Owner>) -> Vec<Object> {
        let object = |info: ObjectInfo| Object {
            key: Some(self.text(info.key)),
            e_tag: Some(ETag::Strong(info.etag)),
            last_modified: Some(timestamp(info.modified)),
            size: Some(info.size as i64),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            owner: owner.clone(),
            ..Default::default()
        };
        infos.into_iter().map(object).collect()
    }

    fn prefixes(&self, prefixes: Vec<String>) -> Vec<CommonPrefix> {
        prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(self.text(prefix)) }).collect()
    }
}

/// The size of a page: what is asked for, and not more than the greatest.
///
/// # Errors
/// `InvalidArgument` if it is negative.
pub(super) fn page_size(asked: Option<i32>, max: usize, name: &str) -> Result<usize, Refusal> {
    match asked.map(usize::try_from) {
        None => Ok(max),
        Some(Ok(size)) => Ok(size.min(max)),
        Some(Err(_)) => {
            let message = format!("Argument {name} must be an integer between 0 and 2147483647");
            Err(Refusal::new("InvalidArgument", message).with("ArgumentName", name))
        }
    }
}

/// A number behind which a page begins.
///
/// # Errors
/// `InvalidArgument` if it is negative.
pub(super) fn marker(asked: Option<i32>, name: &str) -> Result<i32, Refusal> {
    match asked.unwrap_or(0) {
        number @ 0.. => Ok(number),
        _ => {
            let message = format!("Argument {name} must be an integer between 0 and 2147483647");
            Err(Refusal::new("InvalidArgument", message).with("ArgumentName", name))
        }
    }
}

/// # Errors
/// `InvalidArgument` for any encoding but `url`.
pub(super) fn is_url(encoding: Option<&EncodingType>) -> Result<bool, Refusal> {
    match encoding.map(|encoding| encoding.as_str()) {
        None => Ok(false),
        Some("url") => Ok(true),
        Some(_) => Err(Refusal::new("InvalidArgument", "Invalid Encoding Method specified in Request")),
    }
}

pub(super) async fn list(service: &Service, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
    let ListObjectsInput { bucket, delimiter, encoding_type, marker, max_keys, prefix, .. } = request.input;
    let after = marker.clone().unwrap_or_default();
    let asked = Asked::new(bucket, prefix, delimiter, after, max_keys, encoding_type.as_ref())?;
    let (listed, of_bucket) = asked.list(service).await?;
    // Without a delimiter the last key is the marker, and S3 does not repeat it.
    let next_marker = listed.next.clone().filter(|_| asked.query.delimiter.is_some());
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(asked.bucket.clone()),
        // The prefix that was asked for is encoded in the other lists only, and SDKs decode it there only.
        prefix: Some(asked.query.prefix.clone()),
        marker: Some(asked.text(marker.unwrap_or_default())),
        max_keys: Some(asked.query.max as i32),
        is_truncated: Some(listed.next.is_some()),
        next_marker: next_marker.map(|next| asked.text(next)),
        delimiter: asked.query.delimiter.clone().map(|delimiter| asked.text(delimiter)),
        encoding_type: asked.encoding(),
        contents: Some(asked.objects(listed.objects, Some(owner(of_bucket)))),
        common_prefixes: Some(asked.prefixes(listed.prefixes)),
        request_charged: None,
    }))
}

pub(super) async fn list_v2(service: &Service, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
    let input = request.input;
    let after = match input.continuation_token.as_deref() {
        Some(token) if !token.is_empty() => after_token(token)?,
        _ => input.start_after.clone().unwrap_or_default(),
    };
    let ListObjectsV2Input { bucket, prefix, delimiter, max_keys, encoding_type, .. } = input;
    let asked = Asked::new(bucket, prefix, delimiter, after, max_keys, encoding_type.as_ref())?;
    let (listed, of_bucket) = asked.list(service).await?;
    let owner = input.fetch_owner.unwrap_or(false).then(|| owner(of_bucket));
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(asked.bucket.clone()),
        prefix: Some(asked.text(asked.query.prefix.clone())),
        max_keys: Some(asked.query.max as i32),
        key_count: Some((listed.objects.len() + listed.prefixes.len()) as i32),
        is_truncated: Some(listed.next.is_some()),
        continuation_token: input.continuation_token,
        next_continuation_token: listed.next.map(|next| URL_SAFE_NO_PAD.encode(next)),
        start_after: input.start_after.map(|after| asked.text(after)),
        delimiter: asked.query.delimiter.clone().map(|delimiter| asked.text(delimiter)),
        encoding_type: asked.encoding(),
        contents: Some(asked.objects(listed.objects, owner)),
        common_prefixes: Some(asked.prefixes(listed.prefixes)),
        request_charged: None,
    }))
}

/// The only version of each object, `null`.
pub(super) async fn list_versions(
    service: &Service,
    request: S3Request<ListObjectVersionsInput>,
) -> Answer<ListObjectVersionsOutput> {
    let ListObjectVersionsInput { bucket, delimiter, encoding_type, key_marker, max_keys, prefix, .. } = request.input;
    let version_id_marker = request.input.version_id_marker.filter(|marker| !marker.is_empty());
    let after = key_marker.clone().unwrap_or_default();
    if version_id_marker.is_some() && after.is_empty() {
        let message = "A version-id marker cannot be specified without a key marker.";
        return Err(Refusal::new("InvalidArgument", message).with("ArgumentName", "version-id-marker").into());
    }
    let asked = Asked::new(bucket, prefix, delimiter, after, max_keys, encoding_type.as_ref())?;
    let (listed, of_bucket) = asked.list(service).await?;
    // A page that ends in a prefix has no version to go on behind.
    let ends_in_version = listed.next.is_some() && listed.next.as_ref() != listed.prefixes.last();
    let version = |object: Object| ObjectVersion {
        key: object.key,
        e_tag: object.e_tag,
        last_modified: object.last_modified,
        size: object.size,
        owner: object.owner,
        is_latest: Some(true),
        storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
        version_id: Some(NULL_VERSION.into()),
        ..Default::default()
    };
    let objects = asked.objects(listed.objects, Some(owner(of_bucket)));
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(asked.bucket.clone()),
        prefix: Some(asked.text(asked.query.prefix.clone())),
        key_marker: Some(asked.text(key_marker.unwrap_or_default())),
        version_id_marker: Some(version_id_marker.unwrap_or_default()),
        max_keys: Some(asked.query.max as i32),
        is_truncated: Some(listed.next.is_some()),
        next_key_marker: listed.next.map(|next| asked.text(next)),
        next_version_id_marker: ends_in_version.then(|| NULL_VERSION.into()),
        delimiter: asked.query.delimiter.clone().map(|delimiter| asked.text(delimiter)),
        encoding_type: asked.encoding(),
        versions: Some(objects.into_iter().map(version).collect()),
        common_prefixes: Some(asked.prefixes(listed.prefixes)),
        ..Default::default()
    }))
}

/// What a continuation token says: the last key or prefix of the page before.
///
/// # Errors
/// `InvalidArgument` if it is none of ours.
fn after_token(token: &str) -> Result<String, Refusal> {
    let decoded = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.filter(|after| !after.is_empty()).ok_or_else(|| {
        Refusal::new("InvalidArgument", "The continuation token provided is incorrect")
            .with("ArgumentName", "continuation-token")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        assert_eq!(after_token(&URL_SAFE_NO_PAD.encode("a/ü\u{1}")).unwrap(), "a/ü\u{1}");
        for token in ["", "!", "_w"] {
            assert_eq!(after_token(token).unwrap_err().code, "InvalidArgument", "{token}");
        }
    }

    #[test]
    fn pages_have_at_most_a_thousand_keys() {
        let size = |asked| page_size(asked, KEYS_MAX, "max-keys");
        assert_eq!((size(None).unwrap(), size(Some(0)).unwrap(), size(Some(5000)).unwrap()), (1000, 0, 1000));
        assert_eq!(size(Some(-1)).unwrap_err().code, "InvalidArgument");
    }
}
