"""A translator inside of the client's process: what the library `python-inside` calls. Plain methods only; timers and
`async def` need a worker."""

import itertools
import logging
import threading
import traceback

from . import ops
from .channels import put_op
from .control import LogHandler
from .translator import EIO, Binding, Method, answered, load

LEVELS = {"error": 1, "warn": 2, "info": 3, "debug": 4}
_NUMBERS = itertools.count()


class Inside:
    """One instance. `line(level, text)` writes a log line; it is not called after `close`."""

    def __init__(self, directory, options, line):
        self.local, self.line, self.lock = threading.local(), line, threading.Lock()
        # Each instance has a module of its own: others in this process have a translator.py as well.
        cls = load(directory, f"translator_inside_{next(_NUMBERS)}")
        log = logging.Logger(cls.__name__)
        log.addHandler(LogHandler(self.log))
        self.binding = Binding(cls, options, self.next, log)
        check_plain(self.binding)
        self.binding.instance.on_start()

    def log(self, level, text):
        # Names in a text may have bytes that are not UTF-8, which Python has as lone surrogates.
        text = text.encode("utf-8", "replace").decode()
        with self.lock:
            if self.line is not None:
                self.line(LEVELS[level], text)

    def log_error(self, text):
        self.log("error", text)

    def ops(self):
        """Labels of the ops that the translator is to see."""
        return " ".join(self.binding.labels())

    def next(self, op):
        """Behind `self.next`: the op runs in the layer below. It is durable if the op that is answered is."""
        below = getattr(self.local, "below", None)
        if below is None:
            raise OSError(EIO, "inside the process self.next works only in a method that answers an op, on its thread")
        if op.durable and not self.local.durable:
            raise OSError(EIO, "inside the process an op is durable only on behalf of a durable one")
        parts = []
        put_op(op, parts.append)
        result = below(b"".join(parts))
        return ops.decode_result(result, 0, len(result))

    def call(self, data, durable, below):
        """Answers an op. Returns the encoding of its result, or None to pass it on as it came."""
        op = ops.decode_op(data, 0, len(data))
        method = self.binding.method_for(op)
        if method is None:
            return None
        op.durable = durable
        self.local.below, self.local.durable = below, durable
        try:
            parts = answered(self.binding.cls, method, lambda: method.call(op), self.log_error)
        finally:
            self.local.below = None
        return None if parts is None else b"".join(parts)

    def reconfigure(self, options):
        self.binding.reconfigure(options, run)

    def begin(self):
        """Every op of the volume passes from now on."""
        self.tell("on_live", self.binding.begin, run)

    def recall(self):
        """What is remembered may be out of date."""
        self.tell("on_recall", self.binding.instance.on_recall)

    def stop(self):
        self.tell("on_stop", self.binding.instance.on_stop)

    def close(self):
        """The program no longer takes log lines: a thread of the translator may still write some."""
        with self.lock:
            self.line = None

    def tell(self, name, method, *arguments):
        try:
            method(*arguments)
        except Exception:
            self.log_error(f"{name} raised {traceback.format_exc()}")


def run(method, *arguments):
    return method(*arguments)


def check_plain(binding):
    """Refuses what needs a worker."""
    cls, instance = binding.cls, binding.instance
    methods = [*binding.methods.values(), *([binding.truncate] if binding.truncate else [])]
    methods += [Method(getattr(instance, name), name) for name in dir(cls) if name.startswith("on_")]
    unfit = [method.name for method in methods if method.is_async] + [method.name for _, method in binding.timers]
    if unfit:
        found = f"{cls.__name__}.{unfit[0]}"
        raise ValueError(f"{found}: async methods and timers need a worker: use python:translator=NAME")
