"""include/hekate_ops.h: compiles without a warning, and agrees with Python about every encoding."""

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import samples
from generate import ROOT

from hekate import HekateError, ops

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(ROOT / "include")]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The round trip as a program that ends at any read or write beyond a buffer."""
    path = tmp_path_factory.mktemp("header") / "roundtrip"
    source = str(Path(__file__).parent / "roundtrip.c")
    subprocess.run(["cc", *STRICT, "-O1", "-o", str(path), source], check=True)
    checked = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *STRICT, *checked, "-o", str(path), source], check=False)
    return path


def run(program, records):
    """What the program made of each (kind, bytes): bytes, or None if it found them malformed."""
    sent = b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in records)
    done = subprocess.run([str(program)], input=sent, stdout=subprocess.PIPE, check=True).stdout
    found, at = [], 0
    for _ in records:
        (length,) = struct.unpack_from("<I", done, at)
        found.append(done[at + 4 : at + 4 + length] or None)
        at += 4 + length
    assert at == len(done)
    return found


def encodings(source):
    records = [(b"o", op.encode()) for op in samples.all_ops(source)]
    return records + [(b"r", ops.encode_result(result)) for result in samples.all_results(source)]


@pytest.mark.parametrize("seed", range(10))
def test_c_decodes_and_encodes_what_python_does(program, seed):
    records = encodings(random.Random(seed))
    assert run(program, records) == [data for _, data in records]


@pytest.mark.parametrize("seed", range(3))
def test_c_refuses_what_python_refuses(program, seed):
    source, records = random.Random(seed), []
    for kind, data in encodings(source):
        records += [(kind, data[:end]) for end in range(len(data))] + [(kind, data + b"\0")]
        for _ in range(60):
            changed = bytearray(data)
            changed[source.randrange(len(data))] = source.randrange(256)
            records.append((kind, bytes(changed)))
    for (kind, data), found in zip(records, run(program, records)):
        assert found == (data if is_valid(kind, data) else None), (kind, data)


def is_valid(kind, data):
    try:
        (ops.decode_op if kind == b"o" else ops.decode_result)(data)
    except ops.Malformed:
        return False
    except HekateError:
        pass
    return True
