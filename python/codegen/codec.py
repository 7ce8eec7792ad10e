"""Bodies of the functions of ops.py that encode and decode fields.

Fields of a fixed width that follow each other, also over the borders of nested structs and with the length of the
byte string behind them, are packed and unpacked by one precompiled struct.Struct."""

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
# Where two Rust types have one name, or a Rust name is a keyword of Python.
RENAMED_TYPES = {"Allocate": "AllocateMode"}
RENAMED_FIELDS = {"from": "from_"}


def class_of(name):
    return RENAMED_TYPES.get(name, name)


def attribute(field):
    return RENAMED_FIELDS.get(field.name, field.name)


class Code:
    """Lines of a function body, and the fixed-width fields that wait to be packed or unpacked at once."""

    def __init__(self, writer, depth=1):
        self.writer, self.depth, self.lines, self.pending, self.count = writer, depth, [], [], 0

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def local(self):
        self.count += 1
        return f"v{self.count}"

    def text(self):
        return "\n".join(self.lines)


class Decoder(Code):
    def fixed(self, code):
        name = self.local()
        self.pending.append((code, name))
        return name

    def flush(self):
        if self.pending:
            codes = "".join(code for code, _ in self.pending)
            names = ", ".join(name for _, name in self.pending)
            names += "," if len(self.pending) == 1 else ""
            unpack, size = self.writer.run(codes)
            self.line(f"{names if len(names) < 90 else f'({names})'} = _u{unpack}(buf, pos)")
            self.line(f"pos += {size}")
            self.pending = []

    def read(self, kind):
        """An expression of the next value, valid once everything is flushed."""
        name, types = kind[0], self.writer.vocabulary.types
        if name in FORMATS:
            return self.fixed(FORMATS[name])
        if name == "u128":
            low, high = self.fixed("Q"), self.fixed("Q")
            return f"{low} | {high} << 64"
        if name == "bool":
            return f"_BOOLS[{self.fixed('B')}]"
        if name in ("bytes", "name", "string"):
            return self.read_bytes(name)
        if name == "option":
            return self.read_option(kind[1])
        if name == "vec":
            return self.read_list(kind[1])
        if name == "tuple":
            return "(" + ", ".join(self.read(part) for part in kind[1:]) + ")"
        found = types[kind[1]]
        if found.kind == "newtype":
            return self.read((found.inner,))
        if found.kind == "struct":
            return f"{class_of(found.name)}({', '.join(self.read(field.type) for field in found.fields)})"
        if found.is_plain:
            return f"_{class_of(found.name)}s[{self.fixed('B')}]"
        self.flush()
        value = self.local()
        self.line(f"{value}, pos = _take_{class_of(found.name)}(buf, pos, end)")
        return value

    def read_bytes(self, name):
        length, value = self.fixed("I"), self.local()
        self.flush()
        self.line(f"{value} = buf[pos:pos + {length}]")
        self.line(f"pos += {length}")
        if name == "name":
            self.line(f"if {value} in _NO_NAMES or {length} > 255 or b'/' in {value} or b'\\0' in {value}:")
            self.line(f"    raise _bad_name({value})")
        return f"{value}.decode()" if name == "string" else value

    def read_option(self, inner):
        flag, value = self.fixed("B"), self.local()
        self.flush()
        self.line(f"{value} = None")
        self.line(f"if _BOOLS[{flag}]:")
        self.depth += 1
        expression = self.read(inner)
        self.flush()
        self.line(f"{value} = {expression}")
        self.depth -= 1
        return value

    def read_list(self, inner):
        length, value = self.fixed("I"), self.local()
        self.flush()
        self.line(f"if {length} > end - pos:")
        self.line('    raise Malformed("the count of a list is higher than the number of bytes left")')
        self.line(f"{value} = []")
        self.line(f"for _ in range({length}):")
        self.depth += 1
        expression = self.read(inner)
        self.flush()
        self.line(f"{value}.append({expression})")
        self.depth -= 1
        return value


class Encoder(Code):
    def fixed(self, code, expression):
        self.pending.append((code, expression))

    def flush(self):
        if self.pending:
            codes = "".join(code for code, _ in self.pending)
            if all(expression.isdigit() for _, expression in self.pending) and set(codes) == {"B"}:
                self.line(f"add({bytes(int(e) for _, e in self.pending)!r})")
            else:
                pack, _ = self.writer.run(codes)
                self.line(f"add(_p{pack}({', '.join(expression for _, expression in self.pending)}))")
            self.pending = []

    def put(self, kind, value):
        name, types = kind[0], self.writer.vocabulary.types
        if name in FORMATS:
            self.fixed(FORMATS[name], value)
        elif name == "u128":
            self.fixed("Q", f"{value} & _LOW"), self.fixed("Q", f"{value} >> 64")
        elif name == "bool":
            self.fixed("B", f"1 if {value} else 0")
        elif name in ("bytes", "name", "string"):
            self.put_bytes(name, value)
        elif name == "option":
            local = self.bind(value)
            self.fixed("B", f"{local} is not None")
            self.flush()
            self.line(f"if {local} is not None:")
            self.nested(kind[1], local)
        elif name == "vec":
            local, item = self.bind(value), self.local()
            self.fixed("I", f"len({local})")
            self.flush()
            self.line(f"for {item} in {local}:")
            self.nested(kind[1], item)
        elif name == "tuple":
            names = [self.local() for _ in kind[1:]]
            self.line(f"{', '.join(names)} = {value}")
            for part, local in zip(kind[1:], names):
                self.put(part, local)
        else:
            self.put_named(types[kind[1]], value)

    def put_named(self, found, value):
        if found.kind == "newtype":
            self.put((found.inner,), value)
        elif found.kind == "struct":
            local = self.bind(value)
            for field in found.fields:
                self.put(field.type, f"{local}.{attribute(field)}")
        elif found.is_plain:
            # An int is taken as well as a member.
            self.fixed("B", f"_{class_of(found.name)}s[{value}]")
        else:
            self.flush()
            self.line(f"{value}._put(add)")

    def put_bytes(self, name, value):
        local = self.local()
        check = {"name": "_name({})", "string": "{}.encode('utf-8', 'replace')", "bytes": "_bytes({})"}[name]
        self.line(f"{local} = {check.format(value)}")
        self.fixed("I", f"len({local})")
        self.flush()
        self.line(f"add({local})")

    def nested(self, kind, value):
        self.depth += 1
        self.put(kind, value)
        self.flush()
        self.depth -= 1

    def bind(self, value):
        if value.isidentifier() and value != "self":
            return value
        local = self.local()
        self.line(f"{local} = {value}")
        return local
