"""Changes that are durable before they count as done, with a record outside of the guest; noise that is not; and what a power cut may leave.

As tests/e2e/acked.py does it, but that a power cut may take what was not synced. So each op here is followed by an fsync of what
it changed, or is written with O_SYNC, before it is told as done. Of the one op of each worker that power cut short, a write may be
there in some of its blocks.
"""

import itertools
import os
import random
import time

import acked

# Of the noise: names, and how long between two ops.
NOISY_NAMES = 8
NOISE_PAUSE_S = 0.05


class Changer(acked.Worker):
    """A worker whose log is at the other end of `port`."""

    def __init__(self, top, log, seed, name, port):
        super().__init__(top, log, seed, endings=set())
        self.name, self.port = name, port

    def say(self, **entry):
        self.port.say(log=self.name, **entry)

    def choose(self):
        """No write crosses a shard border: of what is cut short any part may be there, and that is enough to tell apart."""
        op = super().choose()
        if op["op"] == "write":
            op["count"] = min(op["count"], acked.SHARD_BLOCKS - op["first"] % acked.SHARD_BLOCKS)
        return op

    def act(self, number, op, **named):
        super().act(number, op, **named)
        for path in [] if named.get("durable") else changed(op, **named):
            self.do_fsync(number, self.full(path))


def changed(op, path, to=None, **_):
    """What to sync after an op; a directory for each name that came or went."""
    files = [path] if op in ("create", "write", "append", "truncate", "mark", "fsync") else []
    came = [to or path] if op in ("create", "link", "rename", "mkdir", "symlink") else []
    went = [path] if op in ("rename", "unlink", "rmdir") else []
    return files + [os.path.dirname(name) for name in came + went]


class Log(acked.Record):
    def replay(self, entry):
        if "units" in entry:
            self.model = settled(self.model, self.number, self.open_op, entry["units"])
            self.open_op = None
        else:
            super().replay(entry)

    def states(self, top):
        """States that may be: (how the log is to say it, model) each."""
        yield {"found": False, "part": None, "sized": True}, self.model
        if self.open_op is None:
            return
        done = Log(self.path).model
        done.apply(self.number, self.open_op)
        yield {"found": True, "part": None, "sized": True}, done
        if self.open_op["op"] == "write":
            units = seen_of_a_write(top, self.open_op["path"], self.model, done)
            if units is not None:
                yield {"units": units}, settled(Log(self.path).model, self.number, self.open_op, units)


def file_of(model, path):
    return model.files[model.names[path][1]]


def seen_of_a_write(top, path, before, after):
    """-> what is there of a file, if each of its blocks, and its length, is as before or as after the write."""
    seen = acked.look(top, before).get(path, ["?"])
    old, new = file_of(before, path)["units"], file_of(after, path)["units"]
    if seen[0] != "f" or len(seen[4]) not in (len(old), len(new)):
        return None
    may_be = itertools.zip_longest(old, new, fillvalue=0)
    return seen[4] if all(unit in either for unit, either in zip(seen[4], may_be)) else None


def settled(model, number, op, units):
    """The model with what was found of a write that was cut short; more of it may lie beyond the end."""
    file = file_of(model, op["path"])
    file["units"] = list(units)
    for index in range(max(op["first"], len(units)), op["first"] + op["count"]):
        file["beyond"].setdefault(index, []).append(number)
    return model


def verify(top, log, counts, differing):
    """Adds to counts and, in words, to what differs. -> the new line of the log if an op was cut short."""
    least = None
    for entry, model in log.states(top):
        real = acked.look(top, model)
        acked.forget_what_was_beyond(model, real)
        different = acked.differences(model.snapshot(), real)
        if least is None or len(different) < len(least):
            least = different
        if not different:
            break
    counts["acknowledged"] += log.done
    counts["in_doubt"] += log.open_op is not None
    counts["entries"] += len(real)
    differing += [f"{top}: after {log.done} ops; in doubt {log.open_op and log.number} {log.open_op}: {line}" for line in least]
    if least or log.open_op is None:
        return None
    counts["in_doubt_done"] += entry.get("found", True)
    entry["number"] = log.number
    log.append(**entry)
    return entry


class Noise:
    """A few files that change without a sync: of these anything may be gone, but nothing may be there that was never written."""

    def __init__(self, top):
        self.top = top

    def run(self, seed):
        draw = random.Random(seed)
        for number in itertools.count(1):
            path, other = (f"{self.top}/n{draw.randrange(NOISY_NAMES)}" for _ in range(2))
            if draw.random() < 0.8 or not os.path.exists(path):
                self.write(path, number, draw.choice([0, 0, draw.randrange(64), draw.randrange(2000)]), draw.choice([1, 16, 64]))
            elif draw.random() < 0.7:
                os.rename(path, other)
            else:
                os.unlink(path)
            time.sleep(NOISE_PAUSE_S)

    def write(self, path, number, first, count):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        data = b"".join(acked.content("blocks", "noise 0", index, number) for index in range(first, first + count))
        os.pwrite(handle, data, first * acked.BLOCK)
        os.close(handle)

    def verify(self, differing):
        """-> blocks that were read."""
        read = 0
        for name in os.listdir(self.top):
            with open(f"{self.top}/{name}", "rb") as file:
                units = acked.parse("blocks", "noise 0", file.read())
            read += len(units)
            differing += [f"{self.top}/{name} block {place}: {unit}" for place, unit in enumerate(units) if isinstance(unit, str)]
        return read
