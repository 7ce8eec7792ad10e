"""Buckets: names, creation, removal, locations."""

from harness import equal
from s3_suite import case, content, headers_of, refused, status_of

CREATE = b"<CreateBucketConfiguration><LocationConstraint>%s</LocationConstraint></CreateBucketConfiguration>"


@case("CreateBucket: success", "HeadBucket: success", "DeleteBucket: success", "ListBuckets: success")
def a_bucket_lives_and_ends(door):
    name = door.name()
    equal(headers_of(door.s3.create_bucket(Bucket=name))["location"], f"/{name}", "location")
    head = door.s3.head_bucket(Bucket=name)
    equal((status_of(head), headers_of(head)["x-amz-bucket-region"]), (200, "us-east-1"), "head")
    listed = [entry for entry in door.s3.list_buckets()["Buckets"] if entry["Name"] == name]
    equal(len(listed), 1, "the bucket in the list")
    equal(listed[0]["CreationDate"].microsecond, 0, "creation in seconds")
    equal(status_of(door.s3.delete_bucket(Bucket=name)), 204, "removal")
    refused("404", door.s3.head_bucket, Bucket=name)


GOOD = ["abc", "0ab", "9-9", "a.b", "1.2.3", "my-bucket.example.com", "x" * 63, "a--b", "192.168.1.1a"]
BAD = ["ab", "a", "x" * 64, "x" * 250, "Upper", "under_score", "-start", "end-", "a..b", "a.-b", "a-.b", ".ab", "ab."]
BAD += ["192.168.5.123", "xn--a", "sthree-a", "amzn-s3-demo-a", "a-s3alias", "a--ol-s3", "a.mrap", "a--x-s3", "a--table-s3"]
BAD += ["sp%20ace", "a%2Bb", "%C3%BCber", "a%00b", "a:b", "a,b"]


@case("CreateBucket: success, InvalidBucketName")
def names_are_those_of_amazon_s_rules(door):
    for name in GOOD:
        equal(door.raw("PUT", f"/{name}").status, 200, name)
        equal(door.raw("DELETE", f"/{name}").status, 204, name)
    for name in BAD:
        answer = door.raw("PUT", f"/{name}")
        equal((answer.status, answer.code), (400, "InvalidBucketName"), name)


@case("CreateBucket: BucketAlreadyOwnedByYou")
def a_bucket_is_made_once(door):
    name = door.bucket("kept")
    refused("BucketAlreadyOwnedByYou", door.s3.create_bucket, Bucket=name)
    refused("BucketAlreadyOwnedByYou", door.s3.create_bucket, Bucket=name, ACL="public-read")
    equal(content(door.s3, name, "kept"), b"kept", "an object of the bucket")
    equal(len(door.s3.get_bucket_acl(Bucket=name)["Grants"]), 1, "grants")


@case("CreateBucket: LocationConstraint, InvalidLocationConstraint, MalformedXML")
def a_location_is_the_door_s(door):
    name = door.name()
    refused(
        "InvalidLocationConstraint",
        door.s3.create_bucket,
        Bucket=name,
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )
    for body in [b"<CreateBucketConfiguration>", b"none", b"<Other/>"]:
        equal(door.raw("PUT", f"/{name}", body=body).code, "MalformedXML", body)
    equal(door.raw("PUT", f"/{name}", body=CREATE % b"us-east-1").status, 200, "the door's own region")
    equal(door.s3.get_bucket_location(Bucket=name)["LocationConstraint"], None, "location")


@case("CreateBucket: x-amz-acl, InvalidArgument, NotImplemented")
def a_bucket_is_made_with_a_canned_acl(door):
    name = door.bucket(ACL="public-read")
    equal(len(door.s3.get_bucket_acl(Bucket=name)["Grants"]), 2, "grants")
    equal(door.raw("PUT", f"/{door.name()}", {"x-amz-acl": "none-such"}).code, "InvalidArgument", "an unknown ACL")
    refused("NotImplemented", door.s3.create_bucket, Bucket=door.name(), ACL="public-read-write")
    refused("NotImplemented", door.s3.create_bucket, Bucket=door.name(), GrantRead="id=1")
    refused("NotImplemented", door.s3.create_bucket, Bucket=door.name(), ObjectLockEnabledForBucket=True)


@case("CreateBucket: AccessDenied", "DeleteBucket: AccessDenied", "HeadBucket: AccessDenied")
def who_may_make_and_remove_buckets(door):
    name = door.bucket()
    for key in ["reader", "limited"]:
        refused("AccessDenied", door.client(key).create_bucket, Bucket=door.name())
        refused("AccessDenied", door.client(key).delete_bucket, Bucket=name)
    equal(door.raw("PUT", f"/{door.name()}", key=None).code, "AccessDenied", "a new bucket without a key")
    equal(door.raw("DELETE", f"/{name}", key=None).code, "AccessDenied", "removal without a key")
    refused("403", door.client("limited").head_bucket, Bucket=name)
    refused("403", door.client(None).head_bucket, Bucket=name)


@case("DeleteBucket: NoSuchBucket, BucketNotEmpty")
def a_bucket_with_objects_stays(door):
    name = door.bucket("a/b")
    refused("BucketNotEmpty", door.s3.delete_bucket, Bucket=name)
    door.s3.delete_object(Bucket=name, Key="a/b")
    door.s3.create_multipart_upload(Bucket=name, Key="an/upload")
    door.s3.delete_bucket(Bucket=name)
    refused("NoSuchBucket", door.s3.delete_bucket, Bucket=name)
    door.s3.create_bucket(Bucket=name)
    assert "Uploads" not in door.s3.list_multipart_uploads(Bucket=name), "uploads of a bucket that was removed"


NO_BUCKET = [
    ("GET", "", "ListObjects"),
    ("GET", "?list-type=2", "ListObjectsV2"),
    ("GET", "?versions", "ListObjectVersions"),
    ("GET", "?versioning", "GetBucketVersioning"),
    ("GET", "?acl", "GetBucketAcl"),
    ("GET", "?cors", "GetBucketCors"),
    ("GET", "?location", "GetBucketLocation"),
    ("GET", "?uploads", "ListMultipartUploads"),
    ("DELETE", "?cors", "DeleteBucketCors"),
    ("PUT", "?acl", "PutBucketAcl"),
    ("PUT", "?cors", "PutBucketCors"),
    ("POST", "?delete", "DeleteObjects"),
    ("GET", "/k", "GetObject"),
    ("GET", "/k?acl", "GetObjectAcl"),
    ("GET", "/k?tagging", "GetObjectTagging"),
    ("GET", "/k?attributes", "GetObjectAttributes"),
    ("PUT", "/k", "PutObject"),
    ("PUT", "/k?acl", "PutObjectAcl"),
    ("PUT", "/k?tagging", "PutObjectTagging"),
    ("DELETE", "/k", "DeleteObject"),
    ("DELETE", "/k?tagging", "DeleteObjectTagging"),
    ("POST", "/k?uploads", "CreateMultipartUpload"),
]
BODIES = {
    "PutBucketCors": b"<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule>"
    b"</CORSConfiguration>",
    "DeleteObjects": b"<Delete><Object><Key>k</Key></Object></Delete>",
    "PutObjectTagging": b"<Tagging><TagSet/></Tagging>",
}
HEADERS = {
    "PutBucketAcl": {"x-amz-acl": "private"},
    "PutObjectAcl": {"x-amz-acl": "private"},
    "GetObjectAttributes": {"x-amz-object-attributes": "ETag"},
}


def ask(door, row, bucket, **named):
    method, target, operation = row
    return door.raw(method, f"/{bucket}{target}", HEADERS.get(operation, {}), BODIES.get(operation, b""), **named)


@case(*(f"{operation}: NoSuchBucket" for _, _, operation in NO_BUCKET))
def what_needs_a_bucket_says_that_there_is_none(door):
    name = door.name()
    for row in NO_BUCKET:
        answer = ask(door, row, name)
        equal((answer.status, answer.code), (404, "NoSuchBucket"), row)
        equal(answer.element("RequestId"), answer.headers["x-amz-request-id"], "the request's id")
        assert answer.element("Message") and answer.element("Resource").startswith(f"/{name}"), answer.body


@case("HeadBucket: NoSuchBucket", "HeadObject: NoSuchKey, NoSuchBucket")
def a_head_has_no_body(door):
    name = door.bucket()
    for path in ["/no-such-bucket", "/no-such-bucket/k", f"/{name}/k"]:
        answer = door.raw("HEAD", path)
        equal((answer.status, answer.body), (404, b""), path)


@case(*(f"{operation}: AccessDenied" for _, _, operation in NO_BUCKET))
def what_needs_a_key_is_refused_without_one(door):
    name = door.bucket("k")
    for row in NO_BUCKET:
        for key in [None, "limited"]:
            answer = ask(door, row, name, key=key)
            equal((answer.status, answer.code), (403, "AccessDenied"), (row, key))
    equal(content(door.s3, name, "k"), b"k", "the object afterwards")


@case("ListBuckets: prefix, max-buckets, continuation-token, InvalidArgument")
def buckets_are_listed_in_pages(door):
    begin = door.name()
    names = [f"{begin}-{letter}" for letter in "dbca"]
    for name in names:
        door.s3.create_bucket(Bucket=name)
    pages = list(door.s3.get_paginator("list_buckets").paginate(Prefix=begin, PaginationConfig={"PageSize": 3}))
    equal([[entry["Name"] for entry in page["Buckets"]] for page in pages], [sorted(names)[:3], sorted(names)[3:]], "pages")
    equal(pages[0]["Prefix"], begin, "prefix")
    assert "ContinuationToken" not in pages[1], "a token of the last page"
    for value in ["0", "-1", "10001", "many"]:
        equal(door.raw("GET", f"/?max-buckets={value}").code, "InvalidArgument", value)


@case("ListBuckets: AccessDenied, InvalidAccessKeyId, SignatureDoesNotMatch")
def who_may_list_buckets(door):
    equal(door.raw("GET", "/", key=None).code, "AccessDenied", "without a key")
    refused("InvalidAccessKeyId", door.client("unknown").list_buckets)
    equal(door.raw("GET", "/", secret="wrong").code, "SignatureDoesNotMatch", "another secret")
    name = door.bucket()
    assert name in [entry["Name"] for entry in door.client("reader").list_buckets()["Buckets"]]
    assert name not in [entry["Name"] for entry in door.client("limited").list_buckets()["Buckets"]]


@case("GetBucketLocation: success", "GetBucketVersioning: success")
def what_a_bucket_says_of_itself(door):
    name = door.bucket()
    answer = door.raw("GET", f"/{name}?location")
    assert b"LocationConstraint" in answer.body, answer.body
    answer = door.s3.get_bucket_versioning(Bucket=name)
    equal({word for word in answer if word != "ResponseMetadata"}, set(), "a bucket never had versions")


@case()
def what_is_not_there_is_not_implemented(door):
    name = door.bucket()
    parameters = ["policy", "lifecycle", "encryption", "website", "logging", "notification", "replication", "object-lock"]
    parameters += ["tagging", "accelerate", "requestPayment", "publicAccessBlock", "ownershipControls", "inventory&id=x"]
    for parameter in parameters:
        answer = door.raw("GET", f"/{name}?{parameter}")
        equal((answer.status, answer.code), (501, "NotImplemented"), parameter)
    answer = door.raw("PUT", f"/{name}?versioning", body=b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    equal((answer.status, answer.code), (501, "NotImplemented"), "versioning")


@case()
def methods_that_are_none_are_refused(door):
    name = door.bucket("k")
    for method, path in [("POST", f"/{name}/k"), ("PATCH", f"/{name}/k"), ("POST", "/"), ("PUT", "/"), ("DELETE", "/")]:
        answer = door.raw(method, path)
        equal((answer.status, answer.code), (405, "MethodNotAllowed"), (method, path))
