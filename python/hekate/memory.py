"""A volume in memory, for tests of translators: the same ops, replies and errors as a real one, without servers.

What differs: a lock that would wait is refused; ids and times are small numbers that count up, so that two volumes that
get the same ops are equal; nothing is ever spread over partitions, so there is no `Elsewhere`."""

import threading

from . import ops
from .paths import Paths
from .values import Value

BLOCK_BYTES = 4096
FILE_BYTES_MAX = 1 << 60
INLINE_MAX = 16 << 10
XATTR_BYTES_MAX = 64 << 10
LINKS_MAX = 65000
LOCK_END = (1 << 64) - 1
SESSION = 1
SET_GROUP, SET_ID = 0o2000, 0o6000
File, Directory = ops.NodeKind.File, ops.NodeKind.Directory
error = ops.error


class Content:
    """Bytes with holes: blocks that were never written are not there."""

    def __init__(self):
        self.blocks = {}

    def read(self, offset, length):
        found = bytearray(length)
        for index in range(offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)):
            block = self.blocks.get(index)
            if block is not None:
                start = index * BLOCK_BYTES
                low, high = max(offset, start), min(offset + length, start + BLOCK_BYTES)
                found[low - offset : high - offset] = block[low - start : high - start]
        return bytes(found)

    def write(self, offset, data):
        for index in range(offset // BLOCK_BYTES, -(-(offset + len(data)) // BLOCK_BYTES)):
            block = self.blocks.setdefault(index, bytearray(BLOCK_BYTES))
            start = index * BLOCK_BYTES
            low, high = max(offset, start), min(offset + len(data), start + BLOCK_BYTES)
            block[low - start : high - start] = data[low - offset : high - offset]

    def clear(self, offset, end):
        """Whole blocks become holes, parts of blocks zeros."""
        for index in [i for i in self.blocks if i * BLOCK_BYTES < end and (i + 1) * BLOCK_BYTES > offset]:
            start = index * BLOCK_BYTES
            low, high = max(offset, start), min(end, start + BLOCK_BYTES)
            if high - low == BLOCK_BYTES:
                del self.blocks[index]
            else:
                self.blocks[index][low - start : high - start] = bytes(high - low)

    def reserve(self, offset, end):
        for index in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            self.blocks.setdefault(index, bytearray(BLOCK_BYTES))

    def seek(self, offset, size, hole):
        """The first position from `offset` that is in a hole, or is not."""
        at = offset
        while at < size:
            if (at // BLOCK_BYTES not in self.blocks) == hole:
                return at
            at = (at // BLOCK_BYTES + 1) * BLOCK_BYTES
        return size if hole else None


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
        made = self.make(parent, op.node, op.mode, op.uid, op.gid, op.umask)
        self.bind(parent, op.name, made)
        return self.node(made, created=True)

    def _create_unnamed(self, op):
        made = self.make(self.directory(op.dir), ops.NewNode.File, op.mode, op.uid, op.gid, op.umask)
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
        if op.source.name == "Bytes":
            if len(op.source.content) > INLINE_MAX:
                raise error("Invalid", what="the content is too long to be put")
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
            inode.content.clear(size, -(-inode.attr.size // BLOCK_BYTES) * BLOCK_BYTES)
            inode.attr.layout.version += 1
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
        inode = self.inode(op.inode)
        if op.create and op.name in inode.xattrs:
            raise error("Exists")
        if op.replace and op.name not in inode.xattrs:
            raise error("NoAttribute")
        if len(op.value) > XATTR_BYTES_MAX:
            raise error("AttributeTooLarge")
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
        if len(inode.content.blocks) * BLOCK_BYTES + len(op.data) > self.capacity:
            raise error("NoSpace", what="the volume in memory is full")
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
        if op.mode.name != "Reserve":
            inode.content.clear(op.offset, end)
        if op.mode.name != "Punch":
            if op.length > self.capacity:
                raise error("NoSpace", what="the volume in memory is full")
            inode.content.reserve(op.offset, end)
            if not op.mode.keep_size:
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
        used = sum(len(inode.content.blocks) for inode in self.inodes.values()) * BLOCK_BYTES
        free = max(0, self.capacity - used)
        return ops.SpaceReply(ops.VolumeSpace(self.capacity, free, free, 1 << 32, (1 << 32) - len(self.inodes)))

    # Locks.

    def conflict(self, inode, lock):
        for held in inode.locks:
            overlaps = held.start <= lock.end and lock.start <= held.end
            exclusive = ops.LockKind.Write in (held.kind, lock.kind)
            if held.owner != lock.owner and held.style == lock.style and overlaps and exclusive:
                return held
        return None

    def _get_lock(self, op):
        held = self.conflict(self.inode(op.inode), op.lock)
        return ops.LockReply(None if held is None else ops.HeldLock(SESSION, copied(held)))

    def _set_lock(self, op):
        inode, lock = self.inode(op.inode), op.lock
        if lock.start > lock.end:
            raise error("Invalid", what="a lock that ends before it starts")
        if lock.kind != ops.LockKind.Unlock and self.conflict(inode, lock) is not None:
            raise error("WouldBlock")
        left = []
        for held in inode.locks:
            if (held.owner, held.style) != (lock.owner, lock.style) or held.end < lock.start or lock.end < held.start:
                left.append(held)
                continue
            if held.start < lock.start:
                left.append(held.changed(end=lock.start - 1))
            if held.end > lock.end:
                left.append(held.changed(start=lock.end + 1))
        inode.locks = left + ([copied(lock)] if lock.kind != ops.LockKind.Unlock else [])
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
