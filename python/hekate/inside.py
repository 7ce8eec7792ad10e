"""A translator inside of the client's process: what the library `python-inside` calls. Plain methods only; timers and
`async def` need a worker."""

import logging
import threading
import traceback

from . import ops
from .channels import put_op
from .translator import PASS, Binding, is_reply, load, wrong_type

EIO = 5
LEVELS = {logging.ERROR: 1, logging.WARNING: 2, logging.INFO: 3, logging.DEBUG: 4}


class Lines(logging.Handler):
    """Log lines go to the program's log."""

    def __init__(self, line):
        super().__init__()
        self.line = line

    def emit(self, record):
        self.line(LEVELS.get(record.levelno, 3), self.format(record))


class Inside:
    """One instance. `line(level, text)` writes a log line."""

    def __init__(self, directory, options, line):
        self.local, self.line = threading.local(), line
        cls = load(directory)
        log = logging.Logger(cls.__name__)
        log.addHandler(Lines(line))
        self.binding = Binding(cls, options, self.next, log)
        methods = [*self.binding.methods.values(), *[method for _, method in self.binding.timers]]
        unfit = [method.name for method in methods if method.is_async] + [method.name for _, method in self.binding.timers]
        if unfit:
            raise ValueError(f"{cls.__name__}.{unfit[0]}: async methods and timers need a worker: use python:translator=NAME")
        self.local.below, self.local.durable = None, False
        self.binding.instance.on_start()

    def ops(self):
        """Labels of the ops that the translator is to see."""
        return " ".join(self.binding.labels())

    def next(self, op):
        """Behind `self.next`: the op runs in the layer below."""
        below = getattr(self.local, "below", None)
        if below is None:
            raise OSError(EIO, "self.next works while an op is answered")
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
        self.local.below = below
        try:
            found = method.call(op)
            if found is PASS:
                return None
            if not is_reply(found):
                self.line(1, wrong_type(self.binding.cls, method.name, found))
                found = OSError(EIO, f"{method.name}: a wrong answer, see the log")
        except OSError as error:
            found = error
        except Exception as error:
            self.line(1, f"{method.name} raised {traceback.format_exc()}")
            found = OSError(EIO, f"{method.name}: {type(error).__name__}")
        finally:
            self.local.below = None
        parts = []
        ops.put_result(found, parts.append)
        return b"".join(parts)

    def reconfigure(self, options):
        self.binding.reconfigure(options, lambda method, *arguments: method(*arguments))

    def stop(self):
        self.binding.instance.on_stop()
