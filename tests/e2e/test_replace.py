"""A brick takes the place of another: one that is gone, and one that works still."""

import hashlib
import os
import random
import shutil

import pytest

from harness import equal, wait_until
from test_failover import has_healed, views
from test_kills import Writers


def make_files(mnt, what, seed):
    """-> the digest of each, by its path in the mount."""
    made, randomness = {}, random.Random(seed)
    for number in range(20):
        os.mkdir(f"{mnt}/{what}{number}")
        for size in (0, 100, 5_000, 70_000, 5_000_000 if number % 10 == 0 else 300_000):
            content = randomness.randbytes(size)
            with open(f"{mnt}/{what}{number}/{size}", "wb") as file:
                file.write(content)
            made[f"{what}{number}/{size}"] = hashlib.sha256(content).hexdigest()
    return made


def check_files(mnt, files):
    for path, digest in files.items():
        with open(f"{mnt}/{path}", "rb") as file:
            equal(hashlib.sha256(file.read()).hexdigest(), digest, path)


def ids(store):
    """Ids of bricks by their directories."""
    return {row["directory"]: row["brick"] for row in store.cli("--json", "brick", "list").json()}


def members(store):
    return {member["brick"] for view in views(store) for member in view["members"]}


@pytest.mark.limit(200)
def test_a_brick_that_is_gone_is_replaced(store):
    mnt = None
    store.init()
    store.serve()
    mnt = store.mount()
    files = make_files(mnt, "before", 1)
    os.sync()
    kept, gone = store.bricks(2)
    old = ids(store)[gone]
    store.kill_server()
    shutil.rmtree(gone)
    store.refuses("serve", "--detach", words=[gone, f"--without {gone}"])
    store.refuses("serve", "--detach", "--without", "/nowhere", words=["no brick /nowhere", kept])
    store.serve("--without", gone)
    check_files(mnt, files)
    files |= make_files(mnt, "alone", 2)
    states = {row["directory"]: row["state"] for row in store.cli("--json", "brick", "list").json()}
    equal(states, {kept: "online", gone: "not opened"}, "the bricks")
    equal(store.status()["health"], "degraded", "health")
    store.refuses("brick", "replace", "/nowhere", gone, words=["no brick called /nowhere", gone])
    store.refuses("brick", "replace", gone, kept, words=["is a brick of this server already"])
    # In the same place.
    os.mkdir(gone)
    replaced = store.cli("--json", "brick", "replace", gone, gone, "--journal", "32").json()
    equal((replaced["replaces"], replaced["replicas"]), (old, 16), "what it takes over")
    store.refuses("brick", "replace", old, store.path("b9"), words=["was replaced already"])
    store.stop()
    store.serve()
    files |= make_files(mnt, "healing", 3)
    has_healed(store)
    equal(members(store), {ids(store)[kept], replaced["brick"]}, "bricks with everything")
    store.cli("brick", "remove", old)
    check_files(mnt, files)
    equal(len(store.cli("--json", "brick", "list").json()), 2, "bricks in the end")
    store.umount()
    store.stop()
    store.serve()
    check_files(store.mount(), files)


@pytest.mark.limit(200)
def test_a_brick_that_works_is_replaced_under_load(store):
    store.init()
    store.serve()
    mnt = store.mount()
    files = make_files(mnt, "before", 4)
    leaves, stays = store.bricks(2)
    new = store.path("b9")
    old = ids(store)[leaves]
    store.refuses("brick", "remove", leaves, words=["holds 16 replicas", f"brick replace {leaves}"])
    store.refuses("brick", "drain", leaves, words=[f"brick replace {leaves}"])
    replaced = store.cli("--json", "brick", "replace", leaves, new, "--journal", "32").json()
    writers = Writers(store, mnt, seconds=20)
    store.stop()
    store.serve()
    has_healed(store)
    wait_until(lambda: old not in members(store), "no view has the old brick", limit_s=40)
    equal(members(store), {ids(store)[stays], replaced["brick"]}, "bricks with everything")
    store.cli("brick", "remove", leaves)
    writers.end()
    check_files(mnt, files)
    # The old one is not needed, and not opened any more.
    store.stop()
    shutil.rmtree(leaves)
    store.serve()
    check_files(mnt, files)
