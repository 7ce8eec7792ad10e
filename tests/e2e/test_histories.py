"""What three mounts are told of names, bytes and locks is linearizable, also while the server is killed and started again.

HEKATE_HISTORIES=N: how many rounds [8]; HEKATE_SEED: which [random, and printed on failure]; CHECK_HISTORY=PROGRAM: the
checker, else it is built (crates/sim).
"""

import os
import random
import time

import pytest

import recorder
from checker import check, checker

ROUNDS = int(os.environ.get("HEKATE_HISTORIES", "8"))
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))
LIMIT_S = 300 + 10 * ROUNDS
PROCESSES = 6
# So many calls of each process that the search for an order stays short.
CALLS = 60


def record(store, kill=False, options=(), count=ROUNDS):
    """Rounds on three mounts; with `kill` the server dies in every other. -> the file, and what is in it"""
    store.init(bricks=2)
    store.serve()
    mounts = [store.mount(name, options=options) for name in ("m0", "m1", "m2")]
    chance, rounds = random.Random(SEED), []
    crew = recorder.Crew(mounts, PROCESSES, SEED)
    for number in range(count):
        crew.begin(number, CALLS)
        if kill and number % 2:
            time.sleep(chance.uniform(0, 0.15))
            store.kill_server()
            store.serve()
        rounds.append(crew.end())
    crew.stop()
    path = os.path.join(os.environ.get("E2E_DIR", "/var/tmp"), f"hekate-history.{os.path.basename(store.base)}.{SEED}.jsonl")
    recorder.save(path, rounds)
    return path, rounds


def judge(store, kill):
    command = checker()
    path, rounds = record(store, kill)
    told = check(command, path)
    assert told.returncode == 0, f"HEKATE_SEED={SEED}, {path}: {told.stdout}{told.stderr}"
    os.unlink(path)
    lines = [line for lines in rounds for line in lines]
    for what in {line["op"] for line in lines}:
        assert any(line["op"] == what and "error" not in line for line in lines), f"{what} never succeeded"
    assert overlapping(lines) > len(lines) // 10, "calls hardly ever met"


def overlapping(lines):
    """How many calls began before the one that began before them had returned."""
    lines = sorted(lines, key=lambda line: line["from"])
    return sum(line["from"] < before["to"] for before, line in zip(lines, lines[1:]))


@pytest.mark.limit(LIMIT_S)
def test_three_mounts_see_one_order(store):
    judge(store, kill=False)


@pytest.mark.limit(LIMIT_S)
def test_three_mounts_see_one_order_while_the_server_dies(store):
    judge(store, kill=True)


@pytest.mark.limit(LIMIT_S)
def test_mounts_that_cache_are_seen_to_break_the_order(store):
    command = checker()
    path, _ = record(store, options=["--cache", "5"], count=2)
    told = check(command, path)
    assert told.returncode == 1, f"HEKATE_SEED={SEED}, {path}: {told.stdout}{told.stderr}"
    for about in ("names: no order", "contents of "):
        assert about in told.stdout, f"no complaint about {about}: {told.stdout[:2000]}"
    os.unlink(path)
