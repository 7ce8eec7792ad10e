"""What every end-to-end test stands on: a store of its own, and a runner that cleans up whatever happens.

A test is a function with `@test` that takes a `Store`. It runs in a process of its own with a time limit, in a
directory of its own. Processes and mounts are found again by that directory, so a test that hangs or is killed leaves
nothing behind either.
"""

import errno
import functools
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HEKATE = os.environ.get("HEKATE", "")
NOBODY = 65534
# How many times longer than usual everything may take: for machines that are emulated.
PATIENCE = int(os.environ.get("E2E_PATIENCE", "1"))
# The first mount of a store is one of its server (`serve --mount`): for tests that kill neither.
OWN = bool(os.environ.get("HEKATE_OWN_MOUNT"))
TESTS = []

# Tests of what is not there yet, and what each waits for. One that passes is a failure: then its line goes.
AWAITED = {}


class Skip(Exception):
    """The machine lacks what the test needs."""


def test(function=None, *, root=False, fuse=True, limit_s=90):
    """Declares a test. `root`, `fuse`: what it needs; `limit_s`: what it may take on a busy machine."""
    if function is None:
        return functools.partial(test, root=root, fuse=fuse, limit_s=limit_s)
    TESTS.append((function.__name__, function, root, fuse, limit_s))
    return function


def equal(found, wanted, what):
    assert found == wanted, f"{what}: {short(found)}, not {short(wanted)}"


def same_bytes(found, wanted, what):
    """Compares content; says where it differs first."""
    if found == wanted:
        return
    at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
    raise AssertionError(
        f"{what}: {len(found)} bytes, not {len(wanted)}, that differ from byte {at} on: "
        f"{found[at:at + 16]!r}, not {wanted[at:at + 16]!r}"
    )


def raises(wanted, function, *arguments, **named):
    """The call must fail with this errno."""
    label = f"{getattr(function, '__name__', function)}{short(arguments)}"
    try:
        function(*arguments, **named)
    except OSError as error:
        got = errno.errorcode.get(error.errno, error.errno)
        assert error.errno == wanted, f"{label}: {got}, not {errno.errorcode[wanted]}"
        return
    raise AssertionError(f"{label}: succeeded, not {errno.errorcode[wanted]}")


def short(value):
    text = repr(value)
    return text if len(text) <= 200 else text[:150] + "..." + text[-40:]


def wait_until(condition, what, limit_s=20):
    end = time.monotonic() + limit_s * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"after {limit_s} s still not: {what}"
        time.sleep(0.02)


def free_port():
    """A port of the loopback address that nobody has."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def write(path, data, flags=0):
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o644)
    try:
        written = 0
        while written < len(data):
            written += os.write(handle, memoryview(data)[written:])
    finally:
        os.close(handle)


def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read()


class Outcome:
    """What a command did."""

    def __init__(self, arguments, done):
        self.arguments, self.exit = arguments, done.returncode
        self.out, self.err = done.stdout, done.stderr
        self.text = self.out + self.err

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"hekate {' '.join(self.arguments)}: no JSON: {short(self.out)} {short(self.err)}") from None


class Store:
    """A cluster in a directory of its own: of one server, until others join."""

    def __init__(self, base):
        self.base = base
        self.state = f"{base}/state"
        self.server_pid = None
        self.coordinator_pid = None
        self.other_pids = {}
        self.mount_pids = {}

    def path(self, name):
        return f"{self.base}/{name}"

    def directory(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        return self.path(name)

    def try_cli(self, *arguments, state=None, server=None, uid=None, program=HEKATE, limit_s=60):
        """Runs a command; it may fail."""
        full = [program, "--state", state or self.state]
        full += ["--server", server] if server else []
        full += arguments
        if uid is not None:
            full = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *full]
        # From /: the daemons must not depend on where they are started.
        done = subprocess.run(full, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s * PATIENCE, cwd="/")
        return Outcome(arguments, done)

    def cli(self, *arguments, **named):
        """Runs a command that must succeed."""
        outcome = self.try_cli(*arguments, **named)
        assert outcome.exit == 0, f"hekate {' '.join(arguments)}: exit {outcome.exit}: {outcome.text.strip()}"
        return outcome

    def refuses(self, *arguments, words, exits=range(64, 79), **named):
        """Runs a command that must fail, with all of the words (regular expressions) on standard error."""
        outcome = self.try_cli(*arguments, **named)
        label = f"hekate {' '.join(arguments)}"
        assert outcome.exit in exits, f"{label}: exit {outcome.exit}: {outcome.text.strip()}"
        for word in words:
            assert re.search(word, outcome.err), f"{label}: the message lacks {word!r}: {outcome.text.strip()}"
        assert "panicked" not in outcome.text, f"{label}: {outcome.text.strip()}"
        return outcome

    def bricks(self, count):
        return [self.path(f"brick{number}") for number in range(count)]

    def init(self, bricks=2, volume="v", copies=2, journal=32, directories=None, options=()):
        named = [word for path in directories or self.bricks(bricks) for word in ("--brick", path)]
        volume = ["--volume", volume, "--copies", str(copies)] if volume else []
        return self.cli("init", *named, "--journal", str(journal), *volume, *options)

    def coordinate(self, address):
        """A coordinator of its own process, whose state is in `c`."""
        words = ["--json", "coordinator", "--detach", "--listen", address]
        self.coordinator_pid = self.cli(*words, state=self.path("c")).json()["pid"]

    def serve(self, *options):
        self.server_pid = self.cli("--json", "serve", "--detach", *options).json()["pid"]

    def stop(self):
        self.cli("stop")
        self.server_pid = None

    def join(self, name, address, *options, brick=None, secret=None):
        """Makes a further server, whose state is in `name`."""
        brick = brick or self.path(f"{name}-brick")
        secret = secret or f"{self.state}/secret"
        words = ["join", address, "--secret-file", secret, "--brick", brick, "--journal", "32", *options]
        return self.cli("--json", *words, state=self.path(name)).json()

    def serve_other(self, name, *options):
        self.other_pids[name] = self.cli("--json", "serve", "--detach", *options, state=self.path(name)).json()["pid"]

    def stop_other(self, name):
        self.cli("stop", state=self.path(name))
        del self.other_pids[name]

    def kill_other(self, name):
        kill(self.other_pids.pop(name))

    def mount(self, name="mnt", volume="v", options=(), **named):
        """-> the directory."""
        directory = self.directory(name)
        self.mount_pids[name] = self.cli("--json", "mount", *options, volume, directory, **named).json()["pid"]
        return directory

    def umount(self, name="mnt"):
        self.cli("umount", self.path(name))
        del self.mount_pids[name]

    def remount(self, name="mnt"):
        self.umount(name)
        return self.mount(name)

    def up(self, **named):
        """init, serve, mount -> the directory."""
        self.init(**named)
        if OWN:
            directory = self.directory("mnt")
            self.serve("--mount", f"v:{directory}")
            return directory
        self.serve()
        return self.mount()

    def status(self):
        return self.cli("--json", "status").json()

    def kill_server(self):
        kill(self.server_pid)
        self.server_pid = None

    def kill_coordinator(self):
        kill(self.coordinator_pid)
        self.coordinator_pid = None

    def kill_mount(self, name="mnt"):
        kill(self.mount_pids.pop(name))

    def end(self):
        """After a test that passed: what still runs must be well and must end in order, and replicas must be equal."""
        had_server = self.server_pid is not None
        if had_server:
            # Replicas that were away are being healed.
            wait_until(lambda: self.status()["health"] == "good", "all is well in the end", limit_s=30)
        for name in list(self.mount_pids):
            self.umount(name)
        if self.other_pids:
            # Servers learn within a second that a session has ended, and each forgets what it kept for its retries.
            time.sleep(2.5)
        for name in list(self.other_pids):
            self.stop_other(name)
        if had_server:
            self.stop()
        if self.coordinator_pid is not None:
            self.cli("stop", state=self.path("c"))
            self.cli("debug", "compare", state=self.path("c"))
        elif had_server:
            self.cli("debug", "compare")


def kill(pid):
    """SIGKILL, and wait until the process has let go of everything."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), f"process {pid} gone")


def is_gone(pid):
    """Whether all threads have ended. What is left may be a zombie: its parent can be slow to collect it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        with open(f"/proc/{pid}/stat") as file:
            return len(threads) <= 1 and file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- cleaning up ---


def processes_of(base):
    """Hekate processes that were started with a path in `base`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        ours = any(word == base or word.startswith(base + "/") for word in words[1:])
        if ours and os.path.basename(words[0]) in ("hekate", os.path.basename(HEKATE)):
            found.append(int(pid))
    return found


def mounts_below(base):
    """Mount points below `base`, innermost first."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split(" ")[4] for line in file]
    return [point for point in reversed(points) if point.startswith(base + "/")]


def clean_up(base):
    for pid in processes_of(base):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for point in mounts_below(base):
        plain, lazy = (["umount"], ["umount", "-l"]) if os.geteuid() == 0 else (["fusermount3", "-u"], ["fusermount3", "-uz"])
        try:
            subprocess.run([*plain, point], capture_output=True, check=True, timeout=5)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            subprocess.run([*lazy, point], capture_output=True, timeout=30)
    if not mounts_below(base):
        shutil.rmtree(base, ignore_errors=True)


def logs(base):
    """The last lines of the log of each server."""
    for path in sorted(glob.glob(f"{base}/state*/*.log")):
        with open(path, errors="replace") as file:
            for line in file.read().splitlines()[-8:]:
                yield f"{os.path.relpath(path, base)}: {line}"


# --- running ---


def run_one(function, base, limit_s):
    """-> ("PASS" | "FAIL" | "SKIP", why)."""
    limit_s *= PATIENCE
    report = f"{base}/report"
    child = os.fork()
    if child == 0:
        os.setsid()
        verdict, why = judge(function, base)
        with open(report, "w") as file:
            json.dump([verdict, why], file)
        os._exit(0)
    end = time.monotonic() + limit_s
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            where = stuck_at(child)
            # Its mounts first: a process that waits for one cannot be killed.
            for pid in processes_of(base):
                os.kill(pid, signal.SIGKILL)
            end_group(child)
            os.waitpid(child, 0)
            return "FAIL", f"not done after {limit_s} s {where}"
        time.sleep(0.01)
    end_group(child)
    try:
        with open(report) as file:
            return tuple(json.load(file))
    except (OSError, ValueError):
        return "FAIL", "the test's process died"


def end_group(leader):
    """Ends what the test started in its own process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def stuck_at(pid):
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return f"(waiting in {file.read() or 'user space'})"
    except OSError:
        return ""


def stacks_of(pid):
    """Where a server that does not answer is, if gdb is there to ask. -> in which file that is written."""
    path = f"/var/tmp/hekate-stacks.{pid}.txt"
    try:
        with open(path, "w") as file:
            words = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 40"]
            subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60, check=True)
        return f" (its threads: {path})"
    except (OSError, subprocess.SubprocessError):
        return ""


def judge(function, base):
    store = Store(base)
    try:
        function(store)
        store.end()
        return "PASS", ""
    except Skip as why:
        return "SKIP", str(why)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, AssertionError):
            frames = [frame for frame in frames if "/test_" in frame.filename][-1:]
        where = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames if "/e2e/" in frame.filename]
        where = f" ({', '.join(where)})" if where else ""
        text = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
        if isinstance(error, subprocess.TimeoutExpired) and store.server_pid:
            text += stacks_of(store.server_pid)
        return "FAIL", text + where


def missing(root, fuse):
    if root and os.geteuid() != 0:
        return "needs root"
    if fuse:
        if not os.path.exists("/dev/fuse"):
            return "needs /dev/fuse"
        if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "needs access to /dev/fuse"
    return None


def main(modules):
    wanted = sys.argv[1:]
    TESTS.sort(key=lambda test: modules.index(sys.modules[test[1].__module__]))
    unknown = set(wanted) - {name for name, *_ in TESTS}
    if unknown:
        sys.exit(f"no such test: {', '.join(unknown)}; there are: {', '.join(name for name, *_ in TESTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    top = tempfile.mkdtemp(prefix="hekate-e2e.", dir=os.environ.get("E2E_DIR", "/var/tmp"))
    os.chmod(top, 0o711)  # other users pass through in their tests
    counts, unsteady = {"PASS": 0, "FAIL": 0, "SKIP": 0, "WAIT": 0}, []
    try:
        for name, function, root, fuse, limit_s in TESTS:
            if wanted and name not in wanted:
                continue
            arguments = (name, function, missing(root, fuse), f"{top}/{name}", limit_s)
            verdict = one_line(*arguments)
            if verdict == "FAIL" and os.environ.get("CI"):
                # What fails once in CI is told at the end; what fails twice fails.
                verdict = one_line(*arguments)
                unsteady += [name] if verdict == "PASS" else []
            counts[verdict] += 1
    finally:
        clean_up(top)
    if unsteady:
        print(f"hekate e2e: passed only when run again, see above: {', '.join(unsteady)}")
    skipped = f", {counts['SKIP']} skipped" if counts["SKIP"] else ""
    awaited = f", {counts['WAIT']} wait for what is not there yet" if counts["WAIT"] else ""
    print(f"hekate e2e: {counts['PASS']} passed, {counts['FAIL']} failed{skipped}{awaited}")
    sys.exit(1 if counts["FAIL"] else 0)


def as_awaited(name, verdict, why):
    if name not in AWAITED or verdict == "SKIP":
        return verdict, why
    if verdict == "PASS":
        return "FAIL", "passes now: delete its line in AWAITED (harness.py)"
    return "WAIT", f"for {AWAITED[name]} ({why})"


def one_line(name, function, lacks, base, limit_s):
    """Runs a test and prints its line. -> the verdict."""
    if lacks:
        print(f"SKIP {name}: {lacks}", flush=True)
        return "SKIP"
    os.mkdir(base)
    os.chmod(base, 0o711)
    begun = time.monotonic()
    try:
        verdict, why = as_awaited(name, *run_one(function, base, limit_s))
        print(f"{verdict} {name} ({time.monotonic() - begun:.1f} s){': ' + why if why else ''}", flush=True)
        if verdict == "FAIL":
            for line in logs(base):
                print(f"     {line}", flush=True)
    finally:
        clean_up(base)
    return verdict
