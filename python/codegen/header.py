"""Writes include/hekate_ops.h: the ops, replies and errors as C99 structs, with decoders and encoders."""

import re

from .rust import INTEGERS

C_INTEGERS = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t"}
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
        self.add_union("op", "op", "uint16_t", "An op. The kind is the family in the high byte, the number in the low.", ops)
        replies = [(snake(v.name), v.number, v.fields, v.doc) for v in self.vocabulary.replies]
        self.add_union("reply", "reply", "uint8_t", "The reply to an op.", replies)
        error = self.vocabulary.types["Error"]
        self.add_union("error", "error", "uint8_t", error.doc, variants_of(error))
        self.add_errors()
        return HEAD + "\n".join(self.lines) + TAIL

    # Declarations.

    def add_comment(self, doc, depth=0):
        if doc:
            indent = "    " * depth
            lines = doc.replace("[`", "`").replace("`]", "`").replace("*/", "* /").split("\n")
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
        last = " || ".join(f"kind == {variant.number}" for variant in found.variants)
        self.add(f"static inline uint8_t hekate_take_{name}(struct hekate_in *in)\n{{")
        self.add("    uint8_t kind = (uint8_t)hekate_take_u8(in);")
        self.add(f"    return {last} ? kind : (uint8_t)hekate_in_fail(in, HEKATE_MALFORMED);\n}}\n")

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
        self.add(f"static inline void hekate_take_{short}(struct hekate_in *in, struct {name} *value)\n{{")
        for field in fields:
            self.take(field.type, f"value->{member(field)}", 1)
        self.add("}\n")
        self.add(f"static inline void hekate_put_{short}(struct hekate_out *out, const struct {name} *value)\n{{")
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
        self.add("    uint16_t kind = (uint16_t)hekate_take_u8(in);\n" if not wide else
                 "    uint16_t kind = (uint16_t)(hekate_take_u8(in) << 8);\n    kind = (uint16_t)(kind | hekate_take_u8(in));\n")
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
            return f"hekate_put_u8(out, {value})"
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
        self.add("static inline const char *hekate_error_name(const struct hekate_error *error)\n{\n    switch (error->kind) {")
        for row in self.vocabulary.errors:
            self.add(f'    case HEKATE_ERROR_{snake(row.variant.name).upper()}:\n        return "{row.variant.name}";')
        self.add("    default:\n        return NULL;\n    }\n}\n")
        self.add("/* The errno (errno(3)) of an error, as on Linux x86-64 and arm64. */")
        self.add("static inline int hekate_error_errno(const struct hekate_error *error)\n{\n    switch (error->kind) {")
        for row in self.vocabulary.errors:
            self.add(f"    case HEKATE_ERROR_{snake(row.variant.name).upper()}:")
            if row.errno:
                self.add(f"        return {row.errno};")
            else:
                given = f"error->u.{snake(row.variant.name)}.errno_value"
                self.add(f"        return {given} >= 1 && {given} <= 133 ? (int){given} : 5;")
        self.add("    default:\n        return 5;\n    }\n}\n")


def variants_of(found):
    return [(snake(v.name), v.number, v.fields, v.doc) for v in found.variants]


HEAD = '''/* Ops, replies and errors of Hekate, with their encoding. Generated by python/generate.py from crates/proto.
 *
 * C99, header-only. Nothing is allocated: byte strings point into the decoded buffer, lists are placed in an arena of
 * the caller, and both are valid as long as these are. Decoders never read past the end of the buffer, whatever it
 * holds.
 *
 *     struct hekate_arena arena = { memory, sizeof memory };
 *     struct hekate_op op;
 *     if (hekate_decode_op(data, length, &arena, &op) == HEKATE_OK && op.kind == HEKATE_OP_LOOKUP)
 *         printf("%.*s\\n", (int)op.u.lookup.name.length, (const char *)op.u.lookup.name.data);
 */
#ifndef HEKATE_OPS_H
#define HEKATE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a decoder returns. */
enum hekate_status {
    HEKATE_OK = 0,
    HEKATE_MALFORMED = -1, /* The bytes are not the encoding of one value. */
    HEKATE_NO_ROOM = -2    /* The arena is too small for the lists. */
};

/* An id of 128 bits. */
typedef struct hekate_u128 {
    uint64_t low;
    uint64_t high;
} hekate_id;

/* Bytes, without a NUL at their end. Names, byte strings, and texts in UTF-8. */
struct hekate_bytes {
    const uint8_t *data;
    uint32_t length;
};

/* A name or key, and a value. */
struct hekate_pair {
    struct hekate_bytes first;
    struct hekate_bytes second;
};

/* Memory for lists, used from its begin on. */
struct hekate_arena {
    void *memory;
    size_t left;
};

/* A cursor over received bytes. After a failure everything that is taken is 0. */
struct hekate_in {
    const uint8_t *at;
    size_t left;
    struct hekate_arena *arena;
    int status;
};

/* Where an encoding is written. `length` counts on when the room is over. */
struct hekate_out {
    uint8_t *data;
    size_t room;
    size_t length;
    bool invalid;
};

static inline int hekate_in_fail(struct hekate_in *in, int status)
{
    if (in->status == HEKATE_OK) {
        in->status = status;
    }
    in->left = 0;
    return 0;
}

static inline uint64_t hekate_take_integer(struct hekate_in *in, size_t size)
{
    uint64_t value = 0;
    size_t i;
    if (in->left < size) {
        return (uint64_t)hekate_in_fail(in, HEKATE_MALFORMED);
    }
    for (i = 0; i < size; i++) {
        value |= (uint64_t)in->at[i] << (8 * i);
    }
    in->at += size;
    in->left -= size;
    return value;
}

static inline uint64_t hekate_take_u8(struct hekate_in *in) { return hekate_take_integer(in, 1); }
static inline uint64_t hekate_take_u16(struct hekate_in *in) { return hekate_take_integer(in, 2); }
static inline uint64_t hekate_take_u32(struct hekate_in *in) { return hekate_take_integer(in, 4); }
static inline uint64_t hekate_take_u64(struct hekate_in *in) { return hekate_take_integer(in, 8); }

static inline hekate_id hekate_take_u128(struct hekate_in *in)
{
    hekate_id id;
    id.low = hekate_take_u64(in);
    id.high = hekate_take_u64(in);
    return id;
}

static inline bool hekate_take_bool(struct hekate_in *in)
{
    uint64_t value = hekate_take_u8(in);
    if (value > 1) {
        hekate_in_fail(in, HEKATE_MALFORMED);
    }
    return value == 1;
}

static inline struct hekate_bytes hekate_take_bytes(struct hekate_in *in)
{
    struct hekate_bytes bytes = { NULL, 0 };
    uint32_t length = (uint32_t)hekate_take_u32(in);
    if (length > in->left) {
        hekate_in_fail(in, HEKATE_MALFORMED);
        return bytes;
    }
    bytes.data = in->at;
    bytes.length = length;
    in->at += length;
    in->left -= length;
    return bytes;
}

/* True if the bytes are a name: 1 to 255 bytes, no / and no NUL, neither . nor .. */
static inline bool hekate_is_name(struct hekate_bytes name)
{
    if (name.length == 0 || name.length > 255 || memchr(name.data, 0, name.length) != NULL
        || memchr(name.data, '/', name.length) != NULL) {
        return false;
    }
    return !(name.data[0] == '.' && (name.length == 1 || (name.length == 2 && name.data[1] == '.')));
}

static inline struct hekate_bytes hekate_take_name(struct hekate_in *in)
{
    struct hekate_bytes name = hekate_take_bytes(in);
    if (!hekate_is_name(name)) {
        hekate_in_fail(in, HEKATE_MALFORMED);
    }
    return name;
}

/* True if the bytes are UTF-8 (RFC 3629). */
static inline bool hekate_is_utf8(struct hekate_bytes text)
{
    uint32_t i = 0;
    while (i < text.length) {
        uint8_t first = text.data[i];
        uint32_t more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
        uint32_t j;
        if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || more >= text.length - i) {
            return false;
        }
        for (j = 1; j <= more; j++) {
            if ((text.data[i + j] & 0xc0) != 0x80) {
                return false;
            }
        }
        if ((first == 0xe0 && text.data[i + 1] < 0xa0) || (first == 0xed && text.data[i + 1] > 0x9f)
            || (first == 0xf0 && text.data[i + 1] < 0x90) || (first == 0xf4 && text.data[i + 1] > 0x8f)) {
            return false;
        }
        i += more + 1;
    }
    return true;
}

static inline struct hekate_bytes hekate_take_string(struct hekate_in *in)
{
    struct hekate_bytes text = hekate_take_bytes(in);
    if (!hekate_is_utf8(text)) {
        hekate_in_fail(in, HEKATE_MALFORMED);
    }
    return text;
}

/* The count of a list whose items take at least `size` bytes each. */
static inline uint32_t hekate_take_count(struct hekate_in *in, size_t size)
{
    uint32_t count = (uint32_t)hekate_take_u32(in);
    return count > in->left / size ? (uint32_t)hekate_in_fail(in, HEKATE_MALFORMED) : count;
}

/* Room for a list. NULL for an empty one, and if the arena is too small. */
static inline void *hekate_in_room(struct hekate_in *in, size_t count, size_t size)
{
    size_t pad;
    uint8_t *room;
    if (count == 0) {
        return NULL;
    }
    if (in->arena == NULL || in->arena->memory == NULL) {
        hekate_in_fail(in, HEKATE_NO_ROOM);
        return NULL;
    }
    pad = (size_t)(-(uintptr_t)in->arena->memory & 15);
    if (in->arena->left < pad || (in->arena->left - pad) / size < count) {
        hekate_in_fail(in, HEKATE_NO_ROOM);
        return NULL;
    }
    room = (uint8_t *)in->arena->memory + pad;
    in->arena->memory = room + count * size;
    in->arena->left -= pad + count * size;
    memset(room, 0, count * size);
    return room;
}

static inline void hekate_put_raw(struct hekate_out *out, const void *data, size_t size)
{
    if (out->length <= out->room && size <= out->room - out->length && size > 0) {
        memcpy(out->data + out->length, data, size);
    }
    out->length += size;
}

static inline void hekate_put_integer(struct hekate_out *out, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    size_t i;
    for (i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    hekate_put_raw(out, bytes, size);
}

static inline void hekate_put_u8(struct hekate_out *out, uint8_t value) { hekate_put_integer(out, value, 1); }
static inline void hekate_put_u16(struct hekate_out *out, uint16_t value) { hekate_put_integer(out, value, 2); }
static inline void hekate_put_u32(struct hekate_out *out, uint32_t value) { hekate_put_integer(out, value, 4); }
static inline void hekate_put_u64(struct hekate_out *out, uint64_t value) { hekate_put_integer(out, value, 8); }
static inline void hekate_put_bool(struct hekate_out *out, bool value) { hekate_put_u8(out, value ? 1 : 0); }

static inline void hekate_put_u128(struct hekate_out *out, hekate_id id)
{
    hekate_put_u64(out, id.low);
    hekate_put_u64(out, id.high);
}

static inline void hekate_put_bytes(struct hekate_out *out, struct hekate_bytes bytes)
{
    hekate_put_u32(out, bytes.length);
    hekate_put_raw(out, bytes.data, bytes.length);
}

static inline void hekate_put_string(struct hekate_out *out, struct hekate_bytes text)
{
    out->invalid = out->invalid || !hekate_is_utf8(text);
    hekate_put_bytes(out, text);
}

static inline void hekate_put_name(struct hekate_out *out, struct hekate_bytes name)
{
    out->invalid = out->invalid || !hekate_is_name(name);
    hekate_put_bytes(out, name);
}

'''

TAIL = '''
/* What an op came to: a reply, or an error. */
struct hekate_result {
    bool is_ok;
    union {
        struct hekate_reply reply;
        struct hekate_error error;
    } u;
};

static inline void hekate_take_result(struct hekate_in *in, struct hekate_result *value)
{
    value->is_ok = hekate_take_bool(in);
    if (value->is_ok) {
        hekate_take_reply(in, &value->u.reply);
    } else {
        hekate_take_error(in, &value->u.error);
    }
}

static inline void hekate_put_result(struct hekate_out *out, const struct hekate_result *value)
{
    hekate_put_bool(out, value->is_ok);
    if (value->is_ok) {
        hekate_put_reply(out, &value->u.reply);
    } else {
        hekate_put_error(out, &value->u.error);
    }
}

/* Decodes a value that fills `data` exactly. Returns an enum hekate_status. */
#define HEKATE_DECODE(name)                                                                                       \\
    static inline int hekate_decode_##name(                                                                       \\
        const uint8_t *data, size_t length, struct hekate_arena *arena, struct hekate_##name *value)              \\
    {                                                                                                             \\
        struct hekate_in in;                                                                                      \\
        in.at = data;                                                                                             \\
        in.left = length;                                                                                         \\
        in.arena = arena;                                                                                         \\
        in.status = HEKATE_OK;                                                                                    \\
        memset(value, 0, sizeof *value);                                                                          \\
        hekate_take_##name(&in, value);                                                                           \\
        return in.status != HEKATE_OK ? in.status : in.left == 0 ? HEKATE_OK : HEKATE_MALFORMED;                  \\
    }

/* Returns the length of the encoding; 0 if the value has none (a kind that does not exist, a name that is none). It is
 * written whole if it is at most `room`; otherwise what `data` holds means nothing. */
#define HEKATE_ENCODE(name)                                                                                       \\
    static inline size_t hekate_encode_##name(const struct hekate_##name *value, uint8_t *data, size_t room)      \\
    {                                                                                                             \\
        struct hekate_out out;                                                                                    \\
        out.data = data;                                                                                          \\
        out.room = room;                                                                                          \\
        out.length = 0;                                                                                           \\
        out.invalid = false;                                                                                      \\
        hekate_put_##name(&out, value);                                                                           \\
        return out.invalid ? 0 : out.length;                                                                      \\
    }

HEKATE_DECODE(op)
HEKATE_DECODE(reply)
HEKATE_DECODE(error)
HEKATE_DECODE(result)
HEKATE_ENCODE(op)
HEKATE_ENCODE(reply)
HEKATE_ENCODE(error)
HEKATE_ENCODE(result)

#endif
'''


def write(vocabulary):
    return Header(vocabulary).text()
