import errno
import threading

import pytest

from hekate import HekateError, ops
from hekate.testing import conformance


def refused(call, *arguments):
    with pytest.raises(HekateError) as caught:
        call(*arguments)
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
