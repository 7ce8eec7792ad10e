//! GetObject and HeadObject: conditions, ranges and parts.

use super::conditions::{ReadConditions, Unmet, precondition_failed};
use super::objects::{set_checksum, set_value};
use super::transfer::{read_first, send};
use super::{Answer, Service, timestamp};
use crate::refusal::Refusal;
use crate::storage::{Metadata, ObjectInfo, ObjectPart, Store};
use hyper::HeaderMap;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES,
    HeaderName, HeaderValue, LAST_MODIFIED,
};
use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response};

/// The type of objects whose client named none.
const DEFAULT_TYPE: &str = "binary/octet-stream";
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// What of an object a request asks for.
struct Asked {
    conditions: ReadConditions,
    range: Option<Range>,
    part: Option<i32>,
}

/// What of an object is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Extent {
    bytes: std::ops::Range<u64>,
    /// `Content-Range`, if it is not the whole object that was asked for.
    content_range: Option<String>,
    parts: Option<i32>,
}

impl Asked {
    /// # Errors
    /// `PreconditionFailed`, `NotModified`, `InvalidRange`, `InvalidPartNumber`; `InvalidRequest` if both a range and a
    /// part are asked for.
    fn of(&self, info: &ObjectInfo) -> Result<Extent, S3Error> {
        match self.conditions.check(info) {
            Ok(()) => {}
            Err(Unmet::Precondition) => return Err(precondition_failed().into()),
            Err(Unmet::NotModified) => return Err(not_modified(info)),
        }
        match (self.range, self.part) {
            (None, None) => Ok(Extent { bytes: 0..info.size, content_range: None, parts: None }),
            (Some(range), None) => in_range(info, range),
            (None, Some(number)) => Ok(of_part(info, number)?),
            (Some(_), Some(_)) => {
                Err(Refusal::new("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
                    .into())
            }
        }
    }
}

fn not_modified(info: &ObjectInfo) -> S3Error {
    let mut error: S3Error = Refusal::new("NotModified", "Not Modified").into();
    let mut headers = HeaderMap::new();
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", info.etag)) {
        headers.insert(ETAG, etag);
    }
    let mut text = Vec::new();
    if timestamp(info.modified).format(TimestampFormat::HttpDate, &mut text).is_ok()
        && let Ok(modified) = HeaderValue::from_bytes(&text)
    {
        headers.insert(LAST_MODIFIED, modified);
    }
    error.set_headers(headers);
    error
}

fn in_range(info: &ObjectInfo, range: Range) -> Result<Extent, S3Error> {
    let size = info.size;
    let bytes = match range.check(size) {
        Ok(bytes) if !bytes.is_empty() => bytes,
        _ => {
            let message = "The requested range is not satisfiable";
            let mut error: S3Error = Refusal::new("InvalidRange", message).into();
            if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
                error.set_headers(HeaderMap::from_iter([(CONTENT_RANGE, value)]));
            }
            return Err(error);
        }
    };
    let content_range = Some(format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1));
    Ok(Extent { bytes, content_range, parts: None })
}

/// An object that was put whole is its own first part.
fn of_part(info: &ObjectInfo, number: i32) -> Result<Extent, Refusal> {
    let parts = &info.metadata.parts;
    let beyond = || Refusal::new("InvalidPartNumber", "The requested partnumber is not satisfiable");
    if !(1..=10_000).contains(&number) {
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        return Err(Refusal::new("InvalidArgument", message));
    }
    let index = number as usize - 1;
    let bytes = match parts.get(index) {
        Some(ObjectPart { size, .. }) => {
            let start: u64 = parts[..index].iter().map(|part| part.size).sum();
            start..start + size
        }
        None if parts.is_empty() && number == 1 => 0..info.size,
        None => return Err(beyond()),
    };
    let last = bytes.end.saturating_sub(1);
    let content_range = (!bytes.is_empty()).then(|| format!("bytes {}-{last}/{}", bytes.start, info.size));
    let parts = (!parts.is_empty()).then_some(parts.len() as i32);
    Ok(Extent { bytes, content_range, parts })
}

/// Headers that are not in s3s's types as they have to be.
fn headers(metadata: &Metadata) -> HeaderMap {
    let expires = metadata.expires.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
    let mut headers = HeaderMap::from_iter(expires.map(|value| (EXPIRES, value)));
    if !metadata.tags.is_empty() {
        headers.insert(TAGGING_COUNT, HeaderValue::from(metadata.tags.len()));
    }
    headers
}

/// What the parameters `response-*` of a HEAD replace. s3s does it for a GET only.
fn overridden(input: &HeadObjectInput) -> Result<HeaderMap, Refusal> {
    let mut headers = HeaderMap::new();
    for (name, text) in [
        (CONTENT_TYPE, &input.response_content_type),
        (CONTENT_LANGUAGE, &input.response_content_language),
        (CACHE_CONTROL, &input.response_cache_control),
        (CONTENT_DISPOSITION, &input.response_content_disposition),
        (CONTENT_ENCODING, &input.response_content_encoding),
    ] {
        let Some(text) = text else { continue };
        let invalid = |_| Refusal::new("InvalidArgument", format!("The value of response-{name} is no header"));
        headers.insert(name.clone(), HeaderValue::from_str(text).map_err(invalid)?);
    }
    let mut expires = Vec::new();
    if let Some(time) = &input.response_expires
        && time.format(TimestampFormat::HttpDate, &mut expires).is_ok()
        && let Ok(value) = HeaderValue::from_bytes(&expires)
    {
        headers.insert(EXPIRES, value);
    }
    Ok(headers)
}

/// What of an object a request asks for, of the input of either operation.
macro_rules! asked {
    ($input:ident) => {
        Asked {
            conditions: ReadConditions {
                if_match: $input.if_match,
                if_none_match: $input.if_none_match,
                if_modified_since: $input.if_modified_since,
                if_unmodified_since: $input.if_unmodified_since,
            },
            range: $input.range,
            part: $input.part_number,
        }
    };
}

/// Fills the fields that both operations have.
macro_rules! describe {
    ($output:ident, $info:expr, $extent:expr, $with_checksum:expr) => {{
        let ObjectInfo { modified, etag, metadata, .. } = $info;
        $output.accept_ranges = Some("bytes".into());
        $output.content_length = Some(($extent.bytes.end - $extent.bytes.start) as i64);
        $output.content_range = $extent.content_range.clone();
        $output.e_tag = Some(ETag::Strong(etag));
        $output.last_modified = Some(timestamp(modified));
        $output.parts_count = $extent.parts;
        if $with_checksum && $extent.content_range.is_none() {
            if let Some(checksum) = &metadata.checksum {
                set_checksum!($output, checksum);
            }
        }
        $output.content_type = Some(metadata.content_type.unwrap_or_else(|| DEFAULT_TYPE.into()));
        $output.content_encoding = metadata.content_encoding;
        $output.content_language = metadata.content_language;
        $output.content_disposition = metadata.content_disposition;
        $output.cache_control = metadata.cache_control;
        $output.website_redirect_location = metadata.website_redirect;
        $output.storage_class = metadata.storage_class.map(StorageClass::from);
        $output.metadata = Some(metadata.user.into_iter().collect());
    }};
}

pub(super) async fn get(service: &Service, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
    let input = request.input;
    let asked = asked!(input);
    let with_checksum = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let (bucket, key) = (input.bucket, input.key);
    let budget = service.budget.clone();
    let open = move |store: &Store| {
        let object = store.open(&bucket, &key)?;
        let extent = asked.of(object.info());
        let first = match &extent {
            Ok(extent) => read_first(&budget, &object, &extent.bytes)?,
            Err(_) => None,
        };
        Ok((object, extent, first))
    };
    let (object, extent, first) = service.call(open).await?;
    let (info, extent) = (object.info().clone(), extent?);
    let body = send(service, object, extent.bytes.clone(), first).await?;
    let headers = headers(&info.metadata);
    let mut output = GetObjectOutput { body: Some(body), ..Default::default() };
    describe!(output, info, extent, with_checksum);
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn head(service: &Service, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
    let input = request.input;
    let overridden = overridden(&input)?;
    let asked = asked!(input);
    let with_checksum = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let (bucket, key) = (input.bucket, input.key);
    let info = service.call(move |store| Ok(store.head(&bucket, &key)?)).await?;
    let extent = asked.of(&info)?;
    let mut headers = headers(&info.metadata);
    headers.extend(overridden);
    let mut output = HeadObjectOutput::default();
    describe!(output, info, extent, with_checksum);
    Ok(S3Response::with_headers(output, headers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Time;

    fn info(size: u64, parts: &[u64]) -> ObjectInfo {
        let parts = parts.iter().enumerate();
        let parts = parts.map(|(i, size)| ObjectPart { number: i as u16 + 1, size: *size, checksum: None }).collect();
        let metadata = Metadata { parts, ..Metadata::default() };
        ObjectInfo { key: "k".into(), size, modified: Time(0), etag: "e".into(), metadata }
    }

    fn range(size: u64, text: &str) -> Result<(u64, u64), String> {
        let extent = in_range(&info(size, &[]), Range::parse(text).unwrap());
        extent.map(|extent| (extent.bytes.start, extent.bytes.end)).map_err(|e| e.code().as_str().to_owned())
    }

    #[test]
    fn ranges_are_cut_at_the_end() {
        assert_eq!(range(10, "bytes=0-0"), Ok((0, 1)));
        assert_eq!(range(10, "bytes=5-"), Ok((5, 10)));
        assert_eq!(range(10, "bytes=5-100"), Ok((5, 10)));
        assert_eq!(range(10, "bytes=-3"), Ok((7, 10)));
        assert_eq!(range(10, "bytes=-30"), Ok((0, 10)));
        for (size, text) in [(10, "bytes=10-"), (10, "bytes=-0"), (0, "bytes=0-0"), (0, "bytes=-1")] {
            assert_eq!(range(size, text), Err("InvalidRange".into()), "{text} of {size}");
        }
    }

    #[test]
    fn parts_are_ranges() {
        let object = info(12, &[5, 5, 2]);
        let third = of_part(&object, 3).unwrap();
        assert_eq!(
            (third.bytes, third.content_range.as_deref(), third.parts),
            (10..12, Some("bytes 10-11/12"), Some(3))
        );
        assert_eq!(of_part(&object, 4).unwrap_err().code, "InvalidPartNumber");
        assert_eq!(of_part(&object, 0).unwrap_err().code, "InvalidArgument");
        assert_eq!(of_part(&info(7, &[]), 1).unwrap().bytes, 0..7);
        assert_eq!(of_part(&info(7, &[]), 2).unwrap_err().code, "InvalidPartNumber");
        assert_eq!(of_part(&info(0, &[]), 1).unwrap().content_range, None);
    }
}
