"""Remembers names that do not exist, and answers look-ups of them without the servers.

Programs that search a path (compilers, interpreters, shells) ask for many names that are nowhere. Their answer changes
only when somebody makes the name: this client's own ops are seen here and end the memory at once; another client's are
not, so an entry lives for `lifetime` seconds at most. That is how long a name that another client has made can be
missing here.

Nothing is remembered before this instance is the live one: ops of the graph before, which do not pass here, may still
make names. On a recall everything is forgotten.

The rule that makes it right under threads: an answer "not found" is remembered only if no name was made in its
directory between the question and the answer. Each op that makes a name counts its directory's generation up when it
has ended, and removes the entry. So an answer from before the name was made is either thrown away, because the
generation is another one, or it was remembered before the op ended, and is removed by it."""

import threading
import time
from collections import OrderedDict

from hekate import PASS, HekateError, Option, Translator, ops

# Directories share generations by their number, so that these need no more memory than this. A shared one costs an
# answer that is not remembered, never a wrong one.
GENERATIONS = 4096


class NegativeLookup(Translator):
    """Answers look-ups of names that do not exist from memory."""

    lifetime = Option(float, default=1.0, minimum=0, maximum=3600, help="seconds that a name is known to be missing")
    entries = Option(int, default=10_000, minimum=1, maximum=10_000_000, help="names that are remembered at most")

    def on_start(self):
        self.lock = threading.Lock()
        self.missing = OrderedDict()  # (directory, name) -> when the entry ends; the least recently used first
        self.generations = [0] * GENERATIONS

    def on_reconfigure(self, old):
        self._forget_all()

    def on_recall(self):
        self._forget_all()

    def lookup(self, op):
        key, now = (op.dir, op.name), time.monotonic()
        if not self.is_live:
            return PASS
        with self.lock:
            end = self.missing.get(key)
            if end is not None and now < end:
                self.missing.move_to_end(key)
                self.metrics.count("hits")
                raise ops.error("NotFound")
            generation = self.generations[op.dir % GENERATIONS]
        try:
            return self.next(op)
        except HekateError as error:
            if error.name == "NotFound":
                self._remember(key, generation, now + self.lifetime)
            raise

    def _remember(self, key, generation, end):
        with self.lock:
            if self.generations[key[0] % GENERATIONS] != generation:
                return
            self.missing[key] = end
            self.missing.move_to_end(key)
            while len(self.missing) > self.entries:
                self.missing.popitem(last=False)

    def _made(self, op, *names):
        """Runs an op that makes these names (directory, name). Also after an error: it may have been done."""
        try:
            return self.next(op)
        finally:
            with self.lock:
                for dir, name in names:
                    self.generations[dir % GENERATIONS] += 1
                    self.missing.pop((dir, name), None)

    def create(self, op):  # files, directories, symbolic links, devices
        return self._made(op, (op.dir, op.name))

    def link(self, op):
        return self._made(op, (op.dir, op.name))

    def put(self, op):
        return self._made(op, (op.dir, op.name), (op.dir, op.alternate))

    def make_prefix(self, op):
        return self._made(op, (op.dir, op.name), (op.dir, op.alternate))

    def join(self, op):
        return self._made(op, (op.dir, op.to))

    # A directory that is removed has the answer Stale from then on, and no longer NotFound. The op does not say which
    # directory it is, and a rename may replace one.

    def rename(self, op):
        try:
            return self._made(op, (op.to_dir, op.to_name), (op.dir, op.name))
        finally:
            self._forget_all()

    def rmdir(self, op):
        return self._removed(op)

    def remove_prefix(self, op):
        return self._removed(op)

    def _removed(self, op):
        try:
            return self.next(op)
        finally:
            self._forget_all()

    def _forget_all(self):
        with self.lock:
            self.missing.clear()
            self.generations = [generation + 1 for generation in self.generations]
