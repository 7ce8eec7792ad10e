"""The volume in memory and the fixtures: a translator's tests are worth what these are."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hekate import PASS, HekateError, Option, Translator, ops
from hekate.testing import Layer, MemoryVolume, conformance


def refused(name, call, *arguments):
    with pytest.raises(HekateError) as caught:
        call(*arguments)
    assert caught.value.name == name


def test_files_by_path(volume):
    volume.mkdir("/d")
    volume.write("d/f", b"hello")
    volume.write("d/f", "world", offset=10)
    assert volume.read("d/f") == b"hello\0\0\0\0\0world" and volume.stat("d/f").size == 15
    volume.append("d/f", b"!")
    volume.truncate("d/f", 5)
    volume.truncate("d/f", 8)
    assert volume.read("d/f") == b"hello\0\0\0" and volume.listdir("d") == [b"f"] and volume.exists("d/f")
    volume.link("d/f", "g")
    assert volume.stat("g").nlink == 2
    volume.unlink("d/f")
    volume.rmdir("d")
    assert volume.listdir() == [b"g"] and volume.stat("/").nlink == 2
    volume.symlink("g", "s")
    assert volume.readlink("s") == b"g"
    volume.setxattr("g", "user.x", "y")
    assert volume.getxattr("g", "user.x") == b"y"
    assert volume.statfs().total > volume.statfs().free


def test_errors_are_those_of_a_real_volume(volume):
    volume.mkdir("d")
    volume.write("d/f", b"x")
    refused("NotFound", volume.stat, "nothing")
    refused("Exists", volume.mkdir, "d")
    refused("NotEmpty", volume.rmdir, "d")
    refused("IsDirectory", volume.unlink, "d")
    refused("NotDirectory", volume.stat, "d/f/x")
    refused("NotDirectory", volume.rmdir, "d/f")
    refused("Loop", volume.rename, "d", "d/e")
    refused("Stale", volume.handle, ops.GetAttr(12345))
    refused("NoAttribute", volume.getxattr, "d", "user.x")
    refused("Denied", volume.link, "d", "e")
    refused("TooLarge", volume.truncate, "d/f", 1 << 61)


def test_renames_in_all_modes(volume):
    mode = ops.RenameMode
    volume.write("a", b"a"), volume.write("b", b"b"), volume.mkdir("d")
    refused("Exists", volume.rename, "a", "b", mode.NoReplace)
    volume.rename("a", "b", mode.Exchange)
    assert volume.read("a") == b"b" and volume.read("b") == b"a"
    volume.rename("d", "b", mode.Exchange)
    volume.rename("a", "b/inside")
    assert volume.listdir("b") == [b"inside"] and volume.read("d") == b"a"
    volume.rename("b/inside", "top", mode.Whiteout(False, 1, 2, 3))
    assert volume.lookup("b/inside").kind == ops.NodeKind.CharDevice and volume.lookup("b").nlink == 2


def test_what_is_open_outlives_its_name(volume):
    volume.write("f", b"x")
    inode = volume.lookup("f").id
    volume.handle(ops.Unlink(ops.ROOT, b"f", open_here=inode))
    assert volume.handle(ops.GetAttr(inode)).attr.nlink == 0


def test_holes_and_allocation(volume):
    """As crates/replica/src/ops/seek.rs, truncate.rs and allocate.rs have it."""
    volume.write("f", b"x", offset=10000)
    inode = volume.lookup("f").id

    def found(offset):
        try:
            data = volume.handle(ops.Seek(inode, offset, False)).at
        except HekateError as error:
            assert error.name == "NoData"
            data = None
        return data, volume.handle(ops.Seek(inode, offset, True)).at

    # What is beside the inode has no holes, and stays data when it moves to a shard.
    assert found(0) == (0, 10001) and found(9000) == (9000, 10001)
    refused("NoData", volume.handle, ops.Seek(inode, 10001, False))
    refused("NoData", volume.handle, ops.Seek(inode, 10001, True))
    volume.truncate("f", 60000)
    assert found(0) == (0, 10001) and found(10001) == (None, 10001)
    volume.write("f", b"y", offset=50000)
    assert found(9000) == (9000, 12288) and found(12288) == (49152, 12288) and found(50000) == (50000, 50001)
    # Room that is reserved behind the last byte is a hole; before it there are zeros.
    volume.allocate("f", 0, 80000)
    assert volume.stat("f").size == 80000 and found(0) == (0, 53248)
    volume.allocate("f", 0, 8192, ops.AllocateMode.Punch)
    assert found(0) == (8192, 0)
    volume.write("f", b"z", offset=9 << 20)
    assert found(60000) == (9 << 20, 60000) and found(5 << 20) == (9 << 20, 5 << 20)
    volume.truncate("f", 51000)
    assert found(8192) == (8192, 51000)
    volume.truncate("f", 0)
    volume.truncate("f", 10)
    assert found(0) == (0, 10)


def test_a_full_volume_refuses_what_needs_room_and_nothing_else():
    volume = MemoryVolume(capacity=10 * 4096)
    volume.write("a", bytes(20000))
    volume.write("b", bytes(12288))
    for call, arguments in [
        (volume.write, ("a", b"x" * 9000, 20480)), (volume.append, ("b", bytes(8193))),
        (volume.allocate, ("b", 20480, 12288)),
    ]:  # fmt: skip
        refused("NoSpace", call, *arguments)
    volume.allocate("b", 12288, 8192)
    assert volume.statfs().free == 0 and volume.stat("a").size == 20000
    for call, arguments in [
        (volume.create, ("c",)), (volume.mkdir, ("d",)), (volume.link, ("a", "e")), (volume.append, ("a", b"x" * 481)),
        (volume.setxattr, ("a", "user.x", b"y")),
    ]:  # fmt: skip
        refused("NoSpace", call, *arguments)
    volume.write("a", b"x" * 20480)
    volume.rename("a", "b2")
    volume.write("b", bytes(20480))
    volume.allocate("b", 0, 4096, ops.AllocateMode.Punch)
    volume.write("c", b"one more block")
    volume.unlink("b")
    volume.write("d", bytes(16384))


def test_the_flag_for_attributes_follows_them(volume):
    volume.write("f", b"x")
    volume.setxattr("f", "user.a", b"1")
    volume.setxattr("f", "user.b", b"2")
    for name, left in [(b"user.a", True), (b"user.b", False)]:
        assert volume.stat("f").has_xattrs
        volume.handle(ops.RemoveXattr(volume.lookup("f").id, name))
        assert volume.stat("f").has_xattrs == left
    refused("Invalid", volume.setxattr, "f", "x" * 256, b"")


def test_locks_of_different_owners_conflict_and_ranges_split(volume):
    volume.write("f", b"x")
    inode = volume.lookup("f").id
    kind, posix, flock = ops.LockKind, ops.LockStyle.Posix, ops.LockStyle.Flock

    def set_lock(kind, style, start, end, owner):
        return volume.handle(ops.SetLock(inode, ops.Lock(kind, style, start, end, owner, 0), False))

    set_lock(kind.Write, posix, 0, 99, 1)
    refused("WouldBlock", set_lock, kind.Read, posix, 50, 60, 2)
    set_lock(kind.Unlock, posix, 50, 60, 1)
    set_lock(kind.Read, posix, 50, 60, 2)
    set_lock(kind.Write, flock, 0, (1 << 64) - 1, 2)
    held = volume.handle(ops.GetLock(inode, ops.Lock(kind.Read, posix, 0, 49, 2, 0))).conflict
    assert (held.lock.start, held.lock.end, held.lock.owner) == (0, 49, 1)
    volume.handle(ops.ReleaseLocks(inode, 1))
    set_lock(kind.Write, posix, 0, 49, 2)


def test_objects_are_put_under_conditions_joined_and_listed(volume):
    def put(name, content, condition):
        source = ops.PutSource.Bytes(content, 0o644, 0, 0, [(b"user.a", b"v")])
        return volume.handle(ops.Put(ops.ROOT, name, None, source, b"tag-" + content, condition, keep=False, seed=1))

    put(b"p1", b"one", ops.Condition.Absent)
    refused("ConditionFailed", put, b"p1", b"two", ops.Condition.Absent)
    put(b"p1", b"two", ops.Condition.Matches(b"tag-one"))
    put(b"p2", b"three", ops.Condition.Always)
    fetched = volume.handle(ops.Fetch(ops.ROOT, b"p1", None, b"user.a", True)).object
    assert (fetched.content, fetched.attribute) == (b"two", b"v")
    volume.handle(ops.Join(ops.ROOT, [(b"p1", b""), (b"p2", b"tag-three")], b"all", 0o644, 0, 0, b"", [], 1))
    assert volume.read("all") == b"twothree" and volume.listdir() == [b"all"]
    volume.handle(ops.MakePrefix(ops.ROOT, b"all", b"%~-all", 0o755, 0, 0, 1))
    keys = volume.handle(ops.ListKeys(ops.ROOT, 1, b"", b"", 10))
    assert [entry.name for entry in keys.entries] == [b"%~-all", b"all"] and keys.escaped
    volume.handle(ops.RemovePrefix(ops.ROOT, b"all"))


class Nothing(Translator):
    """Passes everything on, in one of three ways."""

    def lookup(self, op):
        return PASS

    def write(self, op):
        return self.next(op)

    async def create(self, op):
        return await self.next(op)

    def fsync(self, op):
        return self.next.fsync(inode=op.inode)

    def truncate(self, op):
        return self.next(op)


class Waiting(Translator):
    """Several async calls are under way at once, and durable ones stay so."""

    async def unlink(self, op):
        await asyncio.gather(*(self.next.getattr(inode=ops.ROOT) for _ in range(3)))
        return await self.next.unlink(dir=op.dir, name=op.name)


def test_async_methods_of_several_threads_run_on_one_loop(translator, volume):
    layer = translator(Waiting)
    for number in range(8):
        volume.create(f"f{number}")
    todo = [ops.Unlink(ops.ROOT, b"f%d" % number, durable=number % 2 == 0) for number in range(8)]
    threads = [threading.Thread(target=layer.handle, args=(op,)) for op in todo]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    unlinks = {op.name: op.durable for op in layer.below if op.label == "unlink"}
    assert unlinks == {op.name: op.durable for op in todo} and volume.listdir() == []


class Harmful(Nothing):
    """Does what its option says."""

    what = Option(str, default="nothing")

    def write(self, op):
        return ops.DoneReply() if self.what == "lose writes" else self.next(op)

    def fsync(self, op):
        return ops.DoneReply() if self.what == "skip fsync" else self.next(op)

    def read(self, op):
        reply = self.next(op)
        if self.what == "change bytes":
            reply.bytes = reply.bytes.swapcase()
        return reply

    def unlink(self, op):
        try:
            return self.next(op)
        except HekateError as error:
            if self.what == "change errors":
                raise OSError(error.errno, "no") from None
            raise


@pytest.mark.parametrize("seed", range(5))
def test_a_translator_that_changes_nothing_passes_the_suite(translator, seed):
    conformance(translator(Nothing), seed)
    conformance(translator(Harmful), seed)


class Late(Translator):
    """Holds changes back, in a way that its option says."""

    what = Option(str)

    def on_start(self):
        self.held = []

    def write(self, op):
        if self.what == "hold writes" and not op.durable:
            self.next.getattr(inode=op.inode)
            self.held.append(op)
            return ops.DoneReply()
        if self.what == "another thread":
            return self._sent(op.changed(durable=False))
        if self.what == "write back":
            self.next.getattr(inode=op.inode)  # durable, as the op is
            self.held.append(op)
            return ops.DoneReply()
        return self.next(op)

    def _sent(self, op):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.next, op).result()

    def read(self, op):
        self._send_all()
        return self.next(op)

    def _send_all(self):
        while self.held:
            self._sent(self.held.pop(0).changed(durable=False))

    def fsync(self, op):
        reply = self.next(op)
        self._send_all()
        return reply


# All others find what was held back.
for each in ops.OPS.values():
    if not hasattr(Late, each.method):
        setattr(Late, each.method, Late.read)


@pytest.mark.parametrize("what", ["hold writes", "another thread", "write back"])
def test_the_suite_finds_a_translator_that_weakens_durability(translator, what):
    with pytest.raises(AssertionError, match="durable|before"):
        conformance(translator(Late, what=what), steps=4000)


@pytest.mark.parametrize("what", ["lose writes", "skip fsync", "change bytes", "change errors"])
def test_the_suite_finds_what_a_translator_changes(translator, what):
    with pytest.raises(AssertionError):
        conformance(translator(Harmful, what=what), steps=4000)


class Several(Translator):
    """For the harness."""

    def statfs(self, op):
        self.metrics.count("calls")
        self.state["calls"] = self.state.get("calls", 0) + 1
        return ops.CopiedReply(self.state["calls"])

    def lookup(self, op):
        return 1 / 0

    def unlink(self, op):
        raise OSError(122, "full")

    def rmdir(self, op):
        return "done"


def test_a_layer_answers_as_the_worker_does(translator):
    layer = translator(Several)
    for call, errno in [(layer.lookup, 5), (layer.unlink, 122), (layer.rmdir, 5)]:
        with pytest.raises(HekateError) as caught:
            call("x") if call == layer.lookup else layer.handle(getattr(ops, call.__name__.capitalize())(1, b"x"))
        assert (caught.value.name, caught.value.errno) == ("Refused", errno)
    assert layer.handle(ops.StatFs()).bytes == 1
    layer.reload()
    assert layer.handle(ops.StatFs()).bytes == 2 and layer.metrics()["counts"] == {"calls": 1}
    assert layer.below == []
    with pytest.raises(ValueError, match="no option"):
        translator(Several, size=3)


class Live(Translator):
    """For the harness."""

    def on_start(self):
        self.events = [self.is_live]

    async def on_live(self):
        self.events.append(self.is_live)

    def on_recall(self):
        self.events.append("recall")


def test_a_layer_begins_and_recalls_as_the_host_does(volume):
    layer = Layer(Live, volume, is_live=False)
    layer.begin()
    layer.begin()
    layer.recall()
    assert layer.instance.events == [False, True, "recall"]
    layer.reload()
    assert layer.instance.events == [False, True]
    layer.close()


def test_options_change_all_at_once(translator):
    layer = translator(Harmful, what="nothing")
    before = layer.instance.options
    layer.reconfigure(what="skip fsync")
    assert (before["what"], layer.instance.what) == ("nothing", "skip fsync")
    with pytest.raises(AttributeError, match="set by the volume's graph"):
        layer.instance.what = "nothing"


def test_two_volumes_with_the_same_ops_are_equal():
    first, second = MemoryVolume(), MemoryVolume()
    for volume in (first, second):
        volume.write("f", os.urandom(0))
    assert first.stat("f") == second.stat("f")
