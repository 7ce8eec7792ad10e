"""What docs/limits.md says."""

import ctypes
import errno
import mmap
import os
import stat
import struct
import threading
import time

import test_spread
import pytest

from harness import NOBODY, equal, raises, read, write

MIB = 1 << 20
GREATEST = 1 << 60


def test_sizes_have_limits(store):
    mnt = store.up()
    handle = os.open(f"{mnt}/f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(handle, GREATEST)
    equal(os.fstat(handle).st_size, GREATEST, "the greatest file")
    raises(errno.EFBIG, os.ftruncate, handle, GREATEST + 1)
    raises(errno.EFBIG, os.pwrite, handle, b"xy", GREATEST - 1)
    os.pwrite(handle, b"x", GREATEST - 1)
    equal(os.pread(handle, 5, GREATEST - 1), b"x", "its last byte")
    os.close(handle)
    os.symlink("t" * 4095, f"{mnt}/link")
    equal(len(os.readlink(f"{mnt}/link")), 4095, "the longest target")
    raises(errno.ENAMETOOLONG, os.symlink, "t" * 4096, f"{mnt}/longer")
    for number in range(128):
        os.setxattr(f"{mnt}/f", f"user.{number}", b"v")
    raises(errno.E2BIG, os.setxattr, f"{mnt}/f", "user.more", b"v")
    os.setxattr(f"{mnt}/f", "user.0", bytes(64 << 10))
    equal(len(os.getxattr(f"{mnt}/f", "user.0")), 64 << 10, "the longest value")


def test_blocks_are_counted_by_size(store):
    mnt = store.up()
    with open(f"{mnt}/sparse", "wb") as file:
        file.truncate(100 * MIB)
    equal(os.stat(f"{mnt}/sparse").st_blocks, 100 * MIB // 512, "blocks of a file that has none")


def test_an_append_is_whole_up_to_a_mebibyte(store):
    # Less a page, as the program's bytes need not begin at one.
    whole = MIB - 4096
    mounts = [store.up(), store.mount("mnt2")]

    def append(number):
        handle = os.open(f"{mounts[number]}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(8):
            equal(os.write(handle, bytes([number + 1]) * whole), whole, "bytes")
        os.close(handle)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    content = read(f"{mounts[0]}/log")
    equal(len(content), 16 * whole, "size")
    for at in range(0, len(content), whole):
        equal(len(set(content[at : at + whole])), 1, f"writers of the append at {at}")


def test_the_offset_after_an_append_is_by_what_the_kernel_knew(store):
    mnt, other = store.up(), store.mount("mnt2")
    handle = os.open(f"{mnt}/log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(handle, b"one")
    with open(f"{other}/log", "ab") as file:
        file.write(b"other")
    os.write(handle, b"two")
    equal(read(f"{mnt}/log"), b"oneothertwo", "what was appended")
    equal(os.lseek(handle, 0, os.SEEK_CUR), 6, "the offset")
    os.close(handle)


@pytest.mark.root
def test_a_new_set_group_id_bit_may_stay(store):
    mnt, other = store.up(), store.mount("mnt2")
    os.chmod(mnt, 0o777)
    write(f"{mnt}/f", b"f")
    os.chmod(f"{mnt}/f", 0o666)
    handle = os.open(f"{mnt}/f", os.O_WRONLY)
    os.chmod(f"{other}/f", 0o2666)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(handle, b"g")
        os._exit(0)
    equal(os.waitpid(child, 0)[1], 0, "the writer's status")
    os.close(handle)
    equal(stat.S_IMODE(os.stat(f"{mnt}/f").st_mode), 0o2666, "mode")


def test_a_directory_that_another_mount_moved_may_be_stale_once(store):
    mnt, other = store.up(), store.mount("mnt2")
    for name in ("a", "b", "a/x"):
        os.mkdir(f"{mnt}/{name}")
    os.stat(f"{mnt}/a/x")
    os.rename(f"{other}/a/x", f"{other}/b/x")
    try:
        os.rename(f"{mnt}/b/x", f"{mnt}/y")
    except OSError as error:
        equal(error.errno, errno.ESTALE, "errno")
        os.stat(f"{mnt}/b/x")
        os.rename(f"{mnt}/b/x", f"{mnt}/y")
    equal(sorted(os.listdir(other)), ["a", "b", "y"], "names")


def test_o_path_keeps_no_removed_file(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f")
    handle = os.open(f"{mnt}/f", os.O_PATH)
    os.unlink(f"{mnt}/f")
    raises(errno.ESTALE, os.fstat, handle)
    os.close(handle)


def test_what_another_mount_removed_has_no_extended_attributes(store):
    mnt, other = store.up(), store.mount("mnt2")
    os.mkdir(f"{mnt}/d")
    os.setxattr(f"{mnt}/d", "user.a", b"value")
    handle = os.open(f"{mnt}/d", os.O_RDONLY)
    os.rmdir(f"{other}/d")
    equal((os.fstat(handle).st_nlink, os.listxattr(handle)), (0, []), "links and names of extended attributes")
    os.close(handle)
    os.mkdir(f"{mnt}/d")
    handle = os.open(f"{mnt}/d", os.O_RDONLY)
    os.rmdir(f"{mnt}/d")
    equal(os.fstat(handle).st_nlink, 0, "links of one that this mount removed")
    before = os.fstat(handle)
    os.fchmod(handle, 0o701)
    os.fchown(handle, 5, 6)
    os.utime(handle, ns=(7_000_000_001, 8_000_000_002))
    found = os.fstat(handle)
    equal((found.st_mode & 0o7777, found.st_uid, found.st_gid), (0o701, 5, 6), "mode and owners")
    equal((found.st_atime_ns, found.st_mtime_ns), (7_000_000_001, 8_000_000_002), "times")
    assert found.st_ctime_ns > before.st_ctime_ns, "no change of its ctime"
    os.close(handle)
    os.mkdir(f"{mnt}/d")
    os.mkdir(f"{mnt}/e")
    handle = os.open(f"{mnt}/d", os.O_RDONLY)
    os.rename(f"{mnt}/e", f"{mnt}/d")
    equal(os.fstat(handle).st_nlink, 0, "links of one that another took the name of")
    os.close(handle)


def test_dot_dot_has_no_number_in_a_listing(store):
    mnt = store.up()
    os.mkdir(f"{mnt}/d")
    found = {name: number for number, name in entries(f"{mnt}/d")}
    equal(found, {b".": os.stat(f"{mnt}/d").st_ino, b"..": 0xFFFFFFFF}, "numbers in a listing")
    equal(os.stat(f"{mnt}/d/..").st_ino, os.stat(mnt).st_ino, "the number that stat answers")


def entries(path):
    """As getdents64(2) answers, which Python does not show."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    buffer = ctypes.create_string_buffer(32 << 10)
    filled = ctypes.CDLL(None, use_errno=True).syscall(217 if os.uname().machine == "x86_64" else 61, handle, buffer, len(buffer))
    os.close(handle)
    assert filled > 0, "getdents64"
    at = 0
    while at < filled:
        number, _, length, _ = struct.unpack_from("<QqHB", buffer, at)
        yield number, buffer.raw[at + 19 : at + length].split(b"\0")[0]
        at += length


def test_a_shared_directory_keeps_its_time_of_access(store):
    mnt = test_spread.up(store)
    os.mkdir(f"{mnt}/wide")
    write(f"{mnt}/wide/f", b"")
    before = os.stat(f"{mnt}/wide").st_atime_ns
    time.sleep(0.02)
    equal(os.listdir(f"{mnt}/wide"), ["f"], "names")
    equal(os.stat(f"{mnt}/wide").st_atime_ns, before, "time of access")


def test_what_the_page_cache_answers_is_no_access(store):
    store.init()
    store.serve()
    mnt = store.mount(options=("--cache", "60"))
    write(f"{mnt}/f", b"1" * 4096)
    handle = os.open(f"{mnt}/f", os.O_RDONLY)
    os.pread(handle, 4096, 0)
    os.utime(handle, ns=(5, os.fstat(handle).st_mtime_ns))
    equal(os.pread(handle, 4096, 0), b"1" * 4096, "content")
    os.chmod(f"{mnt}/f", 0o600)  # The kernel gets new attributes.
    equal(os.fstat(handle).st_atime_ns, 5, "time of access")
    os.close(handle)


@pytest.mark.root
def test_no_label_is_no_support_for_labels(store):
    mnt = store.up()
    write(f"{mnt}/f", b"")
    raises(errno.EOPNOTSUPP, os.getxattr, f"{mnt}/f", "security.selinux")
    raises(errno.ENODATA, os.getxattr, f"{mnt}/f", "security.other")
    os.setxattr(f"{mnt}/f", "security.selinux", b"label")
    equal(os.getxattr(f"{mnt}/f", "security.selinux"), b"label", "the label")
    raises(errno.ENODATA, os.getxattr, f"{mnt}/f", "security.other")


def test_mappings_of_mounts_without_pledges_overwrite_each_other(store):
    """docs/limits.md: each mount writes back whole pages of its own."""
    store.init()
    store.serve()
    one = store.mount("mnt", options=("-o", "nopledges"))
    two = store.mount("two", options=("-o", "nopledges"))
    write(f"{one}/f", bytes(4096))
    files = [open(f"{mnt}/f", "r+b") for mnt in (one, two)]
    pages = [mmap.mmap(file.fileno(), 4096) for file in files]
    equal([page[0] for page in pages], [0, 0], "both have the page")
    pages[0][0], pages[1][1] = 1, 2
    pages[0].flush()
    pages[1].flush()
    equal(read(f"{one}/f")[:2], b"\0\2", "what the first mount stored is gone, and no call failed")
    for opened in (*pages, *files):
        opened.close()
    # On one mount both have the same page.
    files = [open(f"{one}/f", "r+b") for _ in range(2)]
    pages = [mmap.mmap(file.fileno(), 4096) for file in files]
    pages[0][2], pages[1][3] = 3, 4
    pages[0].flush()
    pages[1].flush()
    equal(read(f"{one}/f")[2:4], b"\3\4", "what two processes of one mount stored")
    for opened in (*pages, *files):
        opened.close()
