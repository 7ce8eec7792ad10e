"""What the generated classes of `hekate.ops` are made of: values with fields, and errors.

A value is a plain object with slots: fast to make, compared by its fields, and changed by assignment."""

__all__ = ["Ended", "HekateError", "Malformed", "Op", "Reply", "Value", "error_class"]


class Malformed(ValueError):
    """The bytes do not encode a value of the requested type."""


class Ended(BaseException):
    """The host closed the channel. Not an Exception, so that a translator's own `except` lets it pass."""


class Value:
    """Fields by name, in the order of the encoding."""

    __slots__ = ()
    _fields = ()

    def changed(self, **changes):
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in self._fields}
        unknown = [name for name in changes if name not in fields and name != "durable"]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}; its fields: {', '.join(fields)}")
        if "durable" not in changes and hasattr(self, "durable"):
            fields["durable"] = self.durable
        return type(self)(**{**fields, **changes})

    __replace__ = changed

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None

    def __repr__(self):
        shown = (f"{name}={_short(getattr(self, name))}" for name in self._fields)
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _short(value):
    if isinstance(value, bytes) and len(value) > 64:
        return f"<{len(value)} bytes: {value[:16]!r}...>"
    return repr(value)


class Op(Value):
    """An op on its way down. `durable`: the caller gets the reply only once the change is on stable storage."""

    __slots__ = ("durable",)
    durable: bool
    label: str = ""
    method: str = ""

    def encode(self) -> bytes:
        """The encoding, without `durable`."""
        parts = []
        self._put(parts.append)
        return b"".join(parts)


class Reply(Value):
    """A reply on its way up."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The encoding of the reply, without the 1 of a result."""
        parts = []
        self._put(parts.append)
        return b"".join(parts)


class HekateError(OSError):
    """An op was refused. `errno` and `strerror` are as of every OSError; `name` is Hekate's own name of the error
    ("NotFound", "StaleView"...), and `encoded` its encoding: raised again, the caller gets exactly this error.

    Where Python has a class for the errno, the error is of it as well: `except FileNotFoundError` works."""

    name: str = ""
    encoded: bytes = b""

    def __reduce__(self):
        return _error_again, (self.errno, self.strerror, self.name, self.encoded)


def error_class(errno, known={}):  # noqa: B006 (a cache)
    """The subclass of HekateError that is also Python's class for this errno (FileNotFoundError...)."""
    found = known.get(errno)
    if found is None:
        base = type(OSError(errno, ""))
        found = HekateError if base is OSError else type(f"Hekate{base.__name__}", (HekateError, base), {})
        known[errno] = found
    return found


def make_error(errno, text, name, encoded):
    error = error_class(errno)(errno, text)
    error.name, error.encoded = name, encoded
    return error


_error_again = make_error
