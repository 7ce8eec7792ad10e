"""The volume in memory and the fixtures: a translator's tests are worth what these are."""

import asyncio
import os
import threading

import pytest

from hekate import PASS, HekateError, Option, Translator, ops
from hekate.testing import MemoryVolume, conformance


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
    volume.write("f", b"x", offset=10000)
    inode = volume.lookup("f").id
    assert volume.handle(ops.Seek(inode, 0, False)).at == 8192 and volume.handle(ops.Seek(inode, 0, True)).at == 0
    refused("NoData", volume.handle, ops.Seek(inode, 10001, False))
    volume.allocate("f", 0, 20000)
    assert volume.stat("f").size == 20000 and volume.handle(ops.Seek(inode, 0, True)).at == 20000
    volume.allocate("f", 0, 8192, ops.AllocateMode.Punch)
    assert volume.handle(ops.Seek(inode, 0, False)).at == 8192


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


def test_two_volumes_with_the_same_ops_are_equal():
    first, second = MemoryVolume(), MemoryVolume()
    for volume in (first, second):
        volume.write("f", os.urandom(0))
    assert first.stat("f") == second.stat("f")
