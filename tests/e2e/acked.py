"""Changes a mounted volume and keeps a record, outside of it, of what was acknowledged; then compares the two.

    acked.py work MNT RECORD --seconds 10 --workers 4   changes MNT until the time is up or the mount dies
    acked.py verify MNT RECORD                          from a fresh mount; exit status 1 if anything differs

Each worker has a directory of its own in MNT and a log in RECORD, which must be on another file system: a line before
each op and one after its return. Whoever kills server and mount in between may go on with `work` after a `verify`.

What holds: an op that returned is there, exactly; one that had begun is there wholly or not at all (one that crosses
a shard border: its parts in file order); nothing else is there. One thing is weaker until grants come (issue 5): the size
follows the bytes, so a write in doubt that extends a file may have its bytes up to the old end and not its size; what it
wrote beyond may show in place of a hole if the file grows over it. Every 64 bytes written say which file, which place and
which op they are of, so that whatever is mixed up is seen and named.
"""

import argparse
import errno
import json
import os
import random
import stat
import sys
import time

BLOCK = 4096
LINE = 64
SHARD_BLOCKS = (4 << 20) // BLOCK
# What a mount that was killed answers.
MOUNT_GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV}


# --- content: a file is a list of units, each of one op or (0) a hole ---


def unit_bytes(kind):
    return BLOCK if kind == "blocks" else LINE


def content(kind, file, index, op):
    """The bytes of a unit, every line of which describes itself."""
    size = unit_bytes(kind)
    if op == 0:
        return bytes(size)
    head = f"{file} unit {index} op {op} ".ljust(LINE - 4, ".").encode()
    return b"".join(head + b"%03d\n" % line for line in range(size // LINE))


def parse(kind, file, data):
    """-> the op of each unit; for one that is of no op, what is wrong."""
    size = unit_bytes(kind)
    found = []
    for index, at in enumerate(range(0, len(data), size)):
        unit = data[at:at + size]
        words = unit[:LINE].split()
        op = int(words[5]) if len(words) > 5 and words[5].isdigit() else 0
        found.append(op if unit == content(kind, file, index, op) else torn(unit))
    return found


def torn(unit):
    """Names what a unit holds, line by line, where it changes."""
    kinds = []
    for at in range(0, len(unit), LINE):
        line = unit[at:at + LINE]
        name = "zeros" if not any(line) else line[:LINE - 4].rstrip(b".").decode(errors="replace")
        if not kinds or kinds[-1] != name:
            kinds.append(name)
    return f"torn: {' | '.join(kinds[:6])} ({len(unit)} bytes)"


# --- the model: what a worker's directory holds after some ops ---


class Model:
    """Paths are relative to the worker's directory; names are ("d",), ("l", target) or ("f", file)."""

    def __init__(self):
        self.names = {}
        self.files = {}

    def apply(self, number, op, part=None, sized=True):
        """Does an op; `part`: only so many of its parts; not `sized`: a write without the size that it makes."""
        if not sized:
            return self.write_unsized(number, part, **op)
        getattr(self, op["op"])(number, part, **{key: value for key, value in op.items() if key != "op"})

    def create(self, number, _, path, kind):
        self.files[number] = {"kind": kind, "units": [], "mark": None, "beyond": {}}
        self.names[path] = ["f", number]

    def write(self, number, part, path, first, count, durable):
        units = self.files[self.names[path][1]]["units"]
        for index in written(part, first, count):
            units.extend([0] * (index + 1 - len(units)))
            units[index] = number

    def write_unsized(self, number, part, path, first, count, **_):
        file = self.files[self.names[path][1]]
        for index in written(part, first, count):
            if index < len(file["units"]):
                file["units"][index] = number
            else:
                file["beyond"].setdefault(index, []).append(number)

    def leave_beyond(self, number, path, first, count, **_):
        """Nothing is seen of a write, but what it wrote beyond the end may lie there."""
        file = self.files[self.names[path][1]]
        for index in range(max(first, len(file["units"])), first + count):
            file["beyond"].setdefault(index, []).append(number)

    def is_extended_by(self, path, first, count, **_):
        return first + count > len(self.files[self.names[path][1]]["units"])

    def append(self, number, _, path, durable):
        self.files[self.names[path][1]]["units"].append(number)

    def truncate(self, number, _, path, length):
        units = self.files[self.names[path][1]]["units"]
        del units[length:]
        units.extend([0] * (length - len(units)))

    def mark(self, number, _, path):
        self.files[self.names[path][1]]["mark"] = number

    def fsync(self, number, _, path):
        pass

    def link(self, number, _, path, to):
        self.names[to] = self.names[path]

    def unlink(self, number, _, path):
        del self.names[path]

    def mkdir(self, number, _, path):
        self.names[path] = ["d"]

    def rmdir(self, number, _, path):
        del self.names[path]

    def symlink(self, number, _, path):
        self.names[path] = ["l", f"target of op {number}"]

    def rename(self, number, _, path, to):
        if self.names[path][0] == "f" and self.names.get(to) == self.names[path]:
            return  # two names of one file: rename(2) does nothing
        for name in [name for name in self.names if name == path or name.startswith(path + "/")]:
            self.names[to + name[len(path):]] = self.names.pop(name)

    def snapshot(self):
        """Comparable with `look`: a dict of path -> what is there."""
        links = {}
        for name in self.names.values():
            if name[0] == "f":
                links[name[1]] = links.get(name[1], 0) + 1
        found = {}
        for path, name in self.names.items():
            if name[0] == "f":
                file = self.files[name[1]]
                found[path] = ["f", name[1], links[name[1]], file["mark"], list(file["units"])]
            else:
                found[path] = list(name)
        return found


def parts(first, count):
    """A write's parts: atomic each, in file order. -> the blocks that are written after 1, 2, … of them."""
    ends = list(range((first // SHARD_BLOCKS + 1) * SHARD_BLOCKS, first + count, SHARD_BLOCKS))
    return [range(first, end) for end in [*ends, first + count]]


def written(part, first, count):
    return range(first, first + count) if part is None else parts(first, count)[part - 1]


def look(top, model):
    """What is really in a worker's directory. `model` tells kinds; inode numbers tell which names are one file."""
    found, files = {}, {}
    for directory, directories, names in os.walk(top, onerror=raise_it):
        for name in directories + names:
            full = os.path.join(directory, name)
            entry = os.lstat(full)
            path = os.path.relpath(full, top)
            if stat.S_ISDIR(entry.st_mode):
                found[path] = ["d"]
            elif stat.S_ISLNK(entry.st_mode):
                found[path] = ["l", os.readlink(full)]
            else:
                files.setdefault(entry.st_ino, []).append((path, full, entry))
    for names in files.values():
        path, full, entry = names[0]
        with open(full, "rb", buffering=0) as file:
            data = b"".join(iter(lambda: file.read(1 << 20), b""))
        number = which_file(data, path, model)
        kind = model.files[number]["kind"] if number in model.files else "blocks"
        what = ["f", number, entry.st_nlink, get_mark(full), parse(kind, f"file {number}", data)]
        if len(data) != entry.st_size:
            what.append(f"read {len(data)} bytes of {entry.st_size}")
        found.update({path: what for path, _, _ in names})
    return found


def raise_it(error):
    raise error


def which_file(data, path, model):
    """By what the content says, or for one of holes only by its name in the model."""
    for at in range(0, len(data), LINE):
        words = data[at:at + LINE].split()
        if len(words) > 1 and words[0] == b"file" and words[1].isdigit():
            return int(words[1])
    name = model.names.get(path, ["?", None])
    return name[1] if name[0] == "f" else None


def get_mark(path):
    try:
        return int(os.getxattr(path, "user.mark"))
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return None


# --- the record ---


class Record:
    """A worker's log: `begin` and `done` of each op; `found` is what a verifier made of one in between."""

    def __init__(self, path):
        self.path = path
        self.model = Model()
        self.number = 0
        self.done = 0
        self.open_op = None
        if os.path.exists(path):
            with open(path) as file:
                for line in file:
                    self.replay(json.loads(line))

    def replay(self, entry):
        if "begin" in entry:
            self.number, self.open_op = entry["number"], entry["begin"]
        elif "done" in entry:
            self.model.apply(self.number, self.open_op)
            self.open_op = None
            self.done += 1
        else:
            if entry["found"]:
                self.model.apply(self.number, self.open_op, entry["part"], entry["sized"])
            elif self.open_op["op"] == "write":
                self.model.leave_beyond(self.number, **self.open_op)
            self.open_op = None

    def candidates(self):
        """States that may be: ({found, part, sized}, model) each."""
        states = [({"found": False, "part": None, "sized": True}, self.model)]
        if self.open_op is not None:
            steps = [None]
            if self.open_op["op"] == "write":
                steps += range(1, len(parts(self.open_op["first"], self.open_op["count"])))
            extends = self.open_op["op"] == "write" and self.model.is_extended_by(**self.open_op)
            for part, sized in [(part, sized) for part in steps for sized in ([True, False] if extends else [True])]:
                model = Record(self.path).model
                model.apply(self.number, self.open_op, part, sized)
                states.append(({"found": True, "part": part, "sized": sized}, model))
        return states

    def append(self, **entry):
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, json.dumps(entry).encode() + b"\n")
        os.close(handle)


# --- work ---


class Worker:
    def __init__(self, top, record, seed, endings):
        self.top = top
        self.endings = endings
        self.record = record
        self.model = record.model
        self.chance = random.Random(seed)
        self.log = os.open(record.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def run(self, end):
        """Until the time is up, or an op meets what ends the work: its outcome is in doubt."""
        while time.monotonic() < end:
            op = self.choose()
            self.record.number += 1
            number = self.record.number
            self.say(number=number, begin=op)
            try:
                self.act(number, **op)
            except OSError as error:
                if error.errno in self.endings:
                    return
                raise SystemExit(f"op {number} {op}: {error}") from error
            self.say(number=number, done=True)
            self.model.apply(number, op)

    def say(self, **entry):
        os.write(self.log, json.dumps(entry).encode() + b"\n")

    def act(self, number, op, **named):
        getattr(self, f"do_{op}")(number, **{key: self.full(value) if key in ("path", "to") else value for key, value in named.items()})

    def full(self, path):
        return f"{self.top}/{path}"

    def of_kind(self, *kinds):
        return [path for path, name in self.model.names.items() if name[0] in kinds]

    def files(self, kind):
        return [path for path in self.of_kind("f") if self.model.files[self.model.names[path][1]]["kind"] == kind]

    def new_path(self):
        shallow = [path + "/" for path in self.of_kind("d") if path.count("/") < 6]
        directory = self.chance.choice([""] + shallow)
        return f"{directory}n{self.record.number + 1}"

    def choose(self):
        """The next op: one that must succeed."""
        kind = self.chance.choices(
            ["write", "append", "create", "rename", "unlink", "mkdir", "rmdir", "truncate", "mark", "fsync", "link", "symlink"],
            [30, 20, 14, 10, 8, 4, 3, 4, 3, 2, 3, 2],
        )[0]
        blocks, lines, names = self.files("blocks"), self.files("lines"), self.of_kind("f", "l")
        if kind == "write" and blocks:
            path = self.chance.choice(blocks)
            length = len(self.model.files[self.model.names[path][1]]["units"])
            count = self.chance.choice([1, 1, 1, 1, 2, 16, 64])
            near_border = [SHARD_BLOCKS - self.chance.randrange(1, 5)] if self.chance.random() < 0.1 else []
            first = self.chance.choice([self.chance.randrange(length + 1), length, *near_border])
            return {"op": "write", "path": path, "first": first, "count": count, "durable": self.chance.random() < 0.3}
        if kind == "append" and lines:
            return {"op": "append", "path": self.chance.choice(lines), "durable": self.chance.random() < 0.3}
        if kind == "truncate" and blocks:
            path = self.chance.choice(blocks)
            length = len(self.model.files[self.model.names[path][1]]["units"])
            return {"op": "truncate", "path": path, "length": self.chance.choice([0, length // 2, length + 3])}
        if kind in ("mark", "fsync") and blocks + lines:
            return {"op": kind, "path": self.chance.choice(blocks + lines)}
        if kind == "link" and lines:
            return {"op": "link", "path": self.chance.choice(lines), "to": self.new_path()}
        if kind == "rename" and len(names) > 1:
            return self.choose_rename(names)
        if kind == "unlink" and len(names) > 20:
            return {"op": "unlink", "path": self.chance.choice(names)}
        if kind == "rmdir":
            empty = [path for path in self.of_kind("d") if not any(name.startswith(path + "/") for name in self.model.names)]
            if empty:
                return {"op": "rmdir", "path": self.chance.choice(empty)}
        if kind in ("mkdir", "symlink") and len(self.of_kind("d", "l")) < 30:
            return {"op": kind, "path": self.new_path()}
        if len(names) < 80:
            return {"op": "create", "path": self.new_path(), "kind": self.chance.choice(["blocks", "lines"])}
        return {"op": "unlink", "path": self.chance.choice(names)}

    def choose_rename(self, names):
        """A file to a new or over another name; a directory to another place, not below itself."""
        directories = self.of_kind("d")
        if directories and self.chance.random() < 0.3:
            path = self.chance.choice(directories)
            to = self.new_path()
            if not to.startswith(path + "/"):
                return {"op": "rename", "path": path, "to": to}
        path = self.chance.choice(names)
        to = self.chance.choice(names) if self.chance.random() < 0.4 else self.new_path()
        return {"op": "rename", "path": path, "to": to}

    def do_create(self, number, path, kind):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def do_write(self, number, path, first, count, durable):
        file = self.number_of(path)
        data = b"".join(content("blocks", file, index, number) for index in range(first, first + count))
        self.put(path, data, 0 if not durable else os.O_SYNC, first * BLOCK)

    def do_append(self, number, path, durable):
        file = self.number_of(path)
        index = len(self.model.files[int(file.split()[1])]["units"])
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            self.all_of(os.write(handle, content("lines", file, index, number)), LINE, path)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)

    def number_of(self, path):
        return f"file {self.model.names[path[len(self.top) + 1:]][1]}"

    def put(self, path, data, flags, at):
        handle = os.open(path, os.O_WRONLY | flags)
        try:
            self.all_of(os.pwrite(handle, data, at), len(data), path)
        finally:
            os.close(handle)

    def all_of(self, written, wanted, path):
        if written != wanted:
            raise SystemExit(f"{path}: {written} of {wanted} bytes written")

    def do_truncate(self, number, path, length):
        os.truncate(path, length * BLOCK)

    def do_mark(self, number, path):
        os.setxattr(path, "user.mark", b"%d" % number)

    def do_fsync(self, number, path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def do_link(self, number, path, to):
        os.link(path, to)

    def do_unlink(self, number, path):
        os.unlink(path)

    def do_mkdir(self, number, path):
        os.mkdir(path)

    def do_rmdir(self, number, path):
        os.rmdir(path)

    def do_symlink(self, number, path):
        os.symlink(f"target of op {number}", path)

    def do_rename(self, number, path, to):
        os.rename(path, to)


def work(mnt, record, seconds, workers, seed, endings):
    end = time.monotonic() + seconds
    children = []
    # All of them before any begins: whoever sees an op done may kill the mount.
    for worker in range(workers):
        os.makedirs(f"{mnt}/worker{worker}", exist_ok=True)
        open(f"{record}/worker{worker}.log", "a").close()
    for worker in range(workers):
        top = f"{mnt}/worker{worker}"
        log = Record(f"{record}/worker{worker}.log")
        if log.open_op is not None:
            sys.exit(f"{log.path} ends in the middle of an op: verify first")
        child = os.fork()
        if child == 0:
            try:
                Worker(top, log, f"{seed}/{worker}/{log.number}", endings).run(end)
                os._exit(0)
            except SystemExit as why:
                print(f"worker {worker}: {why}", file=sys.stderr, flush=True)
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return 1 if any(codes) else 0


# --- verify ---


def verify(mnt, record):
    """-> counts; prints each difference."""
    counts = {"acknowledged": 0, "in_doubt": 0, "in_doubt_done": 0, "entries": 0, "differences": 0}
    logs = sorted(name for name in os.listdir(record) if name.endswith(".log"))
    unknown = set(os.listdir(mnt)) & {name for name in os.listdir(mnt) if name.startswith("worker")} - {log[:-4] for log in logs}
    for name in sorted(unknown):
        print(f"{name}: there is no record of it", file=sys.stderr)
    counts["differences"] += len(unknown)
    for name in logs:
        log = Record(f"{record}/{name}")
        counts["acknowledged"] += log.done
        counts["in_doubt"] += log.open_op is not None
        one_worker(f"{mnt}/{name[:-4]}", log, counts)
    return counts


def one_worker(top, log, counts):
    """Compares; a state that an op in doubt allows is taken into the log."""
    best = None
    for choice, model in log.candidates():
        real = look(top, model)
        forget_what_was_beyond(model, real)
        different = differences(model.snapshot(), real)
        if best is None or len(different) < len(best[0]):
            best = (different, choice, len(real))
        if not different:
            break
    different, choice, entries = best
    counts["entries"] += entries
    counts["differences"] += len(different)
    if different:
        print(f"{top}: after {log.done} ops; in doubt: {log.number if log.open_op else '-'} {log.open_op}", file=sys.stderr)
        for line in different[:20]:
            print(f"  {line}", file=sys.stderr)
    elif log.open_op is not None:
        counts["in_doubt_done"] += choice["found"]
        log.append(number=log.number, **choice)


def forget_what_was_beyond(model, real):
    """Where the file grew over what a write without its size had left, that may show in place of a hole."""
    for what in real.values():
        beyond = model.files.get(what[1], {}).get("beyond") if what[0] == "f" else None
        for index, ops in (beyond or {}).items():
            units = model.files[what[1]]["units"]
            if index < min(len(units), len(what[4])) and units[index] == 0 and what[4][index] in ops:
                what[4][index] = 0


def differences(wanted, real):
    lines = []
    for path in sorted(wanted.keys() | real.keys()):
        want, have = wanted.get(path), real.get(path)
        if want == have:
            continue
        if want is None or have is None:
            lines.append(f"{path}: {'unknown' if want is None else 'lost'}: {brief(have or want)}")
        elif want[0] == "f" and have[0] == "f" and want[:4] == have[:4]:
            units = [(i, w, h) for i, (w, h) in enumerate(zip(want[4], have[4])) if w != h]
            shown = "; ".join(f"unit {i} is of op {h}, not {w}" for i, w, h in units[:3])
            lines.append(f"{path}: {len(have[4])} units, not {len(want[4])}; {len(units)} differ: {shown}; {have[5:]}")
        else:
            lines.append(f"{path}: {brief(have)}, not {brief(want)}")
    return lines


def brief(what):
    if what[0] != "f":
        return str(what)
    return f"[file {what[1]}, {what[2]} links, mark {what[3]}, {len(what[4])} units]"


def main():
    parser = argparse.ArgumentParser(description="Changes a volume and checks that what was acknowledged is there.")
    parser.add_argument("task", choices=["work", "verify"])
    parser.add_argument("mnt")
    parser.add_argument("record")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--may-fail", default="", help="ENOSPC,EIO: a worker that meets one of these ends, its op in doubt")
    options = parser.parse_args()
    if options.task == "work":
        endings = MOUNT_GONE | {getattr(errno, name) for name in filter(None, options.may_fail.split(","))}
        sys.exit(work(options.mnt, options.record, options.seconds, options.workers, options.seed, endings))
    counts = verify(options.mnt, options.record)
    print(json.dumps(counts))
    sys.exit(1 if counts["differences"] else 0)


if __name__ == "__main__":
    main()
