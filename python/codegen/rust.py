"""Reads the `wire_struct!`, `wire_enum!` and `wire_newtype!` blocks of crates/proto, the labels of the ops, and the
table of errors.

The blocks are regular: documented items, named fields, explicit numbers. Anything else is refused, so that a change of
the style of crates/proto is noticed here and not in a wrong encoding."""

import re
from dataclasses import dataclass, field
from pathlib import Path

FILES = ["ids.rs", "attr.rs", "lock.rs", "pledge.rs", "error.rs", "reply.rs", "op.rs"]
# Types with an encoding of their own in crates/proto/src/ids.rs, encoded as this integer.
BY_HAND = {"InodeId": "u128", "DataId": "u128", "BrickId": "u128"}
INTEGERS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16, "i64": 8}


@dataclass
class Field:
    name: str
    type: tuple
    doc: str = ""


@dataclass
class Variant:
    number: int
    name: str
    fields: list
    doc: str = ""


@dataclass
class Type:
    """`kind`: struct, enum, or newtype. Enums have `variants`, structs `fields`, newtypes `inner`."""

    name: str
    kind: str
    doc: str = ""
    fields: list = field(default_factory=list)
    variants: list = field(default_factory=list)
    inner: str = ""

    @property
    def is_plain(self):
        """An enum without any fields: a number."""
        return self.kind == "enum" and not any(variant.fields for variant in self.variants)


@dataclass
class Op:
    """One client op. `numbers`: of the family and of the op in it. `replies`: names of the replies that its
    documentation promises."""

    name: str
    label: str
    family: str
    numbers: tuple
    fields: list
    doc: str
    replies: list

    @property
    def method(self):
        return self.label.replace("-", "_")


@dataclass
class ErrorRow:
    variant: Variant
    errno: int
    text: str


class Vocabulary:
    """All types of crates/proto by name, the ops that reach the top of a graph, their replies, the errors."""

    def __init__(self, source):
        self.types = {name: Type(name, "newtype", inner=inner) for name, inner in BY_HAND.items()}
        for file in FILES:
            self.types.update(parse((source / file).read_text()))
        self.ops = self.client_ops(labels((source / "op" / "label.rs").read_text()))
        self.replies = [v for v in self.types["Reply"].variants if v.name in REPLIES]
        self.errors = self.error_rows((source / "error.rs").read_text())

    def client_ops(self, label_of):
        found = []
        for family in self.types["Op"].variants:
            for variant in self.types.get(family.name + "Op", Type("", "enum")).variants:
                label = label_of[f"{family.name}Op", variant.name]
                if label in INNER_OPS:
                    continue
                name = camel(label) if "-" in label else variant.name
                found.append(
                    Op(name, label, family.name, (family.number, variant.number), variant.fields, variant.doc, [])
                )
                found[-1].doc, found[-1].replies = AT_THE_TOP.get(label, (variant.doc, None))
                found[-1].replies = found[-1].replies or promised(variant.doc)
        return found

    def error_rows(self, text):
        rows = dict(re.findall(r"Error::(\w+)(?: \{ [^}]*\})? => (?:\{\s*)?entry\(((?:[^()]|\([^()]*\))*)\)", text))
        found = []
        for variant in self.types["Error"].variants:
            errno, words = re.match(r'(\S+), \d+, \w+, "([^"]*)"', rows[variant.name]).groups()
            found.append(ErrorRow(variant, int(errno) if errno.isdigit() else 0, words))
        return found

    def reachable(self):
        """Names of the types that the client ops, their replies and the errors are made of, inner ones first."""
        seen, order = set(), []

        def visit(kind):
            if kind[0] == "ref":
                if kind[1] in seen:
                    return
                seen.add(kind[1])
                found = self.types[kind[1]]
                for each in found.fields + [f for v in found.variants for f in v.fields]:
                    visit(each.type)
                order.append(kind[1])
            for part in kind[1:]:
                if isinstance(part, tuple):
                    visit(part)

        for owner in self.ops + self.replies + self.types["Error"].variants:
            for each in owner.fields:
                visit(each.type)
        return order


# Ops that the layers below the top of the graph make, and that no client sends.
INNER_OPS = {
    "list-part", "stub", "restore-locks", "spill", "read-shard", "write-shard", "wrote", "sync", "allocate-shard",
    "seek-shard", "next-shard", "copy-shard", "fast-write", "raw-write", "empty-shards", "find-end", "heartbeat",
    "end-session", "return-pledges", "renew-pledges", "map",
}  # fmt: skip
REPLIES = {
    "Done", "Node", "List", "Bytes", "Names", "FileData", "Found", "Copied", "Space", "Lock", "Cancelled", "Waiting",
    "Fetched", "Keys", "Elsewhere",
}  # fmt: skip

# What an op does for those above `distribute`, where crates/proto says what one partition does: the documentation, and
# the replies if they are others.
AT_THE_TOP = {
    "lookup": ("What has a name. Replies `NotFound` if nothing has.", None),
    "rename": ("Gives an inode another name. `NodeReply` with mode `Whiteout`.", ["Done", "Node"]),
    "list": ("At most `limit` names after `after`, in byte order, with attributes where they cost no more.", None),
    "create-unnamed": ("Makes a file without a name. `linkable`: `Link` may give it one.", None),
    "join": (
        "Joins files of a directory to a new file there, in one record: it gets their pieces, and they are removed. "
        "Replies `ConditionFailed` if a part has another ETag.",
        None,
    ),
    "list-keys": (
        "At most `limit` names that begin with `prefix` and are after `after`, in the order of keys: a directory's "
        "name counts as if it ended in `/`. `spread` is 1 and means nothing here.",
        None,
    ),
    "getattr": ("The attributes of an inode. Replies `Stale` if it no longer exists.", None),
    "readlink": ("The target of a symbolic link.", None),
    "getxattr": ("The value of an extended attribute. Replies `NoAttribute` if the inode does not have it.", None),
    "listxattr": ("The names of an inode's extended attributes.", None),
    "removexattr": ("Removes an extended attribute. Replies `NoAttribute` if the inode does not have it.", None),
    "fetch-inode": ("As `Fetch`, of an inode.", ["Fetched"]),
    "set-lock": (
        "Takes, converts or releases a lock. If another owner holds one in conflict: `WouldBlock` without `wait`; with "
        "it `WaitingReply`, and the answer comes to the caller past the translators.",
        ["Done", "Waiting"],
    ),
    "cancel-lock": ("Cancels a waiting `SetLock` of this client, which is then `Interrupted`.", None),
    "read": ("Reads bytes; fewer at the end of the file. `touch`: note the time of access.", None),
    "write": ("Writes bytes. `drop_set_id`: clear set-user-id and set-group-id.", None),
    "fsync": ("Puts everything that this client has changed in the file on stable storage.", None),
    "allocate": ("fallocate(2).", None),
    "append": ("Writes bytes at the end of the file, whatever other clients append meanwhile.", None),
    "seek": ("SEEK_DATA, or with `hole` SEEK_HOLE. Replies `NoData` if there is none.", None),
    "copy": ("copy_file_range(2). Copies at most `length` bytes.", None),
    "statfs": ("The space of the volume.", None),
}


def promised(doc):
    """The replies after the arrow of an op's documentation, without those that only a partition gives."""
    arrow = re.search(r"->\s*((?:`\w+`(?:, or |, | or )?)+)", doc.replace("\n", " "))
    found = re.findall(r"`(\w+)`", arrow.group(1)) if arrow else []
    return [name for name in found if name in REPLIES and name != "Elsewhere"]


def camel(label):
    return "".join(part.capitalize() for part in label.split("-"))


def labels(text):
    arms = re.findall(r'(\w+Op)::(\w+)(?: \{ \.\. \})? => "([\w-]+)"', text)
    return {(family, name): label for family, name, label in arms}


def parse(text):
    """Types of the macro blocks of one file."""
    types = {}
    for macro in re.finditer(r"^(wire_struct|wire_enum|wire_newtype)! \{\n(.*?)^\}", text, re.M | re.S):
        for found in BLOCKS[macro.group(1)](Tokens(macro.group(2))):
            types[found.name] = found
    return types


class Tokens:
    """The tokens of a block. A run of `///` lines is one token."""

    def __init__(self, text):
        self.left = re.findall(r"(?:///[^\n]*\n\s*)+|//[^\n]*|#\[[^\]]*\]|\w+|[^\s\w]", text)
        self.left = [token for token in self.left if not re.match(r"//(?!/)", token) and not token.startswith("#[")]

    def peek(self):
        return self.left[0] if self.left else ""

    def next(self, *expected):
        token = self.left.pop(0)
        if expected and token not in expected:
            raise SyntaxError(f"{token!r} where {expected} belongs, before {self.left[:8]}")
        return token

    def skip(self, token):
        if self.peek() == token:
            self.next()

    def doc(self):
        if not self.peek().startswith("///"):
            return ""
        return "\n".join(line.strip()[3:].strip() for line in self.next().strip().split("\n"))

    def type(self):
        if self.peek() == "(":
            self.next()
            first = self.type()
            self.next(",")
            second = self.type()
            self.next(")")
            return ("tuple", first, second)
        name = self.next()
        if name in ("Option", "Vec", "Box"):
            self.next("<")
            inner = self.type()
            self.next(">")
            return inner if name == "Box" else (name.lower(), inner)
        if name in INTEGERS or name == "bool":
            return (name,)
        return (name.lower(),) if name in ("Bytes", "String", "Name") else ("ref", name)

    def fields(self, public):
        """The fields between braces."""
        found = []
        self.next("{")
        while self.peek() != "}":
            doc = self.doc()
            if public:
                self.next("pub")
            name = self.next()
            self.next(":")
            found.append(Field(name, self.type(), doc))
            self.skip(",")
        self.next("}")
        return found


def structs(tokens):
    while tokens.left:
        doc = tokens.doc()
        tokens.next("pub"), tokens.next("struct")
        yield Type(tokens.next(), "struct", doc, fields=tokens.fields(public=True))


def enums(tokens):
    while tokens.left:
        doc = tokens.doc()
        tokens.next("pub"), tokens.next("enum")
        found = Type(tokens.next(), "enum", doc)
        tokens.next("{")
        while tokens.peek() != "}":
            doc, number = tokens.doc(), int(tokens.next())
            tokens.next("=")
            name = tokens.next()
            fields = tokens.fields(public=False) if tokens.peek() == "{" else []
            found.variants.append(Variant(number, name, fields, doc))
            tokens.skip(",")
        tokens.next("}")
        yield found


def newtypes(tokens):
    while tokens.left:
        doc = tokens.doc()
        tokens.next("pub"), tokens.next("struct")
        name = tokens.next()
        tokens.next("(")
        yield Type(name, "newtype", doc, inner=tokens.next(*INTEGERS))
        tokens.next(")"), tokens.next(";")


BLOCKS = {"wire_struct": structs, "wire_enum": enums, "wire_newtype": newtypes}


def read(root):
    """The vocabulary of the repository at `root`."""
    return Vocabulary(Path(root) / "crates" / "proto" / "src")
