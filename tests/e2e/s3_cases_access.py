"""Signatures in headers and in URLs, and requests without one."""

import datetime
import re

from harness import equal
from s3_suite import case, content, keys_of, refused

DAY = "%Y%m%dT%H%M%SZ"


def at(seconds):
    return (datetime.datetime.utcnow() + datetime.timedelta(seconds=seconds)).strftime(DAY)


def today(*seconds):
    """Those of these moments that are on today's date, which is the credential's: another date is another error."""
    return [at(each) for each in seconds if at(each)[:8] == at(0)[:8]]


@case("GetObject: SignatureDoesNotMatch, InvalidAccessKeyId, AuthorizationHeaderMalformed, RequestTimeTooSkewed, AccessDenied")
def signatures_in_the_header(door):
    path = f"/{door.bucket('k')}/k"
    equal(door.raw("GET", path, secret="wrong").code, "SignatureDoesNotMatch", "another secret")
    equal(door.raw("GET", path, key="unknown").code, "InvalidAccessKeyId", "an unknown key")
    answer = door.raw("GET", path, region="eu-west-1")
    equal((answer.code, answer.element("Region")), ("AuthorizationHeaderMalformed", "us-east-1"), "another region")
    signed = {"x-amz-meta-x": "1"}
    for change, code in [
        *[({"x-amz-date": moment}, "RequestTimeTooSkewed") for moment in today(-3600, 3600)],
        *[({"x-amz-date": moment}, "SignatureDoesNotMatch") for moment in today(-60, 60)],
        ({"x-amz-date": "now", "Date": None}, "AccessDenied"),
        ({"x-amz-date": None, "Date": None}, "AccessDenied"),
        ({"x-amz-meta-x": "2"}, "SignatureDoesNotMatch"),
        ({"x-amz-meta-x": None}, "SignatureDoesNotMatch"),
        ({"x-amz-meta-y": "2"}, "AccessDenied"),
        ({"x-amz-content-sha256": None}, "InvalidRequest"),
        ({"Authorization": None}, "AccessDenied"),
        ({"Authorization": ""}, "AccessDenied"),
        ({"Authorization": "Basic eDp5"}, "InvalidArgument"),
        ({"Authorization": "AWS full:c2ln"}, "InvalidRequest"),
        ({"Authorization": "AWS4-HMAC-SHA256"}, "AuthorizationHeaderMalformed"),
        ({"Authorization": "AWS4-HMAC-SHA256 Credential=full, SignedHeaders=host, Signature=x"}, "AuthorizationHeaderMalformed"),
        ({"x-amz-security-token": "x"}, "InvalidToken"),
    ]:
        answer = door.raw("GET", path, signed, change=change)
        equal(answer.code, code, change)
    equal(door.raw("GET", path, signed).status, 200, "nothing changed")


@case("PutObject: SignatureDoesNotMatch, AccessDenied, InvalidAccessKeyId")
def nothing_is_put_with_a_wrong_signature(door):
    name = door.bucket()
    for arguments, code in [
        ({"secret": "wrong"}, "SignatureDoesNotMatch"),
        ({"key": "unknown"}, "InvalidAccessKeyId"),
        ({"key": "reader"}, "AccessDenied"),
        ({"key": "limited"}, "AccessDenied"),
        ({"key": None}, "AccessDenied"),
        ({"change": {"Authorization": None}}, "AccessDenied"),
        ({"change": {"Authorization": ""}}, "AccessDenied"),
    ]:
        answer = door.raw("PUT", f"/{name}/k", body=b"x", **arguments)
        equal((answer.status, answer.code), (403, code), arguments)
    equal(keys_of(door.s3.list_objects_v2(Bucket=name)), [], "keys")


@case("PutObject: success, x-amz-date, Date")
def either_date_is_enough(door):
    path = f"/{door.bucket()}/k"
    for headers in [{"Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, {"Date": ""}, {"User-Agent": ""}, {"Expect": "200"}, {"Expect": ""}]:
        equal(door.raw("PUT", path, body=b"x", change=headers).status, 200, headers)


@case("GetObject: AuthorizationQueryParametersError, X-Amz-Expires, X-Amz-Signature, AccessDenied, SignatureDoesNotMatch")
def presigned_urls(door):
    path = f"/{door.bucket('k')}/k"
    equal(door.raw.get(door.raw.presigned("GET", path)).body, b"k", "a URL")
    equal(door.raw.get(door.raw.presigned("GET", path, 604800)).status, 200, "a week")
    for expires, code in [(604801, "AuthorizationQueryParametersError"), (-7, "AuthorizationQueryParametersError"), (0, "AccessDenied")]:
        answer = door.raw.get(door.raw.presigned("GET", path, expires))
        equal(answer.code, code, expires)
    good = door.raw.presigned("GET", path)
    for pattern, text, code in [
        (r"/k\?", "/other?", "SignatureDoesNotMatch"),
        (r"Expires=60", "Expires=61", "SignatureDoesNotMatch"),
        (r"$", "&x=y", "SignatureDoesNotMatch"),
        (r"Signature=..", "Signature=00", "SignatureDoesNotMatch"),
        *[(r"Date=\w+", f"Date={moment}", "AccessDenied") for moment in today(-61, 3600)],
        (r"Date=\w+", "Date=today", "AuthorizationQueryParametersError"),
        (r"Expires=60", "Expires=x", "AuthorizationQueryParametersError"),
        (r"&X-Amz-Expires=60", "", "AuthorizationQueryParametersError"),
        (r"&X-Amz-Signature=\w+", "", "AuthorizationQueryParametersError"),
        (r"HMAC-SHA256", "HMAC-SHA1", "AuthorizationQueryParametersError"),
        (r"us-east-1", "eu-west-1", "AuthorizationQueryParametersError"),
        (r"Credential=full", "Credential=unknown", "InvalidAccessKeyId"),
    ]:
        changed = re.sub(pattern, text, good, count=1)
        assert changed != good, pattern
        answer = door.raw.get(changed)
        equal(answer.code, code, (pattern, text, answer.body))
    for url in [door.raw.presigned("GET", path, key="limited"), path]:
        equal(door.raw.get(url).code, "AccessDenied", url)
    both = door.raw("GET", good)
    equal(both.code, "InvalidArgument", "a URL and a header")
    old = f"{path}?AWSAccessKeyId=full&Signature=x&Expires=9999999999"
    equal(door.raw.get(old).code, "InvalidRequest", "Signature Version 2")


@case("PutObject: success, X-Amz-Expires", "DeleteObject: success, X-Amz-Expires", "HeadObject: success, X-Amz-Expires")
def presigned_urls_of_other_methods(door):
    name = door.bucket()
    path, host = f"/{name}/k", {"Host": door.address}
    put = door.raw.presigned("PUT", path, headers={"x-amz-meta-a": "b"})
    equal(door.raw.send("PUT", put, {**host, "Content-Length": "1", "x-amz-meta-a": "b"}, b"x").status, 200, "put")
    equal(door.raw.send("PUT", put, {**host, "Content-Length": "1"}, b"x").code, "SignatureDoesNotMatch", "without the header")
    equal(door.raw.get(put).code, "SignatureDoesNotMatch", "another method")
    equal(door.raw.send("HEAD", door.raw.presigned("HEAD", path), host).status, 200, "head")
    equal(content(door.s3, name, "k"), b"x", "content")
    equal(door.raw.send("DELETE", door.raw.presigned("DELETE", path), host).status, 204, "delete")
    answer = door.raw.get(door.raw.presigned("GET", path))
    equal((answer.status, answer.code), (404, "NoSuchKey"), "gone")


@case("GetObject: success, AccessDenied, NoSuchKey, NoSuchBucket", "HeadObject: success, AccessDenied", "ListObjects: success, AccessDenied")
@case("ListObjectsV2: success, AccessDenied", "HeadBucket: success, AccessDenied", "PutObject: x-amz-acl")
def requests_without_a_key(door):
    name, anonymous = door.bucket("k", ACL="public-read"), door.client(None)
    door.s3.put_object(Bucket=name, Key="secret", Body=b"x", ACL="private")
    equal(content(anonymous, name, "k"), b"k", "an object of a public bucket")
    equal(keys_of(anonymous.list_objects(Bucket=name)), ["k", "secret"], "a list")
    equal(keys_of(anonymous.list_objects_v2(Bucket=name)), ["k", "secret"], "a list")
    anonymous.head_bucket(Bucket=name)
    anonymous.head_object(Bucket=name, Key="k")
    refused("AccessDenied", anonymous.get_object, Bucket=name, Key="secret")
    refused("403", anonymous.head_object, Bucket=name, Key="secret")
    refused("NoSuchKey", anonymous.get_object, Bucket=name, Key="none")
    refused("AccessDenied", anonymous.put_object, Bucket=name, Key="k", Body=b"y")
    refused("AccessDenied", anonymous.delete_object, Bucket=name, Key="k")
    refused("AccessDenied", anonymous.get_object_acl, Bucket=name, Key="k")
    refused("AccessDenied", anonymous.list_multipart_uploads, Bucket=name)
    private = door.bucket("k", "public")
    door.s3.put_object_acl(Bucket=private, Key="public", ACL="public-read")
    equal(content(anonymous, private, "public"), b"public", "a public object")
    refused("AccessDenied", anonymous.get_object, Bucket=private, Key="k")
    refused("AccessDenied", anonymous.get_object, Bucket=private, Key="none")
    refused("AccessDenied", anonymous.list_objects, Bucket=private)
    refused("AccessDenied", anonymous.list_objects_v2, Bucket=private)
    refused("403", anonymous.head_bucket, Bucket=private)
    refused("NoSuchBucket", anonymous.get_object, Bucket="no-such-bucket", Key="k")


@case()
def a_client_may_wait_for_100_continue(door):
    import socket

    name = door.bucket()
    host, port = door.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"PUT /{name}/k HTTP/1.1\r\nHost: {door.address}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        equal(connection.recv(100).split(b" ")[1], b"403", "the first answer to a request without a key")
    for head in [b"PUT / HTTP/9.9\r\n\r\n", b"nonsense\r\n\r\n"]:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head)
            equal(connection.recv(100).split(b" ")[1:2], [b"400"], head)


@case("GetObject: InvalidURI")
def addresses_that_are_none(door):
    name = door.bucket()
    for path in [f"/{name}/%ff", f"/{name}/a%00%ff"]:
        answer = door.raw("GET", path)
        equal((answer.status, answer.code), (400, "InvalidURI"), path)
