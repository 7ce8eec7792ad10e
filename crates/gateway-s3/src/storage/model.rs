//! What the storage takes and returns.

use hekate_proto::{InodeId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The user for whom an operation is executed. Owns what the operation makes, unless the bucket's settings name an
/// owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    pub uid: u32,
    pub gid: u32,
}

/// A canned ACL: who may read without a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CannedAcl {
    #[default]
    Private,
    PublicRead,
}

/// A rule of a bucket's CORS configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorsRule {
    pub id: Option<String>,
    pub allowed_origins: Vec<String>,
    pub allowed_methods: Vec<String>,
    pub allowed_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    /// Seconds for which a browser may keep the answer to a preflight request.
    pub max_age_seconds: Option<u32>,
}

/// What a bucket says of requests and of what is made in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BucketSettings {
    /// Owner of files and directories that S3 makes. `None`: the actor.
    pub owner: Option<Actor>,
    /// Permission bits of files that S3 makes. `None`: 0644.
    pub file_mode: Option<u16>,
    /// Permission bits of directories that S3 makes. `None`: 0755.
    pub directory_mode: Option<u16>,
    pub acl: CannedAcl,
    pub cors: Vec<CorsRule>,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    pub created: Time,
    pub settings: BucketSettings,
    /// Its directory.
    pub inode: InodeId,
    /// Owner of the directory.
    pub owner: Actor,
}

/// A bucket in the list of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketEntry {
    pub name: String,
    pub created: Time,
}

/// Algorithm of an additional checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// What the checksum of an upload covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// The object's bytes.
    Full,
    /// The checksums of the parts.
    Composite,
}

/// An additional checksum of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    pub algorithm: Algorithm,
    /// Base64; a composite one ends in `-` and the number of parts.
    pub value: String,
    pub kind: ChecksumKind,
}

/// A part of an object that was made by a multipart upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPart {
    pub number: u16,
    pub size: u64,
    /// Base64, with the algorithm of the object's checksum. `None` also if the checksums of all parts have more than
    /// 44 KiB: an attribute of a file has at most 64 KiB.
    pub checksum: Option<String>,
}

/// What S3 keeps of an object beside its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub content_language: Option<String>,
    pub content_disposition: Option<String>,
    pub cache_control: Option<String>,
    /// As the request gave it.
    pub expires: Option<String>,
    pub website_redirect: Option<String>,
    pub storage_class: Option<String>,
    /// `None`: the bucket's.
    pub acl: Option<CannedAcl>,
    pub user: BTreeMap<String, String>,
    pub tags: Vec<(String, String)>,
    /// Read: only if the bytes are still those that it was computed of.
    pub checksum: Option<Checksum>,
    /// Of an object of a multipart upload whose bytes were not changed since. [`super::Store::complete`] sets them.
    pub parts: Vec<ObjectPart>,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    /// Bytes.
    pub size: u64,
    pub modified: Time,
    /// Without quotes.
    pub etag: String,
    /// Empty in a listing.
    pub metadata: Metadata,
}

/// Which keys to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only keys that begin with it.
    pub prefix: String,
    /// Keys that have it behind the prefix are listed once, up to its end.
    pub delimiter: Option<String>,
    /// Only keys and prefixes that are greater.
    pub after: String,
    /// Most keys and prefixes, together.
    pub max: usize,
}

/// A page of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// In byte order of the keys.
    pub objects: Vec<ObjectInfo>,
    /// In byte order.
    pub prefixes: Vec<String>,
    /// [`ListQuery::after`] of the next page. `None`: there are no more.
    pub next: Option<String>,
}

/// A multipart upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadInfo {
    pub key: String,
    pub id: String,
    pub initiated: Time,
    /// Of the object to be.
    pub metadata: Metadata,
    pub algorithm: Option<(Algorithm, ChecksumKind)>,
    pub actor: Actor,
}

/// A page of uploads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadsPage {
    /// By key, then by upload id.
    pub uploads: Vec<UploadInfo>,
    pub prefixes: Vec<String>,
    /// Key marker and upload id marker of the next page. `None`: there are no more.
    pub next: Option<(String, String)>,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartInfo {
    pub number: u16,
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    pub modified: Time,
    pub checksum: Option<Checksum>,
}

/// A page of parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartsPage {
    /// By number.
    pub parts: Vec<PartInfo>,
    /// The last number of this page. `None`: there are no more.
    pub next: Option<u16>,
}

/// A part as the completion of an upload names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedPart {
    pub number: u16,
    /// Without quotes.
    pub etag: String,
    /// Base64. Compared if it is given.
    pub checksum: Option<String>,
}

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    pub uploads: u64,
    pub directories: u64,
}
