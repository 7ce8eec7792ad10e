"""The worker's control socket: a JSON object a line. Log lines, also of `print`, with a limit; metrics."""

import io
import json
import logging
import os
import select
import threading
import time

LINES_PER_SECOND_MAX = 100
TEXT_CHARS_MAX = 16 << 10
LEVELS = [(logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info")]


def level_of(number):
    """The host's level of a record. Levels of a translator's own are those below them."""
    return next((name for least, name in LEVELS if number >= least), "debug")


class Control:
    """Both directions. `send` may be called on any thread."""

    def __init__(self, socket):
        os.set_inheritable(socket.fileno(), False)
        self.socket, self.lock, self.end = socket, threading.Lock(), select.poll()
        self.end.register(socket, select.POLLRDHUP)
        self.window, self.lines, self.dropped = time.monotonic(), 0, 0

    def send(self, message):
        # Names in a text may have bytes that are not UTF-8, which Python has as lone surrogates.
        data = json.dumps(message, default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self.lock:
            try:
                self.socket.sendall(data)
            except OSError:
                os._exit(0)  # the host has ended

    def messages(self):
        """What the host sends, until it ends."""
        rest = b""
        while True:
            more = self.socket.recv(64 << 10)
            if not more:
                return
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)

    def log(self, level, text):
        """One log line, if there were not too many in this second."""
        with self.lock:
            self.next_window()
            self.lines += 1
            if self.lines > LINES_PER_SECOND_MAX:
                self.dropped += 1
                return
        if len(text) > TEXT_CHARS_MAX:
            half = TEXT_CHARS_MAX // 2  # the end of a traceback says most
            text = f"{text[:half]} ... ({len(text) - 2 * half} more characters) ... {text[-half:]}"
        self.send({"log": level, "text": text})

    def next_window(self):
        now = time.monotonic()
        if now - self.window < 1:
            return
        dropped, self.window, self.lines, self.dropped = self.dropped, now, 0, 0
        if dropped:
            text = f"{dropped} log lines were dropped: more than {LINES_PER_SECOND_MAX} a second"
            try:
                self.socket.sendall(json.dumps({"log": "warn", "text": text}).encode() + b"\n")
            except OSError:
                os._exit(0)

    def tick(self):
        """Called once a second, so that the number of dropped lines is sent without a further line. Also ends the
        worker with its host if the main thread runs a method of the translator that does not return."""
        if self.end.poll(0):
            os._exit(0)
        with self.lock:
            self.next_window()

    def flush_dropped(self):
        with self.lock:
            self.window = 0.0
            self.next_window()


class LogHandler(logging.Handler):
    """Records of Python's logging become log lines of the host: `log(level, text)` gets them."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record):
        try:
            text = self.format(record)
        except Exception as error:
            text = f"a log line that cannot be formatted: {record.msg!r} ({error!r})"
        self.log(level_of(record.levelno), text)


class PrintedLines(io.TextIOBase):
    """Standard output or standard error: each line is a log line."""

    def __init__(self, control, level):
        super().__init__()
        self.control, self.level, self.rest, self.lock = control, level, "", threading.RLock()

    def writable(self):
        return True

    def write(self, text):
        with self.lock:
            *lines, self.rest = (self.rest + text).split("\n")
            if len(self.rest) > TEXT_CHARS_MAX:
                lines, self.rest = [*lines, self.rest], ""
            for line in lines:
                if line.strip():
                    self.control.log(self.level, line)
        return len(text)

    def flush(self):
        """Ends the line."""
        with self.lock:
            text, self.rest = self.rest, ""
            if text.strip():
                self.control.log(self.level, text)
