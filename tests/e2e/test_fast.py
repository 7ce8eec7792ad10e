"""Volumes of mode hsr: overwrites go to all replicas at once, and promise what they promise on the leader's lane."""

import contextlib
import glob
import os
import threading
import time

import pytest

from harness import equal, wait_until
from raw_client import DENIED, PROTOCOL, Session, fast_write
from test_apart import restart_machine
from test_failover import ends_equal
from servers import three

BLOCK = 4096
BLOCKS = 256


def fast_writes(store, *servers):
    """How many each of these servers has taken"""
    found = []
    for name in servers:
        told = store.cli("metrics", **({} if name == "s1" else {"state": store.path(name)})).out
        lines = [line for line in told.splitlines() if 'op="fast-write"' in line and "_count{" in line]
        found.append(sum(float(line.rsplit(" ", 1)[1]) for line in lines))
    return found


def hsr(store):
    """Three servers, a volume of that mode with two copies. -> where it is mounted, and a file of a megabyte"""
    three(store)
    store.umount()
    store.cli("volume", "create", "fast", "--mode", "hsr")
    mnt = store.mount("fast", volume="fast")
    path = f"{mnt}/file"
    with open(path, "wb") as file:
        file.write(bytes(BLOCKS * BLOCK))
        os.fsync(file.fileno())
    return path


def block(number, round_):
    return bytes([number % 251, round_ % 251]) * (BLOCK // 2)


def overwrite(path, rounds, numbers=range(0, BLOCKS, 16), flags=os.O_DSYNC):
    file = os.open(path, os.O_WRONLY | flags)
    for round_ in rounds:
        for number in numbers:
            equal(os.pwrite(file, block(number, round_), number * BLOCK), BLOCK, "written")
    os.close(file)


def holds(path, round_, numbers=range(0, BLOCKS, 16)):
    with open(path, "rb") as file:
        for number in numbers:
            file.seek(number * BLOCK)
            equal(file.read(BLOCK) == block(number, round_), True, f"block {number} of round {round_}")


@pytest.mark.limit(120)
def test_overwrites_go_to_all_replicas(store):
    path = hsr(store)
    shown = store.cli("volume", "show", "fast").out
    equal("mode hsr" in shown, True, "the mode")
    for flags, rounds in [(os.O_DSYNC, range(1, 9)), (0, range(9, 17))]:
        before = fast_writes(store, "s1", "s2", "s3")
        overwrite(path, rounds, flags=flags)
        holds(path, rounds[-1])
        taken = [now - then for now, then in zip(fast_writes(store, "s1", "s2", "s3"), before)]
        # One shard, two replicas: each of them takes nearly all.
        equal(sorted(count > 100 for count in taken), [False, True, True], f"fast writes {taken}, flags {flags}")
    seen_inside(store)
    store.umount("fast")
    store.mount("fast", volume="fast")
    holds(path, 16)
    store.umount("fast")
    ends_equal_of(store)


def seen_inside(store):
    """What the servers tell of lanes and partitions, with a shard open and once nobody writes any more"""
    status = store.status()
    fast = [row for row in status["lanes"] if row["lane"] == "fast" and row["writes"] > 100]
    equal(len(fast), 2, f"servers with fast writes: {status['lanes']}")
    equal(all(0 < row["p50_us"] <= row["p99_us"] for row in fast), True, f"latencies: {fast}")
    shown = store.cli("status").out
    equal("with all replicas; greatest epoch" in shown and "LANE" in shown, True, shown)
    equal("UNSETTLED" in store.cli("partition", "list").out, True, "the heads of partition list")
    rows = store.cli("--json", "partition", "list").json()
    equal(any(row["loose"] for row in rows), True, "a partition with writes that are not on stable storage")

    def is_quiet():
        rows = store.cli("--json", "partition", "list").json()
        return all(row["open_shards"] == row["unsettled"] == 0 and not row["loose"] for row in rows)
    wait_until(is_quiet, "all shards are closed", limit_s=30)


@pytest.mark.limit(300)
def test_a_server_dies_amid_fast_writes(store):
    path = hsr(store)
    overwrite(path, [1])
    for round_, name, flags in [(2, "s2", os.O_DSYNC), (30, "s3", os.O_DSYNC), (60, "s2", 0), (90, "s3", 0)]:
        rounds = range(round_, round_ + 20)
        writer = threading.Thread(target=overwrite, args=(path, rounds), kwargs={"flags": flags})
        writer.start()
        time.sleep(0.2)
        store.kill_other(name)
        begun = time.time()
        overwrite(path, [round_ + 19], flags=flags)
        writer.join()
        holds(path, round_ + 19)
        # Times are answered before all replicas have them; none goes back.
        equal(os.stat(path).st_mtime > begun - 0.05, True, f"mtime {os.stat(path).st_mtime}, written at {begun}")
        store.serve_other(name)
        wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=60)
        holds(path, round_ + 19)
    store.umount("fast")
    ends_equal_of(store)


@pytest.mark.limit(200)
def test_all_machines_restart_amid_loose_writes(store):
    """What each replica had of these is in no log: one decides, the others are compared with it"""
    path = hsr(store)
    ends = threading.Event()

    def keep_writing():
        file = os.open(path, os.O_WRONLY)
        round_ = 0
        while not ends.is_set():
            round_ += 1
            for number in range(BLOCKS):
                os.pwrite(file, block(number, round_), number * BLOCK)
        with contextlib.suppress(OSError):
            # What was lost is said once.
            os.close(file)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    time.sleep(2)
    for name, brick in [("s2", "s2-brick"), ("s3", "s3-brick"), (None, "brick0")]:
        restart_machine(store, name, brick)
    store.serve("--listen", store.address)
    for name in ["s2", "s3"]:
        store.serve_other(name)
    wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=90)
    ends.set()
    writer.join()
    overwrite(path, [7], flags=0)
    holds(path, 7)
    logs = [line for name in ["state", "s2", "s3"] for log in glob.glob(f"{store.path(name)}/*.log") for line in open(log, errors="replace")]
    equal(any("decides what is kept" in line for line in logs), True, "a partition with one member for a while")
    store.umount("fast")
    ends_equal_of(store)


@pytest.mark.limit(120)
def test_two_mounts_fight_over_a_shard_and_both_go_on(store):
    path = hsr(store)
    other = store.mount("other", volume="fast")
    halves = [range(0, BLOCKS, 16), range(8, BLOCKS, 16)]
    writers = [threading.Thread(target=overwrite, args=(where, range(1, 13), numbers))
               for where, numbers in zip([path, f"{other}/file"], halves)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for where in [path, f"{other}/file"]:
        for numbers in halves:
            holds(where, 12, numbers)
    store.umount("other")
    store.umount("fast")
    ends_equal_of(store)


@pytest.mark.no_fuse
def test_what_no_leader_has_allowed_is_refused(store):
    conflict, stale_view = 22, 21
    store.init()
    store.serve()
    store.cli("volume", "create", "fast", "--mode", "hsr")
    store.cli("volume", "create", "slow", "--mode", "leader")
    for volume, wanted in [("slow", {DENIED}), ("fast", {conflict, PROTOCOL})]:
        session = Session(f"{store.state}/server.sock", volume)
        op = fast_write(5 << 64, 0, 0, b"x" * 4096)
        for partition in range(len(session.views)):
            number = session.refusal(session.member(partition), op, durable=1).number
            equal(number in wanted, True, f"error {number} of {volume}")
        not_durable = session.refusal(session.member(0), op).number
        equal(not_durable in wanted, True, f"error {not_durable} of {volume}, not durable")
    equal(session.refusal(session.member(0, epoch=99), op, durable=1).number, stale_view, "in another view")
    session.refusal(session.member(0, brick=77), op, durable=1)
    # Nothing but fast writes is asked of a member.
    equal(session.refusal(session.member(0), b"\x02\x01" + bytes(16), durable=1).number, PROTOCOL, "another op")
    equal(store.status()["health"], "good", "the server")


def ends_equal_of(store):
    """All replicas are equal. Shards that nobody writes are closed after half a second."""
    time.sleep(2.5)
    store.mount()
    ends_equal(store)
