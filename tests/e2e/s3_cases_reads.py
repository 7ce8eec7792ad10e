"""GetObject and HeadObject: ranges, conditions, overridden headers, parts; GetObjectAttributes."""

import datetime
import hashlib
import urllib.parse

from harness import equal
from s3_suite import MIB, case, headers_of, refused

DATA = b"testcontent"


def named(door, data=DATA):
    name = door.bucket()
    door.s3.put_object(Bucket=name, Key="k", Body=data)
    return {"Bucket": name, "Key": "k"}


@case("GetObject: Range, InvalidRange", "HeadObject: Range, InvalidRange")
def ranges(door):
    of = named(door)
    path = f"/{of['Bucket']}/k"
    for asked, content, at in [
        ("bytes=4-7", DATA[4:8], "bytes 4-7/11"),
        ("bytes=4-", DATA[4:], "bytes 4-10/11"),
        ("bytes=-7", DATA[-7:], "bytes 4-10/11"),
        ("bytes=-20", DATA, "bytes 0-10/11"),
        ("bytes=0-0", DATA[:1], "bytes 0-0/11"),
        ("bytes=10-10", DATA[10:], "bytes 10-10/11"),
        ("bytes=4-400", DATA[4:], "bytes 4-10/11"),
    ]:
        answer = door.raw("GET", path, {"Range": asked})
        equal((answer.status, answer.body, answer.headers.get("content-range")), (206, content, at), asked)
        head = door.raw("HEAD", path, {"Range": asked})
        found = head.status, head.headers["content-length"], head.headers.get("content-range")
        equal(found, (206, str(len(content)), at), f"HEAD, {asked}")
    for asked in ["bytes=40-50", "bytes=11-", "bytes=-0"]:
        answer = door.raw("GET", path, {"Range": asked})
        equal((answer.status, answer.code), (416, "InvalidRange"), asked)
        equal(answer.headers["content-range"], "bytes */11", "the size")
        equal(door.raw("HEAD", path, {"Range": asked}).status, 416, f"HEAD, {asked}")
    for asked in ["bytes=7-4", "bytes=", "bytes=a-b", "lines=1-2", "4-7", "bytes=0-1,3-4"]:
        answer = door.raw("GET", path, {"Range": asked})
        equal((answer.status, answer.body), (200, DATA), f"{asked} is ignored")


@case("GetObject: InvalidRange")
def ranges_of_an_empty_object(door):
    of = named(door, b"")
    for asked in ["bytes=40-50", "bytes=0-0", "bytes=0-"]:
        refused("InvalidRange", door.s3.get_object, **of, Range=asked)


@case("GetObject: Range")
def ranges_across_shards(door):
    data = bytes(range(256)) * (9 * MIB // 256)
    of = named(door, data)
    for first, last in [(0, 9 * MIB - 1), (4 * MIB - 1, 4 * MIB), (MIB - 3, 8 * MIB + 5), (9 * MIB - 1, 9 * MIB - 1)]:
        got = door.s3.get_object(**of, Range=f"bytes={first}-{last}")["Body"].read()
        assert got == data[first : last + 1], (first, last)


@case("GetObject: If-Match, If-None-Match, PreconditionFailed, NotModified", "HeadObject: If-Match, If-None-Match")
@case("GetObject: If-Modified-Since, If-Unmodified-Since", "HeadObject: If-Modified-Since, If-Unmodified-Since")
@case("HeadObject: PreconditionFailed, NotModified")
def conditions(door):
    of = named(door)
    path = f"/{of['Bucket']}/k"
    etag, day = f'"{hashlib.md5(DATA).hexdigest()}"', "%a, %d %b %Y %H:%M:%S GMT"
    modified = door.s3.head_object(**of)["LastModified"]
    earlier, same, later = ((modified + datetime.timedelta(seconds=by)).strftime(day) for by in [-60, 0, 60])
    for headers, status in [
        ({"If-Match": etag}, 200),
        ({"If-Match": etag.strip('"')}, 200),
        ({"If-Match": '"ABCORZ"'}, 412),
        ({"If-Match": "*"}, 200),
        ({"If-None-Match": etag}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"ABCORZ"'}, 200),
        ({"If-Modified-Since": earlier}, 200),
        ({"If-Modified-Since": same}, 304),
        ({"If-Modified-Since": later}, 304),
        ({"If-Unmodified-Since": earlier}, 412),
        ({"If-Unmodified-Since": same}, 200),
        ({"If-Match": etag, "If-Unmodified-Since": earlier}, 200),
        ({"If-None-Match": etag, "If-Modified-Since": earlier}, 304),
        ({"If-None-Match": '"x"', "If-Modified-Since": later}, 200),
        ({"If-Match": etag, "If-None-Match": etag}, 304),
        ({"If-Modified-Since": "no date"}, 200),
        ({"If-Unmodified-Since": "no date"}, 200),
    ]:
        for method in ["GET", "HEAD"]:
            answer = door.raw(method, path, headers)
            equal(answer.status, status, (method, headers))
            if status == 304:
                equal((answer.headers["etag"], answer.body), (etag, b""), "an answer that nothing was modified")
    equal(door.raw("GET", path, {"If-Match": '"x"'}).code, "PreconditionFailed", "code")


OVERRIDDEN = {
    "response-cache-control": "no-cache",
    "response-content-disposition": "bla",
    "response-content-encoding": "aaa",
    "response-content-language": "esperanto",
    "response-content-type": "foo/bar",
    "response-expires": "Thu, 01 Dec 1994 16:00:00 GMT",
}


@case(f"GetObject: {', '.join(OVERRIDDEN)}, InvalidRequest", f"HeadObject: {', '.join(OVERRIDDEN)}")
def headers_of_answers_may_be_overridden(door):
    of = named(door)
    path = f"/{of['Bucket']}/k?{urllib.parse.urlencode(OVERRIDDEN, quote_via=urllib.parse.quote)}"
    for method in ["GET", "HEAD"]:
        answer = door.raw(method, path)
        found = {name: answer.headers.get(name.removeprefix("response-")) for name in OVERRIDDEN}
        equal(found, OVERRIDDEN, method)
    url = door.raw.presigned("GET", path)
    equal(door.raw.get(url).headers["content-type"], "foo/bar", "presigned")
    door.s3.put_object_acl(**of, ACL="public-read")
    equal(door.raw("GET", path, key=None).code, "InvalidRequest", "without a key")


@case("GetObject: partNumber, InvalidPartNumber, InvalidRequest, InvalidArgument", "HeadObject: partNumber")
def parts_of_an_object_that_was_put_whole(door):
    of = named(door)
    path = f"/{of['Bucket']}/k"
    answer = door.raw("GET", f"{path}?partNumber=1")
    equal((answer.status, answer.body, answer.headers["content-range"]), (206, DATA, "bytes 0-10/11"), "part 1")
    assert "x-amz-mp-parts-count" not in answer.headers, answer.headers
    equal(door.raw("HEAD", f"{path}?partNumber=1").headers["content-length"], "11", "HEAD of part 1")
    equal(door.raw("GET", f"{path}?partNumber=2").code, "InvalidPartNumber", "part 2")
    for number in ["0", "-1", "10001", "x"]:
        equal(door.raw("GET", f"{path}?partNumber={number}").code, "InvalidArgument", number)
    equal(door.raw("GET", f"{path}?partNumber=1", {"Range": "bytes=0-1"}).code, "InvalidRequest", "a part and a range")


ALL = "ETag,Checksum,ObjectParts,StorageClass,ObjectSize"


@case("GetObjectAttributes: success, x-amz-object-attributes, InvalidArgument, InvalidRequest")
def attributes_of_an_object(door):
    of = named(door)
    path = f"/{of['Bucket']}/k?attributes"
    answer = door.raw("GET", path, {"x-amz-object-attributes": ALL})
    found = answer.element("ETag"), answer.element("ObjectSize"), answer.element("StorageClass")
    equal(found, (hashlib.md5(DATA).hexdigest(), "11", "STANDARD"), "attributes")
    equal(answer.element("ChecksumType"), "FULL_OBJECT", "type of checksum")
    assert answer.headers["last-modified"] and b"<ObjectParts>" not in answer.body, answer.body
    answer = door.raw("GET", path, {"x-amz-object-attributes": "ObjectSize"})
    assert b"ETag" not in answer.body and b"Checksum" not in answer.body and b"StorageClass" not in answer.body, answer.body
    for value, code in [("Size", "InvalidArgument"), ("ETag,Size", "InvalidArgument"), ("", "InvalidRequest"), (None, "InvalidRequest")]:
        headers = {} if value is None else {"x-amz-object-attributes": value}
        equal(door.raw("GET", path, headers).code, code, headers)


@case("GetObjectAttributes: x-amz-max-parts, x-amz-part-number-marker, InvalidArgument")
def attributes_of_parts_come_in_pages(door):
    from s3_cases_multipart import uploaded

    of = {"Bucket": door.bucket(), "Key": "k"}
    names, parts = uploaded(door, of["Bucket"], "k", [b"a" * 5 * MIB, b"b" * 5 * MIB, b"c"], ChecksumAlgorithm="SHA256")
    door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": parts})
    whole = door.s3.get_object_attributes(**of, ObjectAttributes=ALL.split(","))
    equal((whole["ObjectParts"]["TotalPartsCount"], whole["ObjectSize"]), (3, 10 * MIB + 1), "parts")
    equal([part["ChecksumSHA256"] for part in whole["ObjectParts"]["Parts"]], [part["ChecksumSHA256"] for part in parts], "sums")
    equal(whole["Checksum"]["ChecksumType"], "COMPOSITE", "type of checksum")
    page = door.s3.get_object_attributes(**of, ObjectAttributes=["ObjectParts"], MaxParts=1, PartNumberMarker=1)["ObjectParts"]
    found = page["PartNumberMarker"], page["NextPartNumberMarker"], page["MaxParts"], page["IsTruncated"]
    equal((found, [part["Size"] for part in page["Parts"]]), ((1, 2, 1, True), [5 * MIB]), "a page")
    path = f"/{of['Bucket']}/k?attributes"
    for headers in [{"x-amz-max-parts": "-1"}, {"x-amz-max-parts": "x"}, {"x-amz-part-number-marker": "-1"}]:
        equal(door.raw("GET", path, {"x-amz-object-attributes": ALL, **headers}).code, "InvalidArgument", headers)


@case("HeadObject: success")
def every_answer_has_an_id(door):
    of = named(door)
    ids = [headers_of(door.s3.head_object(**of))["x-amz-request-id"] for _ in range(3)]
    equal(len(set(ids)), 3, "ids")
    error = refused("NoSuchKey", door.s3.get_object, Bucket=of["Bucket"], Key="none")
    equal(error["Error"]["Key"], "none", "the key in the error")
