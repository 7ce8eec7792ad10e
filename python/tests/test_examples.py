"""Each example loads in a real worker and says what it is."""

import fake_host
import pytest
from fake_host import Host, attr

from hekate import HekateError, ops

EXAMPLES = sorted(path.parent for path in (fake_host.PYTHON / "examples").glob("*/translator.py"))
OPTIONS = {"op_trace": {"file": "/dev/null"}}


@pytest.mark.parametrize("directory", EXAMPLES, ids=lambda path: path.name)
def test_an_example_starts_works_reloads_and_ends(directory):
    options = OPTIONS.get(directory.name)
    with Host(directory, options) as worker:
        assert worker.first["ready"] and worker.first["summary"] and worker.first["ops"]
        for op in (ops.Lookup(1, b"a.log"), ops.Write(7, 0, b"x")):
            if op.label in worker.first["ops"]:
                answer = ops.NodeReply(attr()) if op.label == "lookup" else ops.DoneReply()
                found = worker.channels[1].call(op, lambda below, a=answer, o=op: a if below.label == o.label else NODE)
                assert found in ("passed", answer)
        state = worker.stop()
    with Host(directory, options, state=state) as worker:
        worker.stop()
        assert not [message for message in worker.messages if message.get("log") == "warn"]


NODE = ops.NodeReply(attr())


def test_a_missing_name_is_not_found_for_the_caller_as_if_from_below():
    with Host(fake_host.PYTHON / "examples" / "negative_lookup", {"lifetime": "60"}) as worker:
        asked = []
        worker.send({"begin": True})
        worker.send({"describe": True})
        worker.wait("description")

        def below(op):
            asked.append(op)
            raise ops.error("NotFound")

        for _ in range(2):
            with pytest.raises(HekateError) as caught:
                worker.channels[1].call(ops.Lookup(1, b"x"), below)
            assert caught.value.encoded == b"\1"
        assert len(asked) == 1
