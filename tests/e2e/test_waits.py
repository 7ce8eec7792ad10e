"""Who waits for a server that is away or hangs: it can be killed, signals do not disturb it, and it goes on."""

import os
import signal
import subprocess
import sys
import time

from harness import equal, write

# Asks for something of a file, and counts the timer signals that it is told of afterwards.
CHILD = """
import os, signal, sys
ticks = 0
signal.signal(signal.SIGINT, signal.SIG_DFL)
def tick(*_):
    global ticks
    ticks += 1
if sys.argv[3] == "ticks":
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
print("asks", flush=True)
what, path = sys.argv[1:3]
if what == "stat":
    os.stat(path)
elif what == "write":
    handle = os.open(path, os.O_WRONLY)
    os.pwrite(handle, b"w" * 5000, 0)
    os.fsync(handle)
elif what == "list":
    os.listdir(os.path.dirname(path))
elif what == "create":
    open(path + "-new", "x").close()
print("done", ticks, flush=True)
"""


def ask(what, path, ticks="none"):
    words = [sys.executable, "-c", CHILD, what, path, ticks]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    equal(child.stdout.readline(), "asks\n", "the child begins")
    return child


ASKED = ("stat", "write", "list", "create")


def kills_and_waits(store, mnt, hang, go_on):
    write(f"{mnt}/f", b"x" * 100_000)
    # A write of a file that is open already; opening is its own wait.
    hang()
    children = {(what, end): ask(what, f"{mnt}/f") for what in ASKED for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)}
    waiting = {what: ask(what, f"{mnt}/f{'2' if what == 'create' else ''}", "ticks") for what in ASKED}
    time.sleep(1.5)
    for (what, end), child in children.items():
        assert child.poll() is None, f"{what} did not wait: {child.stdout.read()}"
        child.send_signal(end)
    for (what, end), child in children.items():
        begun = time.monotonic()
        try:
            child.wait(8)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{what} is still there 8 s after signal {end}") from None
        assert time.monotonic() - begun < 8
    for what, child in waiting.items():
        assert child.poll() is None, f"{what} did not wait: {child.stdout.read()}"
    go_on()
    for what, child in waiting.items():
        out = child.communicate(timeout=30)[0]
        assert out.startswith("done") and int(out.split()[1]) >= 1, f"{what}: {out}"


def test_who_waits_for_a_server_that_hangs_can_be_killed(store):
    mnt = store.up()
    kills_and_waits(
        store, mnt, lambda: os.kill(store.server_pid, signal.SIGSTOP), lambda: os.kill(store.server_pid, signal.SIGCONT)
    )


def test_who_waits_for_a_server_that_is_away_can_be_killed(store):
    mnt = store.up()
    kills_and_waits(store, mnt, store.kill_server, store.serve)
