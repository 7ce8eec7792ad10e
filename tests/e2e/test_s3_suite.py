"""The S3 door by the cases of s3_cases_*.py: each operation, each documented error, each header and parameter.

`S3_ENDPOINT` names a running door with the keys below. HEKATE_S3_CASE=TEXT: only cases with this text in their name.
"""

import importlib
import os

import pytest

pytest.importorskip("boto3", reason="boto3 is missing: scripts/setup.sh test unpacks it")

import s3_coverage  # noqa: E402
from s3 import key_of, open_door  # noqa: E402
from s3_suite import CASES, run_cases  # noqa: E402

MODULES = s3_coverage.MODULES
for name in MODULES:
    importlib.import_module(f"s3_cases_{name}")


@pytest.fixture
def endpoint(store):
    """The URL of a door with the keys that s3_suite.Door names."""
    if "S3_ENDPOINT" in os.environ:
        return os.environ["S3_ENDPOINT"]
    store.init(bricks=2)
    store.serve()
    port = open_door(store, options=["--http", "--domain", "s3.localhost"])
    keys = {"full": [], "reader": ["--read-only"], "limited": ["--bucket", "limited:write", "--bucket", "readable:read"]}
    for key, options in keys.items():
        secret = store.path(key)
        with open(secret, "w", encoding="ascii") as file:
            file.write(f"{key}-secret")
        key_of(store, "--id", key, "--secret-file", secret, "--uid", "1000", "--gid", "1000", *options)
    return f"http://127.0.0.1:{port}"


@pytest.mark.no_fuse
@pytest.mark.limit(180)
@pytest.mark.parametrize("module", MODULES)
def test_cases_of(endpoint, module):
    run_cases(module, endpoint)


@pytest.mark.no_fuse
def test_every_cell_of_the_coverage_has_a_case():
    """HEKATE_BLESS=1 writes docs/s3-coverage.md."""
    s3_coverage.check(CASES)
