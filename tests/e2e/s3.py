"""The S3 door of a store, and clients of it."""

import boto3
from botocore.config import Config

from harness import free_port

REGION = "us-east-1"


def open_door(store, volume="v", port=None, options=("--http",)):
    """Opens the door of a volume. -> its port."""
    port = port or free_port()
    store.cli("s3", "enable", volume, "--listen", f"127.0.0.1:{port}", *options)
    return port


def key_of(store, *options, volume="v"):
    """-> a new access key: its id and its secret."""
    made = store.cli("--json", "s3", "key", "create", volume, *options).json()
    return made["id"], made["secret"]


def client(port, key, scheme="http", verify=None, attempts=1, **settings):
    """A client that asks `attempts` times."""
    config = Config(
        s3={"addressing_style": "path"},
        retries={"max_attempts": attempts, "mode": "standard"},
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=60,
        **settings,
    )
    return boto3.client(
        "s3",
        endpoint_url=f"{scheme}://127.0.0.1:{port}",
        region_name=REGION,
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        verify=verify,
        config=config,
    )


def code_of(function, *arguments, **named):
    """-> the code of the error that the call ends with; None if it succeeds."""
    from botocore.exceptions import ClientError

    try:
        function(*arguments, **named)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def body_of(s3, bucket, key):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def keys_of(s3, bucket):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]
