"""Modes of a volume beside leader and hsr: the unsafe ones say so, those for measuring write what they should, all hold what was written."""

import json
import os
import threading
import time

import pytest

from harness import equal, has_measuring_modes, wait_until
from raw_client import PROTOCOL, Session, raw_write
from test_failover import ends_equal
from test_fast import BLOCK, BLOCKS, holds, overwrite
from servers import three

MODES = {
    "async": ["async"],
    "bypass": ["bypass", "--leader", "2"],
}
MEASURING = {
    "afr": ["afr"],
    "afr-both": ["afr", "--eager-lock", "--piggyback"],
    "fast-path": ["fast-path"],
}
# Steps of raw writes that 64 overwrites of a block take: one at each of two replicas, or five.
RAW_STEPS = {"afr": range(640, 700), "afr-both": range(128, 300), "fast-path": range(128, 140)}


def made(store, name):
    """A volume of that mode with two copies, mounted under its name. -> a file of a megabyte in it"""
    store.cli("volume", "create", name, "--mode", *(MODES | MEASURING)[name])
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


def check_modes(store, modes):
    three(store)
    store.umount()
    for name, words in modes.items():
        path = made(store, name)
        before = raw_writes(store, "s1", "s2", "s3")
        overwrite(path, range(1, 5))
        taken = sum(raw_writes(store, "s1", "s2", "s3")) - sum(before)
        equal(taken in RAW_STEPS.get(name, range(1)), True, f"raw writes of {name}: {taken}")
        holds(path, 4)
        shown = json.loads(store.cli("--json", "volume", "show", name).out)
        equal(len(shown["weaker"]) > 0, True, f"what {name} gives up")
        text = store.cli("volume", "show", name).out
        equal("weaker than the contract" in text and f"mode {words[0]}" in text, True, text)
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
def test_every_mode_holds_what_was_written_and_says_what_it_gives_up(store):
    check_modes(store, MODES)


@pytest.mark.measuring
@pytest.mark.limit(200)
def test_every_mode_for_measuring_holds_what_was_written_and_says_what_it_gives_up(store):
    check_modes(store, MEASURING)


@pytest.mark.measuring
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


def check_death_of_a_server(store, name):
    three(store)
    store.umount()
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


@pytest.mark.limit(200)
def test_a_server_dies_amid_early_writes(store):
    check_death_of_a_server(store, "async")


@pytest.mark.measuring
@pytest.mark.limit(200)
def test_a_server_dies_amid_raw_writes(store):
    check_death_of_a_server(store, "afr")


def raw_refusals(store, volume):
    """What the members of each partition reply to a raw write that no AFR client sends."""
    session = Session(f"{store.state}/server.sock", volume)
    members = [session.member(partition) for partition in range(len(session.views))]
    return [session.refusal(member, raw_write(5 << 64, 0, 0, b"x" * 4096), durable=1) for member in members]


@pytest.mark.no_fuse
def test_raw_writes_are_refused_where_a_volume_is_not_made_for_them(store):
    store.init()
    store.serve()
    for told in raw_refusals(store, "v"):
        equal("mode hsr" in told.what, True, told.what)
    create = ["volume", "create", "x", "--mode"]
    store.refuses(*create, "hsr", "--eager-lock", words=["for --mode afr"])
    store.refuses(*create, "bypass", words=["--leader"])
    store.refuses(*create, "bypass", "--leader", "7", words=["server 7"])
    equal(store.status()["health"], "good", "the server")


@pytest.mark.measuring
@pytest.mark.no_fuse
def test_raw_writes_to_shards_that_are_not_there_are_refused(store):
    store.init()
    store.serve()
    store.cli("volume", "create", "afr", "--mode", "afr")
    conflict = 22
    for told in raw_refusals(store, "afr"):
        equal(told.number in {conflict, PROTOCOL}, True, f"error {told.number}: {told.what}")
    equal(store.status()["health"], "good", "the server")


@pytest.mark.no_fuse
def test_a_program_without_the_modes_for_measuring_refuses_them_and_names_the_build(store):
    if has_measuring_modes():
        pytest.skip("the program is built with the cargo feature `measuring`")
    store.init()
    store.serve()
    for words in MEASURING.values():
        store.refuses("volume", "create", "x", "--mode", *words, words=[f"mode {words[0]}", "--features measuring"])
    equal([volume["name"] for volume in json.loads(store.cli("--json", "volume", "list").out)], ["v"], "volumes")
    text = store.cli("volume", "create", "--help").out
    equal([word for word in ["afr", "fast-path", "eager-lock", "piggyback"] if word in text], [], "modes in the help")
