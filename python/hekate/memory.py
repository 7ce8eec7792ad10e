"""A volume in memory, for tests of translators: the same ops, replies and errors as a real one, without servers.

`capacity` is the room for bytes, in blocks of 4 KiB. A volume without room refuses what would need more with NoSpace,
and so new names and extended attributes; overwrites, cuts and removals go on.

What differs: a lock that would wait is refused; ids and times are small numbers that count up, so that two volumes that
get the same ops are equal; nothing is ever spread over partitions, so there is no `Elsewhere`."""

import threading

from . import ops
from .content import BLOCK_BYTES, INLINE_MAX, Content
from .locks import conflict, with_lock
from .paths import Paths
from .values import Value

FILE_BYTES_MAX = 1 << 60
XATTR_BYTES_MAX = 64 << 10
XATTR_NAME_BYTES_MAX = 255
XATTRS_MAX = 128
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
CAPABILITY = b"security.capability"
LINKS_MAX = 65000
SESSION = 1
SET_GROUP, SET_ID = 0o2000, 0o6000
File, Directory = ops.NodeKind.File, ops.NodeKind.Directory
error = ops.error


class Inode:
    """One inode with everything that it has."""

    def __init__(self, attr):
        self.attr, self.content, self.target = attr, Content(), b""
        self.xattrs, self.names, self.parent, self.locks, self.linkable = {}, {}, attr.id, [], False


class MemoryVolume(Paths):
    """`handle` runs an op. The calls by path are those of `Paths`. Several threads may use it."""

    def __init__(self, capacity=1 << 40):
        self.lock = threading.RLock()
        self.capacity, self.clock, self.count = capacity, 0, 2
        self.inodes = {}
        for inode in (ops.ROOT, ops.SYSTEM):
            self.add(inode, Directory, 0o755, 0, 0)

    def handle(self, op):
        """Runs an op. Returns its reply, or raises HekateError."""
        with self.lock:
            return getattr(self, "_" + op.method)(op)

    # What ops are made of.

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

    def entry(self, name, inode, attributes):
        attr = self.inodes[inode].attr
        return ops.Entry(name, inode, attr.kind, copied(attr) if attributes else None)

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

    # Objects.

    def object_name(self, op):
        """The name that an op on an object is about: the alternate one if a directory has the name, or nothing has."""
        names = self.directory(op.dir).names
        found = self.inodes.get(names.get(op.name))
        if op.alternate is None or (found is not None and found.attr.kind != Directory):
            return op.name
        return op.alternate if found is not None or op.alternate in names else op.name

    def check_condition(self, condition, found):
        wrong = {
            "Always": False,
            "Absent": found is not None,
            "Exists": found is None,
            "Matches": found is None or etag_of(found.attr) != getattr(condition, "etag", b""),
        }[condition.name]
        if wrong:
            raise error("ConditionFailed")

    def _put(self, op):
        parent, name = self.directory(op.dir), self.object_name(op)
        old = self.inodes.get(parent.names.get(name))
        if old is not None and old.attr.kind == Directory:
            raise error("IsDirectory")
        self.check_condition(op.condition, old)
        if old is None or old.attr.nlink > 1:
            self.check_room(-(-len(getattr(op.source, "content", b"")) // BLOCK_BYTES))
        if op.source.name == "Bytes":
            if len(op.source.content) > INLINE_MAX:
                raise error("Invalid", what="the content is too long to be put")
            check_born_with(op.source.attributes)
            made = self.make(parent, ops.NewNode.File, op.source.mode, op.source.uid, op.source.gid, 0)
            made.content.write(0, op.source.content)
            made.attr.size = len(op.source.content)
            self.set_attributes(made, op.source.attributes)
        else:
            made = self.file(op.source.inode)
            if made is old:
                return self.node(made)
            made.attr.nlink += 1
            self.changed(made)
        made.attr.etag = op.etag
        if old is not None:
            self.drop_link(self.unbind(parent, name), op.keep)
        self.bind(parent, name, made)
        return self.node(made, created=op.source.name == "Bytes")

    def _remove(self, op):
        name = self.object_name(op)
        found = self.named(op.dir, name)
        if found.attr.kind == Directory:
            raise error("IsDirectory")
        self.check_condition(op.condition, found)
        self.drop_link(self.unbind(self.inodes[op.dir], name), op.keep)
        return ops.DoneReply()

    def _make_prefix(self, op):
        parent = self.directory(op.dir)
        found = self.inodes.get(parent.names.get(op.name))
        if found is not None:
            if found.attr.kind == Directory:
                return self.node(found)
            if op.alternate in parent.names:
                raise error("Exists")
        self.check_room()
        if found is not None:
            self.bind(parent, op.alternate, self.unbind(parent, op.name))
        made = self.make(parent, ops.NewNode.Directory, op.mode, op.uid, op.gid, 0)
        made.attr.implied = True
        self.bind(parent, op.name, made)
        return self.node(made, created=True)

    def _join(self, op):
        parent = self.directory(op.dir)
        parts = [self.file(self.named(op.dir, name).attr.id) for name, _ in op.parts]
        if len({name for name, _ in op.parts}) < len(parts):
            raise error("Invalid", what="a part is named twice")
        for part, (_, etag) in zip(parts, op.parts):
            if etag and etag_of(part.attr) != etag:
                raise error("ConditionFailed")
        if op.to in parent.names:
            raise error("Exists")
        check_born_with(op.attributes)
        made = self.make(parent, ops.NewNode.File, op.mode, op.uid, op.gid, 0)
        for (name, _), part in zip(op.parts, parts):
            made.content.write(made.attr.size, part.content.read(0, part.attr.size))
            made.attr.size += part.attr.size
            self.drop_link(self.unbind(parent, name), False)
        self.set_attributes(made, op.attributes)
        made.attr.etag = op.etag
        self.bind(parent, op.to, made)
        return self.node(made, created=True)

    def set_attributes(self, inode, attributes):
        inode.xattrs.update(dict(attributes))
        inode.attr.has_xattrs = bool(inode.xattrs)

    def fetched(self, inode, op, alternate):
        small = op.content and inode.attr.kind == File and inode.attr.size <= INLINE_MAX
        content = inode.content.read(0, inode.attr.size) if small else None
        attribute = inode.xattrs.get(op.attribute)
        return ops.FetchedReply(ops.Fetched(copied(inode.attr), attribute, content, alternate))

    def _fetch(self, op):
        name = self.object_name(op)
        return self.fetched(self.named(op.dir, name), op, name != op.name)

    def _fetch_inode(self, op):
        return self.fetched(self.inode(op.inode), op, False)

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


def check_xattr(name, value):
    if not 1 <= len(name) <= XATTR_NAME_BYTES_MAX:
        raise error("Invalid", what="the name of an extended attribute has 1 to 255 bytes")
    if len(value) > XATTR_BYTES_MAX:
        raise error("AttributeTooLarge")


def check_born_with(attributes):
    """Refuses attributes that no new file can have."""
    if len(attributes) > XATTRS_MAX - 2:
        raise error("AttributeTooLarge")
    for name, value in attributes:
        check_xattr(name, value)
        if name in ACLS or name == CAPABILITY:
            raise error("Invalid", what="an ACL or a capability is set with setxattr")


def check_replace(moved, other):
    """Refuses a rename over what cannot be replaced."""
    if moved.attr.kind == Directory and other.attr.kind != Directory:
        raise error("NotDirectory")
    if moved.attr.kind != Directory and other.attr.kind == Directory:
        raise error("IsDirectory")
    if other.names:
        raise error("NotEmpty")


def drop(attr, bits):
    """Clears set-id bits as a write does: set-group-id without group execution means something else and stays."""
    if bits & SET_GROUP and not attr.mode & 0o010:
        bits &= ~SET_GROUP
    attr.mode &= ~bits


def etag_of(attr):
    return attr.etag or f"h-{attr.id:032x}-{attr.change:x}".encode()


def copied(value):
    """A copy that later changes of the original do not reach."""
    fields = {name: getattr(value, name) for name in value._fields}
    return type(value)(**{name: copied(v) if isinstance(v, Value) and v._fields else v for name, v in fields.items()})
