"""Writes include/hekate_ops.h: the ops, replies and errors as C99 structs, with decoders and encoders, between
the texts of header_head.h and header_tail.h."""

import re
import textwrap
from pathlib import Path

from .python import COLUMNS
from .rust import INTEGERS

C_INTEGERS = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t"}
HERE = Path(__file__).resolve().parent
# `errno` is a macro.
RENAMED_FIELDS = {"errno": "errno_value"}


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def member(field):
    return RENAMED_FIELDS.get(field.name, field.name)


class Header:
    def __init__(self, vocabulary):
        self.vocabulary, self.lines = vocabulary, []

    def add(self, text=""):
        self.lines.append(text)

    def text(self):
        for name in self.vocabulary.reachable():
            found = self.vocabulary.types[name]
            if found.kind == "struct":
                self.add_struct(f"hekate_{snake(name)}", found.fields, found.doc)
            elif found.kind == "enum" and found.is_plain:
                self.add_plain_enum(found)
            elif found.kind == "enum":
                self.add_union(snake(name), snake(name), "uint8_t", found.doc, variants_of(found))
        ops = [(op.method, op.numbers[0] << 8 | op.numbers[1], op.fields, op.doc) for op in self.vocabulary.ops]
        doc = "An op. The kind is the family in the high byte, the number in the low."
        self.add_union("op", "op", "uint16_t", doc, ops)
        replies = [(snake(v.name), v.number, v.fields, v.doc) for v in self.vocabulary.replies]
        self.add_union("reply", "reply", "uint8_t", "The reply to an op.", replies)
        error = self.vocabulary.types["Error"]
        self.add_union("error", "error", "uint8_t", error.doc, variants_of(error))
        self.add_errors()
        head, tail = ((HERE / name).read_text() for name in ("header_head.h", "header_tail.h"))
        return head + "\n".join(self.lines) + tail

    # Declarations.

    def add_comment(self, doc, depth=0):
        if doc:
            indent = "    " * depth
            text = doc.replace("[`", "`").replace("`]", "`").replace("*/", "* /")
            width = COLUMNS - len(indent) - len("/*  */")
            lines = [part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""]]
            self.add(f"{indent}/* " + f"\n{indent} * ".join(lines) + " */")

    def add_plain_enum(self, found):
        name = snake(found.name)
        self.add_comment(found.doc)
        self.add(f"enum hekate_{name} {{")
        for variant in found.variants:
            self.add_comment(variant.doc, 1)
            self.add(f"    HEKATE_{name.upper()}_{snake(variant.name).upper()} = {variant.number},")
        self.lines[-1] = self.lines[-1].rstrip(",")
        self.add("};\n")
        first, last = found.variants[0].number, found.variants[-1].number
        numbers = [variant.number for variant in found.variants]
        assert numbers == list(range(first, last + 1)), f"the numbers of {found.name} have a gap"
        known = f"kind <= {last}" if first == 0 else f"kind >= {first} && kind <= {last}"
        self.add(f"static inline uint8_t hekate_take_{name}(struct hekate_in *in)\n{{")
        self.add("    uint8_t kind = (uint8_t)hekate_take_u8(in);")
        self.add(f"    return {known} ? kind : (uint8_t)hekate_in_fail(in, HEKATE_MALFORMED);\n}}\n")
        self.add(f"static inline void hekate_put_{name}(struct hekate_out *out, uint8_t kind)\n{{")
        self.add(f"    out->invalid = out->invalid || !({known});\n    hekate_put_u8(out, kind);\n}}\n")

    def declare(self, field, depth):
        self.add_comment(field.doc, depth)
        indent, kind, name = "    " * depth, field.type, member(field)
        if kind[0] == "option":
            self.add(f"{indent}bool has_{name};")
            kind = kind[1]
        if kind[0] == "vec":
            self.add(f"{indent}const {self.c_type(kind[1])} *{name};")
            self.add(f"{indent}uint32_t {name}_count;")
        else:
            self.add(f"{indent}{self.c_type(kind)} {name};")

    def c_type(self, kind):
        name = kind[0]
        if name in C_INTEGERS:
            return C_INTEGERS[name]
        if name == "tuple":
            return "struct hekate_pair"
        if name != "ref":
            return {"u128": "hekate_id", "bool": "bool"}.get(name, "struct hekate_bytes")
        found = self.vocabulary.types[kind[1]]
        if found.kind == "newtype":
            return self.c_type((found.inner,))
        return "uint8_t" if found.is_plain else f"struct hekate_{snake(found.name)}"

    def add_struct(self, name, fields, doc):
        self.add_comment(doc)
        self.add(f"struct {name} {{")
        for field in fields:
            self.declare(field, 1)
        self.add("};\n")
        self.add_functions(name, fields)

    def add_functions(self, name, fields):
        short = name[len("hekate_") :]
        self.add(signature(f"hekate_take_{short}", "struct hekate_in *in", f"struct {name} *value"))
        for field in fields:
            self.take(field.type, f"value->{member(field)}", 1)
        self.add("}\n")
        self.add(signature(f"hekate_put_{short}", "struct hekate_out *out", f"const struct {name} *value"))
        for field in fields:
            self.put(field.type, f"value->{member(field)}", 1)
        self.add("}\n")

    def add_union(self, name, prefix, number_type, doc, variants):
        """A tagged union. `variants`: name, number, fields, documentation."""
        for variant, _, fields, text in variants:
            if fields:
                self.add_struct(f"hekate_{prefix}_{variant}", fields, text)
        self.add(f"enum hekate_{name}_kind {{")
        for variant, number, fields, text in variants:
            if not fields:
                self.add_comment(text, 1)
            self.add(f"    HEKATE_{prefix.upper()}_{variant.upper()} = {number:#x},")
        self.lines[-1] = self.lines[-1].rstrip(",")
        self.add("};\n")
        self.add_comment(doc)
        self.add(f"struct hekate_{name} {{")
        self.add(f"    {number_type} kind; /* enum hekate_{name}_kind */")
        self.add("    union {")
        for variant, _, fields, _ in variants:
            if fields:
                self.add(f"        struct hekate_{prefix}_{variant} {variant};")
        self.add("    } u;\n};\n")
        self.add_union_functions(name, prefix, number_type, variants)

    def add_union_functions(self, name, prefix, number_type, variants):
        wide = number_type == "uint16_t"
        self.add(f"static inline void hekate_take_{name}(struct hekate_in *in, struct hekate_{name} *value)\n{{")
        if wide:
            self.add("    uint16_t kind = (uint16_t)(hekate_take_u8(in) << 8);")
            self.add("    kind = (uint16_t)(kind | hekate_take_u8(in));\n")
        else:
            self.add("    uint16_t kind = (uint16_t)hekate_take_u8(in);\n")
        self.add(f"    value->kind = {'kind' if wide else '(uint8_t)kind'};\n    switch (kind) {{")
        for variant, _, fields, _ in variants:
            self.add(f"    case HEKATE_{prefix.upper()}_{variant.upper()}:")
            if fields:
                self.add(f"        hekate_take_{prefix}_{variant}(in, &value->u.{variant});")
            self.add("        break;")
        self.add("    default:\n        hekate_in_fail(in, HEKATE_MALFORMED);\n    }\n}\n")
        self.add(f"static inline void hekate_put_{name}(struct hekate_out *out, const struct hekate_{name} *value)\n{{")
        if wide:
            self.add("    hekate_put_u8(out, (uint8_t)(value->kind >> 8));")
        self.add(f"    hekate_put_u8(out, {'(uint8_t)(value->kind & 0xff)' if wide else 'value->kind'});")
        self.add("    switch (value->kind) {")
        for variant, _, fields, _ in variants:
            self.add(f"    case HEKATE_{prefix.upper()}_{variant.upper()}:")
            if fields:
                self.add(f"        hekate_put_{prefix}_{variant}(out, &value->u.{variant});")
            self.add("        break;")
        self.add("    default:\n        out->invalid = true;\n    }\n}\n")

    # Bodies.

    def take(self, kind, target, depth):
        indent, name = "    " * depth, kind[0]
        if name == "option":
            flag = re.sub(r"(\w+)$", r"has_\1", target)
            self.add(f"{indent}{flag} = hekate_take_bool(in);\n{indent}if ({flag}) {{")
            self.take(kind[1], target, depth + 1)
            self.add(f"{indent}}}")
        elif name == "vec":
            kind_c, size = self.c_type(kind[1]), self.least(kind[1])
            self.add(f"{indent}{target}_count = hekate_take_count(in, {size});")
            self.add(f"{indent}{{\n{indent}    uint32_t i;")
            self.add(f"{indent}    {kind_c} *items = ({kind_c} *)hekate_in_room(in, {target}_count, sizeof *items);")
            self.add(f"{indent}    {target} = items;")
            self.add(f"{indent}    if (items == NULL) {{\n{indent}        {target}_count = 0;\n{indent}    }}")
            self.add(f"{indent}    for (i = 0; i < {target}_count; i++) {{")
            self.take(kind[1], "items[i]", depth + 2)
            self.add(f"{indent}    }}\n{indent}}}")
        elif name == "tuple":
            self.take(kind[1], f"{target}.first", depth), self.take(kind[2], f"{target}.second", depth)
        else:
            self.add(f"{indent}{self.take_call(kind, target)};")

    def take_call(self, kind, target):
        name = kind[0]
        if name in C_INTEGERS:
            return f"{target} = ({C_INTEGERS[name]})hekate_take_{'u64' if name == 'i64' else name}(in)"
        if name != "ref":
            return f"{target} = hekate_take_{name}(in)"
        found = self.vocabulary.types[kind[1]]
        if found.kind == "newtype":
            return self.take_call((found.inner,), target)
        if found.is_plain:
            return f"{target} = hekate_take_{snake(found.name)}(in)"
        return f"hekate_take_{snake(found.name)}(in, &{target})"

    def put(self, kind, value, depth):
        indent, name = "    " * depth, kind[0]
        if name == "option":
            flag = re.sub(r"(\w+)$", r"has_\1", value)
            self.add(f"{indent}hekate_put_bool(out, {flag});\n{indent}if ({flag}) {{")
            self.put(kind[1], value, depth + 1)
            self.add(f"{indent}}}")
        elif name == "vec":
            self.add(f"{indent}hekate_put_u32(out, {value}_count);\n{indent}{{\n{indent}    uint32_t i;")
            self.add(f"{indent}    for (i = 0; i < {value}_count; i++) {{")
            self.put(kind[1], f"{value}[i]", depth + 2)
            self.add(f"{indent}    }}\n{indent}}}")
        elif name == "tuple":
            self.put(kind[1], f"{value}.first", depth), self.put(kind[2], f"{value}.second", depth)
        else:
            self.add(f"{indent}{self.put_call(kind, value)};")

    def put_call(self, kind, value):
        name = kind[0]
        if name == "i64":
            return f"hekate_put_u64(out, (uint64_t){value})"
        if name != "ref":
            return f"hekate_put_{name}(out, {value})"
        found = self.vocabulary.types[kind[1]]
        if found.kind == "newtype":
            return self.put_call((found.inner,), value)
        if found.is_plain:
            return f"hekate_put_{snake(found.name)}(out, {value})"
        return f"hekate_put_{snake(found.name)}(out, &{value})"

    def least(self, kind):
        """Bytes of the shortest encoding of a type."""
        name = kind[0]
        if name in INTEGERS:
            return INTEGERS[name]
        if name in ("bool", "option"):
            return 1
        if name in ("bytes", "string", "vec"):
            return 4
        if name == "name":
            return 5
        if name == "tuple":
            return sum(self.least(part) for part in kind[1:])
        found = self.vocabulary.types[kind[1]]
        if found.kind == "newtype":
            return INTEGERS[found.inner]
        if found.kind == "struct":
            return sum(self.least(field.type) for field in found.fields)
        return 1 + min(sum(self.least(field.type) for field in variant.fields) for variant in found.variants)

    def add_errors(self):
        self.add("/* The name of an op in counters and traces, and of a method of a translator. NULL if it is none. */")
        self.add("static inline const char *hekate_op_label(const struct hekate_op *op)\n{\n    switch (op->kind) {")
        for op in self.vocabulary.ops:
            self.add(f'    case HEKATE_OP_{op.method.upper()}:\n        return "{op.label}";')
        self.add("    default:\n        return NULL;\n    }\n}\n")
        self.add("/* The name of an error, or NULL if it is none. */")
        self.add("static inline const char *hekate_error_name(const struct hekate_error *error)\n{")
        self.add("    switch (error->kind) {")
        for row in self.vocabulary.errors:
            name = row.variant.name
            self.add(f'    case HEKATE_ERROR_{snake(name).upper()}:\n        return "{name}";')
        self.add("    default:\n        return NULL;\n    }\n}\n")
        self.add("/* The errno (errno(3)) of an error, as on Linux x86-64 and arm64. */")
        self.add("static inline int hekate_error_errno(const struct hekate_error *error)\n{")
        self.add("    switch (error->kind) {")
        for row in self.vocabulary.errors:
            self.add(f"    case HEKATE_ERROR_{snake(row.variant.name).upper()}:")
            if row.errno:
                self.add(f"        return {row.errno};")
            else:
                given = f"error->u.{snake(row.variant.name)}.errno_value"
                self.add(f"        return {given} - 1 < 133 ? (int){given} : 5;")
        self.add("    default:\n        return 5;\n    }\n}\n")


def signature(name, *parameters):
    """The head of a function without a result."""
    line = f"static inline void {name}({', '.join(parameters)})"
    if len(line) > COLUMNS:
        line = f"static inline void {name}(\n    {', '.join(parameters)})"
    return line + "\n{"


def variants_of(found):
    return [(snake(v.name), v.number, v.fields, v.doc) for v in found.variants]


def write(vocabulary):
    return Header(vocabulary).text()
