"""Attributes after each op: what both file systems must agree on.

Times differ, so what is compared is whether they moved since the inode was seen last. A local file system whose clock is
coarse may not show that a time moved; then nothing is said about it.
"""

import os
import stat
import time

from against_ext4.gaps import GAPS

# Reads through the page cache, see `KNOWN`.
CACHES_READS = tuple(map(int, os.uname().release.split(".")[:2])) < (6, 6)

FIELDS = ("st_mode", "st_uid", "st_gid", "st_nlink", "st_rdev")
# What a clock that ticks may be behind; ext4's atime always goes by one.
TICK_NS = 20 * 10**6
TIMES = ("st_mtime_ns", "st_ctime_ns", "st_atime_ns")
HOUR_NS = 3600 * 10**9


def places(op):
    """What an op may have changed: paths, and the directories they lie in."""
    paths = []
    for key in ("path", "to"):
        if key in op and len(op[key]) < 4000:
            path = op[key].rstrip("/")
            paths += [path, os.path.dirname(path) or "."]
    return [path for path in dict.fromkeys(paths) if path]


def ignored_times(op):
    """What `gaps` allows: (whether it moves on Hekate, which time), while it does the opposite on ext4."""
    if op["do"] in ("setxattr", "fsetxattr"):
        return ((True, "st_ctime_ns"),)
    if op["do"] == "linkfd" and "refused link" in GAPS:
        return ((True, "st_ctime_ns"),)
    return ()


class Watch:
    """Compares attributes, and remembers those that it saw last, by Hekate's inode number, which is never used again."""

    def __init__(self, hekate, ext4):
        self.hekate, self.ext4 = hekate, ext4
        self.seen, self.differs = {}, set()
        self.begun_ns = time.time_ns()
        self.fine = has_fine_times(ext4)

    def after(self, op):
        """-> what is wrong, in words that do not depend on names."""
        wrong = []
        ignored = ignored_times(op)
        for path in places(op):
            wrong += self.compare(self.hekate.lstat(path, op["mount"]), self.ext4.lstat(path, op["mount"]), ignored)
        for key in ("slot", "from"):
            if op.get(key) in self.hekate.slots:
                wrong += self.compare(self.hekate.fstat(op[key]), self.ext4.fstat(op[key]), ignored)
        return [f"{op['do']}: {what}" for what in dict.fromkeys(wrong)]

    def compare(self, hekate, ext4, ignored=()):
        if hekate is None or ext4 is None:
            return [] if hekate is ext4 else [f"there is {'nothing' if hekate is None else 'something'} on Hekate"]
        kind = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symlink"}.get(stat.S_IFMT(ext4.st_mode), "a special file")
        fields = FIELDS if stat.S_ISDIR(ext4.st_mode) else (*FIELDS, "st_size")
        wrong = [f"{field[3:]} of {kind}: {show(field, hekate)}, not {show(field, ext4)}"
                 for field in fields if self.newly_differs(field, hekate, ext4)]
        wrong += self.times(hekate, ext4, kind, ignored)
        self.seen[hekate.st_ino] = hekate, ext4
        return wrong

    def newly_differs(self, field, hekate, ext4):
        """What differed when it was seen last is no news."""
        place = hekate.st_ino, field
        if getattr(hekate, field) == getattr(ext4, field):
            self.differs.discard(place)
            return False
        known = place in self.differs
        self.differs.add(place)
        return not known

    def times(self, hekate, ext4, kind, ignored):
        wrong = [f"{field[3:8]} of {kind} is not as it was set" for field in ("st_mtime_ns", "st_atime_ns")
                 if abs(getattr(ext4, field) - self.begun_ns) > HOUR_NS and self.newly_differs(field, hekate, ext4)]
        if hekate.st_ino not in self.seen:
            return wrong
        before, ext4_before = self.seen[hekate.st_ino]
        if ext4_before.st_ino != ext4.st_ino:
            return [*wrong, f"{kind} is another inode, but not on Hekate"]
        if hekate.st_ctime_ns < before.st_ctime_ns:
            wrong.append(f"ctime of {kind} went back")
        for field in TIMES:
            moved, ext4_moved = (getattr(new, field) != getattr(old, field) for new, old in ((hekate, before), (ext4, ext4_before)))
            sure = is_old(ext4_before) if field == "st_atime_ns" else self.fine or ext4_moved
            if field == "st_atime_ns" and (moved and "atime" in GAPS or not moved and CACHES_READS):
                continue
            if moved != ext4_moved and sure and (moved, field) not in ignored:
                wrong.append(f"{field[3:8]} of {kind} {'moved' if moved else 'did not move'}")
        return wrong


def is_old(attributes):
    """Whether by relatime's rule a read now moves atime, or not, whichever tick it came in."""
    atime = attributes.st_atime_ns
    others = attributes.st_mtime_ns, attributes.st_ctime_ns, time.time_ns()
    return all(abs(atime - other) > TICK_NS for other in others)


def show(field, attributes):
    value = getattr(attributes, field)
    return oct(value) if field == "st_mode" else value


def has_fine_times(side):
    """Whether changes one after the other, each seen, have different times (Linux 6.13 and newer on ext4)."""
    side.enter(0)
    os.mknod("times", stat.S_IFREG | 0o600)
    try:
        seen = set()
        for turn in range(20):
            os.chmod("times", 0o600 + turn)
            seen.add(os.lstat("times").st_ctime_ns)
        return len(seen) == 20
    finally:
        os.unlink("times")
