"""Healing as users and operators see it: what is missing, file by file; both sides killed in the middle; then equal."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import HEKATE, equal, free_port, wait_until
from test_failover import has_healed, views
from test_replace import check_files, make_files
from test_scrub import apart, ends_equal, two

SHARD = 4 << 20
BLOCK = 4096


def alone(store):
    return all(len(view["members"]) == 1 for view in views(store))


def lacked(store):
    """What `heal list` says -> rows by path, or by id."""
    said = store.cli("--json", "heal", "list").json()["missing"]
    rows = {row.get("path") or row.get("inode") or row["data"]: row for row in said["files"]}
    return rows, said


@pytest.mark.limit(200)
def test_files_that_a_replica_lacks_are_named(store):
    mnt = two(store)
    os.makedirs(f"{mnt}/old/deep")
    with open(f"{mnt}/old/deep/large", "wb") as file:
        file.write(os.urandom(3 * SHARD))
    with open(f"{mnt}/old/untouched", "wb") as file:
        file.write(os.urandom(SHARD))
    os.sync()
    # The mount returns grants that it has not used for a second.
    time.sleep(2)
    equal(lacked(store)[0], {}, "while nothing is missing")
    # Names that are older than the journals are looked for in the indexes.
    store.stop_other("s2")
    store.stop()
    store.serve("--listen", store.address)
    store.serve_other("s2")
    has_healed(store)
    # Leaders that begin ask for the ends of files that were just written, and record them.
    time.sleep(3)
    store.kill_other("s2")
    wait_until(lambda: alone(store), "the first serves alone", limit_s=20)
    with open(f"{mnt}/old/deep/large", "r+b") as file:
        file.seek(SHARD + 10 * BLOCK)
        file.write(os.urandom(2 * BLOCK))
    os.mkdir(f"{mnt}/new")
    for number in range(30):
        with open(f"{mnt}/new/{number}", "wb") as file:
            file.write(b"%d" % number * 500)
    with open(f"{mnt}/new/great", "wb") as file:
        file.write(os.urandom(2 * SHARD))
    os.sync()
    rows, said = lacked(store)
    expected = {"/old/deep/large", "/new", "/new/great"} | {f"/new/{number}" for number in range(30)}
    assert expected <= rows.keys(), f"not named: {sorted(expected - rows.keys())} among {sorted(rows)}"
    assert "/old/untouched" not in rows, rows["/old/untouched"]
    equal(rows["/old/deep/large"]["blocks"], 2, "blocks of a file of which two were changed")
    equal(rows["/new/great"]["blocks"], 2 * SHARD // BLOCK, "blocks of a new file")
    assert rows["/new/7"]["bytes"] >= 500, rows["/new/7"]
    gone = {row["brick"] for row in store.cli("--json", "brick", "list").json() if row["state"] == "away"}
    equal({row["brick"] for row in rows.values()}, gone, "whose")
    equal({row["volume"] for row in rows.values()}, {"v"}, "volumes")
    assert said["bytes"] >= 2 * SHARD, said["bytes"]
    text = store.cli("heal", "list").out
    assert "/old/deep/large" in text and "away" in text, text
    store.serve_other("s2")
    has_healed(store)
    equal(lacked(store)[0], {}, "once it is healed")
    equal(store.cli("heal", "status", "--prove").exit, 0, "the proof")


def is_in_the_middle(store):
    """Some partition is healed in part, or some are and others are not: on a fast machine one takes less time than a look at it."""
    healed = [row["healed"] or 0 for row in store.try_cli("--json", "heal", "status").json()["missing"] if row["state"] == "being healed"]
    return any(0 < part < 1 for part in healed) or 0 < len(healed) < len(views(store))


@pytest.mark.limit(300)
def test_both_sides_are_killed_while_one_heals(store):
    mnt = apart(store)
    files = make_files(mnt, "before", 1)
    store.kill_other("s2")
    old = store.path("s2-brick")
    shutil.rmtree(old)
    store.serve_other("s2", "--without", old)
    new = store.path("s2-new")
    store.cli("brick", "replace", old, new, "--journal", "32", state=store.path("s2"))
    for number in range(12):
        with open(f"{mnt}/great{number}", "wb") as file:
            for _ in range(8):
                file.write(os.urandom(SHARD))
    os.sync()
    store.stop_other("s2")
    store.serve_other("s2", "--without", old)
    wait_until(lambda: is_in_the_middle(store), "the heal is in its middle", limit_s=60)
    store.kill_other("s2")
    files |= make_files(mnt, "meanwhile", 2)
    store.serve_other("s2", "--without", old)
    wait_until(lambda: is_in_the_middle(store), "it goes on", limit_s=60)
    # The only ones that have everything.
    store.kill_server()
    store.serve("--listen", store.address)
    wait_until(lambda: all(len(view["members"]) == 2 for view in views(store)), "all are members", limit_s=100)
    check_files(mnt, files)
    equal(store.cli("heal", "status", "--prove").exit, 0, "the proof")
    store.cli("scrub", "start", "--wait")
    digests = {number: os.path.getsize(f"{mnt}/great{number}") for number in range(12)}
    equal(set(digests.values()), {8 * SHARD}, "sizes")
    store.cli("brick", "remove", old, state=store.path("s2"))
    ends_equal(store, "s2-new")


@pytest.mark.limit(200)
def test_heal_status_is_right_during_the_next_fault(store):
    mnt = two(store)
    files = make_files(mnt, "before", 1)

    def says_whole():
        return store.try_cli("heal", "status").exit == 0

    def fault():
        """From the moment on at which a server is gone nobody is told that all replicas have everything: not before views change either."""
        store.kill_other("s2")
        for _ in range(20):
            said = store.try_cli("heal", "status")
            equal(said.exit, 1, f"of heal status without a server: {said.text}")
            time.sleep(0.25)
        wait_until(lambda: alone(store), "the first serves alone", limit_s=20)
        equal(store.try_cli("heal", "status", "--prove").exit, 1, "the proof without a replica")

    assert says_whole(), store.try_cli("heal", "status").text
    fault()
    with open(f"{mnt}/great", "wb") as file:
        for _ in range(16):
            file.write(os.urandom(SHARD))
    os.sync()
    # Once it is back it is healed, and says so until it has everything; the next fault comes before that, or right after it.
    store.serve_other("s2")
    wait_until(lambda: not alone(store) or is_in_the_middle(store), "it is being healed", limit_s=40)
    fault()
    store.serve_other("s2")
    wait_until(says_whole, "it is whole", limit_s=60)
    equal({len(view["members"]) for view in views(store)}, {2}, "members of the views, whenever it says that all is there")
    equal(store.cli("heal", "status", "--prove").exit, 0, "the proof")
    check_files(mnt, files)


@pytest.mark.limit(200)
def test_a_proof_that_a_fault_interrupts_begins_anew(store):
    """It was given up after 20 seconds, since a server that was away for a moment had ended it, or a partition did not serve yet when it was asked for."""
    mnt = two(store)
    files = make_files(mnt, "before", 1)
    for _ in range(3):
        store.kill_other("s2")
        proof = subprocess.Popen([HEKATE, "--state", store.state, "heal", "status", "--prove"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            store.serve_other("s2")
            said = proof.communicate(timeout=60)[0]
        finally:
            proof.kill()
        # What is healed is not there yet: whoever asks in that moment hears of it.
        assert proof.returncode in (0, 1), f"exit {proof.returncode}: {said}"
        has_healed(store)
    equal(store.cli("heal", "status", "--prove").exit, 0, "the proof")
    check_files(mnt, files)


@pytest.mark.limit(120)
def test_nobody_knows_of_what_a_dead_server_alone_has(store):
    """Nobody else can say what those partitions lack."""
    store.init(volume=None, bricks=1)
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address)
    store.join("s2")
    store.serve_other("s2")
    store.cli("volume", "create", "v", "--copies", "1")
    wait_until(lambda: store.try_cli("heal", "status").exit == 0, "it is whole", limit_s=20)
    led = {view["leader"] for view in views(store)}
    equal(len(led), 2, "bricks that lead")
    # It hangs, and nobody has missed it yet.
    os.kill(store.other_pids["s2"], signal.SIGSTOP)
    outcome = store.try_cli("--json", "heal", "status")
    os.kill(store.other_pids["s2"], signal.SIGCONT)
    said = outcome.json()
    equal((said["all_servers_answer"], said["missing"]), (False, []), "what is known")
    assert said["waiting"] and all("server 2" in row["waits_for"] for row in said["waiting"]), said
    equal(outcome.exit, 1, "of heal status")
    store.kill_other("s2")
    for _ in range(12):
        said = store.try_cli("heal", "status")
        equal(said.exit, 1, f"of heal status: {said.text}")
        time.sleep(0.5)
    assert "not all servers answer" in said.text, said.text
    store.serve_other("s2")
    wait_until(lambda: store.try_cli("heal", "status").exit == 0, "it is whole again", limit_s=30)
    equal(store.cli("heal", "status", "--prove").exit, 0, "the proof")
