import os

import pytest

from hekate import ops
from hekate.testing import conformance


def test_bytes_are_stored_in_another_form_and_read_as_they_were(translator, volume):
    mark = translator()
    data = os.urandom(100_000) + bytes(range(256))
    mark.write("f", data)
    mark.append("f", b"end")
    assert mark.read("f") == data + b"end"
    assert volume.read("f") != data + b"end" and volume.stat("f").size == len(data) + 3
    assert b"end" not in volume.read("f")


def test_holes_and_what_truncate_adds_are_zeros(translator):
    mark = translator()
    mark.write("f", b"x", offset=10)
    mark.truncate("f", 20)
    mark.allocate("f", 0, 30)
    assert mark.read("f") == bytes(10) + b"x" + bytes(19)


def test_objects_copies_and_joins_are_read_as_they_were_written(translator):
    mark = translator()
    for name in (b"p1", b"p2"):
        source = ops.PutSource.Bytes(b"content of " + name, 0o644, 0, 0, [])
        mark.handle(ops.Put(ops.ROOT, name, None, source, b"", ops.Condition.Always, False, 1))
    assert mark.handle(ops.Fetch(ops.ROOT, b"p1", None, b"", True)).object.content == b"content of p1"
    assert mark.handle(ops.FetchInode(mark.lookup("p1").id, b"", True)).object.content == b"content of p1"
    mark.handle(ops.Copy(mark.lookup("p1").id, 0, mark.create("copy").id, 3, 100))
    assert mark.read("copy") == b"\0\0\0content of p1"
    mark.handle(ops.Join(ops.ROOT, [(b"p1", b""), (b"p2", b"")], b"all", 0o644, 0, 0, b"", [], 1))
    assert mark.read("all") == b"content of p1content of p2"


def test_the_shift_cannot_change(translator):
    mark = translator()
    with pytest.raises(ValueError, match="cannot change"):
        mark.reconfigure(shift="5")


def test_nothing_but_stored_bytes_differs(translator):
    """All replies are those of a plain volume; what is stored is not."""
    with pytest.raises(AssertionError, match="the volume is not what it should be"):
        conformance(translator())
