"""The wire by hand (docs/format/wire.md): what an attacker says, who does not use our client."""

import contextlib
import json
import os
import socket
import ssl
import struct
import tempfile
import tomllib

CHALLENGE, HELLO, WELCOME, REQUESTS, REPLIES, CONTROL, CONTROL_REPLY, PACKET = range(1, 9)
DENIED, READ_ONLY, STALE, SESSION_ENDED, OTHER_SERVER, PROTOCOL = 13, 15, 20, 25, 36, 34
ROOT = 1  # the inode of every volume's root directory
SERVER = b"\x03"


@contextlib.contextmanager
def user(uid):
    """What is connected meanwhile is that user's, as the kernel says."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(value)) + value


def wide(value):
    return struct.pack("<QQ", value & (1 << 64) - 1, value >> 64)


def header(length, kind, number=0):
    return struct.pack("<IB3xQ", length, kind, number)


def open_volume(name):
    return b"\x01" + text(name)


def resume(name, session):
    return b"\x02" + text(name) + struct.pack("<Q", session)


TO_CONTROL = b"\x03"


def peer(server, boot, to):
    return b"\x04" + struct.pack("<IQI", server, boot, to)


def listen(name, session):
    return b"\x05" + text(name) + struct.pack("<Q", session)


def tls(credential=None):
    """How a client connects that trusts any server, and shows the certificate of this file if one is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if credential:
        load(context, credential)
    return context


def load(context, credential, with_roots=False):
    """Lets a context show the certificate of a credential."""
    shown = parts_of(credential)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(shown["chain"] + (shown["roots"] if with_roots else "") + shown["key"])
        file.flush()
        context.load_cert_chain(file.name)


def parts_of(credential):
    with open(credential, "rb") as file:
        return tomllib.load(file)


class Refused(Exception):
    """What the server said: the error's number, and its text if it has one."""

    def __init__(self, number, what):
        super().__init__(f"error {number} {what}")
        self.number, self.what = number, what


def error_in(body, at):
    """The error behind the 0 of a result."""
    number, what = body[at], body[at + 1 :]
    length = struct.unpack_from("<I", what)[0] if len(what) >= 4 else 0
    return Refused(number, what[4 : 4 + length].decode(errors="replace"))


class Raw:
    """A connection. `address`: a socket's path, or (host, port), where TLS is spoken with this credential, or without one."""

    def __init__(self, address, uid=0, credential=None, limit_s=20):
        is_local = isinstance(address, str)
        self.socket = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET)
        self.socket.settimeout(limit_s)
        with user(uid):
            self.socket.connect(address)
        if not is_local:
            self.socket = tls(credential).wrap_socket(self.socket)

    def close(self):
        self.socket.close()

    def exactly(self, count):
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def receive(self):
        length, kind, number = struct.unpack("<IB3xQ", self.exactly(16))
        return kind, number, self.exactly(length)

    def send(self, kind, body, number=0):
        self.socket.sendall(header(len(body), kind, number) + body)

    def has_ended(self):
        """Whether the server ends the connection, without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def challenge(self):
        """-> the server's version."""
        kind, _, body = self.receive()
        assert kind == CHALLENGE, kind
        return struct.unpack("<I", body)[0]

    def hello(self, purpose):
        self.send(HELLO, struct.pack("<I", self.challenge()) + purpose)

    def welcome(self):
        """-> the session, and the map; or raises `Refused`."""
        kind, _, body = self.receive()
        assert kind == WELCOME, kind
        if body[0] == 0:
            raise error_in(body, 1)
        session, length = struct.unpack_from("<QI", body, 1)
        return session, json.loads(body[13 : 13 + length] or b"null")

    def ask(self, request):
        """A control request, a dictionary or text. -> the answer."""
        self.send(CONTROL, text(request if isinstance(request, str) else json.dumps(request)), 1)
        kind, _, body = self.receive()
        assert kind == CONTROL_REPLY, kind
        return json.loads(body[4:])


def greeted(address, purpose, uid=0, credential=None):
    """A connection that was welcomed. -> it, the session, the map."""
    raw = Raw(address, uid, credential)
    raw.hello(purpose)
    return raw, *raw.welcome()


def refusal(address, purpose, uid=0, credential=None):
    """What the server refuses a hello with; it must."""
    raw = Raw(address, uid, credential)
    raw.hello(purpose)
    try:
        raw.welcome()
    except Refused as refused:
        return refused
    raise AssertionError(f"{purpose!r} of user {uid} was welcomed")


def control(address, request, uid=0, credential=None):
    raw, *_ = greeted(address, TO_CONTROL, uid, credential)
    try:
        return raw.ask(request)
    finally:
        raw.close()


class Session:
    """A session on a volume, whose owner sends what they like."""

    def __init__(self, address, volume, uid=0, credential=None):
        self.raw, self.session, self.map = greeted(address, open_volume(volume), uid, credential)
        self.volume, self.ring, self.views = self.map["volume"], self.map["ring"], self.map["views"]
        self.count = 0

    def at(self, partition, ring=None, epoch=None):
        epoch = self.views[partition]["epoch"] if epoch is None else epoch
        return b"\x01" + struct.pack("<HIQ", ring or self.ring, partition, epoch)

    def member(self, partition, brick=None, epoch=None):
        """The target of fast writes: one member, the leader if none is named"""
        brick = int(self.views[partition]["leader"], 16) if brick is None else brick
        return b"\x04" + self.at(partition, epoch=epoch)[1:] + wide(brick)

    def home(self, inode):
        """The target of an inode's ops."""
        return self.at(self.partition_of(inode))

    def partition_of(self, inode):
        return (inode >> 96) * len(self.views) >> 32

    def request(self, target, op, volume=None, session=None, durable=0):
        self.count += 1
        head = struct.pack("<I", volume or self.volume) + target
        return head + struct.pack("<QQBBB", session or self.session, self.count << 8 | 1, durable, 0, 0) + op

    def send(self, *requests):
        """One frame. -> the body of the answers behind their count."""
        self.raw.send(REQUESTS, struct.pack("<I", len(requests)) + b"".join(requests), self.count)
        kind, _, body = self.raw.receive()
        assert kind == REPLIES, kind
        assert struct.unpack_from("<I", body)[0] == len(requests), "not all are answered"
        return body[4:]

    def do(self, target, op, **named):
        """-> the reply's bytes, or raises `Refused`."""
        body = self.send(self.request(target, op, **named))
        if body[0] == 0:
            raise error_in(body, 1)
        return body[1:]

    def refusal(self, target, op, **named):
        try:
            self.do(target, op, **named)
        except Refused as refused:
            return refused
        raise AssertionError(f"done: {op[:60]!r}")

    def create(self, name, node=b"\x01", mode=0o644, uid=0, gid=0):
        """In the root directory, wherever its partition is. -> the inode's id."""
        op = b"\x01\x02" + wide(ROOT) + text(name) + node
        op += struct.pack("<HIIHBQ", mode, uid, gid, 0, 1, int.from_bytes(os.urandom(8), "little"))
        low, high = struct.unpack_from("<QQ", self.do(self.home(ROOT), op), 1)
        return high << 64 | low


def get_attributes(inode):
    return b"\x02\x01" + wide(inode)


def set_mode(inode, mode):
    return b"\x02\x02" + wide(inode) + b"\x01" + struct.pack("<H", mode) + bytes(7)


def write_shard(data, index, offset, content):
    return b"\x04\x05" + wide(data) + struct.pack("<QI", index, offset) + text(content) + b"\x00\x00"


def fast_write(data, index, offset, content, count=1):
    """As if its leader had allowed it"""
    stamp = struct.pack("<QQQ", count, 1, 257)
    return b"\x04\x11" + wide(data) + struct.pack("<QI", index, offset) + text(content) + stamp + b"\x01" + struct.pack("<Q", 1)


def raw_write(data, index, offset, content):
    """The step of a raw write that brings the bytes"""
    return b"\x04\x12" + wide(data) + struct.pack("<Q", index) + b"\x03" + struct.pack("<I", offset) + text(content)


def sync(volume, data, index):
    return b"\x04\x07" + struct.pack("<QII", 1, 1, volume) + wide(data) + struct.pack("<Q", index) + b"\x00"
