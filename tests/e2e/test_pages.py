"""Pages of files that the kernel keeps while leaders would tell of a change: never what was before."""

import errno
import mmap
import os
import random
import time

from harness import equal, raises, read, write
from test_coherence import answers_alone, two_mounts

ROUNDS = int(os.environ.get("PAGES_ROUNDS", "120"))
# Longer than nothing is pledged after a recall, and than files are opened past their pages after a change.
CALM_S = 2.2
SHARD = 4 << 20


def reads(store):
    """How many reads of bytes the server has executed."""
    return sum(count["done"] for name, count in store.status()["ops"].items() if name.startswith("read"))


def calm_file(store, mounts, size):
    """A file of random bytes, made by the first mount, read by the second one when that moved the time of access."""
    content = os.urandom(size)
    write(f"{mounts[0]}/f{size}", content)
    time.sleep(CALM_S)
    equal(read(f"{mounts[1]}/f{size}"), content, "content")
    time.sleep(CALM_S)
    return content


def test_pages_that_are_pledged_are_read_without_a_request(store):
    mounts = two_mounts(store)
    for size in (5000, 300_000, SHARD + 100_000):
        content = calm_file(store, mounts, size)
        path = f"{mounts[1]}/f{size}"
        equal(read(path), content, "content")
        before = reads(store)
        for _ in range(20):
            equal(read(path), content, "content")
        assert reads(store) - before <= 4, f"20 reads of {size} bytes asked the server {reads(store) - before} times"
        handle = os.open(path, os.O_RDONLY)

        def look():
            equal(os.pread(handle, size + 1, 0), content, "content")

        assert any(answers_alone(store, look) for _ in range(5)), "the mount's process was asked each time"
        os.close(handle)


def test_the_first_read_of_a_file_brings_its_pages_and_moves_its_time_of_access(store):
    mounts = two_mounts(store)
    content = {name: os.urandom(100_000) for name in "abcdefgh"}
    for name, data in content.items():
        write(f"{mounts[0]}/{name}", data)
    time.sleep(CALM_S)
    os.listdir(mounts[1])
    for name, data in content.items():
        changed = os.stat(f"{mounts[1]}/{name}").st_mtime_ns
        equal(read(f"{mounts[1]}/{name}"), data, "content")
        for mount in mounts:
            assert os.stat(f"{mount}/{name}").st_atime_ns > changed, f"{name} was read"
    before = reads(store)
    for name, data in content.items():
        equal(read(f"{mounts[1]}/{name}"), data, "content")
    assert reads(store) - before <= 2, "what was read first is in no page"


class Model:
    """A file, and what it contains. Changes and looks are made by both mounts."""

    def __init__(self, mounts, name, size):
        self.mounts, self.name, self.content = mounts, name, bytearray(os.urandom(size))
        write(f"{mounts[0]}/{name}", bytes(self.content))
        self.readers = [os.open(f"{mount}/{name}", os.O_RDONLY) for mount in mounts]

    def change(self, draw, mount):
        size = len(self.content)
        kind = draw.choice(["block", "block", "block", "bytes", "long", "append", "cut", "grow", "punch", "copy"])
        with open(f"{mount}/{self.name}", "r+b", buffering=0) as file:
            if kind in ("block", "bytes", "long"):
                length = {"block": 4096, "bytes": draw.randrange(1, 3000), "long": 100_000}[kind]
                at = draw.randrange(max(1, size - length))
                if kind == "block":
                    at = at // 4096 * 4096
                data = os.urandom(min(length, size - at))
                os.pwrite(file.fileno(), data, at)
                self.content[at : at + len(data)] = data
            elif kind == "append":
                data = os.urandom(draw.randrange(1, 20_000))
                os.pwrite(file.fileno(), data, size)
                self.content += data
            elif kind in ("cut", "grow"):
                length = size - draw.randrange(1, 9000) if kind == "cut" else size + draw.randrange(1, 9000)
                length = max(length, 100)
                os.ftruncate(file.fileno(), length)
                self.content = self.content[:length] + bytes(max(0, length - size))
            elif kind == "punch":
                at, length = draw.randrange(size), draw.randrange(1, 9000)
                length = min(length, size - at)
                fallocate_punch(file.fileno(), at, length)
                self.content[at : at + length] = bytes(length)
            else:
                length = min(5000, size // 3)
                os.copy_file_range(file.fileno(), file.fileno(), length, 0, size - length)
                self.content[size - length :] = self.content[:length]
        if draw.random() < 0.2:
            os.utime(f"{mount}/{self.name}", ns=(1, 1))
        return kind

    def look(self, draw, what):
        """Some bytes, by files that were open before and by new ones."""
        size = len(self.content)
        for mount, reader in zip(self.mounts, self.readers):
            at, length = draw.randrange(size), draw.choice([1, 4096, 70_000])
            found, wanted = os.pread(reader, length, at), bytes(self.content[at : at + length])
            differ = [at + index for index in range(min(len(found), len(wanted))) if found[index] != wanted[index]]
            where = f"{len(found)} bytes of {size} at {at} by {mount}, other ones at {differ[:1]} to {differ[-1:]}"
            assert found == wanted, f"an open file after {what}: {where}"
            equal(os.pread(reader, 10, size), b"", f"the end after {what}")
            if draw.random() < 0.3:
                equal(read(f"{mount}/{self.name}"), bytes(self.content), f"a new one after {what}")

    def close(self):
        [os.close(reader) for reader in self.readers]


def fallocate_punch(handle, at, length):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if libc.fallocate(handle, 3, at, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_two_mounts_read_what_either_of_them_wrote(store):
    mounts = two_mounts(store)
    draw = random.Random(int(os.environ.get("HEKATE_SEED", "1")))
    models = [Model(mounts, f"f{size}", size) for size in (3000, 40_000, 400_000, SHARD + 30_000)]
    for number in range(ROUNDS):
        model = draw.choice(models)
        mount = draw.choice(mounts)
        kind = model.change(draw, mount)
        model.look(draw, f"{kind} of {model.name} by {mount} in round {number}")
        if number % 12 == 11:
            time.sleep(CALM_S)
            for one in models:
                one.look(draw, f"a rest in round {number}")
                one.look(draw, f"a rest in round {number}")
    [model.close() for model in models]


def test_read_only_mappings_show_what_another_mount_wrote(store):
    mounts = two_mounts(store)
    for size in (5000, 200_000):
        content = bytearray(calm_file(store, mounts, size))
        path = f"{mounts[1]}/f{size}"
        handle = os.open(path, os.O_RDONLY)
        shown = mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ)
        writer = os.open(f"{mounts[0]}/f{size}", os.O_RDWR)
        for number in range(30):
            data = b"%08d" % number
            if number % 10 == 0:
                # Only pages that are pledged, which those are not that were read just after a change.
                time.sleep(CALM_S)
                os.stat(path)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                equal(os.pread(handle, size, 0), bytes(content), "what is read")
                equal(shown[:], bytes(content), "what the mapping shows")
            os.pwrite(writer, data, 100 * number)
            content[100 * number : 100 * number + 8] = data
            if number % 10 == 0:
                equal(shown[100 * number : 100 * number + 8], data, "what another mount wrote")
        shown.close()
        os.close(handle)
        os.close(writer)


def test_what_is_read_from_pages_moves_the_time_of_access(store):
    mounts = two_mounts(store)
    for size in (5000, 200_000):
        calm_file(store, mounts, size)
        path = f"{mounts[1]}/f{size}"
        handle = os.open(path, os.O_RDONLY)
        for offset in (0, 0, size):
            os.pread(handle, 100, 0)
            os.utime(path, ns=(1, 10**9))
            equal(os.stat(path).st_atime_ns, 1, "the time that was set")
            os.pread(handle, 100, offset)
            assert os.stat(path).st_atime_ns > 10**9, f"a read at {offset} did not move it"
        moved = os.stat(path).st_atime_ns
        os.pread(handle, 100, 0)
        equal(os.stat(path).st_atime_ns, moved, "the time after another read")
        os.close(handle)


def test_a_removed_file_is_read_from_its_pages(store):
    mounts = two_mounts(store)
    content = calm_file(store, mounts, 200_000)
    handle = os.open(f"{mounts[1]}/f200000", os.O_RDONLY)
    equal(os.pread(handle, 200_000, 0), content, "content")
    os.unlink(f"{mounts[0]}/f200000")
    raises(errno.ENOENT, os.stat, f"{mounts[1]}/f200000")
    equal(os.pread(handle, 200_000, 0), content, "content of the removed file")
    os.close(handle)


def test_a_server_that_starts_anew_has_pages_read_again(store):
    mounts = two_mounts(store)
    content = calm_file(store, mounts, 200_000)
    path = f"{mounts[1]}/f200000"
    handle = os.open(path, os.O_RDONLY)
    for number in range(3):
        equal(os.pread(handle, 200_000, 0), content, "content")
        store.kill_server()
        store.serve()
        with open(f"{mounts[0]}/f200000", "r+b") as file:
            file.write(b"%d" % number)
        content = b"%d" % number + content[1:]
        equal(os.pread(handle, 200_000, 0), content, "content after a restart")
        equal(read(path), content, "content of a new open file")
    os.close(handle)
