"""PutObject, GetObject, HeadObject and DeleteObject."""

import base64
import hashlib
import os

from harness import equal
from s3_suite import MIB, case, content, headers_of, keys_of, refused, status_of


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


@case("PutObject: success", "GetObject: success", "HeadObject: success", "DeleteObject: success")
def an_object_comes_back(door):
    name = door.bucket()
    for size in [0, 1, 4095, 4096, 65_537, 3 * MIB]:
        data = os.urandom(size)
        etag = door.s3.put_object(Bucket=name, Key="k", Body=data)["ETag"]
        equal(etag, f'"{hashlib.md5(data).hexdigest()}"', "etag")
        got = door.s3.get_object(Bucket=name, Key="k")
        equal((got["Body"].read(), got["ETag"], got["ContentLength"]), (data, etag, size), "object")
        head = door.s3.head_object(Bucket=name, Key="k")
        equal((head["ETag"], head["ContentLength"], head["LastModified"]), (etag, size, got["LastModified"]), "head")
        equal((head["AcceptRanges"], head["ContentType"]), ("bytes", "binary/octet-stream"), "head")
    equal(status_of(door.s3.delete_object(Bucket=name, Key="k")), 204, "removal")
    equal(status_of(door.s3.delete_object(Bucket=name, Key="k")), 204, "removal of nothing")
    refused("NoSuchKey", door.s3.get_object, Bucket=name, Key="k")


@case("GetObject: NoSuchKey", "GetObjectAcl: NoSuchKey", "GetObjectTagging: NoSuchKey", "GetObjectAttributes: NoSuchKey")
@case("PutObjectAcl: NoSuchKey", "PutObjectTagging: NoSuchKey", "DeleteObjectTagging: NoSuchKey")
def what_needs_an_object_says_that_there_is_none(door):
    name, s3 = door.bucket("a/b"), door.s3
    for key in ["none", "a", "a/", "a/b/", "a/b/c", "a//b"]:
        named = {"Bucket": name, "Key": key}
        refused("NoSuchKey", s3.get_object, **named)
        refused("404", s3.head_object, **named)
        refused("NoSuchKey", s3.get_object_acl, **named)
        refused("NoSuchKey", s3.get_object_tagging, **named)
        refused("NoSuchKey", s3.get_object_attributes, **named, ObjectAttributes=["ETag"])
        refused("NoSuchKey", s3.put_object_acl, **named, ACL="private")
        refused("NoSuchKey", s3.put_object_tagging, **named, Tagging={"TagSet": []})
        refused("NoSuchKey", s3.delete_object_tagging, **named)


HEADERS = {
    "Cache-Control": "no-cache, max-age=1",
    "Content-Disposition": 'attachment; filename="a b"',
    "Content-Encoding": "gzip, x",
    "Content-Language": "de, en",
    "Content-Type": "text/plain; charset=utf-8",
    "Expires": "Wed, 21 Oct 2026 07:28:00 GMT",
    "x-amz-website-redirect-location": "/elsewhere",
    "x-amz-storage-class": "STANDARD_IA",
    "x-amz-meta-one": "two  words",
    "x-amz-meta-Two": "2",
}
OF_PUT = "PutObject: " + ", ".join(name for name in HEADERS if name != "x-amz-meta-Two")


@case(OF_PUT, "PutObject: x-amz-meta-one")
def headers_come_back(door):
    name = door.bucket()
    equal(door.raw("PUT", f"/{name}/k", HEADERS, b"x").status, 200, "put")
    for method in ["GET", "HEAD"]:
        answer = door.raw(method, f"/{name}/k")
        found = {header: answer.headers.get(header.lower()) for header in HEADERS}
        equal(found, {**HEADERS, "x-amz-meta-one": found["x-amz-meta-one"]}, method)
        assert found["x-amz-meta-one"].split() == ["two", "words"], found
    door.raw("PUT", f"/{name}/k", {"Expires": "never", "x-amz-storage-class": "STANDARD"}, b"x")
    answer = door.raw("HEAD", f"/{name}/k")
    equal(answer.headers.get("expires"), "never", "Expires may be any text")
    for header in ["cache-control", "x-amz-meta-one", "x-amz-storage-class", "content-encoding"]:
        assert header not in answer.headers, f"{header} of the object before"


@case("PutObject: Content-Type")
def an_empty_content_type_is_none(door):
    name = door.bucket()
    for headers in [{"Content-Type": ""}, {}]:
        door.raw("PUT", f"/{name}/k", headers, b"x")
        equal(door.raw("HEAD", f"/{name}/k").headers["content-type"], "binary/octet-stream", headers)


@case("PutObject: MetadataTooLarge, InvalidStorageClass, KeyTooLongError, InvalidTag, InvalidArgument")
def what_cannot_be_kept_is_refused(door):
    name = door.bucket()
    door.s3.put_object(Bucket=name, Key="k" * 1024, Body=b"x", Metadata={"a": "x" * 2047})
    refused("MetadataTooLarge", door.s3.put_object, Bucket=name, Key="k", Metadata={"a": "x" * 2048})
    refused("KeyTooLongError", door.s3.put_object, Bucket=name, Key="k" * 1025)
    refused("KeyTooLongError", door.s3.put_object, Bucket=name, Key="ü" * 513)
    for storage_class in ["GLACIER", "DEEP_ARCHIVE", "NONE"]:
        refused("InvalidStorageClass", door.s3.put_object, Bucket=name, Key="k", StorageClass=storage_class)
    refused("InvalidTag", door.s3.put_object, Bucket=name, Key="k", Tagging="a=1&a=2")
    equal(door.raw("PUT", f"/{name}/k", {"x-amz-acl": "none-such"}).code, "InvalidArgument", "an unknown ACL")
    equal(keys_of(door.s3.list_objects_v2(Bucket=name)), ["k" * 1024], "keys")


@case("PutObject: x-amz-meta-one")
def metadata_may_be_any_text(door):
    name = door.bucket()
    for value in ["", "a,b", "=?UTF-8?B?w7w=?=", "x" * 1000]:
        door.raw("PUT", f"/{name}/k", {"x-amz-meta-one": value}, b"x")
        equal(door.raw("HEAD", f"/{name}/k").headers.get("x-amz-meta-one", ""), value, repr(value))


@case("PutObject: MissingContentLength")
def a_length_is_needed(door):
    name = door.bucket()
    answer = door.raw("PUT", f"/{name}/k", change={"Content-Length": None, "Transfer-Encoding": "chunked"}, body=b"")
    equal((answer.status, answer.code), (411, "MissingContentLength"), "no length")
    for length in ["", "-1", "x"]:
        equal(door.raw("PUT", f"/{name}/k", change={"Content-Length": length}).status, 400, f"length {length!r}")
    answer = door.raw("PUT", f"/{name}/k", change={"Content-Length": None})
    equal((answer.status, answer.code), (411, "MissingContentLength"), "neither a length nor a body")
    refused("404", door.s3.head_object, Bucket=name, Key="k")


@case("PutObject: EntityTooLarge", "UploadPart: EntityTooLarge")
def one_request_brings_5_gib(door):
    name = door.bucket()
    upload = door.s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    waits = {"Content-Length": str((5 << 30) + 1), "Expect": "100-continue"}
    for path in [f"/{name}/k", f"/{name}/k?partNumber=1&uploadId={upload}"]:
        answer = door.raw("PUT", path, payload="UNSIGNED-PAYLOAD", change=waits)
        equal((answer.status, answer.code), (400, "EntityTooLarge"), path)


@case("PutObject: Content-MD5, BadDigest, InvalidDigest, XAmzContentSHA256Mismatch")
def a_body_that_is_another_is_refused(door):
    name = door.bucket()
    path = f"/{name}/k"
    equal(door.raw("PUT", path, {"Content-MD5": md5(b"x")}, b"x").status, 200, "MD5")
    equal(door.raw("PUT", path, {"Content-MD5": md5(b"x")}, b"y").code, "BadDigest", "another MD5")
    for value in ["", "YWJyYWNhZGFicmE=", "none", "AAAAAAAAAAAAAAAAAAAAAA"]:
        answer = door.raw("PUT", path, {"Content-MD5": value}, b"y")
        equal((answer.status, answer.code), (400, "InvalidDigest"), f"MD5 {value!r}")
    answer = door.raw("PUT", path, body=b"y", payload=hashlib.sha256(b"x").hexdigest())
    equal((answer.status, answer.code), (400, "XAmzContentSHA256Mismatch"), "another SHA-256")
    equal(content(door.s3, name, "k"), b"x", "the object")


@case("PutObject: InvalidRequest, x-amz-checksum-crc32, x-amz-checksum-sha256, x-amz-sdk-checksum-algorithm")
def checksums_that_are_none_are_refused(door):
    name = door.bucket()
    for headers in [
        {"x-amz-checksum-sha256": "bad"},
        {"x-amz-checksum-crc32": ""},
        {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="},
        {"x-amz-sdk-checksum-algorithm": "CRC32"},
        {"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": "AAAAAA=="},
        {"x-amz-sdk-checksum-algorithm": "MD4", "x-amz-checksum-crc32": "AAAAAA=="},
    ]:
        answer = door.raw("PUT", f"/{name}/k", headers, b"x")
        equal((answer.status, answer.code), (400, "InvalidRequest"), headers)
    equal(door.raw("PUT", f"/{name}/k", {"x-amz-checksum-crc32": "AAAAAA=="}, b"x").code, "BadDigest", "another CRC")


CHECKSUMS = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]
OF_SUMS = ", ".join(f"x-amz-checksum-{name.lower()}" for name in CHECKSUMS)


@case(f"PutObject: {OF_SUMS}", "GetObject: x-amz-checksum-mode", "HeadObject: x-amz-checksum-mode")
@case(f"UploadPart: {OF_SUMS}")
def checksums_come_back_if_they_are_asked_for(door):
    name = door.bucket()
    upload = {"Bucket": name, "Key": "u", "UploadId": door.s3.create_multipart_upload(Bucket=name, Key="u")["UploadId"]}
    for algorithm in CHECKSUMS:
        put = door.s3.put_object(Bucket=name, Key="k", Body=b"123456789", ChecksumAlgorithm=algorithm)
        field = f"Checksum{algorithm}"
        for call in [door.s3.get_object, door.s3.head_object]:
            equal(call(Bucket=name, Key="k", ChecksumMode="ENABLED")[field], put[field], algorithm)
        plain = door.raw("HEAD", f"/{name}/k")
        assert not any(header.startswith("x-amz-checksum") for header in plain.headers), plain.headers
        part = door.s3.upload_part(**upload, PartNumber=1, Body=b"123456789", ChecksumAlgorithm=algorithm)
        equal(part[field], put[field], f"{algorithm} of a part")


@case("DeleteObject: If-Match, PreconditionFailed, NoSuchKey", "PutObject: If-Match, If-None-Match, PreconditionFailed, NoSuchKey")
def writes_with_conditions(door):
    name, s3 = door.bucket(), door.s3
    named = {"Bucket": name, "Key": "k"}
    refused("NoSuchKey", s3.put_object, **named, IfMatch="*")
    refused("NoSuchKey", s3.put_object, **named, IfMatch='"ABCORZ"')
    first = s3.put_object(**named, Body=b"1", IfNoneMatch="*")["ETag"]
    refused("PreconditionFailed", s3.put_object, **named, IfNoneMatch="*")
    refused("PreconditionFailed", s3.put_object, **named, IfMatch='"ABCORZ"')
    second = s3.put_object(**named, Body=b"2", IfMatch=first)["ETag"]
    s3.put_object(**named, Body=b"3", IfMatch=second.strip('"'))
    refused("PreconditionFailed", s3.delete_object, **named, IfMatch=first)
    s3.delete_object(**named, IfMatch=f'"{hashlib.md5(b"3").hexdigest()}"')
    refused("NoSuchKey", s3.delete_object, **named, IfMatch=first)
    equal(door.raw("PUT", f"/{name}/k", {"If-None-Match": '"x"'}).code, "NotImplemented", "If-None-Match with an ETag")


@case("PutObject: NotImplemented", "GetObject: NoSuchVersion", "DeleteObject: NoSuchVersion, NotImplemented")
def what_is_asked_for_and_not_there(door):
    name = door.bucket("k")
    for headers in [
        {"x-amz-server-side-encryption": "AES256"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"x-amz-object-lock-mode": "GOVERNANCE"},
        {"x-amz-grant-read": "id=1"},
        {"x-amz-expected-bucket-owner": "1"},
        {"x-amz-write-offset-bytes": "0"},
    ]:
        answer = door.raw("PUT", f"/{name}/k", headers, b"x")
        equal((answer.status, answer.code), (501, "NotImplemented"), headers)
    for method in ["GET", "DELETE"]:
        equal(door.raw(method, f"/{name}/k?versionId=x").code, "NoSuchVersion", method)
        assert door.raw(method, f"/{name}/k?versionId=null").status < 300, method
    door.s3.put_object(Bucket=name, Key="k")
    equal(door.raw("DELETE", f"/{name}/k", {"x-amz-if-match-size": "0"}).code, "NotImplemented", "If-Match of the size")
    equal(door.raw("GET", f"/{name}/k?torrent").code, "NotImplemented", "torrent")


EMPTY = ["dir/", "a/b/", "//", "/", "x//"]


@case("PutObject: success", "GetObject: success", "DeleteObject: success")
def keys_that_end_in_a_slash_are_objects(door):
    name = door.bucket(*EMPTY)
    equal(keys_of(door.s3.list_objects_v2(Bucket=name)), sorted(EMPTY), "keys")
    for key in EMPTY:
        equal(content(door.s3, name, key), key.encode(), key)
        door.s3.delete_object(Bucket=name, Key=key)
    equal(keys_of(door.s3.list_objects_v2(Bucket=name)), [], "keys that were removed")


@case("GetObject: success", "PutObject: success")
def overwriting_is_whole(door):
    name = door.bucket()
    door.s3.put_object(Bucket=name, Key="k", Body=b"x" * MIB, Metadata={"a": "b"}, Tagging="t=1", ContentType="a/b")
    door.s3.put_object(Bucket=name, Key="k", Body=b"y")
    got = door.s3.get_object(Bucket=name, Key="k")
    equal((got["Body"].read(), got["Metadata"], got["ContentType"]), (b"y", {}, "binary/octet-stream"), "the object")
    assert "TagCount" not in got, "tags of the object before"
    assert "x-amz-tagging-count" not in headers_of(got)
