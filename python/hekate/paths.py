"""Calls by path, made of ops: for tests, above a volume in memory or above a translator."""

from . import ops

LIST_LIMIT = 1000


def as_bytes(path):
    return path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")


class Paths:
    """What has `handle(op)` gets calls by path. Paths are str or bytes, from the root, with or without a first slash.
    Nothing is cached: each call looks each name up."""

    uid = gid = 0

    def handle(self, op):
        raise NotImplementedError

    def __call__(self, op):
        """Runs an op. Returns its reply, or raises HekateError."""
        return self.handle(op)

    def lookup(self, path):
        """Attributes of what has the path. Symbolic links are not followed."""
        attr = None
        for name in as_bytes(path).split(b"/"):
            if name:
                attr = self.handle(ops.Lookup(attr.id if attr else ops.ROOT, name)).attr
        return attr or self.handle(ops.GetAttr(ops.ROOT)).attr

    def place(self, path):
        """The inode of a path's directory, and the last name."""
        parent, _, name = as_bytes(path).rstrip(b"/").rpartition(b"/")
        return self.lookup(parent).id, name

    def stat(self, path):
        """Attributes as of now."""
        return self.handle(ops.GetAttr(self.lookup(path).id)).attr

    def exists(self, path):
        try:
            self.lookup(path)
        except FileNotFoundError:
            return False
        return True

    def make_node(self, path, node, mode=0o644, exclusive=True):
        """Makes a file, directory, link or device. Returns its attributes."""
        dir, name = self.place(path)
        op = ops.Create(dir, name, node, mode, self.uid, self.gid, 0o022, exclusive, seed=1)
        return self.handle(op).attr

    def create(self, path, mode=0o644):
        return self.make_node(path, ops.NewNode.File, mode, exclusive=False)

    def mkdir(self, path, mode=0o755):
        return self.make_node(path, ops.NewNode.Directory, mode)

    def symlink(self, target, path):
        return self.make_node(path, ops.NewNode.Symlink(as_bytes(target)), 0o777)

    def readlink(self, path):
        return self.handle(ops.ReadLink(self.lookup(path).id)).bytes

    def write(self, path, data, offset=0, durable=False):
        """Writes to a file, and makes it if there is none."""
        self.handle(ops.Write(self.create(path).id, offset, as_bytes(data), durable=durable))

    def append(self, path, data):
        self.handle(ops.Append(self.create(path).id, as_bytes(data)))

    def read(self, path, offset=0, length=None):
        """Bytes of a file, to its end."""
        attr = self.stat(path)
        length = max(0, attr.size - offset) if length is None else length
        found = b""
        while len(found) < length:
            more = self.handle(ops.Read(attr.id, offset + len(found), min(length - len(found), 4 << 20))).bytes
            if not more:
                break
            found += more
        return found

    def truncate(self, path, size):
        return self.handle(ops.SetAttr(self.lookup(path).id, ops.AttrChanges(size=size))).attr

    def chmod(self, path, mode):
        return self.handle(ops.SetAttr(self.lookup(path).id, ops.AttrChanges(mode=mode))).attr

    def allocate(self, path, offset, length, mode=None):
        mode = mode or ops.AllocateMode.Reserve(keep_size=False)
        self.handle(ops.Allocate(self.lookup(path).id, offset, length, mode))

    def fsync(self, path):
        self.handle(ops.Fsync(self.lookup(path).id))

    def unlink(self, path):
        self.handle(ops.Unlink(*self.place(path)))

    def rmdir(self, path):
        self.handle(ops.Rmdir(*self.place(path)))

    def link(self, old, new):
        dir, name = self.place(new)
        return self.handle(ops.Link(dir, name, self.lookup(old).id)).attr

    def rename(self, old, new, mode=ops.RenameMode.Replace):
        self.handle(ops.Rename(*self.place(old), *self.place(new), mode))

    def listdir(self, path=""):
        """Names of a directory, in byte order."""
        inode, names, after = self.lookup(path).id, [], None
        while True:
            page = self.handle(ops.List(inode, after, LIST_LIMIT))
            names += [entry.name for entry in page.entries]
            if page.end or not page.entries:
                return names
            after = names[-1]

    def setxattr(self, path, name, value):
        self.handle(ops.SetXattr(self.lookup(path).id, as_bytes(name), as_bytes(value)))

    def getxattr(self, path, name):
        return self.handle(ops.GetXattr(self.lookup(path).id, as_bytes(name))).bytes

    def statfs(self):
        return self.handle(ops.StatFs()).space
