"""The base class of translators, and how their methods are found, run and answered.

This file knows neither processes nor sockets: `hekate.worker` runs a translator below a real graph, and
`hekate.testing` runs it above a volume in memory. Both bind it with `Binding`."""

import importlib.util
import inspect
import logging
import os
import sys
import threading
import traceback
from pathlib import Path

from . import ops
from .options import OptionHolder
from .values import Ended, Op, Reply

EIO = 5
#: Options of the layer itself, beside those of the class: one of the class would never get its value.
LAYER_OPTIONS = ("translator", "deadline", "stuck", "memory", "channels")


class _Pass:
    __slots__ = ()

    def __repr__(self):
        return "PASS"


#: Returned by a method: the op goes to the layer below unchanged, and its reply to the caller. The cheapest answer.
PASS = _Pass()


def timer(seconds):
    """Marks a method that is called every so many seconds, from on_start to on_stop. Calls of timers never overlap."""
    if not seconds > 0:
        raise ValueError(f"a timer needs more than 0 seconds, not {seconds!r}")

    def mark(method):
        method.hekate_timer_s = float(seconds)
        return method

    return mark


class Translator(OptionHolder):
    """A layer of a volume's graph. Methods are named after ops (`lookup`, `setattr`, `truncate`...) and get the op.
    Ops without a method never enter Python.

    A method returns a reply, `PASS`, or raises OSError. Methods run on several threads at once: state that they share
    needs a `threading.Lock`. `async def` methods all run on one thread, the event loop's."""

    #: The layer below. Set before on_start.
    next: "ops.Next" = None
    #: A logging.Logger whose records join Hekate's log.
    log: logging.Logger = logging.getLogger("hekate")
    #: Counters, gauges and times.
    metrics: "Metrics" = None
    #: A dict that survives a reload, if it can be pickled.
    state: dict = None
    #: True once every op of the volume passes this instance. Before, ops of an earlier graph may be under way, which
    #: this instance does not see.
    is_live: bool = False

    def on_start(self):
        """Called once, before the first op."""

    def on_live(self):
        """Called once, after on_start: from now on every op of the volume passes this instance, and `is_live` is
        True. Ops may pass before it is called."""

    def on_recall(self):
        """Called when what is remembered of the volume may be out of date: forget it."""

    def on_stop(self):
        """Called once, after the last op, if the worker ends in order."""

    def on_reconfigure(self, old):
        """Called after options have changed; `old` has the previous values. An exception refuses the change."""


class Metrics:
    """Counters, gauges and times. All methods may be called on any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.clear()

    def clear(self):
        self.counts, self.gauges, self.times = {}, {}, {}

    def count(self, name, n=1):
        """Adds `n` to a counter."""
        check_number(name, n)
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + n

    def gauge(self, name, value):
        """Sets a value that may rise and fall."""
        check_number(name, value)
        with self.lock:
            self.gauges[name] = value

    def observe(self, name, seconds):
        """Adds one duration."""
        check_number(name, seconds)
        with self.lock:
            count, total, most = self.times.get(name, (0, 0.0, 0.0))
            self.times[name] = (count + 1, total + seconds, max(most, seconds))

    def take(self):
        """What was recorded since the last call, or None."""
        with self.lock:
            if not (self.counts or self.gauges or self.times):
                return None
            found = {"counts": self.counts, "gauges": self.gauges, "times": self.times}
            self.clear()
            return found


def check_number(name, value):
    if type(name) is not str or type(value) not in (int, float, bool) or value - value != 0:
        raise ValueError(f"a metric is a name and a finite number, not {name!r} and {value!r}")


class LoadError(Exception):
    """A translator cannot be loaded; the text says why, for people."""


def load(directory, module_name="translator"):
    """The translator class of `directory/translator.py`."""
    path = Path(directory) / "translator.py"
    if not path.is_file():
        raise LoadError(f"{path} does not exist")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    # State is pickled with the name of its classes' module, which the next worker finds again under this name.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return class_in(module, path)


def class_in(module, path):
    named = getattr(module, "TRANSLATOR", None)
    if named is not None:
        if not (inspect.isclass(named) and issubclass(named, Translator)):
            raise LoadError(f"TRANSLATOR in {path} is {named!r}, and not a subclass of Translator")
        return named
    found = [
        item
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, Translator) and item.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(item.__name__ for item in found) or "none"
        raise LoadError(f"{path} must have one subclass of Translator, or name it in TRANSLATOR; it has: {names}")
    return found[0]


_METHODS = {op.method: op for op in ops.OPS.values()}
_OWN = set(dir(Translator))


def check_names(cls):
    """Refuses public methods that look like a misspelt op: they would never be called."""
    import difflib

    for name in cls.declared_options():
        if name in LAYER_OPTIONS:
            raise LoadError(f"an option cannot be called {name!r}: every layer in Python has an option of this name")
        if name in _METHODS or name in _OWN or name == "truncate":
            raise LoadError(f"an option cannot be called {name!r}: it is the name of an op, or of Translator's own")
    for name, item in vars(cls).items():
        if name.startswith("_") or name in _METHODS or name in _OWN or name == "truncate":
            continue
        parameters = list(inspect.signature(item).parameters) if inspect.isfunction(item) else []
        if parameters[1:] == ["op"] and not hasattr(item, "hekate_timer_s"):
            near = difflib.get_close_matches(name.replace("-", "_"), [*_METHODS, "truncate"], 1)
            hint = f"; is {near[0]!r} meant?" if near else ""
            raise LoadError(f"{cls.__name__}.{name}(op) is not named after an op{hint} (helpers: a leading underscore)")


class Method:
    """A method of a translator for one kind of op."""

    __slots__ = ("call", "is_async", "name")

    def __init__(self, bound, name):
        self.call, self.name, self.is_async = bound, name, inspect.iscoroutinefunction(bound)


class Binding:
    """A translator instance with its methods by op class."""

    def __init__(self, cls, options, run_next, log=None, state=None):
        check_names(cls)
        values = cls.parse_options(options)
        instance = cls.__new__(cls)
        instance.next = ops.Next(run_next)
        instance.metrics, instance.state = Metrics(), {} if state is None else state
        if log is not None:
            instance.log = log
        instance.set_options(values)
        instance.__init__()
        self.cls, self.instance = cls, instance
        self.methods = {}
        for name, op in _METHODS.items():
            if hasattr(cls, name):
                self.methods[op] = Method(getattr(instance, name), name)
        self.truncate = Method(instance.truncate, "truncate") if hasattr(cls, "truncate") else None
        self.timers = [
            (getattr(cls, name).hekate_timer_s, Method(getattr(instance, name), name))
            for name in dir(cls)
            if not isinstance(inspect.getattr_static(cls, name), property)
            and hasattr(getattr(cls, name), "hekate_timer_s")
        ]

    def labels(self):
        """Labels of the ops that the translator is to see."""
        found = {op.label for op in self.methods}
        return sorted(found | ({"setattr"} if self.truncate else set()))

    def method_for(self, op):
        """The method that gets this op, or None."""
        if self.truncate is not None and type(op) is ops.SetAttr and op.changes.size is not None:
            return self.truncate
        return self.methods.get(type(op))

    def begin(self, run):
        """The instance is the live one from now on. `run(method)` calls its method."""
        if not self.instance.is_live:
            self.instance.is_live = True
            run(self.instance.on_live)

    def reconfigure(self, options, run):
        """Sets all options anew. Raises ValueError, or what on_reconfigure raised, and then nothing has changed."""
        values = self.cls.parse_options(options)
        old = self.instance.options
        self.instance.set_options(values)
        try:
            run(self.instance.on_reconfigure, old)
        except BaseException:
            self.instance.set_options(old)
            raise


def describe(cls):
    """What people and the host want to know of a translator class."""
    check_names(cls)
    labels = {op.label for name, op in _METHODS.items() if hasattr(cls, name)}
    if hasattr(cls, "truncate"):
        labels.add("setattr")
    return {
        "class": cls.__name__,
        "summary": inspect.cleandoc(vars(cls).get("__doc__") or ""),
        "options": {name: option.describe() for name, option in cls.declared_options().items()},
        "ops": sorted(labels),
    }


def answered(cls, method, run, log, bytes_max=None, through=Ended):
    """Runs a method by `run()`. Returns the encoding of its result in parts, or None if it passes the op on.

    An answer that is no reply, one of more than `bytes_max` bytes, and an exception without an errno are EIO; `log`
    gets a text that says why. Exceptions of `through` pass."""
    try:
        found = run()
        if found is PASS:
            return None
        if isinstance(found, Reply):
            return encoded(found, bytes_max)
        log(wrong_type(cls, method.name, found))
        return encoded(OSError(EIO, f"{cls.__name__}.{method.name}: a wrong answer, see the log"))
    except through:
        raise
    except BaseException as error:
        if isinstance(error, OSError) and error.errno:
            return encoded(error)
        log(raised(cls, method, error))
        return encoded(OSError(EIO, f"{cls.__name__}.{method.name}: {type(error).__name__}"))


def encoded(result, bytes_max=None):
    """The encoding of a reply or an OSError, in parts. Raises ValueError if it is longer than `bytes_max`."""
    parts = []
    ops.put_result(result, parts.append)
    length = sum(map(len, parts))
    if bytes_max is not None and length > bytes_max:
        raise ValueError(f"{length} bytes are more than the {bytes_max} that one op or reply may have")
    return parts


def raised(cls, method, error):
    """For the log: what a method raised."""
    try:
        text = "".join(traceback.format_exception(type(error), error, trimmed(error.__traceback__)))
    except BaseException as second:
        text = f"{type(error).__name__} (and {type(second).__name__} while it was formatted)"
    return f"{cls.__name__}.{method.name} raised {text}"


def trimmed(frames):
    """A traceback without the frames of this package above the translator's own."""
    own = os.path.dirname(__file__)
    while frames is not None and frames.tb_next and os.path.dirname(frames.tb_frame.f_code.co_filename) == own:
        frames = frames.tb_next
    return frames


def wrong_type(cls, name, value):
    """Why a method's answer is none."""
    hint = " (is a `return` missing?)" if value is None else ""
    if isinstance(value, Op):
        hint = " (is `self.next(op)` meant?)"
    if inspect.iscoroutine(value):
        value.close()
        hint = " (is an `await` or `async def` missing?)"
    kind = type(value).__name__
    return f"{cls.__name__}.{name} returned {kind}{hint}; it must return a reply of hekate.ops, or PASS"
