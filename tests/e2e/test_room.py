"""Disks and journals that fill up."""

import errno
import os
import random
import subprocess
import threading
import time

import pytest

from harness import equal, raises, read, wait_until, write

PART = 1 << 20


def fill(directory):
    """Files of 1 MiB until there is no room. -> their names."""
    names = []
    for number in range(10_000):
        name = f"{directory}/full{number}"
        try:
            write(name, bytes([number % 251]) * PART)
        except OSError as error:
            equal(errno.errorcode[error.errno], "ENOSPC", "a full disk")
            if os.path.exists(name):
                os.unlink(name)
            return names
        names.append(name)
    raise AssertionError("no end of room")


def small_bricks(store, size):
    """Directories for two bricks, each on a file system of its own of that size."""
    disks = [store.directory(f"disk{number}") for number in range(2)]
    for disk in disks:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    return [f"{disk}/brick" for disk in disks]


@pytest.mark.root
def test_a_full_disk_says_so_and_empties_again(store):
    mnt = store.up(directories=small_bricks(store, "200m"))
    write(f"{mnt}/kept", b"k" * 100_000)
    first = fill(mnt)
    assert len(first) > 30, f"full after {len(first)} MiB"
    for number, name in enumerate(first):
        equal(read(name) == bytes([number % 251]) * PART, True, f"{name} is whole")
    store.kill_server()
    store.serve()
    equal(len(os.listdir(mnt)), len(first) + 1, "files after a restart on full disks")
    for name in first:
        os.unlink(name)
    # What is deleted is collected in the background, and its room comes back when a checkpoint of each brick has ended. Who
    # fills it as soon as there is some, and deletes again, can go on for ever with half of it. A fill that begins before the
    # reserve of 64 MiB has been made takes room of that, too: 200 MiB without it and the journal are 104.
    most = min(len(first) * 3 // 4, 95)

    def has_room():
        room = os.statvfs(mnt)
        return room.f_bavail * room.f_frsize > most * PART

    wait_until(has_room, f"room for {most} MiB again after deletes", limit_s=40)
    second = fill(mnt)
    assert len(second) > most, f"{len(second)} MiB fit where {len(first)} did"
    for name in second:
        os.unlink(name)
    equal(read(f"{mnt}/kept"), b"k" * 100_000, "what was there before")
    equal([brick["state"] for brick in store.status()["bricks"]], ["online", "online"], "bricks")


@pytest.mark.root
@pytest.mark.limit(240)
def test_small_files_take_the_room_of_those_that_were_removed(store):
    """Their room is in the index, which keeps its size: it is used again, unless the removals needed the whole
    reserve."""
    mnt = store.up(directories=small_bricks(store, "220m"))

    def make(prefix):
        names = []
        for number in range(50_000):
            name = f"{mnt}/{prefix}{number}"
            try:
                write(name, random.Random(number).randbytes(8000))
            except OSError as error:
                equal(errno.errorcode[error.errno], "ENOSPC", "a full disk")
                if os.path.exists(name):
                    os.unlink(name)
                return names
            names.append(name)
        raise AssertionError("no end of room")

    first = make("first")
    assert len(first) > 1000, f"{len(first)} files of 8 kB on 220 MB"
    room = os.statvfs(mnt)
    available = room.f_bavail * room.f_frsize
    assert available < 48 * PART, f"{available >> 20} MiB are shown as available though nothing can be made"
    removed = first[::2]
    for name in removed:
        os.unlink(name)
    # Removed names are collected in the background.
    wait_until(lambda: store.status()["garbage"] == 0, "what was removed is collected")
    # Nothing is taken again before the reserve is whole, and the removals may have needed all of it (docs/limits.md).
    brick = store.status()["bricks"][0]["directory"]
    if os.stat(f"{brick}/reserve").st_size == 0:
        return
    again = make("again")
    assert len(again) > len(removed) * 2 // 3, f"{len(again)} files fit where {len(removed)} of {len(first)} were removed"


@pytest.mark.root
def test_what_was_reserved_fits_on_a_full_disk(store):
    disks = [store.directory(f"disk{number}") for number in range(2)]
    for disk in disks:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", disk], check=True)
    mnt = store.up(directories=[f"{disk}/brick" for disk in disks])

    def taken():
        return [sum(os.stat(f"{directory}/{name}").st_blocks * 512 for directory, _, names in os.walk(f"{disk}/brick/data")
                    for name in names) for disk in disks]

    handle = os.open(f"{mnt}/reserved", os.O_RDWR | os.O_CREAT)
    begun = taken()
    os.posix_fallocate(handle, 0, 21 * PART)
    assert all(now >= before + 21 * PART for now, before in zip(taken(), begun)), f"{taken()} bytes after {begun}"
    equal(os.fstat(handle).st_size, 21 * PART, "size")
    raises(errno.ENXIO, os.lseek, handle, 0, os.SEEK_DATA)
    fill(mnt)
    model = bytearray(21 * PART)
    for at in (*range(0, 8 * PART, PART), 13 * PART + 5000, 20 * PART):
        data = os.urandom(PART)
        equal(os.pwrite(handle, data, at), PART, f"written at {at} on a full disk")
        model[at:at + PART] = data
    os.fsync(handle)
    store.kill_server()
    store.serve()
    equal(os.pread(handle, 22 * PART, 0) == bytes(model), True, "what was written is there, and zeros between")
    full = taken()
    os.ftruncate(handle, 9 * PART)
    wait_until(lambda: all(now <= before - 9 * PART for now, before in zip(taken(), full)), "a cut gives room back", limit_s=20)
    equal(os.pread(handle, 22 * PART, 0) == bytes(model[:9 * PART]), True, "what is left")
    os.close(handle)


def test_writers_go_on_though_all_journals_are_full(store):
    """Writers of many files keep three small journals full: each waits for room, and none for ever."""
    store.init(bricks=3)
    store.serve()
    mnt = store.mount()
    written, end = [0] * 32, time.time() + 10

    def overwrite(number):
        data = os.urandom(PART)
        fd = os.open(f"{mnt}/f{number}", os.O_RDWR | os.O_CREAT)
        while time.time() < end or (min(written) < 3 and time.time() < end + 50):
            # What is there already is written over, by way of the journal.
            os.pwrite(fd, data[: random.choice([4096, 65_536, PART])], random.randrange(8) * PART)
            written[number] += 1
        os.close(fd)

    workers = [threading.Thread(target=overwrite, args=(number,), daemon=True) for number in range(len(written))]
    [worker.start() for worker in workers]
    [worker.join(max(1, end + 80 - time.time())) for worker in workers]
    stuck = sum(worker.is_alive() for worker in workers)
    assert stuck == 0 and min(written) >= 3, f"{stuck} of {len(workers)} writers stand still: {written}"
