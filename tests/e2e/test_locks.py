"""Locks (fcntl, OFD, flock) between mounts: waits, signals, and the deaths of who holds them or keeps them."""

import errno
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from harness import equal, kill, raises, wait_until, write

# A process that locks: takes commands as JSON, a line each, and answers with "done" or the name of an errno.
LOCKER = r"""
import errno, fcntl, json, os, signal, struct, sys
class Signal(Exception): pass
def raised(*_): raise Signal
signal.signal(signal.SIGUSR1, raised)
files = {}
KINDS = {"read": (fcntl.LOCK_SH, fcntl.F_RDLCK), "write": (fcntl.LOCK_EX, fcntl.F_WRLCK), "none": (fcntl.LOCK_UN, fcntl.F_UNLCK)}
def flockstruct(kind, start, length):
    return struct.pack("hhqqi4x", KINDS[kind][1], os.SEEK_SET, start, length, 0)
def act(what, path, kind="write", wait=False, start=0, length=0):
    now = 0 if wait or kind == "none" else fcntl.LOCK_NB
    if what == "open": files[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    elif what == "close": os.close(files.pop(path))
    elif what == "posix": fcntl.lockf(files[path], KINDS[kind][0] | now, length, start)
    elif what == "flock": fcntl.flock(files[path], KINDS[kind][0] | now)
    elif what == "ofd": fcntl.fcntl(files[path], 38 if wait else 37, flockstruct(kind, start, length))
    elif what == "look":
        found = struct.unpack("hhqqi4x", fcntl.fcntl(files[path], fcntl.F_GETLK, flockstruct(kind, start, length)))
        return "free" if found[0] == fcntl.F_UNLCK else [found[2], found[3], found[4]]
    elif what == "count":
        for _ in range(length):
            fcntl.lockf(files[path], fcntl.LOCK_EX)
            number = int(os.pread(files[path], 100, 0) or b"0")
            os.pwrite(files[path], b"%d" % (number + 1), 0)
            fcntl.lockf(files[path], fcntl.LOCK_UN)
    return "done"
for line in sys.stdin:
    try: answer = act(**json.loads(line))
    except Signal: answer = "signal"
    except OSError as error: answer = "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
    print(json.dumps(answer), flush=True)
"""


class Locker:
    """Another process, with one file open."""

    living = []

    def __init__(self, path):
        Locker.living.append(self)
        self.path = path
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", LOCKER], **pipes)
        self.ask("open")

    def begin(self, what, kind="write", **named):
        self.process.stdin.write(json.dumps({"what": what, "path": self.path, "kind": kind, **named}) + "\n")
        self.process.stdin.flush()

    def answer(self, limit_s=20):
        """None: there is none in that time."""
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return None
        return json.loads(self.process.stdout.readline())

    def ask(self, what, kind="write", **named):
        self.begin(what, kind, **named)
        return self.answer(60)

    def waits(self, what, kind="write", **named):
        """Begins a wait that does not end by itself."""
        self.begin(what, kind, wait=True, **named)
        equal(self.answer(0.3), None, f"an answer to {what} {kind}")

    def kill(self):
        Locker.living.remove(self)
        kill(self.process.pid)
        self.process.wait()


def ends_lockers(function):
    """The lockers end with the test, so that it can be unmounted."""

    @functools.wraps(function)
    def run(store):
        function(store)
        for locker in list(Locker.living):
            locker.kill()

    return run


@ends_lockers
def test_locks_hold_between_mounts(store):
    one, two = store.up(), store.mount("two")
    a, b, c = Locker(f"{one}/f"), Locker(f"{two}/f"), Locker(f"{one}/f")
    equal(a.ask("posix", start=10, length=10), "done", "a range")
    for other in (b, c):
        equal(other.ask("posix", "read", start=19, length=5), "EAGAIN", "a range that overlaps")
        equal(other.ask("look", start=0), [10, 10, a.process.pid], "who is in the way")
        equal(other.ask("posix", "read", start=20, length=5), "done", "the range behind it")
    equal(a.ask("posix", "none", start=12, length=2), "done", "a hole")
    equal(b.ask("posix", start=12, length=2), "done", "the hole")
    equal(a.ask("look", start=0, length=16), [12, 2, b.process.pid], "who took the hole")
    equal(a.ask("flock", "read"), "done", "flock beside fcntl")
    equal((b.ask("flock", "read"), b.ask("flock", "write")), ("done", "EAGAIN"), "a flock that is shared")
    equal(a.ask("close"), "done", "close")
    wait_until(lambda: b.ask("flock", "write") == "done", "flock free after the close")
    equal(b.ask("posix", start=14, length=6), "done", "fcntl free after the close")


@pytest.mark.root
def test_locks_of_directories_and_fifos_hold_within_a_mount(store):
    """docs/limits.md: the kernel keeps them itself, for one mount."""
    one, two = store.up(), store.mount("two", options=("-o", "dev"))
    three = store.mount("three", options=("-o", "dev"))
    os.mkdir(f"{one}/directory")
    os.mkfifo(f"{one}/fifo")
    os.mknod(f"{one}/device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name, flags in (("directory", os.O_RDONLY), ("fifo", os.O_RDWR), ("device", os.O_RDWR)):
        opened = [os.open(f"{mount}/{name}", flags) for mount in (two, two, three)]
        fcntl.flock(opened[0], fcntl.LOCK_EX)
        raises(errno.EWOULDBLOCK, fcntl.flock, opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(opened[2], fcntl.LOCK_EX | fcntl.LOCK_NB)
        for handle in opened:
            os.close(handle)


@ends_lockers
def test_locks_of_open_files_go_with_the_last_descriptor(store):
    one, two = store.up(), store.mount("two")
    a, b = Locker(f"{one}/f"), Locker(f"{two}/f")
    equal(a.ask("ofd", start=0, length=10), "done", "an OFD lock")
    equal(a.ask("ofd", "read", start=20, length=10), "done", "another")
    equal(b.ask("ofd", "read", start=9, length=1), "EAGAIN", "in the way")
    equal(b.ask("posix", start=20, length=1), "EAGAIN", "fcntl and OFD meet")
    equal(a.ask("close"), "done", "close")
    wait_until(lambda: b.ask("posix", start=0, length=40) == "done", "free after the close")


@ends_lockers
def test_more_wait_for_locks_than_a_mount_has_workers(store):
    one, two = store.up(), store.mount("two")
    holder = Locker(f"{one}/f")
    equal(holder.ask("posix"), "done", "the lock")
    waiting = [Locker(f"{two}/f") for _ in range(40)]
    for locker in waiting:
        locker.begin("posix", wait=True)
    time.sleep(1)
    write(f"{two}/g", b"other requests go on")
    equal(os.listdir(two), os.listdir(one), "listings")
    equal(holder.ask("posix", "none"), "done", "let go")
    left = {locker.process.stdout: locker for locker in waiting}
    while left:
        ready = select.select(list(left), [], [], 20)[0]
        equal(len(ready), 1, "processes that have the lock at once")
        locker = left.pop(ready[0])
        equal(locker.answer(), "done", "its turn")
        equal(holder.ask("posix"), "EAGAIN", "while another has it")
        locker.kill()


@ends_lockers
def test_a_signal_ends_a_wait(store):
    one, two = store.up(), store.mount("two")
    for style in ("posix", "flock", "ofd"):
        a, b, c = Locker(f"{one}/f"), Locker(f"{two}/f"), Locker(f"{two}/f")
        equal(a.ask(style), "done", style)
        b.waits(style)
        c.waits(style)
        os.kill(b.process.pid, signal.SIGUSR1)
        equal(b.answer(), "signal", f"{style} interrupted")
        c.kill()
        equal(a.ask(style, "none"), "done", "let go")
        equal(a.ask(style), "done", "nobody took it who gave up")
        b.waits(style)
        equal(a.ask(style, "none"), "done", "let go")
        equal(b.answer(), "done", "waited again")
        a.kill()
        b.kill()


@ends_lockers
def test_a_wait_for_each_other_is_refused(store):
    one, two = store.up(), store.mount("two")
    a, b = Locker(f"{one}/f"), Locker(f"{two}/f")
    equal((a.ask("posix", start=0, length=1), b.ask("posix", start=1, length=1)), ("done", "done"), "a byte each")
    a.waits("posix", start=1, length=1)
    equal(b.ask("posix", start=0, length=1, wait=True), "EDEADLK", "the other's byte")
    equal(b.ask("posix", "none"), "done", "let go")
    equal(a.answer(), "done", "the wait of the other")


@ends_lockers
def test_a_killed_process_holds_no_locks(store):
    one, two = store.up(), store.mount("two")
    for style in ("posix", "flock", "ofd"):
        a, b = Locker(f"{one}/f"), Locker(f"{two}/f")
        equal(a.ask(style), "done", style)
        b.waits(style)
        a.kill()
        equal(b.answer(), "done", f"{style} after its holder was killed")
        b.kill()


@pytest.mark.limit(200)
@ends_lockers
def test_a_killed_mount_holds_no_locks(store):
    one, two = store.up(), store.mount("two")
    a, b = Locker(f"{one}/f"), Locker(f"{two}/f")
    equal((a.ask("posix"), a.ask("flock")), ("done", "done"), "both styles")
    b.waits("posix")
    store.kill_mount()
    # Its session ends after 60 s of silence.
    equal(b.answer(100), "done", "fcntl after its mount was killed")
    equal(b.ask("flock"), "done", "flock")
    a.kill()


@ends_lockers
def test_a_mount_that_died_with_its_server_holds_nobody_up(store):
    one = store.up()
    a = Locker(f"{one}/f")
    equal(a.ask("posix"), "done", "a lock of the mount that dies")
    assert has_seen_locks(store), "the server has not seen that the mount's process lives"
    store.kill_server()
    store.kill_mount()
    a.kill()
    store.serve()
    two = store.mount("two")
    b, c = Locker(f"{two}/other"), Locker(f"{two}/f")
    wait_until(lambda: b.ask("posix") == "done", "a lock of a file that nobody had locked", limit_s=20)
    equal((b.ask("flock"), c.ask("posix")), ("done", "done"), "another style, and the file that was locked")


@ends_lockers
def test_a_mount_that_lives_keeps_its_locks(store):
    one, two = store.up(), store.mount("two")
    a, b = Locker(f"{one}/f"), Locker(f"{two}/f")
    equal(a.ask("posix"), "done", "a lock")
    assert has_seen_locks(store), "the server has not seen that the mounts' processes live"
    for turn in range(2):
        store.kill_server()
        # Nobody can tell the next server what this mount holds, but it lives.
        os.kill(store.mount_pids["mnt"], signal.SIGSTOP)
        store.serve()
        equal(b.ask("posix"), "EAGAIN", f"turn {turn}: nobody can know whether it is held")
        os.kill(store.mount_pids["mnt"], signal.SIGCONT)
        equal(a.ask("posix", "none", start=100, length=10), "done", f"turn {turn}: the mount goes on")
        equal(b.ask("posix", start=0, length=10), "EAGAIN", f"turn {turn}: held")
        equal(b.ask("posix", start=100, length=10), "done", f"turn {turn}: let go")
        equal(b.ask("posix", "none"), "done", "and let go of again")


@pytest.mark.limit(200)
@ends_lockers
def test_where_no_death_can_be_proved_a_lock_is_refused_at_once(store):
    one = store.up()
    a = Locker(f"{one}/f")
    equal(a.ask("posix"), "done", "a lock of the mount that dies")
    store.kill_server()
    store.kill_mount()
    a.kill()
    # As where the mount was in a container that does not have the directory.
    shutil.rmtree(f"{store.state}/session-locks")
    store.serve()
    two = store.mount("two")
    b, c = Locker(f"{two}/other"), Locker(f"{two}/third")
    equal(b.ask("posix"), "EAGAIN", "who does not wait")
    c.waits("posix")
    # The session ends after 60 s of silence.
    equal(c.answer(100), "done", "who waits")
    equal(b.ask("posix"), "done", "who asks again")


def has_seen_locks(store):
    """Each session's file has a note of the server's."""
    directory = f"{store.state}/session-locks"
    return all(os.path.getsize(os.path.join(directory, name)) > 0 for name in os.listdir(directory))


@ends_lockers
def test_locks_outlive_the_server(store):
    one, two = store.up(), store.mount("two")
    a, b, c = Locker(f"{one}/f"), Locker(f"{two}/f"), Locker(f"{two}/f")
    equal((a.ask("posix", start=0, length=50), a.ask("flock")), ("done", "done"), "both styles")
    equal(a.ask("posix", "none", start=10, length=5), "done", "a hole")
    b.waits("posix", start=20, length=1)
    for turn in range(3):
        store.kill_server()
        store.serve()
        equal(c.ask("posix", "read", start=5, length=1), "EAGAIN", f"turn {turn}: held")
        equal(c.ask("flock", "read"), "EAGAIN", f"turn {turn}: flock held")
        equal(c.ask("posix", start=10, length=5), "done", f"turn {turn}: the hole is free")
        equal(c.ask("posix", "none", start=10, length=5), "done", "and let go")
        equal(b.answer(0.3), None, f"turn {turn}: the wait")
    store.kill_server()
    a.begin("posix", "none")
    time.sleep(0.3)
    store.serve()
    equal((a.answer(), b.answer()), ("done", "done"), "let go while the server was away, and granted")


@ends_lockers
def test_a_process_killed_while_the_server_is_away_holds_no_locks(store):
    one, two = store.up(), store.mount("two")
    a, b, c = Locker(f"{one}/f"), Locker(f"{one}/f"), Locker(f"{two}/f")
    equal((a.ask("posix"), a.ask("flock")), ("done", "done"), "both styles")
    b.waits("posix")
    store.kill_server()
    a.kill()
    b.kill()
    store.serve()
    wait_until(lambda: (c.ask("posix"), c.ask("flock")) == ("done", "done"), "free once the server is back")


@pytest.mark.limit(150)
@ends_lockers
def test_a_counter_under_a_lock_is_never_counted_wrong(store):
    one, two = store.up(), store.mount("two")
    lockers = [Locker(f"{mnt}/n") for mnt in (one, two) for _ in range(3)]
    for locker in lockers:
        locker.begin("count", length=150)
    for _ in range(3):
        time.sleep(1)
        store.kill_server()
        store.serve()
    equal([locker.answer(100) for locker in lockers], ["done"] * 6, "counting")
    with open(f"{one}/n") as file:
        equal(int(file.read()), 6 * 150, "the count")
