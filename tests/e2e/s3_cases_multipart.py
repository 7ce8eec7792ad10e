"""Multipart uploads: parts, completions, lists, and how each is refused."""

import base64
import hashlib
import os

from harness import equal
from s3_suite import MIB, case, content, headers_of, refused, status_of

SMALL = 5 * MIB


def begun(door, bucket, key="k", **arguments):
    upload = door.s3.create_multipart_upload(Bucket=bucket, Key=key, **arguments)["UploadId"]
    return {"Bucket": bucket, "Key": key, "UploadId": upload}


def uploaded(door, bucket, key, parts, **arguments):
    """-> the names of an upload, and its parts as a completion names them."""
    names, done = begun(door, bucket, key, **arguments), []
    same = {"ChecksumAlgorithm": arguments["ChecksumAlgorithm"]} if "ChecksumAlgorithm" in arguments else {}
    for number, part in enumerate(parts, 1):
        answer = door.s3.upload_part(**names, PartNumber=number, Body=part, **same)
        sums = {name: value for name, value in answer.items() if name.startswith("Checksum") and same}
        done.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
    return names, done


def etag_of(parts):
    return f'"{hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()}-{len(parts)}"'


@case("CreateMultipartUpload: success", "UploadPart: success, partNumber, uploadId", "CompleteMultipartUpload: success, uploadId")
@case("CreateMultipartUpload: x-amz-meta-one, Content-Type, x-amz-tagging, x-amz-storage-class, x-amz-acl, Cache-Control")
@case("GetObject: partNumber, InvalidPartNumber", "HeadObject: partNumber")
def an_upload_becomes_an_object(door):
    name, parts = door.bucket(), [os.urandom(SMALL), os.urandom(SMALL), b"end"]
    given = {"Metadata": {"one": "1"}, "ContentType": "a/b", "Tagging": "t=1", "CacheControl": "no-cache", "ACL": "public-read"}
    names, done = uploaded(door, name, "a/k", parts, StorageClass="STANDARD_IA", **given)
    refused("404", door.s3.head_object, Bucket=name, Key="a/k")
    answer = door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": done})
    equal((answer["ETag"], answer["Bucket"], answer["Key"]), (etag_of(parts), name, "a/k"), "completion")
    assert answer["Location"].endswith(f"/{name}/a/k"), answer["Location"]
    got = door.s3.get_object(Bucket=name, Key="a/k")
    assert got["Body"].read() == b"".join(parts)
    found = got["Metadata"], got["ContentType"], got["TagCount"], got["CacheControl"], got["StorageClass"]
    equal(found, ({"one": "1"}, "a/b", 1, "no-cache", "STANDARD_IA"), "metadata")
    equal(len(door.s3.get_object_acl(Bucket=name, Key="a/k")["Grants"]), 2, "grants")
    for number, part in enumerate(parts, 1):
        got = door.s3.get_object(Bucket=name, Key="a/k", PartNumber=number)
        equal((status_of(got), got["PartsCount"], got["ETag"]), (206, 3, etag_of(parts)), f"part {number}")
        assert got["Body"].read() == part, number
        equal(door.s3.head_object(Bucket=name, Key="a/k", PartNumber=number)["ContentLength"], len(part), f"part {number}")
    refused("InvalidPartNumber", door.s3.get_object, Bucket=name, Key="a/k", PartNumber=4)
    again = door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": done})
    equal(again["ETag"], etag_of(parts), "a completion that is repeated")


NO_UPLOAD = [
    ("PUT", "&partNumber=1", "UploadPart", b""),
    ("GET", "", "ListParts", b""),
    ("DELETE", "", "AbortMultipartUpload", b""),
    (
        "POST",
        "",
        "CompleteMultipartUpload",
        b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    ),
]
OF_UPLOADS = [operation for _, _, operation, _ in NO_UPLOAD]


@case(*(f"{operation}: NoSuchUpload, NoSuchBucket, AccessDenied" for operation in [*OF_UPLOADS, "UploadPartCopy"]))
def what_needs_an_upload_says_that_there_is_none(door):
    name = door.bucket("k")
    other = begun(door, door.bucket())["UploadId"]
    source = {"x-amz-copy-source": f"/{name}/k"}
    rows = [(*row, {}) for row in NO_UPLOAD] + [("PUT", "&partNumber=1", "UploadPartCopy", b"", source)]
    for method, query, operation, body, headers in rows:
        for upload in ["x", "0" * 32, other, "..%2F..%2Fx"]:
            answer = door.raw(method, f"/{name}/k?uploadId={upload}{query}", headers, body)
            equal((answer.status, answer.code), (404, "NoSuchUpload"), (operation, upload))
        answer = door.raw(method, f"/no-such-bucket/k?uploadId={other}{query}", headers, body)
        equal((answer.status, answer.code), (404, "NoSuchBucket"), operation)
        for key in [None, "limited"]:
            answer = door.raw(method, f"/{name}/k?uploadId={other}{query}", headers, body, key=key)
            equal((answer.status, answer.code), (403, "AccessDenied"), (operation, key))


@case("UploadPart: InvalidArgument", "UploadPartCopy: InvalidArgument")
def parts_have_the_numbers_1_to_10000(door):
    name = door.bucket("source")
    names = begun(door, name)
    for number in ["0", "-1", "10001", "x", ""]:
        path = f"/{name}/k?uploadId={names['UploadId']}&partNumber={number}"
        answer = door.raw("PUT", path, body=b"x")
        equal((answer.status, answer.code), (400, "InvalidArgument"), number)
        answer = door.raw("PUT", path, {"x-amz-copy-source": f"{name}/source"})
        equal((answer.status, answer.code), (400, "InvalidArgument"), f"{number} of a copy")
    for number in [1, 10000]:
        door.s3.upload_part(**names, PartNumber=number, Body=b"x")
    equal([part["PartNumber"] for part in door.s3.list_parts(**names)["Parts"]], [1, 10000], "parts")


@case("CompleteMultipartUpload: InvalidPart, InvalidPartOrder, EntityTooSmall, MalformedXML")
def completions_that_are_wrong(door):
    name = door.bucket()
    names, parts = uploaded(door, name, "k", [b"x" * SMALL, b"y" * SMALL])
    complete = door.s3.complete_multipart_upload

    def wrong(code, *named):
        refused(code, complete, **names, MultipartUpload={"Parts": list(named)})

    wrong("MalformedXML")
    wrong("InvalidPart", {"PartNumber": 9999, "ETag": parts[0]["ETag"]})
    wrong("InvalidPart", {**parts[0], "ETag": '"ffffffffffffffffffffffffffffffff"'})
    wrong("InvalidPart", parts[0], {**parts[1], "PartNumber": 3})
    wrong("InvalidPartOrder", parts[1], parts[0])
    wrong("InvalidPartOrder", parts[0], parts[0])
    path = f"/{name}/k?uploadId={names['UploadId']}"
    for body in [b"<CompleteMultipartUpload>", b"none", b"<Other/>", b"<CompleteMultipartUpload><Part/></CompleteMultipartUpload>"]:
        equal(door.raw("POST", path, body=body).code, "MalformedXML", body)
    small, tiny = uploaded(door, name, "small", [b"x", b"y"])
    refused("EntityTooSmall", complete, **small, MultipartUpload={"Parts": tiny})
    refused("404", door.s3.head_object, Bucket=name, Key="k")
    complete(**names, MultipartUpload={"Parts": [{**part, "ETag": part["ETag"].strip('"')} for part in parts]})
    equal(door.s3.head_object(Bucket=name, Key="k")["ContentLength"], 2 * SMALL, "the object")


@case("CompleteMultipartUpload: success", "UploadPart: success")
def parts_may_be_sent_again_and_left_out(door):
    name = door.bucket()
    names, parts = uploaded(door, name, "k", [b"a" * SMALL, b"b" * SMALL, b"c"])
    for number in [1, 3]:
        answer = door.s3.upload_part(**names, PartNumber=number, Body=b"again" * MIB)
        parts[number - 1] = {"PartNumber": number, "ETag": answer["ETag"]}
    door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": [parts[0], parts[2]]})
    assert content(door.s3, name, "k") == b"again" * MIB * 2
    one, part = uploaded(door, name, "one", [b"x"])
    answer = door.s3.complete_multipart_upload(**one, MultipartUpload={"Parts": part})
    equal(answer["ETag"], etag_of([b"x"]), "an upload of one small part")
    equal(content(door.s3, name, "one"), b"x", "its content")


@case("CompleteMultipartUpload: If-Match, If-None-Match, PreconditionFailed, NoSuchKey")
def completions_with_conditions(door):
    name, complete = door.bucket(), door.s3.complete_multipart_upload
    names, parts = uploaded(door, name, "k", [b"x"])
    parts = {"Parts": parts}
    refused("NoSuchKey", complete, **names, MultipartUpload=parts, IfMatch='"x"')
    there = door.s3.put_object(Bucket=name, Key="k", Body=b"there")["ETag"]
    refused("PreconditionFailed", complete, **names, MultipartUpload=parts, IfNoneMatch="*")
    refused("PreconditionFailed", complete, **names, MultipartUpload=parts, IfMatch='"x"')
    complete(**names, MultipartUpload=parts, IfMatch=there)
    equal(content(door.s3, name, "k"), b"x", "content")
    names, parts = uploaded(door, name, "new", [b"x"])
    complete(**names, MultipartUpload={"Parts": parts}, IfNoneMatch="*")


@case("CompleteMultipartUpload: x-amz-mp-object-size, x-amz-checksum-type, x-amz-checksum-sha256, InvalidRequest, BadDigest")
@case("CompleteMultipartUpload: InvalidPart", "CreateMultipartUpload: x-amz-checksum-algorithm")
def completions_with_checksums(door):
    name, complete = door.bucket(), door.s3.complete_multipart_upload
    names, parts = uploaded(door, name, "k", [b"x" * SMALL, b"y"], ChecksumAlgorithm="SHA256")
    digest = hashlib.sha256(b"".join(base64.b64decode(part["ChecksumSHA256"]) for part in parts)).digest()
    good = base64.b64encode(digest).decode()
    zeros = base64.b64encode(bytes(32)).decode()
    bare = [{name: part[name] for name in ["PartNumber", "ETag"]} for part in parts]
    for code, arguments, given in [
        ("InvalidRequest", {"ChecksumSHA256": "bad"}, parts),
        ("BadDigest", {"ChecksumSHA256": f"{zeros}-2"}, parts),
        ("InvalidRequest", {"ChecksumCRC32": "AAAAAA=="}, parts),
        ("InvalidRequest", {"ChecksumType": "FULL_OBJECT"}, parts),
        ("InvalidRequest", {"MpuObjectSize": SMALL}, parts),
        ("InvalidRequest", {}, bare),
        ("InvalidPart", {}, [{**parts[0], "ChecksumSHA256": zeros}, parts[1]]),
        ("InvalidPart", {}, [{**parts[0], "ChecksumSHA256": "bad"}, parts[1]]),
    ]:
        refused(code, complete, **names, MultipartUpload={"Parts": given}, **arguments)
    arguments = {"ChecksumSHA256": f"{good}-2", "ChecksumType": "COMPOSITE", "MpuObjectSize": SMALL + 1}
    answer = complete(**names, MultipartUpload={"Parts": parts}, **arguments)
    equal((answer["ChecksumSHA256"], answer["ChecksumType"]), (f"{good}-2", "COMPOSITE"), "completion")


@case("CreateMultipartUpload: InvalidRequest, x-amz-checksum-type", "UploadPart: InvalidRequest, BadDigest, InvalidDigest, Content-MD5")
def checksums_of_parts(door):
    name = door.bucket()
    create = door.s3.create_multipart_upload
    for arguments in [
        {"ChecksumAlgorithm": "SHA1", "ChecksumType": "FULL_OBJECT"},
        {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "COMPOSITE"},
        {"ChecksumAlgorithm": "MD4"},
        {"ChecksumType": "COMPOSITE"},
    ]:
        refused("InvalidRequest", create, Bucket=name, Key="k", **arguments)
    made = create(Bucket=name, Key="k", ChecksumAlgorithm="CRC32")
    equal((made["ChecksumAlgorithm"], made["ChecksumType"]), ("CRC32", "COMPOSITE"), "algorithm")
    path = f"/{name}/k?uploadId={made['UploadId']}&partNumber=1"
    equal(door.raw("PUT", path, {"x-amz-checksum-sha1": "98O8HYCOBHMq32eZZczDTKeuNEE="}, b"x").code, "InvalidRequest", "another")
    equal(door.raw("PUT", path, {"x-amz-checksum-crc32": "AAAAAA=="}, b"x").code, "BadDigest", "a wrong CRC")
    other = base64.b64encode(hashlib.md5(b"y").digest()).decode()
    equal(door.raw("PUT", path, {"Content-MD5": other}, b"x").code, "BadDigest", "another MD5")
    equal(door.raw("PUT", path, {"Content-MD5": "x"}, b"x").code, "InvalidDigest", "no MD5")


@case("UploadPart: MissingContentLength", "CreateMultipartUpload: KeyTooLongError, InvalidStorageClass, MetadataTooLarge, InvalidTag")
@case("CreateMultipartUpload: InvalidArgument, NotImplemented")
def uploads_that_cannot_be(door):
    name = door.bucket()
    create = door.s3.create_multipart_upload
    refused("KeyTooLongError", create, Bucket=name, Key="k" * 1025)
    refused("InvalidStorageClass", create, Bucket=name, Key="k", StorageClass="GLACIER")
    refused("MetadataTooLarge", create, Bucket=name, Key="k", Metadata={"a": "x" * 2048})
    refused("InvalidTag", create, Bucket=name, Key="k", Tagging="a=1&a=2")
    refused("NotImplemented", create, Bucket=name, Key="k", ServerSideEncryption="AES256")
    equal(door.raw("POST", f"/{name}/k?uploads", {"x-amz-acl": "none-such"}).code, "InvalidArgument", "an unknown ACL")
    assert "Uploads" not in door.s3.list_multipart_uploads(Bucket=name)
    path = f"/{name}/k?partNumber=1&uploadId={begun(door, name)['UploadId']}"
    answer = door.raw("PUT", path, change={"Content-Length": None, "Transfer-Encoding": "chunked"})
    equal((answer.status, answer.code), (411, "MissingContentLength"), "no length")


@case("AbortMultipartUpload: success, uploadId")
def an_upload_that_was_aborted_is_gone(door):
    name = door.bucket()
    names, _ = uploaded(door, name, "k", [b"x" * SMALL])
    equal(status_of(door.s3.abort_multipart_upload(**names)), 204, "abort")
    refused("NoSuchUpload", door.s3.abort_multipart_upload, **names)
    refused("NoSuchUpload", door.s3.upload_part, **names, PartNumber=1, Body=b"x")
    refused("NoSuchUpload", door.s3.list_parts, **names)
    assert "Uploads" not in door.s3.list_multipart_uploads(Bucket=name)
    # RFC 3339: the time that the upload may have begun at.
    refused("NotImplemented", door.s3.abort_multipart_upload, **names, IfMatchInitiatedTime="Wed, 21 Oct 2026 07:28:00 GMT")


@case("ListParts: success, uploadId, part-number-marker, max-parts, InvalidArgument")
def parts_are_listed_in_pages(door):
    name = door.bucket()
    names, parts = uploaded(door, name, "k", [b"1", b"22", b"333"])
    listed = door.s3.list_parts(**names)
    found = [(part["PartNumber"], part["ETag"], part["Size"]) for part in listed["Parts"]]
    equal(found, [(part["PartNumber"], part["ETag"], part["PartNumber"]) for part in parts], "parts")
    assert listed["Initiator"]["ID"] == listed["Owner"]["ID"] and listed["StorageClass"] == "STANDARD", listed
    equal((listed["IsTruncated"], listed["MaxParts"], listed["PartNumberMarker"]), (False, 1000, 0), "page")
    pages = list(door.s3.get_paginator("list_parts").paginate(**names, PaginationConfig={"PageSize": 2}))
    equal([[part["PartNumber"] for part in page["Parts"]] for page in pages], [[1, 2], [3]], "pages")
    equal(pages[0]["NextPartNumberMarker"], 2, "marker")
    path = f"/{name}/k?uploadId={names['UploadId']}"
    for query in ["&max-parts=-1", "&max-parts=x", "&part-number-marker=-1", "&part-number-marker=x"]:
        equal(door.raw("GET", path + query).code, "InvalidArgument", query)
    equal(door.raw("GET", f"{path}&max-parts=0").element("IsTruncated"), "false", "no parts")
    equal(door.raw("GET", f"{path}&max-parts=5000").element("MaxParts"), "1000", "too many parts")


@case("ListMultipartUploads: success, prefix, delimiter, key-marker, upload-id-marker, max-uploads, encoding-type, InvalidArgument")
def uploads_are_listed_in_pages(door):
    name = door.bucket()
    keys = ["a", "a", "d/x", "d/y", "e f"]
    made = sorted((key, begun(door, name, key)["UploadId"]) for key in keys)

    def listed(**arguments):
        page = door.s3.list_multipart_uploads(Bucket=name, **arguments)
        uploads = [(entry["Key"], entry["UploadId"]) for entry in page.get("Uploads", [])]
        return uploads, [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]

    equal(listed(), (made, []), "all")
    equal(listed(Prefix="d/"), (made[2:4], []), "prefix")
    equal(listed(Delimiter="/"), (made[:2] + made[4:], ["d/"]), "delimiter")
    equal(listed(KeyMarker="a"), (made[2:], []), "behind a key")
    equal(listed(KeyMarker="a", UploadIdMarker=made[0][1]), (made[1:], []), "behind an upload")
    pages = list(door.s3.get_paginator("list_multipart_uploads").paginate(Bucket=name, PaginationConfig={"PageSize": 2}))
    found = [(entry["Key"], entry["UploadId"]) for page in pages for entry in page["Uploads"]]
    equal((found, pages[0]["IsTruncated"], pages[0]["MaxUploads"]), (made, True, 2), "pages")
    first = pages[0]["Uploads"][0]
    assert first["Owner"]["ID"] == first["Initiator"]["ID"] and first["StorageClass"] == "STANDARD", first
    answer = door.raw("GET", f"/{name}?uploads&encoding-type=url")
    equal(answer.elements("Key")[-1], "e%20f", "an encoded key")
    for query in ["max-uploads=-1", "max-uploads=x", "encoding-type=none"]:
        equal(door.raw("GET", f"/{name}?uploads&{query}").code, "InvalidArgument", query)


@case("UploadPartCopy: success, partNumber, uploadId, x-amz-copy-source, x-amz-copy-source-range, InvalidArgument, InvalidRange")
def parts_are_copied(door):
    data = os.urandom(12 * MIB)
    name = door.bucket("small")
    door.s3.put_object(Bucket=name, Key="a ü?", Body=data)
    names, source = begun(door, name), {"Bucket": name, "Key": "a ü?"}
    done = []
    for number, asked in enumerate(["bytes=0-5242879", "bytes=5242880-12582911"], 1):
        answer = door.s3.upload_part_copy(**names, PartNumber=number, CopySource=source, CopySourceRange=asked)
        done.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        assert answer["CopyPartResult"]["LastModified"]
    door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": done})
    assert content(door.s3, name, "k") == data
    names = begun(door, name)
    small = {"Bucket": name, "Key": "small"}
    for asked in ["0-2", "bytes=0", "bytes=hello-world", "bytes=0-bar", "bytes=hello-", "bytes=0-2,3-5", "bytes=2-", "bytes=-2"]:
        refused("InvalidArgument", door.s3.upload_part_copy, **names, PartNumber=1, CopySource=small, CopySourceRange=asked)
    refused("InvalidRange", door.s3.upload_part_copy, **names, PartNumber=1, CopySource=small, CopySourceRange="bytes=0-21")
    answer = door.s3.upload_part_copy(**names, PartNumber=1, CopySource=small)
    door.s3.complete_multipart_upload(**names, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}]})
    equal(content(door.s3, name, "k"), b"small", "a part that is a whole object")


@case("UploadPartCopy: NoSuchKey, NoSuchBucket, PreconditionFailed, NoSuchVersion, x-amz-copy-source-if-match")
@case("UploadPartCopy: x-amz-copy-source-if-none-match, x-amz-copy-source-if-modified-since, x-amz-copy-source-if-unmodified-since")
def sources_of_parts(door):
    name = door.bucket("s")
    names = {**begun(door, name), "PartNumber": 1}
    head = door.s3.head_object(Bucket=name, Key="s")
    copy, source = door.s3.upload_part_copy, {"Bucket": name, "Key": "s"}
    refused("NoSuchKey", copy, **names, CopySource={"Bucket": name, "Key": "none"})
    refused("NoSuchBucket", copy, **names, CopySource={"Bucket": "no-such-bucket", "Key": "none"})
    refused("NoSuchVersion", copy, **names, CopySource={**source, "VersionId": "1"})
    refused("PreconditionFailed", copy, **names, CopySource=source, CopySourceIfMatch='"x"')
    refused("PreconditionFailed", copy, **names, CopySource=source, CopySourceIfNoneMatch=head["ETag"])
    refused("PreconditionFailed", copy, **names, CopySource=source, CopySourceIfModifiedSince=head["LastModified"])
    refused("PreconditionFailed", copy, **names, CopySource=source, CopySourceIfUnmodifiedSince="Wed, 21 Oct 2015 07:28:00 GMT")
    copy(**names, CopySource=source, CopySourceIfMatch=head["ETag"], CopySourceIfUnmodifiedSince=head["LastModified"])
    assert headers_of(head)["etag"]
