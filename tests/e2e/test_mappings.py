"""Shared mappings that are written on several mounts: one mount at a time has a file's pages (docs/coherence.md)."""

import errno
import json
import mmap
import os
import sqlite3
import struct
import subprocess
import sys
import threading
import time

import pytest
import servers
from harness import equal, raises, read, wait_until, write
from test_coherence import hang, ops, two_mounts

TURNS = int(os.environ.get("MAPPING_TURNS", "1"))
HERE = os.path.dirname(os.path.abspath(__file__))


def client(path, word, *options):
    program = [sys.executable, f"{HERE}/mapping_clients.py", path, str(word), *map(str, options)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def results(clients):
    outputs = [one.communicate(timeout=120)[0] for one in clients]
    equal([one.returncode for one in clients], [0] * len(clients), "how the processes ended")
    return [json.loads(output) for output in outputs]


def words(path, count):
    return list(struct.unpack_from(f"={count}Q", read(path)))


class Mapped:
    """A file that this process has mapped."""

    def __init__(self, path):
        self.file = open(path, "r+b", buffering=0)
        self.pages = mmap.mmap(self.file.fileno(), 0)

    def __enter__(self):
        return self.pages

    def __exit__(self, *_):
        self.pages.close()
        self.file.close()


@pytest.mark.limit(120)
@pytest.mark.parametrize("size", [4096, 1 << 20], ids=["small", "sharded"])
def test_what_two_mounts_add_to_words_of_a_page_is_all_there(store, size):
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(size))
    until = store.path("until")
    owned = [client(f"{mnt}/f", word, "--until", until) for word, mnt in enumerate((one, two, one, two))]
    shared = [client(f"{mnt}/f", 9, "--until", until, "--lock") for mnt in (one, two)]
    time.sleep(5 * TURNS)
    faults = ops(store, "map")
    write(until, b"")
    told = results(owned + shared)
    print(f"{faults} rights asked for, {[one['added'] for one in told]} added in {told[0]['seconds']:.1f} s")
    for mnt in (one, two):
        found = words(f"{mnt}/f", 10)
        equal(found[:4], [one["added"] for one in told[:4]], "words that one process adds to")
        equal(found[9], sum(one["added"] for one in told[4:]), "the word that both add to under a lock")
    assert all(one["added"] > 20 for one in told), told


def test_a_mapping_shows_what_another_mount_stored_or_wrote(store):
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(100_000))
    with Mapped(f"{one}/f") as here, Mapped(f"{two}/f") as there:
        for turn in range(1, 40):
            here[turn], there[5000 + turn] = turn, turn
            equal((there[turn], here[5000 + turn]), (turn, turn), "each sees what the other stored, without msync")
        there[90_000] = 1
        with open(f"{one}/f", "r+b", buffering=0) as file:
            for turn in range(10, 30):
                os.pwrite(file.fileno(), bytes([turn]), 50_000)
                equal(there[50_000], turn, "what the other mount wrote by write(2)")
        equal(there[90_000], 1, "what was stored besides")
        os.truncate(f"{one}/f", 60_000)
        os.truncate(f"{one}/f", 100_000)
        equal(there[90_000], 0, "what another mount cut off")
        equal(there[50_000], 29, "what it left")
        os.unlink(f"{one}/f")
        here[1] = 77
        equal(there[1], 77, "in a file without a name")


def test_reads_and_writes_of_files_that_nobody_maps_ask_for_no_right(store):
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(100_000))
    for mnt in (one, two):
        with open(f"{mnt}/f", "r+b", buffering=0) as file:
            for offset in range(0, 100_000, 10_000):
                os.pwrite(file.fileno(), b"x" * 100, offset)
                os.pread(file.fileno(), 5000, offset)
        equal(len(read(f"{mnt}/f")), 100_000, "its length")
    equal(ops(store, "map"), 0, "rights that were asked for")
    with Mapped(f"{one}/f") as pages:
        for offset in range(0, 100_000, 4096):
            pages[offset] = 1
    equal(ops(store, "map"), 1, "one is enough")
    begun = time.monotonic()
    with Mapped(f"{two}/f") as pages:
        equal(pages[8192], 1, "what was stored")
    assert time.monotonic() - begun < 0.5, "the right of a file that is closed is returned"


@pytest.mark.limit(150)
def test_sqlite_in_wal_mode_on_two_mounts(store):
    mounts = two_mounts(store)
    path = f"{mounts[0]}/db"
    made = sqlite3.connect(path, isolation_level=None)
    equal(made.execute("PRAGMA journal_mode=WAL").fetchone()[0], "wal", "the mode")
    made.execute("CREATE TABLE rows (worker INT, number INT, PRIMARY KEY (worker, number))")
    made.execute("CREATE TABLE sums (total INT)")
    made.execute("INSERT INTO sums VALUES (0)")
    made.close()
    wanted, problems = 300 * TURNS, []

    def add(worker, mnt):
        program = (
            "import sqlite3, sys\n"
            "path, worker, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
            "db = sqlite3.connect(path, timeout=60, isolation_level=None)\n"
            "db.execute('PRAGMA wal_autocheckpoint=50')\n"
            "for number in range(wanted):\n"
            "    db.execute('BEGIN IMMEDIATE')\n"
            "    total = db.execute('SELECT total FROM sums').fetchone()[0]\n"
            "    db.execute('INSERT INTO rows VALUES (?, ?)', (worker, number))\n"
            "    db.execute('UPDATE sums SET total = ?', (total + 1,))\n"
            "    db.execute('COMMIT')\n"
        )
        ended = subprocess.run([sys.executable, "-c", program, f"{mnt}/db", str(worker), str(wanted)], capture_output=True, text=True)
        problems.extend([ended.stderr] if ended.returncode else [])

    begun = time.monotonic()
    workers = [threading.Thread(target=add, args=(worker, mnt)) for worker, mnt in enumerate(mounts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{2 * wanted} transactions in {time.monotonic() - begun:.1f} s")
    equal(problems, [], "what the processes said")
    for mnt in mounts:
        db = sqlite3.connect(f"{mnt}/db")
        equal(db.execute("PRAGMA integrity_check").fetchall(), [("ok",)], "integrity_check")
        equal(db.execute("SELECT worker, count(*) FROM rows GROUP BY worker ORDER BY worker").fetchall(), [(0, wanted), (1, wanted)], "rows")
        equal(db.execute("SELECT total FROM sums").fetchone()[0], 2 * wanted, "the sum")
        db.close()


@pytest.mark.limit(90)
def test_a_mount_that_hangs_loses_what_it_had_not_written_back(store):
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(100_000))
    with Mapped(f"{one}/f") as here, Mapped(f"{two}/f") as there:
        here[0] = here[50_000] = 1
        go_on = hang(store.mount_pids["mnt"])
        try:
            begun = time.monotonic()
            there[1] = 2
            waited = time.monotonic() - begun
            there.flush()
            equal(there[:2], b"\0\2", "what the other mount sees and stores")
        finally:
            go_on()
        assert 3 < waited < 8, f"the other mount waited {waited:.1f} s"
        raises(errno.EIO, here.flush)
        wait_until(lambda: here[:2] == b"\0\2", "the mount shows what the other stored")
        equal(read(f"{two}/f")[:2], b"\0\2", "the late page is not written")
        equal(read(f"{two}/f")[50_000], 0, "nor another one")
        here[0] = 7
        here.flush()
        equal(there[:2], b"\7\2", "it goes on")


@pytest.mark.limit(90)
def test_a_mount_whose_server_was_away_keeps_what_it_stored(store):
    """Nobody else has had the right meanwhile."""
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(100_000))
    # A process of its own: one that starts others closes its files in them, which waits for the server.
    program = (
        "import mmap, sys\n"
        "file = open(sys.argv[1], 'r+b', buffering=0)\n"
        "pages = mmap.mmap(file.fileno(), 0)\n"
        "for line in sys.stdin:\n"
        "    index = int(line)\n"
        "    pages[index] = index + 1\n"
        "    print('stored', flush=True)\n"
        "pages.flush()\n"
    )
    here = subprocess.Popen([sys.executable, "-c", program, f"{one}/f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def store_at(index):
        here.stdin.write(f"{index}\n")
        here.stdin.flush()
        equal(here.stdout.readline(), "stored\n", "its answer")

    store_at(0)
    store.kill_server()
    store_at(1)
    time.sleep(7)
    store.serve()
    store_at(2)
    here.stdin.close()
    equal(here.wait(timeout=30), 0, "how the process ended")
    equal(read(f"{two}/f")[:4], b"\1\2\3\0", "all of it")
    with Mapped(f"{one}/f") as here, Mapped(f"{two}/f") as there:
        there[3] = 4
        equal(here[:4], b"\1\2\3\4", "both go on")


@pytest.mark.limit(150)
def test_what_two_mounts_add_while_their_server_is_killed_is_all_there(store):
    one, two = two_mounts(store)
    write(f"{one}/f", bytes(100_000))
    until = store.path("until")
    owned = [client(f"{mnt}/f", word, "--until", until) for word, mnt in enumerate((one, two))]
    shared = [client(f"{mnt}/f", 9, "--until", until, "--lock") for mnt in (one, two)]
    for _ in range(3 * TURNS):
        time.sleep(2)
        store.kill_server()
        store.serve()
    time.sleep(3)
    write(until, b"")
    told = results(owned + shared)
    print([one["added"] for one in told])
    for mnt in (one, two):
        found = words(f"{mnt}/f", 10)
        equal(found[:2], [one["added"] for one in told[:2]], "words that one process adds to")
        equal(found[9], sum(one["added"] for one in told[2:]), "the word that both add to under a lock")
    for path in ("mount-v.log",):
        assert b"is dropped, since another mount" not in read(f"{store.state}/{path}")


@pytest.mark.limit(90)
def test_many_stored_pages_are_written_back_for_another_mount(store):
    one, two = two_mounts(store)
    size = (32 << 20) * TURNS
    write(f"{one}/f", bytes(size))
    with Mapped(f"{one}/f") as here, Mapped(f"{two}/f") as there:
        for offset in range(0, size, 4096):
            here[offset] = 1 + offset // 4096 % 255
        begun = time.monotonic()
        equal(there[0], 1, "the first page")
        print(f"{size >> 20} MiB were stored, and the other mount waited {time.monotonic() - begun:.2f} s")
        for offset in range(0, size, 4096):
            equal(there[offset], 1 + offset // 4096 % 255, f"the page at {offset}")


@pytest.mark.limit(240)
def test_what_two_mounts_add_while_leaders_die_is_all_there(store):
    one = servers.three(store, listen=True, apart=True)
    two = store.mount("two")
    until, names = store.path("until"), "abc"
    for name in names:
        write(f"{one}/{name}", bytes(100_000))
    owned = [client(f"{mnt}/{name}", word, "--until", until) for name in names for word, mnt in enumerate((one, two))]
    shared = [client(f"{mnt}/a", 9, "--until", until, "--lock") for mnt in (one, two)]
    for server in ["s2", "s3"] * TURNS:
        time.sleep(3)
        store.kill_other(server)
        time.sleep(4)
        store.serve_other(server, *store.listens[server])
        wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=60)
    time.sleep(2)
    write(until, b"")
    told = results(owned + shared)
    print([one["added"] for one in told])
    for mnt in (one, two):
        for place, name in enumerate(names):
            wanted = [one["added"] for one in told[2 * place : 2 * place + 2]]
            equal(words(f"{mnt}/{name}", 2), wanted, f"words of {name} that one process adds to")
        equal(words(f"{mnt}/a", 10)[9], sum(one["added"] for one in told[-2:]), "the word under a lock")


def test_pages_of_a_mapping_that_reads_are_dropped_for_one_that_writes(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"a" * 100_000)
    with open(f"{two}/f", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as shown:
        equal(shown[0], ord("a"), "a page of a file that is open to be read")
        with Mapped(f"{two}/f") as here, Mapped(f"{one}/f") as there:
            for turn in range(20):
                there[0] = turn
                equal((here[0], shown[0]), (turn, turn), "both mappings of the mount")
                here[1] = turn
                equal((there[1], shown[1]), (turn, turn), "what the mount stored")
