"""One of the two file systems: does an op and says what came of it, in words that are the same if they did the same.

An op is a dictionary that JSON can hold: `do` (the method of `Calls`), `as` (a key of `USERS`), `umask`, `mount` (which
mount of the file system), and what the call needs: `path`, `to`, `slot` (a place for a file descriptor), and so on.
"""

import errno
import fcntl
import functools
import mmap
import os
import random
import stat

from against_ext4 import kernel

# uid, gid, supplementary groups
USERS = {0: (0, 0, []), 1: (1001, 1001, [1001, 2000]), 2: (1002, 1002, [2000])}
GROUPS = [0, 1001, 1002, 2000]
READ_MAX = 64 << 20
PAGE = 4096


@functools.lru_cache(maxsize=64)
def pattern(fill, length):
    """The bytes that a write with this `fill` writes."""
    return random.Random(fill).randbytes(length)


class Side:
    """A file system under one or more mounts; `tops` are the directories, one in each mount, in which ops happen."""

    def __init__(self, name, tops):
        self.name = name
        self.tops = [os.open(top, os.O_RDONLY | os.O_DIRECTORY) for top in tops]
        self.slots = {}
        self.calls = Calls(self)

    def run(self, op):
        """-> ["ok", value] or [errno's name, None]."""
        self.enter(op["mount"])
        uid, gid, groups = USERS[op["as"]]
        os.umask(op["umask"])
        if uid:
            os.setgroups(groups)
            os.setegid(gid)
            os.seteuid(uid)
        try:
            return ["ok", getattr(self.calls, op["do"])(op)]
        except OSError as error:
            return [errno.errorcode.get(error.errno, str(error.errno)), None]
        finally:
            if uid:
                os.seteuid(0)
                os.setegid(0)
                os.setgroups([])

    def enter(self, mount):
        os.fchdir(self.tops[mount % len(self.tops)])

    def lstat(self, path, mount):
        """-> attributes, or None if there is nothing (that root can see)."""
        self.enter(mount)
        try:
            return os.lstat(path)
        except OSError:
            return None

    def fstat(self, slot):
        held = self.slots.get(slot)
        return held and os.fstat(held.fd)

    def put(self, slot, held):
        self.drop(slot)
        self.slots[slot] = held

    def drop(self, slot):
        held = self.slots.pop(slot, None)
        if held:
            os.close(held.fd)

    def end(self):
        os.chdir("/")
        for slot in list(self.slots):
            self.drop(slot)
        for top in self.tops:
            os.close(top)


class Held:
    """An open file descriptor; `buffer` if it was opened with O_DIRECT."""

    def __init__(self, fd, buffer):
        self.fd, self.buffer = fd, buffer


class Calls:
    """A method for each `do`. What it returns is compared."""

    def __init__(self, side):
        self.side = side
        self.aligned = mmap.mmap(-1, 1 << 20)

    def held(self, op, key="slot"):
        try:
            return self.side.slots[op[key]]
        except KeyError:
            raise OSError(errno.EBADF, "no such slot") from None

    def fd(self, op, key="slot"):
        return self.held(op, key).fd

    # --- descriptors

    def open(self, op):
        self.side.drop(op["slot"])
        # Without it a fifo would wait for its other end.
        fd = os.open(op["path"], op["flags"] | os.O_NONBLOCK, op["mode"])
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            self.side.put(op["slot"], Held(fd, self.aligned if op["flags"] & os.O_DIRECT else None))
        else:
            # Who is at the other end of a fifo is the business of one mount's kernel.
            os.close(fd)
        return kind

    def close(self, op):
        self.held(op)
        self.side.drop(op["slot"])

    def dup(self, op):
        held = self.held(op)
        self.side.put(op["new"], Held(os.dup(held.fd), held.buffer))

    def read(self, op):
        held = self.held(op)
        if held.buffer is None:
            return os.read(held.fd, op["length"])
        return held.buffer[: os.readv(held.fd, [memoryview(held.buffer)[: op["length"]]])]

    def pread(self, op):
        held = self.held(op)
        if held.buffer is None:
            return os.pread(held.fd, op["length"], op["offset"])
        return held.buffer[: os.preadv(held.fd, [memoryview(held.buffer)[: op["length"]]], op["offset"])]

    def bytes(self, held, op):
        data = pattern(op["fill"], op["length"])
        if held.buffer is None:
            return data
        held.buffer[: len(data)] = data
        return memoryview(held.buffer)[: len(data)]

    def write(self, op):
        held = self.held(op)
        return os.write(held.fd, self.bytes(held, op)), os.lseek(held.fd, 0, os.SEEK_CUR)

    def pwrite(self, op):
        held = self.held(op)
        return os.pwrite(held.fd, self.bytes(held, op), op["offset"])

    def lseek(self, op):
        fd, offset, whence = self.fd(op), op["offset"], op["whence"]
        if whence == os.SEEK_END and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            # Looking for the end of a file that is open to be read may move its time of access (docs/limits.md).
            offset, whence = os.fstat(fd).st_size + offset, os.SEEK_SET
        return os.lseek(fd, offset, whence)

    def holes(self, op):
        """What is no hole covers all that is not zero; the rest is the file system's choice."""
        fd = self.fd(op)
        size = os.fstat(fd).st_size
        if size > READ_MAX or self.held(op).buffer:
            return None
        content = os.pread(fd, size, 0) if size else b""
        place, outside = os.lseek(fd, 0, os.SEEK_CUR), []
        try:
            at = 0
            while at < size:
                try:
                    data = os.lseek(fd, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    data = size
                if any(content[at:data]):
                    outside.append((at, data))
                if data >= size:
                    break
                at = os.lseek(fd, data, os.SEEK_HOLE)
                if not data < at <= size:
                    return f"a hole at {at} after data at {data} of {size}"
            past = [self.beyond(fd, size, whence) for whence in (os.SEEK_DATA, os.SEEK_HOLE)]
        finally:
            os.lseek(fd, place, os.SEEK_SET)
        return size, f"data in holes: {outside}" if outside else "covered", past

    def beyond(self, fd, size, whence):
        try:
            return os.lseek(fd, size, whence)
        except OSError as error:
            return errno.errorcode[error.errno]

    def ftruncate(self, op):
        os.ftruncate(self.fd(op), op["length"])

    def fsync(self, op):
        os.fsync(self.fd(op))

    def fdatasync(self, op):
        os.fdatasync(self.fd(op))

    def fallocate(self, op):
        kernel.fallocate(self.fd(op), op["mode"], op["offset"], op["length"])

    def copy_range(self, op):
        source, target = self.fd(op, "from"), self.fd(op)
        return os.copy_file_range(source, target, op["length"], op["from_offset"], op["offset"])

    def fstat(self, op):
        os.fstat(self.fd(op))

    def fchmod(self, op):
        os.fchmod(self.fd(op), op["mode"])

    def fchown(self, op):
        os.fchown(self.fd(op), op["uid"], op["gid"])

    def futimens(self, op):
        kernel.utimens(self.fd(op), op["atime"], op["mtime"])

    def fsetxattr(self, op):
        os.setxattr(self.fd(op), op["name"], bytes.fromhex(op["value"]), op["flags"])

    def fgetxattr(self, op):
        return os.getxattr(self.fd(op), op["name"])

    def linkfd(self, op):
        kernel.linkat(f"/proc/self/fd/{self.fd(op)}", op["to"], kernel.AT_SYMLINK_FOLLOW)

    def fchdir_list(self, op):
        """Names through a descriptor, also of a directory that is gone."""
        return sorted(os.fsencode(name) for name in os.listdir(self.fd(op)))

    # --- names

    def mkdir(self, op):
        os.mkdir(op["path"], op["mode"])

    def rmdir(self, op):
        os.rmdir(op["path"])

    def mknod(self, op):
        os.mknod(op["path"], op["mode"], op["device"])

    def link(self, op):
        kernel.linkat(op["path"], op["to"], kernel.AT_SYMLINK_FOLLOW if op["follow"] else 0)

    def symlink(self, op):
        os.symlink(op["target"], op["path"])

    def readlink(self, op):
        return os.fsencode(os.readlink(op["path"]))

    def rename(self, op):
        os.rename(op["path"], op["to"])

    def renameat2(self, op):
        kernel.renameat2(op["path"], op["to"], op["flags"])

    def unlink(self, op):
        os.unlink(op["path"])

    # --- attributes

    def chmod(self, op):
        os.chmod(op["path"], op["mode"])

    def chown(self, op):
        os.chown(op["path"], op["uid"], op["gid"], follow_symlinks=op["follow"])

    def utimens(self, op):
        kernel.utimens(op["path"], op["atime"], op["mtime"], op["follow"])

    def truncate(self, op):
        os.truncate(op["path"], op["length"])

    def setxattr(self, op):
        os.setxattr(op["path"], op["name"], bytes.fromhex(op["value"]), op["flags"], follow_symlinks=op["follow"])

    def getxattr(self, op):
        return os.getxattr(op["path"], op["name"], follow_symlinks=op["follow"])

    def removexattr(self, op):
        os.removexattr(op["path"], op["name"], follow_symlinks=op["follow"])

    def listxattr(self, op):
        return sorted(os.listxattr(op["path"], follow_symlinks=op["follow"]))

    def access(self, op):
        return os.access(op["path"], op["mode"], effective_ids=op["effective"])

    def stat(self, op):
        os.stat(op["path"])

    def lstat(self, op):
        os.lstat(op["path"])

    def statvfs(self, op):
        told = os.statvfs(op["path"])
        return told.f_namemax, told.f_bavail <= told.f_bfree <= told.f_blocks, told.f_ffree <= told.f_files

    def listdir(self, op):
        """Names and kinds; from the places that telldir gave the same names come again."""
        listing, seen = kernel.Listing(op["path"]), []
        try:
            while True:
                place = listing.tell()
                entry = listing.next()
                if entry is None:
                    break
                seen.append((place, entry))
            draw = random.Random(op["seed"])
            for place, entry in draw.sample(seen, min(4, len(seen))):
                listing.seek(place)
                again = listing.next()
                if again != entry:
                    return f"telldir before {entry} and seekdir to it: {again}"
        finally:
            listing.close()
        for _, (name, _, number) in seen:
            # As root: the caller may list what it may not enter.
            if name not in (b".", b"..") and op["as"] == 0:
                found = os.lstat(os.path.join(os.fsencode(op["path"]), name)).st_ino
                if found != number:
                    return f"{name} has inode {number} in the list, and {found}"
        names = [entry[0] for _, entry in seen]
        if len(set(names)) != len(names):
            return f"a name twice: {names}"
        return sorted(entry[:2] for _, entry in seen)
