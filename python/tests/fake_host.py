"""The host's side of a worker, for tests: a real worker process over real sockets and shared memory."""

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from hekate import ops

PYTHON = Path(__file__).resolve().parent.parent
CALL, RESULT, NEXT, DONE, PASSED = 1, 2, 3, 4, 5
FRAME = struct.Struct("<B3xIQ")
AREA_BYTES = 5 << 20


class Channel:
    """The host's end of a channel. `below` answers the worker's NEXT: from an op to a reply; it may raise OSError."""

    def __init__(self, area=AREA_BYTES):
        self.area = area
        self.socket, self.theirs = socket.socketpair()
        self.fd = os.memfd_create("channel")
        os.ftruncate(self.fd, 2 * area)
        self.memory = mmap.mmap(self.fd, 2 * area)
        self.number = 0
        self.socket.settimeout(20)

    def config(self):
        return {"socket": self.theirs.fileno(), "memory": self.fd}

    def send(self, kind, data, number):
        self.memory[: len(data)] = data
        self.socket.sendall(FRAME.pack(kind, len(data), number))

    def receive(self):
        found = self.socket.recv(16, socket.MSG_WAITALL)
        if len(found) < 16:
            raise EOFError("the worker ended")
        kind, length, number = FRAME.unpack(found)
        return kind, self.memory[self.area : self.area + length], number

    def start(self, op, durable=False):
        self.number += 1
        self.send(CALL, bytes([durable]) + op.encode(), self.number)

    def answer_next(self, data, number, below):
        op = ops.decode_op(data, 1)
        op.durable = data[0] == 1
        try:
            result = below(op)
        except OSError as error:
            result = error
        self.send(RESULT, ops.encode_result(result), number)

    def finish(self, below=None):
        """Serves the call to its end. Returns the reply or ops.Op's own "passed", or raises the error."""
        while True:
            kind, data, number = self.receive()
            assert number == self.number, (number, self.number)
            if kind == NEXT:
                self.answer_next(data, number, below)
            elif kind == PASSED:
                return "passed"
            else:
                assert kind == DONE, kind
                return ops.decode_result(data)

    def call(self, op, below=None, durable=False):
        self.start(op, durable)
        return self.finish(below)


class Host:
    """A worker with `channels` channels besides the first."""

    def __init__(self, directory, options=None, channels=2, memory=0, below=None, area=AREA_BYTES, state=None,
                 start=True):  # fmt: skip
        self.control, theirs = socket.socketpair()
        self.channels = [Channel(area) for _ in range(channels + 1)]
        self.messages, self.rest = [], b""
        config = {
            "name": Path(directory).name, "directory": str(directory), "options": options or {},
            "control": theirs.fileno(), "memory_bytes_max": memory, "area_bytes": area,
            "channels": [channel.config() for channel in self.channels],
        }  # fmt: skip
        fds = [theirs.fileno(), *(fd for channel in self.channels for fd in channel.config().values())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hekate.worker", json.dumps(config)], pass_fds=fds,
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
        )  # fmt: skip
        theirs.close()
        for channel in self.channels:
            channel.theirs.close()
        self.first = self.wait("ready", "failed")
        if "failed" in self.first:
            return
        if state is not None:
            self.send({"state": state})
        if below is not None:
            threading.Thread(target=self.serve_own, args=(below,), daemon=True).start()
        if start:
            self.send({"start": True})

    def serve_own(self, below):
        """Answers the ops of channel 0."""
        channel = self.channels[0]
        channel.socket.settimeout(None)
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, data, number = channel.receive()
                assert kind == NEXT
                channel.answer_next(data, number, below)

    def send(self, message):
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def read(self, seconds):
        """Reads what the worker sends until something came or the time is over. False at its end."""
        if not select.select([self.control], [], [], seconds)[0]:
            return True
        with contextlib.suppress(ConnectionError):
            data = self.control.recv(1 << 20)
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.messages += [json.loads(line) for line in lines]
            return bool(data)
        return False

    def wait(self, *keys, seconds=20, where=lambda message: True):
        """The next message with one of these keys; it is removed."""
        end = time.monotonic() + seconds
        while True:
            for message in self.messages:
                if any(key in message for key in keys) and where(message):
                    self.messages.remove(message)
                    return message
            assert time.monotonic() < end, f"no {keys} in {self.messages}"
            if not self.read(0.1):
                assert any(any(key in message for key in keys) and where(message) for message in self.messages), (
                    f"the worker ended without {keys}: {self.messages}"
                )

    def wait_log(self, part, **more):
        return self.wait("log", where=lambda message: part in message["text"], **more)

    def exit_status(self, seconds=20):
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0.1) and select.select([self.control], [], [], 0)[0]:
            pass
        return self.process.wait(1)

    def stop(self):
        self.send({"stop": True})
        state = self.wait("state")["state"]
        assert self.exit_status() == 0
        return state

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for channel in self.channels:
            channel.socket.close()
            channel.memory.close()
            os.close(channel.fd)
        self.control.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def attr(inode=7, size=5, **more):
    fields = {
        "id": inode, "kind": ops.NodeKind.File, "mode": 0o644, "uid": 0, "gid": 0, "nlink": 1, "size": size,
        "device": 0, "atime": 1, "mtime": 2, "ctime": 3, "btime": 4, "change": 9, "layout": ops.Layout(1), "spread": 1,
    }  # fmt: skip
    return ops.Attr(**{**fields, **more})
