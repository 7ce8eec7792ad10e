//! What the storage refuses, by S3's codes.

use std::fmt;

/// Result of an operation of the storage.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation was not executed. The variants have the names of S3's error codes where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The bucket does not exist.
    NoSuchBucket,
    /// No object has the key.
    NoSuchKey,
    /// The upload does not exist, or it is of another bucket or key.
    NoSuchUpload,
    /// Something that is no bucket has the name in the volume's root.
    BucketAlreadyExists,
    /// The bucket exists.
    BucketAlreadyOwnedByYou,
    /// The bucket has objects or files.
    BucketNotEmpty,
    /// The name is not one that a bucket can have.
    InvalidBucketName,
    /// The key is empty.
    InvalidKey,
    /// The key is longer than 1,024 bytes.
    KeyTooLong,
    /// The request's value is out of range. `what`: the value and its range.
    InvalidArgument { what: String },
    /// The range begins or ends beyond the object.
    InvalidRange,
    /// The upload has no part of this number with this ETag and checksum.
    InvalidPart { number: u16 },
    /// The numbers of the parts do not increase.
    InvalidPartOrder,
    /// The part is not the last one and has less than 5 MiB.
    EntityTooSmall { number: u16, size: u64 },
    /// The object or the part would be longer than the limit.
    EntityTooLarge,
    /// User metadata, tags and headers together exceed what a file can have.
    MetadataTooLarge,
    /// The object under the key is not as the request demands.
    PreconditionFailed,
    /// Concurrent changes of the key did not leave off; the request can be sent again.
    OperationAborted,
    /// The volume refused or failed.
    Volume(hekate_proto::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchBucket => f.write_str("the bucket does not exist"),
            Error::NoSuchKey => f.write_str("no object has the key"),
            Error::NoSuchUpload => f.write_str("the upload does not exist; it may have been completed or aborted"),
            Error::BucketAlreadyExists => f.write_str("a file has the bucket's name"),
            Error::BucketAlreadyOwnedByYou => f.write_str("the bucket exists"),
            Error::BucketNotEmpty => f.write_str("the bucket is not empty"),
            Error::InvalidBucketName => {
                f.write_str("a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens")
            }
            Error::InvalidKey => f.write_str("a key has 1 to 1,024 bytes"),
            Error::KeyTooLong => f.write_str("the key is longer than 1,024 bytes"),
            Error::InvalidArgument { what } => f.write_str(what),
            Error::InvalidRange => f.write_str("the range is not within the object"),
            Error::InvalidPart { number } => {
                write!(f, "the upload has no part {number} with this ETag and checksum; send the part again")
            }
            Error::InvalidPartOrder => f.write_str("the parts are not in the order of their numbers"),
            Error::EntityTooSmall { number, size } => {
                write!(f, "part {number} has {size} bytes; each part but the last has at least 5 MiB")
            }
            Error::EntityTooLarge => f.write_str("the object or part is too large"),
            Error::MetadataTooLarge => f.write_str("the object's metadata, headers and tags are too large"),
            Error::PreconditionFailed => f.write_str("the object is not as the request demands"),
            Error::OperationAborted => f.write_str("other requests change the key at the same time; try again"),
            Error::Volume(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<hekate_proto::Error> for Error {
    fn from(error: hekate_proto::Error) -> Self {
        match error {
            hekate_proto::Error::ConditionFailed => Error::PreconditionFailed,
            hekate_proto::Error::AttributeTooLarge => Error::MetadataTooLarge,
            hekate_proto::Error::TooLarge => Error::EntityTooLarge,
            other => Error::Volume(other),
        }
    }
}
