"""Files by handle, as NFS servers find them: name_to_handle_at(2), open_by_handle_at(2)."""

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
HANDLE_BYTES_MAX = 128


class FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("handle", ctypes.c_ubyte * HANDLE_BYTES_MAX)]


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def handle_of(path):
    handle, mount = FileHandle(bytes=HANDLE_BYTES_MAX), ctypes.c_int()
    checked(LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0))
    return handle


def open_handle(mnt, handle, flags=os.O_RDONLY):
    mount = os.open(mnt, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return checked(LIBC.open_by_handle_at(mount, ctypes.byref(handle), flags))
    finally:
        os.close(mount)


def read_handle(mnt, handle):
    with open(open_handle(mnt, handle), "rb") as file:
        return file.read()


def forget():
    """The kernel forgets all names and inodes that nobody uses, of every file system."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")
