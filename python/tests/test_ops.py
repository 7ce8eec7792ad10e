"""The generated encoding of ops, replies and errors."""

import copy
import os
import pickle
import random
import struct

import generate
import pytest
import samples

from hekate import HekateError, ops


def test_the_generated_files_are_current():
    assert [str(path) for path in generate.stale()] == [], "run python/generate.py"


@pytest.mark.parametrize("seed", range(30))
def test_what_was_encoded_is_decoded(seed):
    source = random.Random(seed)
    for op in samples.all_ops(source):
        data = op.encode()
        assert ops.decode_op(data) == op and ops.decode_op(b"xx" + data + b"yy", 2, 2 + len(data)) == op
        assert pickle.loads(pickle.dumps(op)) == op == copy.deepcopy(op) == op.changed()
    for result in samples.all_results(source):
        data = ops.encode_result(result)
        if isinstance(result, HekateError):
            with pytest.raises(HekateError) as caught:
                ops.decode_result(data)
            assert (caught.value.encoded, caught.value.name) == (result.encoded, result.name)
        else:
            assert ops.decode_result(data) == result


@pytest.mark.parametrize("seed", range(3))
def test_cut_and_changed_bytes_are_malformed_and_nothing_else(seed):
    source = random.Random(seed)
    cases = [(ops.decode_op, op.encode()) for op in samples.all_ops(source)]
    cases += [(ops.decode_result, ops.encode_result(result)) for result in samples.all_results(source)]
    for decode, data in cases:
        for end in range(len(data)):
            with pytest.raises(ops.Malformed):
                decode(data[:end])
            with pytest.raises(ops.Malformed):
                decode(data, 0, end)
        with pytest.raises(ops.Malformed):
            decode(data + b"\0")
        for _ in range(60):
            changed = bytearray(data)
            changed[source.randrange(len(data))] = source.randrange(256)
            try:
                decode(bytes(changed))
            except (ops.Malformed, HekateError):
                pass


def test_the_first_bytes_are_those_of_the_wire():
    """As in crates/proto: family, number, inode id in little-endian, length and bytes of the name."""
    assert ops.Lookup(5, b"ab").encode() == b"\1\1" + struct.pack("<QQI", 5, 0, 2) + b"ab"
    assert ops.StatFs().encode() == b"\5\1"
    assert ops.encode_result(ops.DoneReply()) == b"\1\1"
    assert ops.encode_result(OSError(13, "no")) == b"\0\x29\x0d\0\0\0\2\0\0\0no"
    assert ops.encode_result(ops.error("NotFound")) == b"\0\1"


def test_errors_are_of_pythons_classes_and_keep_their_name():
    assert isinstance(ops.error("NotFound"), FileNotFoundError)
    assert isinstance(ops.error("Exists"), FileExistsError)
    error = ops.error("Refused", errno=122, what="over quota")
    assert (error.errno, error.what, str(error)) == (122, "over quota", "[Errno 122] refused by a translator: over quota")
    assert ops.error("Refused", errno=4000, what="").errno == 5
    with pytest.raises(TypeError, match="there are: NotFound"):
        ops.error("Nonsense")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0", b"x" * 256])
def test_what_is_no_name_is_not_encoded(name):
    with pytest.raises(ValueError, match="not a name"):
        ops.Lookup(1, name).encode()
    with pytest.raises(ops.Malformed):
        ops.decode_op(b"\1\1" + struct.pack("<QQI", 5, 0, len(name)) + name)


def test_a_number_that_an_enum_does_not_have_is_not_encoded():
    lock = ops.Lock(99, ops.LockStyle.Posix, 0, 1, 1, 0)
    with pytest.raises(ValueError, match="99 is none of"):
        ops.GetLock(1, lock).encode()
    assert ops.GetLock(1, lock.changed(kind=1)).encode() == ops.GetLock(1, lock.changed(kind=ops.LockKind(1))).encode()


def test_a_name_is_bytes():
    with pytest.raises(TypeError, match="a name is bytes, not str"):
        ops.Lookup(1, "text").encode()


def test_a_count_beyond_the_bytes_allocates_nothing():
    with pytest.raises(ops.Malformed, match="count of a list"):
        ops.decode_reply(b"\5" + struct.pack("<I", 1 << 31) + b"\0" * 20)


def test_every_op_has_replies_and_a_method():
    assert len(ops.OPS) == len(samples.VOCABULARY.ops) == 37
    for label, op in ops.OPS.items():
        assert op.label == label and hasattr(ops.Next, op.method) and ops.REPLIES_OF[op]


def test_the_stub_is_python():
    path = os.path.join(os.path.dirname(ops.__file__), "ops.pyi")
    with open(path) as file:
        compile(file.read(), path, "exec")
