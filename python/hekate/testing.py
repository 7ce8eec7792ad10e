"""Tests of translators without a volume: pytest fixtures, and a suite for those that change nothing.

    python3 -m pytest -p hekate.testing DIRECTORY

`volume`: a MemoryVolume. `translator`: a factory of translators above it, from the directory of the test, another
directory, or a class:

    def test_small_files_pass(translator):
        quota = translator(limit=100)
        quota.write("a.log", b"x")
        assert quota.below[-1] == ops.Write(...)
"""

import asyncio
import contextvars
import itertools
import logging
import pickle
import random
import threading
from pathlib import Path

import pytest

from . import ops
from .memory import MemoryVolume
from .paths import Paths
from .translator import Binding, answered, load
from .values import Ended, HekateError, Op

__all__ = ["Layer", "MemoryVolume", "conformance"]

_numbers = itertools.count()
# True while a method runs whose op is durable. An `async` method gets it with its context.
_durable = contextvars.ContextVar("hekate_durable", default=False)


class Layer(Paths):
    """A translator above a volume. Its calls by path go through the translator, and `below` has the ops that reached
    the volume. As in a real graph, every op and reply is encoded on its way.

    `is_live=False`: ops of an earlier graph, which do not pass here, may be under way until `begin` is called."""

    def __init__(self, translator, volume, options=None, is_live=True):
        self.volume, self.below = volume, []
        self.cls = translator if isinstance(translator, type) else load(translator, f"translator_{next(_numbers)}")
        self.options = dict(options or {})
        self.loop, self.lock = None, threading.Lock()
        self.start()
        if is_live:
            self.begin()

    def start(self, state=None):
        log = logging.getLogger(self.cls.__name__)
        self.binding = Binding(self.cls, self.options, self.next, log, state)
        self.run(self.binding.instance.on_start)

    def begin(self):
        """Makes it the live one, as the host does once no op of an earlier graph is under way."""
        self.binding.begin(self.run)

    def recall(self):
        """Tells it that what it remembers may be out of date."""
        self.run(self.instance.on_recall)

    @property
    def instance(self):
        """The translator itself."""
        return self.binding.instance

    def handle(self, op):
        """Runs an op as the host does."""
        op = again(op)
        method = self.binding.method_for(op)
        if method is None:
            return self.reach(op)
        original = again(op)
        before = _durable.set(op.durable)
        try:
            parts = answered(
                self.cls, method, lambda: self.run(method.call, op), self.instance.log.error,
                through=(Ended, KeyboardInterrupt),
            )  # fmt: skip
        finally:
            _durable.reset(before)
        return self.reach(original) if parts is None else ops.decode_result(b"".join(parts))

    def next(self, op):
        """Behind the translator's `self.next`."""
        if not isinstance(op, Op):
            raise TypeError(f"self.next takes an op of hekate.ops, not {type(op).__name__}")
        sent = again(op)
        sent.durable = op.durable or _durable.get()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.reach(sent)
        return self.reach_later(sent)

    async def reach_later(self, op):
        return self.reach(op)

    def reach(self, op):
        self.below.append(again(op))
        return ops.decode_reply(self.volume.handle(op).encode())

    def run(self, method, *arguments):
        found = method(*arguments)
        if not asyncio.iscoroutine(found):
            return found
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(found, self.loop).result()

    def labels(self):
        """Labels of the ops in `below`."""
        return [op.label for op in self.below]

    def reconfigure(self, **options):
        """Sets all options anew, as `hekate volume set` does."""
        self.binding.reconfigure(options, self.run)
        self.options = options

    def reload(self):
        """Stops the translator and starts it anew, with the state that can be kept."""
        self.stop()
        try:
            state = pickle.loads(pickle.dumps(self.instance.state))
        except Exception:
            state = None
        self.start(state)
        self.begin()

    def run_timers(self):
        """Calls each timer once."""
        for _, method in self.binding.timers:
            self.run(method.call)

    def metrics(self):
        """What was recorded since the last call."""
        return self.instance.metrics.take() or {"counts": {}, "gauges": {}, "times": {}}

    def stop(self):
        self.run(self.binding.instance.on_stop)

    def close(self):
        """Stops the translator and its event loop."""
        self.stop()
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)


def again(op):
    """The op that the other side of the border gets."""
    if not isinstance(op, Op):
        raise TypeError(f"an op of hekate.ops is expected, not {type(op).__name__}")
    found = ops.decode_op(op.encode())
    found.durable = op.durable
    return found


@pytest.fixture
def volume():
    """An empty volume in memory."""
    return MemoryVolume()


@pytest.fixture
def translator(request, volume):
    """A factory of translators above `volume`: `translator(directory_or_class, **options)`. Without the first argument,
    the translator beside the test."""
    made = []

    def make(what=None, /, **options):
        made.append(Layer(what or Path(str(request.fspath)).parent, volume, options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# The suite.


def conformance(layer, seed=1, steps=2000):
    """Fails if a translator changes anything, or weakens durability.

    Random ops have the replies that a plain volume gives. Every fsync reaches the volume, after all that was written
    to its file before. A change for stable storage reaches the volume while its caller waits, and what changes the
    volume on its behalf is for stable storage too."""
    layer.volume, plain = MemoryVolume(), MemoryVolume()
    layer.below.clear()
    source = random.Random(seed)
    known = Known()
    for step in range(steps):
        op = known.op(source)
        op.durable = source.random() < 0.3
        expected = outcome(plain, op)
        start = len(layer.below)
        found = outcome(layer, op)
        where = f"step {step} of seed {seed}: {op}"
        assert found == expected, f"{where}\n  through the translator: {found}\n  without it: {expected}"
        reached = layer.below[start:]
        if isinstance(op, ops.Fsync):
            assert op in reached, f"{where} did not reach the volume"
            held_back = expected[0] == "reply" and attr_of(layer.volume, op.inode) != attr_of(plain, op.inode)
            assert not held_back, f"{where} reached the volume before what was written to its file"
        if op.durable and expected[0] == "reply" and is_change(op):
            changes = [each for each in reached if is_change(each)]
            assert changes, f"{where} was answered before it reached the volume"
            weak = [each for each in changes if not each.durable]
            assert not weak, f"{where} reached the volume without `durable`: {weak}"
        known.learn(op, expected)
    assert contents(layer.volume) == contents(plain), f"after seed {seed} the volume is not what it should be"


def outcome(volume, op):
    try:
        return "reply", volume.handle(again(op))
    except HekateError as error:
        return "error", error.name, error.encoded


def is_change(op):
    return op.label in CHANGES


def attr_of(volume, inode):
    """The attributes of an inode; its number of changes and its times say whether something is missing."""
    return volume.handle(ops.GetAttr(inode)).attr


CHANGES = {
    "create", "link", "unlink", "rmdir", "rename", "create-unnamed", "put", "remove", "make-prefix", "remove-prefix",
    "join", "setattr", "setxattr", "removexattr", "write", "append", "allocate", "copy", "fsync",
}  # fmt: skip


def contents(volume):
    """Everything in a volume, to compare."""
    return {
        inode: (found.attr, found.content.read(0, min(found.attr.size, 1 << 20)), found.xattrs, found.names)
        for inode, found in volume.inodes.items()
    }


class Known:
    """Draws ops from few names and inodes, so that they meet."""

    def __init__(self):
        self.dirs, self.files = [ops.ROOT], [999]
        self.names = [b"a", b"b.txt", b"c.log", b"d", "ü.txt".encode()]

    def learn(self, op, outcome):
        if outcome[0] == "reply" and isinstance(outcome[1], ops.NodeReply) and outcome[1].created:
            attr = outcome[1].attr
            (self.dirs if attr.kind == ops.NodeKind.Directory else self.files).append(attr.id)
            del self.dirs[1:-5], self.files[:-8]

    def op(self, source):
        return source.choice(MAKERS)(self, source)

    def dir(self, source):
        return source.choice([ops.ROOT, *self.dirs])

    def file(self, source):
        return source.choice(self.files)

    def name(self, source):
        return source.choice(self.names)

    def node(self, source):
        kinds = [ops.NewNode.File, ops.NewNode.File, ops.NewNode.Directory, ops.NewNode.Symlink(b"a"), ops.NewNode.Fifo]
        return source.choice(kinds)

    def data(self, source):
        return bytes([source.randrange(65, 91)]) * source.choice([0, 1, 10, 5000])

    def offset(self, source):
        return source.choice([0, 3, 4096, 10000])

    def condition(self, source):
        some = ops.Condition
        return source.choice([some.Always, some.Absent, some.Exists, some.Matches(b"tag")])

    def changes(self, source):
        return source.choice(
            [
                ops.AttrChanges(size=self.offset(source)),
                ops.AttrChanges(mode=source.randrange(0o10000)),
                ops.AttrChanges(uid=5, gid=6, drop_set_id=True),
                ops.AttrChanges(mtime=ops.SetTime.At(77), atime=ops.SetTime.Now),
            ]
        )

    def lock(self, source):
        start = source.randrange(10)
        return ops.Lock(
            source.choice(list(ops.LockKind)), source.choice([ops.LockStyle.Posix, ops.LockStyle.Flock]), start,
            start + source.randrange(10), source.randrange(3), 0,
        )  # fmt: skip


def source_of_put(k, r):
    return ops.PutSource.Bytes(k.data(r), 0o644, 0, 0, [(b"user.a", b"b")])


MAKERS = [
    *[lambda k, r: ops.Lookup(k.dir(r), k.name(r))] * 4,
    *[lambda k, r: ops.Create(k.dir(r), k.name(r), k.node(r), 0o644, 0, 0, 0, r.random() < 0.5, 1)] * 4,
    *[lambda k, r: ops.Write(k.file(r), k.offset(r), k.data(r), r.random() < 0.5)] * 3,
    *[lambda k, r: ops.Read(k.file(r), k.offset(r), r.choice([0, 10, 10000]), r.random() < 0.5)] * 3,
    *[lambda k, r: ops.Unlink(k.dir(r), k.name(r), r.choice([None, k.file(r)]))] * 2,
    lambda k, r: ops.Link(k.dir(r), k.name(r), k.file(r)),
    lambda k, r: ops.Rmdir(k.dir(r), k.name(r)),
    lambda k, r: ops.Rename(k.dir(r), k.name(r), k.dir(r), k.name(r), ops.RenameMode.Replace),
    lambda k, r: ops.Rename(k.dir(r), k.name(r), k.dir(r), k.name(r), ops.RenameMode.NoReplace, k.file(r)),
    lambda k, r: ops.Rename(k.dir(r), k.name(r), k.dir(r), k.name(r), ops.RenameMode.Exchange),
    lambda k, r: ops.Rename(k.dir(r), k.name(r), k.dir(r), k.name(r), ops.RenameMode.Whiteout(True, 1, 2, 3)),
    lambda k, r: ops.List(k.dir(r), r.choice([None, b"b"]), r.choice([1, 100]), r.random() < 0.5, r.random() < 0.5),
    lambda k, r: ops.CreateUnnamed(k.dir(r), 0o600, 0, 0, 0, r.random() < 0.5, 1),
    lambda k, r: ops.Put(k.dir(r), k.name(r), None, source_of_put(k, r), b"tag", k.condition(r), False, 1),
    lambda k, r: ops.Remove(k.dir(r), k.name(r), None, k.condition(r), False),
    lambda k, r: ops.MakePrefix(k.dir(r), k.name(r), b"%~-" + k.name(r), 0o755, 0, 0, 1),
    lambda k, r: ops.RemovePrefix(k.dir(r), k.name(r)),
    lambda k, r: ops.Join(k.dir(r), [(k.name(r), b"")], b"joined", 0o644, 0, 0, b"", [], 1),
    lambda k, r: ops.Fetch(k.dir(r), k.name(r), None, b"user.a", r.random() < 0.5),
    lambda k, r: ops.ListKeys(k.dir(r), 1, r.choice([b"", b"b"]), b"", 10),
    lambda k, r: ops.GetAttr(r.choice([k.file(r), k.dir(r)])),
    *[lambda k, r: ops.SetAttr(r.choice([k.file(r), k.dir(r)]), k.changes(r))] * 2,
    lambda k, r: ops.ReadLink(k.file(r), r.random() < 0.5),
    lambda k, r: ops.GetXattr(k.file(r), b"user.a"),
    lambda k, r: ops.SetXattr(k.file(r), b"user.a", k.data(r)),
    lambda k, r: ops.ListXattr(k.file(r)),
    lambda k, r: ops.RemoveXattr(k.file(r), b"user.a"),
    lambda k, r: ops.Accessed(k.file(r)),
    lambda k, r: ops.Parent(k.dir(r)),
    lambda k, r: ops.FetchInode(k.file(r), b"user.a", True),
    lambda k, r: ops.GetLock(k.file(r), k.lock(r)),
    lambda k, r: ops.SetLock(k.file(r), k.lock(r), False),
    lambda k, r: ops.ReleaseLocks(k.file(r), r.randrange(3)),
    lambda k, r: ops.CancelLock(k.file(r), 5),
    lambda k, r: ops.Fsync(k.file(r)),
    lambda k, r: ops.Allocate(k.file(r), k.offset(r), 5000, ops.AllocateMode.Reserve(r.random() < 0.5)),
    lambda k, r: ops.Allocate(k.file(r), k.offset(r), 5000, ops.AllocateMode.Punch),
    lambda k, r: ops.Allocate(k.file(r), k.offset(r), 5000, ops.AllocateMode.Zero(True)),
    lambda k, r: ops.Append(k.file(r), k.data(r)),
    lambda k, r: ops.Seek(k.file(r), k.offset(r), r.random() < 0.5),
    lambda k, r: ops.Copy(k.file(r), k.offset(r), k.file(r), k.offset(r), r.choice([0, 9, 9000])),
    lambda k, r: ops.StatFs(),
]
