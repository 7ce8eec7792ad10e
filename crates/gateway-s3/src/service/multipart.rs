//! Multipart uploads.

use super::checksums::{self, DEFAULT, Expected, Sums};
use super::copies::{Source, each_piece};
use super::listing::{is_url, marker, page_size};
use super::objects::{chosen, length, or_missing, set_checksum, set_value};
use super::transfer::{Incoming, Received, receive};
use super::{Answer, Service, actor, conditions, metadata, owner, timestamp};
use crate::refusal::Refusal;
use crate::server::{BodyOutcome, encode};
use crate::storage::{self, Algorithm, ChecksumKind, Condition, ListQuery, Metadata, PartInfo, Store};
use hyper::HeaderMap;
use s3s::dto::*;
use s3s::{S3Request, S3Response};
use std::sync::Arc;

/// Most parts and uploads of a page.
const PAGE_MAX: usize = 1000;
const PARTS_MAX: i32 = 10_000;

/// What an upload has whose client names no algorithm. Its parts may come with any.
const UNNAMED: (Algorithm, ChecksumKind) = (DEFAULT, ChecksumKind::Full);

/// The algorithm of an upload's parts, and what the object's checksum covers.
fn checksum_of(upload: &storage::UploadInfo) -> (Algorithm, ChecksumKind) {
    upload.algorithm.unwrap_or(UNNAMED)
}

pub(super) async fn create(
    service: &Service,
    request: S3Request<CreateMultipartUploadInput>,
) -> Answer<CreateMultipartUploadOutput> {
    let actor = actor(&request.extensions)?;
    let metadata = metadata::of(&request.headers, request.input.metadata)?;
    let CreateMultipartUploadInput { bucket, key, checksum_algorithm, checksum_type, .. } = request.input;
    let named = checksum_algorithm.as_ref().map(|name| name.as_str());
    let algorithm = checksums::of_upload(named, checksum_type.as_ref().map(|kind| kind.as_str()))?;
    let output = CreateMultipartUploadOutput {
        bucket: Some(bucket.clone()),
        key: Some(key.clone()),
        checksum_algorithm: algorithm.map(|(algorithm, _)| ChecksumAlgorithm::from_static(checksums::name(algorithm))),
        checksum_type: algorithm.map(|(_, kind)| ChecksumType::from_static(checksums::kind_name(kind))),
        ..Default::default()
    };
    let algorithm = Some(algorithm.unwrap_or(UNNAMED));
    let work = move |store: &Store| Ok(store.create_upload(&bucket, &key, &actor, metadata, algorithm)?);
    let upload_id = Some(service.call(work).await?);
    Ok(S3Response::new(CreateMultipartUploadOutput { upload_id, ..output }))
}

/// # Errors
/// `InvalidArgument` if it is not between 1 and 10,000.
fn part_number(number: i32) -> Result<u16, Refusal> {
    match (1..=PARTS_MAX).contains(&number) {
        true => Ok(number as u16),
        false => {
            let message = "Part number must be an integer between 1 and 10000, inclusive";
            Err(Refusal::new("InvalidArgument", message))
        }
    }
}

/// # Errors
/// `InvalidRequest` if a part has a checksum of another algorithm than the upload names.
fn check_algorithm(upload: &storage::UploadInfo, given: Option<Algorithm>) -> Result<(), Refusal> {
    match (upload.algorithm, given) {
        (Some((expected, kind)), Some(given)) if expected != given && (expected, kind) != UNNAMED => {
            let (expected, given) = (checksums::name(expected), checksums::name(given));
            let message = format!(
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                expected.to_ascii_lowercase(),
                given.to_ascii_lowercase()
            );
            Err(Refusal::new("InvalidRequest", message))
        }
        _ => Ok(()),
    }
}

pub(super) async fn upload_part(service: &Service, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
    let expected = Expected::of(&request.headers)?;
    let length = length(request.input.content_length)?;
    let UploadPartInput { body, bucket, key, upload_id, part_number: number, .. } = request.input;
    let number = part_number(number)?;
    let names = (bucket.clone(), key.clone(), upload_id.clone());
    let upload = service.call(move |store| Ok(store.upload(&names.0, &names.1, &names.2)?)).await?;
    check_algorithm(&upload, expected.algorithm())?;
    let (algorithm, _) = checksum_of(&upload);
    let answered = expected.algorithm().unwrap_or(algorithm);
    let outcome = request.extensions.get::<Arc<BodyOutcome>>().cloned();
    let incoming = Incoming { body, length, expected, algorithms: vec![algorithm], outcome };
    let begin = move |store: &Store| store.begin_part(&bucket, &key, &upload_id, number);
    let (sent, computed) = std::sync::mpsc::channel();
    let finish = move |upload: storage::Upload, received: Received| {
        // The receiver lives until the upload has ended.
        let _ = sent.send(chosen(answered, &received));
        let metadata = Metadata { checksum: chosen(algorithm, &received), ..Metadata::default() };
        upload.finish(received.md5, metadata, Condition::Always)
    };
    let info = receive(service, incoming, begin, finish).await?;
    let mut output = UploadPartOutput { e_tag: Some(ETag::Strong(info.etag)), ..Default::default() };
    if let Ok(Some(checksum)) = computed.try_recv() {
        set_value!(output, checksum);
    }
    Ok(S3Response::new(output))
}

pub(super) async fn upload_part_copy(
    service: &Service,
    request: S3Request<UploadPartCopyInput>,
) -> Answer<UploadPartCopyOutput> {
    let input = request.input;
    let number = part_number(input.part_number)?;
    let conditions = conditions::ReadConditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let source = Source::of(input.copy_source, conditions, &request.extensions)?;
    let (bucket, key, upload_id, range) = (input.bucket, input.key, input.upload_id, input.copy_source_range);
    let work = move |store: &Store| {
        let upload = store.upload(&bucket, &key, &upload_id)?;
        let object = source.open(store)?;
        let range = copied_range(range.as_deref(), object.info().size)?;
        match checksum_of(&upload) {
            // Such a part needs no checksum, so its bytes need not pass here.
            UNNAMED => Ok(store.copy_part(&object, range, &bucket, &key, &upload_id, number)?),
            (algorithm, _) => {
                let part = store.begin_part(&bucket, &key, &upload_id, number)?;
                copy_bytes(&object, range, part, number, algorithm)
            }
        }
    };
    let part = service.call(work).await?;
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.etag)),
        last_modified: Some(timestamp(part.modified)),
        ..Default::default()
    };
    if let Some(checksum) = &part.checksum {
        set_value!(result, checksum);
    }
    Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }))
}

/// Copies a range by reading and writing it, and computes its checksum.
fn copy_bytes(
    object: &storage::Object,
    range: std::ops::Range<u64>,
    mut part: storage::Upload,
    number: u16,
    algorithm: Algorithm,
) -> Result<PartInfo, Refusal> {
    let mut sums = Sums::new(&[algorithm]);
    each_piece(object, range, |bytes| {
        sums.update(&bytes);
        Ok(part.write(bytes)?)
    })?;
    let (md5, checksums) = sums.finish(&Expected::default())?;
    let metadata = Metadata { checksum: chosen(algorithm, &Received { md5, checksums }), ..Metadata::default() };
    let storage::ObjectInfo { size, modified, etag, metadata, .. } = part.finish(md5, metadata, Condition::Always)?;
    Ok(PartInfo { number, size, etag, modified, checksum: metadata.checksum })
}

/// The range of `x-amz-copy-source-range`, which has to be within the source.
///
/// # Errors
/// `InvalidArgument` if it is malformed, `InvalidRange` if it is beyond the source.
fn copied_range(text: Option<&str>, size: u64) -> Result<std::ops::Range<u64>, Refusal> {
    let Some(text) = text else { return Ok(0..size) };
    let malformed = || {
        let message = "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are \
                       the zero-based offsets of the first and last bytes to copy";
        Refusal::new("InvalidArgument", message)
    };
    match Range::parse(text).map_err(|_| malformed())? {
        Range::Int { first, last: Some(last) } if last < size => Ok(first..last + 1),
        Range::Int { last: Some(last), .. } => {
            let message = format!("Range specified is not valid for source object of size: {size}");
            let code = if last >= size { "InvalidRange" } else { "InvalidArgument" };
            Err(Refusal::new(code, message))
        }
        _ => Err(malformed()),
    }
}

pub(super) async fn list_parts(service: &Service, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
    let ListPartsInput { bucket, key, upload_id, max_parts, part_number_marker, .. } = request.input;
    let max = page_size(max_parts, PAGE_MAX, "max-parts")?;
    let after = u16::try_from(marker(part_number_marker, "part-number-marker")?).unwrap_or(u16::MAX);
    let names = (bucket.clone(), key.clone(), upload_id.clone());
    let work = move |store: &Store| {
        let (bucket, key, upload_id) = names;
        let upload = store.upload(&bucket, &key, &upload_id)?;
        let page = match max {
            0 => storage::PartsPage::default(),
            _ => store.parts(&bucket, &key, &upload_id, after, max)?,
        };
        Ok((upload, page))
    };
    let (upload, page) = service.call(work).await?;
    let (algorithm, kind) = (upload.algorithm.map(|it| it.0), upload.algorithm.map(|it| it.1));
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(bucket),
        key: Some(key),
        upload_id: Some(upload_id),
        checksum_algorithm: algorithm.map(|it| ChecksumAlgorithm::from_static(checksums::name(it))),
        checksum_type: kind.map(|it| ChecksumType::from_static(checksums::kind_name(it))),
        part_number_marker: Some(after.into()),
        max_parts: Some(max as i32),
        is_truncated: Some(page.next.is_some()),
        next_part_number_marker: page.next.or(page.parts.last().map(|part| part.number)).map(i32::from),
        parts: Some(page.parts.into_iter().map(part_of_list).collect()),
        owner: Some(owner(upload.actor)),
        initiator: Some(initiator(&upload)),
        storage_class: Some(class(upload.metadata.storage_class)),
        ..Default::default()
    }))
}

fn initiator(upload: &storage::UploadInfo) -> Initiator {
    let Owner { display_name, id } = owner(upload.actor);
    Initiator { display_name, id }
}

fn class(class: Option<String>) -> StorageClass {
    class.map_or(StorageClass::from_static(StorageClass::STANDARD), StorageClass::from)
}

fn part_of_list(info: PartInfo) -> Part {
    let mut part = Part {
        part_number: Some(info.number.into()),
        size: Some(info.size as i64),
        e_tag: Some(ETag::Strong(info.etag)),
        last_modified: Some(timestamp(info.modified)),
        ..Default::default()
    };
    if let Some(checksum) = &info.checksum {
        set_value!(part, checksum);
    }
    part
}

pub(super) async fn list(
    service: &Service,
    request: S3Request<ListMultipartUploadsInput>,
) -> Answer<ListMultipartUploadsOutput> {
    let input = request.input;
    let max = page_size(input.max_uploads, PAGE_MAX, "max-uploads")?;
    let is_encoded = is_url(input.encoding_type.as_ref())?;
    let text = |text: String| if is_encoded { encode(text.as_bytes(), true) } else { text };
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        after: input.key_marker.clone().unwrap_or_default(),
        max,
    };
    // Without a key marker the other one is ignored.
    let marker = input.upload_id_marker.clone().filter(|_| !query.after.is_empty()).unwrap_or_default();
    let bucket = input.bucket.clone();
    let work = move |store: &Store| match max {
        0 => Ok(store.bucket(&bucket).map(|_| storage::UploadsPage::default())?),
        _ => Ok(store.uploads(&bucket, &query, &marker)?),
    };
    let page = service.call(work).await?;
    let upload = |info: storage::UploadInfo| MultipartUpload {
        initiated: Some(timestamp(info.initiated)),
        initiator: Some(initiator(&info)),
        owner: Some(owner(info.actor)),
        checksum_algorithm: info.algorithm.map(|(it, _)| ChecksumAlgorithm::from_static(checksums::name(it))),
        checksum_type: info.algorithm.map(|(_, it)| ChecksumType::from_static(checksums::kind_name(it))),
        storage_class: Some(class(info.metadata.storage_class)),
        key: Some(text(info.key)),
        upload_id: Some(info.id),
    };
    let (next_key, next_id) = page.next.unzip();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: input.prefix.map(text),
        delimiter: input.delimiter.map(text),
        key_marker: Some(text(input.key_marker.unwrap_or_default())),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        max_uploads: Some(max as i32),
        encoding_type: is_encoded.then(|| EncodingType::from_static(EncodingType::URL)),
        is_truncated: Some(next_key.is_some()),
        next_key_marker: next_key.map(text),
        next_upload_id_marker: next_id,
        common_prefixes: Some(
            page.prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(text(prefix)) }).collect(),
        ),
        uploads: Some(page.uploads.into_iter().map(upload).collect()),
        request_charged: None,
    }))
}

pub(super) async fn abort(
    service: &Service,
    request: S3Request<AbortMultipartUploadInput>,
) -> Answer<AbortMultipartUploadOutput> {
    let AbortMultipartUploadInput { bucket, key, upload_id, if_match_initiated_time, .. } = request.input;
    if if_match_initiated_time.is_some() {
        let message = "A header you provided implies functionality that is not implemented";
        return Err(Refusal::new("NotImplemented", message).into());
    }
    service.call(move |store| Ok(store.abort(&bucket, &key, &upload_id)?)).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

pub(super) async fn complete(
    service: &Service,
    request: S3Request<CompleteMultipartUploadInput>,
) -> Answer<CompleteMultipartUploadOutput> {
    let condition = conditions::of_write(&request.headers)?;
    let is_conditional = matches!(condition, Condition::Matches { .. } | Condition::Exists);
    let CompleteMultipartUploadInput { bucket, key, upload_id, multipart_upload, mpu_object_size, .. } = request.input;
    let parts = parts_of(multipart_upload.and_then(|upload| upload.parts).unwrap_or_default())?;
    let (names, headers) = ((bucket.clone(), key.clone()), request.headers);
    let work = move |store: &Store| {
        let completion = Completion { bucket, key, upload_id, parts, size: mpu_object_size, condition };
        completion.execute(store, &headers)
    };
    let info = match service.call(work).await {
        Err(refusal) if refusal.code == "PreconditionFailed" && is_conditional => {
            return Err(or_missing(service, names, refusal).await.into());
        }
        outcome => outcome?,
    };
    let (bucket, key) = names;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{bucket}/{}", encode(key.as_bytes(), true))),
        bucket: Some(bucket),
        key: Some(key),
        e_tag: Some(ETag::Strong(info.etag)),
        ..Default::default()
    };
    if let Some(checksum) = &info.metadata.checksum {
        set_checksum!(output, checksum);
    }
    Ok(S3Response::new(output))
}

/// A part as the request names it, with the checksum that it gives.
type NamedPart = (storage::CompletedPart, Option<(Algorithm, String)>);

/// # Errors
/// `MalformedXML` if there is no part, or one without number or ETag; `InvalidArgument` if a number is out of range.
fn parts_of(parts: Vec<CompletedPart>) -> Result<Vec<NamedPart>, Refusal> {
    if parts.is_empty() {
        let message = "The XML you provided was not well-formed or did not validate against our published schema";
        return Err(Refusal::new("MalformedXML", message));
    }
    let part = |part: CompletedPart| {
        let number = part.part_number.ok_or_else(|| Refusal::new("MalformedXML", "A part has no PartNumber"))?;
        let number = part_number(number)?;
        let sums = [
            (Algorithm::Crc32, part.checksum_crc32),
            (Algorithm::Crc32c, part.checksum_crc32c),
            (Algorithm::Crc64Nvme, part.checksum_crc64nvme),
            (Algorithm::Sha1, part.checksum_sha1),
            (Algorithm::Sha256, part.checksum_sha256),
        ];
        let given = sums.into_iter().find_map(|(algorithm, value)| Some((algorithm, value?)));
        let etag = part.e_tag.ok_or_else(|| Refusal::new("MalformedXML", "A part has no ETag"))?;
        Ok((storage::CompletedPart { number, etag: etag.value().into(), checksum: None }, given))
    };
    parts.into_iter().map(part).collect()
}

/// The completion of an upload.
struct Completion {
    bucket: String,
    key: String,
    upload_id: String,
    parts: Vec<NamedPart>,
    /// `x-amz-mp-object-size`.
    size: Option<i64>,
    condition: Condition,
}

impl Completion {
    fn execute(self, store: &Store, headers: &HeaderMap) -> Result<storage::ObjectInfo, Refusal> {
        let Self { bucket, key, upload_id, parts, size, condition } = self;
        let upload = match store.upload(&bucket, &key, &upload_id) {
            Ok(upload) => upload,
            // The storage knows whether this upload was completed already, and answers as then.
            Err(storage::Error::NoSuchUpload) => {
                let parts: Vec<_> = parts.into_iter().map(|(part, _)| part).collect();
                return Ok(store.complete(&bucket, &key, &upload_id, &parts, None, condition)?);
            }
            Err(error) => return Err(error.into()),
        };
        let parts = parts.into_iter().map(|part| compared(&upload, part)).collect::<Result<Vec<_>, _>>()?;
        let uploaded = all_parts(store, &bucket, &key, &upload_id)?;
        let chosen: Vec<PartInfo> = parts
            .iter()
            .filter_map(|part| uploaded.binary_search_by_key(&part.number, |info| info.number).ok())
            .map(|at| uploaded[at].clone())
            .collect();
        // The storage says which part is missing.
        let checksum = match chosen.len() == parts.len() {
            true => {
                let (algorithm, kind) = checksum_of(&upload);
                checksums::of_parts(algorithm, kind, &chosen)
            }
            false => None,
        };
        if chosen.len() == parts.len() {
            check_size(size, &chosen)?;
            checksums::check_completed(headers, checksum.as_ref())?;
        }
        Ok(store.complete(&bucket, &key, &upload_id, &parts, checksum, condition)?)
    }
}

/// The part with the checksum that the storage is to compare.
///
/// # Errors
/// `InvalidPart` if its checksum is of another algorithm than the upload names; `InvalidRequest` if it has none and that
/// of the object is made of those of the parts.
fn compared(upload: &storage::UploadInfo, part: NamedPart) -> Result<storage::CompletedPart, Refusal> {
    let (part, given) = part;
    match given {
        Some((algorithm, value)) if algorithm == checksum_of(upload).0 => {
            Ok(storage::CompletedPart { checksum: Some(value), ..part })
        }
        Some(_) if checksum_of(upload) != UNNAMED => {
            let message = format!("Part {} has a checksum of another algorithm than the upload", part.number);
            Err(Refusal::new("InvalidPart", message))
        }
        None if checksum_of(upload).1 == ChecksumKind::Composite => {
            let message = format!(
                "The upload was created using a {} checksum. The complete request must include the checksum for each \
                 part. It was missing for part {} in the request.",
                checksums::name(checksum_of(upload).0).to_ascii_lowercase(),
                part.number
            );
            Err(Refusal::new("InvalidRequest", message))
        }
        _ => Ok(part),
    }
}

fn all_parts(store: &Store, bucket: &str, key: &str, upload_id: &str) -> Result<Vec<PartInfo>, Refusal> {
    let (mut parts, mut after) = (Vec::new(), 0);
    loop {
        let page = store.parts(bucket, key, upload_id, after, PAGE_MAX)?;
        parts.extend(page.parts);
        match page.next {
            Some(next) if next > after => after = next,
            _ => return Ok(parts),
        }
    }
}

fn check_size(size: Option<i64>, parts: &[PartInfo]) -> Result<(), Refusal> {
    let whole: u64 = parts.iter().map(|part| part.size).sum();
    match size {
        Some(size) if size as u64 != whole => {
            let message = format!(
                "The provided 'x-amz-mp-object-size' header value {size} does not match what was computed: {whole}"
            );
            Err(Refusal::new("InvalidRequest", message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_range_is_within_the_source() {
        assert_eq!(copied_range(None, 10).unwrap(), 0..10);
        assert_eq!(copied_range(Some("bytes=0-9"), 10).unwrap(), 0..10);
        assert_eq!(copied_range(Some("bytes=3-3"), 10).unwrap(), 3..4);
        for (text, code) in [
            ("bytes=0-10", "InvalidRange"),
            ("bytes=5-", "InvalidArgument"),
            ("bytes=-5", "InvalidArgument"),
            ("bytes=5-3", "InvalidArgument"),
            ("0-3", "InvalidArgument"),
        ] {
            assert_eq!(copied_range(Some(text), 10).unwrap_err().code, code, "{text}");
        }
    }

    #[test]
    fn parts_have_numbers_and_etags() {
        let part = |number, e_tag| CompletedPart { part_number: number, e_tag, ..Default::default() };
        let etag = || Some(ETag::Strong("e".into()));
        assert_eq!(parts_of(vec![part(Some(1), etag())]).unwrap()[0].0.number, 1);
        for (parts, code) in [
            (vec![], "MalformedXML"),
            (vec![part(None, etag())], "MalformedXML"),
            (vec![part(Some(0), etag())], "InvalidArgument"),
            (vec![part(Some(10_001), etag())], "InvalidArgument"),
            (vec![part(Some(1), None)], "MalformedXML"),
        ] {
            assert_eq!(parts_of(parts).unwrap_err().code, code);
        }
    }
}
