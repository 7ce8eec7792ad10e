"""Modes of a volume beside leader and hsr: the unsafe ones say so, those for measuring write what they should, all hold what was written."""

import json
import os
import threading
import time

import pytest

from harness import equal, wait_until
from raw_client import PROTOCOL, Session, raw_write
from test_failover import ends_equal
from test_fast import BLOCK, BLOCKS, holds, overwrite
from servers import three

MODES = {
    "async": ["async"],
    "bypass": ["bypass", "--leader", "2"],
    "afr": ["afr"],
    "afr-both": ["afr", "--eager-lock", "--piggyback"],
    "fast-path": ["fast-path"],
}


def made(store, name):
    """A volume of that mode with two copies, mounted under its name. -> a file of a megabyte in it"""
    store.cli("volume", "create", name, "--mode", *MODES[name])
    path = f"{store.mount(name, volume=name)}/file"
    with open(path, "wb") as file:
        file.write(bytes(BLOCKS * BLOCK))
        os.fsync(file.fileno())
    return path


def raw_writes(store, *servers):
    """How many steps of raw writes each of these servers has taken"""
    found = []
    for name in servers:
        told = store.cli("metrics", **({} if name == "s1" else {"state": store.path(name)})).out
        lines = [line for line in told.splitlines() if 'op="raw-write"' in line and "_count{" in line]
        found.append(sum(float(line.rsplit(" ", 1)[1]) for line in lines))
    return found


@pytest.mark.limit(200)
def test_every_mode_holds_what_was_written_and_says_what_it_gives_up(store):
    three(store)
    store.umount()
    for name in MODES:
        path = made(store, name)
        before = raw_writes(store, "s1", "s2", "s3")
        overwrite(path, range(1, 5))
        # 64 writes; a step each at two replicas, or five.
        taken = sum(raw_writes(store, "s1", "s2", "s3")) - sum(before)
        wanted = {"afr": range(640, 700), "afr-both": range(128, 300), "fast-path": range(128, 140)}.get(name, range(1))
        equal(taken in wanted, True, f"raw writes of {name}: {taken}")
        holds(path, 4)
        shown = json.loads(store.cli("--json", "volume", "show", name).out)
        equal(len(shown["weaker"]) > 0, True, f"what {name} gives up")
        words = store.cli("volume", "show", name).out
        equal("weaker than the contract" in words and f"mode {MODES[name][0]}" in words, True, words)
        if name == "bypass":
            leads = {view["leader"] for view in shown["views"]}
            equal((len(leads), shown["led_by"]), (1, 2), "who leads")
        store.umount(name)
        store.mount(name, volume=name)
        holds(path, 4)
        store.umount(name)
    time.sleep(2.5)
    store.mount()
    ends_equal(store)


@pytest.mark.limit(200)
def test_two_mounts_write_one_shard_under_afr_locks(store):
    three(store)
    store.umount()
    for name in ["afr", "afr-both"]:
        path = made(store, name)
        other = f"{store.mount('other', volume=name)}/file"
        # The same blocks from both, so that only locks keep replicas equal.
        writers = [threading.Thread(target=overwrite, args=(where, range(1, 9))) for where in (path, other)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        holds(path, 8)
        store.umount("other")
        store.umount(name)
    time.sleep(2.5)
    store.mount()
    ends_equal(store)


@pytest.mark.limit(200)
def test_a_server_dies_amid_raw_and_early_writes(store):
    three(store)
    store.umount()
    for name in ["afr", "async"]:
        path = made(store, name)
        overwrite(path, [1])
        writer = threading.Thread(target=overwrite, args=(path, range(2, 22)))
        writer.start()
        time.sleep(0.2)
        store.kill_other("s3")
        writer.join()
        if name == "afr":
            holds(path, 21)
        store.serve_other("s3")
        wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=60)
        overwrite(path, [30])
        holds(path, 30)
        store.umount(name)
    time.sleep(2.5)
    store.mount()
    ends_equal(store)


@pytest.mark.no_fuse
def test_raw_writes_are_refused_where_a_volume_is_not_made_for_them(store):
    store.init()
    store.serve()
    store.cli("volume", "create", "afr", "--mode", "afr")
    conflict = 22
    for volume, wanted in [("v", "mode hsr"), ("afr", None)]:
        session = Session(f"{store.state}/server.sock", volume)
        for partition in range(len(session.views)):
            told = session.refusal(session.member(partition), raw_write(5 << 64, 0, 0, b"x" * 4096), durable=1)
            if wanted:
                equal(wanted in told.what, True, told.what)
            else:
                equal(told.number in {conflict, PROTOCOL}, True, f"error {told.number}: {told.what}")
    create = ["volume", "create", "x", "--mode"]
    store.refuses(*create, "hsr", "--eager-lock", words=["for --mode afr"])
    store.refuses(*create, "bypass", words=["--leader"])
    store.refuses(*create, "bypass", "--leader", "7", words=["server 7"])
    equal(store.status()["health"], "good", "the server")
