"""Names, directories, attributes."""

import ctypes
import errno
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import equal, raises, read, write

NOREPLACE, EXCHANGE = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def renameat2(old, new, flags):
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old)


def test_rename_obeys_posix(store):
    mnt = store.up()
    a, b = f"{mnt}/a", f"{mnt}/b"
    for directory in "abcd":
        os.mkdir(f"{mnt}/{directory}")
    write(f"{a}/f", b"f")
    ino = os.stat(f"{a}/f").st_ino
    os.rename(f"{a}/f", f"{a}/g")
    raises(errno.ENOENT, os.stat, f"{a}/f")
    os.rename(f"{a}/g", f"{b}/h")
    equal((os.listdir(a), os.listdir(b)), ([], ["h"]), "after a rename across directories")
    equal(os.stat(f"{b}/h").st_ino, ino, "inode number")
    write(f"{b}/i", b"i" * 50_000)
    os.rename(f"{b}/h", f"{b}/i")
    equal((read(f"{b}/i"), os.listdir(b)), (b"f", ["i"]), "over a file")
    os.rename(f"{b}/i", f"{b}/i")
    equal(read(f"{b}/i"), b"f", "onto itself")
    raises(errno.ENOENT, os.rename, f"{b}/missing", f"{b}/x")
    raises(errno.ENOENT, os.rename, f"{b}/i", f"{mnt}/missing/x")
    raises(errno.ENOTDIR, os.rename, f"{b}/i", f"{b}/i/x")
    raises(errno.EISDIR, os.rename, f"{b}/i", a)
    raises(errno.ENOTDIR, os.rename, a, f"{b}/i")
    raises(errno.ENOTEMPTY, os.rename, a, b)
    raises(errno.EINVAL, os.rename, a, f"{a}/below")
    os.mkdir(f"{a}/deep")
    os.mkdir(f"{a}/deep/deeper")
    raises(errno.EINVAL, os.rename, a, f"{a}/deep/deeper/x")
    os.rename(f"{mnt}/c", f"{mnt}/d")
    raises(errno.ENOENT, os.stat, f"{mnt}/c")
    os.link(f"{b}/i", f"{b}/same")
    os.rename(f"{b}/i", f"{b}/same")
    equal(sorted(os.listdir(b)), ["i", "same"], "between two names of one file nothing happens")


def test_a_moved_directory_keeps_counts_and_content(store):
    mnt = store.up()
    for path in ["x", "y", "x/dir", "x/dir/inner"]:
        os.mkdir(f"{mnt}/{path}")
    write(f"{mnt}/x/dir/inner/f", b"content")
    equal((os.stat(f"{mnt}/x").st_nlink, os.stat(f"{mnt}/y").st_nlink), (3, 2), "links before")
    os.rename(f"{mnt}/x/dir", f"{mnt}/y/dir")
    equal((os.stat(f"{mnt}/x").st_nlink, os.stat(f"{mnt}/y").st_nlink), (2, 3), "links after")
    equal(read(f"{mnt}/y/dir/inner/f"), b"content", "content")
    equal(os.stat(f"{mnt}/y/dir/..").st_ino, os.stat(f"{mnt}/y").st_ino, "..")
    os.chdir(f"{mnt}/y/dir/inner")
    os.rename(f"{mnt}/y/dir", f"{mnt}/x/moved")
    equal(os.getcwd(), f"{mnt}/x/moved/inner", "working directory")
    os.chdir("/")


def test_rename_without_replacing_and_exchanging(store):
    mnt = store.up()
    a, b, d, e = (f"{mnt}/{name}" for name in "abde")
    write(a, b"a")
    write(b, b"b" * 30_000)
    os.mkdir(d)
    os.mkdir(e)
    write(f"{d}/in", b"in")
    raises(errno.EEXIST, renameat2, a, b, NOREPLACE)
    raises(errno.EEXIST, renameat2, a, d, NOREPLACE)
    renameat2(a, f"{e}/a", NOREPLACE)
    renameat2(f"{e}/a", a, NOREPLACE)
    raises(errno.ENOENT, renameat2, a, f"{mnt}/missing", EXCHANGE)
    numbers = os.stat(a).st_ino, os.stat(b).st_ino
    renameat2(a, b, EXCHANGE)
    equal((read(a), read(b)), (b"b" * 30_000, b"a"), "exchanged files")
    equal((os.stat(b).st_ino, os.stat(a).st_ino), numbers, "inode numbers")
    renameat2(b, d, EXCHANGE)
    equal((read(d), os.listdir(b)), (b"a", ["in"]), "a file and a directory")
    renameat2(b, d, EXCHANGE)
    os.mkdir(f"{e}/deep")
    renameat2(d, f"{e}/deep", EXCHANGE)
    equal((os.listdir(f"{e}/deep"), os.listdir(d)), (["in"], []), "directories of different parents")
    raises(errno.EINVAL, renameat2, e, f"{e}/deep", EXCHANGE)
    renameat2(a, f"{e}/deep/in", EXCHANGE)
    equal((read(a), len(read(f"{e}/deep/in"))), (b"in", 30_000), "files of different directories")
    raises(errno.EINVAL, renameat2, a, b, NOREPLACE | EXCHANGE)


def test_hard_links_share_one_file(store):
    mnt = store.up()
    os.mkdir(f"{mnt}/d")
    write(f"{mnt}/a", b"one")
    for number in range(5):
        os.link(f"{mnt}/a", f"{mnt}/d/l{number}")
    found = [os.stat(f"{mnt}/{name}") for name in ["a", "d/l0", "d/l4"]]
    equal({entry.st_ino for entry in found}, {found[0].st_ino}, "inode numbers")
    equal([entry.st_nlink for entry in found], [6, 6, 6], "links")
    write(f"{mnt}/d/l2", b"two" * 10_000)
    equal(read(f"{mnt}/a"), b"two" * 10_000, "written through another name")
    os.unlink(f"{mnt}/a")
    os.rename(f"{mnt}/d/l0", f"{mnt}/moved")
    equal((read(f"{mnt}/moved"), os.stat(f"{mnt}/moved").st_nlink), (b"two" * 10_000, 5), "after an unlink")
    raises(errno.EEXIST, os.link, f"{mnt}/moved", f"{mnt}/d/l1")
    raises(errno.EPERM, os.link, f"{mnt}/d", f"{mnt}/dir-link")
    mnt = store.remount()
    equal(os.stat(f"{mnt}/d/l3").st_nlink, 5, "links after a remount")


def test_symlinks_keep_their_target(store):
    mnt = store.up()
    for number, target in enumerate(["f", "../x", "/" + "t" * 4094, "missing", "ä\n b"]):
        os.symlink(target, f"{mnt}/{number}")
        equal(os.readlink(f"{mnt}/{number}"), target, "target")
        equal(os.lstat(f"{mnt}/{number}").st_size, len(target.encode()), "size")
        assert stat.S_ISLNK(os.lstat(f"{mnt}/{number}").st_mode)
    write(f"{mnt}/f", b"f")
    equal(read(f"{mnt}/0"), b"f", "through a symlink")
    raises(errno.ENOENT, open, f"{mnt}/3")
    os.symlink("loop", f"{mnt}/loop")
    raises(errno.ELOOP, open, f"{mnt}/loop")
    raises(errno.EEXIST, os.symlink, "x", f"{mnt}/0")
    os.unlink(f"{mnt}/0")
    equal(read(f"{mnt}/f"), b"f", "the target outlives its symlink")


def test_extended_attributes(store):
    mnt = store.up()
    write(f"{mnt}/f", b"")
    os.mkdir(f"{mnt}/d")
    for path in [f"{mnt}/f", f"{mnt}/d"]:
        os.setxattr(path, "user.one", b"1\0\xff")
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "user.large", b"x" * 60_000)
        equal(sorted(os.listxattr(path)), ["user.empty", "user.large", "user.one"], "names")
        equal(os.getxattr(path, "user.one"), b"1\0\xff", "value")
        equal(os.getxattr(path, "user.empty"), b"", "empty value")
        equal(len(os.getxattr(path, "user.large")), 60_000, "large value")
        raises(errno.EEXIST, os.setxattr, path, "user.one", b"2", os.XATTR_CREATE)
        raises(errno.ENODATA, os.setxattr, path, "user.two", b"2", os.XATTR_REPLACE)
        raises(errno.ENODATA, os.getxattr, path, "user.two")
        os.setxattr(path, "user.one", b"2", os.XATTR_REPLACE)
        os.removexattr(path, "user.large")
        raises(errno.ENODATA, os.removexattr, path, "user.large")
    mnt = store.remount()
    equal(os.getxattr(f"{mnt}/f", "user.one"), b"2", "after a remount")


def test_modes_owners_and_times(store):
    mnt = store.up()
    path = f"{mnt}/f"
    write(path, b"f")
    for mode in [0o000, 0o777, 0o4755, 0o2640, 0o1600]:
        os.chmod(path, mode)
        equal(stat.S_IMODE(os.stat(path).st_mode), mode, "mode")
    os.utime(path, ns=(1_000_000_000_123_456_789, -5_000_000_001))
    found = os.stat(path)
    equal((found.st_atime_ns, found.st_mtime_ns), (1_000_000_000_123_456_789, -5_000_000_001), "times")
    before = os.stat(path)
    write(path, b"g")
    after = os.stat(path)
    assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns, "a write moves both times"
    os.chmod(path, 0o600)
    assert os.stat(path).st_ctime_ns > after.st_ctime_ns, "chmod moves ctime"
    equal(os.stat(path).st_mtime_ns, after.st_mtime_ns, "mtime after chmod")
    before = os.stat(mnt)
    os.mkdir(f"{mnt}/d")
    after = os.stat(mnt)
    assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns, "the parent's times"
    os.umask(0o027)
    os.mkdir(f"{mnt}/masked")
    equal(stat.S_IMODE(os.stat(f"{mnt}/masked").st_mode), 0o750, "mode after umask")


@pytest.mark.root
def test_owners_are_checked(store):
    mnt = store.up()
    os.chmod(mnt, 0o755)
    write(f"{mnt}/private", b"p")
    os.chmod(f"{mnt}/private", 0o600)
    write(f"{mnt}/theirs", b"t")
    os.chown(f"{mnt}/theirs", 65534, 12345)
    os.chmod(f"{mnt}/theirs", 0o6755)
    found = os.stat(f"{mnt}/theirs")
    equal((found.st_uid, found.st_gid), (65534, 12345), "owner")
    script = f"""
import os, errno
def refused(number, call, *arguments):
    try: call(*arguments)
    except OSError as error: assert error.errno == number, error
    else: raise SystemExit(f"{{call}} {{arguments}} went through")
refused(errno.EACCES, open, "{mnt}/private")
refused(errno.EACCES, os.mkdir, "{mnt}/new")
refused(errno.EACCES, os.unlink, "{mnt}/private")
refused(errno.EPERM, os.chown, "{mnt}/theirs", 0, 0)
refused(errno.EPERM, os.chmod, "{mnt}/private", 0o777)
with open("{mnt}/theirs", "ab") as file: file.write(b"!")
"""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", script]
    if not os.access(sys.executable, os.X_OK) or sys.executable.startswith("/root"):
        user[4] = "/usr/bin/python3"
    done = subprocess.run(user, capture_output=True, text=True)
    equal((done.returncode, done.stderr), (0, ""), "as nobody")
    equal(stat.S_IMODE(os.stat(f"{mnt}/theirs").st_mode) & 0o6000, 0, "a write by others drops set-id")
    os.mkdir(f"{mnt}/group")
    os.chown(f"{mnt}/group", 0, 777)
    os.chmod(f"{mnt}/group", 0o2775)
    write(f"{mnt}/group/f", b"")
    os.mkdir(f"{mnt}/group/d")
    equal(os.stat(f"{mnt}/group/f").st_gid, 777, "group from a set-group-id directory")
    equal(os.stat(f"{mnt}/group/d").st_mode & 0o2000, 0o2000, "set-group-id is passed on to directories")


def test_names_of_any_bytes_up_to_255(store):
    mnt = os.fsencode(store.up())
    names = [b"x" * 255, "ä".encode() * 127, b"\xff\xfe", b"new\nline", b" ", b"..a", b"\\", b"%2f", b"*"]
    for name in names:
        write(mnt + b"/" + name, name)
    equal(sorted(os.listdir(mnt)), sorted(names), "listed names")
    for name in names:
        equal(read(mnt + b"/" + name), name, "content")
    for length in [256, 300]:
        name = mnt + b"/" + b"y" * length
        raises(errno.ENAMETOOLONG, os.mkdir, name)
        raises(errno.ENAMETOOLONG, os.stat, name)
        raises(errno.ENAMETOOLONG, os.rename, mnt + b"/*", name)
        raises(errno.ENAMETOOLONG, os.open, name, os.O_CREAT | os.O_WRONLY)
    os.rename(mnt + b"/*", mnt + b"/" + b"z" * 255)
    equal(read(mnt + b"/" + b"z" * 255), b"*", "renamed to 255 bytes")


def test_removing_directories(store):
    mnt = store.up()
    os.mkdir(f"{mnt}/d")
    write(f"{mnt}/d/f", b"")
    raises(errno.ENOTEMPTY, os.rmdir, f"{mnt}/d")
    raises(errno.ENOTDIR, os.rmdir, f"{mnt}/d/f")
    raises(errno.EISDIR, os.unlink, f"{mnt}/d")
    raises(errno.ENOENT, os.rmdir, f"{mnt}/missing")
    raises(errno.EEXIST, os.mkdir, f"{mnt}/d")
    os.unlink(f"{mnt}/d/f")
    os.setxattr(f"{mnt}/d", "user.kept", b"as it was")
    handle = os.open(f"{mnt}/d", os.O_RDONLY)
    os.rmdir(f"{mnt}/d")
    equal(os.getxattr(handle, "user.kept"), b"as it was", "an attribute of a removed directory that is open")
    raises(errno.ENODATA, os.getxattr, handle, "user.other")
    os.setxattr(handle, "user.other", b"new")
    raises(errno.EEXIST, os.setxattr, handle, "user.other", b"", os.XATTR_CREATE)
    equal(sorted(os.listxattr(handle)), ["user.kept", "user.other"], "its attributes")
    os.removexattr(handle, "user.kept")
    raises(errno.ENODATA, os.removexattr, handle, "user.kept")
    raises(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
    os.close(handle)
    raises(errno.ENOENT, os.stat, f"{mnt}/d")
    equal(os.stat(mnt).st_nlink, 2, "links of the parent")
    os.mkdir(f"{mnt}/d")
    equal(os.listdir(f"{mnt}/d"), [], "made anew")


@pytest.mark.limit(150)
def test_twenty_thousand_names_in_one_directory(store):
    mnt = store.up()
    os.mkdir(f"{mnt}/d")
    wanted = {f"file-{number:05d}" for number in range(20_000)}

    def create(names):
        for name in names:
            os.close(os.open(f"{mnt}/d/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, [sorted(wanted)[part::4] for part in range(4)]))
    complete(f"{mnt}/d", wanted, "a listing")
    # What neither comes nor goes during a listing is listed exactly once.
    listed = []
    with os.scandir(f"{mnt}/d") as entries:
        for number, entry in enumerate(entries):
            listed.append(entry.name)
            if number < 500:
                os.unlink(f"{mnt}/d/file-{number * 40:05d}")
    kept = wanted - {f"file-{number * 40:05d}" for number in range(500)}
    equal(len(listed), len(set(listed)), "unique names during deletes")
    assert kept <= set(listed), f"{len(kept - set(listed))} names were left out during deletes"
    mnt = store.remount()
    complete(f"{mnt}/d", kept, "a listing after a remount")


def complete(directory, wanted, what):
    names = os.listdir(directory)
    equal(len(names), len(wanted), f"names in {what}")
    equal(set(names) ^ wanted, set(), f"difference of {what}")


def test_inode_numbers_are_stable_and_unique(store):
    mnt = store.up()
    for number in range(200):
        os.mkdir(f"{mnt}/d{number}")
        write(f"{mnt}/d{number}/f", b"x")

    def numbers():
        paths = [f"{mnt}/d{number}{file}" for number in range(200) for file in ("", "/f")]
        return {path: os.stat(path).st_ino for path in paths}

    before = numbers()
    equal(len(set(before.values())), 400, "different inode numbers")
    equal({entry.name: entry.inode() for entry in os.scandir(mnt)}["d7"], before[f"{mnt}/d7"], "d_ino")
    os.rename(f"{mnt}/d0", f"{mnt}/moved")
    os.rename(f"{mnt}/moved", f"{mnt}/d0")
    store.remount()
    equal(numbers(), before, "after a remount")
    store.kill_server()
    store.serve()
    equal(numbers(), before, "after the server was killed")


def test_pipes_and_sockets_have_names(store):
    mnt = store.up()
    os.mkfifo(f"{mnt}/pipe", 0o640)
    assert stat.S_ISFIFO(os.stat(f"{mnt}/pipe").st_mode)
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(mnt)
        listener.bind("sock")
        listener.listen()
        assert stat.S_ISSOCK(os.stat("sock").st_mode)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("sock")
    os.chdir("/")
    types = {entry.name: entry.stat(follow_symlinks=False).st_mode & 0o170000 for entry in os.scandir(mnt)}
    equal(types, {"pipe": stat.S_IFIFO, "sock": stat.S_IFSOCK}, "types")
    os.unlink(f"{mnt}/pipe")


def test_statfs_counts_one_copy(store):
    mnt = store.up()
    found = os.statvfs(mnt)
    disk = os.statvfs(store.base)
    ratio = found.f_blocks * found.f_frsize / (disk.f_blocks * disk.f_frsize)
    assert 0.9 < ratio < 1.1, f"two bricks with two copies show {ratio:.2f} of their disk"
    equal(found.f_namemax, 255, "longest name")
    assert 0 < found.f_bavail <= found.f_blocks
