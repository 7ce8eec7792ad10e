//! What the fuzz targets call: signatures and aws-chunked bodies.

use crate::refusal::Refusal;
use crate::server::fuzzing::{Chunks, Claim, Head, Payload, test_signer};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// What a request in text says about its signature: the method, path and query, then headers, each on a line. `None` if
/// the text is no request. Also verifies it with a secret, at a time, which must refuse what was not made with it.
pub fn signature(text: &str, secret: &str) -> Option<Result<Option<String>, &'static str>> {
    let mut lines = text.split('\n');
    let (method, target) = lines.next()?.split_once(' ')?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value.trim()).ok()?);
    }
    let head = Head { method, path, query, headers: &headers };
    Some(outcome(&head, secret).map_err(|refusal| refusal.code))
}

/// The access key of a request whose signature is right.
fn outcome(head: &Head<'_>, secret: &str) -> Result<Option<String>, Refusal> {
    let Some(claim) = Claim::of(head)? else { return Ok(None) };
    let (payload, scope) = (claim.payload(), claim.check_scope("us-east-1"));
    let time = claim.check_time(1_369_353_600);
    claim.verify(head, secret)?;
    payload.and(scope.map(|()| Payload::Unsigned))?;
    time?;
    Ok(Some(claim.access_key))
}

/// A body decoded in pieces of `step` bytes: bytes and number of trailers, or the code of the refusal.
pub fn chunks(
    body: &[u8],
    is_signed: bool,
    has_trailers: bool,
    length: u64,
    step: usize,
) -> Result<(Vec<u8>, usize), &'static str> {
    let signer = is_signed.then(test_signer);
    let (mut chunks, mut decoded) = (Chunks::new(signer, has_trailers, length), Vec::new());
    for piece in body.chunks(step.max(1)) {
        for bytes in chunks.push(Bytes::copy_from_slice(piece)).map_err(|refusal| refusal.code)? {
            decoded.extend_from_slice(&bytes);
        }
    }
    let trailers = chunks.end().map_err(|refusal| refusal.code)?;
    Ok((decoded, trailers.len()))
}

/// A well-formed body of these chunks, signed by the key that [`chunks`] checks with.
pub fn encode(contents: &[&[u8]], is_signed: bool, trailers: &[(&str, &str)]) -> Vec<u8> {
    let mut signer = test_signer();
    let mut body = Vec::new();
    let all = contents.iter().copied().filter(|content| !content.is_empty()).chain([&b""[..]]);
    for content in all {
        let signature = match is_signed {
            true => format!(";chunk-signature={}", signer.sign_chunk(content)),
            false => String::new(),
        };
        body.extend_from_slice(format!("{:x}{signature}\r\n", content.len()).as_bytes());
        body.extend_from_slice(content);
        if !content.is_empty() {
            body.extend_from_slice(b"\r\n");
        }
    }
    for (name, value) in trailers {
        body.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
    }
    if is_signed && !trailers.is_empty() {
        let canonical: String = trailers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        body.extend_from_slice(format!("x-amz-trailer-signature:{}\r\n", signer.sign_trailers(&canonical)).as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    body
}
