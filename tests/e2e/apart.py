"""Runs a test in a process and a directory of its own, with a time limit, and cleans up whatever happens.

The process is forked from pytest's, leads a session of its own and hands its reports over in a file. All that the test
leaves behind is found by the directory (harness.py).
"""

import ctypes
import faulthandler
import os
import pickle
import signal
import subprocess
import time

from _pytest.runner import runtestprotocol
from pytest import TestReport

from harness import DIRECTORY_VARIABLE, PATIENCE, clean_up, end_processes, logs

LIMIT_S = 90
# Between the time limit, when the process writes down where it is, and its end.
GRACE_S = 1
PR_SET_PDEATHSIG = 1


def run_apart(item, base):
    """-> the test's reports."""
    os.mkdir(base)
    os.chmod(base, 0o711)  # other users pass through in their tests
    child = os.fork()
    if child == 0:
        be_test(item, base)
    try:
        reports = await_reports(item, base, child)
        for failed in [report for report in reports if report.failed][:1]:
            failed.sections += [("Last lines of the servers' logs", "\n".join(logs(base)))]
        return reports
    finally:
        end_group(child)
        clean_up(base)


def limit_of(item):
    """Seconds."""
    marker = item.get_closest_marker("limit")
    return (marker.args[0] if marker else LIMIT_S) * PATIENCE


# --- in the test's process ---


def be_test(item, base):
    """Never returns."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ[DIRECTORY_VARIABLE] = base
        with open(f"{base}/stuck", "w") as stuck:
            faulthandler.dump_traceback_later(limit_of(item), file=stuck)
            reports = runtestprotocol(item, log=False, nextitem=None)
            faulthandler.cancel_dump_traceback_later()
        turn = item.config.hook.pytest_report_to_serializable
        with open(f"{base}/reports.new", "wb") as file:
            pickle.dump([turn(config=item.config, report=report) for report in reports], file)
        os.rename(f"{base}/reports.new", f"{base}/reports")
    finally:
        os._exit(0)


# --- in pytest's process ---


def await_reports(item, base, child):
    limit_s = limit_of(item)
    begun = time.monotonic()
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > begun + limit_s + GRACE_S:
            said = f"not done after {limit_s} s {waiting_in(child)}\n{frames_of_tests(f'{base}/stuck')}"
            # The servers and mounts end first: a process that waits for a mount cannot be killed.
            end_processes(base)
            end_group(child)
            os.waitpid(child, 0)
            return [failure(item, said, limit_s)]
        time.sleep(0.02)
    try:
        with open(f"{base}/reports", "rb") as file:
            turn = item.config.hook.pytest_report_from_serializable
            return [turn(config=item.config, data=data) for data in pickle.load(file)]
    except FileNotFoundError:
        return [failure(item, "the test's process died", time.monotonic() - begun)]


def failure(item, said, duration_s):
    return TestReport(item.nodeid, item.location, {}, "failed", said, "call", duration=duration_s)


def end_group(leader):
    """Ends what the test started in its own process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def frames_of_tests(path):
    """What faulthandler wrote down, without pytest's own frames."""
    own = ("/dist-packages/", "/apart.py", "/conftest.py", "<frozen ", "<string>")
    return "\n".join(line for line in content(path).splitlines() if not any(word in line for word in own))


def content(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def waiting_in(pid):
    return f"(waiting in {content(f'/proc/{pid}/wchan') or 'user space'})"


def stacks_of(pid):
    """Writes down where the threads of a process are, if there is gdb. -> in which file."""
    path = f"/var/tmp/hekate-stacks.{pid}.txt"
    words = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 40"]
    try:
        with open(path, "w") as file:
            quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
            subprocess.run(words, stdout=file, timeout=60, check=True, **quiet)
        return path
    except (OSError, subprocess.SubprocessError):
        return None
