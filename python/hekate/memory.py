"""A volume in memory, for tests of translators: the same ops, replies and errors as a real one, without servers.

`capacity` is the room for bytes, in blocks of 4 KiB. A volume without room refuses what would need more with NoSpace,
and so new names and extended attributes; overwrites, cuts and removals go on.

What differs: a lock that would wait is refused; ids and times are small numbers that count up, so that two volumes that
get the same ops are equal; nothing is ever spread over partitions, so there is no `Elsewhere`."""

import threading

from . import ops
from .content import INLINE_MAX
from .locks import conflict, with_lock
from .objects import Objects
from .paths import Paths
from .tree import SET_GROUP, SET_ID, XATTRS_MAX, Directory, File, check_xattr, copied, drop, error

FILE_BYTES_MAX = 1 << 60
LINKS_MAX = 65000
SESSION = 1


class MemoryVolume(Objects, Paths):
    """`handle` runs an op. The calls by path are those of `Paths`. Several threads may use it."""

    def __init__(self, capacity=1 << 40):
        super().__init__(capacity)
        self.lock = threading.RLock()

    def handle(self, op):
        """Runs an op. Returns its reply, or raises HekateError."""
        with self.lock:
            return getattr(self, "_" + op.method)(op)

    # Names.

    def _lookup(self, op):
        return self.node(self.named(op.dir, op.name))

    def _create(self, op):
        parent = self.directory(op.dir)
        if op.name in parent.names:
            found = self.inodes[parent.names[op.name]]
            if op.exclusive or op.node.name != "File" or found.attr.kind != File:
                raise error("Exists")
            return self.node(found)
        self.check_room()
        made = self.make(parent, op.node, op.mode, op.uid, op.gid, op.umask)
        self.bind(parent, op.name, made)
        return self.node(made, created=True)

    def _create_unnamed(self, op):
        parent = self.directory(op.dir)
        self.check_room()
        made = self.make(parent, ops.NewNode.File, op.mode, op.uid, op.gid, op.umask)
        made.attr.nlink, made.linkable = 0, op.linkable
        return self.node(made, created=True)

    def _link(self, op):
        parent, inode = self.directory(op.dir), self.inode(op.inode)
        if inode.attr.kind == Directory:
            raise error("Denied", what="a directory has one name")
        if op.name in parent.names:
            raise error("Exists")
        if inode.attr.nlink == 0 and not inode.linkable:
            raise error("NotFound")
        if inode.attr.nlink >= LINKS_MAX:
            raise error("TooManyLinks")
        self.check_room()
        inode.attr.nlink += 1
        self.changed(inode)
        self.bind(parent, op.name, inode)
        return self.node(inode)

    def _unlink(self, op):
        inode = self.named(op.dir, op.name)
        if inode.attr.kind == Directory:
            raise error("IsDirectory")
        self.drop_link(self.unbind(self.inodes[op.dir], op.name), op.open_here == inode.attr.id)
        return ops.DoneReply()

    def _rmdir(self, op):
        inode = self.named(op.dir, op.name)
        if inode.attr.kind != Directory:
            raise error("NotDirectory")
        if inode.names:
            raise error("NotEmpty")
        self.drop_link(self.unbind(self.inodes[op.dir], op.name), False)
        return ops.DoneReply()

    def _remove_prefix(self, op):
        if not self.named(op.dir, op.name).attr.implied:
            raise error("NotEmpty")
        return self._rmdir(op)

    def is_below(self, inode, top):
        """True if a directory is `top`, or somewhere below it."""
        while inode != top and inode not in (ops.ROOT, ops.SYSTEM):
            inode = self.inodes[inode].parent
        return inode == top

    def _rename(self, op):
        moved, mode = self.named(op.dir, op.name), op.mode.name
        source, target = self.inodes[op.dir], self.directory(op.to_dir)
        other = self.inodes.get(target.names.get(op.to_name))
        if mode == "NoReplace" and other is not None:
            raise error("Exists")
        if mode == "Exchange" and other is None:
            raise error("NotFound")
        if mode == "Whiteout" and other is not None and not op.mode.replace:
            raise error("Exists")
        if moved.attr.kind == Directory and self.is_below(op.to_dir, moved.attr.id):
            raise error("Loop")
        if mode == "Exchange" and other.attr.kind == Directory and self.is_below(op.dir, other.attr.id):
            raise error("Loop")
        if other is moved:
            return ops.DoneReply()
        if mode != "Exchange" and other is not None:
            check_replace(moved, other)
        self.unbind(source, op.name)
        if other is not None:
            self.unbind(target, op.to_name)
        self.bind(target, op.to_name, moved)
        if mode == "Exchange":
            self.bind(source, op.name, other)
            self.changed(other)
        elif other is not None:
            self.drop_link(other, op.open_here == other.attr.id)
        self.changed(moved)
        if mode == "Whiteout":
            whiteout = self.add(self.new_id(), ops.NodeKind.CharDevice, 0, op.mode.uid, op.mode.gid)
            self.bind(source, op.name, whiteout)
            return self.node(whiteout, created=True)
        return ops.DoneReply()

    def _list(self, op):
        directory = self.directory(op.dir)
        names = sorted(name for name in directory.names if op.after is None or name > op.after)
        if op.touch:
            directory.attr.atime = self.now()
        entries = [self.entry(name, directory.names[name], op.attributes) for name in names[: op.limit]]
        return ops.ListReply(entries, len(names) <= op.limit)

    def _list_keys(self, op):
        directory = self.directory(op.dir)
        keys = {}
        for name, inode in directory.names.items():
            key = name + b"/" if self.inodes[inode].attr.kind == Directory else name
            if key.startswith(op.prefix) and key > op.after:
                keys[key] = (name, inode)
        entries = [self.entry(*keys[key], True) for key in sorted(keys)[: op.limit]]
        escaped = any(name.startswith(b"%~") for name in directory.names)
        return ops.KeysReply(entries, len(keys) <= op.limit, escaped, copied(directory.attr))

    # Inodes.

    def _getattr(self, op):
        return self.node(self.inode(op.inode))

    def _accessed(self, op):
        inode = self.inode(op.inode)
        inode.attr.atime = self.now()
        return self.node(inode)

    def _parent(self, op):
        return self.node(self.inodes[self.directory(op.inode).parent])

    def _setattr(self, op):
        inode, changes = self.inode(op.inode), op.changes
        if changes.size is not None:
            self.file(op.inode)
            if changes == ops.AttrChanges(size=inode.attr.size):
                return self.node(inode)
            self.resize(inode, changes.size)
        for name in ("uid", "gid", "implied"):
            if getattr(changes, name) is not None:
                setattr(inode.attr, name, getattr(changes, name))
        if changes.mode is not None:
            inode.attr.mode = changes.mode & 0o7777
        if changes.drop_set_id:
            drop(inode.attr, SET_ID)
        self.changed(inode, content=changes.size is not None)
        for name in ("atime", "mtime"):
            given = getattr(changes, name)
            if given is not None:
                setattr(inode.attr, name, inode.attr.ctime if given.name == "Now" else given.time)
        return self.node(inode)

    def resize(self, inode, size):
        if size > FILE_BYTES_MAX:
            raise error("TooLarge")
        if size < inode.attr.size:
            inode.attr.layout.version += 1
        inode.content.truncate(inode.attr.size, size)
        inode.attr.size = size

    def _readlink(self, op):
        inode = self.inode(op.inode)
        if inode.attr.kind != ops.NodeKind.Symlink:
            raise error("Invalid", what="not a symbolic link")
        if op.touch:
            inode.attr.atime = self.now()
        return ops.BytesReply(inode.target)

    def _getxattr(self, op):
        xattrs = self.inode(op.inode).xattrs
        if op.name not in xattrs:
            raise error("NoAttribute")
        return ops.BytesReply(xattrs[op.name])

    def _setxattr(self, op):
        check_xattr(op.name, op.value)
        inode = self.inode(op.inode)
        if op.create and op.name in inode.xattrs:
            raise error("Exists")
        if op.replace and op.name not in inode.xattrs:
            raise error("NoAttribute")
        if op.name not in inode.xattrs and len(inode.xattrs) >= XATTRS_MAX:
            raise error("AttributeTooLarge")
        self.check_room()
        inode.xattrs[op.name] = op.value
        inode.attr.has_xattrs = True
        if op.drop_set_group:
            drop(inode.attr, SET_GROUP)
        self.changed(inode)
        return ops.DoneReply()

    def _listxattr(self, op):
        return ops.NamesReply(sorted(self.inode(op.inode).xattrs))

    def _removexattr(self, op):
        inode = self.inode(op.inode)
        if op.name not in inode.xattrs:
            raise error("NoAttribute")
        del inode.xattrs[op.name]
        inode.attr.has_xattrs = bool(inode.xattrs)
        self.changed(inode)
        return ops.DoneReply()

    # Bytes.

    def _read(self, op):
        inode = self.file(op.inode)
        if op.touch:
            inode.attr.atime = self.now()
        length = min(op.length, max(0, inode.attr.size - op.offset))
        return ops.FileDataReply(inode.content.read(op.offset, length), copied(inode.attr))

    def _write(self, op):
        inode, end = self.file(op.inode), op.offset + len(op.data)
        if end > FILE_BYTES_MAX:
            raise error("TooLarge")
        self.check_room_for_bytes(inode, op.offset, end)
        inode.content.write(op.offset, op.data)
        if op.data:
            inode.attr.size = max(inode.attr.size, end)
        self.written(inode, op.drop_set_id)
        return ops.DoneReply()

    def _append(self, op):
        return self._write(ops.Write(op.inode, self.file(op.inode).attr.size, op.data, op.drop_set_id))

    def _fsync(self, op):
        self.inode(op.inode)
        return ops.DoneReply()

    def _allocate(self, op):
        inode, end = self.file(op.inode), op.offset + op.length
        if op.length == 0:
            raise error("Invalid", what="a range without bytes")
        if end > FILE_BYTES_MAX:
            raise error("TooLarge")
        mode, content = op.mode.name, inode.content
        stays_inline = content.is_inline and (end <= INLINE_MAX or mode == "Zero" and op.mode.keep_size)
        if mode == "Punch" or mode == "Zero" and stays_inline:
            content.clear(op.offset, end)
        elif not stays_inline:
            self.check_room_for_bytes(inode, op.offset, end)
            content.reserve(op.offset, end) if mode == "Reserve" else content.zero(op.offset, end)
        if mode != "Punch" and not op.mode.keep_size:
            inode.attr.size = max(inode.attr.size, end)
        self.written(inode, op.drop_set_id)
        return ops.DoneReply()

    def _seek(self, op):
        inode = self.file(op.inode)
        found = inode.content.seek(op.offset, inode.attr.size, op.hole) if op.offset < inode.attr.size else None
        if found is None:
            raise error("NoData")
        return ops.FoundReply(found)

    def _copy(self, op):
        source, target = self.file(op.from_), self.file(op.to)
        length = min(op.length, max(0, source.attr.size - op.from_offset))
        if length:
            data = source.content.read(op.from_offset, length)
            self._write(ops.Write(target.attr.id, op.to_offset, data, op.drop_set_id))
        if op.touch:
            source.attr.atime = self.now()
        return ops.CopiedReply(length)

    def _statfs(self, op):
        free = max(0, self.capacity - self.used())
        return ops.SpaceReply(ops.VolumeSpace(self.capacity, free, free, 1 << 32, (1 << 32) - len(self.inodes)))

    # Locks.

    def _get_lock(self, op):
        held = conflict(self.inode(op.inode).locks, op.lock)
        return ops.LockReply(None if held is None else ops.HeldLock(SESSION, copied(held)))

    def _set_lock(self, op):
        inode, lock = self.inode(op.inode), op.lock
        if lock.start > lock.end:
            raise error("Invalid", what="a lock that ends before it starts")
        if lock.kind != ops.LockKind.Unlock and conflict(inode.locks, lock) is not None:
            raise error("WouldBlock")
        inode.locks = with_lock(inode.locks, lock)
        return ops.DoneReply()

    def _cancel_lock(self, op):
        self.inode(op.inode)
        return ops.CancelledReply(False)

    def _release_locks(self, op):
        inode = self.inode(op.inode)
        inode.locks = [held for held in inode.locks if held.owner != op.owner]
        return ops.DoneReply()


def check_replace(moved, other):
    """Refuses a rename over what cannot be replaced."""
    if moved.attr.kind == Directory and other.attr.kind != Directory:
        raise error("NotDirectory")
    if moved.attr.kind != Directory and other.attr.kind == Directory:
        raise error("IsDirectory")
    if other.names:
        raise error("NotEmpty")
