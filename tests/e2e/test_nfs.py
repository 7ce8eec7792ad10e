"""NFS re-export of a mount."""

import ctypes
import errno
import fcntl
import os

import pytest

from handles import forget
from harness import equal, raises, read, same_bytes, wait_until, write
from nfs import Client, Server, own_network

# enum nfs4_lock_op of libnfs
LOCK, TRY_LOCK, UNLOCK = 0, 1, 2


def up(store):
    """-> a mount that is exported, its server, and a client of it."""
    own_network()
    store.init()
    store.serve()
    mnt = store.mount(options=["-o", "export"])
    return mnt, Server(store, mnt), Client()


@pytest.mark.root
@pytest.mark.limit(150)
def test_files_through_nfs(store):
    mnt, server, client = up(store)
    data = os.urandom(5_000_000)
    client.write("/big", data)
    same_bytes(read(f"{mnt}/big"), data, "what NFS wrote")
    write(f"{mnt}/small", b"small")
    equal(client.read("/small"), b"small", "what the mount wrote")
    client.call("mkdir", b"/d")
    client.call("rename", b"/small", b"/d/renamed")
    client.call("link", b"/d/renamed", b"/d/linked")
    client.call("symlink", b"renamed", b"/d/pointer")
    equal((read(f"{mnt}/d/renamed"), os.stat(f"{mnt}/d/renamed").st_nlink), (b"small", 2), "renamed and linked")
    equal(os.readlink(f"{mnt}/d/pointer"), "renamed", "symlink")
    for number in range(300):
        write(f"{mnt}/d/name{number:03}", b"")
    wanted = sorted(["renamed", "linked", "pointer", *(f"name{number:03}" for number in range(300))])
    equal(client.names("/d"), wanted, "names")
    raises(errno.ENOTEMPTY, client.call, "rmdir", b"/d")
    client.call("truncate", b"/big", 1_000_000)
    equal(os.path.getsize(f"{mnt}/big"), 1_000_000, "truncated")
    client.call("unlink", b"/big")
    raises(errno.ENOENT, os.stat, f"{mnt}/big")
    raises(errno.ENOENT, client.read, "/big")
    server.end()


@pytest.mark.root
@pytest.mark.limit(150)
def test_nfs_handles_outlive_the_nfs_server(store):
    mnt, server, client = up(store)
    os.makedirs(f"{mnt}/a")
    write(f"{mnt}/a/f", b"before")
    file = client.open("/a/f", os.O_RDWR)
    equal(client.pread(file, 10), b"before", "before")
    server.kill()
    forget()
    server.start()
    equal(client.pread(file, 10), b"before", "by a handle that the server and the kernel had forgotten")
    client.pwrite(file, b"behind")
    equal(read(f"{mnt}/a/f"), b"behind", "written by it")
    server.end()


@pytest.mark.root
@pytest.mark.limit(150)
def test_locks_hold_between_nfs_and_other_mounts(store):
    mnt, server, _ = up(store)
    other = store.mount("other")
    write(f"{mnt}/f", b"f")
    client = Client(version=4)
    file = client.open("/f", os.O_RDWR)
    client.call("lockf", file, LOCK, ctypes.c_uint64(10))
    handle = os.open(f"{other}/f", os.O_RDWR)
    raises(errno.EAGAIN, fcntl.lockf, handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 20)
    client.call("lockf", file, UNLOCK, ctypes.c_uint64(10))
    wait_until(lambda: can_lock(handle), "the other mount may lock once NFS has let go")
    # The library has no errno for this status and takes ERANGE, as for all that it does not know.
    raises(errno.ERANGE, client.call, "lockf", file, TRY_LOCK, ctypes.c_uint64(10))
    assert "NFS4ERR_DENIED" in client.error(), client.error()
    os.close(handle)
    client.call("lockf", file, TRY_LOCK, ctypes.c_uint64(10))
    server.end()


def can_lock(handle):
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)
        return True
    except BlockingIOError:
        return False
