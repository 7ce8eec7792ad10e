"""Ops on objects, as the S3 door sends them, of a volume in memory."""

from . import ops
from .content import BLOCK_BYTES, INLINE_MAX
from .tree import XATTRS_MAX, Directory, File, Tree, check_xattr, copied, error

ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
CAPABILITY = b"security.capability"


class Objects(Tree):
    """A directory's names as keys, and its files as objects."""

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

    def set_attributes(self, inode, attributes):
        inode.xattrs.update(dict(attributes))
        inode.attr.has_xattrs = bool(inode.xattrs)


def check_born_with(attributes):
    """Refuses attributes that no new file can have."""
    if len(attributes) > XATTRS_MAX - 2:
        raise error("AttributeTooLarge")
    for name, value in attributes:
        check_xattr(name, value)
        if name in ACLS or name == CAPABILITY:
            raise error("Invalid", what="an ACL or a capability is set with setxattr")


def etag_of(attr):
    return attr.etag or f"h-{attr.id:032x}-{attr.change:x}".encode()
