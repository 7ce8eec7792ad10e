//! A door over a real server in this process, by plain HTTP and by signed requests of a small client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

include!("../../client/tests/support/scratch.rs");
include!("support/keys.rs");
include!("support/client.rs");

use hekate_gateway_s3::TlsFiles;
use std::time::{Duration, Instant};

#[test]
fn a_door_answers_health_and_ids() {
    let door = TestDoor::new("health");
    let answer = door.plain("GET", "/-/health", &[], b"");
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"));
    assert_eq!(answer.header("x-amz-request-id").unwrap().len(), 16);
}

#[test]
fn an_unsigned_request_is_refused_and_says_what_for() {
    let door = TestDoor::new("unsigned");
    let answer = door.plain("GET", "/bucket/a%26b", &[], b"");
    assert_eq!(answer.code(), "NoSuchBucket");
    door.ok("PUT", "/bucket", b"");
    let answer = door.plain("GET", "/bucket/a%26b", &[], b"");
    assert_eq!((answer.status, answer.code().as_str()), (403, "AccessDenied"));
    let text = answer.text();
    assert!(text.contains("<Resource>/bucket/a%26b</Resource>"), "{text}");
    let id = answer.header("x-amz-request-id").unwrap();
    assert!(text.contains(&format!("<RequestId>{id}</RequestId>")), "{text}");
}

#[test]
fn objects_of_every_size_come_back() {
    let door = TestDoor::new("sizes");
    door.ok("PUT", "/bucket", b"");
    for size in [0, 1, 16_384, 16_385, 1_000_000, (1 << 20) + 1, (9 << 20) + 7] {
        let content = pattern(size);
        let put = door.ok("PUT", "/bucket/dir/object", &content);
        let got = door.ok("GET", "/bucket/dir/object", b"");
        assert!(got.body == content, "{size} bytes");
        assert_eq!(got.header("etag"), put.header("etag"));
        assert_eq!(got.header("content-length"), Some(size.to_string().as_str()));
        let head = door.ok("HEAD", "/bucket/dir/object", b"");
        assert_eq!((head.header("content-length"), head.body.len()), (Some(size.to_string().as_str()), 0));
    }
    assert_eq!(door.ok("DELETE", "/bucket/dir/object", b"").status, 204);
    assert_eq!(door.signed("GET", "/bucket/dir/object", &[], b"").code(), "NoSuchKey");
}

/// Without bytes there is no `100 Continue`, and a client may take the next answer on the connection for it.
#[test]
fn a_connection_ends_after_an_empty_body_that_was_announced() {
    let door = TestDoor::new("expect");
    door.ok("PUT", "/bucket", b"");
    let expect = [("expect", "100-continue")];
    let empty = door.signed("PUT", "/bucket/empty", &expect, b"");
    assert_eq!((empty.status, empty.header("connection")), (200, Some("close")));
    let refused = door.plain("PUT", "/bucket/empty", &[("expect", "100-continue"), ("content-length", "0")], b"");
    assert_eq!((refused.status, refused.header("connection")), (403, Some("close")));
}

#[test]
fn ranges_and_conditions_are_answered_as_s3_does() {
    let door = TestDoor::new("ranges");
    door.ok("PUT", "/bucket", b"");
    let content = pattern(100_000);
    let etag = door.ok("PUT", "/bucket/k", &content).header("etag").unwrap().to_owned();
    let get = |headers: &[(&str, &str)]| door.signed("GET", "/bucket/k", headers, b"");
    let part = get(&[("range", "bytes=10-19")]);
    assert_eq!((part.status, part.body.as_slice()), (206, &content[10..20]));
    assert_eq!(part.header("content-range"), Some("bytes 10-19/100000"));
    assert!(get(&[("range", "bytes=-5")]).body == content[99_995..]);
    assert!(get(&[("range", "bytes=99990-200000")]).body == content[99_990..]);
    let beyond = get(&[("range", "bytes=100000-")]);
    assert_eq!((beyond.status, beyond.code().as_str()), (416, "InvalidRange"));
    for ignored in ["bytes=5-2", "bytes=0-1,3-4", "lines=1-2"] {
        assert_eq!(get(&[("range", ignored)]).status, 200, "{ignored}");
    }
    let known = get(&[("if-none-match", &etag)]);
    assert_eq!((known.status, known.body.len(), known.header("etag")), (304, 0, Some(etag.as_str())));
    assert_eq!(get(&[("if-match", "\"other\"")]).code(), "PreconditionFailed");
    assert_eq!(get(&[("if-match", &etag)]).status, 200);
    let overridden = door.ok("GET", "/bucket/k?response-content-type=text%2Fx&response-cache-control=no-store", b"");
    assert_eq!(overridden.header("content-type"), Some("text/x"));
    assert_eq!(overridden.header("cache-control"), Some("no-store"));
}

#[test]
fn writes_can_be_conditional() {
    let door = TestDoor::new("conditional");
    door.ok("PUT", "/bucket", b"");
    let put = |headers: &[(&str, &str)], body: &[u8]| door.signed("PUT", "/bucket/k", headers, body);
    assert_eq!(put(&[("if-match", "\"x\"")], b"1").code(), "NoSuchKey");
    let first = put(&[("if-none-match", "*")], b"1");
    assert_eq!(first.status, 200);
    assert_eq!(put(&[("if-none-match", "*")], b"2").status, 412);
    assert_eq!(put(&[("if-match", "\"x\"")], b"2").status, 412);
    assert_eq!(put(&[("if-match", first.header("etag").unwrap())], b"3").status, 200);
    assert_eq!(door.ok("GET", "/bucket/k", b"").body, b"3");
    let delete = |etag: &str| door.signed("DELETE", "/bucket/k", &[("if-match", etag)], b"").status;
    assert_eq!((delete(first.header("etag").unwrap()), delete("*")), (412, 204));
}

#[test]
fn signatures_are_checked() {
    let door = TestDoor::new("signatures");
    door.ok("PUT", "/bucket", b"");
    let code = |signer: Signer, body: &[u8], sent: &[u8]| {
        let request = signer.sign("PUT", &door.host(), "/bucket/k", &[], body);
        door.send(&request, sent).code()
    };
    assert_eq!(code(Signer { secret: "wrong", ..Signer::full() }, b"a", b"a"), "SignatureDoesNotMatch");
    assert_eq!(code(Signer { id: "nobody", ..Signer::full() }, b"a", b"a"), "InvalidAccessKeyId");
    assert_eq!(code(Signer { region: "eu-west-1", ..Signer::full() }, b"a", b"a"), "AuthorizationHeaderMalformed");
    assert_eq!(code(Signer { skew: 16 * 60, ..Signer::full() }, b"a", b"a"), "RequestTimeTooSkewed");
    assert_eq!(code(Signer { skew: -16 * 60, ..Signer::full() }, b"a", b"a"), "RequestTimeTooSkewed");
    assert_eq!(code(Signer::full(), b"a", b"b"), "XAmzContentSHA256Mismatch");
    assert_eq!(door.signed("GET", "/bucket/k", &[], b"").code(), "NoSuchKey");
    let old = door.plain("GET", "/bucket/k", &[("authorization", "AWS full:c2lnbmF0dXJl")], b"");
    assert_eq!(old.code(), "InvalidRequest");
}

#[test]
fn keys_do_what_they_are_granted() {
    let door = TestDoor::new("grants");
    door.ok("PUT", "/limited", b"");
    door.ok("PUT", "/other", b"");
    door.ok("PUT", "/other/k", b"x");
    let status = |signer: Signer, method: &str, path: &str, headers: &[(&str, &str)]| {
        let request = signer.sign(method, &door.host(), path, headers, b"");
        door.send(&request, b"").status
    };
    assert_eq!(status(Signer::reader(), "GET", "/other/k", &[]), 200);
    assert_eq!(status(Signer::reader(), "PUT", "/other/k", &[]), 403);
    assert_eq!(status(Signer::reader(), "DELETE", "/other/k", &[]), 403);
    assert_eq!(status(Signer::reader(), "PUT", "/new", &[]), 403);
    assert_eq!(status(Signer::limited(), "PUT", "/limited/k", &[]), 200);
    assert_eq!(status(Signer::limited(), "GET", "/other/k", &[]), 403);
    assert_eq!(status(Signer::limited(), "PUT", "/new", &[]), 403);
    let copy = [("x-amz-copy-source", "/other/k")];
    assert_eq!(status(Signer::limited(), "PUT", "/limited/copy", &copy), 403);
    let request = Signer::limited().sign("GET", &door.host(), "/", &[], b"");
    let listed = door.send(&request, b"").text();
    assert!(listed.contains("<Name>limited</Name>") && !listed.contains("<Name>other</Name>"), "{listed}");
}

#[test]
fn public_objects_are_read_without_a_key() {
    let door = TestDoor::new("public");
    door.ok("PUT", "/bucket", b"");
    door.ok("PUT", "/bucket/private", b"x");
    assert_eq!(door.signed("PUT", "/bucket/public", &[("x-amz-acl", "public-read")], b"y").status, 200);
    let plain = |method: &str, path: &str| door.plain(method, path, &[], b"").status;
    assert_eq!((plain("GET", "/bucket/public"), plain("HEAD", "/bucket/public")), (200, 200));
    assert_eq!(
        (plain("GET", "/bucket/private"), plain("GET", "/bucket"), plain("PUT", "/bucket/public")),
        (403, 403, 403)
    );
    assert_eq!(door.signed("PUT", "/bucket?acl", &[("x-amz-acl", "public-read")], b"").status, 200);
    assert_eq!(
        (plain("GET", "/bucket"), plain("GET", "/bucket/private"), plain("GET", "/bucket?acl")),
        (200, 200, 403)
    );
}

/// A name of a parameter is compared decoded, whatever of it was sent encoded.
#[test]
fn a_parameter_is_the_same_with_an_encoded_name() {
    let door = TestDoor::new("parameters");
    assert_eq!(door.signed("PUT", "/bucket", &[("x-amz-acl", "public-read")], b"").status, 200);
    door.ok("PUT", "/bucket/k", b"x");
    let plain = |path: &str| door.plain("GET", path, &[], b"");
    assert_eq!(plain("/bucket/k?%72esponse-content-type=text%2Fx").code(), "InvalidRequest");
    assert_eq!(plain("/bucket/k?%76ersionId=1").code(), "NoSuchVersion");
    assert_eq!(plain("/bucket/k?%76ersionId=%6eull").status, 200);
    assert_eq!(plain("/bucket?prefix=response-").status, 200);
    let encoded = |method: &str, path: &str, (name, sent): (&str, &str), headers: &[(&str, &str)]| {
        let request = Signer::full().sign(method, &door.host(), path, headers, b"");
        door.send(&request.replacen(name, sent, 1), b"")
    };
    assert_eq!(encoded("GET", "/bucket/k?versionId=1", ("?v", "?%76"), &[]).code(), "NoSuchVersion");
    let acl = [("x-amz-acl", "private")];
    assert_eq!(encoded("PUT", "/bucket/k?acl", ("?a", "?%61"), &acl).status, 200);
    assert_eq!(door.ok("GET", "/bucket/k", b"").body, b"x");
    assert_eq!(plain("/bucket/k").code(), "AccessDenied");
}

#[test]
fn an_error_of_a_copy_names_what_it_is_about() {
    let door = TestDoor::new("copy-errors");
    door.ok("PUT", "/bucket", b"");
    let elements = |path: &str, source: &str| {
        let answer = door.signed("PUT", path, &[("x-amz-copy-source", source)], b"");
        let one = |name: &str| answer.elements(name).join(" and ");
        (one("Code"), one("Key"), one("BucketName"), one("Resource"))
    };
    let expected = |code: &str, key: &str, bucket: &str, resource: &str| {
        (code.to_owned(), key.to_owned(), bucket.to_owned(), resource.to_owned())
    };
    assert_eq!(elements("/bucket/to", "/bucket/a%26b"), expected("NoSuchKey", "a&amp;b", "", "/bucket/a%26b"));
    assert_eq!(elements("/bucket/to", "/absent/k"), expected("NoSuchBucket", "", "absent", "/absent"));
    door.ok("PUT", "/bucket/k", b"x");
    assert_eq!(elements("/absent/to", "/bucket/k"), expected("NoSuchBucket", "", "absent", "/absent/to"));
    let upload = door.ok("POST", "/bucket/to?uploads", b"").elements("UploadId").remove(0);
    let part = format!("/bucket/to?partNumber=1&uploadId={upload}");
    assert_eq!(elements(&part, "/bucket/none"), expected("NoSuchKey", "none", "", "/bucket/none"));
    let unknown = door.signed("GET", "/bucket?max-keys=-1", &[], b"");
    assert_eq!(unknown.elements("ArgumentName"), ["max-keys"]);
}

#[test]
fn listings_are_in_byte_order_and_in_pages() {
    let door = TestDoor::new("listing");
    door.ok("PUT", "/bucket", b"");
    for key in ["a", "a-b", "a/b", "a0", "b%20c%2B"] {
        door.ok("PUT", &format!("/bucket/{key}"), key.as_bytes());
    }
    let keys = |query: &str| door.ok("GET", &format!("/bucket?{query}"), b"").elements("Key");
    assert_eq!(keys("list-type=2"), ["a", "a-b", "a/b", "a0", "b c+"]);
    assert_eq!(keys("list-type=2&encoding-type=url"), ["a", "a-b", "a/b", "a0", "b%20c%2B"]);
    let page = door.ok("GET", "/bucket?list-type=2&delimiter=%2F&max-keys=3", b"");
    assert_eq!(
        (page.elements("Key"), page.elements("KeyCount")),
        (vec!["a".into(), "a-b".into()], vec!["3".to_owned()])
    );
    let token = page.elements("NextContinuationToken").remove(0);
    let rest = door.ok("GET", &format!("/bucket?continuation-token={token}&delimiter=%2F&list-type=2"), b"");
    assert_eq!(rest.elements("Key"), ["a0", "b c+"]);
    assert_eq!(keys("marker=a0"), ["b c+"]);
    let none = door.ok("GET", "/bucket?list-type=2&max-keys=0", b"");
    assert_eq!((none.elements("Key").len(), none.elements("IsTruncated")), (0, vec!["false".to_owned()]));
    assert_eq!(door.signed("GET", "/bucket?list-type=2&max-keys=-1", &[], b"").code(), "InvalidArgument");
}

#[test]
fn what_the_door_has_not_is_not_implemented() {
    let door = TestDoor::new("absent");
    door.ok("PUT", "/bucket", b"");
    for (method, path) in [
        ("GET", "/bucket?website"),
        ("GET", "/bucket?policy"),
        ("GET", "/bucket?lifecycle"),
        ("GET", "/bucket?tagging"),
        ("GET", "/bucket/k?retention"),
    ] {
        let answer = door.signed(method, path, &[], b"");
        assert_eq!((answer.status, answer.code().as_str()), (501, "NotImplemented"), "{method} {path}");
    }
    let encrypted = door.signed("PUT", "/bucket/k", &[("x-amz-server-side-encryption", "AES256")], b"x");
    assert_eq!(encrypted.code(), "NotImplemented");
}

#[test]
fn chunked_bodies_are_decoded_and_their_trailers_compared() {
    let door = TestDoor::new("chunked");
    door.ok("PUT", "/bucket", b"");
    let put = |path: &str, trailer: &str, length: &str, body: &str| {
        let headers = [
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", length),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ];
        let signer = Signer { payload: Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ..Signer::full() };
        let request = signer.sign("PUT", &door.host(), path, &headers, b"");
        let body = format!("{body}0\r\n{trailer}\r\n\r\n");
        door.send_with(&request, &[("content-length", &body.len().to_string())], body.as_bytes())
    };
    let good = put("/bucket/k", "x-amz-checksum-crc32:y/Q5Jg==", "9", "5\r\n12345\r\n4\r\n6789\r\n");
    assert_eq!((good.status, good.header("x-amz-checksum-crc32")), (200, Some("y/Q5Jg==")));
    let got = door.signed("GET", "/bucket/k", &[("x-amz-checksum-mode", "ENABLED")], b"");
    assert_eq!((got.body.as_slice(), got.header("content-encoding")), (&b"123456789"[..], None));
    assert_eq!(got.header("x-amz-checksum-crc32"), Some("y/Q5Jg=="));
    let code = |trailer: &str, length: &str, body: &str| put("/bucket/bad", trailer, length, body).code();
    assert_eq!(code("x-amz-checksum-crc32:AAAAAA==", "9", "9\r\n123456789\r\n"), "BadDigest");
    assert_eq!(code("x-amz-checksum-sha1:AAAAAA==", "9", "9\r\n123456789\r\n"), "MalformedTrailerError");
    assert_eq!(code("x-amz-checksum-crc32:y/Q5Jg==", "10", "9\r\n123456789\r\n"), "IncompleteBody");
    assert_eq!(code("x-amz-checksum-crc32:y/Q5Jg==", "8", "9\r\n123456789\r\n"), "InvalidRequest");
    assert_eq!(code("x-amz-checksum-crc32:y/Q5Jg==", "9", "nine\r\n123456789\r\n"), "InvalidRequest");
    assert_eq!(door.signed("GET", "/bucket/bad", &[], b"").code(), "NoSuchKey");
}

#[test]
fn pages_of_other_origins_ask_first() {
    let door = TestDoor::new("cors");
    door.ok("PUT", "/bucket", b"");
    let preflight = |method: &str| {
        let headers = [("origin", "https://a.example.com"), ("access-control-request-method", method)];
        door.plain("OPTIONS", "/bucket/k", &headers, b"")
    };
    assert_eq!(preflight("GET").code(), "AccessForbidden");
    let rules = b"<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example.com</AllowedOrigin>\
                  <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
    door.ok("PUT", "/bucket?cors", rules);
    let allowed = preflight("GET");
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some("https://a.example.com")));
    assert_eq!(preflight("PUT").status, 403);
    let got = door.signed("GET", "/bucket/k", &[("origin", "https://b.example.com")], b"");
    assert_eq!(got.header("access-control-allow-origin"), Some("https://b.example.com"));
    door.ok("DELETE", "/bucket?cors", b"");
    assert_eq!(door.signed("GET", "/bucket?cors", &[], b"").code(), "NoSuchCORSConfiguration");
}

#[test]
fn a_bucket_can_be_in_the_name_of_the_host() {
    let door = TestDoor::new("virtual");
    door.ok("PUT", "/bucket", b"");
    door.ok("PUT", "/bucket/k", b"x");
    for host in ["bucket.s3.test", "bucket.s3.test:9000"] {
        let request = Signer::full().sign("GET", host, "/k", &[], b"");
        assert_eq!(door.send(&request, b"").body, b"x", "{host}");
    }
}

#[test]
fn multipart_uploads_join_to_one_object() {
    let door = TestDoor::new("multipart");
    door.ok("PUT", "/bucket", b"");
    let created = door.signed("POST", "/bucket/big?uploads", &[("x-amz-meta-a", "b")], b"");
    let id = created.elements("UploadId").remove(0);
    let parts = [pattern(5 << 20), pattern(6 << 20), pattern(100)];
    let etags: Vec<String> = (1..)
        .zip(&parts)
        .map(|(number, part)| {
            let path = format!("/bucket/big?partNumber={number}&uploadId={id}");
            door.ok("PUT", &path, part).header("etag").unwrap().to_owned()
        })
        .collect();
    let listed = door.ok("GET", &format!("/bucket/big?uploadId={id}"), b"");
    assert_eq!(listed.elements("PartNumber"), ["1", "2", "3"]);
    let part =
        |(number, etag): (usize, &String)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    let xml: String = (1..).zip(&etags).map(part).collect();
    let complete = |xml: &str| {
        let body = format!("<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>");
        door.signed("POST", &format!("/bucket/big?uploadId={id}"), &[], body.as_bytes())
    };
    assert_eq!(complete("").code(), "MalformedXML");
    assert_eq!(complete(&xml.replacen("<ETag>\"", "<ETag>\"0", 1)).code(), "InvalidPart");
    let done = complete(&xml);
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.elements("ETag")[0].ends_with("-3\""), "{}", done.text());
    let got = door.ok("GET", "/bucket/big", b"");
    assert!(got.body == parts.concat());
    assert_eq!(got.header("x-amz-meta-a"), Some("b"));
    let second = door.ok("GET", "/bucket/big?partNumber=2", b"");
    assert!(second.status == 206 && second.body == parts[1]);
    assert_eq!(second.header("x-amz-mp-parts-count"), Some("3"));
}

#[test]
fn malformed_http_ends_the_connection_and_nothing_else() {
    let door = TestDoor::new("malformed");
    let long = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "y".repeat(70 << 10));
    let many: String = (0..300).map(|i| format!("x{i}: y\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nhost: h\r\n{many}\r\n");
    for request in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", long.as_str(), many.as_str(), "GET /%zz/.. HTTP/9.9\r\n\r\n"] {
        let answer = door.raw(request.as_bytes());
        let status = answer.split(' ').nth(1).unwrap_or("");
        assert!(answer.is_empty() || ["400", "431", "505"].contains(&status), "{answer}");
    }
    assert_eq!(door.plain("GET", "/-/health", &[], b"").status, 200);
}

#[test]
fn a_put_without_a_length_is_refused() {
    let door = TestDoor::new("lengthless");
    door.ok("PUT", "/bucket", b"");
    let request = Signer::full().sign("PUT", &door.host(), "/bucket/k", &[], b"");
    let answer = door.send_with(&request, &[("transfer-encoding", "chunked")], b"1\r\nx\r\n0\r\n\r\n");
    assert_eq!((answer.status, answer.code().as_str()), (411, "MissingContentLength"));
    assert_eq!(door.send_with(&request, &[], b"").code(), "MissingContentLength");
    let xml = Signer { payload: Some("UNSIGNED-PAYLOAD"), ..Signer::full() };
    let xml = xml.sign("POST", &door.host(), "/bucket?delete", &[], b"");
    let answer = door.send_with(&xml, &[("transfer-encoding", "chunked")], b"1\r\nx\r\n0\r\n\r\n");
    assert_eq!((answer.status, answer.code().as_str()), (411, "MissingContentLength"));
    let signer = Signer { payload: Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ..Signer::full() };
    let request = signer.sign("PUT", &door.host(), "/bucket/k", &[], b"");
    assert_eq!(door.send(&request, b"0\r\n\r\n").code(), "MissingContentLength");
    let copy = Signer::full().sign("PUT", &door.host(), "/bucket/k", &[("x-amz-copy-source", "/bucket/none")], b"");
    assert_eq!(door.send_with(&copy, &[], b"").code(), "NoSuchKey");
}

/// An aws-chunked body costs no more memory than its content, however short its chunks are.
#[test]
fn an_object_of_chunks_of_a_byte_is_stored() {
    let door = TestDoor::new("tiny-chunks");
    door.ok("PUT", "/bucket", b"");
    let content = pattern(200_000);
    let headers = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "200000")];
    let trailer = [headers[0], headers[1], ("x-amz-trailer", "x-amz-checksum-crc32")];
    let signer = Signer { payload: Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ..Signer::full() };
    let request = signer.sign("PUT", &door.host(), "/bucket/k", &trailer, b"");
    let mut body: Vec<u8> = content.iter().flat_map(|byte| [b'1', b'\r', b'\n', *byte, b'\r', b'\n']).collect();
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &content) as u32;
    let sum = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, sum.to_be_bytes());
    body.extend_from_slice(format!("0\r\nx-amz-checksum-crc32:{sum}\r\n\r\n").as_bytes());
    let put = door.send_with(&request, &[("content-length", &body.len().to_string())], &body);
    assert_eq!(put.status, 200, "{}", put.text());
    assert!(door.ok("GET", "/bucket/k", b"").body == content);
}

#[test]
fn slow_bodies_and_idle_connections_end() {
    let limits =
        Limits { rate_grace: Duration::from_millis(300), idle_time: Duration::from_millis(500), ..Limits::default() };
    let door = TestDoor::with("slow", limits);
    door.ok("PUT", "/bucket", b"");
    let request = Signer { payload: Some("UNSIGNED-PAYLOAD"), ..Signer::full() };
    let request = request.sign("PUT", &door.host(), "/bucket/k", &[("content-length", "1000")], b"");
    let begun = Instant::now();
    let answer = door.raw(format!("{request}\r\nonly this").as_bytes());
    assert!(answer.contains("<Code>RequestTimeout</Code>"), "{answer}");
    assert_eq!(door.raw(b"GET / HT"), "");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn requests_over_the_limit_wait_and_are_told_to_slow_down() {
    let limits = Limits { requests: 1, request_wait: Duration::from_millis(200), ..Limits::default() };
    let door = TestDoor::with("busy", limits);
    door.ok("PUT", "/bucket", b"");
    let request = Signer { payload: Some("UNSIGNED-PAYLOAD"), ..Signer::full() };
    let request = request.sign("PUT", &door.host(), "/bucket/k", &[("content-length", "10")], b"");
    let mut stalled = door.connect();
    stalled.write_all(format!("{request}\r\nhalf").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let answer = door.signed("GET", "/bucket", &[], b"");
    assert_eq!((answer.status, answer.code().as_str()), (503, "SlowDown"));
    stalled.write_all(b" whole").unwrap();
    assert_eq!(Answer::read(&mut stalled, false).status, 200);
    assert_eq!(door.ok("GET", "/bucket/k", b"").body, b"half whole");
}

#[test]
fn connections_over_the_limit_are_closed() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let door = TestDoor::with("connections", limits);
    let (mut first, _second) = (door.connect(), door.connect());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(door.raw(b"GET /-/health HTTP/1.1\r\nhost: h\r\n\r\n"), "");
    first.write_all(b"GET /-/health HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    assert_eq!(Answer::read(&mut first, false).status, 200);
    assert!(door.door().counters().connections_refused >= 1);
}

#[test]
fn a_door_that_stops_ends_its_requests_first() {
    let mut door = TestDoor::new("stop");
    door.ok("PUT", "/bucket", b"");
    let request = Signer { payload: Some("UNSIGNED-PAYLOAD"), ..Signer::full() };
    let request = request.sign("PUT", &door.host(), "/bucket/k", &[("content-length", "10")], b"");
    let mut stream = door.connect();
    stream.write_all(format!("{request}\r\nhalf").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let address = door.address();
    let open = door.door.take().unwrap();
    let stopping = std::thread::spawn(move || open.stop());
    std::thread::sleep(Duration::from_millis(200));
    assert!(TcpStream::connect(address).is_err(), "no new connection is accepted");
    stream.write_all(b" whole").unwrap();
    assert_eq!(Answer::read(&mut stream, false).status, 200);
    stopping.join().unwrap();
}

/// A certificate of its own authority, written to the files.
fn make_certificate(files: &TlsFiles) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    made.cert.der().to_vec()
}

/// The health URL over TLS, by a client that trusts this certificate only.
fn health_over_tls(address: SocketAddr, trusted: &[u8]) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = rustls::ClientConnection::new(Arc::new(settings), "localhost".try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address)?);
    stream.write_all(b"GET /-/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn tls_takes_a_new_certificate_without_a_restart() {
    let directory = std::env::temp_dir().join(format!("hekate-s3-door-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let files = TlsFiles { certificate: directory.join("cert.pem"), key: directory.join("key.pem") };
    let first = make_certificate(&files);
    let door = TestDoor::changed("tls", |settings| settings.tls = Some(files.clone()));
    assert!(health_over_tls(door.address(), &first).unwrap().starts_with("HTTP/1.1 200 OK"));
    let second = make_certificate(&files);
    let begun = Instant::now();
    while health_over_tls(door.address(), &second).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the new certificate is not taken");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(health_over_tls(door.address(), &first).is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}
