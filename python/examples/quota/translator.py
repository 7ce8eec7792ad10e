"""Limits the bytes of files by their extension: all `.log` files together have at most `limit` bytes, and so have all
`.tmp` files.

An op that would exceed the limit is refused with EDQUOT; nothing of it is done. The size of a file is looked up before
and after each op that may change it. What ops under way may add is reserved, so that several writers at once do
not exceed the limit together.

What it knows: files whose names passed through this client (a look-up, a create, a rename), and with `scan=true` all
files that there are when it starts. Other clients' files count once they are seen here. Renaming a file to another
extension is never refused, but counts."""

import errno
import threading

from hekate import PASS, HekateError, Option, Translator, ops, timer


class Quota(Translator):
    """Limits the bytes of all files with an extension."""

    extensions = Option(list, default=["log", "tmp"], help="extensions that are limited, without the dot")
    limit = Option(int, default=1 << 30, minimum=0, help="bytes that all files of one extension may have together")
    scan = Option(bool, default=False, help="count the files that exist at the start; lists the whole volume")

    def on_start(self):
        self.lock = threading.Lock()
        self.files = self.state.setdefault("files", {})  # inode -> (extension, size)
        self.used = self.state.setdefault("used", {})  # extension -> bytes
        self.reserved = {}  # extension -> bytes of ops under way
        if self.scan and not self.files:
            self._scan()

    def _scan(self):
        left = [ops.ROOT]
        while left:
            dir, after, end = left.pop(), None, False
            while not end:
                page = self.next.list(dir=dir, after=after, limit=1000, attributes=True)
                for entry in page.entries:
                    if entry.kind == ops.NodeKind.Directory:
                        left.append(entry.inode)
                    elif entry.kind == ops.NodeKind.File:
                        self._see(entry.name, entry.attr or self.next.getattr(inode=entry.inode).attr)
                end = page.end or not page.entries
                after = page.entries[-1].name if page.entries else None

    # What is known of files.

    def _extension(self, name):
        stem, dot, extension = name.rpartition(b".")
        extension = extension.decode(errors="replace")
        return extension if dot and stem and extension in self.extensions else None

    def _see(self, name, attr):
        """Notes a file under the name that it has."""
        extension = self._extension(name) if attr.kind == ops.NodeKind.File else None
        with self.lock:
            self._set(attr.id, extension, attr.size)

    def _set(self, inode, extension, size):
        old, before = self.files.pop(inode, (None, 0))
        if old is not None:
            self.used[old] -= before
        if extension is not None:
            self.files[inode] = (extension, size)
            self.used[extension] = self.used.get(extension, 0) + size

    def _attr(self, dir, name):
        """The file that has a name, or None."""
        try:
            return self.next.lookup(dir=dir, name=name).attr
        except FileNotFoundError:
            return None

    @timer(seconds=1)
    def publish(self):
        for extension in self.extensions:
            self.metrics.gauge(f"bytes.{extension}", self.used.get(extension, 0))

    # Names.

    def lookup(self, op):
        return self._named(op)

    def create(self, op):
        return self._named(op)

    def _named(self, op):
        reply = self.next(op)
        self._see(op.name, reply.attr)
        return reply

    def put(self, op):
        return self._replacing(op, op.dir, op.name)

    def unlink(self, op):
        return self._replacing(op, op.dir, op.name)

    def remove(self, op):
        return self._replacing(op, op.dir, op.name)

    def rename(self, op):
        return self._replacing(op, op.to_dir, op.to_name)

    def _replacing(self, op, dir, name):
        """An op after which another file, or none, has this name."""
        try:
            old = self._attr(dir, name)
        except HekateError:
            return PASS  # the op itself will say what is wrong
        reply = self.next(op)
        new = self._attr(dir, name)
        with self.lock:
            if old is not None and old.nlink <= 1 and (new is None or new.id != old.id):
                self._set(old.id, None, 0)
        if new is not None:
            self._see(name, new)
        return reply

    # Sizes.

    def write(self, op):
        return self._sized(op, op.inode, lambda size: op.offset + len(op.data))

    def append(self, op):
        return self._sized(op, op.inode, lambda size: size + len(op.data))

    def truncate(self, op):
        return self._sized(op, op.inode, lambda size: op.changes.size)

    def allocate(self, op):
        return self._sized(op, op.inode, lambda size: 0 if op.mode.name == "Punch" else op.offset + op.length)

    def copy(self, op):
        return self._sized(op, op.to, lambda size: op.to_offset + op.length)

    def _sized(self, op, inode, end_of):
        """An op that may make a file end at `end_of(its size)`."""
        extension, _ = self.files.get(inode, (None, 0))
        if extension is None:
            return PASS
        size = self.next.getattr(inode=inode).attr.size
        growth = max(0, end_of(size) - size)
        with self.lock:
            self._set(inode, extension, size)
            under_way = self.reserved.get(extension, 0)
            if growth and self.used[extension] + under_way + growth > self.limit:
                self.metrics.count("refused")
                raise OSError(errno.EDQUOT, f".{extension} files may have {self.limit} bytes together")
            self.reserved[extension] = under_way + growth
        try:
            return self.next(op)
        finally:
            try:
                size = self.next.getattr(inode=inode).attr.size
            except HekateError:
                pass  # it is gone, or not reachable: what is known stays
            with self.lock:
                self.reserved[extension] -= growth
                self._set(inode, extension, size)
