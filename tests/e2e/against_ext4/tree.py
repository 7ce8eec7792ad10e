"""Whole trees: names, attributes, contents, extended attributes, targets, and which names are one inode."""

import hashlib
import os
import stat

CHUNK = 1 << 20


def walk(root):
    """-> {path below `root`: attributes}, in order of paths."""
    found = {}
    todo = [""]
    while todo:
        path = todo.pop()
        full = os.path.join(root, path) if path else root
        found[path] = attributes = os.lstat(full)
        if stat.S_ISDIR(attributes.st_mode):
            todo += [os.path.join(path, name) for name in os.listdir(full)]
    return dict(sorted(found.items()))


def differences(hekate, ext4, watch):
    """-> what differs between two trees: path, what, whether it is an attribute."""
    mine, other = walk(hekate), walk(ext4)
    for path in sorted(mine.keys() ^ other.keys()):
        yield path, f"is only on {'Hekate' if path in mine else 'ext4'}", False
    inodes, ext4_inodes = {}, {}
    for path in sorted(mine.keys() & other.keys()):
        one, two = mine[path], other[path]
        for what in watch.compare(one, two) if path else ():
            yield path, what, True
        if inodes.setdefault(one.st_ino, two.st_ino) != two.st_ino or ext4_inodes.setdefault(two.st_ino, one.st_ino) != one.st_ino:
            yield path, "is linked with other names than on ext4", False
        if stat.S_IFMT(one.st_mode) == stat.S_IFMT(two.st_mode):
            yield from ((path, what, False) for what in inside(os.path.join(hekate, path), os.path.join(ext4, path), one))


def inside(mine, other, attributes):
    if attributes_of(mine) != attributes_of(other):
        yield f"extended attributes {attributes_of(mine)}, not {attributes_of(other)}"
    if stat.S_ISLNK(attributes.st_mode) and os.readlink(mine) != os.readlink(other):
        yield f"leads to {os.readlink(mine)!r}, not {os.readlink(other)!r}"
    if stat.S_ISREG(attributes.st_mode):
        at = first_difference(mine, other)
        if at is not None:
            yield f"bytes that differ from {at} on"


def attributes_of(path):
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in sorted(os.listxattr(path, follow_symlinks=False))}


def first_difference(mine, other):
    with open(mine, "rb", buffering=0) as one, open(other, "rb", buffering=0) as two:
        at = 0
        while True:
            a, b = one.read(CHUNK), two.read(CHUNK)
            if a != b:
                return at + next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            if not a:
                return None
            at += len(a)


def digest(root):
    """Of all names and attributes; two mounts of a volume must have the same."""
    total = hashlib.sha256()
    for path, told in walk(root).items():
        total.update(repr((path, told.st_mode, told.st_ino, told.st_nlink, told.st_uid, told.st_gid, told.st_size,
                           told.st_mtime_ns, told.st_ctime_ns)).encode("utf8", "surrogateescape"))
    return total.hexdigest()
