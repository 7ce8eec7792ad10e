"""Does the same ops on both file systems, compares, and makes the ops that lead to a difference few.

A difference in an answer ends a run at once, for nothing after it would be the same. A difference in attributes is
noted, each kind once, and the run goes on.
"""

import fcntl
import json
import os
import shutil
import stat
import time

from against_ext4 import tree
from against_ext4.generate import Generator
from against_ext4.side import Side
from against_ext4.watch import Watch

# So deep that no symlink leads out of the file system.
BELOW = "deep/er/than/symlinks"
TREES_EVERY = 2000
WRITING = ("open", "write", "pwrite", "truncate", "ftruncate", "fallocate", "copy_range", "chown", "lchown", "fchown")
LAST_SHOWN = 30
SHORTEN_S = float(os.environ.get("HEKATE_SHORTEN_S", "20"))
SHORTENED_MAX = 3
NOTED_MAX = 20


class Different(Exception):
    """What differs (a key that another run can meet again), and in which words."""

    def __init__(self, key, words):
        super().__init__(words)
        self.key, self.words = key, words


class Pair:
    """Both file systems, in a new directory of each."""

    turn = 0

    def __init__(self, hekates, ext4):
        Pair.turn += 1
        self.roots = [f"{mount}/run{Pair.turn}" for mount in (hekates[0], ext4)]
        self.all_roots = [f"{mount}/run{Pair.turn}" for mount in hekates]
        for root in self.roots:
            os.makedirs(f"{root}/{BELOW}")
            os.chmod(f"{root}/{BELOW}", 0o777)
        self.hekate = Side("Hekate", [f"{root}/{BELOW}" for root in self.all_roots])
        self.ext4 = Side("ext4", [f"{self.roots[1]}/{BELOW}"])
        self.watch = Watch(self.hekate, self.ext4)

    def do(self, op):
        """-> (what came of it, attributes that differ)."""
        if len(self.all_roots) > 1:
            for slot in {op[key] for key in ("slot", "from") if key in op}:
                self.close_removed(slot)
        if op["do"] == "copy_range" and len(self.all_roots) > 1:
            # The kernel cuts a copy at the size that it knows.
            self.hekate.fstat(op["from"])
        mine, wanted = self.hekate.run(op), self.ext4.run(op)
        if mine[0] == "ESTALE" and op["do"] in ("rename", "renameat2") and len(self.all_roots) > 1:
            self.hekate.lstat(op["path"], op["mount"])
            self.hekate.lstat(op["to"], op["mount"])
            mine = self.hekate.run(op)
        if op["do"] == "write" and len(self.all_roots) > 1 and mine[0] == wanted[0] == "ok" and mine[1][0] == wanted[1][0]:
            mine = self.mend_offset(op, mine, wanted)
        if mine != wanted:
            told = [f"{side[0]} {brief(side[1])}" for side in (mine, wanted)]
            raise Different(f"{op['do']}: {mine[0]}, not {wanted[0]}", f"{op['do']}: Hekate: {told[0]}; ext4: {told[1]}")
        if len(self.all_roots) > 1:
            self.mend_set_id(op)
        if op["do"] == "copy_range":
            self.mend_access_time(op)
        return wanted, self.watch.after(op)

    def mend_access_time(self, op):
        """After a copy within a file it may be another one, see `KNOWN`."""
        source, target = (self.hekate.fstat(op[key]) for key in ("from", "slot"))
        if source and target and source.st_ino == target.st_ino:
            now = time.time_ns()
            for side in (self.hekate, self.ext4):
                fd = side.slots[op["from"]].fd
                os.utime(fd, ns=(now, os.fstat(fd).st_mtime_ns))

    def close_removed(self, slot):
        """A directory that another mount removed, see `KNOWN`, is closed on both."""
        wanted = self.ext4.fstat(slot)
        if wanted and stat.S_ISDIR(wanted.st_mode) and not wanted.st_nlink:
            links = self.hekate.fstat(slot).st_nlink
            if links:
                raise Different("links of a removed directory", f"a removed directory has {links} links")
            self.hekate.drop(slot)
            self.ext4.drop(slot)

    def mend_offset(self, op, mine, wanted):
        """After an append the offset may be another one, see `KNOWN`: then it is set."""
        fd = self.hekate.slots[op["slot"]].fd
        if mine != wanted and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:
            os.lseek(fd, wanted[1][1], os.SEEK_SET)
            return wanted
        return mine

    def mend_set_id(self, op):
        """Where only the bit of `KNOWN` differs, it goes on both."""
        if op["do"] not in WRITING:
            return
        mine, wanted = self.attributes(self.hekate, op), self.attributes(self.ext4, op)
        if mine and wanted and mine.st_mode != wanted.st_mode and self.may_stay(mine.st_mode, wanted.st_mode):
            for side in (self.hekate, self.ext4):
                side.enter(op["mount"])
                os.chmod(side.slots[op["slot"]].fd if "slot" in op else op["path"], stat.S_IMODE(wanted.st_mode))

    def may_stay(self, mine, wanted):
        return mine ^ wanted == stat.S_ISGID and not mine & stat.S_IXGRP

    def attributes(self, side, op):
        if "slot" in op:
            return side.fstat(op["slot"])
        side.enter(op["mount"])
        try:
            return os.stat(op["path"])
        except OSError:
            return None

    def compare_trees(self):
        """-> attributes that differ."""
        noted = []
        for path, what, is_attribute in tree.differences(*self.roots, self.watch):
            if not is_attribute:
                raise Different(f"trees: {what.split(' ')[0]}", f"trees: {path!r}: {what}")
            noted.append(f"trees: {what}")
        digests = {tree.digest(root) for root in self.all_roots}
        if len(digests) > 1:
            raise Different("mounts", "the mounts show different trees")
        return noted

    def paths(self):
        top = f"{self.roots[1]}/{BELOW}"
        return [path for path in tree.walk(top) if path]

    def close(self):
        self.hekate.end()
        self.ext4.end()

    def end(self):
        self.close()
        for root in self.roots:
            shutil.rmtree(os.fsencode(root))


def brief(value):
    text = repr(value)
    return text if len(text) < 200 else f"{text[:150]}... ({len(value) if hasattr(value, '__len__') else ''})"


class Run:
    def __init__(self, hekates, ext4, seed, count, keep):
        """`keep`: a file for the ops, should they find something."""
        self.hekates, self.ext4, self.seed, self.count, self.keep = hekates, ext4, seed, count, keep
        self.ops, self.noted, self.succeeded = [], {}, {}

    def run(self):
        """Raises AssertionError with everything that somebody who looks into it needs."""
        pair = Pair(self.hekates, self.ext4)
        found = None
        try:
            self.draw_and_do(pair)
        except Different as different:
            found = different
        except BaseException:
            pair.close()
            raise
        pair.end()
        if found or self.noted:
            raise AssertionError(self.report(found))
        return self.succeeded

    def draw_and_do(self, pair):
        generator = Generator(self.seed, len(self.hekates))
        for number in range(self.count):
            op = generator.next()
            self.ops.append(op)
            outcome, wrong = pair.do(op)
            self.note(number, wrong)
            generator.told(op, outcome)
            counts = self.succeeded.setdefault(op["do"], [0, 0])
            counts[outcome[0] != "ok"] += 1
            if number % TREES_EVERY == TREES_EVERY - 1:
                self.note(number, pair.compare_trees())
                generator.refresh(pair.paths())
        self.note(self.count - 1, pair.compare_trees())

    def note(self, number, wrong):
        for what in wrong:
            if len(self.noted) < NOTED_MAX:
                self.noted.setdefault(":".join(what.split(":")[:2]), (number, what))

    def report(self, found):
        words = [f"HEKATE_SEED={self.seed} HEKATE_OPS={len(self.ops)}, {len(self.hekates)} mounts"]
        with open(self.keep, "w") as file:
            file.writelines(json.dumps(op) + "\n" for op in self.ops)
        all_found = [(len(self.ops) - 1, found.key, found.words)] if found else []
        all_found += [(number, key, what) for key, (number, what) in self.noted.items()]
        for number, key, what in all_found:
            words.append(f"  op {number}: {what}")
        for number, key, _ in all_found[:SHORTENED_MAX]:
            few = self.shorten(key, number)
            words.append(f"  {key!r} is shown again by these {len(few)} ops:" if few else f"  the last ops before {key!r}:")
            words += [f"    {show(op)}" for op in (few or self.ops[: number + 1])[-LAST_SHOWN:]]
        words.append(f"  tests/e2e/against_ext4/replay.py {self.keep} EXT4_DIRECTORY MOUNT... does all of them again")
        return "\n".join(words)

    def shorten(self, key, last):
        """-> few ops that lead to the same difference; None if they do not show it again."""
        ops = self.ops[: last + 1]
        end = time.monotonic() + SHORTEN_S
        if not self.shows(ops, key):
            return None
        size = max(len(ops) // 2, 1)
        while size:
            at = 0
            while at < len(ops) and time.monotonic() < end:
                fewer = ops[:at] + ops[at + size:]
                if fewer and self.shows(fewer, key):
                    ops = fewer
                else:
                    at += size
            size = size // 2 if time.monotonic() < end else 0
        return ops

    def shows(self, ops, key):
        pair = Pair(self.hekates, self.ext4)
        try:
            for op in ops:
                if any(what.startswith(key) for what in pair.do(op)[1]):
                    return True
            if key.startswith("trees") or key == "mounts":
                return any(what.startswith(key) for what in pair.compare_trees())
            return False
        except Different as different:
            return different.key == key
        finally:
            pair.end()


def show(op):
    rest = {key: value for key, value in op.items() if key not in ("do", "as", "umask", "mount")}
    if "flags" in rest and op["do"] == "open":
        rest["flags"] = flags(op["flags"])
    for key in ("mode",):
        if key in rest and op["do"] != "fallocate":
            rest[key] = oct(rest[key])
    words = ", ".join(f"{key}={value if key in ('flags', 'mode') else brief(value)}" for key, value in rest.items())
    return f"{op['do']}({words}) as {op['as']} umask {op['umask']:03o} mount {op['mount']}"


def flags(value):
    names = ["O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_NOFOLLOW", "O_SYNC", "O_NOATIME", "O_DIRECT"]
    names += ["O_TMPFILE"] if value & os.O_TMPFILE == os.O_TMPFILE else ["O_DIRECTORY"]
    told = [["O_RDONLY", "O_WRONLY", "O_RDWR", "?"][value & os.O_ACCMODE]]
    return "|".join(told + [name for name in names if value & getattr(os, name) == getattr(os, name)])
