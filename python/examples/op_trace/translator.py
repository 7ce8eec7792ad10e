"""Writes a line of JSON for each op: what was asked, what came of it, and how long it took below.

    {"time": 1700000000.1, "op": "lookup", "us": 41, "dir": 1, "name": "a.txt", "reply": "NodeReply"}

Bytes of files are shown as their number. Names that are not UTF-8 have \\xff for such bytes.

An op never fails because its line cannot be written: the line is lost, and counted as `lines lost`. The log has the
reason, at most once a minute."""

import errno
import json
import threading
import time

from hekate import PASS, Option, Translator
from hekate import ops as hekate_ops

WARNING_PAUSE_S = 60


class OpTrace(Translator):
    """Writes a line of JSON for each op to a file."""

    file = Option(str, help="path of the file; lines are appended")
    ops = Option(list, default=[], choices=sorted(hekate_ops.OPS), help="only these ops; all if there are none")

    def on_start(self):
        self.lock = threading.Lock()
        self.lines = self._opened()
        self.warned_at = None

    def _opened(self):
        return open(self.file, "ab", buffering=0)  # open as long as the translator

    def on_reconfigure(self, old):
        lines = self._opened()
        with self.lock:
            self.lines, before = lines, self.lines
        before.close()

    def on_stop(self):
        with self.lock:
            self.lines.close()

    def _write(self, line):
        data = json.dumps(line).encode() + b"\n"
        try:
            with self.lock:
                if self.lines.write(data) != len(data):
                    raise OSError(errno.ENOSPC, "a line was cut")
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self.metrics.count("lines lost")
            now = time.monotonic()
            if self.warned_at is None or now - self.warned_at > WARNING_PAUSE_S:
                self.warned_at = now
                self.log.warning("%s: lines are lost: %s", self.file, error)

    def _trace(self, op):
        if self.ops and op.label not in self.ops:
            return PASS
        line = {"time": round(time.time(), 6), "op": op.label, "us": 0, **shown(op)}
        started = time.monotonic()
        try:
            reply = self.next(op)
            line["reply"] = type(reply).__name__
            return reply
        except OSError as error:
            line["error"] = getattr(error, "name", "") or str(error)
            raise
        finally:
            line["us"] = round((time.monotonic() - started) * 1e6)
            self._write(line)


# One method for every op that there is.
for each in hekate_ops.OPS.values():
    setattr(OpTrace, each.method, OpTrace._trace)

CONTENT = {"data", "content", "value", "bytes"}


def shown(value):
    """The fields of an op for JSON."""
    return {name: of_field(name, getattr(value, name)) for name in value._fields}


def of_field(name, value):
    if isinstance(value, bytes):
        return len(value) if name in CONTENT else value.decode(errors="backslashreplace")
    if hasattr(value, "_fields"):
        fields = shown(value)
        return {"is": value.name, **fields} if hasattr(type(value), "name") else fields
    if isinstance(value, (list, tuple)):
        return [of_field(name, item) for item in value]
    return value if isinstance(value, (int, str, bool, type(None))) else str(value)
