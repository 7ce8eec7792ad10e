"""Draws ops: of few names, so that they meet, with odd ones now and then.

What is drawn depends on the seed and on what came of earlier ops, nothing else, so a seed means the same ops again.
"""

import os
import random
import stat

from against_ext4 import kernel
from against_ext4.gaps import GAPS
from against_ext4.side import GROUPS, PAGE, USERS

SHARD = 4 << 20
SLOTS = 12
# With more names than this, more are removed than made.
NAMES_MANY = 150
FILE_MAX = 3 * SHARD

NAMES = ["a", "b", "c", "d", "e", "f", "g"]
ODD_NAMES = ["l" * 255, "ü" * 127, "\udcff\udcfe", " ", "-rf", "new\nline", "...", "\x01", "%2f", "a" * 254 + "\udc80"]
WRONG_NAMES = ["m" * 256, "ü" * 128, ".", "..", ""]
MODES = [0o644, 0o755, 0o000, 0o777, 0o600, 0o1777, 0o2775, 0o4755, 0o6777, 0o711, 0o440, 0o2644, 0o666, 0o070, 0o007]
XATTRS = ["user.a", "user.b", "user." + "x" * 50, "user.\udcff", "trusted.a", "trusted.b", "security.a", "security.b"]
ODD_XATTRS = ["user." + "x" * 250, "user." + "x" * 251, "system.nothing"]
WRONG_XATTRS = ["user.", "trusted.", "trusted", "nothing.a", "", "usera"]
TIMES = [0, 1, -1, -2_000_000_000, 1_000_000_000, 1_700_000_000,
         2_147_483_647, 2_147_483_648, 4_294_967_296, 9_000_000_000]
# cap_net_raw, permitted, as the kernel writes version 2; the last four bytes of a version 3 would name a user
CAPABILITY = "0100000200200000000000000000000000000000"

# How often each op is drawn.
WEIGHTS = {
    "open": 14, "close": 4, "dup": 1, "read": 3, "pread": 5, "write": 8, "pwrite": 7, "lseek": 3, "holes": 1, "ftruncate": 3,
    "fsync": 0.3, "fdatasync": 0.2, "fallocate": 3, "copy_range": 2, "fstat": 2, "fchmod": 1, "fchown": 1, "futimens": 1,
    "fsetxattr": 1, "fgetxattr": 0.5, "linkfd": 1.5, "fchdir_list": 0.5, "mkdir": 6, "rmdir": 3, "mknod": 2, "link": 5,
    "symlink": 3, "readlink": 1.5, "rename": 8, "renameat2": 5, "unlink": 6, "chmod": 5, "chown": 4, "utimens": 4,
    "truncate": 3, "setxattr": 4, "getxattr": 2, "removexattr": 1.5, "listxattr": 1.5, "access": 3, "stat": 2, "lstat": 2,
    "statvfs": 0.2, "listdir": 2,
}
REMOVING = ("unlink", "rmdir")
ON_SLOTS = ("close", "dup", "read", "pread", "write", "pwrite", "lseek", "holes", "ftruncate", "fsync", "fdatasync", "fallocate",
            "copy_range", "fstat", "fchmod", "fchown", "futimens", "fsetxattr", "fgetxattr", "linkfd", "fchdir_list")


class Open:
    """What the generator remembers of an open file."""

    def __init__(self, op, kind):
        self.mount, self.direct, self.kind = op["mount"], op["flags"] & os.O_DIRECT, kind


class Generator:
    def __init__(self, seed, mounts):
        self.draw = random.Random(seed)
        self.mounts = mounts
        self.paths = set()
        self.slots = {}
        self.kinds, self.weights = list(WEIGHTS), list(WEIGHTS.values())
        self.known = []

    def next(self):
        kind = self.draw.choices(self.kinds, self.weights)[0]
        if len(self.known) > NAMES_MANY and self.draw.random() < 0.3:
            kind = self.draw.choice(REMOVING)
        if kind in ON_SLOTS and not self.slots:
            kind = "open"
        op = {"do": kind, "as": self.draw.choices(list(USERS), [6, 3, 1])[0], "umask": self.draw.choice([0, 0o022, 0o077, 0o007]),
              "mount": self.draw.randrange(self.mounts)}
        if kind in ON_SLOTS:
            op["slot"] = self.draw.choice(sorted(self.slots))
            op["mount"] = self.slots[op["slot"]].mount
            if kind in ("read", "write") and self.slots[op["slot"]].direct:
                # After a read to the end of file the place is at no block's border.
                kind = op["do"] = "p" + kind
            if kind == "lseek" and self.slots[op["slot"]].kind == stat.S_IFDIR:
                # Places in a directory are each file system's own.
                kind = op["do"] = "fstat"
        op.update(getattr(self, kind, self.nothing)())
        if kind in ("read", "pread", "write", "pwrite"):
            self.align(op, self.slots[op["slot"]])
        if kind == "copy_range" and (self.slots[op["slot"]].direct or self.slots[op["from"]].direct):
            op["do"] = "fstat"
        return op

    def told(self, op, outcome):
        """What came of it."""
        kind = op["do"]
        if kind == "open":
            self.slots.pop(op["slot"], None)
        if outcome[0] != "ok":
            return
        if kind == "open" and outcome[1] in (stat.S_IFREG, stat.S_IFDIR):
            self.slots[op["slot"]] = Open(op, outcome[1])
        elif kind == "dup":
            self.slots[op["new"]] = self.slots[op["slot"]]
        elif kind == "close":
            del self.slots[op["slot"]]
        made = {"link": "to", "linkfd": "to", "rename": "to", "renameat2": "to"}.get(kind, "path")
        if kind in ("open", "mkdir", "mknod", "symlink", "link", "linkfd", "rename", "renameat2"):
            self.note(op[made])

    def note(self, path):
        path = os.path.normpath(path)
        if path not in self.paths and not path.startswith((".", "/")):
            self.paths.add(path)
            self.known.append(path)

    def refresh(self, paths):
        """All there is, in order."""
        self.known, self.paths = list(paths), set(paths)

    # --- what ops are made of

    def chance(self, part):
        return self.draw.random() < part

    def name(self):
        if self.chance(0.9):
            return self.draw.choice(NAMES)
        return self.draw.choice(ODD_NAMES if self.chance(0.8) else WRONG_NAMES)

    def existing(self):
        return self.draw.choice(self.known) if self.known else self.name()

    def fresh(self):
        """Mostly a name that may be missing, in a directory that may be there."""
        if self.chance(0.35) or not self.known:
            return self.name()
        return f"{self.existing()}/{self.name()}"

    def path(self, existing=0.75):
        path = self.existing() if self.chance(existing) else self.fresh()
        odd = self.draw.random()
        if odd < 0.02:
            return path + "/"
        if odd < 0.03:
            return path + self.draw.choice(["/.", "/..", "//", "/a/b"])
        if odd < 0.04:
            return "./" + path.replace("/", "//")
        if odd < 0.045:
            return f"{path}/../{self.draw.choice(NAMES)}"
        if odd < 0.047:
            return "a/" * 2047 + "a"
        return path

    def size(self):
        """Lengths and offsets: small ones, ones around borders, now and then large ones."""
        kind = self.draw.random()
        if kind < 0.5:
            return self.draw.randrange(0, 5000)
        if kind < 0.7:
            return self.draw.choice([0, PAGE, 2 * PAGE, 16384, 65536]) + self.draw.choice([0, 0, 1, -1]) + 1
        if kind < 0.9:
            return self.draw.randrange(0, 200_000)
        if kind < 0.97:
            return self.draw.randrange(0, FILE_MAX)
        return SHARD * self.draw.choice([1, 2]) + self.draw.choice([-PAGE, -1, 0, 1, PAGE])

    def length(self):
        return min(self.size(), self.draw.choice([100, PAGE, 70_000, 1 << 20]))

    def align(self, op, held):
        """O_DIRECT of a disk wants whole blocks; FUSE does not care."""
        if held.direct:
            for key in ("length", "offset"):
                if key in op:
                    op[key] -= op[key] % PAGE
        if op["do"] in ("read", "pread"):
            op["length"] = min(op["length"], 1 << 20)

    def mode(self):
        return self.draw.choice(MODES) if self.chance(0.9) else self.draw.randrange(0o10000)

    def owner(self):
        ids = [-1, *(user[0] for user in USERS.values()), *GROUPS]
        uid, gid = self.draw.choice(ids), self.draw.choice(ids)
        # `KNOWN` says why not nothing at all.
        return {"uid": 0 if uid == gid == -1 else uid, "gid": gid}

    def time(self):
        kind = self.draw.random()
        if kind < 0.3:
            return [0, self.draw.choice([kernel.UTIME_NOW, kernel.UTIME_OMIT])]
        nanoseconds = self.draw.choice([0, 1, 999_999_999, 500, 123_456_789]) if kind < 0.98 else 1_000_000_000
        return [self.draw.choice(TIMES), nanoseconds]

    def times(self):
        return {"atime": self.time(), "mtime": self.time()}

    def follow(self):
        return {"follow": self.chance(0.5)}

    def attribute(self):
        if self.chance(0.1):
            return {"name": self.draw.choice(["system.posix_acl_access", "system.posix_acl_default"])}
        odd = ODD_XATTRS + WRONG_XATTRS
        return {"name": self.draw.choice(XATTRS if self.chance(0.9) else odd)}

    def value(self, named):
        """An attribute with what it is to be."""
        if self.chance(0.06) and "capabilities" not in GAPS:
            return {"name": "security.capability", "value": CAPABILITY, "flags": 0}
        length = self.draw.choice([0, 1, 10, 60, 65537]) if self.chance(0.3) else self.draw.randrange(60)
        value = acl(self.draw) if named["name"].startswith("system.posix") else self.draw.randbytes(length).hex()
        return {**named, "value": value, "flags": self.draw.choice([0, 0, 0, os.XATTR_CREATE, os.XATTR_REPLACE])}

    # --- a method for each op that needs more than its slot

    def nothing(self):
        return {"path": self.path()}

    close = fsync = fdatasync = fstat = holes = fchdir_list = lambda self: {}

    def open(self):
        flags = self.draw.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        odds = [(os.O_CREAT, 0.5), (os.O_EXCL, 0.12), (os.O_TRUNC, 0.12), (os.O_APPEND, 0.15), (os.O_NOFOLLOW, 0.08),
                (os.O_DIRECTORY, 0.06), (os.O_SYNC, 0.02), (os.O_NOATIME, 0.03), (os.O_DIRECT, 0.08)]
        for flag, part in odds:
            flags |= flag if self.chance(part) else 0
        if flags & os.O_EXCL and not flags & os.O_CREAT:
            flags &= ~os.O_EXCL  # means nothing
        if flags & os.O_APPEND and flags & os.O_DIRECT:
            flags &= ~os.O_DIRECT  # the end of file need not lie at a block's border
        path = self.path(0.6)
        if self.chance(0.05):
            flags = os.O_TMPFILE | self.draw.choice([os.O_RDWR, os.O_WRONLY]) | (os.O_EXCL if self.chance(0.2) else 0)
            path = os.path.dirname(path) or "."
        return {"path": path, "flags": flags, "mode": self.mode(), "slot": self.draw.randrange(SLOTS)}

    def dup(self):
        return {"new": self.draw.randrange(SLOTS, SLOTS + 3)}

    def read(self):
        return {"length": self.length()}

    def pread(self):
        return {"length": self.length(), "offset": self.size()}

    def write(self):
        return {"length": self.length(), "fill": self.draw.randrange(1 << 30)}

    def pwrite(self):
        return {**self.write(), "offset": self.size()}

    def lseek(self):
        whence = self.draw.choice([os.SEEK_SET, os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
        offset = self.size() - (2 * PAGE if self.chance(0.3) else 0)
        return {"offset": offset, "whence": whence}

    def ftruncate(self):
        return {"length": self.size() if self.chance(0.97) else -1}

    def fallocate(self):
        mode = self.draw.choice([0, kernel.KEEP_SIZE, kernel.PUNCH_HOLE | kernel.KEEP_SIZE, kernel.ZERO_RANGE,
                                 kernel.ZERO_RANGE | kernel.KEEP_SIZE, kernel.PUNCH_HOLE])
        return {"mode": mode, "offset": self.size(), "length": self.size()}

    def copy_range(self):
        mine = self.draw.choice(sorted(self.slots))
        return {"from": mine, "from_offset": self.size(), "offset": self.size(), "length": self.length()}

    def fchmod(self):
        return {"mode": self.mode()}

    def fchown(self):
        return self.owner()

    def futimens(self):
        return self.times()

    def fsetxattr(self):
        return self.value(self.attribute())

    def fgetxattr(self):
        return self.attribute()

    def linkfd(self):
        return {"to": self.path(0.3)}

    def mkdir(self):
        return {"path": self.path(0.2), "mode": self.mode() | (0o700 if self.chance(0.8) else 0)}

    def mknod(self):
        kind = self.draw.choice([stat.S_IFIFO, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFREG, 0])
        # Majors that no driver has.
        device = os.makedev(self.draw.choice([240, 4095]), self.draw.choice([0, 7, 255, 1048575]))
        return {"path": self.path(0.2), "mode": kind | self.mode(), "device": device if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0}

    def link(self):
        return {"path": self.path(0.9), "to": self.path(0.3), "follow": self.chance(0.3)}

    def symlink(self):
        target = self.draw.choice([*NAMES, "a/b", "../" + self.draw.choice(NAMES), "b/../c", "missing", "x" * 4095, "a/" * 40 + "b"])
        if self.chance(0.02):
            target = self.draw.choice(["", "x" * 4096])
        return {"target": target, "path": self.path(0.2)}

    def rename(self):
        if self.chance(0.03):
            path = self.existing()
            return {"path": path, "to": f"{path}/{self.name()}"}
        return {"path": self.path(0.9), "to": self.path(0.5)}

    def renameat2(self):
        flags = self.draw.choices([kernel.NOREPLACE, kernel.EXCHANGE, 0, 3], [5, 5, 1, 0.2])[0]
        return {**self.rename(), "flags": flags}

    def chmod(self):
        return {"path": self.path(0.9), "mode": self.mode()}

    def chown(self):
        return {"path": self.path(0.9), **self.owner(), **self.follow()}

    def utimens(self):
        return {"path": self.path(0.9), **self.times(), **self.follow()}

    def truncate(self):
        return {"path": self.path(0.9), "length": self.size() if self.chance(0.97) else -1}

    def setxattr(self):
        return {"path": self.path(0.9), **self.value(self.attribute()), **self.follow()}

    def getxattr(self):
        return {"path": self.path(0.9), **self.attribute(), **self.follow()}

    removexattr = getxattr

    def listxattr(self):
        return {"path": self.path(0.9), **self.follow()}

    def access(self):
        return {"path": self.path(0.9), "mode": self.draw.randrange(8), "effective": self.chance(0.7)}

    def listdir(self):
        path = "." if self.chance(0.3) else self.path(0.9)
        return {"path": path, "seed": self.draw.randrange(1 << 30)}


def acl(draw):
    """An ACL as the kernel takes it: version 2, then (tag, permissions, id) in order; mostly a right one."""
    def entry(tag, who=0xFFFFFFFF):
        return tag.to_bytes(2, "little") + draw.randrange(8).to_bytes(2, "little") + who.to_bytes(4, "little")

    entries = [entry(1), *[entry(2, who) for who in (1001, 1002) if draw.random() < 0.5], entry(4)]
    entries += [entry(8, who) for who in (1001, 2000) if draw.random() < 0.5]
    if len(entries) > 2 or draw.random() < 0.3:
        entries.append(entry(16))
    entries.append(entry(32))
    if draw.random() < 0.05:
        entries.pop(draw.randrange(len(entries)))
    return ((2).to_bytes(4, "little") + b"".join(entries)).hex()
