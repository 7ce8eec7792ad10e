"""CopyObject: sources, conditions, directives."""

import os

from harness import equal
from s3_suite import MIB, case, content, headers_of, refused, status_of


@case("CopyObject: success, x-amz-copy-source")
def copies_are_the_source(door):
    name, other = door.bucket(), door.bucket()
    for size in [0, 3, 4096, 16 * MIB]:
        data = os.urandom(size)
        etag = door.s3.put_object(Bucket=name, Key="foo123bar", Body=data)["ETag"]
        for bucket in [name, other]:
            answer = door.s3.copy_object(Bucket=bucket, Key="bar321foo", CopySource={"Bucket": name, "Key": "foo123bar"})
            equal((status_of(answer), answer["CopyObjectResult"]["ETag"]), (200, etag), "copy")
            assert content(door.s3, bucket, "bar321foo") == data, size
    for key in ["a b", "ü", "a+b", "%41", "a/../b", "d/", "?x=y"]:
        door.s3.put_object(Bucket=name, Key=key, Body=key.encode())
        door.s3.copy_object(Bucket=other, Key=key, CopySource={"Bucket": name, "Key": key})
        equal(content(door.s3, other, key), key.encode(), key)
    for source in [f"/{name}/foo123bar", f"{name}/foo123bar", f"{name}/foo123bar?versionId=null"]:
        equal(door.raw("PUT", f"/{other}/k", {"x-amz-copy-source": source}).status, 200, source)


@case("CopyObject: NoSuchKey, NoSuchBucket, InvalidArgument, AccessDenied, NoSuchVersion, KeyTooLongError")
def sources_that_cannot_be_copied(door):
    name = door.bucket("k")
    of = {"Bucket": name, "Key": "to"}
    refused("NoSuchKey", door.s3.copy_object, **of, CopySource={"Bucket": name, "Key": "none"})
    refused("NoSuchBucket", door.s3.copy_object, **of, CopySource={"Bucket": "no-such-bucket", "Key": "k"})
    refused("NoSuchBucket", door.s3.copy_object, Bucket="no-such-bucket", Key="to", CopySource={"Bucket": name, "Key": "k"})
    for source, names in [(f"{name}/a%20b", ("a b", None)), ("no-such-bucket/k", (None, "no-such-bucket"))]:
        answer = door.raw("PUT", f"/{name}/to", {"x-amz-copy-source": source})
        equal((answer.element("Key"), answer.element("BucketName")), names, source)
        equal(answer.element("Resource"), f"/{source}".removesuffix("/k"), source)
    refused("NoSuchVersion", door.s3.copy_object, **of, CopySource={"Bucket": name, "Key": "k", "VersionId": "1"})
    refused("KeyTooLongError", door.s3.copy_object, Bucket=name, Key="k" * 1025, CopySource={"Bucket": name, "Key": "k"})
    for source in ["", "/", name, f"/{name}", f"/{name}/", "%ff/%ff"]:
        answer = door.raw("PUT", f"/{name}/to", {"x-amz-copy-source": source})
        equal((answer.status, answer.code), (400, "InvalidArgument"), source)
    refused("AccessDenied", door.client("reader").copy_object, **of, CopySource={"Bucket": name, "Key": "k"})
    if status_of_bucket(door, "limited"):
        source = {"Bucket": name, "Key": "k"}
        refused("AccessDenied", door.client("limited").copy_object, Bucket="limited", Key="k", CopySource=source)
    equal(door.raw("PUT", f"/{name}/to", {"x-amz-copy-source": f"{name}/k"}, key=None).code, "AccessDenied", "no key")
    refused("404", door.s3.head_object, **of)


def status_of_bucket(door, name):
    """Makes a bucket that may be there already."""
    answer = door.raw("PUT", f"/{name}")
    return answer.status == 200 or answer.code == "BucketAlreadyOwnedByYou"


@case("CopyObject: InvalidRequest, x-amz-metadata-directive, InvalidArgument")
def a_copy_onto_itself_has_to_change_something(door):
    name = door.bucket("k")
    of, source = {"Bucket": name, "Key": "k"}, {"Bucket": name, "Key": "k"}
    refused("InvalidRequest", door.s3.copy_object, **of, CopySource=source)
    refused("InvalidRequest", door.s3.copy_object, **of, CopySource=source, MetadataDirective="COPY", Metadata={"a": "b"})
    door.s3.copy_object(**of, CopySource=source, MetadataDirective="REPLACE", Metadata={"foo": "bar"})
    equal(door.s3.head_object(**of)["Metadata"], {"foo": "bar"}, "metadata")
    door.s3.copy_object(**of, CopySource=source, StorageClass="STANDARD_IA")
    head = door.s3.head_object(**of)
    equal((head["Metadata"], head["StorageClass"]), ({"foo": "bar"}, "STANDARD_IA"), "class")
    equal(content(door.s3, name, "k"), b"k", "content")
    for header in ["x-amz-metadata-directive", "x-amz-tagging-directive"]:
        answer = door.raw("PUT", f"/{name}/to", {"x-amz-copy-source": f"{name}/k", header: "OTHER"})
        equal((answer.status, answer.code), (400, "InvalidArgument"), header)


@case("CopyObject: x-amz-metadata-directive, x-amz-tagging-directive, x-amz-tagging, x-amz-acl, x-amz-storage-class, Content-Type")
def metadata_is_copied_or_replaced(door):
    name = door.bucket()
    given = {"Metadata": {"key1": "value1"}, "ContentType": "audio/ogg", "CacheControl": "no-cache", "Tagging": "t=1"}
    door.s3.put_object(Bucket=name, Key="k", Body=b"x" * MIB, **given)
    copy = {"Bucket": name, "Key": "to", "CopySource": {"Bucket": name, "Key": "k"}}
    door.s3.copy_object(**copy, Metadata={"ignored": "x"}, ContentType="ignored/x")
    head = door.s3.get_object(Bucket=name, Key="to")
    found = head["Metadata"], head["ContentType"], head["CacheControl"], head["TagCount"]
    equal(found, ({"key1": "value1"}, "audio/ogg", "no-cache", 1), "what was copied")
    door.s3.copy_object(**copy, MetadataDirective="REPLACE", TaggingDirective="REPLACE", Tagging="u=2&v=3", Metadata={"key2": "2"})
    head = door.s3.get_object(Bucket=name, Key="to")
    found = head["Metadata"], head["ContentType"], head.get("CacheControl"), head["TagCount"]
    equal(found, ({"key2": "2"}, "binary/octet-stream", None, 2), "what was replaced")
    door.s3.copy_object(**copy, ACL="public-read", StorageClass="ONEZONE_IA")
    equal(len(door.s3.get_object_acl(Bucket=name, Key="to")["Grants"]), 2, "grants")
    equal(door.s3.head_object(Bucket=name, Key="to")["StorageClass"], "ONEZONE_IA", "class")
    door.s3.copy_object(**copy)
    equal(len(door.s3.get_object_acl(Bucket=name, Key="to")["Grants"]), 1, "an ACL is not copied")


@case("CopyObject: x-amz-copy-source-if-match, x-amz-copy-source-if-none-match, PreconditionFailed, If-Match, If-None-Match")
@case("CopyObject: x-amz-copy-source-if-modified-since, x-amz-copy-source-if-unmodified-since")
def copies_with_conditions(door):
    name = door.bucket("k")
    head = door.s3.head_object(Bucket=name, Key="k")
    copy = {"Bucket": name, "Key": "to", "CopySource": {"Bucket": name, "Key": "k"}}
    refused("PreconditionFailed", door.s3.copy_object, **copy, CopySourceIfMatch='"ABCORZ"')
    refused("PreconditionFailed", door.s3.copy_object, **copy, CopySourceIfNoneMatch=head["ETag"])
    refused("PreconditionFailed", door.s3.copy_object, **copy, CopySourceIfModifiedSince=head["LastModified"])
    refused("PreconditionFailed", door.s3.copy_object, **copy, CopySourceIfUnmodifiedSince="Wed, 21 Oct 2015 07:28:00 GMT")
    refused("404", door.s3.head_object, Bucket=name, Key="to")
    door.s3.copy_object(**copy, CopySourceIfMatch=head["ETag"], CopySourceIfUnmodifiedSince=head["LastModified"])
    door.s3.copy_object(**copy, CopySourceIfNoneMatch='"ABCORZ"', CopySourceIfModifiedSince="Wed, 21 Oct 2015 07:28:00 GMT")
    refused("PreconditionFailed", door.s3.copy_object, **copy, IfNoneMatch="*")
    refused("PreconditionFailed", door.s3.copy_object, **copy, IfMatch='"ABCORZ"')
    answer = door.s3.copy_object(**copy, IfMatch=head["ETag"])
    assert headers_of(answer)["x-amz-request-id"]


@case("CopyObject: x-amz-checksum-algorithm, InvalidRequest")
def a_copy_gets_the_checksum_that_is_asked_for(door):
    name = door.bucket()
    door.s3.put_object(Bucket=name, Key="k", Body=b"123456789", ChecksumAlgorithm="CRC32")
    copy = {"Bucket": name, "Key": "to", "CopySource": {"Bucket": name, "Key": "k"}}
    result = door.s3.copy_object(**copy)["CopyObjectResult"]
    equal((result["ChecksumCRC32"], result["ChecksumType"]), ("y/Q5Jg==", "FULL_OBJECT"), "the source's")
    result = door.s3.copy_object(**copy, ChecksumAlgorithm="SHA1")["CopyObjectResult"]
    equal(result["ChecksumSHA1"], "98O8HYCOBHMq32eZZczDTKeuNEE=", "another")
    refused("InvalidRequest", door.s3.copy_object, **copy, ChecksumAlgorithm="MD4")


@case("CopyObject: InvalidStorageClass, MetadataTooLarge, InvalidTag, NotImplemented")
def copies_that_cannot_be_kept(door):
    name = door.bucket("k")
    copy = {"Bucket": name, "Key": "to", "CopySource": {"Bucket": name, "Key": "k"}}
    refused("InvalidStorageClass", door.s3.copy_object, **copy, StorageClass="GLACIER")
    refused("MetadataTooLarge", door.s3.copy_object, **copy, MetadataDirective="REPLACE", Metadata={"a": "x" * 2048})
    refused("InvalidTag", door.s3.copy_object, **copy, TaggingDirective="REPLACE", Tagging="a=1&a=2")
    refused("NotImplemented", door.s3.copy_object, **copy, ServerSideEncryption="AES256")
    refused("404", door.s3.head_object, Bucket=name, Key="to")
