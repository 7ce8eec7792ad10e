"""Volumes that a server mounts in its own process (`serve --mount`)."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time

from harness import equal, mounts_below, raises, read, same_bytes, wait_until, write

MIB = 1 << 20


def is_mounted(directory):
    return directory in mounts_below(os.path.dirname(directory))


def own(store, options="", name="own"):
    """-> the directory; the server runs, and has it mounted."""
    directory = store.path(name)
    if not is_mounted(directory):
        store.directory(name)
    store.serve("--mount", f"v:{directory}{options}")
    assert is_mounted(directory), f"nothing is mounted at {directory}"
    return directory


def test_a_server_mounts_its_own_volumes(store):
    store.init()
    mnt = own(store, ":cache=1")
    other = store.mount()
    content = os.urandom(9 * MIB + 17)
    write(f"{mnt}/large", content, os.O_SYNC)
    os.mkdir(f"{mnt}/d")
    for number in range(200):
        write(f"{mnt}/d/{number}", b"%d" % number * 100)
    os.rename(f"{mnt}/d", f"{mnt}/e")
    same_bytes(read(f"{other}/large"), content, "as another mount reads it")
    equal(sorted(os.listdir(f"{other}/e")), sorted(str(number) for number in range(200)), "names")
    write(f"{other}/back", b"and back")
    equal(read(f"{mnt}/back"), b"and back", "what another mount wrote")
    ops = store.status()["ops"]
    assert ops["create"]["done"] >= 200, ops
    store.umount()
    store.stop()
    assert not is_mounted(mnt), "it goes with its server"
    store.serve("--mount", f"v:{mnt}")
    same_bytes(read(f"{mnt}/large"), content, "after a restart")
    store.cli("umount", mnt)
    assert not is_mounted(mnt)
    equal(store.status()["health"], "good", "the server after its mount has gone")


def test_many_threads_work_in_an_own_mount(store):
    store.init()
    mnt, other = own(store), store.mount()
    failed = []

    def work(number, top):
        try:
            for turn in range(60):
                path = f"{top}/{number}-{turn}"
                data = os.urandom(5000 + 700 * turn)
                write(path, data, os.O_DSYNC if turn % 5 == 0 else 0)
                same_bytes(read(path), data, path)
                if turn % 3:
                    os.unlink(path)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number, mnt if number % 4 else other)) for number in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed
    equal(sorted(os.listdir(mnt)), sorted(os.listdir(other)), "names")


def test_locks_hold_between_an_own_mount_and_others(store):
    store.init()
    mnt, other = own(store), store.mount()
    write(f"{mnt}/f", b"x")
    for holder, waiter in ((mnt, other), (other, mnt)):
        with open(f"{holder}/f", "r+b") as held:
            fcntl.lockf(held, fcntl.LOCK_EX)
            with open(f"{waiter}/f", "r+b") as tried:
                raises(errno.EAGAIN, fcntl.lockf, tried, fcntl.LOCK_EX | fcntl.LOCK_NB)
            program = f"import fcntl; f = open('{waiter}/f', 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('got it')"
            waits = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
            killed = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
            time.sleep(0.5)
            equal(waits.poll(), None, "waits")
            killed.kill()
            killed.communicate(timeout=10)
            fcntl.lockf(held, fcntl.LOCK_UN)
            equal(waits.communicate(timeout=20)[0].strip(), "got it", "the lock is handed over")


def test_a_server_stops_though_its_mount_is_in_use(store):
    store.init()
    mnt = own(store)
    write(f"{mnt}/f", b"kept")
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    begun = time.monotonic()
    store.stop()
    assert time.monotonic() - begun < 15, "it waits for who is in the mount"
    assert not is_mounted(mnt)
    try:
        os.pread(handle, 10, 0)
    except OSError as error:
        assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO), error
    try:
        os.close(handle)
    except OSError:
        pass
    mnt = own(store)
    equal(read(f"{mnt}/f"), b"kept", "after a restart")


def test_a_killed_server_takes_its_mount_with_it(store):
    store.init()
    mnt = own(store)
    write(f"{mnt}/f", b"synced", os.O_SYNC)
    store.kill_server()
    wait_until(lambda: is_dead(mnt), "who asks is told", 10)
    mnt = own(store)
    equal(read(f"{mnt}/f"), b"synced", "mounted again in its place")


def is_dead(path):
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def test_mistakes_with_own_mounts_are_told(store):
    store.init()
    there = store.directory("there")
    refused = lambda mount, *words: store.refuses("serve", "--mount", mount, words=words)
    refused(f"v:{there}/missing", "missing does not exist", "mkdir -p")
    refused(f"w:{there}", "--mount w:", "no volume|not found|w")
    refused("v", "VOLUME:DIR")
    refused(f"v:{there}:cash=1", "cash")
    refused(f"v:{there}:remount", "hekate mount")
    assert not is_mounted(there)
    mnt = own(store)
    store.stop()
    store.refuses("serve", "--mount", f"v:{there}", "--mount", f"w:{mnt}", words=("--mount w:",))
    assert not is_mounted(there), "the first mount is left behind when the second fails"
    mnt = own(store)
    store.refuses("mount", "v", mnt, words=("mounted at",))
    equal(store.status()["health"], "good", "health")
