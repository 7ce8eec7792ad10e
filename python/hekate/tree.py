"""The inodes and names of a volume in memory, and the checks and changes that ops are made of."""

from . import ops
from .content import BLOCK_BYTES, Content
from .values import Value

XATTR_BYTES_MAX = 64 << 10
XATTR_NAME_BYTES_MAX = 255
XATTRS_MAX = 128
SET_GROUP, SET_ID = 0o2000, 0o6000
File, Directory = ops.NodeKind.File, ops.NodeKind.Directory
error = ops.error


class Inode:
    """One inode with everything that it has."""

    def __init__(self, attr):
        self.attr, self.content, self.target = attr, Content(), b""
        self.xattrs, self.names, self.parent, self.locks, self.linkable = {}, {}, attr.id, [], False


class Tree:
    """Inodes by their ids. Its caller holds the lock."""

    def __init__(self, capacity):
        self.capacity, self.clock, self.count = capacity, 0, 2
        self.inodes = {}
        for inode in (ops.ROOT, ops.SYSTEM):
            self.add(inode, Directory, 0o755, 0, 0)

    def now(self):
        self.clock += 1
        return self.clock

    def add(self, inode, kind, mode, uid, gid, device=0):
        now = self.now()
        attr = ops.Attr(
            id=inode, kind=kind, mode=mode, uid=uid, gid=gid, nlink=2 if kind == Directory else 1, size=0,
            device=device, atime=now, mtime=now, ctime=now, btime=now, change=1, layout=ops.Layout(1, []), spread=1,
        )  # fmt: skip
        self.inodes[inode] = Inode(attr)
        return self.inodes[inode]

    def used(self):
        return sum(inode.content.blocks_used() for inode in self.inodes.values()) * BLOCK_BYTES

    def check_room(self, blocks=0):
        """Refuses what needs so many blocks more. 0: what needs a little room, as a name does."""
        if self.used() + max(1, blocks) * BLOCK_BYTES > self.capacity:
            raise error("NoSpace", what="the volume in memory is full")

    def check_room_for_bytes(self, inode, offset, end):
        needed = inode.content.blocks_needed(offset, end)
        if needed:
            self.check_room(needed)

    def new_id(self):
        self.count += 1
        return self.count

    def inode(self, inode):
        if inode not in self.inodes:
            raise error("Stale")
        return self.inodes[inode]

    def directory(self, inode):
        found = self.inode(inode)
        if found.attr.kind != Directory:
            raise error("NotDirectory")
        return found

    def file(self, inode):
        found = self.inode(inode)
        if found.attr.kind == Directory:
            raise error("IsDirectory")
        if found.attr.kind != File:
            raise error("Invalid", what="not a regular file")
        return found

    def named(self, dir, name):
        names = self.directory(dir).names
        if name not in names:
            raise error("NotFound")
        return self.inodes[names[name]]

    def node(self, inode, created=False):
        return ops.NodeReply(copied(inode.attr), created)

    def changed(self, inode, content=False):
        """Notes a change of attributes, or also of content."""
        inode.attr.ctime = self.now()
        inode.attr.change += 1
        if content:
            inode.attr.mtime = inode.attr.ctime
            if inode.attr.kind == File:
                inode.attr.etag = b""

    def written(self, inode, drop_set_id):
        self.changed(inode, content=True)
        if drop_set_id:
            drop(inode.attr, SET_ID)

    def bind(self, parent, name, inode):
        """Gives an inode a name. Link counts of directories follow."""
        parent.names[name] = inode.attr.id
        if inode.attr.kind == Directory:
            inode.parent = parent.attr.id
            parent.attr.nlink += 1
        self.changed(parent, content=True)

    def unbind(self, parent, name):
        inode = self.inodes[parent.names.pop(name)]
        if inode.attr.kind == Directory:
            parent.attr.nlink -= 1
        self.changed(parent, content=True)
        return inode

    def drop_link(self, inode, keep):
        """An inode has lost a name. `keep`: it is open, so it stays although it may have none."""
        if inode.attr.kind == Directory:
            inode.attr.nlink = 0
            del self.inodes[inode.attr.id]
            return
        inode.attr.nlink -= 1
        self.changed(inode)
        if inode.attr.nlink == 0 and not keep:
            del self.inodes[inode.attr.id]

    def make(self, parent, node, mode, uid, gid, umask):
        kind = ops.NodeKind[node.name]
        if parent.attr.mode & SET_GROUP:
            gid, mode = parent.attr.gid, mode | (SET_GROUP if kind == Directory else 0)
        made = self.add(self.new_id(), kind, mode & 0o7777 & ~umask, uid, gid, getattr(node, "device", 0))
        made.target = getattr(node, "target", b"")
        made.attr.size = len(made.target)
        return made

    def entry(self, name, inode, attributes):
        attr = self.inodes[inode].attr
        return ops.Entry(name, inode, attr.kind, copied(attr) if attributes else None)


def check_xattr(name, value):
    if not 1 <= len(name) <= XATTR_NAME_BYTES_MAX:
        raise error("Invalid", what="the name of an extended attribute has 1 to 255 bytes")
    if len(value) > XATTR_BYTES_MAX:
        raise error("AttributeTooLarge")


def drop(attr, bits):
    """Clears set-id bits as a write does: set-group-id without group execution means something else and stays."""
    if bits & SET_GROUP and not attr.mode & 0o010:
        bits &= ~SET_GROUP
    attr.mode &= ~bits


def copied(value):
    """A copy that later changes of the original do not reach."""
    fields = {name: getattr(value, name) for name in value._fields}
    return type(value)(**{name: copied(v) if isinstance(v, Value) and v._fields else v for name, v in fields.items()})
