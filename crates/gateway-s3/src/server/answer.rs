//! Answers: errors in XML, what every answer has, and the body on its way to the socket.

use super::counters::Tally;
use crate::refusal::{Refusal, element, take_details, with_references};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// The body of an answer. The request counts as being answered until it is dropped.
pub(super) struct AnswerBody {
    body: s3s::Body,
    tally: Arc<Tally>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AnswerBody {
    pub(super) fn new(body: s3s::Body, tally: Arc<Tally>, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { body, tally, _permit: permit }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.tally.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        Body::size_hint(&self.body)
    }
}

/// The answer to a request that was refused.
pub(super) fn refused(refusal: &Refusal) -> Response<s3s::Body> {
    let mut response = Response::new(s3s::Body::from(refusal.to_xml()));
    *response.status_mut() = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// What a request was for. An error names it, unless it is about something else.
#[derive(Debug, Clone, Default)]
pub(super) struct Subject {
    /// The path as it was sent.
    pub(super) resource: String,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) request_id: String,
}

/// Makes XML well formed, and completes that of errors.
pub(super) fn complete(response: &mut Response<s3s::Body>, subject: &Subject) {
    let details = take_details(response.headers_mut());
    let is_xml = response.headers().get(CONTENT_TYPE).is_some_and(|value| value == "application/xml");
    if response.status() == StatusCode::NOT_MODIFIED || response.status() == StatusCode::NO_CONTENT {
        *response.body_mut() = s3s::Body::empty();
        response.headers_mut().remove(CONTENT_LENGTH);
        return;
    }
    // s3s sends an error that has headers without the type of its body.
    let is_error = !response.status().is_success();
    let is_xml = |bytes: &Bytes| is_xml || is_error && bytes.starts_with(b"<?xml");
    let Some(bytes) = response.body().bytes().filter(is_xml) else { return };
    let mut bytes = with_references(bytes);
    if is_error {
        bytes = complete_error(bytes, &details, subject);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    }
    if response.headers().contains_key(CONTENT_LENGTH) {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    }
    *response.body_mut() = s3s::Body::from(bytes);
}

/// Takes the quotes from the ETags of an answer's XML: GetObjectAttributes has none.
pub(super) fn unquote_etags(response: &mut Response<s3s::Body>) {
    let Some(text) = response.body().bytes().and_then(|bytes| String::from_utf8(bytes.into()).ok()) else { return };
    let text = text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>");
    if response.headers().contains_key(CONTENT_LENGTH) {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    }
    *response.body_mut() = s3s::Body::from(text);
}

/// The code of an error.
pub(super) fn code_of(response: &Response<s3s::Body>) -> Option<String> {
    let bytes = response.body().bytes()?;
    code_in(std::str::from_utf8(&bytes).ok()?).map(str::to_owned)
}

fn code_in(xml: &str) -> Option<&str> {
    Some(xml.split_once("<Code>")?.1.split_once("</Code>")?.0)
}

/// `details`: elements that the error has beside those that are added here.
fn complete_error(bytes: Bytes, details: &[(String, String)], subject: &Subject) -> Bytes {
    let Ok(text) = std::str::from_utf8(&bytes) else { return bytes };
    let Some(text) = text.strip_suffix("</Error>") else { return bytes };
    let mut text = text.to_owned();
    let code = code_in(&text).unwrap_or_default().to_owned();
    if !text.contains("<Message>") {
        element(&mut text, "Message", &in_words(&code));
    }
    for (name, value) in details {
        element(&mut text, name, value);
    }
    let mut complete = |name: &str, value: &str| {
        if !details.iter().any(|(known, _)| known == name) {
            element(&mut text, name, value);
        }
    };
    match code.as_str() {
        "NoSuchKey" => complete("Key", &subject.key),
        "NoSuchBucket" | "InvalidBucketName" | "BucketAlreadyOwnedByYou" | "BucketNotEmpty" => {
            complete("BucketName", &subject.bucket);
        }
        _ => {}
    }
    complete("Resource", &subject.resource);
    complete("RequestId", &subject.request_id);
    text.push_str("</Error>");
    text.into()
}

/// `NoSuchKey` as `No such key`.
fn in_words(code: &str) -> String {
    let mut words = String::new();
    for char in code.chars() {
        match char.is_ascii_uppercase() && !words.is_empty() {
            true => words.extend([' ', char.to_ascii_lowercase()]),
            false => words.push(char),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_message_resource_and_id() {
        let subject =
            || Subject { resource: "/b/a&b".into(), bucket: "b".into(), key: "a&b".into(), request_id: "ID".into() };
        let mut response = refused(&Refusal::new("NoSuchKey", "no object has the key"));
        complete(&mut response, &subject());
        assert_eq!(response.status(), 404);
        let text = response.body().bytes().unwrap();
        assert_eq!(
            text,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>NoSuchKey</Code><Message>no object has the key\
             </Message><Key>a&amp;b</Key><Resource>/b/a&amp;b</Resource><RequestId>ID</RequestId></Error>"
        );
        let bare = complete_error(Bytes::from_static(b"<Error><Code>NoSuchKey</Code></Error>"), &[], &subject());
        assert!(std::str::from_utf8(&bare).unwrap().contains("<Message>No such key</Message>"));
        let details = [("Key".to_owned(), "other".to_owned()), ("Resource".to_owned(), "/c/other".to_owned())];
        let other = complete_error(Bytes::from_static(b"<Error><Code>NoSuchKey</Code></Error>"), &details, &subject());
        assert_eq!(
            other,
            "<Error><Code>NoSuchKey</Code><Message>No such key</Message><Key>other</Key><Resource>/c/other</Resource>\
             <RequestId>ID</RequestId></Error>"
        );
    }

    #[test]
    fn etags_lose_their_quotes() {
        let mut response = Response::new(s3s::Body::from("<ETag>\"ab-2\"</ETag><x>\"</x>".to_owned()));
        unquote_etags(&mut response);
        assert_eq!(response.body().bytes().unwrap(), "<ETag>ab-2</ETag><x>\"</x>");
    }

    #[test]
    fn an_answer_without_a_body_has_none() {
        let mut response = refused(&Refusal::new("NotModified", "x"));
        complete(&mut response, &Subject::default());
        assert_eq!((response.status().as_u16(), response.body().bytes().unwrap().len()), (304, 0));
    }
}
