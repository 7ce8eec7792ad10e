"""The disk that loses power (tests/chaos/power/disk.py), on which the power cuts of the soak stand (docs/chaos.md)."""

import os
import socket
import struct
import subprocess
import sys

import pytest

from harness import equal, wait_until

POWER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos", "power")
sys.path.append(POWER)
import disk  # noqa: E402

BLOCK = 4096
A, B, C, D = (letter * BLOCK for letter in (b"a", b"b", b"c", b"d"))


class Client:
    """As qemu asks."""

    def __init__(self, path):
        self.stream = socket.socket(socket.AF_UNIX)
        # The socket is there before its program listens.
        wait_until(lambda: self.connects(path), "a disk that listens")
        self.exactly(18)
        self.stream.sendall(struct.pack(">I8sII", 0b11, disk.OPTION, disk.OPT_GO, 0))
        # The answer with the size, and the one that ends it.
        self.size = struct.unpack(">QIIIHQH", self.exactly(32))[5]
        self.exactly(20)

    def connects(self, path):
        try:
            self.stream.connect(path)
        except ConnectionRefusedError:
            return False
        return True

    def exactly(self, count):
        return self.stream.recv(count, socket.MSG_WAITALL)

    def ask(self, *requests):
        """In one piece: (kind, at, count, data) each. -> what is read."""
        self.stream.sendall(b"".join(disk.REQUEST_HEAD.pack(disk.REQUEST, 0, kind, 0, at, count) + data for kind, at, count, data in requests))
        found = b""
        for _ in requests:
            equal(struct.unpack(">IIQ", self.exactly(16)), (disk.REPLY, 0, 0), "an answer")
        for kind, _, count, _ in requests:
            found += self.exactly(count) if kind == disk.READ else b""
        return found


def write(number, data):
    return disk.WRITE, number * BLOCK, len(data), data


FLUSH = (disk.FLUSH, 0, 0, b"")


@pytest.mark.no_fuse
def test_a_power_cut_takes_only_what_no_flush_covered(store):
    image, path = store.path("image"), store.path("socket")
    with open(image, "wb") as file:
        file.truncate(16 * BLOCK)
    served = subprocess.Popen([sys.executable, "-B", f"{POWER}/disk.py", image, path])
    wait_until(lambda: os.path.exists(path), "a disk")
    client = Client(path)
    equal(client.size, 16 * BLOCK, "its size")
    client.ask(write(0, A))
    client.ask(write(1, B))
    client.ask(write(2, C), FLUSH)
    client.ask(write(0, D))
    equal(client.ask((disk.READ, 0, 3 * BLOCK, b"")), D + B + C, "what is read before the cut")
    client.stream.close()
    equal(served.wait(timeout=20), 0, "how the disk ended")
    pending = disk.pending_of(image)
    equal(pending, [(2 * BLOCK, C), (0, D)], "what a flush did not cover: what came with it, and after it")
    tells_all_kinds(image, pending)


def tells_all_kinds(image, pending):
    with open(image, "rb") as file:
        before = file.read()
    kinds, torn = set(), 0
    for seed in range(200):
        with open(image, "wb") as file:
            file.write(before)
        kinds.add(disk.cut(image, pending, seed).split(":")[0])
        with open(image, "rb") as file:
            after = file.read()
        for at in range(0, len(after), disk.SECTOR):
            new = (D if at < BLOCK else C if 2 * BLOCK <= at < 3 * BLOCK else before)[:disk.SECTOR]
            assert after[at:at + disk.SECTOR] in (before[at:at + disk.SECTOR], new), f"seed {seed}: sector at {at}"
        torn += 1 < len({after[at:at + disk.SECTOR] for at in range(0, BLOCK, disk.SECTOR)})
    equal(kinds, set(disk.KINDS), "kinds of cuts")
    assert torn, "no block is torn"
