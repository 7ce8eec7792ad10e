#!/usr/bin/python3
"""Cost of a call in a worker: a real worker, and a host in this process over real sockets and shared memory.

Prints the time of a call that the host sees, and the processor time of the worker's process, which a busy machine
does not change much: user time is Python, system time is sockets and switches between processes."""

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from fake_host import CALL, DONE, FRAME, NEXT, PASSED, RESULT, Host, attr  # noqa: E402

from hekate import ops  # noqa: E402

SOURCE = """
from hekate import *
class Bench(Translator):
    def lookup(self, op):
        return self.next(op)
    async def getattr(self, op):
        return await self.next(op)
    def statfs(self, op):
        return PASS
    def write(self, op):
        return self.next(op)
"""
REPLY = ops.encode_result(ops.NodeReply(attr()))


def times_of(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) * 10_000, int(fields[12]) * 10_000  # utime, stime: 10 ms each, in us


def measure(host, name, op, calls, seconds=3.0):
    channel = host.channels[1]
    call = b"\0" + op.encode()
    channel.memory[: len(call)] = call
    send, receive, memory = channel.socket.sendall, channel.socket.recv, channel.memory
    first, second = FRAME.pack(CALL, len(call), 1), FRAME.pack(RESULT, len(REPLY), 1)
    count, end = 0, time.monotonic() + seconds
    user, system = times_of(host.process)
    started = time.perf_counter()
    while time.monotonic() < end:
        for _ in range(calls):
            memory[: len(call)] = call
            send(first)
            frame = receive(16)
            if frame[0] == NEXT:
                memory[: len(REPLY)] = REPLY
                send(second)
                frame = receive(16)
            assert frame[0] in (DONE, PASSED), frame
        count += calls
    elapsed = (time.perf_counter() - started) / count * 1e6
    user, system = (now - before for now, before in zip(times_of(host.process), (user, system)))
    print(f"{name:24} {elapsed:8.1f} us a call; worker: {user / count:6.1f} us user, {system / count:6.1f} us system")


def main():
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "translator.py").write_text(SOURCE)
        with Host(directory) as host:
            measure(host, "lookup, one next", ops.Lookup(1 << 100 | 7, b"some-name.txt"), 200)
            measure(host, "statfs, PASS", ops.StatFs(), 200)
            measure(host, "getattr, async, one next", ops.GetAttr(1 << 100 | 7), 50)
            measure(host, "write of 128 KiB, one next", ops.Write(7, 0, bytes(128 << 10)), 50)


if __name__ == "__main__":
    main()
