//! Why a request was refused, as S3 says it: a code, a status and a sentence.

use crate::server::{decode, encode};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use s3s::{S3Error, S3ErrorCode};
use std::borrow::Cow;

/// Carries the details of a refusal through s3s, whose errors have none. It is taken off before the answer is sent.
const DETAILS: &str = "x-hekate-error-details";

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One of S3's codes.
    pub code: &'static str,
    pub message: Cow<'static, str>,
    /// Elements of the answer beside code and message: name and text.
    pub details: Vec<(&'static str, String)>,
}

impl Refusal {
    pub fn new(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.details.push((name, text.into()));
        self
    }

    /// The HTTP status of the code.
    pub fn status(&self) -> u16 {
        match self.code {
            "AccessForbidden" => 403,
            "InsufficientStorage" => 507,
            "InvalidPartNumber" => 416,
            "BadRequest" | "MalformedTrailerError" | "XAmzContentSHA256Mismatch" => 400,
            code => S3ErrorCode::from_bytes(code.as_bytes())
                .and_then(|code| code.status_code())
                .map_or(500, |status| status.as_u16()),
        }
    }

    /// The answer's body.
    pub(crate) fn to_xml(&self) -> String {
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error>");
        element(&mut text, "Code", self.code);
        element(&mut text, "Message", &self.message);
        for (name, value) in &self.details {
            element(&mut text, name, value);
        }
        text.push_str("</Error>");
        text
    }
}

impl From<Refusal> for S3Error {
    fn from(refusal: Refusal) -> Self {
        let status = refusal.status();
        let code = S3ErrorCode::from_bytes(refusal.code.as_bytes()).unwrap_or(S3ErrorCode::Custom(refusal.code.into()));
        let mut error = S3Error::with_message(code, refusal.message);
        if let Ok(status) = hyper::StatusCode::from_u16(status) {
            error.set_status_code(status);
        }
        if !refusal.details.is_empty() {
            let text = |(name, text): &(&str, String)| format!("{name}={}", encode(text.as_bytes(), false));
            let all: Vec<String> = refusal.details.iter().map(text).collect();
            // An encoded text is always a value of a header.
            error.set_headers(HeaderValue::try_from(all.join("&")).into_iter().map(|all| (details(), all)).collect());
        }
        error
    }
}

fn details() -> hyper::header::HeaderName {
    hyper::header::HeaderName::from_static(DETAILS)
}

/// Takes the details of a refusal that has passed through s3s.
pub(crate) fn take_details(headers: &mut HeaderMap) -> Vec<(String, String)> {
    let Some(value) = headers.remove(DETAILS) else { return Vec::new() };
    let items = value.to_str().unwrap_or("").split('&').filter_map(|item| item.split_once('='));
    let text = |text: &str| String::from_utf8_lossy(&decode(text.as_bytes())).into_owned();
    items.map(|(name, value)| (name.to_owned(), text(value))).collect()
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

/// Appends an element with text.
pub(crate) fn element(xml: &mut String, name: &str, text: &str) {
    xml.push('<');
    xml.push_str(name);
    xml.push('>');
    for char in text.chars() {
        match char {
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '&' => xml.push_str("&amp;"),
            '"' => xml.push_str("&quot;"),
            char if needs_reference(char) => xml.push_str(&format!("&#x{:X};", u32::from(char))),
            char => xml.push(char),
        }
    }
    xml.push_str("</");
    xml.push_str(name);
    xml.push('>');
}

/// True for characters that XML does not allow as they are, or that a parser changes (a carriage return). S3 writes
/// them as references, which lenient parsers read; clients that expect such keys ask for `encoding-type=url`.
fn needs_reference(char: char) -> bool {
    matches!(char, '\0'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}')
}

/// A body of XML in which such characters are references. The serializer writes none itself, so each is from a key.
pub(crate) fn with_references(xml: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&xml) else { return xml };
    if !text.contains(needs_reference) {
        return xml;
    }
    let mut referenced = String::with_capacity(text.len() + 64);
    for char in text.chars() {
        match needs_reference(char) {
            true => referenced.push_str(&format!("&#x{:X};", u32::from(char))),
            false => referenced.push(char),
        }
    }
    referenced.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let refusal = Refusal::new("AccessDenied", "a<b>&\"c\"").with("Resource", "/b/\u{1}\r");
        assert_eq!(refusal.status(), 403);
        assert_eq!(
            refusal.to_xml(),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied</Code>\
             <Message>a&lt;b&gt;&amp;&quot;c&quot;</Message><Resource>/b/&#x1;&#xD;</Resource></Error>"
        );
    }

    #[test]
    fn details_pass_through_an_error_of_s3s() {
        let refusal = Refusal::new("NoSuchKey", "x").with("Key", "a&b=ü\n").with("Resource", "/b/a");
        let mut headers = S3Error::from(refusal).headers().unwrap().clone();
        let details = [("Key".to_owned(), "a&b=ü\n".to_owned()), ("Resource".to_owned(), "/b/a".to_owned())];
        assert_eq!(take_details(&mut headers), details);
        assert!(headers.is_empty() && take_details(&mut headers).is_empty());
        assert!(S3Error::from(Refusal::new("NoSuchKey", "x")).headers().is_none());
    }

    #[test]
    fn control_characters_become_references() {
        assert_eq!(with_references(Bytes::from_static(b"<Key>a\x01\n</Key>")), "<Key>a&#x1;&#xA;</Key>");
        assert_eq!(with_references(Bytes::from_static("<Key>é</Key>".as_bytes())), "<Key>é</Key>");
    }
}
