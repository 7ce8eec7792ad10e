"""ListObjects, ListObjectsV2 and ListObjectVersions: prefixes, delimiters, pages, encodings."""

import base64
import hashlib

from harness import equal
from s3_suite import case, headers_of, keys_of, prefixes_of, refused

LISTS = "ListObjects|ListObjectsV2|ListObjectVersions"


def both(door, bucket, **arguments):
    """-> keys and prefixes of a page, which each version of the operation has to answer."""
    old, new = door.s3.list_objects(Bucket=bucket, **arguments), door.s3.list_objects_v2(Bucket=bucket, **arguments)
    versions = door.s3.list_object_versions(Bucket=bucket, **arguments)
    found = keys_of(new), prefixes_of(new)
    equal((keys_of(old), prefixes_of(old)), found, f"version 1, {arguments}")
    equal(([entry["Key"] for entry in versions.get("Versions", [])], prefixes_of(versions)), found, f"versions, {arguments}")
    for page in [old, new, versions]:
        for name in ["Prefix", "Delimiter"]:
            equal(page.get(name, ""), arguments.get(name, ""), f"{name} of {arguments}")
        equal(page["MaxKeys"], arguments.get("MaxKeys", 1000), "max-keys")
    equal(new["KeyCount"], len(found[0]) + len(found[1]), "count")
    return found


@case(f"{LISTS}: success, prefix, delimiter")
def delimiters_and_prefixes(door):
    keys = ["asdf", "boo/bar", "boo/baz/xyzzy", "cquux/bla", "cquux/thud"]
    name = door.bucket(*keys)
    for arguments, found in [
        ({}, (keys, [])),
        ({"Delimiter": "/"}, (["asdf"], ["boo/", "cquux/"])),
        ({"Delimiter": "/", "Prefix": "boo/"}, (["boo/bar"], ["boo/baz/"])),
        ({"Delimiter": "/", "Prefix": "boo"}, ([], ["boo/"])),
        ({"Delimiter": "/", "Prefix": "boo/ba"}, (["boo/bar"], ["boo/baz/"])),
        ({"Delimiter": "/", "Prefix": "/"}, ([], [])),
        ({"Delimiter": "a"}, (["cquux/thud"], ["a", "boo/ba", "cquux/bla"])),
        ({"Delimiter": "\n"}, (keys, [])),
        ({"Delimiter": ""}, (keys, [])),
        ({"Delimiter": "ba"}, (["asdf", "cquux/bla", "cquux/thud"], ["boo/ba"])),
        ({"Prefix": "cq"}, (keys[3:], [])),
        ({"Prefix": ""}, (keys, [])),
        ({"Prefix": "d"}, ([], [])),
        ({"Prefix": "\n"}, ([], [])),
        ({"Prefix": "boo/bar"}, (["boo/bar"], [])),
        ({"Prefix": "boo", "Delimiter": "z"}, (["boo/bar"], ["boo/baz"])),
        ({"Prefix": "x" * 2000}, ([], [])),
    ]:
        equal(both(door, name, **arguments), found, arguments)


@case("ListObjects|ListObjectsV2: delimiter")
def delimiters_of_every_kind(door):
    for delimiter in ["%", " ", ".", "+", "ü", "\\", "_", "&", "<"]:
        keys = [f"b{delimiter}ar", f"b{delimiter}az", f"c{delimiter}ab", "foo"]
        name = door.bucket(*keys)
        equal(both(door, name, Delimiter=delimiter), (["foo"], [f"b{delimiter}", f"c{delimiter}"]), delimiter)
    name = door.bucket("0/", "0/1999", "0/1999#", "0/1999/", "0/2000", "1999", "1999#", "1999+", "2000")
    equal(both(door, name, Delimiter="/"), (["1999", "1999#", "1999+", "2000"], ["0/"]), "keys around a prefix")
    equal(both(door, name, Delimiter="/", Prefix="0/"), (["0/", "0/1999", "0/1999#", "0/2000"], ["0/1999/"]), "below it")


@case(f"{LISTS}: encoding-type, InvalidArgument")
def keys_are_encoded_if_that_is_asked_for(door):
    name = door.bucket("foo+1/bar", "foo/bar/xyzzy", "quux ab/thud", "asdf+b", "ü", "<&>", "a\x01b")
    for query in ["", "list-type=2&", "versions&"]:
        answer = door.raw("GET", f"/{name}?{query}delimiter=%2F&encoding-type=url")
        equal(answer.element("EncodingType"), "url", "encoding")
        equal(answer.elements("Key"), ["%3C%26%3E", "a%01b", "asdf%2Bb", "%C3%BC"], "keys")
        prefixes = [found for found in answer.elements("Prefix") if found]
        equal(prefixes, ["foo%2B1/", "foo/", "quux%20ab/"], "prefixes")
        asked = door.raw("GET", f"/{name}?{query}encoding-type=url&prefix=%2B")
        equal(asked.element("Prefix"), "+" if query == "" else "%2B", "the prefix that was asked for")
        equal(door.raw("GET", f"/{name}?{query}encoding-type=none").code, "InvalidArgument", "another encoding")
        plain = door.raw("GET", f"/{name}?{query}".rstrip("?&"))
        assert b"&lt;&amp;&gt;" in plain.body and b"a&#x1;b" in plain.body and b"EncodingType" not in plain.body, plain.body


@case(f"{LISTS}: max-keys, InvalidArgument")
def pages_have_at_most_so_many_keys(door):
    name = door.bucket("bar", "baz", "foo", "quxx")
    for query in ["", "list-type=2&", "versions&"]:
        for value, count, truncated in [("0", 0, "false"), ("1", 1, "true"), ("4", 4, "false"), ("5000", 4, "false")]:
            answer = door.raw("GET", f"/{name}?{query}max-keys={value}")
            found = len(answer.elements("Key")), answer.element("IsTruncated"), answer.element("MaxKeys")
            equal(found, (count, truncated, str(min(int(value), 1000))), (query, value))
        for value in ["-1", "blah", "2147483648", "1.5"]:
            answer = door.raw("GET", f"/{name}?{query}max-keys={value}")
            equal((answer.status, answer.code), (400, "InvalidArgument"), (query, value))


@case("ListObjects: marker")
def markers(door):
    name = door.bucket("bar", "baz", "foo", "quxx")
    for marker, found in [
        ("", ["bar", "baz", "foo", "quxx"]),
        ("baz", ["foo", "quxx"]),
        ("\n", ["bar", "baz", "foo", "quxx"]),
        ("blah", ["foo", "quxx"]),
        ("zzz", []),
    ]:
        page = door.s3.list_objects(Bucket=name, Marker=marker)
        equal((keys_of(page), page["Marker"], page["IsTruncated"]), (found, marker, False), repr(marker))
    page = door.s3.list_objects(Bucket=name, MaxKeys=2)
    assert "NextMarker" not in page and page["IsTruncated"], page
    equal(keys_of(door.s3.list_objects(Bucket=name, Marker="baz", MaxKeys=2)), ["foo", "quxx"], "the rest")


@case("ListObjectsV2: start-after, continuation-token, InvalidArgument")
def pages_of_version_2(door):
    name = door.bucket("bar", "baz", "foo", "quxx")
    for after, found in [("bar", ["baz", "foo", "quxx"]), ("blah", ["foo", "quxx"]), ("zzz", []), ("", ["bar", "baz", "foo", "quxx"])]:
        page = door.s3.list_objects_v2(Bucket=name, StartAfter=after)
        equal((keys_of(page), page.get("StartAfter", "")), (found, after), after)
    page = door.s3.list_objects_v2(Bucket=name, MaxKeys=1, StartAfter="bar")
    token = page["NextContinuationToken"]
    page = door.s3.list_objects_v2(Bucket=name, StartAfter="bar", ContinuationToken=token)
    equal((keys_of(page), page["ContinuationToken"], page["IsTruncated"]), (["foo", "quxx"], token, False), "the token counts")
    refused("InvalidArgument", door.s3.list_objects_v2, Bucket=name, ContinuationToken="none of ours")
    page = door.s3.list_objects_v2(Bucket=name, ContinuationToken="")
    equal((keys_of(page), page["ContinuationToken"]), (["bar", "baz", "foo", "quxx"], ""), "an empty token is the first page")


@case("ListObjects: delimiter, marker, max-keys", "ListObjectsV2: delimiter, continuation-token, max-keys")
def pages_of_prefixes(door):
    name = door.bucket("asdf", "boo/bar", "boo/baz/xyzzy", "cquux/bla", "cquux/thud")
    steps = [("asdf", True), ("boo/", True), ("cquux/", False)]
    marker, token = "", None
    for found, more in steps:
        page = door.s3.list_objects(Bucket=name, Delimiter="/", MaxKeys=1, Marker=marker)
        equal((keys_of(page) + prefixes_of(page), page["IsTruncated"]), ([found], more), "version 1")
        marker = page.get("NextMarker", "")
        page = door.s3.list_objects_v2(Bucket=name, Delimiter="/", MaxKeys=1, **({"ContinuationToken": token} if token else {}))
        equal((keys_of(page) + prefixes_of(page), page["IsTruncated"]), ([found], more), "version 2")
        token = page.get("NextContinuationToken")
    page = door.s3.list_objects(Bucket=name, Delimiter="/", MaxKeys=2, Prefix="boo/")
    equal((keys_of(page), prefixes_of(page), page["IsTruncated"]), (["boo/bar"], ["boo/baz/"], False), "below a prefix")


@case("ListObjectsV2: fetch-owner", "ListObjects: success")
def what_a_list_says_of_an_object(door):
    name = door.bucket("a", "b")
    door.s3.put_object(Bucket=name, Key="b", Body=b"b", StorageClass="STANDARD_IA")
    for key in ["a", "b"]:
        head = door.s3.head_object(Bucket=name, Key=key)
        owner = door.s3.get_object_acl(Bucket=name, Key=key)["Owner"]
        old = door.s3.list_objects(Bucket=name, Prefix=key)["Contents"][0]
        new = door.s3.list_objects_v2(Bucket=name, Prefix=key, FetchOwner=True)["Contents"][0]
        for entry in [old, new]:
            equal((entry["ETag"], entry["Size"], entry["LastModified"]), (head["ETag"], 1, head["LastModified"]), "entry")
            equal(entry["Owner"], owner, "owner")
        for arguments in [{}, {"FetchOwner": False}]:
            assert "Owner" not in door.s3.list_objects_v2(Bucket=name, **arguments)["Contents"][0], arguments
    equal(headers_of(door.s3.list_objects_v2(Bucket=name))["content-type"], "application/xml", "type")


@case("ListObjectVersions: success, key-marker, version-id-marker, max-keys")
def versions_of_a_bucket_without_versions(door):
    name = door.bucket("bar", "baz", "d/foo", "d/quxx")
    page = door.s3.list_object_versions(Bucket=name)
    for entry in page["Versions"]:
        head = door.s3.head_object(Bucket=name, Key=entry["Key"])
        equal((entry["VersionId"], entry["IsLatest"], entry["ETag"]), ("null", True, head["ETag"]), entry["Key"])
        assert entry["Owner"]["ID"] and entry["StorageClass"] == "STANDARD"
    assert "DeleteMarkers" not in page and not page["IsTruncated"], page
    pages = list(door.s3.get_paginator("list_object_versions").paginate(Bucket=name, PaginationConfig={"PageSize": 3}))
    equal([[entry["Key"] for entry in page["Versions"]] for page in pages], [["bar", "baz", "d/foo"], ["d/quxx"]], "pages")
    equal((pages[0]["NextKeyMarker"], pages[0]["NextVersionIdMarker"]), ("d/foo", "null"), "markers")
    page = door.s3.list_object_versions(Bucket=name, KeyMarker="baz", Delimiter="/")
    equal((page["KeyMarker"], prefixes_of(page)), ("baz", ["d/"]), "behind a key")
    answer = door.raw("GET", f"/{name}?versions&version-id-marker=null")
    equal((answer.status, answer.code), (400, "InvalidArgument"), "a version without a key")


@case("ListObjects|ListObjectsV2: success")
def a_list_of_a_thousand_keys(door):
    name = door.bucket()
    keys = [f"{number:04}" for number in range(12)]
    for key in keys:
        door.s3.put_object(Bucket=name, Key=key)
    for size in [1, 5, 11, 12, 13]:
        for operation in ["list_objects", "list_objects_v2"]:
            pages = door.s3.get_paginator(operation).paginate(Bucket=name, PaginationConfig={"PageSize": size})
            equal([key for page in pages for key in keys_of(page)], keys, f"{operation} by {size}")
    door.s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in keys]})
    equal(both(door, name), ([], []), "an empty bucket")


@case("DeleteObjects: success, Quiet, ETag, MalformedXML, NoSuchVersion, KeyTooLongError")
def many_objects_are_removed_at_once(door):
    name, s3 = door.bucket("a", "b", "c", "d/e"), door.s3

    def removed(objects, **arguments):
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": objects, **arguments})
        errors = [(entry["Key"], entry["Code"]) for entry in answer.get("Errors", [])]
        return [entry["Key"] for entry in answer.get("Deleted", [])], errors

    equal(removed([{"Key": "a"}, {"Key": "none"}]), (["a", "none"], []), "removed")
    equal(removed([{"Key": "b", "ETag": '"x"'}]), ([], [("b", "PreconditionFailed")]), "another ETag")
    equal(removed([{"Key": "b", "VersionId": "1"}]), ([], [("b", "NoSuchVersion")]), "a version")
    equal(removed([{"Key": "b", "VersionId": "null"}], Quiet=True), ([], []), "quiet")
    equal(removed([{"Key": "k" * 1025}, {"Key": "c"}]), (["c"], [("k" * 1025, "KeyTooLongError")]), "one is wrong")
    equal(keys_of(s3.list_objects_v2(Bucket=name)), ["d/e"], "keys")
    refused("MalformedXML", s3.delete_objects, Bucket=name, Delete={"Objects": []})
    thousand = [{"Key": f"{number}"} for number in range(1000)]
    equal(len(removed(thousand)[0]), 1000, "a thousand keys")
    refused("MalformedXML", s3.delete_objects, Bucket=name, Delete={"Objects": [*thousand, {"Key": "d/e"}]})
    equal(keys_of(s3.list_objects_v2(Bucket=name)), ["d/e"], "keys")


@case("DeleteObjects: MalformedXML, Content-MD5, BadDigest, MissingRequestBodyError, AccessDenied")
def a_list_of_keys_is_checked(door):
    name = door.bucket("k")
    good = b"<Delete><Object><Key>k</Key></Object></Delete>"
    equal(door.raw("POST", f"/{name}?delete").code, "MissingRequestBodyError", "no body")
    for body in [b"<Delete>", b"<Delete><Object><Kee>k</Kee></Object></Delete>", b"<Other/>"]:
        equal(door.raw("POST", f"/{name}?delete", body=body).code, "MalformedXML", body)
    other = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    equal(door.raw("POST", f"/{name}?delete", {"Content-MD5": other}, good).code, "BadDigest", "another MD5")
    equal(door.raw("POST", f"/{name}?delete", body=good, key="reader").code, "AccessDenied", "a key that reads")
    equal(keys_of(door.s3.list_objects_v2(Bucket=name)), ["k"], "keys")
