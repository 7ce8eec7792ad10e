"""File systems below bricks that run out of something: inodes, a quota, the greatest file, file descriptors."""

import errno
import os
import random
import resource
import subprocess

import pytest

from harness import equal, read, wait_until, write

SHARD = 4 << 20

def make_disk(store, name, size="400M", options=(), program="mkfs.ext4"):
    """A file system of its own. -> where it is mounted."""
    image, directory = store.path(f"{name}.img"), store.directory(name)
    subprocess.run(["truncate", "-s", size, image], check=True)
    subprocess.run([program, "-q", *options, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, directory], check=True)
    return directory


def write_byte_a_shard(path, count):
    """A byte into each shard of a file, then fsync. -> how many were taken, and how it ended."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    taken = 0
    try:
        for shard in range(count):
            os.pwrite(handle, b"x", shard * SHARD)
            taken += 1
        os.fsync(handle)
        return taken, None
    except OSError as error:
        os.fsync(handle)
        return taken, errno.errorcode[error.errno]
    finally:
        os.close(handle)


def states(store):
    return [brick["state"] for brick in store.status()["bricks"]]


def full_bricks(store):
    return [brick for brick in store.status()["bricks"] if brick["stalled"]]


@pytest.mark.root
@pytest.mark.limit(150)
def test_a_disk_without_inodes_says_so_and_stays_whole(store):
    disks = [make_disk(store, f"disk{number}", options=["-N", "500"]) for number in range(2)]
    mnt = store.up(directories=[f"{disk}/brick" for disk in disks])
    taken, ended = write_byte_a_shard(f"{mnt}/sparse", 900)
    equal(ended, "ENOSPC", f"the write after {taken} shards")
    assert taken > 20, f"{taken} shards of a file system with some 200 inodes"
    # A checkpoint makes their data files: at the stop, and at each start.
    for _ in range(2):
        store.stop()
        store.serve()
        equal(states(store), ["online", "online"], "bricks")
        for shard in range(taken):
            handle = os.open(f"{mnt}/sparse", os.O_RDONLY)
            equal(os.pread(handle, 1, shard * SHARD), b"x", f"shard {shard}")
            os.close(handle)
    # What needs no inode of the disks goes on.
    write(f"{mnt}/small", b"s" * 1000)
    os.mkdir(f"{mnt}/directory")
    with open(f"{mnt}/sparse", "r+b", buffering=0) as file:
        file.write(b"y" * 8192)
        os.fsync(file.fileno())
    room = os.statvfs(mnt)
    assert 400 <= room.f_files <= 600, f"{room.f_files} inodes in df -i"
    assert room.f_favail < 200, f"{room.f_favail} free inodes in df -i"
    brick = store.status()["bricks"][0]
    assert brick["inodes_total"] >= 400 and brick["inodes_free"] < 200, f"inodes in the status: {brick}"
    os.unlink(f"{mnt}/sparse")

    def fits():
        again, ended = write_byte_a_shard(f"{mnt}/again", 20)
        return (again, ended) == (20, None)

    wait_until(fits, "room for new shards after the delete", limit_s=40)
    equal(read(f"{mnt}/small"), b"s" * 1000, "a small file")


@pytest.mark.root
@pytest.mark.limit(150)
def test_a_server_starts_with_a_full_brick(store):
    disks = [make_disk(store, f"disk{number}", options=["-N", "4000"]) for number in range(2)]
    mnt = store.up(directories=[f"{disk}/brick" for disk in disks])
    write(f"{mnt}/before", b"b" * 100_000)
    # Stopped, so that no checkpoint comes in between.
    taken, ended = write_byte_a_shard(f"{mnt}/sparse", 250)
    equal((taken, ended), (250, None), "shards")
    store.kill_server()
    for disk in disks:
        number = 0
        try:
            while True:
                os.close(os.open(f"{disk}/stranger{number}", os.O_WRONLY | os.O_CREAT))
                number += 1
        except OSError as error:
            equal(errno.errorcode[error.errno], "ENOSPC", "the stranger's last file")
        # The files that the brick keeps for this are taken too.
        spare = f"{disk}/brick/spare"
        for name in os.listdir(spare):
            os.unlink(f"{spare}/{name}")
            os.close(os.open(f"{disk}/stranger{number}", os.O_WRONLY | os.O_CREAT))
            number += 1
    store.serve()
    wait_until(lambda: len(full_bricks(store)) == 2, "both bricks say that they are full")
    for brick in store.status()["bricks"]:
        equal(brick["state"], "full", "the state of a brick")
        assert "No space" in brick["stalled"], brick["stalled"]
    said = store.cli("status").out
    for words in ("health degraded", "is full and cannot write home", "it continues when there is room"):
        assert words in said, f"the status lacks {words!r}: {said}"
    equal(read(f"{mnt}/before"), b"b" * 100_000, "a file that was there before")
    handle = os.open(f"{mnt}/sparse", os.O_RDONLY)
    equal(os.pread(handle, 1, 249 * SHARD), b"x", "what only the journals have")
    os.close(handle)
    os.unlink(f"{mnt}/before")
    for disk in disks:
        for name in os.listdir(disk):
            if name.startswith("stranger"):
                os.unlink(f"{disk}/{name}")
    wait_until(lambda: states(store) == ["online", "online"], "the bricks go on when there is room")
    write(f"{mnt}/after", b"a" * 100_000)
    store.stop()
    store.serve()
    equal(read(f"{mnt}/after"), b"a" * 100_000, "a file that was made afterwards")
    equal(os.path.exists(f"{mnt}/before"), False, "the removed file is there")


@pytest.mark.root
@pytest.mark.limit(150)
def test_a_quota_of_the_disk_says_so_and_stays_whole(store):
    """btrfs answers EDQUOT, to writes of the journal too, and statvfs(3) does not know of the quota."""
    disk = make_disk(store, "disk", "1G", program="mkfs.btrfs")
    subprocess.run(["btrfs", "subvolume", "create", f"{disk}/limited"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["btrfs", "quota", "enable", disk], check=True)
    subprocess.run(["btrfs", "qgroup", "limit", "280M", f"{disk}/limited"], check=True)
    # Each has 32 MiB of journal and a reserve of 64 MiB.
    mnt = store.up(directories=[f"{disk}/limited/brick{number}" for number in range(2)])
    equal(os.statvfs(mnt).f_files, 0, "inodes where they are not counted")
    names = []
    try:
        for number in range(400):
            names.append(f"{mnt}/f{number}")
            write(names[-1], random.Random(number).randbytes(300_000))
    except OSError as error:
        equal(errno.errorcode[error.errno], "ENOSPC", "beyond the quota")
        names.pop()
    assert 0 < len(names) < 300, f"{len(names)} files of 300 kB, twice, in less than 90 MiB"
    # Without times of access: each would be a record, and at its limit btrfs refuses some writes in place too (docs/limits.md).
    quietly = lambda path, flags: os.open(path, flags | os.O_NOATIME)
    for _ in range(2):
        for number, name in enumerate(names):
            with open(name, "rb", opener=quietly) as file:
                equal(file.read() == random.Random(number).randbytes(300_000), True, f"{name} is whole")
        store.stop()
        store.serve()
    for name in names:
        os.unlink(name)
    subprocess.run(["btrfs", "qgroup", "limit", "none", f"{disk}/limited"], check=True)
    wait_until(lambda: states(store) == ["online", "online"], "the bricks go on")
    write(f"{mnt}/again", b"a" * 300_000)
    equal(read(f"{mnt}/again"), b"a" * 300_000, "a file that was made without the quota")


@pytest.mark.root
@pytest.mark.limit(150)
def test_a_limit_of_file_size_stalls_checkpoints_and_loses_nothing(store):
    mnt = store.up()
    most = resource.RLIM_INFINITY
    # Less than a data file has: what comes behind the first MiB of a shard cannot be written home.
    resource.prlimit(store.server_pid, resource.RLIMIT_FSIZE, (1 << 20, most))
    handle = os.open(f"{mnt}/large", os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, b"begin", 0)
    os.pwrite(handle, b"behind", 3 << 20)
    os.fsync(handle)
    # Deleting wants a checkpoint.
    write(f"{mnt}/gone", b"g" * 100_000)
    os.unlink(f"{mnt}/gone")
    wait_until(lambda: full_bricks(store), "a brick says that it cannot write home", limit_s=40)
    equal(os.pread(handle, 6, 3 << 20), b"behind", "what is not home")
    resource.prlimit(store.server_pid, resource.RLIMIT_FSIZE, (most, most))
    wait_until(lambda: states(store) == ["online", "online"], "the bricks go on")
    os.close(handle)
    store.stop()
    store.serve()
    with open(f"{mnt}/large", "rb") as file:
        file.seek(3 << 20)
        equal(file.read(6), b"behind", "what was written under the limit")


@pytest.mark.root
@pytest.mark.limit(150)
def test_want_of_file_descriptors_is_waited_for(store):
    mnt = store.up()
    write(f"{mnt}/kept", b"k" * 100_000)
    taken, ended = write_byte_a_shard(f"{mnt}/many", 100)
    equal((taken, ended), (100, None), "shards")
    descriptors = len(os.listdir(f"/proc/{store.server_pid}/fd"))
    most = resource.prlimit(store.server_pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(store.server_pid, resource.RLIMIT_NOFILE, (descriptors + 3, most))
    for number in range(100):
        handle = os.open(f"{mnt}/many", os.O_RDWR)
        equal(os.pread(handle, 1, number * SHARD), b"x", f"shard {number}")
        os.pwrite(handle, b"y", number * SHARD + 100_000)
        os.close(handle)
    os.unlink(f"{mnt}/kept")
    os.sync()
    resource.prlimit(store.server_pid, resource.RLIMIT_NOFILE, (most, most))
    equal(states(store), ["online", "online"], "bricks")
    store.stop()
    store.serve()
    handle = os.open(f"{mnt}/many", os.O_RDONLY)
    for number in range(100):
        equal(os.pread(handle, 1, number * SHARD + 100_000), b"y", f"shard {number}")
    os.close(handle)
