import errno
import random
import threading

import pytest

from hekate import HekateError, ops
from hekate.testing import conformance


def refused(call, *arguments, **more):
    with pytest.raises(HekateError) as caught:
        call(*arguments, **more)
    assert caught.value.errno == errno.EDQUOT


def test_the_last_byte_fits_and_the_next_is_refused(translator):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", b"12345")
    quota.write("b.log", b"12345")
    refused(quota.write, "b.log", b"6", 5)
    refused(quota.append, "a.log", b"6")
    refused(quota.truncate, "a.log", 6)
    refused(quota.allocate, "a.log", 0, 6)
    quota.write("b.log", b"x")
    assert (quota.read("a.log"), quota.read("b.log")) == (b"12345", b"x2345")
    assert quota.metrics()["counts"] == {"refused": 4}


def test_other_files_are_not_limited(translator):
    quota = translator(limit=10, extensions="log")
    for name in ("a.txt", "log", ".log", "a.log.gz"):
        quota.write(name, bytes(1000))


def test_what_is_cut_or_removed_can_be_used_again(translator):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", bytes(10))
    quota.truncate("a.log", 4)
    quota.write("b.log", bytes(6))
    quota.unlink("b.log")
    quota.write("c.log", bytes(6))
    quota.rename("c.log", "c.txt")
    quota.write("d.log", bytes(6))
    refused(quota.append, "d.log", b"x")
    quota.rename("c.txt", "d.log")
    refused(quota.append, "a.log", b"x")
    quota.unlink("d.log")
    quota.append("a.log", b"x")


def test_files_that_were_there_before_count_with_scan(translator, volume):
    volume.mkdir("d")
    volume.write("d/old.log", bytes(8))
    refused(translator(limit=10, extensions="log", scan=True).write, "new.log", bytes(3))
    translator(limit=10, extensions="log").write("new.log", bytes(3))


def test_several_writers_do_not_exceed_the_limit_together(translator):
    quota = translator(limit=50, extensions="log")
    for number in range(8):
        quota.create(f"{number}.log")
    together, done = threading.Barrier(8), []

    def one(number):
        together.wait()
        for _ in range(10):
            try:
                quota.append(f"{number}.log", b"12345")
                done.append(number)
            except HekateError as error:
                assert error.errno == errno.EDQUOT

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(done) == 10 and sum(quota.stat(f"{number}.log").size for number in range(8)) == 50


def put(quota, name, content=None, inode=None, **more):
    source = ops.PutSource.Bytes(content, 0o644, 0, 0, []) if inode is None else ops.PutSource.Inode(inode)
    fields = {"alternate": None, "etag": b"", "condition": ops.Condition.Always, "keep": False, "seed": 1, **more}
    quota.handle(ops.Put(ops.ROOT, name, source=source, **fields))


def bytes_of(volume, extension=b".log"):
    return sum(volume.stat(name).size for name in volume.listdir() if name.endswith(extension))


def test_an_exchange_counts_both_files(translator, volume):
    quota = translator(limit=10, extensions="log,tmp")
    quota.write("a.log", bytes(8))
    quota.write("b.txt", bytes(2))
    quota.rename("a.log", "b.txt", ops.RenameMode.Exchange)
    assert quota.instance.used["log"] == 2 == bytes_of(volume)
    quota.append("a.log", bytes(8))
    refused(quota.append, "a.log", b"x")
    quota.write("c.tmp", bytes(10))
    quota.rename("a.log", "c.tmp", ops.RenameMode.Exchange)
    assert quota.instance.used == {"log": 10, "tmp": 10}
    quota.rename("a.log", "d.tmp", ops.RenameMode.Whiteout(False, 0, 0, 0))
    assert quota.instance.used == {"log": 0, "tmp": 20}


def test_objects_count_before_they_are_put(translator, volume):
    quota = translator(limit=10, extensions="log")
    put(quota, b"a.log", bytes(8))
    refused(put, quota, b"b.log", bytes(3))
    assert not volume.exists("b.log")
    put(quota, b"a.log", bytes(10))
    refused(put, quota, b"a.log", bytes(11))
    put(quota, b"a.log", bytes(2))
    volume.write("part", bytes(9))
    refused(put, quota, b"b.log", inode=volume.lookup("part").id)
    put(quota, b"a.log", inode=volume.lookup("part").id)
    assert quota.instance.used["log"] == 9 == bytes_of(volume)
    put(quota, b"b.log", b"x")
    volume.unlink("part")
    quota.handle(ops.Remove(ops.ROOT, b"a.log", None, ops.Condition.Always, False))
    quota.append("b.log", bytes(9))
    quota.handle(ops.MakePrefix(ops.ROOT, b"b.log", b"%~-b", 0o755, 0, 0, 1))
    assert quota.instance.used["log"] == 0


def test_joins_count_before_they_are_made(translator, volume):
    quota = translator(limit=10, extensions="log")

    def join(*parts):
        parts = [(part, b"") for part in parts]
        quota.handle(ops.Join(ops.ROOT, parts, b"all.log", 0o644, 0, 0, b"", [], 1))

    volume.write("p1", bytes(8))
    volume.write("p2", bytes(8))
    quota.write("p3.log", bytes(4))
    refused(join, b"p1", b"p2")
    refused(join, b"p1", b"p3.log")
    assert volume.exists("p1") and not volume.exists("all.log")
    volume.truncate("p1", 6)
    join(b"p1", b"p3.log")
    assert quota.instance.used["log"] == 10 == bytes_of(volume)


def test_a_removed_file_that_is_open_counts_until_it_is_closed(translator, volume):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", bytes(8))
    inode = quota.lookup("a.log").id
    quota.handle(ops.Unlink(ops.ROOT, b"a.log", open_here=inode))
    refused(quota.write, "b.log", bytes(3))
    del volume.inodes[inode]
    quota.run_timers()
    quota.write("b.log", bytes(10))


def test_a_file_with_two_names_counts_once(translator):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", bytes(8))
    quota.link("a.log", "b.txt")
    quota.lookup("b.txt")
    refused(quota.append, "b.txt", bytes(3))
    quota.unlink("a.log")
    quota.lookup("b.txt")
    quota.append("b.txt", bytes(3))
    assert quota.instance.used["log"] == 0


def test_copies_count_what_the_source_has(translator, volume):
    quota = translator(limit=10, extensions="log")
    volume.write("source", bytes(6))
    quota.create("a.log")
    source, target = volume.lookup("source").id, volume.lookup("a.log").id
    quota.handle(ops.Copy(source, 0, target, 0, 1 << 40))
    refused(quota.handle, ops.Copy(source, 0, target, 5, 1 << 40))
    quota.allocate("a.log", 0, 1 << 20, ops.AllocateMode.Reserve(keep_size=True))
    assert quota.stat("a.log").size == 6


def test_an_old_answer_does_not_undo_what_was_learnt_after_it(translator, volume):
    """A look-up is answered by the volume; then the file grows, or is removed; then the answer arrives."""
    for change, used in [(lambda quota: quota.append("a.log", bytes(5)), 5), (lambda quota: quota.unlink("a.log"), 0)]:
        quota = translator(limit=100, extensions="log")
        quota.create("a.log")
        handle = volume.handle

        def slow(op, change=change, quota=quota, handle=handle):
            reply = handle(op)
            if isinstance(op, ops.Lookup):
                volume.handle = handle
                change(quota)
            return reply

        volume.handle = slow
        quota.handle(ops.Lookup(ops.ROOT, b"a.log"))
        assert quota.instance.used["log"] == used == bytes_of(volume)


@pytest.mark.parametrize("seed", range(3))
def test_under_threads_the_sums_are_those_of_the_volume(translator, volume, seed):
    quota, wrong = translator(limit=3000, extensions="log"), []
    names = ["a.log", "b.log", "c.txt", "d.log", "e.txt"]

    def one(number):
        source = random.Random(seed * 10 + number)
        name = lambda: source.choice(names)  # noqa: E731
        todo = [
            lambda: quota.append(name(), bytes(source.randrange(300))),
            lambda: quota.write(name(), bytes(source.randrange(300)), source.randrange(600)),
            lambda: quota.truncate(name(), source.randrange(300)),
            lambda: put(quota, name().encode(), bytes(source.randrange(300))),
            lambda: quota.unlink(name()),
            lambda: quota.rename(name(), name(), ops.RenameMode.Exchange),
            lambda: quota.rename("c.txt", "e.txt"),
            lambda: quota.lookup(name()),
        ]
        for _ in range(200):
            try:
                source.choice(todo)()
            except OSError as error:
                if error.errno not in (errno.EDQUOT, errno.ENOENT, errno.ESTALE):
                    wrong.append(repr(error))
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []
    assert quota.instance.used["log"] == bytes_of(volume) and quota.instance.reserved.get("log", 0) == 0
    assert all(not file.ends and not file.appends for file in quota.instance.files.values())


def test_counts_survive_a_reload(translator):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", bytes(8))
    quota.reload()
    refused(quota.write, "b.log", bytes(3))


def test_a_lower_limit_counts_at_once(translator):
    quota = translator(limit=10, extensions="log")
    quota.write("a.log", bytes(8))
    quota.reconfigure(limit="8", extensions="log")
    refused(quota.append, "a.log", b"x")
    quota.run_timers()
    assert quota.metrics()["gauges"] == {"bytes.log": 8}


def test_below_the_limit_it_changes_nothing(translator):
    layer = translator(extensions="txt,log")
    for seed in range(3):
        conformance(layer, seed)
        assert all(size >= 0 for size in layer.instance.used.values())


def test_a_durable_write_stays_durable(translator):
    quota = translator(extensions="log")
    quota.write("a.log", b"x", durable=True)
    assert [op.durable for op in quota.below if isinstance(op, ops.Write)] == [True]
