"""Limits the bytes of files by their extension: all `.log` files together have at most `limit` bytes, and so have all
`.tmp` files.

An op that would exceed the limit is refused with EDQUOT; nothing of it is done. What ops under way may add counts from
their begin, so that several of them do not exceed the limit together. It counts until their new size is known: close to
the limit an op can be refused that would fit a moment later.

What it knows: files whose names passed through this client (a look-up, a create, a rename), and with `scan=true` all
files that there are when it starts. Other clients' changes count once they are seen here. Giving a file a name with
another extension (a rename, a link) is never refused, but counts; a put and a join can be refused. A file with several
names counts for the first of them that was seen, until another one is seen as its only name. A file that is removed
while it is open counts until it is closed.

The rules that make it right under threads: a file's attributes replace what is known only if they are of as many
changes (`attr.change`). A name that was looked up counts only if no name was moved or removed between the question and
the answer; otherwise it is looked up again."""

import errno
import itertools
import threading

from hekate import HekateError, Option, Translator, ops, timer


class File:
    """A file with a limited extension: its size after `change` changes, the directory and name for which it counts,
    and the ends of ops under way by their number. An append under way adds its bytes to the size."""

    def __init__(self, extension, size, change, place):
        self.extension, self.size, self.change, self.place = extension, size, change, place
        self.ends, self.appends = {}, {}

    def bytes(self):
        """The most bytes that it may have once the ops under way have ended."""
        return max([self.size, *self.ends.values()]) + sum(self.appends.values())


class Quota(Translator):
    """Limits the bytes of all files with an extension."""

    extensions = Option(list, default=["log", "tmp"], help="extensions that are limited, without the dot")
    limit = Option(int, default=1 << 30, minimum=0, help="bytes that all files of one extension may have together")
    scan = Option(bool, default=False, help="count the files that exist at the start; lists the whole volume")

    def on_start(self):
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.moves = 0  # names that were moved or removed
        self.unnamed = set()  # inodes of files that were removed while they were open
        self.reserved = {}  # extension -> bytes of files that ops under way make
        self.files = {}  # inode -> File
        self.places = {}  # (directory, name) -> inode of the file that counts for it
        self.used = {}  # extension -> bytes
        for inode, known in self.state.pop("known", {}).items():
            if known[0] in self.extensions:
                self._change(inode, File(*known))
        if self.scan and not self.files:
            self._scan()

    def on_stop(self):
        known = lambda file: (file.extension, file.size, file.change, file.place)  # noqa: E731
        self.state["known"] = {inode: known(file) for inode, file in self.files.items()}

    def on_reconfigure(self, old):
        with self.lock:
            for inode in [inode for inode, file in self.files.items() if file.extension not in self.extensions]:
                self._change(inode, None)
        if self.scan and not set(self.extensions) <= set(old["extensions"]):
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
                    elif entry.kind == ops.NodeKind.File and self._extension(entry.name) is not None:
                        self._look(dir, entry.name)
                end = page.end or not page.entries
                after = page.entries[-1].name if page.entries else None

    # What is known of files.

    def _extension(self, name):
        stem, dot, extension = name.rpartition(b".")
        extension = extension.decode(errors="replace")
        return extension if dot and stem and extension in self.extensions else None

    def _change(self, inode, file, change=lambda file: None):
        """Replaces what is known of a file, or changes it. The sums follow."""
        old = self.files.pop(inode, None)
        if old is not None:
            self.used[old.extension] -= old.bytes()
            if self.places.get(old.place) == inode:
                del self.places[old.place]
        if file is not None:
            change(file)
            self.files[inode], self.places[file.place] = file, inode
            self.used[file.extension] = self.used.get(file.extension, 0) + file.bytes()

    def _resize(self, attr):
        """Notes the size of a file that counts."""
        file = self.files.get(attr.id)
        if file is not None and attr.change >= file.change:

            def change(file):
                file.size, file.change = attr.size, attr.change

            self._change(attr.id, file, change)

    def _see(self, place, attr):
        """Notes a file under a name that it has."""
        name = place[1]
        extension = self._extension(name) if attr.kind == ops.NodeKind.File else None
        file = self.files.get(attr.id)
        if file is not None and attr.nlink > 1:
            self._resize(attr)
        elif extension is not None:
            made = File(extension, attr.size, attr.change, place)
            if file is not None:
                made.ends, made.appends = file.ends, file.appends
                if file.change > attr.change:
                    made.size, made.change = file.size, file.change
            self._change(attr.id, made)
        elif file is not None:
            self._change(attr.id, None)

    def _look(self, dir, name, attr=None, moves=None):
        """Looks a name up and notes what has it. `attr`: what was found after `moves` moves. A file that no longer has
        the name may be gone: an op on another thread may have replaced it."""
        place = (dir, name)
        while True:
            with self.lock:
                if attr is not None and moves == self.moves:
                    before = self.places.get(place)
                    self._see(place, attr)
                    break
                moves = self.moves
            try:
                attr = self.next.lookup(dir=dir, name=name).attr
            except HekateError as error:
                before, attr = self.places.get(place) if error.name == "NotFound" else None, None
                break
        if before is not None and (attr is None or before != attr.id):
            self._refresh(before)

    def _attr(self, dir, name):
        """The file that has a name, or None. The op that asks will itself say what else is wrong."""
        try:
            return self.next.lookup(dir=dir, name=name).attr
        except HekateError:
            return None

    def _refresh(self, inode):
        """Notes the size of a file as of now. One that is gone no longer counts."""
        try:
            attr = self.next.getattr(inode=inode).attr
        except HekateError as error:
            if error.name == "Stale":
                with self.lock:
                    self._change(inode, None)
                    self.unnamed.discard(inode)
            return  # otherwise it is not reachable: what is known stays
        with self.lock:
            self._resize(attr)
            if attr.nlink == 0 and inode in self.files:
                self.unnamed.add(inode)

    @timer(seconds=1)
    def publish(self):
        for inode in list(self.unnamed):
            self._refresh(inode)
        for extension in self.extensions:
            self.metrics.gauge(f"bytes.{extension}", self.used.get(extension, 0))

    def _fits(self, extension, growth):
        """Whether so many bytes more are within the limit. To be called with the lock."""
        return growth <= 0 or self.used.get(extension, 0) + self.reserved.get(extension, 0) + growth <= self.limit

    def _refusal(self, extension):
        self.metrics.count("refused")
        return OSError(errno.EDQUOT, f".{extension} files may have {self.limit} bytes together")

    # Names.

    def lookup(self, op):
        return self._named(op)

    def create(self, op):
        return self._named(op)

    def link(self, op):
        return self._named(op)

    def _named(self, op):
        moves = self.moves
        reply = self.next(op)
        self._look(op.dir, op.name, reply.attr, moves)
        return reply

    def unlink(self, op):
        return self._moving(op, [(op.dir, op.name)])

    def remove(self, op):
        return self._moving(op, names_of(op))

    def make_prefix(self, op):
        return self._moving(op, names_of(op))

    def rename(self, op):
        return self._moving(op, [(op.to_dir, op.to_name), (op.dir, op.name)])

    def _moving(self, op, names):
        """An op after which other files, or none, have these names."""
        before = [attr for attr in [self._attr(*name) for name in names] if attr is not None]
        try:
            return self.next(op)
        finally:
            self._moved(names, before)

    def _moved(self, names, before):
        """Looks at these names and at the files that had them. Also after an error: the op may have been done."""
        with self.lock:
            self.moves += 1
        for name in names:
            self._look(*name)
        for attr in before:
            if attr.id in self.files:
                self._refresh(attr.id)

    def put(self, op):
        names = names_of(op)
        before = [attr for attr in [self._attr(*name) for name in names] if attr is not None]
        if op.source.name == "Bytes":
            source, size = None, len(op.source.content)
        else:
            source, size = op.source.inode, self.next.getattr(inode=op.source.inode).attr.size
        return self._making(op, op.name, size, names, before, source)

    def join(self, op):
        names = [(op.dir, name) for name, _ in op.parts]
        before = [attr for attr in [self._attr(*name) for name in names] if attr is not None]
        size = sum(attr.size for attr in before)
        names.append((op.dir, op.to))
        return self._making(op, op.to, size, names, before)

    def _making(self, op, name, size, names, before, source=None):
        """An op that gives a name to a file of `size` bytes, and removes the files `before` if they have no other.
        `source`: the inode of the file, if there is one already."""
        extension, growth = self._extension(name), 0
        freed = {source, *(attr.id for attr in before if attr.nlink <= 1)}
        with self.lock:
            if extension is not None:
                known = [self.files[inode] for inode in freed if inode in self.files]
                growth = max(0, size - sum(file.bytes() for file in known if file.extension == extension))
                if not self._fits(extension, growth):
                    raise self._refusal(extension)
            self.reserved[extension] = self.reserved.get(extension, 0) + growth
        try:
            return self.next(op)
        finally:
            self._moved(names, before)
            with self.lock:
                self.reserved[extension] -= growth

    # Sizes.

    def write(self, op):
        return self._sized(op, op.inode, end=op.offset + len(op.data))

    def append(self, op):
        return self._sized(op, op.inode, added=len(op.data))

    def truncate(self, op):
        return self._sized(op, op.inode, end=op.changes.size)

    def allocate(self, op):
        keeps_size = op.mode.name == "Punch" or op.mode.keep_size
        return self._sized(op, op.inode, end=0 if keeps_size else op.offset + op.length)

    def copy(self, op):
        length = op.length
        if op.to in self.files:  # programs ask for much more than the source has
            length = min(length, max(0, self.next.getattr(inode=op.from_).attr.size - op.from_offset))
        return self._sized(op, op.to, end=op.to_offset + length if length else 0)

    def _sized(self, op, inode, end=0, added=0):
        """An op that may make a file end at `end`, or `added` bytes later than now."""
        number = next(self.numbers)
        refused_for = self._begin(inode, number, end, added)
        if refused_for is not None:
            self._refresh(inode)  # another client may have cut it
            refused_for = self._begin(inode, number, end, added)
        if refused_for is not None:
            raise self._refusal(refused_for)
        try:
            return self.next(op)
        finally:
            # Also if it did not count before: it may have got another name meanwhile.
            if inode in self.files:
                self._refresh(inode)
                self._end(inode, number)

    def _begin(self, inode, number, end, added):
        """Counts what the op may add. Returns the extension for which it does not fit, or None."""
        with self.lock:
            file = self.files.get(inode)
            if file is None:
                return None
            before = max([file.size, *file.ends.values()])
            if not self._fits(file.extension, max(before, end) - before + added):
                return file.extension

            def change(file):
                file.ends[number], file.appends[number] = end, added

            self._change(inode, file, change)
            return None

    def _end(self, inode, number):
        with self.lock:
            file = self.files.get(inode)
            if file is not None:

                def change(file):
                    file.ends.pop(number, None)
                    file.appends.pop(number, None)

                self._change(inode, file, change)


def names_of(op):
    """The names of which an op on an object changes one or both."""
    return [(op.dir, name) for name in (op.name, op.alternate) if name is not None]
