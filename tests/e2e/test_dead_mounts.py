"""A mount whose process was killed: whoever uses it is told at once, and it leaves nothing stuck."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from harness import equal, kill, raises, read, wait_until, write
from helper_install import works

# (EIO: of a write that was cut in the middle.)
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
# How soon everybody must have ended, on a busy machine.
SOON_S = 15

# Each works until it fails, says with which errno, and ends.
LOOPS = {
    "reads": "f = os.open(mnt + '/big', os.O_RDONLY)\nwhile True: os.pread(f, 1 << 20, 0)",
    "writes": "f = os.open(mnt + '/w', os.O_CREAT | os.O_WRONLY)\nwhile True: os.pwrite(f, bytes(700_000), 3_900_000)",
    "writes direct": "f = os.open(mnt + '/x', os.O_CREAT | os.O_WRONLY | os.O_DIRECT)\nb = mmap.mmap(-1, 1 << 20)\nwhile True: os.pwrite(f, b, 0)",
    "syncs": "f = os.open(mnt + '/s', os.O_CREAT | os.O_WRONLY)\nwhile True: os.pwrite(f, b'x', 0); os.fsync(f)",
    "makes": "i = 0\nwhile True: i += 1; os.mkdir(mnt + '/d%d' % i); os.rename(mnt + '/d%d' % i, mnt + '/e%d' % i); os.rmdir(mnt + '/e%d' % i)",
    "lists": "while True: os.listdir(mnt)",
    "waits for flock": "f = os.open(mnt + '/locked', os.O_RDWR)\nprint('ready', flush=True)\nwhile True: fcntl.flock(f, fcntl.LOCK_EX)",
    "waits for fcntl": "f = os.open(mnt + '/locked', os.O_RDWR)\nprint('ready', flush=True)\nwhile True: fcntl.lockf(f, fcntl.LOCK_EX)",
    "idles and closes": "f = os.open(mnt + '/big', os.O_RDONLY)\nprint('ready', flush=True)\nsys.stdin.readline()\nos.fstat(f)",
}
PROGRAM = """
import errno, fcntl, mmap, os, sys
mnt = sys.argv[1]
try:
    LOOP
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
"""


def start(mnt, loop):
    program = PROGRAM.replace("LOOP", loop.replace("\n", "\n    "))
    return subprocess.Popen([sys.executable, "-c", program, mnt], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def all_end(started, begun):
    """-> what each said last."""
    said = {}
    for name, process in started.items():
        try:
            out = process.communicate("\n", timeout=max(0.1, begun + SOON_S - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"who {name} still hangs {SOON_S} s after the mount was killed") from None
        said[name] = out.split()[-1] if out.split() else "nothing"
    return said


def busy_mount(store):
    """A mount where each of the loops runs. -> the directory of another mount, and who runs."""
    mnt = store.up()
    other = store.mount("other")
    write(f"{mnt}/big", os.urandom(9 << 20))
    write(f"{mnt}/locked", b"")
    held = os.open(f"{other}/locked", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    fcntl.lockf(held, fcntl.LOCK_EX)
    started = {name: start(mnt, loop) for name, loop in LOOPS.items()}
    for name, process in started.items():
        if "ready" in LOOPS[name]:
            equal(process.stdout.readline(), "ready\n", name)
    wait_until(lambda: all(os.path.exists(f"{other}/{name}") for name in "wxs"), "all at work")
    time.sleep(0.5)
    return mnt, other, held, started


@pytest.mark.root
@pytest.mark.limit(120)
def test_a_killed_mount_leaves_nobody_waiting(store):
    mnt, other, held, started = busy_mount(store)
    equal({name: process.poll() for name, process in started.items() if process.poll() is not None}, {}, "ended early")
    store.kill_mount()
    said = all_end(started, time.monotonic())
    wrong = {name: word for name, word in said.items() if word not in {errno.errorcode[number] for number in GONE}}
    equal(wrong, {}, "what they were told")
    raises(errno.ENOTCONN, os.listdir, mnt)
    store.cli("umount", mnt)
    equal(os.path.ismount(mnt), False, "still mounted")
    os.close(held)
    store.mount()
    equal(len(read(f"{mnt}/big")), 9 << 20, "mounted again")


@pytest.mark.root
@pytest.mark.limit(120)
def test_a_mount_is_killed_while_its_server_is_away(store):
    mnt, other, held, started = busy_mount(store)
    os.kill(store.server_pid, signal.SIGSTOP)
    time.sleep(1)
    store.kill_mount()
    said = all_end(started, time.monotonic())
    os.kill(store.server_pid, signal.SIGCONT)
    wrong = {name: word for name, word in said.items() if word not in {errno.errorcode[number] for number in GONE}}
    equal(wrong, {}, "what they were told")
    works("umount", mnt)
    os.close(held)
    store.mount()
    equal(len(read(f"{mnt}/big")), 9 << 20, "mounted again")


def test_a_killed_mount_is_mounted_over(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f")
    handle = os.open(f"{mnt}/f", os.O_RDONLY)
    for _ in range(3):
        store.kill_mount()
        # The kernel may still answer a stat by what it was pledged.
        raises(errno.ENOTCONN, os.open, f"{mnt}/f", os.O_RDONLY)
        done = store.cli("--json", "mount", "v", mnt)
        store.mount_pids["mnt"] = done.json()["pid"]
        assert f"removed the mount at {mnt}, whose process had ended" in done.err, done.err
        equal(read(f"{mnt}/f"), b"f", "content")
        equal(len([line for line in open("/proc/self/mountinfo") if f" {mnt} " in line]), 1, "mounts there")
    raises(errno.ENOTCONN, os.pread, handle, 1, 0)
    raises(errno.ENOTCONN, os.close, handle)
    equal(store.cli("mount", "v", store.directory("two")).err, "", "nothing to remove elsewhere")
    store.cli("umount", store.path("two"))
    store.refuses("mount", "v", mnt, words=["already"])
    equal(read(f"{mnt}/f"), b"f", "one that lives stays")


def test_a_dead_mount_is_found_however_it_is_written(store):
    """With a slash, through a link, with blanks: as people write it."""
    mnt = store.up()
    store.umount()
    odd = store.directory("od d\\x")
    os.symlink(odd, store.path("link"))
    for written in (odd + "/", store.path("link"), odd + "/."):
        kill(store.cli("--json", "mount", "v", odd).json()["pid"])
        pid = store.cli("--json", "mount", "v", written).json()["pid"]
        write(f"{odd}/f", b"f")
        kill(pid)
        store.cli("umount", written)
        equal(os.path.ismount(odd), False, f"still mounted after umount of {written}")
    store.mount()
