"""Requests to an S3 door byte by byte, for what SDKs refuse to send: signed by botocore, sent by http.client."""

import hashlib
import http.client
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REGION = "us-east-1"


@dataclass
class Answer:
    status: int
    headers: dict  # names in lower case
    body: bytes

    @property
    def code(self):
        """The code of an error in XML."""
        return self.element("Code") if self.status >= 300 else None

    def element(self, name):
        """The text of the first element of this name."""
        found = re.search(rf"<{name}>(.*?)</{name}>".encode(), self.body, re.DOTALL)
        return found and found[1].decode()

    def elements(self, name):
        return [found.decode() for found in re.findall(rf"<{name}>(.*?)</{name}>".encode(), self.body, re.DOTALL)]


class Raw:
    """Sends requests. `observe` is called with each request and its answer."""

    def __init__(self, address, observe=lambda *_: None):
        self.address, self.observe = address, observe

    def __call__(self, method, path, headers=(), body=b"", key="full", change=(), secret=None, region=REGION, payload=None):
        """Sends a request. `path`: as it is to be sent, with the query. `key`: None is a request without a signature.

        `change`: headers that are set after the signature was made; None removes one. `payload`: x-amz-content-sha256.
        """
        url = f"http://{self.address}{path}"
        request = AWSRequest(method=method, url=url, headers={"Host": self.address, **dict(headers)}, data=body)
        if key is not None:
            request.headers["x-amz-content-sha256"] = payload or hashlib.sha256(body).hexdigest()
            Signer(Credentials(key, secret or f"{key}-secret"), "s3", region).add_auth(request)
        sent = dict(request.headers.items())
        sent.setdefault("Content-Length", str(len(body)))
        for name, value in dict(change).items():
            sent = {its: text for its, text in sent.items() if its.lower() != name.lower()}
            if value is not None:
                sent[name] = value
        return self.send(method, path, sent, body)

    def send(self, method, path, headers, body=b"", method_of=None):
        """Sends exactly these headers."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()
        self.observe(method, f"http://{self.address}{path}", headers, body, answer.status, answer.body)
        return answer

    def presigned(self, method, path, expires=60, key="full", headers=(), region=REGION, change=lambda url: url):
        """The path and query of a presigned URL."""
        request = AWSRequest(method=method, url=f"http://{self.address}{path}", headers={"Host": self.address, **dict(headers)})
        QuerySigner(Credentials(key, f"{key}-secret"), "s3", region, expires=expires).add_auth(request)
        return change(request.url.removeprefix(f"http://{self.address}"))

    def get(self, path, headers=()):
        """A GET without a signature of its own."""
        return self.send("GET", path, {"Host": self.address, **dict(headers)})


class Signer(S3SigV4Auth):
    """Signs the hash that the request has already."""

    def _should_sha256_sign_payload(self, request):
        return True

    def payload(self, request):
        return request.headers["x-amz-content-sha256"]

    def _modify_request_before_signing(self, request):
        kept = request.headers["x-amz-content-sha256"]
        super()._modify_request_before_signing(request)
        del request.headers["x-amz-content-sha256"]
        request.headers["x-amz-content-sha256"] = kept


class QuerySigner(S3SigV4QueryAuth):
    pass


def parameters_of(path):
    return dict(parse_qsl(path.partition("?")[2], keep_blank_values=True))
