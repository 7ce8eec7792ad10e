"""Room and holes in files, copies by the servers, appends of several mounts, files without names."""

import ctypes
import errno
import mmap
import os
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from harness import equal, raises, read, same_bytes, wait_until, write

LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
KEEP_SIZE, PUNCH, COLLAPSE, ZERO = 1, 2, 8, 16


def fallocate(handle, mode, offset, length):
    result = LIBC.fallocate(handle, mode, ctypes.c_long(offset), ctypes.c_long(length))
    if result != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def pattern(length, seed):
    return bytes((seed + index // 512 + index) % 251 + 1 for index in range(4096)) * (length // 4096 + 1)


def test_fallocate_makes_room_holes_and_zeros(store):
    mnt = store.up()
    for name, size in (("small", 9_000), ("middle", 300_000), ("large", 9 * MIB + 123)):
        model = bytearray(pattern(size, 7)[:size])
        handle = os.open(f"{mnt}/{name}", os.O_RDWR | os.O_CREAT)
        os.pwrite(handle, model, 0)
        for offset, length in ((size // 3, size // 4), (1, 4095), (4096, 4096), (size - 10, 100), (size // 2, size)):
            fallocate(handle, PUNCH | KEEP_SIZE, offset, length)
            end = min(size, offset + length)
            model[offset:end] = bytes(end - offset)
            same_bytes(os.pread(handle, 2 * size, 0), bytes(model), f"{name}, punched at {offset}")
        fallocate(handle, ZERO, size // 8, size // 8)
        model[size // 8 : size // 8 * 2] = bytes(size // 8)
        fallocate(handle, KEEP_SIZE, size, 100_000)
        equal(os.fstat(handle).st_size, size, "size after a reservation that keeps it")
        fallocate(handle, 0, size - 5, 50_000)
        model += bytes(size - 5 + 50_000 - len(model))
        fallocate(handle, ZERO | KEEP_SIZE, len(model) - 7, 20)
        model[-7:] = bytes(7)
        same_bytes(os.pread(handle, 3 * size + 100_000, 0), bytes(model), f"{name}, in the end")
        before = os.fstat(handle)
        fallocate(handle, ZERO, 0, 1)
        assert os.fstat(handle).st_mtime_ns > before.st_mtime_ns, "fallocate changes the time"
        raises(errno.EOPNOTSUPP, fallocate, handle, COLLAPSE, 0, 4096)
        raises(errno.EFBIG, fallocate, handle, 0, 1 << 62, 4096)
        os.close(handle)


def test_what_is_done_through_o_sync_is_on_disk_when_it_returns(store):
    mnt = store.up()
    write(f"{mnt}/source", os.urandom(MIB))
    syncs = {}
    for name, flags in (("durable", os.O_SYNC), ("plain", 0)):
        with open(f"{mnt}/source", "rb") as source:
            handle = os.open(f"{mnt}/{name}", os.O_CREAT | os.O_RDWR | flags)
            fallocate(handle, 0, 0, MIB)
            with calls_of(store, "fsync,fdatasync") as seen:
                for turn in range(10):
                    fallocate(handle, PUNCH | KEEP_SIZE, turn * 8192, 4096)
                    equal(os.copy_file_range(source.fileno(), handle, 4096, turn * 4096, turn * 4096), 4096, "copied")
            os.close(handle)
        syncs[name] = len(seen)
    # Each of the twenty on both bricks; a checkpoint may sync between them.
    assert syncs["durable"] >= 40 > syncs["plain"], f"syncs of twenty ops, with O_SYNC and without: {syncs}"


@contextmanager
def calls_of(store, names):
    """-> the server's system calls of these names meanwhile, once it is over."""
    out, seen = store.path("calls"), []
    command = ["strace", "-f", "-qq", "-e", f"trace={names}", "-p", str(store.server_pid), "-o", out]
    with subprocess.Popen(command) as tracer:
        is_traced = lambda: f"TracerPid:\t{tracer.pid}" in open(f"/proc/{store.server_pid}/status").read()
        wait_until(is_traced, "strace is attached")
        try:
            yield seen
        finally:
            tracer.terminate()
            tracer.wait()
    with open(out) as lines:
        seen.extend(line for line in lines if "sync(" in line)


def test_a_punched_file_gives_its_room_back(store):
    mnt = store.up()
    with open(f"{mnt}/f", "wb") as file:
        file.write(pattern(16 * MIB, 3)[: 16 * MIB])
        os.fsync(file.fileno())
    taken = lambda: sum(
        os.stat(os.path.join(top, name)).st_blocks * 512
        for brick in store.bricks(2)
        for top, _, names in os.walk(f"{brick}/data")
        for name in names
    )
    wait_until(lambda: taken() >= 32 * MIB, "the bytes are home")
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    fallocate(handle, PUNCH | KEEP_SIZE, 4096, 14 * MIB)
    os.close(handle)
    store.stop()
    store.serve()
    # A checkpoint gives it back; writes of others bring one about.
    def is_less():
        write(f"{mnt}/other", os.urandom(4 * MIB))
        return taken() < 20 * MIB

    wait_until(is_less, "the holes are given back", 40)


def test_seek_finds_data_and_holes(store):
    mnt = store.up()
    handle = os.open(f"{mnt}/sparse", os.O_RDWR | os.O_CREAT)
    places = [0, 5 * MIB, 6 * MIB + 8192, 4097 * MIB]
    for place in places:
        os.pwrite(handle, b"x" * 4096, place)
    os.ftruncate(handle, 5000 * MIB)
    equal(os.fstat(handle).st_size, 5000 * MIB, "a size over 4 GiB")
    found, at = [], 0
    while True:
        try:
            data = os.lseek(handle, at, os.SEEK_DATA)
        except OSError as error:
            equal(error.errno, errno.ENXIO, "after the last data")
            break
        found.append(data)
        at = os.lseek(handle, data, os.SEEK_HOLE)
        equal(at, data + 4096, "the hole behind it")
    equal(found, places, "data")
    equal(os.lseek(handle, 4098 * MIB, os.SEEK_HOLE), 4098 * MIB, "a hole at once")
    raises(errno.ENXIO, os.lseek, handle, 5000 * MIB, os.SEEK_DATA)
    raises(errno.ENXIO, os.lseek, handle, 5000 * MIB, os.SEEK_HOLE)
    os.close(handle)
    write(f"{mnt}/small", b"abc")
    with open(f"{mnt}/small", "rb") as file:
        equal(os.lseek(file.fileno(), 1, os.SEEK_HOLE), 3, "the hole at the end")
        equal(os.lseek(file.fileno(), 1, os.SEEK_DATA), 1, "data")


def test_servers_copy_ranges_of_files(store):
    mnt = store.up()
    sent = lambda: sum(ops(store).get(name, 0) for name in ("read-shard", "write-shard"))
    for size in (10, 16_000, 20_000, 6 * MIB + 77, 40 * MIB + 5):
        content = pattern(size, size % 97)[:size]
        write(f"{mnt}/from", content)
        before = sent()
        with open(f"{mnt}/from", "rb") as source, open(f"{mnt}/to", "wb") as target:
            left = size
            while left:
                copied = os.copy_file_range(source.fileno(), target.fileno(), left)
                assert copied > 0
                left -= copied
            equal(os.copy_file_range(source.fileno(), target.fileno(), 10), 0, "at the end")
        if size > 4 * MIB:
            equal(sent(), before, "reads and writes of the client")
        same_bytes(read(f"{mnt}/to"), content, f"a copy of {size} bytes")
    handle = os.open(f"{mnt}/to", os.O_RDWR)
    os.copy_file_range(handle, handle, 5 * MIB, 1000, 20 * MIB + 3)
    wanted = content[: 20 * MIB + 3] + content[1000 : 1000 + 5 * MIB] + content[25 * MIB + 3 :]
    same_bytes(os.pread(handle, 41 * MIB, 0), wanted, "within a file")
    raises(errno.EINVAL, os.copy_file_range, handle, handle, 5 * MIB, 0, MIB)
    os.close(handle)
    # This mount's kernel takes the file for shorter than it is, until it asks.
    handle = os.open(f"{mnt}/grown", os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, b"x" * 1000, 0)
    with open(f"{store.mount('other')}/grown", "r+b") as other:
        os.pwrite(other.fileno(), b"y" * 50_000, 1000)
    equal(os.copy_file_range(handle, handle, 40_000, 0, 100_000), 1000, "bytes copied of what this mount's kernel knows")
    os.fstat(handle)
    raises(errno.EINVAL, os.copy_file_range, handle, handle, 40_000, 0, 20_000)
    os.close(handle)


def kib_of(store):
    """What the bricks take on disk."""
    found = subprocess.run(["du", "-sk", store.path("brick0"), store.path("brick1")], capture_output=True, text=True)
    return sum(int(line.split()[0]) for line in found.stdout.splitlines())


def copies(source, target, length, at=0):
    while length:
        copied = os.copy_file_range(source, target, length, at, at)
        assert copied > 0, "nothing was copied"
        length, at = length - copied, at + copied


def extents(handle):
    found, at, size = [], 0, os.fstat(handle).st_size
    while at < size:
        try:
            begin = os.lseek(handle, at, os.SEEK_DATA)
        except OSError as error:
            equal(error.errno, errno.ENXIO, "behind the last data")
            break
        at = os.lseek(handle, begin, os.SEEK_HOLE)
        found.append((begin, at))
    return found


def test_holes_stay_holes_when_they_are_copied(store):
    mnt = store.up()
    size, at = 6 << 30, (3 << 30) + 5 * 4096
    source = os.open(f"{mnt}/image", os.O_RDWR | os.O_CREAT)
    os.pwrite(source, b"x" * 4096, at)
    os.pwrite(source, b"y" * 4096, at + 100_000 // 4096 * 4096)
    os.ftruncate(source, size)
    before, kib = sum(ops(store).values()), kib_of(store)
    target = os.open(f"{mnt}/copy", os.O_RDWR | os.O_CREAT)
    copies(source, target, size)
    spent = sum(ops(store).values()) - before
    assert spent < 1000, f"{spent} ops for 1,536 shards, of which one is there"
    os.fsync(target)
    assert kib_of(store) - kib < 64 << 10, f"{kib_of(store) - kib} KiB for two blocks"
    equal(os.fstat(target).st_size, size, "size of the copy")
    equal(extents(target), extents(source), "data of the copy")
    same_bytes(os.pread(target, 200_000, at - 50_000), os.pread(source, 200_000, at - 50_000), "the data")
    # Where the target had bytes it has the source's holes afterwards.
    length = 200 << 20
    middle = os.open(f"{mnt}/middle", os.O_RDWR | os.O_CREAT)
    os.pwrite(middle, b"m" * 5000, 40 * MIB + 7)
    os.ftruncate(middle, length)
    full = os.open(f"{mnt}/full", os.O_RDWR | os.O_CREAT)
    for begin in range(0, length + 10, MIB):
        os.pwrite(full, b"f" * MIB, begin)
    rest = os.pread(full, 100, length)
    copies(middle, full, length - 100, 50)
    wanted = bytearray(b"f" * 50 + bytes(length - 100) + b"f" * 50 + rest)
    wanted[40 * MIB + 7 : 40 * MIB + 5007] = b"m" * 5000
    same_bytes(b"".join(os.pread(full, MIB, begin) for begin in range(0, length, MIB)) + rest, bytes(wanted), "bytes")
    equal(extents(full)[:2], [(0, 4096), (40 * MIB, 40 * MIB + 8192)], "what is left of the target")
    for handle in (source, target, middle, full):
        os.close(handle)


def test_what_holes_cost_does_not_follow_their_length(store):
    mnt = store.up()
    places = [0, 5 << 20, 3 << 30, 1 << 40, (1 << 60) - 10_000]
    handle = os.open(f"{mnt}/huge", os.O_RDWR | os.O_CREAT)

    def spends(what, most, call):
        before = sum(ops(store).values())
        found = call()
        spent = sum(ops(store).values()) - before
        assert spent < most, f"{what}: {spent} ops"
        return found

    def fill():
        for place in places:
            os.pwrite(handle, b"x" * 5000, place)

    fill()
    begins = [place // 4096 * 4096 for place in places]
    equal([begin for begin, _ in spends("to seek", 4000, lambda: extents(handle))], begins, "data")
    spends("to punch 16 TiB", 1000, lambda: fallocate(handle, PUNCH | KEEP_SIZE, 4096, 16 << 40))
    equal([begin for begin, _ in extents(handle)], [0, begins[-1]], "what is left of the data")
    same_bytes(os.pread(handle, 10_000, 0), b"x" * 4096 + bytes(5904), "the first bytes")
    same_bytes(os.pread(handle, 10_000, 1 << 40), bytes(10_000), "punched bytes")
    fill()
    spends("to punch all", 1000, lambda: fallocate(handle, PUNCH | KEEP_SIZE, 0, 1 << 60))
    equal(spends("to look for nothing", 1000, lambda: extents(handle)), [], "data")
    fill()
    spends("to cut it", 1000, lambda: os.ftruncate(handle, 5 << 20))
    os.ftruncate(handle, 1 << 60)
    equal(extents(handle), [(0, 5000)], "what a cut leaves")
    fill()
    os.close(handle)
    spends("to remove it", 1000, lambda: os.unlink(f"{mnt}/huge"))


def test_a_copy_moves_the_time_of_access_as_a_read_does(store):
    mnt = store.up()
    for flags, moves in ((0, True), (os.O_NOATIME, False)):
        write(f"{mnt}/{flags}", b"a" * 30_000)
        os.utime(f"{mnt}/{flags}", (1000, 2000))
        source = os.open(f"{mnt}/{flags}", os.O_RDONLY | flags)
        target = os.open(f"{mnt}/to{flags}", os.O_WRONLY | os.O_CREAT)
        equal(os.copy_file_range(source, target, 30_000), 30_000, "copied")
        equal(os.fstat(source).st_atime != 1000, moves, f"atime moves, opened with {flags:#x}")
        os.close(source)
        os.close(target)


def ops(store):
    return {name: one["done"] for name, one in store.status()["ops"].items()}


def test_appends_of_two_mounts_lose_nothing(store):
    mounts = [store.up(), store.mount("mnt2")]
    rounds = 300
    failed = []

    def append(number):
        try:
            handle = os.open(f"{mounts[number % 2]}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for count in range(rounds):
                line = f"{number} {count} ".encode().ljust(99, b".") + b"\n"
                equal(os.write(handle, line), 100, "a line")
            os.close(handle)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed
    content = read(f"{mounts[0]}/log")
    same_bytes(content, read(f"{mounts[1]}/log"), "what the mounts read")
    lines = content.split(b"\n")
    equal(len(lines), 4 * rounds + 1, "lines")
    for number in range(4):
        own = [int(line.split()[1]) for line in lines[:-1] if line.startswith(b"%d " % number)]
        wrong = [(at, count) for at, count in enumerate(own) if at != count][:5]
        assert not wrong and len(own) == rounds, f"writer {number}: {len(own)} lines, {wrong}"


def test_a_mount_that_dies_while_it_appends_holds_nobody_up_for_ever(store):
    mounts = [store.up(), store.mount("mnt2")]
    write(f"{mounts[0]}/log", b"x" * 100_000)
    handle = os.open(f"{mounts[0]}/log", os.O_WRONLY | os.O_APPEND)
    stop = threading.Event()

    def append():
        while not stop.is_set():
            try:
                os.write(handle, b"y" * 5000)
            except OSError:
                return

    thread = threading.Thread(target=append)
    thread.start()
    time.sleep(0.5)
    store.kill_mount("mnt")
    stop.set()
    thread.join(20)
    assert not thread.is_alive(), "a writer of a killed mount hangs"
    # Its session ends after 60 s of silence at most.
    with open(f"{mounts[1]}/log", "ab", buffering=0) as file:
        file.write(b"z")
    assert read(f"{mounts[1]}/log").endswith(b"z")


def name_it(handle, path):
    """linkat(2) as open(2) shows it for O_TMPFILE. -> errno."""
    at_cwd, follow = -100, 0x400
    done = LIBC.linkat(at_cwd, b"/proc/self/fd/%d" % handle, at_cwd, path.encode(), follow)
    return 0 if done == 0 else ctypes.get_errno()


def test_files_without_names(store):
    mnt = store.up()
    flags = os.O_TMPFILE | os.O_RDWR
    handle = os.open(mnt, flags, 0o640)
    os.write(handle, b"secret")
    found = os.fstat(handle)
    equal((found.st_nlink, found.st_mode & 0o777, found.st_size), (0, 0o640, 6), "a file without a name")
    equal(os.listdir(mnt), [], "names")
    time.sleep(3)
    equal(os.pread(handle, 10, 0), b"secret", "while it is open, past heartbeats")
    equal(name_it(handle, f"{mnt}/named"), 0, "linkat")
    equal((os.fstat(handle).st_nlink, read(f"{mnt}/named")), (1, b"secret"), "with a name")
    os.close(handle)
    equal(read(f"{mnt}/named"), b"secret", "after it was closed")
    bound = os.open(mnt, flags | os.O_EXCL, 0o600)
    equal(name_it(bound, f"{mnt}/never"), errno.ENOENT, "linkat of one that was to stay without a name")
    os.write(bound, b"x" * 100_000)
    store.kill_server()
    store.serve()
    equal(os.fstat(bound).st_size, 100_000, "after the server was killed")
    os.close(bound)
    wait_until(lambda: store.status()["orphans"] == 0, "the file without a name goes", 30)


def test_times_of_access_follow_relatime(store):
    mnt = store.up()
    for name, size in (("small", 10), ("large", 100_000)):
        write(f"{mnt}/{name}", b"x" * size)
        first = os.stat(f"{mnt}/{name}")
        time.sleep(0.02)
        read(f"{mnt}/{name}")
        second = os.stat(f"{mnt}/{name}")
        assert second.st_atime_ns > first.st_atime_ns, f"{name}: {second.st_atime_ns} after {first.st_atime_ns}"
        equal((second.st_mtime_ns, second.st_ctime_ns), (first.st_mtime_ns, first.st_ctime_ns), "the other times")
        time.sleep(0.02)
        read(f"{mnt}/{name}")
        equal(os.stat(f"{mnt}/{name}").st_atime_ns, second.st_atime_ns, "read again")
        write(f"{mnt}/{name}", b"y" * size)
        time.sleep(0.02)
        read(f"{mnt}/{name}")
        assert os.stat(f"{mnt}/{name}").st_atime_ns > second.st_atime_ns, "read after a change"
        os.utime(f"{mnt}/{name}", (1, time.time()))
        read(f"{mnt}/{name}")
        assert os.stat(f"{mnt}/{name}").st_atime > 1000, "a day old"
    os.symlink("small", f"{mnt}/link")
    before = os.lstat(f"{mnt}/link").st_atime_ns
    time.sleep(0.02)
    os.readlink(f"{mnt}/link")
    assert os.lstat(f"{mnt}/link").st_atime_ns > before, "a link that was read"
    before = os.stat(mnt).st_atime_ns
    time.sleep(0.02)
    os.listdir(mnt)
    assert os.stat(mnt).st_atime_ns > before, "a directory that was listed"


@pytest.mark.root
def test_file_capabilities_go_with_a_write(store):
    mnt = store.up()
    capability = bytes.fromhex("0000000200040000000000000000000000000000")
    for size in (100, 100_000):
        write(f"{mnt}/f", b"x" * size)

        def cut():
            os.truncate(f"{mnt}/f", size // 2)

        def overwrite():
            handle = os.open(f"{mnt}/f", os.O_WRONLY)
            os.pwrite(handle, b"y", 0)
            os.close(handle)

        for change in (overwrite, cut, lambda: os.chown(f"{mnt}/f", 1, 1)):
            os.setxattr(f"{mnt}/f", "security.capability", capability)
            equal(os.getxattr(f"{mnt}/f", "security.capability"), capability, "set")
            change()
            raises(errno.ENODATA, os.getxattr, f"{mnt}/f", "security.capability")


def test_mapped_pages_are_those_of_reads_and_writes(store):
    mnt, other = store.up(), store.mount("mnt2")
    write(f"{mnt}/f", bytes(64 << 10))
    handle = os.open(f"{mnt}/f", os.O_RDWR)
    mapped = mmap.mmap(handle, 64 << 10)
    for number in range(1, 200):
        at = number * 317 % 60_000
        if number % 2:
            mapped[at : at + 4] = number.to_bytes(4, "little")
            equal(os.pread(handle, 4, at), number.to_bytes(4, "little"), "read after a store")
        else:
            os.pwrite(handle, number.to_bytes(4, "little"), at)
            equal(mapped[at : at + 4], number.to_bytes(4, "little"), "load after a write")
    mapped.flush()
    same_bytes(read(f"{other}/f"), mapped[:], "what another mount reads after msync")
    away = os.open(f"{other}/f", os.O_RDWR)
    with mmap.mmap(away, 64 << 10) as there:
        same_bytes(there[:], mapped[:], "what another mount maps after msync")
        there[0:5] = b"there"
        there.flush()
    equal(os.pread(handle, 5, 0), b"there", "read after another mount's msync")
    with mmap.mmap(handle, 64 << 10) as again:
        equal(again[0:5], b"there", "mapped anew after another mount's msync")
    mapped.close()
    os.close(handle)
    os.close(away)
