"""The worker's threads: one for each channel, one for timers, one for metrics, and the main one for control.

A thread that fails, as for want of memory, takes its op or the process with it: no op waits for a thread that is
gone."""

import base64
import ctypes
import heapq
import inspect
import itertools
import logging
import os
import pickle
import resource
import socket
import sys
import threading
import time
import traceback

from .channels import AsyncCall, Channel, EventLoop, OwnChannel
from .control import Control, LogHandler, PrintedLines
from .translator import Binding, LoadError, answered, describe, load, raised
from .values import Ended

THREAD_STACK_BYTES = 2 << 20
# A thread that holds Python's interpreter lease gives it up to a waiting one after this time. A method that computes
# without end then costs other calls 0.5 ms at each of their steps, instead of Python's 5 ms.
SWITCH_INTERVAL_S = 0.0005
_M_ARENA_MAX = -8


class Process:
    """One worker."""

    def __init__(self, config):
        self.config = config
        self.control = Control(socket.socket(fileno=config["control"]))
        self.local = threading.local()
        self.started = threading.Event()
        self.stopped = threading.Event()

    def run(self):
        """Runs until the host stops the worker or ends. Does not return."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        threading.stack_size(THREAD_STACK_BYTES)
        # By default each thread reserves 64 MiB of addresses for its allocations, which would count as its memory.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
        self.capture_output()
        try:
            self.load()
            self.limit_memory()
        except LoadError as error:
            self.fail(str(error))
        except BaseException:
            self.fail(traceback.format_exc())
        self.control.send({"ready": True, **self.description})
        try:
            for message in self.control.messages():
                self.obey(message)
        except OSError:
            pass
        except Exception:
            self.end("error", f"the worker's control failed: {traceback.format_exc()}", 1)
        os._exit(0)

    def capture_output(self):
        """What is printed, logged or warned of becomes log lines. What other programs print goes to the host's
        standard error."""
        os.dup2(2, 1)
        sys.stdout, sys.stderr = PrintedLines(self.control, "info"), PrintedLines(self.control, "warn")
        logging.basicConfig(handlers=[LogHandler(self.control.log)], level=logging.DEBUG)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        logging.raiseExceptions = False
        threading.excepthook = lambda found: self.control.log(
            "error", "a thread ended: " + "".join(traceback.format_exception(*found[:3]))
        )

    def load(self):
        config = self.config
        channels = [Channel(fds, config["area_bytes"], self.broken) for fds in config["channels"]]
        self.own = OwnChannel(channels[0])
        self.events = EventLoop(self.own, self.local, self.start_thread)
        cls = load(config["directory"])
        try:
            cls.parse_options(config["options"])
        except ValueError as error:
            raise LoadError(str(error)) from None
        self.binding = Binding(cls, config["options"], self.next, logging.getLogger(config["name"]))
        self.description = {**describe(cls), "name": config["name"]}
        for number, channel in enumerate(channels[1:], 1):
            self.start_thread(self.serve, f"channel {number}", channel)
        self.start_thread(self.report, "metrics")

    def start_thread(self, target, name, *arguments):
        """Starts a thread that takes the process with it if it fails."""

        def run():
            try:
                target(*arguments)
            except BaseException as error:
                self.end("error", f"the worker's thread {name!r} failed: {error!r}", 1)

        threading.Thread(target=run, name=name, daemon=True).start()

    def limit_memory(self):
        """Limits the address space to what it is now and `memory_bytes_max` more."""
        limit = self.config.get("memory_bytes_max", 0)
        if limit:
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + limit, now + limit))

    def fail(self, text):
        self.control.flush_dropped()
        self.control.send({"failed": text})
        os._exit(1)

    def end(self, level, text, status):
        """Ends the process at once, with one line that says why."""
        try:
            self.control.flush_dropped()
            self.control.log(level, text)
        finally:
            os._exit(status)

    def broken(self, text):
        self.end("error", f"the host broke the protocol: {text}", 1)

    # Ops of the layer below.

    def next(self, op):
        """Behind `self.next`: a reply, or on the event loop an awaitable."""
        local = self.local.__dict__
        channel = local.get("channel")
        if channel is not None:
            return channel.exchange(op)
        if "is_loop" in local:
            return self.events.next(op)
        return self.own.exchange(op)

    # Calls.

    def serve(self, channel):
        """A channel's thread."""
        try:
            self.started.wait()
            self.local.channel = channel
            while True:
                try:
                    self.answer(channel, channel.call())
                except MemoryError:
                    if not channel.refuse():
                        raise
        except Ended:
            pass

    def answer(self, channel, op):
        method = self.binding.method_for(op)
        if method is None:
            channel.answer(None)
            return

        def run():
            if method.is_async:
                return AsyncCall(self.events.get()).serve(channel, method.call, op)
            return method.call(op)

        channel.answer(answered(self.binding.cls, method, run, self.log_error, channel.area))

    def log_error(self, text):
        self.control.log("error", text)

    # Control.

    def obey(self, message):
        if "start" in message:
            self.start()
        elif "reconfigure" in message:
            self.reconfigure(message["reconfigure"])
        elif "state" in message:
            self.take_state(message["state"])
        elif "begin" in message:
            self.tell("on_live", self.binding.begin, self.run_method)
        elif "recall" in message:
            self.tell("on_recall", self.run_method, self.binding.instance.on_recall)
        elif "stop" in message:
            self.stop()
        elif "describe" in message:
            self.control.send({"description": self.description})
        else:
            self.control.log("warn", f"an unknown message of the host: {sorted(message)}")

    def start(self):
        try:
            self.run_method(self.binding.instance.on_start)
        except BaseException as error:
            self.fail("on_start raised " + "".join(traceback.format_exception(type(error), error, error.__traceback__)))
        self.started.set()
        if self.binding.timers:
            self.start_thread(self.run_timers, "timers")

    def tell(self, name, run, *arguments):
        """Runs a method that refuses nothing: an exception is logged."""
        try:
            run(*arguments)
        except BaseException:
            self.control.log("error", f"{name} raised {traceback.format_exc()}")

    def run_method(self, method, *arguments):
        found = method(*arguments)
        return self.events.result_of(found) if inspect.iscoroutine(found) else found

    def reconfigure(self, options):
        try:
            self.binding.reconfigure(options, self.run_method)
        except (ValueError, OSError) as error:
            self.control.send({"refused": str(error)})
        except BaseException as error:
            self.control.send({"refused": f"on_reconfigure raised {error!r}"})
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.control.log("error", f"on_reconfigure raised {text}")
        else:
            self.control.send({"reconfigured": True})

    def take_state(self, text):
        if not text:
            return
        try:
            state = pickle.loads(base64.b64decode(text))
            if not isinstance(state, dict):
                raise TypeError(f"it is a {type(state).__name__} and not a dict")
            self.binding.instance.state = state
        except Exception as error:
            self.control.log("warn", f"the state of the worker before cannot be taken over, it starts empty: {error!r}")

    def stop(self):
        self.stopped.set()
        self.tell("on_stop", self.run_method, self.binding.instance.on_stop)
        self.send_metrics()
        sys.stdout.flush(), sys.stderr.flush()
        self.control.flush_dropped()
        self.control.send({"state": self.pickled_state()})
        os._exit(0)

    def pickled_state(self):
        """The state in base64. Empty if there is none."""
        state = self.binding.instance.state
        if not state:
            return ""
        try:
            return base64.b64encode(pickle.dumps(state)).decode()
        except Exception as error:
            self.control.log("warn", f"the state cannot be pickled, the next worker starts with none: {error!r}")
            return ""

    # Timers and metrics.

    def run_timers(self):
        order = itertools.count()
        due = [(time.monotonic() + seconds, next(order), seconds, method) for seconds, method in self.binding.timers]
        heapq.heapify(due)
        while True:
            at, _, seconds, method = due[0]
            if self.stopped.wait(max(0.0, at - time.monotonic())):
                return
            try:
                self.run_method(method.call)
            except BaseException as error:
                self.log_error(raised(self.binding.cls, method, error))
            # Calls that were missed meanwhile are not made up for.
            heapq.heapreplace(due, (max(at + seconds, time.monotonic()), next(order), seconds, method))

    def report(self):
        while not self.stopped.wait(1.0):
            self.control.tick()
            self.send_metrics()

    def send_metrics(self):
        found = self.binding.instance.metrics.take()
        if found:
            self.control.send({"metrics": found})
