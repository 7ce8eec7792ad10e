"""-o export: handles that outlive what the kernel remembers."""

import errno
import os

import pytest

from handles import forget, handle_of, open_handle, read_handle
from harness import Skip, equal, raises, wait_until, write

EXPORT = ["-o", "export"]


def up(store):
    store.init()
    store.serve()
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        raise Skip("needs a writable /proc/sys/vm/drop_caches")
    return store.mount(options=EXPORT)


@pytest.mark.root
def test_files_are_found_by_handles(store):
    mnt = up(store)
    os.makedirs(f"{mnt}/a/b")
    handles = {}
    for number in range(100):
        name = f"{mnt}/a/b/f{number}"
        write(name, b"%d" % number * number)
        handles[number] = handle_of(name)
    forget()
    for number in range(0, 100, 2):
        os.rename(f"{mnt}/a/b/f{number}", f"{mnt}/a/moved{number}")
    forget()
    for number, handle in handles.items():
        equal(read_handle(mnt, handle), b"%d" % number * number, f"file {number}")
    handle = open_handle(mnt, handles[7], os.O_WRONLY)
    os.pwrite(handle, b"written", 0)
    os.close(handle)
    forget()
    equal(read_handle(mnt, handles[7]), b"written", "written by handle")


@pytest.mark.root
def test_directories_are_found_by_handles(store):
    mnt = up(store)
    os.makedirs(f"{mnt}/a/b/c")
    write(f"{mnt}/a/b/c/f", b"deep")
    root, deep = handle_of(mnt), handle_of(f"{mnt}/a/b/c")
    forget()
    found = open_handle(mnt, deep)
    equal(os.listdir(found), ["f"], "names in it")
    equal(os.readlink(f"/proc/self/fd/{found}"), f"{mnt}/a/b/c", "the way to it")
    os.close(found)
    other = store.mount("other")
    os.mkdir(f"{other}/else")
    os.rename(f"{other}/a/b/c", f"{other}/else/d")
    forget()
    found = open_handle(mnt, deep)
    equal(os.readlink(f"/proc/self/fd/{found}"), f"{mnt}/else/d", "the way after another mount moved it")
    os.close(found)
    found = open_handle(mnt, root)
    equal(sorted(os.listdir(found)), ["a", "else"], "names in the root")
    os.close(found)


@pytest.mark.root
def test_handles_of_what_is_gone_are_stale(store):
    mnt = up(store)
    other = store.mount("other")
    for name in ("here", "there", "open"):
        write(f"{mnt}/{name}", name.encode())
    handles = {name: handle_of(f"{mnt}/{name}") for name in ("here", "there", "open")}
    still_open = os.open(f"{mnt}/open", os.O_RDONLY)
    os.unlink(f"{mnt}/here")
    os.unlink(f"{other}/there")
    os.unlink(f"{mnt}/open")
    # A file that was just closed may count as open a moment longer.
    wait_until(lambda: store.status()["orphans"] == 1, "only one is left that somebody has open")
    forget()
    raises(errno.ESTALE, open_handle, mnt, handles["here"])
    raises(errno.ESTALE, open_handle, mnt, handles["there"])
    equal(os.pread(still_open, 10, 0), b"open", "one that is open")
    os.close(still_open)
    wait_until(lambda: store.status()["orphans"] == 0, "what nobody has open any more is collected")
    forget()
    raises(errno.ESTALE, open_handle, mnt, handles["open"])


@pytest.mark.root
def test_handles_end_with_the_mount(store):
    mnt = up(store)
    write(f"{mnt}/f", b"f")
    handle = handle_of(f"{mnt}/f")
    store.umount()
    store.mount(options=EXPORT)
    raises(errno.ESTALE, open_handle, mnt, handle)
    os.stat(f"{mnt}/f")
    equal(read_handle(mnt, handle), b"f", "once it was looked up again")
    store.umount()
    store.mount()
    handle = handle_of(f"{mnt}/f")
    forget()
    raises(errno.ESTALE, open_handle, mnt, handle)
