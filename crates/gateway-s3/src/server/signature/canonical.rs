//! The canonical form of a request, which is what is signed.

use crate::refusal::Refusal;
use hyper::HeaderMap;

/// What of a request is signed.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub method: &'a str,
    /// As it was sent.
    pub path: &'a str,
    /// As it was sent, without the question mark.
    pub query: &'a str,
    pub headers: &'a HeaderMap,
}

impl Head<'_> {
    /// The parameters of the query, decoded.
    pub(super) fn parameters(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.query.split('&').filter(|item| !item.is_empty()).map(|item| {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            (decode_parameter(name), decode_parameter(value))
        })
    }

    /// The value of a parameter that is there once.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut found = self.parameters().filter(|(found, _)| found == name.as_bytes());
        let (_, value) = found.next()?;
        match found.next() {
            None => String::from_utf8(value).ok(),
            Some(_) => None,
        }
    }

    /// The value of a header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// # Errors
/// `AccessDenied` if a header that begins with `x-amz-` was not signed. The payload's hash is signed by its value.
pub(super) fn check_signed_headers(head: &Head<'_>, signed: &[String]) -> Result<(), Refusal> {
    let is_free = |name: &str| !name.starts_with("x-amz-") || name == "x-amz-content-sha256";
    let unsigned: Vec<&str> = head
        .headers
        .keys()
        .map(|name| name.as_str())
        .filter(|name| !is_free(name) && !signed.iter().any(|signed| signed == name))
        .collect();
    match unsigned.is_empty() {
        true => Ok(()),
        false => Err(Refusal::new("AccessDenied", "There were headers present in the request which were not signed")
            .with("HeadersNotSigned", unsigned.join(", "))),
    }
}

/// The canonical request: with the path encoded anew, and as it was sent if that is different, because some clients
/// sign what they send.
pub(super) fn requests(head: &Head<'_>, signed_headers: &[String], payload: &str) -> Vec<Vec<u8>> {
    let anew = encode(&decode(head.path.as_bytes()), true);
    let mut paths = vec![anew];
    if paths[0] != head.path {
        paths.push(head.path.to_owned());
    }
    paths.iter().map(|path| request(head, path, signed_headers, payload)).collect()
}

fn request(head: &Head<'_>, path: &str, signed_headers: &[String], payload: &str) -> Vec<u8> {
    let mut text = format!("{}\n{path}\n{}\n", head.method, query(head)).into_bytes();
    for name in signed_headers {
        text.extend_from_slice(name.as_bytes());
        text.push(b':');
        text.extend_from_slice(&header(head.headers, name));
        text.push(b'\n');
    }
    text.push(b'\n');
    text.extend_from_slice(signed_headers.join(";").as_bytes());
    text.push(b'\n');
    text.extend_from_slice(payload.as_bytes());
    text
}

/// The parameters, without the signature itself, in the order of their encoded names and values.
fn query(head: &Head<'_>) -> String {
    let mut items: Vec<(String, String)> = head
        .parameters()
        .filter(|(name, _)| name != b"X-Amz-Signature")
        .map(|(name, value)| (encode(&name, false), encode(&value, false)))
        .collect();
    items.sort();
    let items: Vec<String> = items.iter().map(|(name, value)| format!("{name}={value}")).collect();
    items.join("&")
}

/// All values of a header, without spaces around them, and with one for several within them.
fn header(headers: &HeaderMap, name: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for (i, value) in headers.get_all(name).iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        let words = value.as_bytes().split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        for (j, word) in words.enumerate() {
            if j > 0 {
                text.push(b' ');
            }
            text.extend_from_slice(word);
        }
    }
    text
}

/// Every byte but letters, digits, `-`, `.`, `_` and `~` as `%XX`; a slash too, unless it is a path.
pub(crate) fn encode(bytes: &[u8], is_path: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte as char),
            b'/' if is_path => text.push('/'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Replaces `%XX`; a percent sign that begins no such triple stays.
pub(crate) fn decode(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    bytes
}

/// As [`decode`]; a plus sign is a space.
pub(crate) fn decode_parameter(text: &str) -> Vec<u8> {
    decode(text.replace('+', " ").as_bytes())
}
