"""ACLs, CORS rules and tags."""

from harness import equal
from s3_suite import case, content, refused, status_of

ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
ACL = "GetBucketAcl|GetObjectAcl|PutBucketAcl|PutObjectAcl"


def acls(door):
    """-> a call to get and one to put an ACL, and the names to call them with: of a bucket, and of an object."""
    name, s3 = door.bucket("k"), door.s3
    yield s3.get_bucket_acl, s3.put_bucket_acl, {"Bucket": name}, f"/{name}?acl"
    yield s3.get_object_acl, s3.put_object_acl, {"Bucket": name, "Key": "k"}, f"/{name}/k?acl"


def permissions(acl):
    return [(grant["Grantee"]["Type"], grant["Permission"]) for grant in acl["Grants"]]


OWNER_ONLY = [("CanonicalUser", "FULL_CONTROL")]
PUBLIC = [*OWNER_ONLY, ("Group", "READ")]


@case("GetBucketAcl|GetObjectAcl: success", "PutBucketAcl|PutObjectAcl: success, x-amz-acl, InvalidArgument, NotImplemented")
@case("PutBucketAcl|PutObjectAcl: MissingSecurityHeader, NoSuchBucket")
def canned_acls(door):
    for get, put, names, path in acls(door):
        acl = get(**names)
        equal((permissions(acl), acl["Grants"][0]["Grantee"]["ID"]), (OWNER_ONLY, acl["Owner"]["ID"]), "private")
        put(**names, ACL="public-read")
        equal((permissions(get(**names)), get(**names)["Grants"][1]["Grantee"]["URI"]), (PUBLIC, ALL_USERS), "public")
        put(**names, ACL="private")
        equal(permissions(get(**names)), OWNER_ONLY, "private again")
        for canned in ["public-read-write", "authenticated-read", "log-delivery-write"]:
            refused("NotImplemented", put, **names, ACL=canned)
        equal(door.raw("PUT", path, {"x-amz-acl": "public-ready"}).code, "InvalidArgument", "none")
        equal(door.raw("PUT", path).code, "MissingSecurityHeader", "no ACL")
        equal(door.raw("PUT", path, {"x-amz-grant-read": "id=1"}).code, "NotImplemented", "a grant in a header")
        equal(door.raw("PUT", path.replace("/case-", "/no-such-"), {"x-amz-acl": "private"}).code, "NoSuchBucket", "no bucket")


@case("PutBucketAcl|PutObjectAcl: AccessControlPolicy")
def what_an_acl_says_may_be_put(door):
    for get, put, names, _ in acls(door):
        put(**names, ACL="private")
        private = get(**names)
        put(**names, ACL="public-read")
        public = get(**names)
        for acl, found in [(private, OWNER_ONLY), (public, PUBLIC)]:
            policy = {"Owner": acl["Owner"], "Grants": acl["Grants"]}
            put(**names, AccessControlPolicy=policy)
            equal(permissions(get(**names)), found, "an ACL that was read")
            put(**names, AccessControlPolicy={**policy, "Grants": policy["Grants"][::-1]})
            equal(permissions(get(**names)), found, "the same grants in another order")
            put(**names, AccessControlPolicy={"Owner": {"ID": acl["Owner"]["ID"]}, "Grants": policy["Grants"]})
    anonymous = door.client(None)
    equal(content(anonymous, names["Bucket"], "k"), b"k", "a public object")


@case("PutBucketAcl|PutObjectAcl: NotImplemented, InvalidArgument, UnresolvableGrantByEmailAddress, MalformedACLError")
@case("PutBucketAcl|PutObjectAcl: MalformedXML, UnexpectedContent, AccessDenied")
def other_grants_are_refused(door):
    for get, put, names, path in acls(door):
        acl = get(**names)
        mine, owner = acl["Grants"][0], acl["Owner"]
        user = {"Type": "CanonicalUser", "ID": owner["ID"]}
        group = {"Type": "Group", "URI": ALL_USERS}
        authenticated = {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"}
        for code, grants in [
            ("NotImplemented", []),
            ("NotImplemented", [{"Grantee": user, "Permission": "READ"}]),
            ("NotImplemented", [mine, {"Grantee": group, "Permission": "WRITE"}]),
            ("NotImplemented", [mine, {"Grantee": authenticated, "Permission": "READ"}]),
            ("NotImplemented", [{"Grantee": group, "Permission": "READ"}]),
            ("InvalidArgument", [mine, {"Grantee": {**user, "ID": "_foo"}, "Permission": "READ"}]),
            ("InvalidArgument", [mine, {"Grantee": {"Type": "Group", "URI": "http://x/y"}, "Permission": "READ"}]),
            ("UnresolvableGrantByEmailAddress", [mine, {"Grantee": {"Type": "AmazonCustomerByEmail", "EmailAddress": "a@b"}, "Permission": "READ"}]),
            ("MalformedACLError", [mine, {"Grantee": user, "Permission": "EVERYTHING"}]),
        ]:
            refused(code, put, **names, AccessControlPolicy={"Owner": owner, "Grants": grants})
        refused("AccessDenied", put, **names, AccessControlPolicy={"Owner": {"ID": "_foo"}, "Grants": [mine]})
        refused("MalformedACLError", put, **names, AccessControlPolicy={"Grants": [mine]})
        refused("UnexpectedContent", put, **names, ACL="private", AccessControlPolicy={"Owner": owner, "Grants": [mine]})
        for body in [b"<AccessControlPolicy>", b"none"]:
            equal(door.raw("PUT", path, body=body).code, "MalformedXML", body)
        equal(permissions(get(**names)), OWNER_ONLY, "the ACL")


# --- CORS ---

RULE = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*suffix", "start*end", "prefix*"]}
RULES = [RULE, {"AllowedMethods": ["PUT"], "AllowedOrigins": ["*.put"]}]


@case("PutBucketCors: success, MalformedXML, InvalidRequest", "GetBucketCors: success, NoSuchCORSConfiguration", "DeleteBucketCors: success")
def rules_of_other_origins(door):
    of = {"Bucket": door.bucket()}
    refused("NoSuchCORSConfiguration", door.s3.get_bucket_cors, **of)
    rules = [{**RULE, "ID": "one", "AllowedHeaders": ["x-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}, RULES[1]]
    door.s3.put_bucket_cors(**of, CORSConfiguration={"CORSRules": rules})
    equal(door.s3.get_bucket_cors(**of)["CORSRules"], rules, "rules")
    for rule, code in [
        ({"AllowedMethods": ["PATCH"], "AllowedOrigins": ["*"]}, "InvalidRequest"),
        ({"AllowedMethods": ["get"], "AllowedOrigins": ["*"]}, "InvalidRequest"),
        ({"AllowedMethods": ["GET"], "AllowedOrigins": ["*.*"]}, "InvalidRequest"),
        ({"AllowedMethods": ["GET"], "AllowedOrigins": []}, "MalformedXML"),
        ({"AllowedMethods": [], "AllowedOrigins": ["*"]}, "MalformedXML"),
    ]:
        refused(code, door.s3.put_bucket_cors, **of, CORSConfiguration={"CORSRules": [rule]})
    refused("MalformedXML", door.s3.put_bucket_cors, **of, CORSConfiguration={"CORSRules": [RULE] * 101})
    refused("MalformedXML", door.s3.put_bucket_cors, **of, CORSConfiguration={"CORSRules": []})
    equal(status_of(door.s3.delete_bucket_cors(**of)), 204, "removal")
    equal(status_of(door.s3.delete_bucket_cors(**of)), 204, "removal of nothing")
    refused("NoSuchCORSConfiguration", door.s3.get_bucket_cors, **of)


@case("GetObject: Origin, NoSuchKey", "ListObjects: Origin", "PutObject: Origin, AccessDenied")
def requests_of_other_origins(door):
    name = door.bucket(ACL="public-read")
    door.s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": RULES})
    ask = "Access-Control-Request-Method"
    suffix = {"Origin": "foo.suffix"}
    for method, path, headers, status, origin, methods in [
        ("GET", "", {}, 200, None, None),
        ("GET", "", suffix, 200, "foo.suffix", "GET"),
        ("GET", "", {"Origin": "foo.bar"}, 200, None, None),
        ("GET", "", {"Origin": "foo.suffix.get"}, 200, None, None),
        ("GET", "", {"Origin": "startend"}, 200, "startend", "GET"),
        ("GET", "", {"Origin": "start12end"}, 200, "start12end", "GET"),
        ("GET", "", {"Origin": "0start12end"}, 200, None, None),
        ("GET", "", {"Origin": "prefix.suffix"}, 200, "prefix.suffix", "GET"),
        ("GET", "", {"Origin": "bla.prefix"}, 200, None, None),
        ("GET", "/bar", suffix, 404, "foo.suffix", "GET"),
        ("PUT", "/bar", {**suffix, ask: "GET"}, 403, "foo.suffix", "GET"),
        ("PUT", "/bar", {**suffix, ask: "PUT"}, 403, None, None),
        ("PUT", "/bar", suffix, 403, None, None),
        ("PUT", "/bar", {"Origin": "foo.put"}, 403, "foo.put", "PUT"),
        ("OPTIONS", "", {}, 400, None, None),
        ("OPTIONS", "", suffix, 400, None, None),
        ("OPTIONS", "/bar", {**suffix, ask: "GET"}, 200, "foo.suffix", "GET"),
        ("OPTIONS", "/bar", {**suffix, ask: "PUT"}, 403, None, None),
        ("OPTIONS", "", {**suffix, ask: "GET", "Access-Control-Request-Headers": "x-amz-meta-a"}, 403, None, None),
        ("OPTIONS", "", {"Origin": "foo.bar", ask: "GET"}, 403, None, None),
        ("OPTIONS", "/bar", {"Origin": "foo.put", ask: "PUT"}, 200, "foo.put", "PUT"),
    ]:
        answer = door.raw(method, f"/{name}{path}", headers, key=None)
        found = answer.status, answer.headers.get("access-control-allow-origin"), answer.headers.get("access-control-allow-methods")
        equal(found, (status, origin, methods), (method, path, headers))


# --- tags ---

TAGS = "PutObjectTagging|GetObjectTagging|DeleteObjectTagging"


def tags(count, key_length=1, value_length=1):
    return [{"Key": f"{number:0{key_length}}", "Value": "v" * value_length} for number in range(count)]


@case(f"{TAGS}: success", "GetObject: success", "HeadObject: success")
def tags_of_an_object(door):
    of = {"Bucket": door.bucket("k"), "Key": "k"}
    for kept in [tags(1), tags(10), tags(10, 128, 256), [{"Key": "ü +&=", "Value": ""}], []]:
        equal(status_of(door.s3.put_object_tagging(**of, Tagging={"TagSet": kept})), 200, "put")
        equal(door.s3.get_object_tagging(**of)["TagSet"], kept, "tags")
        count = str(len(kept)) if kept else None
        for method in ["GET", "HEAD"]:
            equal(door.raw(method, f"/{of['Bucket']}/k").headers.get("x-amz-tagging-count"), count, f"count of {method}")
    door.s3.put_object_tagging(**of, Tagging={"TagSet": tags(2)})
    equal(status_of(door.s3.delete_object_tagging(**of)), 204, "removal")
    equal(door.s3.get_object_tagging(**of)["TagSet"], [], "no tags")


@case("PutObjectTagging: BadRequest, InvalidTag, MalformedXML", "PutObject: x-amz-tagging, BadRequest, InvalidTag, InvalidArgument")
def tags_have_limits(door):
    of = {"Bucket": door.bucket("k"), "Key": "k"}
    for code, wrong in [
        ("BadRequest", tags(11)),
        ("InvalidTag", tags(1, 129)),
        ("InvalidTag", tags(1, 1, 257)),
        ("InvalidTag", [{"Key": "", "Value": "x"}]),
        ("InvalidTag", tags(1) * 2),
    ]:
        entries = "".join(f"<Tag><Key>{tag['Key']}</Key><Value>{tag['Value']}</Value></Tag>" for tag in wrong)
        body = f"<Tagging><TagSet>{entries}</TagSet></Tagging>".encode()
        equal(door.raw("PUT", f"/{of['Bucket']}/k?tagging", body=body).code, code, wrong)
        text = "&".join(f"{tag['Key']}={tag['Value']}" for tag in wrong)
        refused(code, door.s3.put_object, **of, Tagging=text)
    path = f"/{of['Bucket']}/k"
    equal(door.raw("PUT", path, {"x-amz-tagging": "a=%FF"}).code, "InvalidArgument", "no UTF-8")
    for body in [b"<Tagging>", b"none", b"<Tagging><TagSet><Tag/></TagSet></Tagging>", b"<Other/>"]:
        equal(door.raw("PUT", f"{path}?tagging", body=body).code, "MalformedXML", body)
    door.s3.put_object(**of, Tagging="foo=bar&bar")
    equal(door.s3.get_object_tagging(**of)["TagSet"], [{"Key": "foo", "Value": "bar"}, {"Key": "bar", "Value": ""}], "tags")
