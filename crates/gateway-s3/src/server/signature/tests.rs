//! The examples of Amazon's documentation ("Signature Calculations for the Authorization Header" and "Authenticating
//! Requests: Using Query Parameters"), and what must not pass.

use super::*;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// 2013-05-24T00:00:00Z.
const THEN: i64 = 1_369_353_600;

pub(crate) fn headers(of: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in of {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn authorization(signed: &str, signature: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
         SignedHeaders={signed},Signature={signature}"
    )
}

fn outcome(head: &Head<'_>, secret: &str, now: i64) -> Result<(), Refusal> {
    let claim = Claim::of(head)?.unwrap();
    claim.check_scope("us-east-1")?;
    claim.check_time(now)?;
    claim.verify(head, secret).map(|_| ())
}

fn code(head: &Head<'_>) -> &'static str {
    outcome(head, SECRET, THEN).unwrap_err().code
}

const GET_SIGNATURE: &str = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
const GET_SIGNED: &str = "host;range;x-amz-content-sha256;x-amz-date";

/// The example "GET Object", with changes.
fn get_with(changes: &[(&str, Option<&str>)]) -> HeaderMap {
    let mut all = headers(&[
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
        ("authorization", &authorization(GET_SIGNED, GET_SIGNATURE)),
    ]);
    for (name, value) in changes {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        match value {
            Some(value) => drop(all.insert(name, HeaderValue::from_str(value).unwrap())),
            None => drop(all.remove(name)),
        }
    }
    all
}

fn get(headers: &HeaderMap) -> Head<'_> {
    Head { method: "GET", path: "/test.txt", query: "", headers }
}

#[test]
fn amazons_example_of_get_object_verifies() {
    let headers = get_with(&[]);
    outcome(&get(&headers), SECRET, THEN).unwrap();
    assert_eq!(Claim::of(&get(&headers)).unwrap().unwrap().payload().unwrap(), Payload::Hash(unhex(EMPTY).unwrap()));
}

#[test]
fn amazons_example_of_put_object_verifies() {
    let headers = headers(&[
        ("host", "examplebucket.s3.amazonaws.com"),
        ("date", "Fri, 24 May 2013 00:00:00 GMT"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
        (
            "authorization",
            &authorization(
                "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
        ),
    ]);
    for path in ["/test%24file.text", "/test$file.text"] {
        outcome(&Head { method: "PUT", path, query: "", headers: &headers }, SECRET, THEN).unwrap();
    }
}

#[test]
fn amazons_examples_with_queries_verify() {
    let examples = [
        ("lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("prefix=J&max-keys=2", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ];
    for (query, signature) in examples {
        let authorization = authorization("host;x-amz-content-sha256;x-amz-date", signature);
        let headers = get_with(&[("range", None), ("authorization", Some(&authorization))]);
        outcome(&Head { method: "GET", path: "/", query, headers: &headers }, SECRET, THEN).unwrap();
    }
}

const PRESIGNED: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1\
    %2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=\
    aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

fn presigned(query: &str, now: i64) -> Result<(), Refusal> {
    let headers = headers(&[("host", "examplebucket.s3.amazonaws.com")]);
    outcome(&Head { method: "GET", path: "/test.txt", query, headers: &headers }, SECRET, now)
}

#[test]
fn amazons_presigned_url_verifies_until_it_expires() {
    presigned(PRESIGNED, THEN).unwrap();
    presigned(PRESIGNED, THEN + 86_400).unwrap();
    presigned(PRESIGNED, THEN - SKEW_MAX).unwrap();
    assert_eq!(presigned(PRESIGNED, THEN + 86_401).unwrap_err().code, "AccessDenied");
    assert_eq!(presigned(PRESIGNED, THEN - SKEW_MAX - 1).unwrap_err().code, "AccessDenied");
}

#[test]
fn a_changed_presigned_url_is_refused() {
    let changes = [
        ("86400", "604801", "AuthorizationQueryParametersError"),
        ("86400", "-1", "AuthorizationQueryParametersError"),
        ("86400", "604800", "SignatureDoesNotMatch"),
        ("86400", "day", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=86400&", "", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=86400&X-Amz-Expires=86400", "AuthorizationQueryParametersError"),
        ("X-Amz-Date=2013", "X-Amz-Date=201x", "AuthorizationQueryParametersError"),
        ("us-east-1", "eu-west-1", "AuthorizationQueryParametersError"),
        ("%2Fs3%2F", "%2Fiam%2F", "AuthorizationQueryParametersError"),
        ("SignedHeaders=host", "SignedHeaders=range", "AuthorizationQueryParametersError"),
        ("HMAC-SHA256", "HMAC-SHA512", "AuthorizationQueryParametersError"),
        ("aeeed9", "aeeed8", "SignatureDoesNotMatch"),
        ("aeeed9", "", "SignatureDoesNotMatch"),
        ("X-Amz-Algorithm", "response-content-type=text%2Fhtml&X-Amz-Algorithm", "SignatureDoesNotMatch"),
        ("X-Amz-Algorithm", "Signature=x&X-Amz-Algorithm", "InvalidArgument"),
        ("X-Amz-Algorithm", "X-Amz-Security-Token=x&X-Amz-Algorithm", "InvalidToken"),
    ];
    for (from, to, code) in changes {
        assert!(PRESIGNED.contains(from), "{from}");
        let refusal = presigned(&PRESIGNED.replace(from, to), THEN).unwrap_err();
        assert_eq!(refusal.code, code, "{from} -> {to}: {refusal}");
    }
}

#[test]
fn anything_changed_after_signing_is_refused() {
    let changes: [(&str, &str); 3] = [
        ("range", "bytes=0-99"),
        ("host", "otherbucket.s3.amazonaws.com"),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ];
    for (name, value) in changes {
        assert_eq!(code(&get(&get_with(&[(name, Some(value))]))), "SignatureDoesNotMatch", "{name}");
    }
    let headers = get_with(&[]);
    for head in [
        Head { method: "DELETE", ..get(&headers) },
        Head { path: "/other.txt", ..get(&headers) },
        Head { query: "acl", ..get(&headers) },
    ] {
        assert_eq!(code(&head), "SignatureDoesNotMatch");
    }
    assert_eq!(outcome(&get(&headers), "another secret", THEN).unwrap_err().code, "SignatureDoesNotMatch");
    assert_eq!(code(&get(&get_with(&[("x-amz-copy-source", Some("/b/k"))]))), "AccessDenied");
}

#[test]
fn spaces_within_a_header_count_as_one() {
    let headers = get_with(&[("range", Some("  bytes=0-9  "))]);
    outcome(&get(&headers), SECRET, THEN).unwrap();
    assert_eq!(
        canonical::requests(&get(&get_with(&[("range", Some("a   b"))])), &["range".into()], "")[0],
        b"GET\n/test.txt\n\nrange:a b\n\nrange\n"
    );
}

#[test]
fn clocks_may_differ_by_a_quarter_of_an_hour() {
    let headers = get_with(&[]);
    for (now, ok) in [(SKEW_MAX, true), (-SKEW_MAX, true), (SKEW_MAX + 1, false), (-SKEW_MAX - 1, false)] {
        let outcome = outcome(&get(&headers), SECRET, THEN + now);
        assert_eq!(outcome.map_err(|refusal| refusal.code), if ok { Ok(()) } else { Err("RequestTimeTooSkewed") });
    }
}

#[test]
fn a_malformed_header_says_so() {
    let malformed = "AuthorizationHeaderMalformed";
    let good = authorization(GET_SIGNED, GET_SIGNATURE);
    let cases = [
        ("AWS AKIAIOSFODNN7EXAMPLE:signature".to_owned(), "InvalidRequest"),
        ("AWS4-ECDSA-P256-SHA256 Credential=x".to_owned(), "InvalidRequest"),
        ("Basic dTpw".to_owned(), "InvalidArgument"),
        ("AWS4-HMAC-SHA256".to_owned(), malformed),
        (good.replace("Signature=", "Sig="), malformed),
        (good.replace("SignedHeaders=", "Signed="), malformed),
        (good.replace("Credential=", "Cred="), malformed),
        (good.replace("/aws4_request", ""), malformed),
        (good.replace("20130524", "2013052"), malformed),
        (good.replace("20130524", "20130525"), malformed),
        (good.replace("us-east-1", "us-west-2"), malformed),
        (good.replace("/s3/", "/iam/"), malformed),
        (good.replace("host;", ""), malformed),
        (good.replace("host;", ";"), malformed),
        (good.replace(GET_SIGNATURE, "f0"), "SignatureDoesNotMatch"),
        (good.replace(GET_SIGNATURE, &GET_SIGNATURE.to_uppercase()), "SignatureDoesNotMatch"),
    ];
    for (authorization, expected) in cases {
        let headers = get_with(&[("authorization", Some(&authorization))]);
        assert_eq!(code(&get(&headers)), expected, "{authorization}");
    }
}

#[test]
fn dates_and_hashes_are_demanded() {
    for (name, value, expected) in [
        ("x-amz-date", None, "AccessDenied"),
        ("x-amz-date", Some("yesterday"), "AccessDenied"),
        ("x-amz-date", Some("20131324T000000Z"), "AccessDenied"),
        ("x-amz-content-sha256", None, "InvalidRequest"),
        ("x-amz-security-token", Some("t"), "InvalidToken"),
    ] {
        assert_eq!(code(&get(&get_with(&[(name, value)]))), expected, "{name}");
    }
    assert_eq!(Payload::parse("0123").unwrap_err().code, "InvalidArgument");
    assert_eq!(Payload::parse("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD").unwrap_err().code, "NotImplemented");
}

#[test]
fn the_date_header_does_if_there_is_no_other() {
    let headers = get_with(&[("x-amz-date", None), ("date", Some("Fri, 24 May 2013 00:00:00 GMT"))]);
    let claim = Claim::of(&get(&headers)).unwrap().unwrap();
    assert_eq!((claim.date.as_str(), claim.time), ("20130524T000000Z", THEN));
}

#[test]
fn a_request_without_a_signature_is_anonymous() {
    let headers = get_with(&[("authorization", None)]);
    assert_eq!(Claim::of(&get(&headers)).unwrap(), None);
}

/// A body in signed chunks with what it is made of.
pub(crate) struct AmazonsChunks {
    pub(crate) signer: ChunkSigner,
    pub(crate) body: Vec<u8>,
    pub(crate) content: Vec<u8>,
}

/// The example of a body in three chunks: 64 KiB, 1 KiB and nothing, with a trailer or without.
pub(crate) fn amazons_chunks(has_trailers: bool) -> AmazonsChunks {
    let (signed, seed, payload, signatures) = match has_trailers {
        false => (
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
             x-amz-storage-class",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            [
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ],
        ),
        true => (
            "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;\
             x-amz-trailer",
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ],
        ),
    };
    let mut of = vec![
        ("host", "s3.amazonaws.com"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("x-amz-content-sha256", payload),
        ("content-encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
        ("content-length", "66824"),
    ];
    if has_trailers {
        of.push(("x-amz-trailer", "x-amz-checksum-crc32c"));
    }
    let authorization = authorization(signed, seed);
    of.push(("authorization", &authorization));
    let headers = headers(&of);
    let head = Head { method: "PUT", path: "/examplebucket/chunkObject.txt", query: "", headers: &headers };
    let claim = Claim::of(&head).unwrap().unwrap();
    assert_eq!(claim.payload().unwrap(), Payload::Chunked { signed: true, trailers: has_trailers });
    let signer = claim.verify(&head, SECRET).unwrap();
    let mut body = Vec::new();
    for (length, signature) in [65_536, 1024, 0].into_iter().zip(signatures) {
        body.extend_from_slice(format!("{length:x};chunk-signature={signature}\r\n").as_bytes());
        body.extend_from_slice(&vec![b'a'; length]);
        if length > 0 || !has_trailers {
            body.extend_from_slice(b"\r\n");
        }
    }
    if has_trailers {
        let signature = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435";
        let trailers = format!("x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{signature}\r\n\r\n");
        body.extend_from_slice(trailers.as_bytes());
    }
    AmazonsChunks { signer, body, content: vec![b'a'; 66_560] }
}
