//! The operations that the door has, what each needs of a key, and the check of that. What is not in the table is
//! answered `NotImplemented` here, so the table is complete.

use super::Service;
use crate::access::{Caller, Right};
use crate::refusal::Refusal;
use crate::server::{Address, Tally};
use crate::storage::CannedAcl;
use s3s::S3Result;
use s3s::access::{S3Access, S3AccessContext};
use s3s::path::S3Path;
use std::sync::Arc;

/// What an operation reads that may be public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Public {
    /// Nothing: the request has to be signed.
    No,
    /// An object that is `public-read`, or in a bucket that is.
    Object,
    /// A bucket that is `public-read`.
    Bucket,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) right: Right,
    pub(crate) public: Public,
    /// Parameters and headers beside those of every request, for the documentation.
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/s3.md has it"))]
    pub(crate) takes: &'static str,
}

const fn row(name: &'static str, right: Right, public: Public, takes: &'static str) -> Operation {
    Operation { name, right, public, takes }
}

/// All operations, by name.
pub(crate) const OPERATIONS: [Operation; 33] = {
    use Public::{Bucket, No, Object};
    use Right::{Any, Own, Read, Write};
    [
        row("AbortMultipartUpload", Write, No, "uploadId"),
        row(
            "CompleteMultipartUpload",
            Write,
            No,
            "uploadId; If-Match, If-None-Match, x-amz-checksum-*, x-amz-checksum-type, x-amz-mp-object-size",
        ),
        row(
            "CopyObject",
            Write,
            No,
            "x-amz-copy-source, x-amz-copy-source-if-*, x-amz-metadata-directive, x-amz-tagging-directive, and those of \
             PutObject",
        ),
        row("CreateBucket", Own, No, "x-amz-acl; LocationConstraint"),
        row(
            "CreateMultipartUpload",
            Write,
            No,
            "x-amz-checksum-algorithm, x-amz-checksum-type, and the metadata of PutObject",
        ),
        row("DeleteBucket", Own, No, ""),
        row("DeleteBucketCors", Own, No, ""),
        row("DeleteObject", Write, No, "If-Match"),
        row("DeleteObjectTagging", Write, No, ""),
        row("DeleteObjects", Write, No, "Quiet, ETag of each; at most 1,000 keys"),
        row("GetBucketAcl", Read, No, ""),
        row("GetBucketCors", Read, No, ""),
        row("GetBucketLocation", Read, No, ""),
        row("GetBucketVersioning", Read, No, ""),
        row(
            "GetObject",
            Read,
            Object,
            "Range, partNumber, If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since, response-*, \
             x-amz-checksum-mode",
        ),
        row("GetObjectAcl", Read, No, ""),
        row("GetObjectAttributes", Read, No, "x-amz-object-attributes, x-amz-max-parts, x-amz-part-number-marker"),
        row("GetObjectTagging", Read, No, ""),
        row("HeadBucket", Read, Bucket, ""),
        row("HeadObject", Read, Object, "as GetObject"),
        row("ListBuckets", Any, No, "prefix, max-buckets, continuation-token"),
        row(
            "ListMultipartUploads",
            Read,
            No,
            "prefix, delimiter, key-marker, upload-id-marker, max-uploads, encoding-type",
        ),
        row(
            "ListObjectVersions",
            Read,
            Bucket,
            "prefix, delimiter, key-marker, version-id-marker, max-keys, encoding-type",
        ),
        row("ListObjects", Read, Bucket, "prefix, delimiter, marker, max-keys, encoding-type"),
        row(
            "ListObjectsV2",
            Read,
            Bucket,
            "prefix, delimiter, start-after, continuation-token, max-keys, fetch-owner, encoding-type",
        ),
        row("ListParts", Read, No, "uploadId, part-number-marker, max-parts"),
        row("PutBucketAcl", Own, No, "x-amz-acl: private, public-read, or AccessControlPolicy with the grants of one"),
        row("PutBucketCors", Own, No, "at most 100 rules"),
        row(
            "PutObject",
            Write,
            No,
            "Content-MD5, x-amz-checksum-*, x-amz-meta-*, x-amz-tagging, x-amz-acl, x-amz-storage-class, \
             x-amz-website-redirect-location, Cache-Control, Content-Disposition, Content-Encoding, Content-Language, \
             Content-Type, Expires, If-Match, If-None-Match",
        ),
        row("PutObjectAcl", Write, No, "as PutBucketAcl"),
        row("PutObjectTagging", Write, No, "at most 10 tags"),
        row("UploadPart", Write, No, "partNumber, uploadId; Content-MD5, x-amz-checksum-*"),
        row(
            "UploadPartCopy",
            Write,
            No,
            "partNumber, uploadId; x-amz-copy-source, x-amz-copy-source-range, x-amz-copy-source-if-*",
        ),
    ]
};

/// Headers that ask for what the door does not do: it would be wrong to ignore them.
const REFUSED_HEADERS: [&str; 7] = [
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock",
    "x-amz-grant-",
    "x-amz-mfa",
    "x-amz-write-offset-bytes",
    "x-amz-expected-bucket-owner",
];

#[async_trait::async_trait]
impl S3Access for Service {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let name = context.s3_op().name();
        let index = OPERATIONS.iter().position(|operation| operation.name == name).ok_or(Refusal::new(
            "NotImplemented",
            "A header you provided implies functionality that is not implemented, or the operation is not.",
        ))?;
        let operation = OPERATIONS[index];
        if let Some(tally) = context.extensions_mut().get::<Arc<Tally>>() {
            tally.is_for(index);
        }
        refuse_headers(context)?;
        refuse_empty_source(context)?;
        let address = context.extensions_mut().get::<Arc<Address>>().cloned().ok_or_else(super::failed)?;
        refuse_versions(&address)?;
        let caller = context.extensions_mut().get::<Caller>().cloned().unwrap_or(Caller::Anonymous);
        let bucket = context.s3_path().get_bucket_name().unwrap_or("").to_owned();
        match caller.key() {
            Some(key) if key.allows(operation.right, &bucket) => Ok(()),
            Some(_) => Err(denied().into()),
            None => Ok(self.check_public(operation.public, &address, context).await?),
        }
    }
}

impl Service {
    async fn check_public(
        &self,
        public: Public,
        address: &Address,
        context: &S3AccessContext<'_>,
    ) -> Result<(), Refusal> {
        let (bucket, key) = match context.s3_path() {
            S3Path::Root => return Err(denied()),
            S3Path::Bucket { bucket } => (bucket.to_string(), None),
            S3Path::Object { bucket, key } => (bucket.to_string(), Some(key.to_string())),
        };
        if public == Public::No {
            return Err(denied());
        }
        if address.names().any(|name| name.starts_with("response-")) {
            let message = "Request specific response headers cannot be used for anonymous GET requests.";
            return Err(Refusal::new("InvalidRequest", message));
        }
        let acl = self.call(move |store| {
            let of_bucket = store.bucket(&bucket)?.settings.acl;
            let of_object = match key.filter(|_| public == Public::Object) {
                Some(key) => store.head(&bucket, &key).ok().and_then(|info| info.metadata.acl),
                None => None,
            };
            Ok(of_object.unwrap_or(of_bucket))
        });
        match acl.await {
            Ok(CannedAcl::PublicRead) => Ok(()),
            Ok(CannedAcl::Private) => Err(denied()),
            // A caller without a key learns whether a bucket exists, as from S3.
            Err(refusal) => Err(refusal),
        }
    }
}

pub(super) fn denied() -> Refusal {
    Refusal::new("AccessDenied", "Access Denied")
}

fn refuse_headers(context: &S3AccessContext<'_>) -> Result<(), Refusal> {
    let refused = context
        .headers()
        .keys()
        .map(|name| name.as_str())
        .find(|name| REFUSED_HEADERS.iter().any(|refused| name.starts_with(refused)));
    match refused {
        None => Ok(()),
        Some(name) => {
            Err(Refusal::new("NotImplemented", "A header you provided implies functionality that is not implemented.")
                .with("Header", name))
        }
    }
}

/// s3s takes an empty header for a missing one.
fn refuse_empty_source(context: &S3AccessContext<'_>) -> Result<(), Refusal> {
    match context.headers().get("x-amz-copy-source").is_some_and(|source| source.is_empty()) {
        false => Ok(()),
        true => Err(Refusal::new(
            "InvalidArgument",
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
        )
        .with("ArgumentName", "x-amz-copy-source")),
    }
}

/// Objects have no versions: the only one is `null`.
fn refuse_versions(address: &Address) -> Result<(), Refusal> {
    match address.values("versionId").all(|version| version == "null") {
        true => Ok(()),
        false => Err(Refusal::new("NoSuchVersion", "The bucket has no versions: the only one is null")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const BEGIN: &str = "<!-- begin: operations -->\n";
    const END: &str = "<!-- end: operations -->";

    fn table() -> String {
        let mut text = String::from("| operation | needs | without a key | takes |\n|---|---|---|---|\n");
        for Operation { name, right, public, takes } in OPERATIONS {
            let right = match right {
                Right::Any => "any key",
                Right::Read => "read",
                Right::Write => "write",
                Right::Own => "all buckets, write",
            };
            let public = match public {
                Public::No => "no",
                Public::Object => "if the object or its bucket is `public-read`",
                Public::Bucket => "if the bucket is `public-read`",
            };
            let takes = if takes.is_empty() { "-" } else { takes };
            writeln!(text, "| {name} | {right} | {public} | {takes} |").unwrap();
        }
        text
    }

    /// `HEKATE_BLESS=1` writes it.
    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/s3.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        let fresh = table();
        if std::env::var_os("HEKATE_BLESS").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{fresh}{END}{after}")).unwrap();
        } else {
            let fix = "HEKATE_BLESS=1 cargo test -p hekate-gateway-s3 the_table_of";
            assert!(written == fresh, "docs/s3.md has another table of operations; run: {fix}");
        }
    }

    #[test]
    fn the_table_is_in_the_order_of_names() {
        assert!(OPERATIONS.is_sorted_by(|a, b| a.name < b.name));
    }
}
