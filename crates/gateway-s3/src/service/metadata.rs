//! What a request says of an object beside its bytes.

use super::{acl, tags};
use crate::refusal::Refusal;
use crate::storage::Metadata;
use hyper::HeaderMap;
use std::collections::BTreeMap;

/// Most bytes of names and values of user metadata together.
const USER_MAX: usize = 2048;
/// Classes that an object may have. All are stored alike; those whose objects have to be restored before a read are
/// not among them.
const CLASSES: [&str; 6] =
    ["STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"];

/// A header that the front renames, because s3s would refuse a value that is no date.
pub(crate) const EXPIRES: &str = "x-hekate-expires";

/// Reads the metadata of the headers of a request.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidStorageClass`, and those of tags and ACLs.
pub(super) fn of(headers: &HeaderMap, user: Option<s3s::dto::Metadata>) -> Result<Metadata, Refusal> {
    let text = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let user: BTreeMap<String, String> = user.unwrap_or_default().into_iter().collect();
    if user.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > USER_MAX {
        let message = "Your metadata headers exceed the maximum allowed metadata size";
        return Err(Refusal::new("MetadataTooLarge", message).with("MaxSizeAllowed", USER_MAX.to_string()));
    }
    Ok(Metadata {
        content_type: text("content-type").filter(|text| !text.is_empty()),
        content_encoding: text("content-encoding"),
        content_language: text("content-language"),
        content_disposition: text("content-disposition"),
        cache_control: text("cache-control"),
        expires: text(EXPIRES),
        website_redirect: text("x-amz-website-redirect-location"),
        storage_class: storage_class(text("x-amz-storage-class"))?,
        acl: acl::of(text("x-amz-acl").as_deref())?,
        user,
        tags: tags::of_header(text("x-amz-tagging").as_deref().unwrap_or(""))?,
        ..Metadata::default()
    })
}

/// `None` for the usual class.
fn storage_class(class: Option<String>) -> Result<Option<String>, Refusal> {
    match class.filter(|class| class != "STANDARD") {
        Some(class) if !CLASSES.contains(&class.as_str()) => {
            Err(Refusal::new("InvalidStorageClass", "The storage class you specified is not valid"))
        }
        class => Ok(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::headers_for_tests as headers;

    #[test]
    fn headers_are_kept_as_they_are() {
        let metadata = of(
            &headers(&[
                ("content-type", "text/plain; charset=x"),
                (EXPIRES, "soon"),
                ("x-amz-storage-class", "STANDARD_IA"),
                ("x-amz-tagging", ""),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(metadata.content_type.as_deref(), Some("text/plain; charset=x"));
        assert_eq!(metadata.expires.as_deref(), Some("soon"));
        assert_eq!(metadata.storage_class.as_deref(), Some("STANDARD_IA"));
        assert!(metadata.tags.is_empty());
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let refused = |name: &str, value: &str| of(&headers(&[(name, value)]), None).unwrap_err().code;
        assert_eq!(refused("x-amz-storage-class", "GLACIER"), "InvalidStorageClass");
        assert_eq!(refused("x-amz-acl", "public-read-write"), "NotImplemented");
        let user = |length: usize| Some([("k".to_owned(), "v".repeat(length))].into_iter().collect());
        assert!(of(&headers(&[]), user(USER_MAX - 1)).is_ok());
        assert_eq!(of(&headers(&[]), user(USER_MAX)).unwrap_err().code, "MetadataTooLarge");
    }
}
