//! GetObjectAttributes.

use super::listing::{marker, page_size};
use super::objects::{set_checksum, set_value};
use super::{Answer, Service, timestamp};
use crate::refusal::Refusal;
use crate::storage;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// Most parts of a page.
const PARTS_MAX: usize = 1000;

pub(super) async fn get(
    service: &Service,
    request: S3Request<GetObjectAttributesInput>,
) -> Answer<GetObjectAttributesOutput> {
    let GetObjectAttributesInput { bucket, key, object_attributes, max_parts, part_number_marker, .. } = request.input;
    let max = page_size(max_parts, PARTS_MAX, "max-parts")?;
    let after = marker(part_number_marker, "part-number-marker")?;
    let asked: Vec<&str> =
        object_attributes.iter().flat_map(|names| names.as_str().split(',')).map(str::trim).collect();
    check(&asked)?;
    let info = service.call(move |store| Ok(store.head(&bucket, &key)?)).await?;
    let is_asked = |name: &str| asked.contains(&name);
    let mut output = GetObjectAttributesOutput { last_modified: Some(timestamp(info.modified)), ..Default::default() };
    if is_asked(ObjectAttributes::ETAG) {
        output.e_tag = Some(ETag::Strong(info.etag.clone()));
    }
    if is_asked(ObjectAttributes::OBJECT_SIZE) {
        output.object_size = Some(info.size as i64);
    }
    if is_asked(ObjectAttributes::STORAGE_CLASS) {
        let class = info.metadata.storage_class.clone();
        output.storage_class =
            Some(class.map_or(StorageClass::from_static(StorageClass::STANDARD), StorageClass::from));
    }
    if is_asked(ObjectAttributes::CHECKSUM) {
        output.checksum = info.metadata.checksum.as_ref().map(|checksum| {
            let mut answered = Checksum::default();
            set_checksum!(answered, checksum);
            answered
        });
    }
    if is_asked(ObjectAttributes::OBJECT_PARTS) && !info.metadata.parts.is_empty() {
        output.object_parts = Some(parts(&info.metadata, after, max));
    }
    Ok(S3Response::new(output))
}

/// # Errors
/// `InvalidRequest` if no attribute is asked for, `InvalidArgument` if one is not known.
fn check(asked: &[&str]) -> Result<(), Refusal> {
    const KNOWN: [&str; 5] = [
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::ETAG,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::OBJECT_SIZE,
        ObjectAttributes::STORAGE_CLASS,
    ];
    if asked.iter().all(|name| name.is_empty()) {
        let message =
            "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty";
        return Err(Refusal::new("InvalidRequest", message));
    }
    match asked.iter().all(|name| KNOWN.contains(name)) {
        true => Ok(()),
        false => Err(Refusal::new("InvalidArgument", "Invalid attribute name specified.")),
    }
}

fn parts(metadata: &storage::Metadata, after: i32, max: usize) -> GetObjectAttributesParts {
    let algorithm = metadata.checksum.as_ref().map(|checksum| checksum.algorithm);
    let later = || metadata.parts.iter().filter(|part| i32::from(part.number) > after);
    let page: Vec<ObjectPart> = later().take(max).map(|part| object_part(part, algorithm)).collect();
    let is_truncated = later().count() > page.len();
    GetObjectAttributesParts {
        is_truncated: Some(is_truncated),
        max_parts: Some(max as i32),
        part_number_marker: Some(after),
        next_part_number_marker: page.last().and_then(|part| part.part_number),
        total_parts_count: Some(metadata.parts.len() as i32),
        parts: Some(page),
    }
}

fn object_part(part: &storage::ObjectPart, algorithm: Option<storage::Algorithm>) -> ObjectPart {
    let mut answered =
        ObjectPart { part_number: Some(part.number.into()), size: Some(part.size as i64), ..Default::default() };
    if let (Some(algorithm), Some(value)) = (algorithm, part.checksum.clone()) {
        let checksum = storage::Checksum { algorithm, value, kind: storage::ChecksumKind::Full };
        set_value!(answered, checksum);
    }
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_pages() {
        let part = |number| storage::ObjectPart { number, size: 5, checksum: None };
        let metadata = storage::Metadata { parts: (1..=5).map(part).collect(), ..Default::default() };
        let first = parts(&metadata, 0, 2);
        assert_eq!(
            (first.is_truncated, first.next_part_number_marker, first.total_parts_count),
            (Some(true), Some(2), Some(5))
        );
        let last = parts(&metadata, 4, 2);
        assert_eq!((last.is_truncated, last.parts.unwrap().len()), (Some(false), 1));
    }
}
