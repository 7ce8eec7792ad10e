"""FUSE over io_uring: the mount's requests come through rings, and everything is as over /dev/fuse."""

import ctypes
import errno
import fcntl
import glob
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from harness import equal, is_gone, raises, read, same_bytes, wait_until, write

# They set a parameter that the kernel has once.
pytestmark = [pytest.mark.root, pytest.mark.alone]

PARAMETER = "/sys/module/fuse/parameters/enable_uring"
# (ECANCELED: the kernel was passing the request to a thread that was killed.)
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ECANCELED}
MIB = 1 << 20


@pytest.fixture(autouse=True)
def enabled():
    """The kernel offers io_uring to new mounts."""
    try:
        with open(PARAMETER) as file:
            before = file.read().strip()
        with open(PARAMETER, "w") as file:
            file.write("Y")
    except OSError as error:
        pytest.skip(f"the kernel has no FUSE over io_uring, or it cannot be switched on: {error}")
    yield
    with open(PARAMETER, "w") as file:
        file.write(before)


def threads(pid):
    """Threads that serve the mount -> how often each kind has waited: by a ring, and by the device."""
    waits = {"hekate-ring": [], "hekate-fuse": []}
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        with open(path) as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        if fields["Name"] in waits:
            waits[fields["Name"]].append(int(fields["voluntary_ctxt_switches"]))
    return waits


def possible_cpus():
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().rpartition("-")[2]) + 1


def in_threads(work, count):
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    [thread.start() for thread in started]
    [thread.join() for thread in started]
    assert not failed, failed


def waits_for_rings(pid):
    waits = threads(pid)
    return sum(waits["hekate-ring"]), sum(waits["hekate-fuse"])


def test_requests_come_over_rings_and_not_with_nouring(store):
    mnt = store.up()
    plain = store.mount("plain", options=("-o", "nouring"))
    write(f"{mnt}/f", b"f")
    pids = {top: store.mount_pids[os.path.basename(top)] for top in (mnt, plain)}
    assert len(threads(pids[mnt])["hekate-ring"]) >= possible_cpus(), threads(pids[mnt])
    equal(threads(pids[plain])["hekate-ring"], [], "threads of rings with nouring")
    for top, is_ring in ((mnt, True), (plain, False)):
        before = waits_for_rings(pids[top])
        for _ in range(1000):
            os.stat(f"{top}/f")
            read(f"{top}/f")
        after = waits_for_rings(pids[top])
        rings, device = after[0] - before[0], after[1] - before[1]
        assert (rings > 900 and device < 100) if is_ring else (rings == 0 and device > 900), (top, rings, device)


def test_files_are_as_over_the_device(store):
    """Contents of all lengths about a page, 16 KiB and 1 MiB; names; long lists; appends; mappings; attributes."""
    mnt = store.up()
    plain = store.mount("plain", options=("-o", "nouring"))
    cached = store.mount("cached", options=("-o", "cache=1"))

    def work(number):
        top, other = [mnt, plain, cached][number % 3], [plain, mnt, mnt][number % 3]
        os.mkdir(f"{top}/{number}")
        for length in (0, 1, 4095, 4096, 4097, 16_300, 16_384, 16_500, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB + 17):
            data = os.urandom(length)
            write(f"{top}/{number}/{length}", data, os.O_DSYNC if length % 2 else 0)
            same_bytes(read(f"{top}/{number}/{length}"), data, f"{length} bytes, by the same mount")
            same_bytes(read(f"{other}/{number}/{length}"), data, f"{length} bytes, by another mount")
        with open(f"{top}/{number}/4096", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
            mapped[:5] = b"hello"
            mapped.flush()
        equal(read(f"{mnt}/{number}/4096")[:5], b"hello", "what was written through a mapping")
        os.rename(f"{top}/{number}/1", f"{top}/{number}/{'n' * 255}")
        os.symlink("t" * 3000, f"{top}/{number}/link")
        equal(os.readlink(f"{mnt}/{number}/link"), "t" * 3000, "a long symlink")
        os.setxattr(f"{top}/{number}/0", "user.x", b"v" * 30_000)
        equal(os.getxattr(f"{mnt}/{number}/0", "user.x"), b"v" * 30_000, "a long attribute")

    in_threads(work, 9)
    os.mkdir(f"{mnt}/list")
    names = [f"{'name' * 20}-{number}" for number in range(3000)]
    for name in names:
        os.close(os.open(f"{mnt}/list/{name}", os.O_CREAT))
    for top in (mnt, plain, cached):
        equal(sorted(entry.name for entry in os.scandir(f"{top}/list") if entry.stat()), sorted(names), f"list in {top}")
    log = os.open(f"{mnt}/log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    in_threads(lambda number: [os.write(log, b"%04d" % number) for _ in range(50)], 8)
    os.close(log)
    equal(len(read(f"{plain}/log")), 1600, "bytes of all appends")


def test_more_locks_wait_than_a_queue_has_threads(store):
    """Waiting locks hold their entries. What releases them finds an entry all the same, on the same CPU."""
    mnt = store.up()
    other = store.mount("other", options=("-o", "nouring"))
    for name in ("f", "g"):
        write(f"{mnt}/{name}", b"x")
    held = os.open(f"{other}/f", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    own = os.open(f"{mnt}/g", os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    os.sched_setaffinity(0, {0})
    program = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); print('ready', flush=True); fcntl.flock(f, fcntl.LOCK_EX)"
    command = [sys.executable, "-c", program]
    waiting = [
        subprocess.Popen([*command, f"{mnt}/{'fg'[number % 2]}"], stdout=subprocess.PIPE, text=True) for number in range(90)
    ]
    [equal(process.stdout.readline(), "ready\n", "a waiter") for process in waiting]
    time.sleep(1)
    equal([process.poll() for process in waiting], [None] * 90, "all wait")
    assert len(threads(store.mount_pids["mnt"])["hekate-ring"]) > 90, "each has a thread"
    equal(read(f"{mnt}/f"), b"x", "other requests are answered")
    killed, waiting = waiting[:10], waiting[10:]
    for number, process in enumerate(killed):
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGINT)
    [process.communicate(timeout=20) for process in killed]
    fcntl.flock(own, fcntl.LOCK_UN)
    fcntl.flock(held, fcntl.LOCK_UN)
    [process.communicate(timeout=60) for process in waiting]
    equal([process.returncode for process in waiting], [0] * 80, "all got the lock, one after another")
    os.close(own)
    os.close(held)


def test_a_request_that_found_no_entry_is_not_forgotten(store):
    """Locks that wait take all entries of a queue at once; a look-up that came at the same time is answered."""
    mnt = store.up()
    other = store.mount("other", options=("-o", "nouring"))
    write(f"{mnt}/f", b"x")
    held = os.open(f"{other}/f", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.sched_setaffinity(0, {0})
    for _ in range(10):
        gate = threading.Barrier(13)
        descriptors = [os.open(f"{mnt}/f", os.O_RDWR) for _ in range(12)]

        def lock(descriptor):
            gate.wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fcntl.flock(descriptor, fcntl.LOCK_UN)

        started = [threading.Thread(target=lock, args=(descriptor,)) for descriptor in descriptors]
        [thread.start() for thread in started]
        gate.wait()
        begun = time.monotonic()
        # From a CPU that nothing else uses, where no reply of another request helps.
        looked = subprocess.run(["taskset", "-c", "0", "stat", f"{mnt}/f"], capture_output=True, timeout=20)
        equal(looked.returncode, 0, "a look-up")
        assert time.monotonic() - begun < 10, "it waited for a lock"
        fcntl.flock(held, fcntl.LOCK_UN)
        [thread.join(30) for thread in started]
        equal([thread.is_alive() for thread in started], [False] * 12, "waiting still")
        [os.close(descriptor) for descriptor in descriptors]
        fcntl.flock(held, fcntl.LOCK_EX)
    os.close(held)


def test_an_interrupt_ends_waits_for_a_server_that_is_away(store):
    mnt = store.up()
    write(f"{mnt}/f", b"x")
    os.kill(store.server_pid, signal.SIGSTOP)
    try:
        command = [sys.executable, "-c", "import os, sys; os.mkdir(sys.argv[1])"]
        # One after the other: they make names in one directory, and each takes some 4 s (docs/limits.md).
        waiting = [subprocess.Popen([*command, f"{mnt}/d{number}"], stderr=subprocess.DEVNULL) for number in range(4)]
        time.sleep(1.5)
        equal([process.poll() for process in waiting], [None] * 4, "all wait")
        [process.kill() for process in waiting]
        begun = time.monotonic()
        [process.wait(30) for process in waiting]
        assert time.monotonic() - begun < 30, "killed programs ended late"
    finally:
        os.kill(store.server_pid, signal.SIGCONT)
    equal(read(f"{mnt}/f"), b"x", "afterwards")


def test_a_killed_process_ends_though_its_server_is_away(store):
    """Its files are closed when it has its signal already, of which the kernel then does not tell."""
    mnt = store.up()
    write(f"{mnt}/f", b"x")
    program = "import fcntl, sys, time; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('ready', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program, f"{mnt}/f"], stdout=subprocess.PIPE, text=True)
    equal(holder.stdout.readline(), "ready\n", "it has the lock")
    store.kill_server()
    begun = time.monotonic()
    holder.kill()
    holder.wait(20)
    assert time.monotonic() - begun < 5, "it waits for the server"
    store.serve()
    with open(f"{mnt}/f", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def works_until_it_ends(mnt):
    """A program that reads and writes until it fails."""
    program = """
import errno, os, sys
try:
    f = os.open(sys.argv[1] + '/busy', os.O_CREAT | os.O_RDWR)
    print('ready', flush=True)
    while True:
        os.pwrite(f, bytes(700_000), 0)
        os.stat(sys.argv[1] + '/busy')
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program, mnt], stdout=subprocess.PIPE, text=True)
    equal(process.stdout.readline(), "ready\n", "at work")
    return process


@pytest.mark.parametrize("how", ["abort", "force", "kill", "lazy"])
def test_a_mount_ends_in_every_way(store, how):
    mnt = store.up()
    write(f"{mnt}/f", b"kept", os.O_SYNC)
    pid = store.mount_pids["mnt"]
    process = works_until_it_ends(mnt)
    minor = os.minor(os.stat(mnt).st_dev)
    if how == "abort":
        control = store.directory("control")
        subprocess.run(["mount", "-t", "fusectl", "none", control], check=True)
        with open(f"{control}/{minor}/abort", "w") as file:
            file.write("1")
        subprocess.run(["umount", control], check=True)
    elif how == "force":
        ctypes.CDLL(None).umount2(mnt.encode(), 1)
    elif how == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        store.cli("umount", "--lazy", mnt)
        process.kill()
    said = process.communicate(timeout=20)[0].split()
    if how != "lazy":
        assert said and said[-1] in {errno.errorcode[number] for number in GONE}, said
    wait_until(lambda: is_gone(pid), "the mount's process gone")
    if os.path.ismount(mnt) or how in ("kill", "abort"):
        subprocess.run(["umount", "--lazy", mnt], capture_output=True)
    equal(read(f"{store.mount()}/f"), b"kept", "mounted again")
    begun = time.monotonic()
    store.umount()
    assert time.monotonic() - begun < 10, "a plain unmount"
    raises(errno.ENOENT, os.stat, f"{mnt}/f")
