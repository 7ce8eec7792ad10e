"""Channels: memory and a socket that the worker shares with the host, and the frames on them."""

import asyncio
import contextvars
import itertools
import mmap
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from . import ops
from .values import Ended, Malformed, Op

CALL, RESULT, NEXT, DONE, PASSED = 1, 2, 3, 4, 5
FRAME = struct.Struct("<B3xIQ")
# Parts of an encoding are joined before they are copied to the shared memory, unless the join would be a costly copy.
JOINED_BYTES_MAX = 64 << 10
# The refusal of an op for which there is no memory. It is encoded now, while there is some.
NO_MEMORY = ops.encode_result(OSError(12, "the translator's worker is out of memory"))


class Channel:
    """One channel. Its frames are sent and received by one thread at a time.

    `broken` is called with a text if the host sends what the protocol does not have. It ends the process: an exception
    might be caught by the translator. `is_called`: a call has no answer yet."""

    __slots__ = ("area", "broken", "durable", "is_called", "memory", "number", "receive", "send", "socket")

    def __init__(self, fds, area, broken):
        os.set_inheritable(fds["socket"], False)
        self.socket = socket.socket(fileno=fds["socket"])
        self.memory, self.area, self.broken = mmap.mmap(fds["memory"], 2 * area), area, broken
        os.close(fds["memory"])
        self.send, self.receive = self.socket.sendall, self.socket.recv
        self.number, self.durable, self.is_called = 0, 0, False

    def frame(self):
        """The next frame: kind, length, number."""
        try:
            found = self.receive(16, socket.MSG_WAITALL)
        except OSError as error:
            raise Ended from error
        except MemoryError:
            os._exit(1)  # the frame stays unread: no later one would be understood
        if len(found) != 16:
            if found:
                self.broken(f"a frame of {len(found)} bytes instead of 16")
            raise Ended
        kind, length, number = FRAME.unpack(found)
        if length > self.area:
            self.broken(f"a frame with {length} bytes in an area of {self.area}")
        return kind, length, number

    def call(self):
        """Waits for a call. Returns its op."""
        kind, length, number = self.frame()
        if kind != CALL:
            self.broken(f"a frame of kind {kind} where a call belongs")
        self.number, self.is_called = number, True
        memory = self.memory
        durable = memory[0]
        if durable > 1 or not length:
            self.broken("a call without a flag of 0 or 1")
        try:
            op = ops.decode_op(memory, 1, length)
        except Malformed as error:
            self.broken(f"a call's op: {error}")
        self.durable = durable
        op.durable = durable == 1
        return op

    def exchange(self, op):
        """Runs an op in the layer below. Returns its reply, or raises its error."""
        if not isinstance(op, Op):
            raise TypeError(f"self.next takes an op of hekate.ops, not {type(op).__name__}")
        # A change that its caller wants on stable storage stays one, also if the translator makes the op anew.
        parts = [b"\1" if self.durable or op.durable else b"\0"]
        put_op(op, parts.append)
        self.write(NEXT, parts)
        kind, length, number = self.frame()
        if kind != RESULT or number != self.number:
            self.broken(f"a frame of kind {kind}, number {number} where result {self.number} belongs")
        try:
            return ops.decode_result(self.memory, 0, length)
        except Malformed as error:
            self.broken(f"a result: {error}")

    def write(self, kind, parts):
        memory, start = self.memory, self.area
        length = sum(map(len, parts))
        if length > self.area:
            raise ValueError(f"{length} bytes are more than the {self.area} that one op or reply may have")
        if length <= JOINED_BYTES_MAX:
            memory[start : start + length] = b"".join(parts)
        else:
            for part in parts:
                memory[start : start + len(part)] = part
                start += len(part)
        self.send_frame(FRAME.pack(kind, length, self.number))

    def send_frame(self, frame):
        try:
            self.send(frame)
        except OSError as error:
            raise Ended from error

    def answer(self, parts):
        """Answers the call with an encoded result, or with None: the op is passed on as it came."""
        if parts is None:
            self.send_frame(FRAME.pack(PASSED, 0, self.number))
        else:
            self.write(DONE, parts)
        self.is_called = False

    def refuse(self):
        """Refuses the call for want of memory. Returns False if there is none."""
        if not self.is_called:
            return False
        self.memory[self.area : self.area + len(NO_MEMORY)] = NO_MEMORY
        self.send_frame(FRAME.pack(DONE, len(NO_MEMORY), self.number))
        self.is_called = False
        return True


def put_op(op, add):
    """Adds the encoding of an op. Raises TypeError or ValueError if a field has a wrong value."""
    try:
        op._put(add)
    except (struct.error, AttributeError) as error:
        raise ValueError(f"{op!r} has a wrong value: {error}") from None


class OwnChannel:
    """Channel 0, for ops that no call asked for. May be used on any thread."""

    def __init__(self, channel):
        self.channel, self.lock, self.numbers = channel, threading.Lock(), itertools.count(1)

    def exchange(self, op):
        with self.lock:
            self.channel.number = next(self.numbers)
            return self.channel.exchange(op)


class AsyncCall:
    """A call whose method is `async`. The method runs on the event loop; this object brings its ops to the channel's
    thread."""

    __slots__ = ("is_over", "loop", "queue")

    def __init__(self, loop):
        self.loop, self.queue, self.is_over = loop, SimpleQueue(), False

    def next(self, op):
        """On the event loop: the awaitable of an op's reply."""
        future = self.loop.create_future()
        self.queue.put((op, future))
        return future

    def serve(self, channel, method, op):
        """On the channel's thread: runs the method to its end. Returns its value, or raises its exception."""
        self.loop.call_soon_threadsafe(self.start, method, op)
        while True:
            what, found = self.queue.get()
            if what is None:
                if isinstance(found, BaseException):
                    raise found
                return found[0]
            try:
                reply, error = channel.exchange(what), None
            except Exception as raised:
                reply, error = None, raised
            self.loop.call_soon_threadsafe(settle, found, reply, error)

    def start(self, method, op):
        task = self.loop.create_task(self.run(method, op))
        RUNNING.add(task)
        task.add_done_callback(RUNNING.discard)

    async def run(self, method, op):
        CURRENT.set(self)
        try:
            found = (await method(op),)
        except BaseException as error:
            found = error
        self.is_over = True
        try:
            self.queue.put((None, found))
        except MemoryError:
            self.loop.stop()  # and the process with it: the call would never be answered
            raise


# The loop itself keeps only weak references to tasks.
RUNNING = set()
CURRENT = contextvars.ContextVar("hekate_call", default=None)


def settle(future, reply, error):
    if future.done():
        return  # cancelled
    if error is None:
        future.set_result(reply)
    else:
        future.set_exception(error)


class EventLoop:
    """The loop of all `async` methods, on a thread of its own. It is made when the first one needs it.

    `start_thread(target, name, argument)`: the process ends with a thread that fails. A callback of this file that
    fails, for want of memory, ends the loop with it: its call would never be answered."""

    def __init__(self, own, local, start_thread):
        self.own, self.local, self.lock, self.loop = own, local, threading.Lock(), None
        self.start_thread = start_thread
        self.executor = ThreadPoolExecutor(1, "own ops")

    def get(self):
        with self.lock:
            if self.loop is None:
                loop = asyncio.new_event_loop()
                self.start_thread(self.run, "event loop", loop)
                self.loop = loop
            return self.loop

    def run(self, loop):
        self.local.is_loop = True
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self.failed)
        loop.run_forever()
        raise MemoryError("a callback of the event loop failed")

    def failed(self, loop, context):
        """A callback failed, or a task of the translator ended with an exception that nobody has asked for."""
        if "handle" in context and isinstance(context.get("exception"), MemoryError):
            loop.stop()
        loop.default_exception_handler(context)

    def next(self, op):
        """On the event loop: the awaitable of an op's reply."""
        call = CURRENT.get()
        if call is not None and not call.is_over:
            return call.next(op)
        return self.loop.run_in_executor(self.executor, self.own.exchange, op)

    def result_of(self, coroutine):
        """On another thread: waits for a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.get()).result()
