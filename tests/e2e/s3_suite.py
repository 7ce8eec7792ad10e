"""Cases of the S3 door: what an operation answers, one behaviour of Amazon's documentation each.

A case says which cells of the table of coverage (s3_coverage.py) it fills: `GetObject: success, Range, InvalidRange`. The
recorder watches what passes on the wire, and a case that claims a cell which it did not touch fails: the table is a fact.
"""

import concurrent.futures
import itertools
import os
import re
import threading
import traceback
import urllib.parse
from dataclasses import dataclass, field

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from harness import equal
from s3_raw import Raw
from s3_statuses import STATUSES

REGION = "us-east-1"
MIB = 1 << 20
# Cases at a time. They wait for the door more than they compute.
WORKERS = 4
# Runs the cases with this text in their name only.
ONLY = os.environ.get("HEKATE_S3_CASE", "")


# --- cases ---


@dataclass
class Case:
    function: object
    claims: set  # of (operation, item)


CASES = {}  # module -> name -> case


def case(*claims):
    """`claims`: `Operation: item, item`. Items are `success`, codes of errors, headers, parameters and elements."""

    def register(function):
        cells = {cell for claim in claims for cell in cells_of(claim)}
        cases = CASES.setdefault(function.__module__.removeprefix("s3_cases_"), {})
        cases.setdefault(function.__name__, Case(function, set())).claims.update(cells)
        return function

    return register


def cells_of(claim):
    operations, _, items = claim.partition(": ")
    return [(operation, item.strip()) for operation in operations.split("|") for item in items.split(",")]


def run_cases(module, url):
    """Runs all cases of a module against a door; fails with the trace of each that failed."""
    cases = [each for name, each in CASES[module].items() if ONLY in f"{module}.{name}"]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        failures = [failed for failed in pool.map(lambda each: run_case(each, url), cases) if failed]
    assert not failures, f"{len(failures)} of {len(cases)} cases failed\n\n" + "\n\n".join(failures)


def run_case(each, url):
    """-> why it failed."""
    door = Door(url)
    try:
        each.function(door)
        missing = {cell for cell in each.claims if not door.seen.has(*cell)}
        assert not missing, f"it claims what it did not do: {sorted(missing)}; seen: {door.seen}"
        equal(door.seen.wrong, [], "statuses that are not those of their codes")
    except Exception:  # all cases are to run
        return f"--- {each.function.__module__}.{each.function.__name__}\n{traceback.format_exc(limit=-4)}"
    return None


# --- what a case gets ---

NUMBERS = itertools.count(1)
CODE = re.compile(rb"<Code>(\w+)</Code>")


class Door:
    """A door and its keys: full, reader (reads only), limited (writes buckets `limited` and reads `readable`)."""

    def __init__(self, url):
        self.url, self.seen = url, Seen()
        self.address = urllib.parse.urlsplit(url).netloc
        self.raw = Raw(self.address, self.seen.exchange)
        self._s3 = None

    @property
    def s3(self):
        self._s3 = self._s3 or self.client()
        return self._s3

    def client(self, key="full", **settings):
        """`key`: None is a client that does not sign."""
        settings = {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 1}, **settings}
        config = Config(signature_version="s3v4" if key else UNSIGNED, **settings)
        with MAKING:  # boto3 makes one client at a time
            made = SESSION.client(
                "s3",
                endpoint_url=self.url,
                region_name=REGION,
                aws_access_key_id=key or "none",
                aws_secret_access_key=f"{key}-secret",
                config=config,
            )
        made.meta.events.register("before-send.s3", self.seen.request)
        made.meta.events.register("response-received.s3", self.seen.response)
        return made

    def name(self):
        """The name of a bucket that does not exist."""
        return f"case-{os.getpid()}-{next(NUMBERS)}"

    def bucket(self, *keys, **arguments):
        """-> a new bucket with these objects, whose contents are their keys."""
        name = self.name()
        self.s3.create_bucket(Bucket=name, **arguments)
        for key in keys:
            self.s3.put_object(Bucket=name, Key=key, Body=key.encode())
        return name


SESSION = boto3.session.Session()
MAKING = threading.Lock()


@dataclass
class Seen:
    """What passed between a case and the door."""

    touched: set = field(default_factory=set)
    wrong: list = field(default_factory=list)
    last: tuple = ()

    def request(self, request, **_):
        self.last = (request.method, request.url, dict(request.headers), request.body)

    def response(self, response_dict, **_):
        body = response_dict["body"]  # a stream, if it is an object's
        self.exchange(*self.last, response_dict["status_code"], body if isinstance(body, bytes) else b"")

    def exchange(self, method, url, headers, body, status, answer):
        """Notes a request and its answer."""
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        headers = {text(name).lower(): text(value) for name, value in headers.items()}
        operation = operation_of(method, parts.path, query, headers)
        codes = CODE.findall(answer) if answer.startswith(b"<?xml") else []
        items = {code.decode() for code in codes}
        if status < 300:
            items.add("success")
        elif codes:
            self.wrong += [f"{operation}: {code} with {status}" for code in items if STATUSES.get(code) != status]
        else:
            items.add(bare(status))
        items |= set(headers) | {name.lower() for name in query}
        if isinstance(body, (bytes, bytearray)) and body[:1] == b"<":
            items |= {name.decode().lower() for name in re.findall(rb"<(\w+)", body)}
        self.touched |= {(operation, item) for item in items}

    def has(self, operation, item):
        """Where an answer has no body, its status stands for its code."""
        return any((operation, found) in self.touched for found in [item, item.lower(), bare(STATUSES.get(item))])


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def bare(status):
    return f"{status} without a body"


# --- which operation a request is ---

OF_SERVICE = [("GET", "", "ListBuckets")]
OF_BUCKET = [
    ("GET", "acl", "GetBucketAcl"),
    ("GET", "cors", "GetBucketCors"),
    ("GET", "location", "GetBucketLocation"),
    ("GET", "versioning", "GetBucketVersioning"),
    ("GET", "versions", "ListObjectVersions"),
    ("GET", "uploads", "ListMultipartUploads"),
    ("GET", "list-type", "ListObjectsV2"),
    ("GET", "", "ListObjects"),
    ("HEAD", "", "HeadBucket"),
    ("PUT", "acl", "PutBucketAcl"),
    ("PUT", "cors", "PutBucketCors"),
    ("PUT", "", "CreateBucket"),
    ("DELETE", "cors", "DeleteBucketCors"),
    ("DELETE", "", "DeleteBucket"),
    ("POST", "delete", "DeleteObjects"),
]
OF_OBJECT = [
    ("GET", "acl", "GetObjectAcl"),
    ("GET", "attributes", "GetObjectAttributes"),
    ("GET", "tagging", "GetObjectTagging"),
    ("GET", "uploadId", "ListParts"),
    ("GET", "", "GetObject"),
    ("HEAD", "", "HeadObject"),
    ("PUT", "acl", "PutObjectAcl"),
    ("PUT", "tagging", "PutObjectTagging"),
    ("PUT", "uploadId", "UploadPart"),
    ("PUT", "", "PutObject"),
    ("DELETE", "tagging", "DeleteObjectTagging"),
    ("DELETE", "uploadId", "AbortMultipartUpload"),
    ("DELETE", "", "DeleteObject"),
    ("POST", "uploads", "CreateMultipartUpload"),
    ("POST", "uploadId", "CompleteMultipartUpload"),
]
OF_COPIES = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}


def operation_of(method, path, query, headers):
    bucket, _, key = path.lstrip("/").partition("/")
    rows = OF_OBJECT if key else OF_BUCKET if bucket else OF_SERVICE
    found = next((name for its, parameter, name in rows if its == method and (not parameter or parameter in query)), method)
    return OF_COPIES.get(found, found) if "x-amz-copy-source" in headers else found


# --- what cases assert ---


def refused(code, call, **arguments):
    """The call must end with this code, or with this status where an answer has no body. -> the response."""
    try:
        call(**arguments)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{call.__name__}: {error}, not {code}"
        return error.response
    raise AssertionError(f"{call.__name__}: succeeded, not {code}")


def content(s3, bucket, key, **arguments):
    return s3.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()


def headers_of(answer):
    return answer["ResponseMetadata"]["HTTPHeaders"]


def status_of(answer):
    return answer["ResponseMetadata"]["HTTPStatusCode"]


def keys_of(answer):
    return [entry["Key"] for entry in answer.get("Contents", [])]


def prefixes_of(answer):
    return [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])]
