"""Much of everything: files, names in a directory, bytes in a file; and the memory that it takes.

HEKATE_FILES=N: files in each of the tests that count them [4000]; HEKATE_SEED: which names [random, printed on failure].
"""

import ctypes
import hashlib
import mmap
import os
import random
import subprocess
import threading
import time
from array import array

import pytest

from gaps import gap
from harness import equal, same_bytes

FILES = int(os.environ.get("HEKATE_FILES", "4000"))
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))
# At 100 creates, looks and removals a second.
LIMIT_S = 120 + FILES // 100
WORKERS = 4
IN_A_DIRECTORY = 1000
MIB = 1 << 20
SERVER_BYTES_MAX = 512 * MIB
MOUNT_BYTES_MAX = 64 * MIB
MOUNT_BYTES_PER_INODE = 300


# --- memory ---


def memory(pid, what="VmHWM"):
    """Bytes of memory that a process had at most (VmHWM) or has (VmRSS)."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(what))


class Remembered:
    """How many inodes of FUSE the kernel remembers, since this began; other mounts of the machine count as well."""

    def __init__(self):
        self.most, self.ends = 0, False
        self.before = self.count()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def count(self):
        """None if the kernel does not tell us: then it may remember everything."""
        try:
            with open("/proc/slabinfo") as file:
                return next((int(line.split()[1]) for line in file if line.startswith("fuse_inode ")), None)
        except OSError:
            return None

    def watch(self):
        while not self.ends:
            self.most = max(self.most, self.now())
            time.sleep(0.5)

    def now(self, at_most=1 << 62):
        count = self.count()
        return at_most if count is None else min(at_most, max(0, count - (self.before or 0)))

    def end(self):
        self.ends = True
        self.thread.join()


def small_enough(store, remembered, files, what):
    """Checks the most memory that server and mount have had."""
    inodes = min(files, max(remembered.most, remembered.now(files)))
    server, mount = memory(store.server_pid), memory(store.mount_pids["mnt"])
    limit = MOUNT_BYTES_MAX + MOUNT_BYTES_PER_INODE * inodes
    told = f"{what}: server {server / MIB:.0f} MiB, mount {mount / MIB:.0f} MiB with {inodes} inodes remembered"
    if FILES >= 100_000:
        print(f"     {told}", flush=True)
    assert server <= SERVER_BYTES_MAX, f"{told}: the server is to have at most {SERVER_BYTES_MAX / MIB:.0f} MiB"
    assert mount <= limit, f"{told}: the mount is to have at most {limit / MIB:.0f} MiB"


# --- many files ---


def by_workers(function, *arguments):
    """Calls it with 0 to WORKERS - 1, each in a process; all must succeed."""
    children = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function(worker, *arguments)
                status = 0
            except BaseException as error:
                print(f"     worker {worker}: {type(error).__name__}: {error}", flush=True)
            os._exit(status)
        children.append(child)
    equal([os.waitpid(child, 0)[1] for child in children], [0] * WORKERS, "how the workers ended")


def output(*words):
    """What a command prints, which must succeed."""
    done = subprocess.run(words, capture_output=True)
    equal(done.returncode, 0, f"{' '.join(words)}: {done.stderr[:300]!r}: exit status")
    return done.stdout


def make_file(path, number):
    """Each tenth has content."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    if number % 10 == 0:
        os.write(handle, b"%d" % number)
    os.close(handle)


def make_tree(worker, top, files):
    for first in range(worker * IN_A_DIRECTORY, files, WORKERS * IN_A_DIRECTORY):
        directory = f"{top}/{first}"
        os.mkdir(directory)
        for number in range(first, min(first + IN_A_DIRECTORY, files)):
            make_file(f"{directory}/{number}", number)


def look_at_tree(worker, top, files, out):
    """stat of everything; the inode numbers go to a file."""
    inodes = array("Q")
    for directory in sorted(os.listdir(top), key=int)[worker::WORKERS]:
        names = os.listdir(f"{top}/{directory}")
        equal(len(names), min(IN_A_DIRECTORY, files - int(directory)), f"names in {directory}")
        for name in names:
            found = os.stat(f"{top}/{directory}/{name}")
            inodes.append(found.st_ino)
            equal(found.st_size, len(name) if int(name) % 10 == 0 else 0, f"size of {name}")
        inodes.append(os.stat(f"{top}/{directory}").st_ino)
    with open(f"{out}/{worker}", "wb") as file:
        inodes.tofile(file)


def inodes_of_tree(store, top, files):
    """-> all inode numbers of the tree, which must be different and of 64 bits."""
    out = store.directory("inodes")
    by_workers(look_at_tree, top, files, out)
    inodes = array("Q")
    for worker in range(WORKERS):
        with open(f"{out}/{worker}", "rb") as file:
            inodes.frombytes(file.read())
    equal(len(inodes), files + len(range(0, files, IN_A_DIRECTORY)), "files and directories")
    different = set(inodes)
    equal(len(different), len(inodes), "different inode numbers")
    assert 0 not in different
    return different


def remove_tree(worker, top):
    for directory in sorted(os.listdir(top), key=int)[worker::WORKERS]:
        output("rm", "-r", f"{top}/{directory}")


@pytest.mark.limit(2 * LIMIT_S)
def test_many_files_take_bounded_memory(store):
    mnt = store.up()
    remembered = Remembered()
    top = f"{mnt}/tree"
    os.mkdir(top)
    by_workers(make_tree, top, FILES)
    small_enough(store, remembered, 2 * FILES, "after making them")
    before = inodes_of_tree(store, top, FILES)
    small_enough(store, remembered, 2 * FILES, "after looking at them")
    store.kill_server()
    store.serve()
    found = output("find", top, "-type", "f", "-size", "-2", "-printf", "%i\n")
    found = array("Q", map(int, found.split()))
    equal(len(found), FILES, "files that find finds after the server was killed")
    equal(set(found) - before, set(), "inode numbers that are others after the server was killed")
    small_enough(store, remembered, 2 * FILES, "after the server was killed")
    by_workers(remove_tree, top)
    equal(os.listdir(top), [], "what is left")
    remembered.end()
    by_workers(make_tree, top, WORKERS * IN_A_DIRECTORY)
    again = inodes_of_tree(store, top, WORKERS * IN_A_DIRECTORY)
    equal(again & before, set(), "inode numbers of removed files that are used again")
    small_enough(store, remembered, 2 * FILES, "after making some anew")
    by_workers(remove_tree, top)
    forgotten(store, FILES)


def forgotten(store, files):
    """What the kernel has forgotten takes no memory of the mount either."""
    limit = MOUNT_BYTES_MAX
    pid = store.mount_pids["mnt"]
    deadline = time.monotonic() + 30
    while (resident := memory(pid, "VmRSS")) > limit and time.monotonic() < deadline:
        time.sleep(0.5)
    assert resident <= limit, f"after {files} files were removed the mount has {resident / MIB:.0f} MiB, not at most {limit / MIB:.0f}"


# --- many names in a directory ---


class Dirent(ctypes.Structure):
    _fields_ = [
        ("d_ino", ctypes.c_uint64), ("d_off", ctypes.c_int64), ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8), ("d_name", ctypes.c_char * 256),
    ]


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir64.restype = ctypes.POINTER(Dirent)
LIBC.telldir.restype = ctypes.c_long
for name, types in {
    "readdir64": [ctypes.c_void_p], "telldir": [ctypes.c_void_p], "rewinddir": [ctypes.c_void_p],
    "closedir": [ctypes.c_void_p], "seekdir": [ctypes.c_void_p, ctypes.c_long], "opendir": [ctypes.c_char_p],
}.items():
    getattr(LIBC, name).argtypes = types


class Stream:
    """A DIR of the C library."""

    def __init__(self, path):
        self.stream = LIBC.opendir(os.fsencode(path))
        assert self.stream, f"opendir {path}: {os.strerror(ctypes.get_errno())}"

    def next(self):
        """-> the name, or None at the end."""
        ctypes.set_errno(0)
        entry = LIBC.readdir64(self.stream)
        if not entry:
            equal(ctypes.get_errno(), 0, "errno of readdir")
            return None
        return entry.contents.d_name

    def tell(self):
        return LIBC.telldir(self.stream)

    def seek(self, cookie):
        LIBC.seekdir(self.stream, cookie)

    def close(self):
        LIBC.closedir(self.stream)


def make_wide(worker, directory):
    for number in range(worker, FILES, WORKERS):
        os.mknod(f"{directory}/{wide_name(number)}", 0o100644)


def wide_name(number):
    """In an order that has nothing to do with the numbers, of some 40 bytes."""
    return hashlib.md5(b"%d" % number).hexdigest() + f"-{number}"


def cookies_of(stream, every):
    """Reads all; -> the names in order, and (cookie, position of the name that follows it) for some."""
    names, cookies = [], []
    while True:
        cookie = stream.tell()
        name = stream.next()
        if name is None:
            return names, cookies
        if len(names) % every == 0:
            cookies.append((cookie, len(names)))
        names.append(name)


def cookies_are_stable(directory, chance):
    """Every place that telldir tells is found again, in any order, also when other names come and go."""
    stream = Stream(directory)
    names, cookies = cookies_of(stream, max(1, FILES // 2000))
    equal(len(names), FILES + 2, "names that readdir lists, with . and ..")
    equal(len({cookie for cookie, _ in cookies}), len(cookies), "different cookies")
    chance.shuffle(cookies)
    for cookie, position in cookies:
        stream.seek(cookie)
        equal([stream.next(), stream.next()], (names + [None])[position:position + 2], f"names after seekdir to {position}")
    # Names go, and others come, that are not those looked for.
    looked_for = {position for _, position in cookies}
    gone = [position for position in range(2, len(names)) if position not in looked_for and position % 7 == 0][:3000]
    path = os.fsencode(directory) + b"/"
    for position in gone:
        os.unlink(path + names[position])
    found_again(stream, names, cookies, "others went")
    come = [names[position] + b"+" for position in range(2, len(names), 11)][:3000]
    for name in come:
        os.mknod(path + name, 0o100644)
    found_again(stream, names, cookies, "others came")
    stream.close()
    for name in come:
        os.unlink(path + name)
    for position in gone:
        os.mknod(path + names[position], 0o100644)


def found_again(stream, names, cookies, what):
    """Each name that a cookie stands before is the next one there still."""
    for cookie, position in cookies[:500]:
        if cookie == 0:
            continue  # This is rewinddir(3): the listing begins anew, and earlier cookies mean nothing (POSIX).
        stream.seek(cookie)
        equal(stream.next(), names[position], f"the name after seekdir to {position}, after {what}")


def ls_counts(directory):
    """`ls -f`: no sorting, no stat, . and .. as well."""
    done = subprocess.run(f"ls -f {directory} | wc -l", shell=True, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"})
    return int(done.stdout)


@pytest.mark.limit(2 * LIMIT_S)
def test_many_names_in_a_directory(store):
    mnt = store.up()
    remembered = Remembered()
    directory = f"{mnt}/wide"
    os.mkdir(directory)
    chance = random.Random(SEED)
    try:
        by_workers(make_wide, directory)
        equal(ls_counts(directory), FILES + 2, "lines of ls -f")
        wanted = {wide_name(number) for number in range(FILES)}
        equal(set(os.listdir(directory)) ^ wanted, set(), "names too many or too few")
        inodes = {entry.inode() for entry in os.scandir(directory)}
        equal(len(inodes), FILES, "different inode numbers in the listing")
        cookies_are_stable(directory, chance)
    except AssertionError as error:
        raise AssertionError(f"HEKATE_SEED={SEED}: {error}") from error
    found = output("find", directory, "-type", "f", "-perm", "644")
    equal(found.count(b"\n"), FILES, "files that find finds")
    small_enough(store, remembered, FILES + 2, "with all names in one directory")
    two = store.mount("two")
    equal(ls_counts(f"{two}/wide"), FILES + 2, "lines of ls -f on another mount")
    store.umount("two")
    store.kill_server()
    store.serve()
    os.rename(directory, f"{mnt}/renamed")
    equal(ls_counts(f"{mnt}/renamed"), FILES + 2, "lines of ls -f after the server was killed")
    output("rm", "-r", f"{mnt}/renamed")
    equal(os.listdir(mnt), [], "after removal")
    small_enough(store, remembered, FILES + 2, "after removal")
    remembered.end()
    forgotten(store, FILES)


# --- names of any bytes, files of any size ---


def test_names_of_any_bytes_of_any_length(store):
    mnt = os.fsencode(store.up())
    chance = random.Random(SEED)
    letters = [byte for byte in range(1, 256) if byte != ord("/")]
    names = {bytes(chance.choices(letters, k=length)) for length in range(1, 256) for _ in range(2)} - {b".", b".."}
    # Every byte at every place.
    names |= {bytes(letters[(start + place) % len(letters)] for place in range(255)) for start in range(0, len(letters), 2)}
    try:
        for name in names:
            os.symlink(name, mnt + b"/" + name)
        equal(set(os.listdir(mnt)) ^ names, set(), "names too many or too few")
        mnt = os.fsencode(store.remount())
        for name in names:
            equal(os.readlink(mnt + b"/" + name), name, "target")
            os.unlink(mnt + b"/" + name)
        equal(os.listdir(mnt), [], "after removal")
    except AssertionError as error:
        raise AssertionError(f"HEKATE_SEED={SEED}: {error}") from error


# Around 4 GiB, where 32 bits end, and far beyond.
PLACES = [0, (4 << 30) - 3, (8 << 30) + 1, 1 << 40]
LENGTH = 3 * MIB


def test_files_over_4_gib(store):
    mnt = store.up()
    path = f"{mnt}/large"
    parts = {place: os.urandom(LENGTH) for place in PLACES}
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    for place, data in parts.items():
        equal(os.pwrite(handle, data, place), LENGTH, f"bytes written at {place}")
    os.fsync(handle)
    os.close(handle)
    mnt = store.remount()
    handle = os.open(path, os.O_RDWR)
    size = (1 << 40) + LENGTH
    found = os.fstat(handle)
    equal(found.st_size, size, "size")
    with gap("blocks of holes"):
        assert found.st_blocks * 512 < 64 * MIB, f"{found.st_blocks} blocks for {4 * LENGTH} bytes"
    for place, data in parts.items():
        same_bytes(os.pread(handle, LENGTH, place), data, f"what was written at {place}")
    for place in [4 * MIB, 3 << 30, (4 << 30) + LENGTH, 9 << 30, (1 << 40) - 4096]:
        equal(os.pread(handle, 4096, place), bytes(4096), f"the hole at {place}")
    equal(os.pread(handle, 4096, size - 1), parts[1 << 40][-1:], "the last byte")
    beyond = mmap.mmap(handle, 1 * MIB, offset=8 << 30)
    same_bytes(beyond[1:], parts[8 << 30 | 1][:MIB - 1], "mapped")
    beyond[100:105] = b"hello"
    beyond.flush()
    beyond.close()
    equal(os.pread(handle, 5, (8 << 30) + 100), b"hello", "written through the map")
    os.ftruncate(handle, (4 << 30) + 1)
    equal(os.fstat(handle).st_size, (4 << 30) + 1, "size after truncating")
    os.ftruncate(handle, 6 << 30)
    equal(os.pread(handle, 8, (4 << 30) - 3), parts[(4 << 30) - 3][:4] + bytes(4), "around the end that was cut")
    os.lseek(handle, 0, os.SEEK_END)
    equal(os.write(handle, b"end"), 3, "bytes written at the end")
    equal(os.fstat(handle).st_size, (6 << 30) + 3, "size in the end")
    os.close(handle)
    os.unlink(path)
    equal(os.listdir(mnt), [], "after removal")
