//! Tags of objects.

use super::{Answer, Service};
use crate::refusal::Refusal;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// Most tags of an object, and most characters of their names and values.
const TAGS_MAX: usize = 10;
const NAME_MAX: usize = 128;
const VALUE_MAX: usize = 256;

/// Reads `x-amz-tagging`. Empty: no tags.
///
/// # Errors
/// `InvalidArgument` if it is not encoded like a query; those of [`check`].
pub(super) fn of_header(text: &str) -> Result<Vec<(String, String)>, Refusal> {
    let decoded = |text: &str| {
        let bytes = crate::server::decode(text.replace('+', " ").as_bytes());
        String::from_utf8(bytes).map_err(|_| {
            Refusal::new(
                "InvalidArgument",
                "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag \
                 name duplicates.",
            )
        })
    };
    let items = text.split('&').filter(|item| !item.is_empty()).map(|item| {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        Ok((decoded(name)?, decoded(value)?))
    });
    let tags = items.collect::<Result<Vec<_>, Refusal>>()?;
    check(&tags)?;
    Ok(tags)
}

/// # Errors
/// `BadRequest` if there are too many, `InvalidTag` if one is too long or there twice.
fn check(tags: &[(String, String)]) -> Result<(), Refusal> {
    if tags.len() > TAGS_MAX {
        return Err(Refusal::new("BadRequest", "Object tags cannot be greater than 10"));
    }
    for (i, (name, value)) in tags.iter().enumerate() {
        if name.is_empty() || name.chars().count() > NAME_MAX {
            return Err(Refusal::new("InvalidTag", "The TagKey you have provided is invalid"));
        }
        if value.chars().count() > VALUE_MAX {
            return Err(Refusal::new("InvalidTag", "The TagValue you have provided is invalid"));
        }
        if tags[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(Refusal::new("InvalidTag", "Cannot provide multiple Tags with the same key"));
        }
    }
    Ok(())
}

pub(super) async fn get(
    service: &Service,
    request: S3Request<GetObjectTaggingInput>,
) -> Answer<GetObjectTaggingOutput> {
    let GetObjectTaggingInput { bucket, key, .. } = request.input;
    let info = service.call(move |store| Ok(store.head(&bucket, &key)?)).await?;
    let tag = |(name, value)| Tag { key: Some(name), value: Some(value) };
    let tag_set = info.metadata.tags.into_iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, ..Default::default() }))
}

pub(super) async fn put(
    service: &Service,
    request: S3Request<PutObjectTaggingInput>,
) -> Answer<PutObjectTaggingOutput> {
    let PutObjectTaggingInput { bucket, key, tagging, .. } = request.input;
    let pair = |tag: Tag| match (tag.key, tag.value) {
        (Some(key), Some(value)) => Ok((key, value)),
        _ => Err(Refusal::new("MalformedXML", "A tag has no Key or no Value")),
    };
    let tags = tagging.tag_set.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    check(&tags)?;
    service.call(move |store| Ok(store.set_tags(&bucket, &key, tags)?)).await?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(super) async fn delete(
    service: &Service,
    request: S3Request<DeleteObjectTaggingInput>,
) -> Answer<DeleteObjectTaggingOutput> {
    let DeleteObjectTaggingInput { bucket, key, .. } = request.input;
    service.call(move |store| Ok(store.set_tags(&bucket, &key, Vec::new())?)).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_a_query() {
        let tags = of_header("a=1&b%20c=d%26+e&empty").unwrap();
        let expected = [("a", "1"), ("b c", "d& e"), ("empty", "")];
        assert_eq!(tags, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(of_header("").unwrap().is_empty());
    }

    #[test]
    fn tags_have_limits() {
        let many: Vec<String> = (0..=TAGS_MAX).map(|i| format!("t{i}=x")).collect();
        let cases = [
            (many.join("&"), "BadRequest"),
            ("a=1&a=2".into(), "InvalidTag"),
            ("=1".into(), "InvalidTag"),
            (format!("{}=1", "n".repeat(NAME_MAX + 1)), "InvalidTag"),
            (format!("n={}", "v".repeat(VALUE_MAX + 1)), "InvalidTag"),
            ("a=%FF".into(), "InvalidArgument"),
        ];
        for (text, code) in cases {
            assert_eq!(of_header(&text).unwrap_err().code, code, "{text}");
        }
    }
}
