"""The worker process, against a host in the test: what users would lose if it did not hold."""

import contextlib
import errno
import os
import threading
import time

import fake_host
import pytest
from fake_host import FRAME, Host, attr

from hekate import HekateError, ops

LOOKUP = ops.Lookup(1, b"name")
NODE = ops.NodeReply(attr())


@pytest.fixture
def host(tmp_path):
    """A factory: a worker of a translator with this source."""
    made = []

    def make(source, **arguments):
        directory = tmp_path / f"t{len(made)}"
        directory.mkdir()
        (directory / "translator.py").write_text("import os, time, asyncio, threading\nfrom hekate import *\n" + source)
        made.append(Host(directory, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def refused(call, *arguments, **more):
    with pytest.raises(HekateError) as caught:
        call(*arguments, **more)
    return caught.value


SEVERAL = '''
class Several(Translator):
    """Does several things.

    At length."""
    limit = Option(int, default=5, minimum=1, maximum=9, help="how many")
    words = Option(list, default=["a"])

    def lookup(self, op):
        reply = self.next(op)
        reply.attr.size = self.limit
        return reply

    async def getattr(self, op):
        first = await self.next(op)
        second = await self.next.getattr(inode=first.attr.id + 1)
        return second

    def setattr(self, op):
        return PASS

    def truncate(self, op):
        raise OSError(28, "no more")

    def unlink(self, op):
        return ops.DoneReply()

    def rmdir(self, op):
        try:
            return self.next(op)
        except FileNotFoundError as error:
            raise error

    def link(self, op):
        raise ops.error("NotFound")
'''


def test_a_worker_announces_what_it_is_and_only_the_ops_that_the_class_has(host):
    first = host(SEVERAL).first
    assert first["ready"] and first["ops"] == ["getattr", "link", "lookup", "rmdir", "setattr", "unlink"]
    assert first["summary"] == "Does several things.\n\nAt length."
    assert first["options"]["limit"] == {
        "type": "int", "help": "how many", "required": False, "default": 5, "minimum": 1, "maximum": 9,
    }  # fmt: skip


def test_plain_methods_change_answer_refuse_and_pass(host):
    channel = host(SEVERAL, options={"limit": "7"}).channels[1]
    seen = []
    reply = channel.call(LOOKUP, lambda op: seen.append(op) or NODE)
    assert seen == [LOOKUP] and reply.attr.size == 7
    assert channel.call(ops.Unlink(1, b"x")) == ops.DoneReply()
    assert channel.call(ops.SetAttr(7, ops.AttrChanges(mode=5))) == "passed"
    error = refused(channel.call, ops.SetAttr(7, ops.AttrChanges(size=5)))
    assert (error.name, error.errno, error.what) == ("Refused", 28, "no more")
    assert refused(channel.call, ops.Link(1, b"x", 3)).encoded == b"\1"
    assert channel.call(ops.StatFs()) == "passed"


def test_an_error_from_below_reaches_the_caller_as_it_was(host):
    channel = host(SEVERAL).channels[1]
    for given in [ops.error("NotFound"), ops.error("Conflict", stamp=ops.Stamp(1, 2, 3)), ops.error("Io", what="x")]:

        def below(op, given=given):
            raise given

        assert refused(channel.call, ops.Rmdir(1, b"x"), below).encoded == given.encoded


def test_async_methods_run_ops_below(host):
    channel = host(SEVERAL).channels[1]
    reply = channel.call(ops.GetAttr(7), lambda op: ops.NodeReply(attr(op.inode)))
    assert reply.attr.id == 8


def test_the_flag_for_stable_storage_is_passed_on(host):
    channel = host("class T(Translator):\n"
                   "    def unlink(self, op):\n        return self.next.unlink(dir=1, name=b'y')\n"
                   "    async def rmdir(self, op):\n        return await self.next(op)").channels[1]  # fmt: skip
    seen = []

    def below(op):
        seen.append(op.durable)
        return ops.DoneReply()

    for durable in (True, False):
        channel.call(ops.Unlink(1, b"x"), below, durable)
        channel.call(ops.Rmdir(1, b"x"), below, durable)
    assert seen == [True, True, False, False]


WRONG = '''
class Wrong(Translator):
    def lookup(self, op):
        return 1 / 0

    async def getattr(self, op):
        raise KeyError("gone")

    def unlink(self, op):
        return None

    def rmdir(self, op):
        return ops.NodeReply(attr=None)

    def readlink(self, op):
        return self.next.lookup(dir=-1, name=b"x")

    def accessed(self, op):
        raise SystemExit(3)

    def statfs(self, op):
        raise OSError("no number")

    def fsync(self, op):
        async def later():
            pass
        return later()

    def getxattr(self, op):
        raise OSError(5, "x" * (9 << 20))

    def listxattr(self, op):
        raise OSError(1, os.fsdecode(b"name \\xff"))

    def parent(self, op):
        return self.next("an op")
'''


def test_an_exception_is_eio_for_the_caller_and_a_traceback_in_the_log(host):
    worker = host(WRONG)
    channel = worker.channels[1]
    for op, part in [
        (LOOKUP, "ZeroDivisionError"), (ops.GetAttr(1), "KeyError"), (ops.Accessed(1), "SystemExit"),
        (ops.StatFs(), "no number"), (ops.ReadLink(1), "has a wrong value"), (ops.Rmdir(1, b"x"), "AttributeError"),
        (ops.Parent(1), "takes an op of hekate.ops, not str"),
    ]:  # fmt: skip
        assert refused(channel.call, op, lambda op: NODE).errno == errno.EIO
        text = worker.wait_log(part)["text"]
        assert "Traceback" in text and "Wrong." in text and "in answer" not in text, text


def test_an_answer_of_a_wrong_type_is_eio_and_the_log_names_method_and_type(host):
    worker = host(WRONG)
    channel = worker.channels[1]
    assert refused(channel.call, ops.Unlink(1, b"x")).errno == errno.EIO
    assert "Wrong.unlink returned NoneType (is a `return` missing?)" in worker.wait_log("unlink")["text"]
    assert refused(channel.call, ops.Fsync(1)).errno == errno.EIO
    assert "is an `await`" in worker.wait_log("Wrong.fsync")["text"]


def test_long_and_odd_texts_of_refusals_are_shortened_and_made_utf8(host):
    channel = host(WRONG).channels[1]
    assert len(refused(channel.call, ops.GetXattr(1, b"x")).what) == 4096
    assert refused(channel.call, ops.ListXattr(1)).what == "name ?"


def test_a_reply_beyond_the_area_is_eio(host):
    source = "class T(Translator):\n    def read(self, op):\n        return ops.BytesReply(bytes(op.length))"
    worker = host(source)
    channel = worker.channels[1]
    assert len(channel.call(ops.Read(1, 0, 4 << 20)).bytes) == 4 << 20
    assert refused(channel.call, ops.Read(1, 0, 6 << 20)).errno == errno.EIO
    worker.wait_log("more than the")


LOADS = {
    "1 / 0": "ZeroDivisionError",
    "x = 1": "must have one subclass of Translator",
    "class A(Translator): pass\nclass B(Translator): pass": "it has: A, B",
    "class A(Translator):\n    def look_up(self, op): pass": "is 'lookup' meant?",
    "class A(Translator):\n    read = Option(int, default=1)": "name of an op",
    "class A(Translator):\n    memory = Option(int, default=1)": "every layer in Python has an option of this name",
    "class A(Translator):\n    x = Option(int, default='b')": "'x' is a whole number",
}


@pytest.mark.parametrize("source", LOADS)
def test_a_translator_that_cannot_be_loaded_says_why(host, source):
    worker = host(source)
    assert LOADS[source] in worker.first["failed"]
    assert worker.exit_status() == 1


def test_one_of_several_classes_can_be_named(host):
    assert host("class A(Translator): pass\nclass B(A):\n    def lookup(self, op): pass\nTRANSLATOR = B").first["ops"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"limits": "3"}, "no option 'limits'; there are: limit, words"),
        ({"limit": "10"}, "is a number from 1 to 9, not 10"),
        ({"limit": "many"}, "is a whole number from 1 to 9, not 'many'"),
    ],
)
def test_unknown_and_wrong_options_are_refused_in_words(host, options, part):
    assert part in host(SEVERAL, options=options).first["failed"]


def test_options_change_at_once_or_not_at_all(host):
    more = "\n    def on_reconfigure(self, old):\n        if self.limit == 8: raise ValueError('not 8')"
    worker = host(SEVERAL + more)
    channel = worker.channels[1]

    def size():
        return channel.call(LOOKUP, lambda op: NODE).attr.size

    worker.send({"reconfigure": {"limit": "3"}})
    assert worker.wait("reconfigured") and size() == 3
    for options, part in [({"limit": "8"}, "not 8"), ({"limit": "0"}, "from 1 to 9"), ({"x": "0"}, "no option")]:
        worker.send({"reconfigure": options})
        assert part in worker.wait("refused")["refused"] and size() == 3


def test_a_worker_that_exits_closes_its_channels(host):
    worker = host("class T(Translator):\n    def lookup(self, op): os._exit(9)")
    with pytest.raises((EOFError, ConnectionError)):
        worker.channels[1].call(LOOKUP)
    assert worker.exit_status() == 9


def test_other_channels_go_on_while_a_method_never_ends(host):
    worker = host("class T(Translator):\n    def lookup(self, op):\n        while True: pass\n"
                  "    def unlink(self, op): return self.next(op)")  # fmt: skip
    worker.channels[1].start(LOOKUP)
    before = time.monotonic()
    for _ in range(10):
        assert worker.channels[2].call(ops.Unlink(1, b"x"), lambda op: ops.DoneReply()) == ops.DoneReply()
    assert time.monotonic() - before < 10


def test_eight_channels_at_once(host):
    worker = host("class T(Translator):\n    def on_start(self):\n        self.together = threading.Barrier(8)\n"
                  "    def lookup(self, op):\n        self.together.wait(20)\n        return self.next(op)\n"
                  "    async def getattr(self, op):\n        await asyncio.sleep(0.01)\n"
                  "        return await self.next(op)",
                  channels=8)  # fmt: skip
    replies = {}

    def one(number):
        channel = worker.channels[number]
        for _ in range(5):
            found = channel.call(LOOKUP, lambda op: ops.NodeReply(attr(number)))
            replies.setdefault(number, set()).add(found.attr.id)
            found = channel.call(ops.GetAttr(3), lambda op: ops.NodeReply(attr(number)))
            replies[number].add(found.attr.id)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 9)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert replies == {number: {number} for number in range(1, 9)}


def test_ops_below_of_one_async_call_may_be_asked_at_once(host):
    channel = host("class T(Translator):\n    async def lookup(self, op):\n"
                   "        found = await asyncio.gather(*(self.next.getattr(inode=i) for i in range(1, 6)))\n"
                   "        return ops.NodeReply(found[4].attr)").channels[1]  # fmt: skip
    assert channel.call(LOOKUP, lambda op: ops.NodeReply(attr(op.inode))).attr.id == 5


def test_tasks_that_outlive_their_call_use_the_workers_own_channel(host):
    seen = []
    worker = host("class T(Translator):\n    async def lookup(self, op):\n"
                  "        async def later():\n            await asyncio.sleep(0.1)\n"
                  "            self.log.info('%s', (await self.next.getattr(inode=77)).attr.id)\n"
                  "        self.task = asyncio.create_task(later())\n        return ops.DoneReply()",
                  below=lambda op: seen.append(op) or ops.NodeReply(attr(op.inode)))  # fmt: skip
    worker.channels[1].call(LOOKUP)
    worker.wait_log("77")
    assert seen == [ops.GetAttr(77)]


TIMERS = '''
class Timed(Translator):
    def on_start(self):
        self.log.info("root has size %d", self.next.getattr(inode=1).attr.size)
    @timer(seconds=0.05)
    def tick(self):
        self.metrics.count("ticks")
        self.metrics.gauge("level", 1.5)
        self.metrics.observe("waits", 0.25)
        self.next.statfs()
    @timer(seconds=0.05)
    async def tock(self):
        await self.next.statfs()
        self.log.warning("tock")
        raise ValueError("every time")
    def lookup(self, op):
        return PASS
    def on_stop(self):
        self.log.info("stopped")
'''


def test_timers_start_and_stop_run_ops_of_their_own(host):
    space = ops.SpaceReply(ops.VolumeSpace(1, 1, 1, 1, 1))
    worker = host(TIMERS, below=lambda op: NODE if op.label == "getattr" else space)
    worker.wait_log("root has size 5")
    assert worker.wait_log("tock")["log"] == "warn"
    assert "Timed.tock raised" in worker.wait_log("every time")["text"]
    worker.wait_log("tock")
    found = worker.wait("metrics")["metrics"]
    assert found["counts"]["ticks"] >= 1 and found["gauges"] == {"level": 1.5}
    count, total, most = found["times"]["waits"]
    assert total == 0.25 * count and most == 0.25
    worker.stop()
    worker.wait_log("stopped")


def test_calls_wait_for_on_start_and_its_failure_ends_the_worker(host):
    worker = host("class T(Translator):\n    def on_start(self):\n        time.sleep(0.3)\n        self.x = 5\n"
                  "    def lookup(self, op):\n        return ops.CopiedReply(self.x)")  # fmt: skip
    assert worker.channels[1].call(LOOKUP).bytes == 5
    worker = host("class T(Translator):\n    def on_start(self):\n        1 / 0")
    assert "ZeroDivisionError" in worker.wait("failed")["failed"]
    assert worker.exit_status() == 1


def test_state_survives_a_reload(host):
    source = ("class Thing:\n    pass\nclass T(Translator):\n    def lookup(self, op):\n"
              "        self.state['n'] = self.state.get('n', 0) + 1\n        self.state['thing'] = Thing()\n"
              "        return ops.CopiedReply(self.state['n'])")  # fmt: skip
    worker = host(source)
    assert [worker.channels[1].call(LOOKUP).bytes for _ in range(2)] == [1, 2]
    assert host(source, state=worker.stop()).channels[1].call(LOOKUP).bytes == 3


def test_state_that_cannot_be_kept_starts_empty_with_a_log_line(host):
    source = ("class T(Translator):\n    def lookup(self, op):\n        self.state['f'] = lambda: 1\n"
              "        return ops.CopiedReply(len(self.state))")  # fmt: skip
    worker = host(source)
    worker.channels[1].call(LOOKUP)
    assert worker.stop() == ""
    worker.wait_log("cannot be pickled")
    worker = host(source, state="AAAA")
    worker.wait_log("cannot be taken over")
    assert worker.channels[1].call(LOOKUP).bytes == 1


def test_a_flood_of_log_lines_is_cut_and_counted(host):
    worker = host("class T(Translator):\n    def lookup(self, op):\n"
                  "        for i in range(5000): self.log.info('%d', i)\n"
                  "        return ops.DoneReply()")  # fmt: skip
    call = threading.Thread(target=worker.channels[1].call, args=(LOOKUP,))
    call.start()
    while call.is_alive():
        worker.read(0.1)  # a control that nobody reads holds the worker up
    worker.stop()
    lines = [message["text"] for message in worker.messages if "log" in message]
    dropped = [int(line.split()[0]) for line in lines if "were dropped" in line]
    written = len(lines) - len(dropped)
    assert dropped and sum(dropped) + written == 5000 and written < 3000


def test_what_is_printed_is_a_log_line(host):
    worker = host("import sys, warnings\nclass T(Translator):\n    def lookup(self, op):\n        print('one\\ntwo')\n"
                  "        print('three', file=sys.stderr)\n        warnings.warn('four')\n"
                  "        return PASS")  # fmt: skip
    worker.channels[1].call(LOOKUP)
    assert worker.wait_log("two")["log"] == "info" and worker.wait_log("three")["log"] == "warn"
    assert worker.wait_log("one") and worker.wait_log("four")


def test_memory_beyond_the_limit_is_eio_and_the_worker_goes_on(host):
    worker = host("class T(Translator):\n    def read(self, op):\n        data = bytearray(op.length)\n"
                  "        return ops.CopiedReply(len(data))", memory=64 << 20, channels=8)  # fmt: skip
    for channel in worker.channels[1:]:
        assert refused(channel.call, ops.Read(1, 0, 100 << 20)).errno == errno.EIO
        assert channel.call(ops.Read(1, 0, 20 << 20)).bytes == 20 << 20
    worker.wait_log("MemoryError")


HOARDING = """
class Hoarding(Translator):
    def on_start(self):
        self.kept = []
    def lookup(self, op):
        for size in SIZES:
            try:
                while True: self.kept.append(bytearray(size))
            except MemoryError:
                pass
        return PASS
    METHOD
"""


@pytest.mark.parametrize("sizes", ["[1 << 20]", "[1 << 20, 1 << 12, 64]"])
@pytest.mark.parametrize(
    "method",
    ["def write(self, op): return self.next(op)", "def write(self, op): return PASS",
     "def read(self, op): return self.next(op)", "async def read(self, op): return await self.next(op)"],
)  # fmt: skip
def test_an_op_for_which_there_is_no_memory_fails_or_the_worker_ends(host, sizes, method):
    """No memory is left to decode the op or the reply, which is no method's doing."""
    worker = host(HOARDING.replace("SIZES", sizes).replace("METHOD", method), memory=64 << 20)
    channel = worker.channels[1]
    reading = threading.Thread(target=worker.exit_status, daemon=True)  # what it logs
    reading.start()
    with contextlib.suppress(EOFError, ConnectionError, HekateError):
        channel.call(LOOKUP)
    content = bytes(4 << 20)
    for _ in range(3):
        op = ops.Write(7, 0, content) if "write" in method else ops.Read(7, 0, len(content))
        with pytest.raises((EOFError, ConnectionError, HekateError)) as caught:
            channel.call(op, lambda op: ops.BytesReply(content))
        if isinstance(caught.value, HekateError):
            assert caught.value.errno in (errno.ENOMEM, errno.EIO)
    worker.process.kill()
    reading.join()


LIVE = """
class Live(Translator):
    def on_start(self):
        self.events = [self.is_live]
    METHOD on_live(self):
        self.events.append(self.is_live)
    METHOD on_recall(self):
        self.events.append("recall")
        raise ValueError("not now")
    def lookup(self, op):
        return ops.BytesReply(repr(self.events).encode())
"""


@pytest.mark.parametrize("method", ["def", "async def"])
def test_a_translator_learns_that_it_is_live_and_what_is_recalled(host, method):
    worker = host(LIVE.replace("METHOD", method))
    channel = worker.channels[1]
    assert channel.call(LOOKUP).bytes == b"[False]"
    for message in ({"begin": True}, {"begin": True}, {"recall": True}):
        worker.send(message)
    worker.wait_log("on_recall raised")
    worker.send({"describe": True})
    assert worker.wait("description") and channel.call(LOOKUP).bytes == b"[False, True, 'recall']"
    assert not [message for message in worker.messages if "unknown" in message.get("text", "")]


BROKEN = {
    "a cut frame": lambda channel: channel.socket.sendall(b"\1\0\0") or channel.socket.shutdown(1),
    "a wrong kind": lambda channel: channel.socket.sendall(FRAME.pack(9, 0, 1)),
    "a length beyond the area": lambda channel: channel.socket.sendall(FRAME.pack(1, 1 << 30, 1)),
    "no bytes": lambda channel: channel.socket.sendall(FRAME.pack(1, 0, 1)),
    "a bad flag": lambda channel: channel.send(1, b"\7" + LOOKUP.encode(), 1),
    "an unknown op": lambda channel: channel.send(1, b"\0\1\x63", 1),
    "a cut op": lambda channel: channel.send(1, b"\0" + LOOKUP.encode()[:-1], 1),
    "more than an op": lambda channel: channel.send(1, b"\0" + LOOKUP.encode() + b"x", 1),
    "a result without a next": lambda channel: channel.send(2, b"\1\1", 1),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_frame_ends_the_worker_with_one_line(host, how):
    worker = host(SEVERAL)
    BROKEN[how](worker.channels[1])
    assert worker.exit_status() == 1
    logs = [message for message in worker.messages if "log" in message]
    assert len(logs) == 1 and "broke the protocol" in logs[0]["text"] and "Traceback" not in logs[0]["text"]


@pytest.mark.parametrize("method", ["def", "async def"])
def test_a_broken_result_ends_the_worker_even_if_the_translator_catches_everything(host, method):
    word = "await " if method == "async def" else ""
    worker = host(f"class T(Translator):\n    {method} lookup(self, op):\n        try: return {word}self.next(op)\n"
                  "        except BaseException: return PASS")  # fmt: skip
    channel = worker.channels[1]
    channel.start(LOOKUP)
    assert channel.receive()[0] == fake_host.NEXT
    channel.send(2, b"\5", 1)
    assert worker.exit_status() == 1
    worker.wait_log("broke the protocol")


def test_a_worker_ends_with_its_host(host):
    worker = host(SEVERAL)
    worker.control.shutdown(2)
    assert worker.process.wait(20) == 0


def test_a_worker_in_on_start_ends_with_its_host(host):
    worker = host("class T(Translator):\n    def on_start(self):\n        time.sleep(600)")
    worker.control.shutdown(2)
    assert worker.process.wait(20) == 0


def test_a_closed_channel_ends_only_its_thread(host):
    worker = host(SEVERAL)
    worker.channels[1].socket.close()
    assert worker.channels[2].call(ops.Unlink(1, b"x")) == ops.DoneReply()
    assert worker.process.poll() is None


def test_children_of_a_translator_do_not_get_the_channels(host):
    worker = host("import subprocess\nclass T(Translator):\n    def lookup(self, op):\n"
                  "        out = subprocess.run(['ls', '/proc/self/fd'], capture_output=True, close_fds=False).stdout\n"
                  "        return ops.BytesReply(out)")  # fmt: skip
    assert len(worker.channels[1].call(LOOKUP).bytes.split()) <= 5


def test_a_long_line_keeps_its_begin_and_end(host):
    worker = host("class T(Translator):\n    def lookup(self, op):\n"
                  "        raise ValueError('begin' + 'x' * 100000 + 'end')")  # fmt: skip
    refused(worker.channels[1].call, LOOKUP)
    text = worker.wait_log("ValueError")["text"]
    assert len(text) < 17000 and "begin" in text and text.endswith("end\n")


def test_describe_prints_json(tmp_path):
    import json
    import subprocess
    import sys

    (tmp_path / "translator.py").write_text("print('hi')\nfrom hekate import *" + SEVERAL)
    done = subprocess.run(
        [sys.executable, "-m", "hekate.worker", "--describe", str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(fake_host.PYTHON)}, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["class"] == "Several" and "limit" in found["options"] and found["name"] == tmp_path.name
