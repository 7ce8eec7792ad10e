"""Processes that die, and servers that come back."""

import errno
import os
import signal
import subprocess
import threading
import time

import pytest

from harness import equal, raises, read, same_bytes, wait_until, write


def one_of_everything(mnt, worker, number):
    """Ops of which each shows if it is done twice or not at all."""
    base = f"{mnt}/w{worker}"
    path = f"{base}/{number}"
    os.close(os.open(f"{path}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.rename(f"{path}.new", path)
    os.link(path, f"{path}.link")
    os.mkdir(f"{path}.dir")
    os.rename(f"{path}.dir", f"{base}/moved/{number}")
    os.unlink(f"{path}.link")
    os.rmdir(f"{base}/moved/{number}")
    os.symlink("x", f"{path}.sym")
    handle = os.open(f"{base}/log", os.O_WRONLY | os.O_APPEND)
    os.write(handle, b"%06d\n" % number)
    if number % 10 == 0:
        os.fsync(handle)
    os.close(handle)
    os.pwrite(shared[worker], b"%08d" % number, 8 * number)


shared = {}


@pytest.mark.limit(120)
def test_writers_wait_for_a_killed_server(store):
    mnt = store.up()
    stop, counts, failures = threading.Event(), {}, []

    def work(worker):
        number = 0
        try:
            while not stop.is_set():
                one_of_everything(mnt, worker, number)
                number += 1
        except OSError as error:
            failures.append(f"worker {worker}, round {number}: {error}")
        counts[worker] = number

    for worker in range(4):
        os.makedirs(f"{mnt}/w{worker}/moved")
        write(f"{mnt}/w{worker}/log", b"")
        shared[worker] = os.open(f"{mnt}/w{worker}/blocks", os.O_RDWR | os.O_CREAT)
    threads = [threading.Thread(target=work, args=[worker]) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(0.6)
        store.kill_server()
        time.sleep(0.2)
        store.serve()
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    equal(failures, [], "errors that writers saw")
    for handle in shared.values():
        os.close(handle)
    assert min(counts.values()) > 5, f"too slow to say anything: {counts}"
    store.remount()
    for worker, count in counts.items():
        base = f"{mnt}/w{worker}"
        same_bytes(read(f"{base}/log"), b"".join(b"%06d\n" % number for number in range(count)), "the log")
        same_bytes(read(f"{base}/blocks"), b"".join(b"%08d" % number for number in range(count)), "the blocks")
        wanted = {"log", "blocks", "moved"} | {f"{n}{suffix}" for n in range(count) for suffix in ("", ".sym")}
        equal(set(os.listdir(base)) ^ wanted, set(), "names too many or too few")
        equal(os.listdir(f"{base}/moved"), [], "moved directories")
        equal({os.stat(f"{base}/{n}").st_nlink for n in range(count)}, {1}, "links")


def test_an_op_interrupted_by_a_signal_ends_while_the_server_is_away(store):
    mnt = store.up()
    store.kill_server()
    # Names and attributes may be answered from memory for a while, a list is asked for.
    child = subprocess.Popen(["ls", mnt], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    equal(child.poll(), None, "it waits for the server")
    # Not SIGINT: a shell's background jobs, and what they start, ignore it.
    child.send_signal(signal.SIGTERM)
    child.wait(timeout=10)
    store.serve()
    os.stat(mnt)


def test_a_killed_mount_loses_nothing(store):
    mnt = store.up()
    for number in range(200):
        write(f"{mnt}/{number}", b"%d" % number * 100)
    write(f"{mnt}/large", b"x" * 5_000_000)
    handle = os.open(f"{mnt}/open", os.O_CREAT | os.O_RDWR)
    os.write(handle, b"not synced")
    store.kill_mount()
    raises(errno.ENOTCONN, os.listdir, mnt)
    # A close tells the mount, for its locks (FUSE_FLUSH).
    raises(errno.ENOTCONN, os.close, handle)
    # What is left of it is taken away.
    store.mount_pids["mnt"] = store.cli("--json", "mount", "v", mnt).json()["pid"]
    equal(len(os.listdir(mnt)), 202, "files")
    for number in range(200):
        equal(read(f"{mnt}/{number}"), b"%d" % number * 100, "content")
    equal(read(f"{mnt}/open"), b"not synced", "an open file that was not synced")
    equal(os.stat(f"{mnt}/large").st_size, 5_000_000, "size of the large file")


def test_a_mount_outlives_an_orderly_restart(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f" * 100_000)
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    for turn in range(3):
        if turn == 1:
            os.kill(store.server_pid, signal.SIGTERM)
            wait_until(lambda: not os.path.exists(f"{store.state}/server.sock"), "SIGTERM stops the server")
        else:
            store.stop()
        wait_until(lambda: not os.path.exists(f"{store.state}/server.sock"), "the socket is gone")
        time.sleep(0.3)
        serve_again(store)
        equal(os.pread(handle, 10, 99_990), b"f" * 10, "an open file")
        os.pwrite(handle, b"%d" % turn, turn)
        os.mkdir(f"{mnt}/d{turn}")
    os.close(handle)
    equal((read(f"{mnt}/f")[:4], sorted(os.listdir(mnt))), (b"012f", ["d0", "d1", "d2", "f"]), "in the end")


def serve_again(store):
    """The old process may hold its bricks for a moment longer than its socket."""
    end = time.monotonic() + 10
    while store.try_cli("serve", "--detach").exit != 0:
        assert time.monotonic() < end, store.try_cli("serve", "--detach").text
        time.sleep(0.1)
    store.server_pid = store.status()["pid"]


def test_an_unlinked_open_file_outlives_a_killed_server(store):
    mnt = store.up()
    data = os.urandom(200_000)
    write(f"{mnt}/f", data)
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    os.unlink(f"{mnt}/f")
    store.kill_server()
    store.serve()
    time.sleep(1.5)
    same_bytes(os.pread(handle, len(data), 0), data, "after the server was killed")
    os.close(handle)
    wait_until(lambda: store.status()["orphans"] == 0, "the orphan is collected")


def test_a_killed_server_starts_again_and_again(store):
    mnt = store.up()
    for turn in range(8):
        write(f"{mnt}/{turn}", b"%d" % turn * 50_000, os.O_SYNC if turn % 2 else 0)
        store.kill_server()
        store.serve()
    for turn in range(8):
        equal(read(f"{mnt}/{turn}"), b"%d" % turn * 50_000, "content")
