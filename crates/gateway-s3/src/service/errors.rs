//! Errors of the storage as S3's.

use crate::refusal::Refusal;
use crate::storage::Error;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NoSuchBucket => "NoSuchBucket",
            Error::NoSuchKey => "NoSuchKey",
            Error::NoSuchUpload => "NoSuchUpload",
            Error::BucketAlreadyExists => "BucketAlreadyExists",
            Error::BucketAlreadyOwnedByYou => "BucketAlreadyOwnedByYou",
            Error::BucketNotEmpty => "BucketNotEmpty",
            Error::InvalidBucketName => "InvalidBucketName",
            Error::InvalidKey | Error::InvalidArgument { .. } => "InvalidArgument",
            Error::KeyTooLong => "KeyTooLongError",
            Error::InvalidRange => "InvalidRange",
            Error::InvalidPart { .. } => "InvalidPart",
            Error::InvalidPartOrder => "InvalidPartOrder",
            Error::EntityTooSmall { .. } => "EntityTooSmall",
            Error::EntityTooLarge => "EntityTooLarge",
            Error::MetadataTooLarge => "MetadataTooLarge",
            Error::PreconditionFailed => "PreconditionFailed",
            Error::OperationAborted => "OperationAborted",
            Error::Volume(error) => of_volume(error),
        };
        if code == "InternalError" {
            log::error!("the S3 door: {error}");
        }
        Refusal::new(code, error.to_string())
    }
}

fn of_volume(error: &hekate_proto::Error) -> &'static str {
    use hekate_proto::Error as Volume;
    match error {
        Volume::Denied { .. } | Volume::NoAccess { .. } | Volume::ReadOnly => "AccessDenied",
        Volume::NoSpace { .. } => "InsufficientStorage",
        Volume::NotSupported { .. } => "NotImplemented",
        Volume::NameTooLong => "KeyTooLongError",
        Volume::Interrupted | Volume::SessionEnded | Volume::Unavailable { .. } => "ServiceUnavailable",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_status() {
        let cases = [
            (Error::NoSuchKey, 404),
            (Error::BucketNotEmpty, 409),
            (Error::OperationAborted, 409),
            (Error::PreconditionFailed, 412),
            (Error::InvalidRange, 416),
            (Error::KeyTooLong, 400),
            (Error::Volume(hekate_proto::Error::NoSpace { what: "brick 1".into() }), 507),
            (Error::Volume(hekate_proto::Error::Unavailable { what: "server 1".into() }), 503),
            (Error::Volume(hekate_proto::Error::Damaged { what: "block 1".into() }), 500),
        ];
        for (error, status) in cases {
            assert_eq!(Refusal::from(error.clone()).status(), status, "{error}");
        }
    }
}
