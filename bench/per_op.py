#!/usr/bin/env python3
"""What one op costs: time, CPU of all processes of ours, and system calls that send, sync and write, with one server and with three.

    per_op.py [COUNT]        as root, with HEKATE=PROGRAM; 1,000 of each op unless told

Times and CPU are of a run without a tracer, calls of a second run under strace(1). CPU is what the kernel's scheduler counted
(/proc/PID/task/*/schedstat, field 1); it includes the threads that answer, follow and sync. A tracer makes everything slow,
so batches that share a sync or a packet may be smaller under it: the counts are upper bounds.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "e2e"))

import harness  # noqa: E402
from servers import three  # noqa: E402

CALLS = ["sendto", "sendmsg", "write", "writev", "fdatasync"]
PAGE = b"p" * 4096


def one(store):
    return store.up(bricks=2)


def ops(mnt, count):
    """(name, preparation, op) in an order in which each finds what it needs."""
    paths = [f"{mnt}/d/f{number}" for number in range(count)]
    handles = {}

    def opened(flags):
        def prepare():
            handles["fd"] = os.open(f"{mnt}/page", os.O_RDWR | os.O_CREAT | flags)
            os.pwrite(handles["fd"], PAGE * 64, 0)

        return prepare

    def create(number):
        os.close(os.open(paths[number], os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    yield "create an empty file", lambda: os.mkdir(f"{mnt}/d"), create
    yield "stat", None, lambda number: os.stat(paths[number])
    yield "write 4 KiB in place", opened(0), lambda number: os.pwrite(handles["fd"], PAGE, number % 64 * 4096)
    yield "write 4 KiB in place, O_DSYNC", opened(os.O_DSYNC), lambda number: os.pwrite(handles["fd"], PAGE, number % 64 * 4096)
    yield "rename", None, lambda number: os.rename(paths[number], paths[number] + "r")
    yield "unlink", None, lambda number: os.unlink(paths[number] + "r")
    yield "mkdir", None, lambda number: os.mkdir(paths[number])


def cpu_ns(pids):
    tasks = [task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks)


def traced(pids, directory):
    """strace of each process, once it is attached."""
    tracers = []
    for pid in pids:
        out = f"{directory}/strace-{pid}"
        log = open(f"{out}.log", "w")
        command = ["strace", "-f", "-c", "-U", "name,calls", "-e", "trace=" + ",".join(CALLS), "-p", str(pid), "-o", out]
        tracers.append((subprocess.Popen(command, stderr=log), out))
    time.sleep(1.5)
    return tracers


def counted(tracers):
    total = dict.fromkeys(CALLS, 0)
    for tracer, out in tracers:
        tracer.send_signal(2)
        tracer.wait(20)
        for line in open(out):
            found = re.match(r"\s*(\w+)\s+(\d+)\s*$", line)
            if found and found[1] in total:
                total[found[1]] += int(found[2])
    return total


def measure(name, begin, count, trace):
    base = tempfile.mkdtemp(prefix="hekate-per-op.", dir="/var/tmp")
    rows = []
    try:
        store = harness.Store(base)
        mnt = begin(store)
        for op, prepare, run in ops(mnt, count):
            if prepare:
                prepare()
            time.sleep(0.3)
            pids = harness.processes_of(base)
            tracers = traced(pids, base) if trace else []
            cpu, begun = cpu_ns(pids), time.monotonic()
            for number in range(count):
                run(number)
            took, cpu = time.monotonic() - begun, cpu_ns(pids) - cpu
            row = {"servers": name, "op": op, "count": count}
            if trace:
                row |= {call: round(calls / count, 2) for call, calls in counted(tracers).items()}
            else:
                row |= {"us": round(took / count * 1e6), "cpu_us": round(cpu / count / 1e3)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    finally:
        harness.clean_up(base)
        shutil.rmtree(base, ignore_errors=True)
    return rows


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for name, begin in [("one", one), ("three", three)]:
        measure(name, begin, count, trace=False)
        measure(name, begin, max(count // 5, 50), trace=True)


if __name__ == "__main__":
    main()
