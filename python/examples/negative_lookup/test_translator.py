import random
import threading
import time
from pathlib import Path

import pytest

from hekate import HekateError, ops
from hekate.testing import Layer, conformance

ROOT = ops.ROOT


def is_missing(layer, name):
    try:
        layer.handle(ops.Lookup(ROOT, name))
    except HekateError as error:
        assert error.name == "NotFound"
        return True
    return False


def asked_below(layer, name):
    """Whether a look-up of a missing name reaches the volume."""
    before = len(layer.below)
    assert is_missing(layer, name)
    return len(layer.below) > before


def test_a_missing_name_is_asked_for_once(translator):
    layer = translator(lifetime=60)
    assert asked_below(layer, b"x") and not asked_below(layer, b"x") and asked_below(layer, b"y")
    assert layer.metrics()["counts"] == {"hits": 1}


FILE = ops.PutSource.Bytes(b"", 0o644, 0, 0, [])
MAKERS = {
    "create": lambda: ops.Create(ROOT, b"x", ops.NewNode.File, 0o644, 0, 0, 0, True, 1),
    "mkdir": lambda: ops.Create(ROOT, b"x", ops.NewNode.Directory, 0o644, 0, 0, 0, True, 1),
    "symlink": lambda: ops.Create(ROOT, b"x", ops.NewNode.Symlink(b"a"), 0o644, 0, 0, 0, True, 1),
    "mknod": lambda: ops.Create(ROOT, b"x", ops.NewNode.Fifo, 0o644, 0, 0, 0, True, 1),
    "put": lambda: ops.Put(ROOT, b"x", None, FILE, b"", ops.Condition.Always, False, 1),
    "make_prefix": lambda: ops.MakePrefix(ROOT, b"x", b"%~-x", 0o755, 0, 0, 1),
    "join": lambda: ops.Join(ROOT, [(b"old", b"")], b"x", 0o644, 0, 0, b"", [], 1),
    "rename": lambda: ops.Rename(ROOT, b"old", ROOT, b"x", ops.RenameMode.Replace),
}


@pytest.mark.parametrize("maker", [*MAKERS, "link"])
def test_a_name_that_is_made_is_found_at_once(translator, maker):
    layer = translator(lifetime=60)
    old = layer.create("old").id
    assert is_missing(layer, b"x")
    layer.handle(ops.Link(ROOT, b"x", old) if maker == "link" else MAKERS[maker]())
    assert not is_missing(layer, b"x")


def test_a_name_that_was_moved_away_is_found_when_it_is_made_anew(translator):
    layer = translator(lifetime=60)
    layer.create("a")
    layer.rename("a", "b")
    assert is_missing(layer, b"a")
    layer.create("a")
    assert not is_missing(layer, b"a")


def test_a_name_of_another_client_is_found_when_the_lifetime_is_over(translator, volume):
    layer = translator(lifetime=0.05)
    assert is_missing(layer, b"x")
    volume.create("x")
    time.sleep(0.06)
    assert not is_missing(layer, b"x")


def test_a_recall_makes_it_forget(translator, volume):
    layer = translator(lifetime=60)
    assert asked_below(layer, b"x") and not asked_below(layer, b"x")
    volume.create("x")
    layer.recall()
    assert not is_missing(layer, b"x")


def test_nothing_is_remembered_before_it_is_live(volume):
    """The graph before may still make names, which this one does not see."""
    layer = Layer(Path(__file__).parent, volume, {"lifetime": "60"}, is_live=False)
    assert asked_below(layer, b"x") and asked_below(layer, b"x")
    handle = volume.handle

    def later(op):
        try:
            return handle(op)
        finally:
            volume.handle = handle
            volume.create("y")
            layer.begin()

    volume.handle = later
    assert is_missing(layer, b"y") and not is_missing(layer, b"y")
    assert asked_below(layer, b"x") and not asked_below(layer, b"x")
    layer.close()


def test_the_names_asked_for_longest_ago_are_forgotten_first(translator):
    layer = translator(lifetime=60, entries=2)
    for name in (b"a", b"b", b"a", b"c"):
        is_missing(layer, name)
    assert not asked_below(layer, b"a") and not asked_below(layer, b"c") and asked_below(layer, b"b")


def test_an_answer_from_before_a_create_is_not_remembered_after_it(translator, volume):
    """The look-up is answered by the volume, then the name is made, then the answer arrives."""
    layer = translator(lifetime=60)
    answered, go_on = threading.Event(), threading.Event()
    handle = volume.handle

    def slow(op):
        try:
            return handle(op)
        finally:
            if isinstance(op, ops.Lookup) and not answered.is_set():
                answered.set()
                go_on.wait(10)

    volume.handle = slow
    late = threading.Thread(target=is_missing, args=(layer, b"x"))
    late.start()
    assert answered.wait(10)
    layer.handle(MAKERS["create"]())
    go_on.set()
    late.join(10)
    assert not is_missing(layer, b"x")


def test_under_threads_a_name_that_exists_is_never_missing(translator):
    layer = translator(lifetime=60)
    wrong, end = [], time.monotonic() + 1

    def one(number):
        source = random.Random(number)
        while time.monotonic() < end:
            name = b"%d" % source.randrange(3)
            # Names of one thread only, in a directory that all share.
            own = b"%d-%d" % (number, source.randrange(3))
            is_missing(layer, name)
            layer.handle(MAKERS["create"]().changed(name=own))
            if is_missing(layer, own):
                wrong.append(own)
            layer.handle(ops.Unlink(ROOT, own))
            if not is_missing(layer, own):
                wrong.append(own)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_it_changes_nothing(translator):
    for seed in range(3):
        conformance(translator(lifetime=60), seed)
