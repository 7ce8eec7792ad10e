"""The bytes of files."""

import errno
import hashlib
import mmap
import os
import random
import time

from harness import equal, raises, read, same_bytes, write

INLINE = 16 << 10
SHARD = 4 << 20


def pattern(length, seed=0):
    """Bytes of which no two 8-byte words are equal."""
    return b"".join((seed << 40 | word).to_bytes(8, "little") for word in range(-(-length // 8)))[:length]


def test_bytes_come_back(store):
    mnt = store.up()
    for number, size in enumerate([0, 1, 4095, 4096, INLINE - 1, INLINE, INLINE + 1, 100_000, SHARD, SHARD + 1]):
        write(f"{mnt}/{number}", pattern(size, number))
        same_bytes(read(f"{mnt}/{number}"), pattern(size, number), f"a file of {size} bytes")
        equal(os.stat(f"{mnt}/{number}").st_size, size, "size")
    mnt = store.remount()
    same_bytes(read(f"{mnt}/9"), pattern(SHARD + 1, 9), "after a remount")


def test_opening_obeys_its_flags(store):
    mnt = store.up()
    path = f"{mnt}/f"
    raises(errno.ENOENT, os.open, path, os.O_RDONLY)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    raises(errno.EEXIST, os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    raises(errno.ENOTDIR, os.open, f"{path}/x", os.O_RDONLY)
    raises(errno.EISDIR, os.open, mnt, os.O_WRONLY)
    write(path, b"x" * 50_000)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    equal(read(path), b"", "after O_TRUNC")
    handle = os.open(path, os.O_RDWR)
    equal(os.pwrite(handle, b"abc", 5), 3, "written")
    equal(os.pread(handle, 100, 0), b"\0" * 5 + b"abc", "a gap before it")
    equal(os.pread(handle, 10, 100), b"", "behind the end")
    os.close(handle)


def test_appends_go_to_the_end(store):
    mnt = store.up()
    handle = os.open(f"{mnt}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    wanted = b""
    for number in range(300):
        line = b"%06d %s\n" % (number, b"." * (number % 97))
        equal(os.write(handle, line), len(line), "written")
        wanted += line
    os.pwrite(handle, b"last\n", 0)  # Linux appends all the same: pwrite(2), BUGS
    os.close(handle)
    same_bytes(read(f"{mnt}/log"), wanted + b"last\n", "the log")


def test_truncate_crosses_inline_and_shard_borders(store):
    mnt = store.up()
    borders = [0, 1, 4096, INLINE - 1, INLINE, INLINE + 1, SHARD - 1, SHARD, SHARD + 1, 2 * SHARD + 5]
    for first in borders:
        for second in borders:
            path = f"{mnt}/{first}-{second}"
            data = pattern(first, first)
            write(path, data)
            os.truncate(path, second)
            wanted = data[:second].ljust(second, b"\0")
            same_bytes(read(path), wanted, f"{first} truncated to {second}")
            # What was cut off must not shine through when the file grows again.
            os.truncate(path, second // 2)
            os.truncate(path, second + 10)
            same_bytes(read(path), wanted[:second // 2].ljust(second + 10, b"\0"), f"{first}, {second}, halved, longer")
            os.unlink(path)


def test_random_changes_match_a_model(store):
    mnt = store.up()
    chance = random.Random(20)
    model, path = bytearray(), f"{mnt}/f"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    for step in range(500):
        size_max = chance.choice([200, 5000, 40_000, 2 * SHARD])
        at = chance.randrange(min(len(model) + 100, 3 * SHARD) + 1) if chance.random() < 0.5 else chance.randrange(size_max)
        kind = chance.randrange(8)
        if kind < 4:
            data = pattern(chance.randrange(1, chance.choice([100, 9000, 300_000])), step)
            equal(os.pwrite(handle, data, at), len(data), "written")
            model.extend(bytes(max(0, at + len(data) - len(model))))
            model[at:at + len(data)] = data
        elif kind < 5:
            os.ftruncate(handle, at)
            del model[at:]
            model.extend(bytes(at - len(model)))
        else:
            same_bytes(os.pread(handle, 100_000, at), bytes(model[at:at + 100_000]), f"step {step}, read at {at}")
        if step % 50 == 0:
            os.fsync(handle)
        equal(os.fstat(handle).st_size, len(model), f"size after step {step}")
    os.close(handle)
    same_bytes(read(path), bytes(model), "in the end")
    store.remount()
    store.stop()
    store.serve()
    same_bytes(read(path), bytes(model), "after a restart")


def test_holes_read_as_zeros(store):
    mnt = store.up()
    path, far = f"{mnt}/sparse", (1 << 30) + 123
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, b"end", far)
    equal(os.fstat(handle).st_size, far + 3, "size")
    for at in [0, INLINE, SHARD - 5, 100 * SHARD + 7, far - 9]:
        equal(os.pread(handle, 9, at), bytes(9), f"the hole at {at}")
    os.pwrite(handle, b"middle", 50 * SHARD - 3)
    equal(os.pread(handle, 12, 50 * SHARD - 6), b"\0\0\0middle\0\0\0", "across a shard border")
    equal(os.pread(handle, 9, far), b"end", "the end")
    os.close(handle)
    used = sum(entry.stat().st_blocks * 512 for entry in walk(store.path("brick0/data")))
    assert used < 1 << 20, f"a file of two writes takes {used} bytes in data/"


def walk(directory):
    for entry in os.scandir(directory):
        if entry.is_dir():
            yield from walk(entry.path)
        else:
            yield entry


def test_an_unlinked_open_file_stays_usable(store):
    mnt = store.up()
    for size in [100, 1 << 20]:
        data = pattern(size, 1)
        write(f"{mnt}/f", data)
        handle = os.open(f"{mnt}/f", os.O_RDWR)
        os.unlink(f"{mnt}/f")
        raises(errno.ENOENT, os.stat, f"{mnt}/f")
        equal(os.fstat(handle).st_nlink, 0, "links")
        write(f"{mnt}/f", b"another")
        same_bytes(os.pread(handle, size, 0), data, "after unlink")
        os.pwrite(handle, b"more", size)
        equal(os.pread(handle, 4, size), b"more", "written after unlink")
        # Housekeeping collects orphans four times a second.
        for _ in range(8):
            os.pread(handle, 1, 0)
            time.sleep(0.25)
        same_bytes(os.pread(handle, size, 0), data, "two seconds after unlink")
        os.close(handle)
        equal(read(f"{mnt}/f"), b"another", "the new file of that name")


def test_a_replaced_open_file_stays_usable(store):
    mnt = store.up()
    write(f"{mnt}/old", b"old" * 20_000)
    write(f"{mnt}/new", b"new")
    handle = os.open(f"{mnt}/old", os.O_RDONLY)
    os.rename(f"{mnt}/new", f"{mnt}/old")
    same_bytes(os.pread(handle, 60_000, 0), b"old" * 20_000, "the old file")
    equal(read(f"{mnt}/old"), b"new", "the new one")
    os.close(handle)


def test_a_large_file_survives_a_restart(store):
    mnt = store.up()
    digest = hashlib.sha256()
    with open(f"{mnt}/large", "wb", buffering=0) as file:
        for part in range(48):
            data = pattern(1 << 20, part)
            equal(file.write(data), len(data), "written at once")
            digest.update(data)
        os.fsync(file.fileno())
    equal(hashlib.sha256(read(f"{mnt}/large")).hexdigest(), digest.hexdigest(), "checksum")
    store.umount()
    store.stop()
    store.serve()
    store.mount()
    equal(hashlib.sha256(read(f"{mnt}/large")).hexdigest(), digest.hexdigest(), "checksum after a restart")


def test_maps_and_writes_agree(store):
    mnt = store.up()
    write(f"{mnt}/f", pattern(100_000))
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    shared = mmap.mmap(handle, 100_000)
    same_bytes(shared[:], pattern(100_000), "mapped")
    shared[50_000:50_005] = b"hello"
    shared.flush()
    equal(os.pread(handle, 5, 50_000), b"hello", "written through the map")
    os.pwrite(handle, b"world", 70_000)
    equal(shared[70_000:70_005], b"world", "written through the handle")
    shared.close()
    os.close(handle)
    mnt = store.remount()
    equal(read(f"{mnt}/f")[50_000:50_005], b"hello", "after a remount")
