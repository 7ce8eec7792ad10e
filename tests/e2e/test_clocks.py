"""Clocks that are set while a cluster over etcd is at work: of the machine, and of one server alone.

HEKATE_SET_CLOCK=1: the clock of this machine may be set, which only a guest's may (`tests/soak/run.sh clocks`).
"""

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import time

import pytest

from etcd import FIRST, kill_member, member, three_with_etcd
from harness import equal, read, wait_until, write
from test_etcd import Writer

HOUR_S, DAY_S = 3600, 24 * 3600
# A server's certificate is renewed after 60 of 90 days; a client's lives for 365 days, etcd's and the issuing one for 1,825.
RENEWAL_S, CLIENT_S, ISSUING_S = 61 * DAY_S, 400 * DAY_S, 2000 * DAY_S
NOT_VALID_YET = "not valid yet; check both clocks"
NOT_VALID_YET_OF_ETCD = b"certificate of etcd's member is not accepted: invalid peer certificate: certificate not valid yet"
EXPIRED = "expired; check both clocks"
SERVERS = [FIRST, "s2", "s3"]
HERE = os.path.dirname(os.path.abspath(__file__))


class MachineClock:
    """The clock of the machine."""

    def __init__(self):
        self.right = time.time() - time.monotonic()

    def set(self, ahead_s):
        """To the time at the beginning and what has passed since, and so many seconds."""
        time.clock_settime(time.CLOCK_REALTIME, self.right + time.monotonic() + ahead_s)


class OwnClock:
    """The clock of processes that are started while it is `shown` (clock.c)."""

    def __init__(self, store):
        library, path = store.path("clock.so"), store.path("clock")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, f"{HERE}/clock.c"], check=True)
        write(path, bytes(8))
        with open(path, "r+b") as file:
            self.seconds = mmap.mmap(file.fileno(), 8)
        self.variables = {"LD_PRELOAD": library, "CLOCK_AHEAD": path}

    @contextlib.contextmanager
    def shown(self):
        os.environ.update(self.variables)
        try:
            yield
        finally:
            for name in self.variables:
                del os.environ[name]

    def set(self, ahead_s):
        self.seconds[:] = struct.pack("q", ahead_s)


class Cluster:
    """Three servers, each with a member of etcd, a mount with a writer, and a client that mounts now and then."""

    def __init__(self, store):
        self.store, self.mounts = store, 0
        mnt = three_with_etcd(store)
        self.credential = store.client("c1", "--volume", "v")
        self.writer = Writer(mnt)
        self.writer.progress()

    def is_refused(self, word):
        """A client cannot connect, and says why."""
        self.store.refuses("mount", "v", self.store.directory("refused"), credential=self.credential, words=[word])

    def goes_on(self, name):
        """Writes go on, over connections that are new too: a server and a member of etcd die and come back, a client mounts."""
        store = self.store
        self.writer.progress()
        store.kill_other(name)
        kill_member(store, name)
        self.writer.progress()
        self.serve(name)
        equal(member(store, name)["state"], "ready", "the member after the restart")
        self.writer.progress()
        self.reads()

    def serve(self, name):
        self.store.serve_other(name, *self.store.listens[name])
        wait_until(lambda: self.store.status()["health"] == "good", "all partitions serve", limit_s=30)

    def reads(self):
        """A client that mounts now finds what was written last."""
        last = self.writer.count - 1
        self.mounts += 1
        mounted = self.store.mount(f"m{self.mounts}", credential=self.credential)
        equal(read(f"{mounted}/w{last}"), str(last).encode(), "what a new mount reads")
        self.store.umount(f"m{self.mounts}")

    def after_renewals(self, names, act):
        """Acts, and waits until these servers have other certificates."""
        files = [f"{self.store.path(name)}/credential.toml" for name in names]
        before = [read(file) for file in files]
        act()
        is_renewed = lambda: all(read(file) != old for file, old in zip(files, before))
        wait_until(is_renewed, "the servers have renewed their certificates", limit_s=60)


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.limit(300)
@pytest.mark.skipif(not os.environ.get("HEKATE_SET_CLOCK"), reason="sets the clock of the machine: tests/soak/run.sh clocks")
def test_the_clock_of_the_machine_is_set(store):
    clock, cluster = MachineClock(), Cluster(store)
    for ahead_s in [HOUR_S, -HOUR_S, DAY_S]:
        clock.set(ahead_s)
        cluster.writer.progress()
        cluster.reads()
    clock.set(0)
    cluster.goes_on("s3")
    # Before the beginning of all certificates: what is connected goes on, and nobody else connects.
    clock.set(-DAY_S)
    cluster.writer.progress()
    cluster.is_refused(NOT_VALID_YET)
    clock.set(0)
    cluster.goes_on("s2")
    # When the clock is right again, the certificates that servers have begin in two months.
    cluster.after_renewals(SERVERS, lambda: clock.set(RENEWAL_S))
    cluster.goes_on("s3")
    cluster.after_renewals(SERVERS, lambda: clock.set(0))
    cluster.goes_on("s2")
    for ahead_s in [CLIENT_S, ISSUING_S]:
        clock.set(ahead_s)
        cluster.is_refused(EXPIRED)
    clock.set(0)
    cluster.goes_on("s3")
    cluster.writer.stop()


@pytest.mark.limit(300)
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_the_clock_of_one_server_is_set(store):
    clock, cluster = OwnClock(store), Cluster(store)
    store.stop_other("s3")
    with clock.shown():
        cluster.serve("s3")
    for ahead_s in [HOUR_S, -HOUR_S, DAY_S]:
        clock.set(ahead_s)
        cluster.writer.progress()
        cluster.reads()
    clock.set(0)
    cluster.goes_on("s2")
    # It takes no certificate for valid, so it loses its lease when a connection to etcd ends. The others are enough.
    clock.set(-DAY_S)
    kill_member(store, "s3")
    cluster.writer.progress()
    wait_until(lambda: NOT_VALID_YET_OF_ETCD in read(f"{store.path('s3')}/serve.log"), "the server says why it has no lease")
    cluster.writer.progress()
    clock.set(0)
    member(store, "s3")
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=30)
    cluster.goes_on("s2")
    # The others do not take its new certificate for valid.
    cluster.after_renewals(["s3"], lambda: clock.set(RENEWAL_S))
    cluster.writer.progress()
    cluster.after_renewals(["s3"], lambda: clock.set(0))
    cluster.goes_on("s2")
    cluster.writer.stop()
