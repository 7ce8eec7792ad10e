"""A translator inside of the client's process: what the library `python-inside` calls."""

import fake_host
import pytest

from hekate import HekateError, ops
from hekate.inside import Inside
from hekate.memory import MemoryVolume

EXAMPLES = fake_host.PYTHON / "examples"


class Program:
    """The program: an instance above a volume in memory. `lines` has the log, `below` the ops that were sent below."""

    def __init__(self, directory, options=None, is_durable=False):
        self.volume, self.lines, self.below, self.is_durable = MemoryVolume(), [], [], is_durable
        self.inside = Inside(str(directory), options or {}, lambda level, text: self.lines.append((level, text)))
        self.inside.begin()

    def run_below(self, data):
        op = ops.decode_op(data)
        self.below.append(op)
        try:
            return ops.encode_result(self.volume.handle(op))
        except HekateError as error:
            return ops.encode_result(error)

    def handle(self, op):
        """The reply, or None for an op that is passed on."""
        found = self.inside.call(op.encode(), self.is_durable, self.run_below)
        return None if found is None else ops.decode_result(found)


@pytest.fixture
def program(tmp_path):
    """A factory: a translator of this source."""

    def make(source, options=None, **more):
        (tmp_path / "translator.py").write_text("from hekate import *\nimport logging\n" + source)
        return Program(tmp_path, options, **more)

    return make


def create(name):
    return ops.Create(ops.ROOT, name, ops.NewNode.File, 0o644, 0, 0, 0, True, 1)


def test_the_watermark_example_works_as_in_a_worker():
    program = Program(EXAMPLES / "watermark", {"shift": "3"})
    inode = program.volume.create("f").id
    program.handle(ops.Write(inode, 0, b"content"))
    assert program.volume.read("f") == b"frqwhqw"
    assert program.handle(ops.Read(inode, 0, 100)).bytes == b"content"
    with pytest.raises(ValueError, match="cannot change"):
        program.inside.reconfigure({"shift": "4"})
    assert program.handle(ops.Read(inode, 0, 100)).bytes == b"content"


def test_several_examples_are_instances_beside_each_other(tmp_path):
    hello, trace = Program(EXAMPLES / "hello"), Program(EXAMPLES / "op_trace", {"file": str(tmp_path / "trace")})
    assert hello.handle(ops.Lookup(ops.ROOT, b"you")) is None and hello.lines == [(3, "hello, you")]
    with pytest.raises(FileNotFoundError):
        trace.handle(ops.Lookup(ops.ROOT, b"x"))
    assert b"NotFound" in (tmp_path / "trace").read_bytes()


def test_the_cache_remembers_from_its_begin_to_a_recall():
    program = Program(EXAMPLES / "negative_lookup", {"lifetime": "60"})
    for sent in (1, 1):
        with pytest.raises(FileNotFoundError):
            program.handle(ops.Lookup(ops.ROOT, b"x"))
        assert len(program.below) == sent
    program.inside.recall()
    with pytest.raises(FileNotFoundError):
        program.handle(ops.Lookup(ops.ROOT, b"x"))
    assert len(program.below) == 2


DURABLE = """
class T(Translator):
    def unlink(self, op):
        assert op.durable
        return self.next(op.changed(durable=True))
    def create(self, op):
        return self.next(op.changed(durable=True))
    def lookup(self, op):
        return PASS
"""


def test_durable_is_what_the_caller_asked_for(program):
    durable = program(DURABLE, is_durable=True)
    durable.volume.create("f")
    assert durable.handle(ops.Unlink(ops.ROOT, b"f")) == ops.DoneReply()
    assert durable.handle(create(b"f")).created
    weak = program(DURABLE)
    with pytest.raises(HekateError, match="OSError|durable only on behalf") as caught:
        weak.handle(create(b"f"))
    assert caught.value.errno == 5 and weak.below == []


@pytest.mark.parametrize("method", ["lookup(self, op)", "truncate(self, op)", "on_start(self)", "on_live(self)"])
def test_async_methods_are_refused(program, method):
    with pytest.raises(ValueError, match="need a worker"):
        program(f"class T(Translator):\n    async def {method}: pass")


def test_timers_are_refused(program):
    with pytest.raises(ValueError, match="T.tick: async methods and timers need a worker"):
        program("class T(Translator):\n    @timer(seconds=1)\n    def tick(self): pass")


LOGS = """
class T(Translator):
    def lookup(self, op):
        for level in (logging.CRITICAL, logging.ERROR, 35, logging.WARNING, logging.INFO, logging.DEBUG, 5):
            self.log.log(level, "%s", op.name.decode("utf-8", "surrogateescape"))
        self.log.info("%d", "no number")
        return 7
    def unlink(self, op):
        raise ValueError("no luck")
    def on_recall(self):
        raise KeyError("gone")
"""


def test_log_lines_have_the_levels_and_texts_of_a_worker(program):
    found = program(LOGS)
    with pytest.raises(HekateError) as caught:
        found.handle(ops.Lookup(ops.ROOT, b"n\xff"))
    assert caught.value.errno == 5
    assert [level for level, _ in found.lines] == [1, 1, 2, 2, 3, 4, 4, 3, 1]
    assert found.lines[0][1] == "n?" and "cannot be formatted" in found.lines[-2][1]
    assert "T.lookup returned int" in found.lines[-1][1]
    with pytest.raises(HekateError):
        found.handle(ops.Unlink(ops.ROOT, b"x"))
    assert "T.unlink raised Traceback" in found.lines[-1][1] and "no luck" in found.lines[-1][1]
    found.inside.recall()
    assert "on_recall raised" in found.lines[-1][1]
    count = len(found.lines)
    found.inside.close()
    found.inside.binding.instance.log.error("nobody reads it")
    assert len(found.lines) == count


def test_without_an_op_nothing_can_be_sent_below(program):
    with pytest.raises(OSError, match="only in a method that answers an op"):
        program("class T(Translator):\n    def on_start(self): self.next.getattr(inode=1)")
