"""System calls that Python's `os` does not offer, or not with all of their arguments."""

import ctypes
import os

AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_SYMLINK_FOLLOW = -100, 0x100, 0x400
NOREPLACE, EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("next", ctypes.c_int64), ("length", ctypes.c_uint16), ("kind", ctypes.c_uint8),
                ("name", ctypes.c_char * 256)]


def checked(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(path, to, flags):
    checked(libc.renameat2(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(to), flags))


def linkat(path, to, flags):
    checked(libc.linkat(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(to), flags))


def fallocate(fd, mode, offset, length):
    checked(libc.fallocate(fd, mode, offset, length))


def utimens(path_or_fd, atime, mtime, follow=True):
    """Times are [seconds, nanoseconds]; nanoseconds may be UTIME_NOW or UTIME_OMIT."""
    times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
    if isinstance(path_or_fd, int):
        checked(libc.futimens(path_or_fd, times))
    else:
        checked(libc.utimensat(AT_FDCWD, os.fsencode(path_or_fd), times, 0 if follow else AT_SYMLINK_NOFOLLOW))


class Listing:
    """A directory stream, for telldir and seekdir."""

    def __init__(self, path):
        self.stream = libc.opendir(os.fsencode(path))
        if not self.stream:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def next(self):
        """-> (name, type, inode number), or None at the end."""
        ctypes.set_errno(0)
        entry = libc.readdir(self.stream)
        if not entry:
            checked(-1 if ctypes.get_errno() else 0)
            return None
        # Only the fixed part and the name up to its end are there, so the name is read by its address.
        head = Dirent.from_address(entry)
        return ctypes.string_at(entry + Dirent.name.offset), head.kind, head.ino

    def tell(self):
        return libc.telldir(self.stream)

    def seek(self, place):
        libc.seekdir(self.stream, place)

    def close(self):
        libc.closedir(self.stream)
