"""The S3 door by boto3: every operation, what it answers, and how it refuses.

`S3_ENDPOINT` names a running door with the keys of `crates/gateway-s3/examples/serve.rs`. Without it each test has a store
with a door of its own.
"""

import base64
import hashlib
import os
import urllib.error
import urllib.request
import zlib

import pytest

from harness import equal

boto3 = pytest.importorskip("boto3", reason="boto3 is missing: pip install boto3 awscrt")
from botocore import UNSIGNED  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

from s3 import key_of, open_door  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def endpoint(store):
    """The URL of a door with the keys full, reader (read only) and limited (bucket `limited` only)."""
    if "S3_ENDPOINT" in os.environ:
        return os.environ["S3_ENDPOINT"]
    store.init(bricks=2)
    store.serve()
    port = open_door(store, options=["--http", "--domain", "s3.localhost"])
    for key, options in [("full", []), ("reader", ["--read-only"]), ("limited", ["--bucket", "limited:write"])]:
        secret = store.path(key)
        with open(secret, "w", encoding="ascii") as file:
            file.write(f"{key}-secret")
        key_of(store, "--id", key, "--secret-file", secret, "--uid", "1000", "--gid", "1000", *options)
    return f"http://127.0.0.1:{port}"


def client_of(endpoint, key="full", **settings):
    settings = {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 1}, "signature_version": "s3v4", **settings}
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=os.environ.get("S3_KEY", "full") if key == "full" else key,
        aws_secret_access_key=os.environ.get("S3_SECRET", "full-secret") if key == "full" else f"{key}-secret",
        config=Config(**settings),
    )


@pytest.fixture
def s3(endpoint):
    return client_of(endpoint)


@pytest.fixture
def bucket(s3, request):
    """An empty bucket, which is removed with everything in it where the door stays."""
    name = "b-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:16]
    s3.create_bucket(Bucket=name)
    yield name
    if "S3_ENDPOINT" not in os.environ:
        return
    for upload in s3.list_multipart_uploads(Bucket=name).get("Uploads", []):
        s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        for entry in page.get("Contents", []):
            s3.delete_object(Bucket=name, Key=entry["Key"])
    s3.delete_bucket(Bucket=name)


def refused(code, call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    equal(caught.value.response["Error"]["Code"], code, f"{call.__name__} {arguments}")
    return caught.value.response


def content_of(s3, bucket, key, **arguments):
    return s3.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()


# --- buckets ---


def test_buckets_are_made_listed_and_removed(s3):
    s3.create_bucket(Bucket="of-a-test")
    refused("BucketAlreadyOwnedByYou", s3.create_bucket, Bucket="of-a-test")
    assert "of-a-test" in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    equal(s3.head_bucket(Bucket="of-a-test")["ResponseMetadata"]["HTTPStatusCode"], 200, "head")
    equal(s3.get_bucket_location(Bucket="of-a-test")["LocationConstraint"], None, "location")
    s3.put_object(Bucket="of-a-test", Key="k", Body=b"x")
    refused("BucketNotEmpty", s3.delete_bucket, Bucket="of-a-test")
    s3.delete_object(Bucket="of-a-test", Key="k")
    s3.delete_bucket(Bucket="of-a-test")
    refused("NoSuchBucket", s3.delete_bucket, Bucket="of-a-test")
    refused("404", s3.head_bucket, Bucket="of-a-test")
    refused("NoSuchBucket", s3.list_objects_v2, Bucket="of-a-test")


def test_bad_names_of_buckets_are_refused(s3):
    for name in ["Upper", "ab", "192.168.1.1", "a..b", "xn--a"]:
        refused("InvalidBucketName", s3.create_bucket, Bucket=name)


def test_a_location_has_to_be_the_doors(s3):
    refused(
        "InvalidLocationConstraint",
        s3.create_bucket,
        Bucket="elsewhere",
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )


# --- objects ---


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, MIB, 9 * MIB + 7])
def test_objects_come_back(s3, bucket, size):
    content = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="a/b", Body=content)
    equal(put["ETag"], '"%s"' % hashlib.md5(content).hexdigest(), "etag")
    got = s3.get_object(Bucket=bucket, Key="a/b")
    equal((got["ContentLength"], got["ETag"], got["ContentType"]), (size, put["ETag"], "binary/octet-stream"), "get")
    assert got["Body"].read() == content
    equal(s3.head_object(Bucket=bucket, Key="a/b")["ContentLength"], size, "head")


def test_metadata_comes_back(s3, bucket):
    given = {
        "ContentType": "text/plain; charset=utf-8",
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "ContentDisposition": 'attachment; filename="x"',
        "CacheControl": "no-cache",
        "WebsiteRedirectLocation": "/elsewhere",
        "StorageClass": "STANDARD_IA",
        "Metadata": {"one": "1", "two": "two words"},
    }
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Expires="Wed, 21 Oct 2026 07:28:00 GMT", **given)
    for got in [s3.get_object(Bucket=bucket, Key="k"), s3.head_object(Bucket=bucket, Key="k")]:
        equal({name: got[name] for name in given}, given, "metadata")
        equal(got["ResponseMetadata"]["HTTPHeaders"]["expires"], "Wed, 21 Oct 2026 07:28:00 GMT", "expires")
    refused("MetadataTooLarge", s3.put_object, Bucket=bucket, Key="k", Metadata={"a": "x" * 2048})
    refused("InvalidStorageClass", s3.put_object, Bucket=bucket, Key="k", StorageClass="GLACIER")


KEYS = ["a", "a-b", "a/b", "a0", "//", "/x", "x//y", "./x", "../x", "x/..", "x/./y", "ü/\U0001f600", "%41", "a b+c", "%~-x"]
KEYS += ["control\x01\x02\x7f", "tab\tline\nreturn\r", "<&>\"'", "s" * 300 + "/t", "k" * 1024, "dir/", "~", "?x=y#z"]


def test_keys_of_every_kind_come_back(s3, bucket):
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else key.encode())
    for key in KEYS:
        equal(content_of(s3, bucket, key), b"" if key.endswith("/") else key.encode(), repr(key))
    listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    equal(listed, sorted(KEYS, key=str.encode), "listing")
    equal([entry["Key"] for entry in s3.list_objects(Bucket=bucket)["Contents"]], listed, "version 1")
    outcome = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in KEYS if "\x01" not in key]})
    equal(outcome.get("Errors", []), [], "removal")
    s3.delete_object(Bucket=bucket, Key="control\x01\x02\x7f")
    equal(s3.list_objects_v2(Bucket=bucket)["KeyCount"], 0, "after the removal")
    refused("KeyTooLongError", s3.put_object, Bucket=bucket, Key="k" * 1025, Body=b"")


def test_ranges(s3, bucket):
    content = os.urandom(3 * MIB)
    s3.put_object(Bucket=bucket, Key="k", Body=content)
    for text, slice_of in [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-1", slice(-1, None)),
        ("bytes=1048575-2097153", slice(1048575, 2097154)),
        ("bytes=5-99999999", slice(5, None)),
    ]:
        got = s3.get_object(Bucket=bucket, Key="k", Range=text)
        equal(got["ResponseMetadata"]["HTTPStatusCode"], 206, text)
        assert got["Body"].read() == content[slice_of], text
    refused("InvalidRange", s3.get_object, Bucket=bucket, Key="k", Range=f"bytes={len(content)}-")


def test_conditional_reads(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    head = s3.head_object(Bucket=bucket, Key="k")
    etag, modified = head["ETag"], head["LastModified"]
    s3.get_object(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=modified)
    refused("304", s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=etag)
    refused("304", s3.get_object, Bucket=bucket, Key="k", IfModifiedSince=modified)
    refused("PreconditionFailed", s3.get_object, Bucket=bucket, Key="k", IfMatch='"x"')
    refused("412", s3.head_object, Bucket=bucket, Key="k", IfMatch='"x"')


def test_overridden_headers(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    got = s3.get_object(
        Bucket=bucket, Key="k", ResponseContentType="a/b", ResponseContentDisposition="inline", ResponseCacheControl="no-store"
    )
    equal((got["ContentType"], got["ContentDisposition"], got["CacheControl"]), ("a/b", "inline", "no-store"), "headers")


def test_conditional_writes_and_deletes(s3, bucket):
    refused("NoSuchKey", s3.put_object, Bucket=bucket, Key="k", Body=b"1", IfMatch='"x"')
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")
    refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfMatch='"x"')
    s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=first["ETag"])
    refused("PreconditionFailed", s3.delete_object, Bucket=bucket, Key="k", IfMatch=first["ETag"])
    equal(content_of(s3, bucket, "k"), b"3", "content")
    s3.delete_object(Bucket=bucket, Key="k", IfMatch="*")
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="k")


def test_deletes(s3, bucket):
    s3.delete_object(Bucket=bucket, Key="never-there")
    for i in range(20):
        s3.put_object(Bucket=bucket, Key=f"k{i}", Body=b"x")
    objects = [{"Key": f"k{i}"} for i in range(30)]
    outcome = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[:10]})
    equal(sorted(entry["Key"] for entry in outcome["Deleted"]), sorted(entry["Key"] for entry in objects[:10]), "deleted")
    outcome = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    assert "Deleted" not in outcome and "Errors" not in outcome
    refused("MalformedXML", s3.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": f"{i}"} for i in range(1001)]})


# --- checksums ---


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("size", [9, 3 * MIB])
def test_checksums_are_compared_and_come_back(s3, bucket, algorithm, size):
    content = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="k", Body=content, ChecksumAlgorithm=algorithm)
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == content  # boto3 compares
    equal(got[f"Checksum{algorithm}"], put[f"Checksum{algorithm}"], "checksum")
    equal(got["ChecksumType"], "FULL_OBJECT", "type")
    wrong = base64.b64encode(bytes(len(base64.b64decode(put[f"Checksum{algorithm}"])))).decode()
    refused("BadDigest", s3.put_object, Bucket=bucket, Key="bad", Body=content, **{f"Checksum{algorithm}": wrong})
    refused("404", s3.head_object, Bucket=bucket, Key="bad")


def test_content_md5(s3, bucket):
    good = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentMD5=good)
    refused("BadDigest", s3.put_object, Bucket=bucket, Key="k", Body=b"y", ContentMD5=good)
    refused("InvalidDigest", s3.put_object, Bucket=bucket, Key="k", Body=b"y", ContentMD5="none")


def test_objects_without_a_checksum_get_one(endpoint, bucket):
    plain = client_of(endpoint, request_checksum_calculation="when_required")
    put = plain.put_object(Bucket=bucket, Key="k", Body=b"123456789")
    equal((put["ChecksumCRC64NVME"], put["ChecksumType"]), ("rosUhgp5mIg=", "FULL_OBJECT"), "checksum")


def test_attributes(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"123456789", ChecksumAlgorithm="CRC32")
    names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    got = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=names)
    equal((got["ObjectSize"], got["StorageClass"]), (9, "STANDARD"), "attributes")
    equal(got["Checksum"]["ChecksumCRC32"], base64.b64encode(zlib.crc32(b"123456789").to_bytes(4, "big")).decode(), "checksum")
    equal(got["ETag"].strip('"'), hashlib.md5(b"123456789").hexdigest(), "etag")
    assert "ObjectParts" not in got


# --- copies ---


def test_copies(s3, bucket):
    content = os.urandom(3 * MIB)
    source = {"Bucket": bucket, "Key": "from/ü b"}
    s3.put_object(**source, Body=content, ContentType="a/b", Metadata={"x": "y"}, Tagging="t=1")
    s3.copy_object(Bucket=bucket, Key="to", CopySource=source)
    got = s3.get_object(Bucket=bucket, Key="to")
    assert got["Body"].read() == content
    equal((got["ContentType"], got["Metadata"], got["TagCount"]), ("a/b", {"x": "y"}, 1), "metadata that was copied")
    replaced = {"MetadataDirective": "REPLACE", "TaggingDirective": "REPLACE", "Metadata": {"n": "m"}, "Tagging": "u=2&v=3"}
    s3.copy_object(Bucket=bucket, Key="to", CopySource=source, ContentType="c/d", **replaced)
    got = s3.get_object(Bucket=bucket, Key="to")
    equal((got["ContentType"], got["Metadata"], got["TagCount"]), ("c/d", {"n": "m"}, 2), "metadata that was replaced")
    refused("InvalidRequest", s3.copy_object, **source, CopySource=source)
    s3.copy_object(**source, CopySource=source, MetadataDirective="REPLACE", Metadata={"self": "yes"})
    equal(s3.head_object(**source)["Metadata"], {"self": "yes"}, "copied onto itself")
    assert content_of(s3, bucket, "from/ü b") == content
    refused("NoSuchKey", s3.copy_object, Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "none"})
    refused("PreconditionFailed", s3.copy_object, Bucket=bucket, Key="to", CopySource=source, CopySourceIfMatch='"x"')
    done = s3.copy_object(Bucket=bucket, Key="sum", CopySource=source, ChecksumAlgorithm="SHA256")
    expected = base64.b64encode(hashlib.sha256(content).digest()).decode()
    equal(done["CopyObjectResult"]["ChecksumSHA256"], expected, "checksum of a copy")


# --- listings ---


def test_listings(s3, bucket):
    keys = ["a", "a-b", "a/b", "a/c/d", "a0", "b/x", "b/y", "c"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")

    def listed(**arguments):
        page = s3.list_objects_v2(Bucket=bucket, **arguments)
        prefixes = [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        return [entry["Key"] for entry in page.get("Contents", [])], prefixes

    equal(listed(), (keys, []), "all")
    equal(listed(Delimiter="/"), (["a", "a-b", "a0", "c"], ["a/", "b/"]), "delimiter")
    equal(listed(Prefix="a/", Delimiter="/"), (["a/b"], ["a/c/"]), "prefix and delimiter")
    equal(listed(Prefix="a"), (keys[:5], []), "prefix")
    equal(listed(Delimiter="-"), (["a", "a/b", "a/c/d", "a0", "b/x", "b/y", "c"], ["a-"]), "another delimiter")
    equal(listed(StartAfter="a/b"), (keys[3:], []), "start after")
    equal(listed(MaxKeys=0), ([], []), "none")
    for size in [1, 2, 3, 7]:
        for arguments in [{}, {"Delimiter": "/"}]:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **arguments)
            found = []
            for page in pages:
                assert page["KeyCount"] <= size
                found += [entry["Key"] for entry in page.get("Contents", [])]
                found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            equal(sorted(found), sorted(sum(listed(**arguments), [])), f"pages of {size} {arguments}")
            old = s3.get_paginator("list_objects").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **arguments)
            again = [entry["Key"] for page in old for entry in page.get("Contents", [])]
            equal(again, listed(**arguments)[0], f"version 1, pages of {size} {arguments}")
    owned = s3.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]
    assert owned["Owner"]["ID"] and owned["ETag"].startswith('"') and owned["StorageClass"] == "STANDARD"
    assert owned["LastModified"].microsecond == 0
    refused("InvalidArgument", s3.list_objects_v2, Bucket=bucket, ContinuationToken="none of ours!")


# --- tags, ACLs, CORS ---


def test_tags(s3, bucket):
    tags = [{"Key": "a", "Value": "1"}, {"Key": "b c", "Value": "ü"}]
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b%20c=%C3%BC")
    equal(s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], tags, "tags of the header")
    equal(s3.get_object(Bucket=bucket, Key="k")["TagCount"], 2, "count")
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags[:1]})
    equal(s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], tags[:1], "tags that were put")
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    equal(s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], [], "no tags")
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="")
    eleven = [{"Key": f"{i}", "Value": ""} for i in range(11)]
    refused("BadRequest", s3.put_object_tagging, Bucket=bucket, Key="k", Tagging={"TagSet": eleven})
    twice = [{"Key": "a", "Value": ""}] * 2
    refused("InvalidTag", s3.put_object_tagging, Bucket=bucket, Key="k", Tagging={"TagSet": twice})
    refused("NoSuchKey", s3.get_object_tagging, Bucket=bucket, Key="none")


def test_canned_acls(s3, endpoint, bucket):
    anonymous = client_of(endpoint, signature_version=UNSIGNED)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    refused("AccessDenied", anonymous.get_object, Bucket=bucket, Key="k")
    equal(len(s3.get_object_acl(Bucket=bucket, Key="k")["Grants"]), 1, "private")
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="public-read")
    equal([grant["Permission"] for grant in s3.get_object_acl(Bucket=bucket, Key="k")["Grants"]], ["FULL_CONTROL", "READ"], "acl")
    equal(content_of(anonymous, bucket, "k"), b"x", "read without a key")
    refused("AccessDenied", anonymous.list_objects_v2, Bucket=bucket)
    refused("AccessDenied", anonymous.put_object, Bucket=bucket, Key="k", Body=b"y")
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    equal(len(s3.get_bucket_acl(Bucket=bucket)["Grants"]), 2, "acl of the bucket")
    equal(anonymous.list_objects_v2(Bucket=bucket)["KeyCount"], 1, "listed without a key")
    refused("NotImplemented", s3.put_object_acl, Bucket=bucket, Key="k", ACL="public-read-write")
    s3.put_bucket_acl(Bucket=bucket, ACL="private")


def test_cors(s3, endpoint, bucket):
    refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=bucket)
    rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["https://*.example.com"], "MaxAgeSeconds": 60, "ExposeHeaders": ["ETag"]}
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})
    equal(s3.get_bucket_cors(Bucket=bucket)["CORSRules"], [rule], "rules")
    headers = {"Origin": "https://a.example.com", "Access-Control-Request-Method": "GET"}
    asked = urllib.request.Request(f"{endpoint}/{bucket}/k", method="OPTIONS", headers=headers)
    equal(urllib.request.urlopen(asked).headers["access-control-allow-origin"], "https://a.example.com", "preflight")
    s3.delete_bucket_cors(Bucket=bucket)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked)
    equal(caught.value.code, 403, "preflight without rules")


# --- multipart ---


def uploaded(s3, bucket, key, parts, **arguments):
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **arguments)["UploadId"]
    done = []
    same = {"ChecksumAlgorithm": arguments["ChecksumAlgorithm"]} if "ChecksumAlgorithm" in arguments else {}
    for number, part in enumerate(parts, 1):
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=part, **same)
        sums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
        done.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
    return {"Bucket": bucket, "Key": key, "UploadId": upload_id}, done


@pytest.mark.parametrize(
    "algorithm, kind",
    [(None, None), ("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("CRC64NVME", "FULL_OBJECT"), ("SHA256", "COMPOSITE")],
)
def test_multipart_uploads(s3, bucket, algorithm, kind):
    parts = [os.urandom(5 * MIB), os.urandom(5 * MIB), b"end"]
    settings = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind} if algorithm else {}
    names, done = uploaded(s3, bucket, "big", parts, Metadata={"a": "b"}, **settings)
    listed = s3.list_parts(**names, MaxParts=2)
    equal([part["Size"] for part in listed["Parts"]], [5 * MIB, 5 * MIB], "parts")
    equal(listed["IsTruncated"], True, "a page of parts")
    rest = s3.list_parts(**names, PartNumberMarker=listed["NextPartNumberMarker"])
    equal([part["PartNumber"] for part in rest["Parts"]], [3], "the next page of parts")
    equal([entry["Key"] for entry in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]], ["big"], "uploads")
    completed = s3.complete_multipart_upload(**names, MultipartUpload={"Parts": done})
    etag = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    equal(completed["ETag"], f'"{etag}-3"', "etag")
    got = s3.get_object(Bucket=bucket, Key="big", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"".join(parts)
    equal(got["Metadata"], {"a": "b"}, "metadata")
    if algorithm:
        equal(got["ChecksumType"], kind, "type")
        equal(got[f"Checksum{algorithm}"].endswith("-3"), kind == "COMPOSITE", "checksum")
    equal(content_of(s3, bucket, "big", PartNumber=2), parts[1], "part 2")
    equal(s3.head_object(Bucket=bucket, Key="big", PartNumber=1)["PartsCount"], 3, "count of parts")
    attributes = s3.get_object_attributes(Bucket=bucket, Key="big", ObjectAttributes=["ObjectParts"])
    equal(attributes["ObjectParts"]["TotalPartsCount"], 3, "attributes")
    equal("Uploads" in s3.list_multipart_uploads(Bucket=bucket), False, "uploads afterwards")


def test_wrong_completions_are_refused(s3, bucket):
    names, done = uploaded(s3, bucket, "k", [os.urandom(5 * MIB), b"x"])
    complete = s3.complete_multipart_upload
    refused("InvalidPart", complete, **names, MultipartUpload={"Parts": [{"PartNumber": 7, "ETag": '"x"'}]})
    refused("InvalidPartOrder", complete, **names, MultipartUpload={"Parts": done[::-1]})
    refused("InvalidPart", complete, **names, MultipartUpload={"Parts": [{**done[0], "ETag": '"x"'}]})
    refused("NoSuchUpload", complete, **{**names, "UploadId": "none"}, MultipartUpload={"Parts": done})
    small, parts = uploaded(s3, bucket, "small", [b"x", b"y"])
    refused("EntityTooSmall", complete, **small, MultipartUpload={"Parts": parts})
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    refused("PreconditionFailed", complete, **names, MultipartUpload={"Parts": done}, IfNoneMatch="*")
    complete(**names, MultipartUpload={"Parts": done})
    s3.abort_multipart_upload(**small)
    refused("NoSuchUpload", s3.abort_multipart_upload, **small)
    refused("NoSuchUpload", s3.upload_part, **small, PartNumber=1, Body=b"x")


def test_parts_are_copied(s3, bucket):
    content = os.urandom(12 * MIB)
    source = {"Bucket": bucket, "Key": "source"}
    s3.put_object(**source, Body=content)
    names = {"Bucket": bucket, "Key": "copy"}
    names["UploadId"] = s3.create_multipart_upload(**names)["UploadId"]
    done = []
    for number, (first, last) in enumerate([(0, 5 * MIB - 1), (5 * MIB, 12 * MIB - 1)], 1):
        range_of = f"bytes={first}-{last}"
        copied = s3.upload_part_copy(**names, PartNumber=number, CopySource=source, CopySourceRange=range_of)
        done.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
    refused("InvalidRange", s3.upload_part_copy, **names, PartNumber=3, CopySource=source, CopySourceRange="bytes=0-99999999")
    s3.complete_multipart_upload(**names, MultipartUpload={"Parts": done})
    assert content_of(s3, bucket, "copy") == content


def test_boto3s_own_transfers(s3, bucket, tmp_path):
    content = os.urandom(20 * MIB)
    (tmp_path / "up").write_bytes(content)
    s3.upload_file(str(tmp_path / "up"), bucket, "big")
    s3.download_file(bucket, "big", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content


# --- access ---


def test_presigned_urls(s3, bucket):
    put = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"})
    urllib.request.urlopen(urllib.request.Request(put, data=b"by url", method="PUT"))
    get = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"}, ExpiresIn=60)
    equal(urllib.request.urlopen(get).read(), b"by url", "read by URL")
    for changed in [get.replace("/k?", "/other?"), get.replace("Expires=60", "Expires=61"), get + "&x=y"]:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(changed)
        equal((caught.value.code, b"SignatureDoesNotMatch" in caught.value.read()), (403, True), changed)
    long = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"}, ExpiresIn=604801)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(long)
    equal(caught.value.code, 400, "a URL of over a week")


def test_keys_are_told_apart(s3, endpoint, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    reader, limited = client_of(endpoint, "reader"), client_of(endpoint, "limited")
    equal(content_of(reader, bucket, "k"), b"x", "a key that reads")
    refused("AccessDenied", reader.put_object, Bucket=bucket, Key="k", Body=b"y")
    refused("AccessDenied", reader.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": "k"}]})
    refused("AccessDenied", limited.get_object, Bucket=bucket, Key="k")
    refused("AccessDenied", limited.create_bucket, Bucket="another")
    refused("InvalidAccessKeyId", client_of(endpoint, "nobody").list_buckets)


def test_what_is_not_there_is_not_implemented(s3, bucket):
    refused("NotImplemented", s3.get_bucket_lifecycle_configuration, Bucket=bucket)
    refused("NotImplemented", s3.get_bucket_policy, Bucket=bucket)
    refused("NotImplemented", s3.put_object, Bucket=bucket, Key="k", Body=b"x", ServerSideEncryption="AES256")
    refused("NotImplemented", s3.put_object, Bucket=bucket, Key="k", Body=b"x", GrantRead="id=x")
    refused("NoSuchVersion", s3.get_object, Bucket=bucket, Key="k", VersionId="1")
