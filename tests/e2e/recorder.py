"""Records histories: what processes on several mounts ask and are told, for `check-history` (crates/sim/src/recorded.rs).

A round is a new directory with a few names, files and locks that all processes work on at the same time. Names of one
kind (`MOVED`) are made, renamed and removed, those of the other (`LINKED`) linked and removed. The kernel looks up both names
of a rename, and does nothing if they lead to one inode, though that was at two moments. So an inode has one name of
the first kind at most, and only one mount renames to each of them, but for `SHARED`, to which all rename with NOREPLACE.

Each process has a file besides that it alone writes, with O_DSYNC or fsync, and all read: such overwrites take the fast
lane on volumes of mode `hsr`.
"""

import errno
import fcntl
import json
import os
import random
import struct
import time
import traceback

from against_ext4 import kernel

MOVED, LINKED = ["a", "b", "c", "d"], ["l", "m"]
SHARED = MOVED[-1]
RENAMES = {"replace": 0, "noreplace": 1, "exchange": 2}
CELL = 64
SHARD = 4 << 20
# Beside the inode; in shards, around the border of the first two.
FILES = {"small": 0, "large": SHARD - 3 * CELL}
CELLS = 6
# So far into a file of one process that it lies in shards.
OWN = 64 << 10
LOCK_BYTES = 4
OFD_SETLK = 37
FLOCKS = {"read": fcntl.LOCK_SH, "write": fcntl.LOCK_EX, "unlock": fcntl.LOCK_UN}
FCNTLS = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "unlock": fcntl.F_UNLCK}


def now():
    return time.monotonic_ns()


def close(fd):
    """Of a file that lost something it says so, once (ADR 21). MAY_FAIL=EIO: something may be lost."""
    try:
        os.close(fd)
    except OSError as error:
        if errno.errorcode[error.errno] not in os.environ.get("MAY_FAIL", "").split(","):
            raise


class Recorder:
    """One process on one mount: does calls in a round's directory, and keeps what it was told."""

    def __init__(self, who, mount, root, seed):
        self.who, self.mount, self.root = who, mount, root
        self.owners = []
        self.draw = random.Random(f"{seed}/{who}")
        self.lines = []
        self.held = []

    def call(self, what, function, named):
        """-> what the function answers; None if it failed. Both are noted, with their times."""
        begun = now()
        try:
            answer, error = function(), None
        except OSError as failed:
            answer, error = None, errno.errorcode[failed.errno]
        line = {"who": self.who, "from": begun, "to": now(), "op": what, **named}
        if error:
            line["error"] = error
        self.lines.append(line)
        return answer

    def need(self, what, function, named):
        """As `call`, of what a round cannot begin without: if it fails the round has not begun."""
        answer = self.call(what, function, named)
        if error := self.lines[-1].get("error"):
            raise OSError(getattr(errno, error), f"{what} of what a round begins with")
        return answer

    def note(self, **named):
        """More of what the last call was told."""
        self.lines[-1].update(named)

    def begin(self, round):
        """Opens what the round begins with."""
        self.base = f"{self.root}/round{round}"
        self.dirs = [(f"{self.base}/{name}", os.stat(f"{self.base}/{name}").st_ino) for name in ("d0", "d1")]
        self.files = {name: os.open(f"{self.base}/{name}", os.O_RDWR) for name in FILES}
        self.log = os.open(f"{self.base}/log", os.O_RDWR | os.O_APPEND)
        self.owners = sorted(name for name in os.listdir(self.base) if name.startswith("own"))
        self.owned = {name: os.open(f"{self.base}/{name}", os.O_RDONLY) for name in self.owners}
        self.own = {durable: os.open(f"{self.base}/own{self.who}", os.O_WRONLY | flag) for durable, flag in ((True, os.O_DSYNC), (False, 0))}
        # Locks of their own kinds do not meet, so each kind has its owner and its file descriptor.
        self.locks = {style: os.open(f"{self.base}/locks", os.O_RDWR) for style in ("flock", "posix", "ofd")}
        self.numbers = {fd: os.fstat(fd).st_ino for fd in self.open_files()}

    def open_files(self):
        return [*self.files.values(), *self.owned.values(), *self.own.values(), self.log, *self.locks.values()]

    def end(self):
        """-> the round's lines."""
        for fd in [*self.open_files(), *(fd for fd, _ in self.held)]:
            close(fd)
        self.held, lines, self.lines = [], self.lines, []
        return lines

    def work(self, calls):
        kinds = [self.create, self.create, self.unlink, self.unlink, self.rename, self.rename, self.rename, self.link, self.link,
                 self.stat, self.stat, self.stat, self.list, self.write, self.write, self.read, self.read, self.read,
                 self.truncate, self.size, self.lock, self.lock, self.lock, self.lock, self.append, self.read_log,
                 self.overwrite, self.overwrite, self.read_owned, self.read_owned]
        for _ in range(calls):
            self.draw.choice(kinds)()

    # --- names

    def place(self, names):
        path, number = self.draw.choice(self.dirs)
        name = self.draw.choice(names)
        return f"{path}/{name}", {"dir": number, "name": name}

    def create(self):
        path, named = self.place(MOVED)
        fd = self.call("create", lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), named)
        if fd is not None:
            number = os.fstat(fd).st_ino
            self.note(inode=number)
            self.held.append((fd, number))
            if len(self.held) > 3:
                close(self.held.pop(0)[0])

    def unlink(self):
        path, named = self.place(MOVED + LINKED)
        self.call("unlink", lambda: os.unlink(path), named)

    def rename(self):
        mode = self.draw.choice(list(RENAMES))
        mine = [MOVED[self.mount % (len(MOVED) - 1)]]
        path, named = self.place(mine if mode == "exchange" else MOVED)
        to, target = self.place([SHARED, *mine] if mode == "noreplace" else mine)
        if path == to:
            return
        named |= {"to_dir": target["dir"], "to_name": target["name"], "mode": mode}
        self.call("rename", lambda: rename(path, to, RENAMES[mode]), named)

    def link(self):
        if not self.held:
            return
        fd, number = self.draw.choice(self.held)
        path, named = self.place(LINKED)
        self.call("link", lambda: kernel.linkat(f"/proc/self/fd/{fd}", path, kernel.AT_SYMLINK_FOLLOW), {"inode": number, **named})

    def stat(self):
        path, named = self.place(MOVED + LINKED)
        told = self.call("stat", lambda: os.stat(path), named)
        if told:
            self.note(inode=told.st_ino, links=told.st_nlink)

    def list(self):
        path, number = self.draw.choice(self.dirs)
        entries = self.call("list", lambda: [(entry.name, entry.inode()) for entry in os.scandir(path)], {"dir": number, "names": []})
        if entries is not None:
            self.note(names=sorted(entries))

    # --- bytes

    def file(self):
        name = self.draw.choice(list(FILES))
        fd = self.files[name]
        return fd, {"inode": self.numbers[fd]}, FILES[name]

    def data(self, cells):
        """Cells that nobody else writes."""
        return b"".join(self.draw.getrandbits(64).to_bytes(8, "little") * (CELL // 8) for _ in range(cells))

    def write(self):
        fd, named, base = self.file()
        first, count = self.draw.randrange(CELLS), self.draw.choice([1, 1, 2])
        data, offset = self.data(count), base + first * CELL
        self.call("write", lambda: os.pwrite(fd, data, offset), {**named, "offset": offset, "data": data.hex()})

    def read(self):
        fd, named, base = self.file()
        first = self.draw.randrange(CELLS)
        offset, length = base + first * CELL, CELL * self.draw.choice([1, 2, 4])
        data = self.call("read", lambda: os.pread(fd, length, offset), {**named, "offset": offset, "length": length, "data": ""})
        if data:
            self.note(data=data.hex())

    def truncate(self):
        fd, named, base = self.file()
        size = base + CELL * self.draw.randrange(CELLS)
        self.call("truncate", lambda: os.ftruncate(fd, size), {**named, "size": size})

    def size(self):
        fd, named, _ = self.file()
        told = self.call("size", lambda: os.fstat(fd), {**named, "size": 0})
        if told:
            self.note(size=told.st_size)

    def append(self):
        data = self.data(1)
        self.call("append", lambda: os.write(self.log, data), {"inode": self.numbers[self.log], "data": data.hex(), "offset": None})

    def read_log(self):
        offset, length = CELL * self.draw.randrange(20), CELL * 4
        named = {"inode": self.numbers[self.log], "offset": offset, "length": length, "data": ""}
        data = self.call("read", lambda: os.pread(self.log, length, offset), named)
        if data:
            self.note(data=data.hex())

    def overwrite(self):
        """Durably, by O_DSYNC or by the fsync after it."""
        durable = self.draw.random() < 0.75
        fd, data = self.own[durable], self.data(1)
        offset = OWN + self.draw.randrange(CELLS) * CELL

        def put():
            os.pwrite(fd, data, offset)
            if not durable:
                os.fsync(fd)

        self.call("write", put, {"inode": self.numbers[fd], "offset": offset, "data": data.hex()})

    def read_owned(self):
        fd = self.owned[self.draw.choice(self.owners)]
        offset, length = OWN + self.draw.randrange(CELLS) * CELL, CELL * self.draw.choice([1, 2, CELLS])
        data = self.call("read", lambda: os.pread(fd, length, offset), {"inode": self.numbers[fd], "offset": offset, "length": length, "data": ""})
        if data:
            self.note(data=data.hex())

    # --- locks

    def lock(self):
        style = self.draw.choice(list(self.locks))
        fd, kind = self.locks[style], self.draw.choice(["read", "write", "unlock"])
        start = 0 if style == "flock" else self.draw.randrange(LOCK_BYTES)
        end = LOCK_BYTES if style == "flock" else self.draw.randrange(start, LOCK_BYTES)
        # For the checker OFD locks are fcntl's, of another owner.
        named = {"inode": self.numbers[fd], "style": "flock" if style == "flock" else "posix", "kind": kind, "start": start,
                 "end": end, "owner": int(style == "ofd")}
        self.call("lock", lambda: take(fd, style, kind, start, end), named)


def rename(path, to, flags):
    if flags:
        kernel.renameat2(path, to, flags)
    else:
        os.rename(path, to)


def take(fd, style, kind, start, end):
    """A lock without waiting for it."""
    if style == "flock":
        fcntl.flock(fd, FLOCKS[kind] | (fcntl.LOCK_NB if kind != "unlock" else 0))
        return
    command = OFD_SETLK if style == "ofd" else fcntl.F_SETLK
    fcntl.fcntl(fd, command, struct.pack("hhqqi4x", FCNTLS[kind], os.SEEK_SET, start, end - start + 1, 0))


# --- a round, and the processes


def prepare(root, round, who):
    """Makes what a round of so many processes begins with. -> its first lines"""
    recorder = Recorder(who, 0, root, 0)
    base = f"{root}/round{round}"
    os.mkdir(base)
    number = os.stat(base).st_ino
    recorder.lines.append({"who": who, "from": now(), "to": now(), "op": "mkdir", "dir": 0, "name": "round", "inode": number})
    for name in ("d0", "d1"):
        recorder.need("mkdir", lambda: os.mkdir(f"{base}/{name}"), {"dir": number, "name": name})
        recorder.note(inode=os.stat(f"{base}/{name}").st_ino)
    for name in [*FILES, "log", "locks", *(f"own{process}" for process in range(who))]:
        fd = recorder.need("create", lambda: os.open(f"{base}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL), {"dir": number, "name": name})
        inode = os.fstat(fd).st_ino
        recorder.note(inode=inode)
        if name.startswith("own"):
            data = recorder.data(CELLS)
            recorder.call("write", lambda: os.pwrite(fd, data, OWN), {"inode": inode, "offset": OWN, "data": data.hex()})
        os.close(fd)
    return recorder.lines


def find_appends(root, round, lines):
    """Notes where each append's bytes are in the end."""
    fd = os.open(f"{root}/round{round}/log", os.O_RDONLY)
    try:
        content = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
    finally:
        close(fd)
    places = {content[at : at + CELL].hex(): at for at in range(0, len(content), CELL)}
    for line in lines:
        if line["op"] == "append":
            line["offset"] = places.get(line["data"])


def process(who, mount, root, seed, commands, answers):
    """Does rounds as it is told, until it is told no more. To end one is a command of its own: closing a file lets its locks
    go, which is no call of the history, so nobody may do so while others still work."""
    recorder = Recorder(who, mount, root, seed)
    with os.fdopen(commands) as told, os.fdopen(answers, "w") as tell:
        for line in told:
            round, calls = json.loads(line)
            if calls:
                recorder.begin(round)
                recorder.work(calls)
            answer = [] if calls else recorder.end()
            tell.write(json.dumps(answer) + "\n")
            tell.flush()


class Crew:
    """Processes on mounts, in turn, that do rounds together."""

    def __init__(self, roots, count, seed):
        self.roots = roots
        self.pipes = []
        for who in range(count):
            (command_end, command), (answer, answer_end) = os.pipe(), os.pipe()
            if os.fork() == 0:
                for to_close in [command, answer, *(end for pair in self.pipes for end in pair)]:
                    os.close(to_close)
                try:
                    process(who, who % len(roots), roots[who % len(roots)], seed, command_end, answer_end)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            os.close(command_end)
            os.close(answer_end)
            self.pipes.append((command, answer))
        self.readers = [os.fdopen(answer) for _, answer in self.pipes]

    def begin(self, round, calls):
        self.round = round
        self.lines = prepare(self.roots[0], round, len(self.pipes))
        self.tell(calls)

    def tell(self, calls):
        for command, _ in self.pipes:
            os.write(command, f"[{self.round}, {calls}]\n".encode())

    def hear(self):
        for who, reader in enumerate(self.readers):
            line = reader.readline()
            assert line, f"process {who} of the recorder died in round {self.round}"
            self.lines += json.loads(line)

    def end(self):
        """Waits until all have done the round. -> its lines"""
        self.hear()
        self.tell(0)
        self.hear()
        find_appends(self.roots[-1], self.round, self.lines)
        return self.lines

    def stop(self):
        for command, _ in self.pipes:
            os.close(command)
        for reader in self.readers:
            reader.close()
        for _ in self.pipes:
            os.wait()


def save(path, rounds):
    with open(path, "w") as file:
        for number, lines in enumerate(rounds):
            file.write(json.dumps({"round": number + 1}) + "\n")
            file.writelines(json.dumps(line) + "\n" for line in lines)
