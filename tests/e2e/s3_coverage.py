"""What the cases of the S3 door have to cover, and the table of which does: docs/s3-coverage.md.

A row of `REQUIRED` is an operation with the errors that Amazon documents for it and that the door has, and with the headers,
parameters and elements that docs/s3.md says it takes. Codes have a capital and a small letter at their begin.
"""

import os
import re

from s3_statuses import STATUSES

MODULES = ["access", "buckets", "copies", "listing", "multipart", "objects", "reads", "settings"]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PAGE = "docs/s3-coverage.md"
FIX = f"HEKATE_BLESS=1 tests/e2e/run.sh test_s3_suite.py writes {PAGE}"

CONDITIONS = "If-Match If-None-Match If-Modified-Since If-Unmodified-Since"
SUMS = "x-amz-checksum-crc32 x-amz-checksum-crc32c x-amz-checksum-crc64nvme x-amz-checksum-sha1 x-amz-checksum-sha256"
OF_SOURCE = (
    "x-amz-copy-source x-amz-copy-source-if-match x-amz-copy-source-if-none-match x-amz-copy-source-if-modified-since "
    "x-amz-copy-source-if-unmodified-since"
)
OVERRIDES = (
    "response-cache-control response-content-disposition response-content-encoding response-content-language "
    "response-content-type response-expires"
)
OF_OBJECT = "AccessDenied NoSuchBucket NoSuchKey"
OF_UPLOAD = "AccessDenied NoSuchBucket NoSuchUpload"

REQUIRED = {
    "AbortMultipartUpload": f"{OF_UPLOAD} uploadId",
    "CompleteMultipartUpload": f"{OF_UPLOAD} InvalidPart InvalidPartOrder EntityTooSmall MalformedXML InvalidRequest BadDigest NoSuchKey "
    "PreconditionFailed uploadId If-Match If-None-Match x-amz-checksum-sha256 x-amz-checksum-type x-amz-mp-object-size",
    "CopyObject": f"{OF_OBJECT} InvalidArgument InvalidRequest KeyTooLongError NoSuchVersion PreconditionFailed InvalidStorageClass "
    f"MetadataTooLarge InvalidTag NotImplemented {OF_SOURCE} x-amz-metadata-directive x-amz-tagging-directive x-amz-tagging x-amz-acl "
    "x-amz-storage-class x-amz-checksum-algorithm Content-Type If-Match If-None-Match",
    "CreateBucket": "AccessDenied BucketAlreadyOwnedByYou InvalidBucketName InvalidLocationConstraint MalformedXML InvalidArgument "
    "NotImplemented x-amz-acl LocationConstraint",
    "CreateMultipartUpload": "AccessDenied NoSuchBucket InvalidArgument InvalidRequest KeyTooLongError InvalidStorageClass "
    "MetadataTooLarge InvalidTag NotImplemented x-amz-checksum-algorithm x-amz-checksum-type x-amz-meta-one x-amz-tagging x-amz-acl "
    "x-amz-storage-class Content-Type Cache-Control",
    "DeleteBucket": "AccessDenied NoSuchBucket BucketNotEmpty",
    "DeleteBucketCors": "AccessDenied NoSuchBucket",
    "DeleteObject": f"{OF_OBJECT} NoSuchVersion NotImplemented If-Match PreconditionFailed X-Amz-Expires",
    "DeleteObjectTagging": OF_OBJECT,
    "DeleteObjects": "AccessDenied NoSuchBucket MalformedXML BadDigest MissingRequestBodyError NoSuchVersion KeyTooLongError Quiet ETag "
    "Content-MD5",
    "GetBucketAcl": "AccessDenied NoSuchBucket",
    "GetBucketCors": "AccessDenied NoSuchBucket NoSuchCORSConfiguration",
    "GetBucketLocation": "AccessDenied NoSuchBucket",
    "GetBucketVersioning": "AccessDenied NoSuchBucket",
    "GetObject": f"{OF_OBJECT} NoSuchVersion NotModified PreconditionFailed InvalidRange InvalidPartNumber InvalidArgument InvalidRequest "
    "InvalidURI InvalidAccessKeyId SignatureDoesNotMatch AuthorizationHeaderMalformed AuthorizationQueryParametersError "
    f"RequestTimeTooSkewed Range partNumber {CONDITIONS} {OVERRIDES} x-amz-checksum-mode Origin X-Amz-Expires X-Amz-Signature",
    "GetObjectAcl": OF_OBJECT,
    "GetObjectAttributes": f"{OF_OBJECT} InvalidArgument InvalidRequest x-amz-object-attributes x-amz-max-parts x-amz-part-number-marker",
    "GetObjectTagging": OF_OBJECT,
    "HeadBucket": "AccessDenied NoSuchBucket",
    "HeadObject": f"AccessDenied NoSuchBucket NoSuchKey NotModified PreconditionFailed InvalidRange Range partNumber {CONDITIONS} "
    f"{OVERRIDES} x-amz-checksum-mode X-Amz-Expires",
    "ListBuckets": "AccessDenied InvalidAccessKeyId SignatureDoesNotMatch InvalidArgument prefix max-buckets continuation-token",
    "ListMultipartUploads": "AccessDenied NoSuchBucket InvalidArgument prefix delimiter key-marker upload-id-marker max-uploads "
    "encoding-type",
    "ListObjectVersions": "AccessDenied NoSuchBucket InvalidArgument prefix delimiter key-marker version-id-marker max-keys encoding-type",
    "ListObjects": "AccessDenied NoSuchBucket InvalidArgument prefix delimiter marker max-keys encoding-type Origin",
    "ListObjectsV2": "AccessDenied NoSuchBucket InvalidArgument prefix delimiter start-after continuation-token max-keys fetch-owner "
    "encoding-type",
    "ListParts": f"{OF_UPLOAD} InvalidArgument uploadId part-number-marker max-parts",
    "PutBucketAcl": "AccessDenied NoSuchBucket InvalidArgument MalformedACLError MalformedXML MissingSecurityHeader UnexpectedContent "
    "UnresolvableGrantByEmailAddress NotImplemented x-amz-acl AccessControlPolicy",
    "PutBucketCors": "AccessDenied NoSuchBucket MalformedXML InvalidRequest",
    "PutObject": f"{OF_OBJECT} MissingContentLength EntityTooLarge BadDigest InvalidDigest XAmzContentSHA256Mismatch InvalidRequest "
    "InvalidArgument InvalidStorageClass InvalidTag BadRequest KeyTooLongError MetadataTooLarge PreconditionFailed NotImplemented "
    f"InvalidAccessKeyId SignatureDoesNotMatch Content-MD5 {SUMS} x-amz-sdk-checksum-algorithm x-amz-meta-one x-amz-tagging "
    "x-amz-storage-class x-amz-website-redirect-location Cache-Control Content-Disposition Content-Encoding Content-Language "
    "Content-Type Expires If-Match If-None-Match Date x-amz-date Origin X-Amz-Expires x-amz-acl",
    "PutObjectAcl": f"{OF_OBJECT} InvalidArgument MalformedACLError MalformedXML MissingSecurityHeader UnexpectedContent "
    "UnresolvableGrantByEmailAddress NotImplemented x-amz-acl AccessControlPolicy",
    "PutObjectTagging": f"{OF_OBJECT} BadRequest InvalidTag MalformedXML",
    "UploadPart": f"{OF_UPLOAD} InvalidArgument InvalidRequest BadDigest InvalidDigest EntityTooLarge MissingContentLength partNumber "
    f"uploadId Content-MD5 {SUMS}",
    "UploadPartCopy": f"{OF_UPLOAD} NoSuchKey InvalidArgument InvalidRange NoSuchVersion PreconditionFailed partNumber uploadId {OF_SOURCE} "
    "x-amz-copy-source-range",
}

HEAD = """# Coverage of the S3 door

Each row is an error, header, parameter or element of an operation of [s3.md](s3.md), and the cases that show what the
door does with it: the file of `tests/e2e` that begins with `s3_cases_` and ends with the case's first word, and the
function after the dot. A case that does not touch on the wire what its row says fails. `tests/e2e/run.sh
test_s3_suite.py` runs all of them, and `HEKATE_S3_CASE=NAME` before it those with a name.

Requests of every operation are refused alike where the signature, the address or the method is wrong; the rows of
GetObject and PutObject stand for all.

| operation | what | answer | cases |
|---|---|---|---|
"""


def page(cases):
    """The text of the document."""
    covered = {}
    for module, functions in cases.items():
        for name, case in functions.items():
            for cell in case.claims:
                covered.setdefault(cell, []).append(f"{module}.{name}")
    rows, empty = [], []
    for operation, items in REQUIRED.items():
        for item in ["success", *items.split()]:
            found = sorted(covered.get((operation, item), []))
            rows.append(f"| {operation} | {item if item == 'success' else f'`{item}`'} | {answer(item)} | {', '.join(found)} |")
            if not found:
                empty.append(f"{operation}: {item}")
    assert not empty, f"no case covers {empty}"
    return HEAD + "\n".join(rows) + "\n"


def answer(item):
    if item == "success":
        return "2xx"
    return str(STATUSES[item]) if re.match("[A-Z][A-Za-z0-9]+$", item) and item in STATUSES else "is taken"


def operations_of_the_page():
    """Operation -> the names in backticks and words of its column `takes`."""
    with open(f"{ROOT}/docs/s3.md", encoding="utf-8") as file:
        table = file.read().split("<!-- begin: operations -->")[1].split("<!-- end: operations -->")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    wildcard, name = r"\S+\*", r"[A-Za-z]\w*-[\w-]*\w|\b(?:Range|Quiet|Expires|partNumber|uploadId)\b"
    return {row[0].strip(): re.findall(name, re.sub(wildcard, "", row[3])) for row in rows}


def check(cases):
    """Every operation of docs/s3.md is required, what it takes also, every cell has a case, and the document says so."""
    taken = operations_of_the_page()
    assert set(taken) == set(REQUIRED), f"docs/s3.md has other operations: {set(taken) ^ set(REQUIRED)}"
    for operation, names in taken.items():
        required = {word.lower() for word in REQUIRED[operation].split()}
        missing = [name for name in names if name.lower() not in required and name != "public-read"]
        assert not missing, f"docs/s3.md says that {operation} takes {missing}, which no case has to cover"
    text, path = page(cases), f"{ROOT}/{PAGE}"
    if os.environ.get("HEKATE_BLESS"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with open(path, encoding="utf-8") as file:
        assert file.read() == text, f"{PAGE} is not what the cases cover; {FIX}"
