"""Writes the reference in docs/python-translators.md: tables of ops, replies, types and errors, between two marks."""

import re

from .codec import attribute, class_of
from .python import op_doc
from .stub import hint

BEGIN, END = "<!-- begin: written by python/generate.py -->", "<!-- end: written by python/generate.py -->"


def cell(doc):
    text = " ".join(doc.replace("[`", "`").replace("`]", "`").split())
    text = re.sub(r"\s*->\s*(`\w+`(, or |, | or )?)+\.?", "", text)
    return re.sub(r"`Op::|`NameOp::", "`", text).replace("|", "\\|")


def field_list(fields):
    return ", ".join(f"`{attribute(field)}`: {hint(field.type)}" for field in fields) or "none"


def type_rows(vocabulary):
    for name in vocabulary.reachable():
        found = vocabulary.types[name]
        shown = class_of(name)
        if found.kind == "newtype":
            yield f"| `{shown}` | int | {cell(found.doc) or 'An id of 128 bits.'} |"
        elif found.kind == "struct":
            yield f"| `{shown}` | {field_list(found.fields)} | {cell(found.doc)} |"
        else:
            variants = []
            for variant in found.variants:
                fields = ", ".join(f"{attribute(f)}: {hint(f.type)}" for f in variant.fields)
                variants.append(f"`.{variant.name}`" + (f" ({fields})" if fields else ""))
            yield f"| `{shown}` | one of {', '.join(variants)} | {cell(found.doc)} |"


def section(vocabulary):
    lines = ["", "### Ops", "", "| method | class | fields | replies | what it does |", "|---|---|---|---|---|"]
    for op in vocabulary.ops:
        replies = ", ".join(f"`{name}Reply`" for name in op.replies)
        lines.append(f"| `{op.method}` | `{op.name}` | {field_list(op.fields)} | {replies} | {cell(op_doc(op))} |")
    lines += ["", "### Replies", "", "| class | fields | what it is |", "|---|---|---|"]
    for reply in vocabulary.replies:
        lines.append(f"| `{reply.name}Reply` | {field_list(reply.fields)} | {cell(reply.doc)} |")
    lines += ["", "### Types of fields", "", "| type | fields, or values | what it is |", "|---|---|---|"]
    lines += type_rows(vocabulary)
    lines += ["", "### Errors", "", "| `error.name` | errno | text | fields |", "|---|---|---|---|"]
    for row in vocabulary.errors:
        errno = row.errno or "the translator's"
        lines.append(f"| `{row.variant.name}` | {errno} | {row.text} | {field_list(row.variant.fields)} |")
    return "\n".join([*lines, "", ""])


def write(vocabulary, page):
    """The page with the section between the marks replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + section(vocabulary) + END + rest.split(END)[1]
