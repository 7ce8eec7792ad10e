"""What every end-to-end test uses: a store in a directory of its own, assertions, and the clean-up of that directory.

The clean-up finds processes, mounts and loop devices by the directory, so it works after a test that hung or was killed.
"""

import errno
import functools
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from unittest import SkipTest as Skip  # pytest reports it as a skip; scripts without pytest use this module too

HEKATE = os.environ.get("HEKATE", "")
NOBODY = 65534
# How many times longer than usual everything may take: for machines that are emulated.
PATIENCE = int(os.environ.get("E2E_PATIENCE", "1"))
# The first mount of a store is one of its server (`serve --mount`): for tests that kill neither.
OWN = bool(os.environ.get("HEKATE_OWN_MOUNT"))
# Name of the variable that holds a test's directory in the environment of the processes which the test starts.
DIRECTORY_VARIABLE = "E2E_TEST"
# Below the ports that Linux gives to connections (32768 and up): 2,000 for each worker of pytest-xdist.
PORT_MIN, PORTS = 10_000, 2_000


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


@functools.cache
def has_measuring_modes():
    """Whether the program is built with the modes that only measurements use (cargo feature `measuring`)."""
    words = [HEKATE, "volume", "create", "--help"]
    return "fast-path" in subprocess.run(words, capture_output=True, text=True, check=True).stdout


def short(value):
    text = repr(value)
    return text if len(text) <= 200 else text[:150] + "..." + text[-40:]


def wait_until(condition, what, limit_s=20):
    end = time.monotonic() + limit_s * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"after {limit_s} s still not: {what}"
        time.sleep(0.02)


def free_port():
    """A port of the loopback address that nothing listens on, from the range of this worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10
    for port in random.sample(range(PORT_MIN + worker * PORTS, PORT_MIN + (worker + 1) * PORTS), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("50 ports are all in use")


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


# Translators of the first volume that a test mounts: HEKATE_TRANSLATORS="negative-lookup trace" runs a suite above them.
STACK = os.environ.get("HEKATE_TRANSLATORS", "").split()
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/examples")


class Store:
    """A cluster in a directory of its own: of one server, until others join."""

    def __init__(self, base):
        self.base = base
        self.state = f"{base}/state"
        self.server_pid = None
        self.coordinator_pid = self.coordinator_address = None
        self.other_pids = {}
        self.mount_pids = {}
        self.stacked = False

    def path(self, name):
        return f"{self.base}/{name}"

    def directory(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        return self.path(name)

    def try_cli(self, *arguments, state=None, server=None, credential=None, uid=None, program=HEKATE, limit_s=60):
        """Runs a command; it may fail."""
        if STACK and "mount" in arguments and self.stacked is False:
            self.stacked = True
            self.stack(*STACK)
        full = [program, "--state", state or self.state]
        full += ["--server", server] if server else []
        full += ["--credential", credential] if credential else []
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

    def stack(self, *layers, volume="v"):
        """Gives the volume these translators; installs those of the examples first."""
        for layer in layers:
            example = re.match(r"python:translator=(\w+)", layer)
            if example:
                self.cli("python", "install", os.path.join(EXAMPLES, example[1]))
        self.cli("volume", "set", volume, "translators", *layers)

    def bricks(self, count):
        return [self.path(f"brick{number}") for number in range(count)]

    def init(self, bricks=2, volume="v", copies=2, journal=32, directories=None, options=()):
        named = [word for path in directories or self.bricks(bricks) for word in ("--brick", path)]
        volume = ["--volume", volume, "--copies", str(copies)] if volume else []
        return self.cli("init", *named, "--journal", str(journal), *volume, *options)

    def coordinate(self, address):
        """A coordinator of its own process, whose state is in `c`."""
        self.coordinator_address = address
        words = ["--json", "coordinator", "--detach", "--listen", address]
        self.coordinator_pid = self.cli(*words, state=self.path("c")).json()["pid"]

    def serve(self, *options):
        self.server_pid = self.cli("--json", "serve", "--detach", *options).json()["pid"]

    def stop(self):
        self.cli("stop")
        self.server_pid = None

    def token(self, *options, state=None):
        """An invitation of the server, or the coordinator, with this state."""
        return self.cli("token", "create", *options, state=state or self.state).out.strip()

    def join(self, name, *options, invitation=None, brick=None):
        """Makes a further server, whose state is in `name`. Without an invitation it gets a token of the first server."""
        brick = brick or self.path(f"{name}-brick")
        words = ["join", invitation or self.token(), "--brick", brick, "--journal", "32", *options]
        return self.cli("--json", *words, state=self.path(name)).json()

    def client(self, name, *options, state=None):
        """Makes a client -> the file of its credential."""
        file = self.path(f"{name}.hekate")
        self.cli("client", "create", name, *options, "-o", file, state=state)
        return file

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
        words = proc_strings(pid, "cmdline")
        ours = any(word == base or word.startswith(base + "/") for word in words[1:])
        if ours and os.path.basename(words[0]) in ("hekate", os.path.basename(HEKATE)):
            found.append(int(pid))
    return found


def started_by(base):
    """Processes that inherited the environment of a test whose directory is `base` or in it."""
    wanted = f"{DIRECTORY_VARIABLE}={base}"
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if any(word == wanted or word.startswith(wanted + "/") for word in proc_strings(pid, "environ")):
            found.append(int(pid))
    return found


def proc_strings(pid, name):
    """The zero-terminated strings of /proc/PID/NAME; [""] if the process is gone or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def mounts_below(base):
    """Mount points below `base`, innermost first."""
    return [point for point, _, _ in mounts_with_devices(base)]


def mounts_with_devices(base):
    """(mount point, minor number of its device, kind of file system) below `base`, innermost first."""
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words, kind = line.split(" "), line.partition(" - ")[2].split(" ")[0]
            if words[4].startswith(base + "/"):
                found.append((words[4], words[2].partition(":")[2], kind))
    return found[::-1]


def end_processes(base):
    """Ends the Hekate processes of `base` at once, and after a second whatever else a test left there."""
    end_all(processes_of(base))
    abort_fuse(base)
    end = time.monotonic() + 1
    while (left := started_by(base)) and time.monotonic() < end:
        time.sleep(0.02)
    end_all(left)


def end_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def abort_fuse(base):
    """Ends waits in FUSE mounts below `base`: a process that waits there cannot be killed."""
    for _, minor, kind in mounts_with_devices(base):
        if kind.startswith("fuse"):
            try:
                with open(f"/sys/fs/fuse/connections/{minor}/abort", "w") as file:
                    file.write("1")
            except OSError:
                pass  # the connection has ended, or fusectl is not mounted


def clean_up(base):
    end_processes(base)
    for point in mounts_below(base):
        is_root = os.geteuid() == 0
        plain, lazy = (["umount"], ["umount", "-l"]) if is_root else (["fusermount3", "-u"], ["fusermount3", "-uz"])
        try:
            subprocess.run([*plain, point], capture_output=True, check=True, timeout=5)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            subprocess.run([*lazy, point], capture_output=True, timeout=30)
    detach_loops(base)
    if not mounts_below(base):
        shutil.rmtree(base, ignore_errors=True)


def detach_loops(base):
    """Detaches loop devices whose files are below `base`."""
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(path) as file:
                is_ours = file.read().startswith(base + "/")
        except OSError:
            continue  # detached meanwhile
        if is_ours:
            subprocess.run(["losetup", "-d", f"/dev/{path.split('/')[3]}"], capture_output=True, timeout=30)


def logs(base):
    """The last lines of the log of each server. Mounts are left out: one without a server would not answer."""
    directories = sorted(set(glob.glob(f"{base}/*")) - set(mounts_below(base)))
    for path in [path for directory in directories for path in sorted(glob.glob(f"{directory}/*.log"))]:
        with open(path, errors="replace") as file:
            for line in file.read().splitlines()[-8:]:
                yield f"{os.path.relpath(path, base)}: {line}"
