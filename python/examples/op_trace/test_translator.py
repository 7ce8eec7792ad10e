import json

import pytest

from hekate import HekateError, ops
from hekate.testing import conformance


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_op_is_a_line_with_its_fields_its_reply_and_its_time(translator, tmp_path):
    trace = translator(file=str(tmp_path / "trace"))
    trace.write("a.txt", b"12345")
    with pytest.raises(HekateError):
        trace.lookup(b"b\xff")
    create, write, lookup = lines(tmp_path / "trace")[-3:]
    assert (create["op"], create["name"], create["node"], create["reply"]) == (
        "create", "a.txt", {"is": "File"}, "NodeReply",
    )  # fmt: skip
    assert (write["op"], write["data"], write["reply"]) == ("write", 5, "DoneReply") and write["us"] >= 0
    assert (lookup["name"], lookup["error"]) == ("b\\xff", "NotFound")


def test_only_the_ops_of_the_option_are_written(translator, tmp_path):
    trace = translator(file=str(tmp_path / "trace"), ops="fsync,unlink")
    trace.write("a", b"x")
    trace.fsync("a")
    assert [line["op"] for line in lines(tmp_path / "trace")] == ["fsync"]
    with pytest.raises(ValueError, match="no choice 'look'"):
        translator(file="x", ops="look")


def test_another_file_is_written_from_a_change_of_the_option_on(translator, tmp_path):
    trace = translator(file=str(tmp_path / "one"))
    trace.write("a", b"x")
    trace.reconfigure(file=str(tmp_path / "two"))
    trace.handle(ops.StatFs())
    assert [line["op"] for line in lines(tmp_path / "two")] == ["statfs"]


def test_an_op_does_not_fail_because_its_line_cannot_be_written(translator):
    trace = translator(file="/dev/full")
    for _ in range(3):
        trace.write("a", b"x" * 10000)
    assert trace.read("a") == b"x" * 10000
    assert trace.metrics()["counts"]["lines lost"] >= 6
    trace.instance.lines.close()
    trace.fsync("a")
    assert trace.metrics()["counts"]["lines lost"] >= 1


def test_it_changes_nothing(translator, tmp_path):
    conformance(translator(file=str(tmp_path / "trace")))
