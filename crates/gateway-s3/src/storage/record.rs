//! What a file has beside its bytes, as the value of the attribute `hekate.s3`: JSON, with a version
//! (docs/format/objects.md).

use super::error::{Error, Result};
use super::model::{Actor, Algorithm, BucketSettings, CannedAcl, Checksum, ChecksumKind, Metadata, ObjectPart};
use super::multipart::PARTS_MAX;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// The attribute. Gateways of files neither show nor set names that begin with `hekate.`.
pub const ATTRIBUTE: Bytes = Bytes::from_static(b"hekate.s3");
/// Longest value of an attribute, in bytes.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of the checksums of all parts, in base64. The rest is for headers, user metadata and tags.
const PART_CHECKSUMS_MAX: usize = 44 << 10;
/// Version of the records that this program writes.
const VERSION: u8 = 1;

/// An object's record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    version: u8,
    /// ETag of the bytes that checksum and parts belong to.
    etag: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    user: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acl: Option<CannedAcl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<Checksum>,
    /// Runs of parts with consecutive numbers and one size: first number, count, bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<(u16, u16, u64)>,
    /// Checksums of all parts, one after the other, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    part_checksums: Option<String>,
    /// The upload that made the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload: Option<String>,
}

/// An upload's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadRecord {
    version: u8,
    pub key: String,
    pub actor: Actor,
    pub algorithm: Option<(Algorithm, ChecksumKind)>,
    metadata: Record,
}

impl UploadRecord {
    pub fn new(key: &str, actor: &Actor, algorithm: Option<(Algorithm, ChecksumKind)>, metadata: Metadata) -> Self {
        let metadata = record_of(metadata, "", None);
        Self { version: VERSION, key: key.to_owned(), actor: *actor, algorithm, metadata }
    }

    pub fn metadata(&self) -> Metadata {
        metadata_of(self.metadata.clone(), "")
    }

    pub fn encode(&self) -> Result<Bytes> {
        encode(self)
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        decode(value)
    }
}

/// A bucket's record.
#[derive(Serialize, Deserialize)]
struct BucketRecord {
    version: u8,
    settings: BucketSettings,
}

/// The value for a bucket with these settings.
///
/// # Errors
/// `MetadataTooLarge`.
pub fn of_settings(settings: &BucketSettings) -> Result<Bytes> {
    encode(&BucketRecord { version: VERSION, settings: settings.clone() })
}

/// The settings of a bucket. Those of a directory without a record are the default ones.
///
/// # Errors
/// `Damaged` if the value is no record of a bucket.
pub fn settings(value: Option<&Bytes>) -> Result<BucketSettings> {
    value.map_or(Ok(BucketSettings::default()), |value| Ok(decode::<BucketRecord>(value)?.settings))
}

/// The value for an object of this ETag. `None` if there is nothing to record.
///
/// # Errors
/// `MetadataTooLarge`.
pub fn of_object(metadata: &Metadata, etag: &str, upload: Option<&str>) -> Result<Option<Bytes>> {
    if *metadata == Metadata::default() && upload.is_none() {
        return Ok(None);
    }
    encode(&record_of(metadata.clone(), etag, upload)).map(Some)
}

/// The metadata of an object whose ETag is now `etag`.
///
/// # Errors
/// `Damaged` if the value is no record of an object.
pub fn metadata(value: Option<&Bytes>, etag: &str) -> Result<Metadata> {
    value.map_or(Ok(Metadata::default()), |value| Ok(metadata_of(decode(value)?, etag)))
}

/// The value with other metadata; the ETag and the upload remain. Checksum and parts are those of the value.
///
/// # Errors
/// `MetadataTooLarge`; `Damaged` if the value is no record of an object.
pub fn changed(value: Option<&Bytes>, etag: &str, change: impl FnOnce(&mut Metadata)) -> Result<Bytes> {
    let old: Record = value.map_or(Ok(Record { etag: etag.to_owned(), ..Record::default() }), |value| decode(value))?;
    let (belongs_to, upload) = (old.etag.clone(), old.upload.clone());
    let mut metadata = metadata_of(old, &belongs_to);
    change(&mut metadata);
    encode(&record_of(metadata, &belongs_to, upload.as_deref()))
}

/// The upload that made an object.
///
/// # Errors
/// `Damaged` if the value is no record of an object.
pub fn upload_of(value: Option<&Bytes>) -> Result<Option<String>> {
    value.map_or(Ok(None), |value| Ok(decode::<Record>(value)?.upload))
}

fn encode(record: &impl Serialize) -> Result<Bytes> {
    let value = serde_json::to_vec(record)
        .map_err(|error| hekate_proto::Error::bug(format!("a record that JSON cannot have: {error}")))?;
    if value.len() > VALUE_BYTES_MAX { Err(Error::MetadataTooLarge) } else { Ok(value.into()) }
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u8,
    }
    let damaged = |what: String| Error::Volume(hekate_proto::Error::Damaged { what: format!("hekate.s3: {what}") });
    let found: Version = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
    if found.version != VERSION {
        return Err(damaged(format!("a record of version {}, this program knows {VERSION}", found.version)));
    }
    serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))
}

/// The headers with their names in the record.
fn headers(metadata: &mut Metadata) -> [(&'static str, &mut Option<String>); 8] {
    [
        ("content-type", &mut metadata.content_type),
        ("content-encoding", &mut metadata.content_encoding),
        ("content-language", &mut metadata.content_language),
        ("content-disposition", &mut metadata.content_disposition),
        ("cache-control", &mut metadata.cache_control),
        ("expires", &mut metadata.expires),
        ("website-redirect", &mut metadata.website_redirect),
        ("storage-class", &mut metadata.storage_class),
    ]
}

fn record_of(mut metadata: Metadata, etag: &str, upload: Option<&str>) -> Record {
    let named = |(name, value): (&str, &mut Option<String>)| value.take().map(|value| (name.to_owned(), value));
    let headers = headers(&mut metadata).into_iter().filter_map(named).collect();
    let part_checksums = checksums_of(&metadata.parts);
    Record {
        version: VERSION,
        etag: etag.to_owned(),
        headers,
        user: metadata.user,
        tags: metadata.tags,
        acl: metadata.acl,
        checksum: metadata.checksum,
        parts: runs(&metadata.parts),
        part_checksums,
        upload: upload.map(str::to_owned),
    }
}

fn metadata_of(mut record: Record, etag: &str) -> Metadata {
    let mut metadata = Metadata { user: record.user, tags: record.tags, acl: record.acl, ..Metadata::default() };
    for (name, value) in headers(&mut metadata) {
        *value = record.headers.remove(name);
    }
    if record.etag == etag {
        metadata.checksum = record.checksum;
        metadata.parts = parts(&record.parts, record.part_checksums.as_deref());
    }
    metadata
}

fn runs(parts: &[ObjectPart]) -> Vec<(u16, u16, u64)> {
    let mut runs: Vec<(u16, u16, u64)> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some((first, count, size)) if *size == part.size && first.checked_add(*count) == Some(part.number) => {
                *count += 1;
            }
            _ => runs.push((part.number, 1, part.size)),
        }
    }
    runs
}

/// The checksums of the parts, if each part has one of the same length and all fit.
fn checksums_of(parts: &[ObjectPart]) -> Option<String> {
    let each: Option<Vec<Vec<u8>>> = parts.iter().map(|part| STANDARD.decode(part.checksum.as_deref()?).ok()).collect();
    let each = each.filter(|each| each.windows(2).all(|pair| pair[0].len() == pair[1].len()) && !each.is_empty())?;
    Some(STANDARD.encode(each.concat())).filter(|text| text.len() <= PART_CHECKSUMS_MAX)
}

fn parts(runs: &[(u16, u16, u64)], checksums: Option<&str>) -> Vec<ObjectPart> {
    let each = runs.iter().flat_map(|(first, count, size)| {
        let numbers = *first..first.saturating_add(*count).min(PARTS_MAX + 1);
        numbers.map(|number| ObjectPart { number, size: *size, checksum: None })
    });
    let mut parts: Vec<ObjectPart> = each.take(usize::from(PARTS_MAX)).collect();
    let checksums = checksums.and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    let length = checksums.len().checked_div(parts.len()).unwrap_or(0);
    if length > 0 {
        for (part, checksum) in parts.iter_mut().zip(checksums.chunks(length)) {
            part.checksum = Some(STANDARD.encode(checksum));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole() -> Metadata {
        let part =
            |number: u16| ObjectPart { number, size: 5 << 20, checksum: Some(STANDARD.encode([number as u8; 4])) };
        Metadata {
            content_type: Some("text/plain".into()),
            storage_class: Some("STANDARD".into()),
            user: [("a".to_owned(), "b".to_owned())].into(),
            tags: vec![("t".into(), "1".into())],
            acl: Some(CannedAcl::PublicRead),
            checksum: Some(Checksum {
                algorithm: Algorithm::Crc32c,
                value: "x-3".into(),
                kind: ChecksumKind::Composite,
            }),
            parts: vec![part(1), part(2), ObjectPart { size: 7, ..part(5) }],
            ..Metadata::default()
        }
    }

    #[test]
    fn metadata_comes_back() {
        let value = of_object(&whole(), "e", Some("u")).unwrap();
        assert_eq!(metadata(value.as_ref(), "e").unwrap(), whole());
        assert_eq!(upload_of(value.as_ref()).unwrap().as_deref(), Some("u"));
        assert_eq!(of_object(&Metadata::default(), "e", None), Ok(None));
    }

    #[test]
    fn checksum_and_parts_are_those_of_their_bytes_only() {
        let value = of_object(&whole(), "e", None).unwrap();
        let other = metadata(value.as_ref(), "f").unwrap();
        assert_eq!(other, Metadata { checksum: None, parts: Vec::new(), ..whole() });
        let tagged = changed(value.as_ref(), "f", |metadata| metadata.tags.clear()).unwrap();
        assert_eq!(metadata(Some(&tagged), "e").unwrap(), Metadata { tags: Vec::new(), ..whole() });
        assert!(metadata(Some(&tagged), "f").unwrap().parts.is_empty());
    }

    #[test]
    fn ten_thousand_parts_with_checksums_fit() {
        let part = |number: u16| ObjectPart { number, size: 5 << 20, checksum: Some(STANDARD.encode([7; 3])) };
        let metadata_in = Metadata { parts: (1..=10_000).map(part).collect(), ..Metadata::default() };
        let value = of_object(&metadata_in, "e", None).unwrap();
        assert_eq!(metadata(value.as_ref(), "e").unwrap(), metadata_in);
        let long = |number: u16| ObjectPart { checksum: Some(STANDARD.encode([7; 32])), ..part(number) };
        let metadata_in = Metadata { parts: (1..=10_000).map(long).collect(), ..Metadata::default() };
        let value = of_object(&metadata_in, "e", None).unwrap();
        let read = metadata(value.as_ref(), "e").unwrap();
        assert!(read.parts.len() == 10_000 && read.parts.iter().all(|part| part.checksum.is_none()));
    }

    proptest! {
        #[test]
        fn a_record_of_any_runs_is_read_and_written_again(
            runs in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u64>()), 0..20),
            sums in prop::option::of("[A-Za-z0-9+/=]{0,40}"),
        ) {
            let value = serde_json::json!({ "version": 1, "etag": "e", "parts": runs, "part_checksums": sums });
            let value = Bytes::from(value.to_string());
            let read = metadata(Some(&value), "e").unwrap();
            prop_assert!(read.parts.len() <= usize::from(PARTS_MAX));
            prop_assert!(changed(Some(&value), "e", |metadata| metadata.tags.clear()).is_ok());
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "[{}\\[\\]:,\"a-z0-9]{0,60}") {
            for value in [Bytes::from(bytes), Bytes::from(text)] {
                prop_assert!(matches!(metadata(Some(&value), "e"), Ok(_) | Err(Error::Volume(_))));
            }
        }
    }

    #[test]
    fn what_is_no_record_is_reported() {
        for bad in ["", "{}", "[]", "{\"version\":9}", "{\"version\":1,\"parts\":7}"] {
            assert!(matches!(metadata(Some(&Bytes::from(bad)), "e"), Err(Error::Volume(_))), "{bad}");
        }
        let large = Metadata { content_type: Some("x".repeat(70_000)), ..Metadata::default() };
        assert_eq!(of_object(&large, "e", None), Err(Error::MetadataTooLarge));
    }
}
