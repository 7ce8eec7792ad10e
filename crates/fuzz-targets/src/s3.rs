//! Signatures and aws-chunked bodies that S3 clients send.

use crate::allocation::bounded;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
/// Memory that a decoder may take besides its input, in bytes.
const FIXED_BYTES: usize = 1 << 16;

pub fn signature(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let outcome = bounded(text.len(), FIXED_BYTES, || hekate_gateway_s3::fuzz::signature(text, SECRET));
    if let Some(Ok(Some(key))) = outcome {
        assert!(!key.is_empty(), "a request that verifies names its key");
        let other = hekate_gateway_s3::fuzz::signature(text, "another secret");
        assert!(!matches!(other, Some(Ok(_))), "a request that verifies with one secret verifies with no other");
    }
}

const HEADER: &str = "GET /test.txt
host:examplebucket.s3.amazonaws.com
range:bytes=0-9
x-amz-content-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
x-amz-date:20130524T000000Z
authorization:AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
const URL: &str = "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404
host:examplebucket.s3.amazonaws.com";
const OLD: &str = "GET /b/k?a=b
host:h
date:Fri, 24 May 2013 00:00:00 GMT
authorization:AWS key:c2lnbmF0dXJl";

pub fn signature_seeds() -> Vec<Vec<u8>> {
    [HEADER, URL, OLD].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// The first byte has flags, the second the length of the content, the third that of the pieces.
pub fn chunks(bytes: &[u8]) {
    let [flags, length, step, body @ ..] = bytes else { return };
    let (is_signed, has_trailers) = (flags & 1 != 0, flags & 2 != 0);
    let decode = |step| hekate_gateway_s3::fuzz::chunks(body, is_signed, has_trailers, u64::from(*length), step);
    let outcome = bounded(body.len(), FIXED_BYTES, || decode(usize::from(*step)));
    if let Ok((content, _)) = &outcome {
        assert_eq!(content.len(), usize::from(*length), "the content is as long as was announced");
    }
    // A refusal can come at another byte, but not at another cut.
    assert_eq!(outcome, decode(body.len()), "the cut of a body into pieces makes no difference");
}

pub fn chunks_seeds() -> Vec<Vec<u8>> {
    let contents: [&[&[u8]]; 3] = [&[], &[b"hello"], &[b"hello", b" ", b"world, in chunks"]];
    let trailers: [&[(&str, &str)]; 2] = [&[], &[("x-amz-checksum-crc32", "y/Q5Jg==")]];
    let mut seeds = Vec::new();
    for (content, trailers, is_signed) in contents
        .iter()
        .flat_map(|content| trailers.iter().map(move |trailers| (content, trailers)))
        .flat_map(|(content, trailers)| [(content, trailers, false), (content, trailers, true)])
    {
        let length: usize = content.iter().map(|bytes| bytes.len()).sum();
        let flags = u8::from(is_signed) | u8::from(!trailers.is_empty()) << 1;
        let body = hekate_gateway_s3::fuzz::encode(content, is_signed, trailers);
        seeds.push([&[flags, length as u8, 7][..], &body].concat());
    }
    seeds
}
