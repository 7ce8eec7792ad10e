"""Processes killed again and again under writers whose every acknowledged op is recorded outside of the store.

HEKATE_KILLS=N: how many processes each test kills [8]; HEKATE_SEED: which, and when [random, and printed on failure].
"""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from harness import equal, kill, wait_until
from test_compare import compare
from servers import three

ACKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "acked.py")
# What a dead mount had asked for is done, or taken back, so long after a server that lives has what it waited for.
IN_FLIGHT_S = 2.5
KILLS = int(os.environ.get("HEKATE_KILLS", "8"))
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))
LIMIT_S = 120 + 6 * KILLS


class Writers:
    """`acked.py` at work on a mount, four processes with directories of their own, and its record."""

    def __init__(self, store, mnt, seconds, seed=SEED):
        self.mnt, self.record = mnt, store.directory("record")
        self.begin(seconds, seed)

    def begin(self, seconds, seed=SEED):
        """-> once they are at work."""
        before = self.acknowledged()
        words = [sys.executable, ACKED, "work", self.mnt, self.record, "--seconds", str(seconds), "--seed", str(seed)]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.process.poll() is not None or self.acknowledged() > before + 4, "writers at work")

    def acknowledged(self):
        """Ops so far."""
        total = 0
        for name in os.listdir(self.record):
            with open(f"{self.record}/{name}") as file:
                total += sum('"done"' in line for line in file)
        return total

    def end(self, limit_s=60):
        """Waits until the time is up or the mount is gone; no writer may have met another error."""
        _, told = self.process.communicate(timeout=limit_s)
        equal((self.process.returncode, told), (0, ""), "how the writers ended")

    def verify(self):
        """Everything must be as recorded. -> counts."""
        done = subprocess.run([sys.executable, ACKED, "verify", self.mnt, self.record], capture_output=True, text=True)
        equal(done.returncode, 0, f"the record against the volume: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)


class Killer:
    """Kills processes of a store by chance, starts them again, and compares whenever the mount was among them."""

    def __init__(self, store, names, serve):
        self.store, self.names, self.serve = store, names, serve
        self.chance = random.Random(SEED)
        self.kills = self.rounds = 0

    def pid(self, name):
        return {"server": self.store.server_pid, "mount": self.store.mount_pids.get("mnt")}.get(name) or self.store.other_pids[name]

    def run(self):
        writers = Writers(self.store, self.store.path("mnt"), LIMIT_S)
        while self.kills < KILLS:
            time.sleep(self.chance.uniform(0.1, 0.7))
            equal(writers.process.poll(), None, f"round {self.rounds}: the writers' exit status while nothing was amiss")
            victims = self.choose()
            for name in victims:
                kill(self.pid(name))
                time.sleep(self.chance.choice([0, 0, 0.02, 0.1]))
            if "mount" in victims:
                writers.end()
                self.store.mount_pids.pop("mnt")
                self.store.cli("umount", "--lazy", writers.mnt)
            # The first one first: the others wait for it.
            for name in filter(victims.__contains__, self.names):
                if name != "mount":
                    self.serve(name)
            if "mount" in victims:
                if len(victims) < len(self.names):
                    wait_until(lambda: self.store.status()["health"] == "good", "all partitions serve")
                    time.sleep(IN_FLIGHT_S)
                self.store.mount()
                writers.verify()
                if self.kills + len(victims) < KILLS:
                    writers.begin(LIMIT_S, f"{SEED}/{self.rounds}")
            self.kills += len(victims)
            self.rounds += 1
        counts = writers.verify()
        assert counts["acknowledged"] > 5 * KILLS, f"too slow to say anything: {counts}"
        return counts


    def choose(self):
        """Some servers, and sometimes the mount; with the mount mostly everything, for that needs no waiting."""
        servers = [name for name in self.names if name != "mount"]
        left = KILLS - self.kills
        if self.rounds % 3 == 2 or left <= len(self.names):
            count = len(servers) if self.chance.random() < 0.8 else self.chance.randint(0, len(servers) - 1)
            victims = ["mount", *self.chance.sample(servers, count)]
            self.chance.shuffle(victims)
            return victims
        return self.chance.sample(servers, self.chance.randint(1, len(servers)))


def run(store, names, serve):
    try:
        Killer(store, names, serve).run()
    except AssertionError as error:
        raise AssertionError(f"HEKATE_SEED={SEED}: {error}") from error


def end_and_compare(store, bricks):
    """In order; then all replicas must hold the same."""
    store.umount()
    if store.other_pids:
        # Servers learn within a second that a session has ended, and each forgets what it kept for its retries.
        time.sleep(2.5)
    for name in list(store.other_pids):
        store.stop_other(name)
    store.stop()
    report = compare(store, *bricks)
    equal((report["equal"], report["problem_count"]), (True, 0), "replicas")


def scrub(store, state=None):
    for brick in store.cli("--json", "brick", "scrub", "--wait", state=state).json():
        equal((brick["scrub"]["last"]["mended"], brick["scrub"]["last"]["damaged"]), (0, 0), f"scrub of {brick['directory']}")


@pytest.mark.limit(LIMIT_S)
def test_everything_acknowledged_survives_kills(store):
    store.up(bricks=3)
    run(store, ["server", "mount"], lambda _: store.serve())
    scrub(store)
    end_and_compare(store, store.bricks(3))


@pytest.mark.limit(LIMIT_S)
def test_acknowledged_by_three_survives_kills(store):
    three(store)

    def serve(name):
        if name == "server":
            store.serve("--listen", store.address)
        else:
            store.serve_other(name)

    run(store, ["server", "s2", "s3", "mount"], serve)
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=30)
    for state in [None, store.path("s2"), store.path("s3")]:
        scrub(store, state)
    end_and_compare(store, [store.path(name) for name in ("brick0", "s2-brick", "s3-brick")])
