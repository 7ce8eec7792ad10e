"""Writes python/hekate/ops.py: classes with an encoder and a decoder that have no loop over fields."""

import textwrap

from .codec import Decoder, Encoder, attribute, class_of

COLUMNS = 120


class Writer:
    """The text of ops.py."""

    def __init__(self, vocabulary):
        self.vocabulary, self.runs, self.body = vocabulary, {}, []

    def run(self, codes):
        """Number and size of the struct for these fields."""
        number = self.runs.setdefault(codes, len(self.runs))
        return number, sum({"B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}[code] for code in codes)

    def add(self, text):
        if text is not None:
            self.body.append(text)

    def text(self):
        for name in self.vocabulary.reachable():
            self.add_type(self.vocabulary.types[name])
        for op in self.vocabulary.ops:
            self.add_op(op)
        for reply in self.vocabulary.replies:
            self.add_reply(reply)
        self.add_tables()
        self.add_errors()
        self.add_next()
        runs = []
        for codes, number in self.runs.items():
            runs.append(f'_s{number} = Struct("<{codes}")')
            runs.append(f"_p{number}, _u{number} = _s{number}.pack, _s{number}.unpack_from")
        return HEAD + "\n".join(runs) + "\n" + folded("\n".join(self.body)) + "\n"

    def add_type(self, found):
        if found.kind == "newtype":
            self.add(f'{found.name} = NewType("{found.name}", int)')
        elif found.kind == "struct":
            self.add_class(found.name, "Value", found.fields, found.doc)
        elif found.is_plain:
            self.add_plain_enum(found)
        else:
            self.add_enum(found)

    def add_plain_enum(self, found):
        name = class_of(found.name)
        self.add(f"\n\nclass {name}(IntEnum):")
        self.add(docstring(found.doc))
        for variant in found.variants:
            self.add(f"    {variant.name} = {variant.number}")
        self.add(f"\n\n_{name}s = _Members((item.value, item) for item in {name})")

    def add_enum(self, found):
        name = class_of(found.name)
        self.add(f"\n\nclass {name}(Value):")
        self.add(docstring(found.doc))
        self.add("    __slots__ = ()")
        for variant in found.variants:
            put = Encoder(self, 2)
            put.fixed("B", str(variant.number))
            self.add_class(f"_{name}{variant.name}", name, variant.fields, variant.doc, put, variant.name)
            self.add(f'_{name}{variant.name}.__qualname__ = "{name}.{variant.name}"')
            call = "" if variant.fields else "()"
            self.add(f"{name}.{variant.name} = _{name}{variant.name}{call}")
            if not variant.fields:
                self.add(f"_{name}{variant.name}.__reduce__ = lambda self: (_variant, ({name}, {variant.name!r}))")
                self.add(f"_{name}{variant.name}.__repr__ = lambda self: '{name}.{variant.name}'")
        self.add(f"\n\ndef _take_{name}(buf, pos, end):")
        self.add("    number = buf[pos]\n    pos += 1")
        for variant in found.variants:
            self.add(f"    if number == {variant.number}:")
            take = Decoder(self, 2)
            values = [take.read(field.type) for field in variant.fields]
            take.flush()
            value = f"_{name}{variant.name}({', '.join(values)})" if values else f"{name}.{variant.name}"
            take.line(f"return {value}, pos")
            self.add(take.text())
        self.add(f'    raise Malformed(f"an unknown {name}: {{number}}")')

    def add_class(self, name, base, fields, doc, put=None, tag=None, op=None):
        names = [attribute(field) for field in fields]
        self.add(f"\n\nclass {name}({base}):")
        self.add(docstring(doc))
        self.add(f"    __slots__ = {tuple(names)!r}")
        self.add(f"    _fields = {tuple(names)!r}")
        if tag:
            self.add(f"    name = {tag!r}")
        if op:
            self.add(f"    label = {op.label!r}\n    method = {op.method!r}")
        arguments = [f"{n}{default}" for n, default in zip(names, defaults(fields))]
        if op:
            arguments += ["*", "durable=False"]
        if arguments:
            self.add(f"\n    def __init__(self, {', '.join(arguments)}):")
            for field, each in zip(fields, names):
                empty = f"[] if {each} is None else " if field.type[0] == "vec" else ""
                self.add(f"        self.{each} = {empty}{each}")
            if op:
                self.add("        self.durable = durable")
        if put:
            for field in fields:
                put.put(field.type, f"self.{attribute(field)}")
            put.flush()
            self.add("\n    def _put(self, add):")
            self.add(put.text())

    def add_op(self, op):
        put = Encoder(self, 2)
        put.fixed("B", str(op.numbers[0])), put.fixed("B", str(op.numbers[1]))
        self.add_class(op.name, "Op", op.fields, op_doc(op), put, op=op)
        self.add_take(op.name, op.fields)

    def add_reply(self, reply):
        put = Encoder(self, 2)
        put.fixed("B", str(reply.number))
        self.add_class(reply.name + "Reply", "Reply", reply.fields, reply.doc, put)
        self.add_take(reply.name + "Reply", reply.fields)

    def add_take(self, name, fields):
        take = Decoder(self)
        values = [take.read(field.type) for field in fields]
        take.flush()
        take.line(f"return {name}({', '.join(values)}), pos")
        self.add(f"\n\ndef _take_{name}(buf, pos, end):")
        self.add(take.text())

    def add_tables(self):
        ops, replies = self.vocabulary.ops, self.vocabulary.replies
        self.add("\n\n_OPS = {")
        for op in ops:
            self.add(f"    0x{op.numbers[0]:02x}{op.numbers[1]:02x}: _take_{op.name},")
        self.add("}\n_REPLIES = {")
        for reply in replies:
            self.add(f"    {reply.number}: _take_{reply.name}Reply,")
        self.add("}\n#: Every op by its label.\nOPS = {")
        for op in sorted(ops, key=lambda op: op.label):
            self.add(f"    {op.label!r}: {op.name},")
        self.add("}\n#: The replies that each op can have.\nREPLIES_OF = {")
        for op in ops:
            assert op.replies, f"{op.label}: its documentation in crates/proto names no reply that a translator gets"
            self.add(f"    {op.name}: ({', '.join(name + 'Reply' for name in op.replies)},),")
        self.add("}")

    def add_errors(self):
        self.add("\n#: Number of an error: its name, its errno (0: in the error), what it says.\nERRORS = {")
        for row in self.vocabulary.errors:
            self.add(f'    {row.variant.number}: ("{row.variant.name}", {row.errno}, "{row.text}"),')
        self.add("}\n_ERROR_NUMBERS = {name: number for number, (name, _, _) in ERRORS.items()}")
        for row in self.vocabulary.errors:
            if row.variant.fields:
                take = Decoder(self)
                values = [take.read(field.type) for field in row.variant.fields]
                take.flush()
                pairs = ", ".join(f'"{f.name}": {v}' for f, v in zip(row.variant.fields, values))
                take.line(f"return {{{pairs}}}, pos")
                self.add(f"\n\ndef _take_error_{row.variant.name}(buf, pos, end):")
                self.add(take.text())
                put = Encoder(self)
                put.fixed("B", str(row.variant.number))
                for field in row.variant.fields:
                    put.put(field.type, field.name)
                put.flush()
                parameters = ", ".join(field.name for field in row.variant.fields)
                self.add(f"\n\ndef _put_error_{row.variant.name}(add, {parameters}):")
                self.add(put.text())
        self.add("\n\n_TAKE_ERROR = {")
        for row in self.vocabulary.errors:
            if row.variant.fields:
                self.add(f"    {row.variant.number}: _take_error_{row.variant.name},")
        self.add("}\n_PUT_ERROR = {")
        for row in self.vocabulary.errors:
            if row.variant.fields:
                self.add(f"    {row.variant.number}: _put_error_{row.variant.name},")
        self.add("}")
        self.add(TAIL)

    def add_next(self):
        self.add("\n\nclass Next:")
        self.add('    """The layer below. `next(op)` runs an op there; `next.lookup(...)` makes the op first, or takes')
        self.add('    one. In an `async` method the calls are awaited."""')
        self.add('\n    __slots__ = ("_run",)\n\n    def __init__(self, run):\n        self._run = run')
        self.add("\n    def __call__(self, op):\n        return self._run(op)")
        for op in self.vocabulary.ops:
            self.add(f"\n    def {op.method}(self, *op, **fields):")
            self.add(f"        return self._run(_made({op.name}, op, fields))")
        names = sorted([op.name for op in self.vocabulary.ops] + [r.name + "Reply" for r in self.vocabulary.replies]
                       + [class_of(name) for name in self.vocabulary.reachable()])
        self.add("\n\n__all__ = [")
        for name in BY_HAND_NAMES + names:
            self.add(f'    "{name}",')
        self.add("]")


BY_HAND_NAMES = ["ERRORS", "HekateError", "Malformed", "Next", "OPS", "Op", "REPLIES_OF", "ROOT", "Reply", "SYSTEM",
                 "decode_error", "decode_op", "decode_reply", "decode_result", "encode_result", "error"]


def defaults(fields):
    """Default values of the last fields, as far as they are flags, lists or options. Numbers have none."""
    found, going = [], True
    for field in reversed(fields):
        value = {"option": "=None", "bool": "=False", "vec": "=None", "bytes": '=b""'}.get(field.type[0])
        going = going and value is not None and field.name not in ("bytes", "data", "content", "target", "name")
        found.append(value if going else "")
    return reversed(found)


def op_doc(op):
    lines = [op.doc] if op.doc else []
    lines += [f"`{attribute(f)}`: {f.doc}" for f in op.fields if f.doc]
    return "\n".join(lines)


def folded(text):
    """The text with lines of more than COLUMNS broken behind a comma within parentheses."""
    found = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip()) + 4
        while len(line) > COLUMNS and (at := line.rfind(", ", indent, COLUMNS)) > 0:
            found.append(line[: at + 1])
            line = " " * indent + line[at + 2 :]
        found.append(line)
    return "\n".join(found)


def docstring(doc, depth=1):
    indent = "    " * depth
    if not doc:
        return None
    doc = doc.replace("\\", "\\\\").replace("[`", "`").replace("`]", "`")
    width = COLUMNS - len(indent) - 6
    lines = [part for line in doc.split("\n") for part in textwrap.wrap(line, width) or [""]]
    return "\n".join([f'{indent}"""{lines[0]}'] + [f"{indent}{line}" for line in lines[1:]]) + '"""'


HEAD = '''"""Ops, replies and errors of Hekate, with their encoding.

Generated by python/generate.py from crates/proto."""

# fmt: off
# ruff: noqa
from enum import IntEnum
from struct import Struct, error as _StructError
from typing import NewType

from .values import HekateError, Malformed, Op, Reply, Value, make_error

_LOW = (1 << 64) - 1
_BOOLS = {0: False, 1: True}
#: Longest text of a refusal.
TEXT_CHARS_MAX = 4096
_NO_NAMES = (b"", b".", b"..")
#: The inode of every volume's root directory.
ROOT = 1
#: The top of a tree that no name leads to: uploads of objects are there.
SYSTEM = 2


def _bad_name(name):
    return Malformed(f"not a name: {name[:300]!r}; a name has 1 to 255 bytes, no / and no NUL, and is not . or ..")


def _name(name):
    if type(name) is not bytes:
        raise TypeError(f"a name is bytes, not {type(name).__name__}")
    if name in _NO_NAMES or len(name) > 255 or b"/" in name or b"\\0" in name:
        raise _bad_name(name)
    return name


def _bytes(value):
    kind = type(value)
    if kind is bytes:
        return value
    if kind is memoryview or kind is bytearray:
        return bytes(value)
    raise TypeError(f"a field that takes bytes has a value of type {kind.__name__}")


class _Members(dict):
    """The members of an enum by their numbers."""

    def __missing__(self, number):
        raise Malformed(f"{number!r} is none of {', '.join(str(member) for member in self.values())}")


def _variant(kind, name):
    return getattr(kind, name)


def _made(kind, op, fields):
    if not op:
        return kind(**fields)
    if len(op) > 1 or fields or type(op[0]) is not kind:
        raise TypeError(f"next.{kind.method} takes one {kind.__name__}, or its fields by name")
    return op[0]


'''

TAIL = '''

def _whole(take, buf, pos, end):
    """Decodes a value that fills the bytes from `pos` to `end`."""
    try:
        value, at = take(buf, pos, end)
    except Malformed:
        raise
    except (KeyError, IndexError, _StructError, UnicodeDecodeError) as error:
        raise Malformed(f"malformed bytes: {type(error).__name__} {error}") from None
    if at != end:
        raise Malformed("bytes follow the value" if at < end else "the input ends before the value does")
    return value


def _take_op(buf, pos, end):
    return _OPS[buf[pos] << 8 | buf[pos + 1]](buf, pos + 2, end)


def _take_reply(buf, pos, end):
    return _REPLIES[buf[pos]](buf, pos + 1, end)


def _take_error(buf, pos, end):
    start, number = pos, buf[pos]
    name, errno, text = ERRORS[number]
    fields, pos = {}, pos + 1
    if number in _TAKE_ERROR:
        fields, pos = _TAKE_ERROR[number](buf, pos, end)
    errno = errno or (fields["errno"] if 1 <= fields["errno"] <= 133 else 5)
    what = fields.get("what")
    made = make_error(errno, f"{text}: {what}" if what else text, name, bytes(buf[start:pos]))
    for field, value in fields.items():
        if field != "errno":
            setattr(made, field, value)
    return made, pos


def decode_op(buf, pos=0, end=None):
    """The op encoded in `buf[pos:end]`. Raises Malformed. `buf`: bytes, or an mmap."""
    return _whole(_take_op, buf, pos, len(buf) if end is None else end)


def decode_reply(buf, pos=0, end=None):
    """The reply encoded in `buf[pos:end]`. Raises Malformed."""
    return _whole(_take_reply, buf, pos, len(buf) if end is None else end)


def decode_error(buf, pos=0, end=None):
    """The error encoded in `buf[pos:end]`, not raised. Raises Malformed."""
    return _whole(_take_error, buf, pos, len(buf) if end is None else end)


def decode_result(buf, pos=0, end=None):
    """The reply of the result encoded in `buf[pos:end]`; raises its error, or Malformed."""
    end = len(buf) if end is None else end
    tag = buf[pos] if pos < end else None
    if tag == 1:
        return _whole(_take_reply, buf, pos + 1, end)
    if tag == 0:
        raise _whole(_take_error, buf, pos + 1, end)
    raise Malformed("a result is neither a value nor an error")


def put_result(result, add):
    """Adds the encoding of a reply, or of an OSError."""
    if isinstance(result, OSError):
        add(b"\\0")
        if isinstance(result, HekateError) and result.encoded:
            add(result.encoded)
        else:
            number = result.errno if isinstance(result.errno, int) and 1 <= result.errno <= 133 else 5
            _put_error_Refused(add, number, str(result.strerror or result)[:TEXT_CHARS_MAX])
    else:
        add(b"\\1")
        result._put(add)


def encode_result(result):
    """The encoding of a reply, or of an OSError."""
    parts = []
    put_result(result, parts.append)
    return b"".join(parts)


def error(name, **fields):
    """The error of Hekate with this name, to raise: `ops.error("NotFound")`, `ops.error("Invalid", what="...")`."""
    if name not in _ERROR_NUMBERS:
        raise TypeError(f"no error is called {name!r}; there are: {', '.join(_ERROR_NUMBERS)}")
    number, parts = _ERROR_NUMBERS[name], []
    if number in _PUT_ERROR:
        _PUT_ERROR[number](parts.append, **fields)
    else:
        if fields:
            raise TypeError(f"{name} has no fields")
        parts.append(bytes([number]))
    return decode_error(b"".join(parts))'''


def write(vocabulary):
    return Writer(vocabulary).text()
