"""Random values of every op, reply and error, made from the declarations in crates/proto."""

from codegen import rust
from codegen.codec import attribute, class_of
from generate import ROOT

from hekate import ops

VOCABULARY = rust.read(ROOT)
NAMES = [b"a", b"name.txt", b"\xff\xfe", b"x" * 255, "Ünï".encode(), b"..."]
EDGES = {name: [0, 1, (1 << 8 * size) - 1] for name, size in rust.INTEGERS.items()}
EDGES["i64"] = [0, -1, -(1 << 63), (1 << 63) - 1]


def value(random, kind):
    name = kind[0]
    if name in EDGES:
        low = -(1 << 63) if name == "i64" else 0
        high = EDGES[name][-1]
        return random.choice([*EDGES[name], random.randint(low, high)])
    if name == "bool":
        return random.random() < 0.5
    if name == "name":
        return random.choice(NAMES)
    if name == "bytes":
        return random.choice([b"", b"\0", random.randbytes(40)])
    if name == "string":
        return random.choice(["", "what is wrong", "Ünï ✓ 𝄞"])
    if name == "option":
        return value(random, kind[1]) if random.random() < 0.5 else None
    if name == "vec":
        return [value(random, kind[1]) for _ in range(random.choice([0, 1, 3]))]
    if name == "tuple":
        return tuple(value(random, part) for part in kind[1:])
    found = VOCABULARY.types[kind[1]]
    if found.kind == "newtype":
        return value(random, (found.inner,))
    python = getattr(ops, class_of(found.name))
    if found.kind == "struct":
        return python(**fields(random, found.fields))
    variant = random.choice(found.variants)
    made = getattr(python, variant.name)
    return made(**fields(random, variant.fields)) if variant.fields else made


def fields(random, declared):
    return {attribute(field): value(random, field.type) for field in declared}


def all_ops(random):
    return [getattr(ops, op.name)(**fields(random, op.fields)) for op in VOCABULARY.ops]


def all_results(random):
    """Every reply, and every error."""
    replies = [getattr(ops, r.name + "Reply")(**fields(random, r.fields)) for r in VOCABULARY.replies]
    variants = VOCABULARY.types["Error"].variants
    return replies + [ops.error(v.name, **{f.name: value(random, f.type) for f in v.fields}) for v in variants]
