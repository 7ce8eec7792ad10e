"""A disk that loses power: an NBD server for one guest, which keeps what no flush has covered apart from the image.

    disk.py IMAGE SOCKET [CHANCE]     serves IMAGE until the guest is gone; what was not flushed is then in IMAGE.pending

CHANCE: of each flush, to be forgotten, as by a disk that lies: to see that a run then finds what is missing.
SIGUSR1 asks it to end the guest itself when it is next told to flush something: when most is pending.
A flush covers what was answered before it was asked for, and no more: writes that arrive together with it stay pending. `cut`
makes of image and pending writes what a real disk may hold once power is back: each sector of 512 bytes is old or new.
"""

import os
import pickle
import random
import signal
import socket
import struct
import sys

SECTOR = 512
OPTION, OPTION_REPLY = b"IHAVEOPT", 0x0003E889045565A9
REQUEST, REPLY = 0x25609513, 0x67446698
REQUEST_HEAD = struct.Struct(">IHHQQI")
OPT_ABORT, OPT_GO = 2, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, 0x80000001
READ, WRITE, GOODBYE, FLUSH = range(4)
HAS_FLAGS_AND_FLUSH = 0b101
RECEIVED_MAX = 1 << 20
# A guest that does not connect so soon never will.
GUEST_S = 20

# The disks of a guest, in the order that it sees them: of the coordinator and each server, with what file system.
DISKS = {"k": "ext4", "s1": "ext4", "s2": "ext4", "s3": "xfs"}
# How a cut treats what is pending: nothing is kept, everything, the first writes of which the last is torn, some writes, some sectors.
KINDS = ["none", "all", "first", "writes", "sectors"]


class Disk:
    """The image, and above it what was written since the last flush: in order, and as the last of each sector."""

    def __init__(self, path, forgets):
        self.forgets = forgets
        self.file = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.file).st_size
        self.pending, self.last = [], {}

    def read(self, at, count):
        data = bytearray(os.pread(self.file, count, at))
        for place in range(at, at + count, SECTOR) if self.last else []:
            if place in self.last:
                data[place - at:place - at + SECTOR] = self.last[place]
        return bytes(data)

    def write(self, at, data):
        assert at % SECTOR == len(data) % SECTOR == 0, f"{len(data)} bytes at {at}"
        self.pending.append((at, data))
        for place in range(0, len(data), SECTOR):
            self.last[at + place] = data[place:place + SECTOR]

    def flush(self):
        if random.random() < self.forgets:
            return
        for at, data in self.pending:
            os.pwrite(self.file, data, at)
        self.pending, self.last = [], {}


class Connection:
    def __init__(self, stream, disk):
        self.stream, self.disk, self.received = stream, disk, b""
        self.ends_guest = False

    def exactly(self, count):
        while len(self.received) < count:
            more = self.stream.recv(RECEIVED_MAX)
            if not more:
                raise ConnectionResetError
            self.received += more
        data, self.received = self.received[:count], self.received[count:]
        return data

    def agree(self):
        """The fixed newstyle handshake; whatever the name of the export, it is this disk."""
        self.stream.sendall(b"NBDMAGIC" + OPTION + struct.pack(">H", 0b11))
        self.exactly(4)
        while True:
            magic, option, length = struct.unpack(">8sII", self.exactly(16))
            assert magic == OPTION, magic
            self.exactly(length)
            if option == OPT_GO:
                self.answer(option, REP_INFO, struct.pack(">HQH", 0, self.disk.size, HAS_FLAGS_AND_FLUSH))
            self.answer(option, REP_ACK if option in (OPT_GO, OPT_ABORT) else REP_UNSUPPORTED)
            if option == OPT_GO:
                return
            if option == OPT_ABORT:
                raise ConnectionResetError

    def answer(self, option, kind, data=b""):
        self.stream.sendall(struct.pack(">QIII", OPTION_REPLY, option, kind, len(data)) + data)

    def requests(self):
        """Those that are there, at least one; a flush among them comes first, since none of the others has been answered."""
        found = [self.request()]
        while self.is_whole():
            found.append(self.request())
        return sorted(found, key=lambda request: request[0] != FLUSH)

    def request(self):
        magic, _, kind, handle, at, count = REQUEST_HEAD.unpack(self.exactly(REQUEST_HEAD.size))
        assert magic == REQUEST, magic
        return kind, handle, at, count, self.exactly(count) if kind == WRITE else b""

    def is_whole(self):
        if len(self.received) < REQUEST_HEAD.size:
            return False
        _, _, kind, _, _, count = REQUEST_HEAD.unpack_from(self.received)
        return len(self.received) >= REQUEST_HEAD.size + (count if kind == WRITE else 0)

    def serve(self):
        while True:
            for kind, handle, at, count, data in self.requests():
                if kind == GOODBYE:
                    return
                found = self.disk.read(at, count) if kind == READ else b""
                if kind == WRITE:
                    self.disk.write(at, data)
                elif kind == FLUSH:
                    if self.ends_guest and self.disk.pending:
                        return self.end_guest()
                    self.disk.flush()
                self.stream.sendall(struct.pack(">IIQ", REPLY, 0, handle) + found)

    def end_guest(self):
        pid, _, _ = struct.unpack("3i", self.stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(pid, signal.SIGKILL)


def main(image, path, forgets="0"):
    disk = Disk(image, float(forgets))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(GUEST_S)
        stream, _ = listener.accept()
    stream.settimeout(None)
    connection = Connection(stream, disk)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(connection, "ends_guest", True))
    try:
        connection.agree()
        connection.serve()
    except (ConnectionResetError, BrokenPipeError):
        pass
    with open(f"{image}.pending", "wb") as file:
        pickle.dump(disk.pending, file)


def pending_of(image):
    """-> the writes that no flush has covered, in order; none of a disk that nobody has used."""
    try:
        with open(f"{image}.pending", "rb") as file:
            return pickle.load(file)
    except FileNotFoundError:
        return []


def cut(image, writes, seed):
    """Changes an image to what a disk may hold after a power cut. -> in words, what was done."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    likely = draw.choice([0.1, 0.5, 0.9])
    until = draw.randrange(len(writes) + 1)
    kept = sectors = 0
    with open(image, "r+b") as file:
        for number, (at, data) in enumerate(writes):
            whole = {"none": False, "all": True, "first": number < until, "writes": draw.random() < likely}.get(kind)
            for place in range(0, len(data), SECTOR):
                torn = kind == "sectors" or (kind == "first" and number == until)
                sectors += 1
                if draw.random() < likely if torn else whole:
                    file.seek(at + place)
                    file.write(data[place:place + SECTOR])
                    kept += 1
    return f"{kind}: {kept} of {sectors}"


if __name__ == "__main__":
    main(*sys.argv[1:])
