"""Python and C read what the encoders in Rust wrote: the corpus of the fuzz targets, which `make check` keeps
current."""

import pytest
import samples
from codegen import rust
from generate import ROOT
from test_header import program, pytestmark, run  # noqa: F401 (a fixture)

from hekate import HekateError, ops

CORPUS = ROOT / "fuzz" / "corpus"
KNOWN_OPS = {op.numbers for op in samples.VOCABULARY.ops}
KNOWN_REPLIES = {reply.number for reply in samples.VOCABULARY.replies}


def corpus(name):
    files = sorted((CORPUS / name).iterdir())
    assert files, f"the corpus of {name} is empty"
    return [file.read_bytes() for file in files]


def test_every_client_op_of_the_corpus_is_read_and_written_alike():
    found = set()
    for data in corpus("op"):
        if tuple(data[:2]) in KNOWN_OPS:
            op = ops.decode_op(data)
            assert op.encode() == data
            found.add(op.label)
        else:
            with pytest.raises(ops.Malformed):
                ops.decode_op(data)
    assert found == set(ops.OPS)


def test_every_reply_of_the_corpus_is_read_and_written_alike():
    found = set()
    for data in corpus("reply"):
        # The corpus of this target has results.
        if data[0] == 1 and data[1] in KNOWN_REPLIES:
            reply = ops.decode_result(data)
            assert ops.encode_result(reply) == data
            found.add(type(reply).__name__)
    assert found == {reply.name + "Reply" for reply in samples.VOCABULARY.replies}


def test_every_error_of_the_corpus_is_read():
    found = set()
    for data in corpus("error"):
        error = ops.decode_error(data)
        assert isinstance(error, HekateError) and error.encoded == data
        found.add(error.name)
    assert len(found) >= 38


def test_c_reads_and_writes_the_corpus(program):  # noqa: F811
    records = [(b"o", data) for data in corpus("op")]
    expected = [data if tuple(data[:2]) in KNOWN_OPS else None for data in corpus("op")]
    records += [(b"r", b"\0" + data) for data in corpus("error")]
    expected += [b"\0" + data for data in corpus("error")]
    assert run(program, records) == expected


def test_the_labels_are_those_of_all_ops():
    labels = rust.labels((ROOT / "crates/proto/src/op/label.rs").read_text())
    assert set(labels.values()) == set(ops.OPS) | rust.INNER_OPS
