#!/usr/bin/env python3
"""S3 endpoints side by side.  run.py --sys hekate,versity-xfs,... [--rows all] --out FILE

Rows: objects (PUT, GET, HEAD and DELETE of each size), mixed, list, syncs (how often a PUT syncs), memory. Each row is a line of JSON of
`load` (crates/gateway-s3/examples/load) with the system's name and `other_cpus`: what processes that are not ours took
meanwhile. A row during which that was more than --quiet is measured again, up to --tries times, and the quietest attempt is
written. Runs as root, in mount and network namespaces of its own.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import zip_longest
from pathlib import Path

import systems

KIB, MIB = 1 << 10, 1 << 20
# Objects of a PUT row at most, so that the images have room.
SIZES = {4 * KIB: 60_000, 64 * KIB: 10_000, MIB: 700, 64 * MIB: 12}
CLIENTS = (1, 16)
TICKS = 100
# Listings of more keys are made another way, and 16 clients list them by prefixes.
MANY = 100_000
# Objects that GET, HEAD and mixed read.
SET = {4 * KIB: 2000, 64 * KIB: 1000, MIB: 200, 64 * MIB: 8}


def busy_ticks():
    """-> ticks of all processors that were not idle, and those of kernel threads."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    kernel = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if stat[1] == "2":
                kernel += int(stat[11]) + int(stat[12])
    return sum(fields[:3]) + sum(fields[5:8]), kernel


class Bench:
    def __init__(self, options, name, system):
        self.options, self.name, self.system = options, name, system
        self.last = None  # the line of the last attempt

    def load(self, bucket, work, **settings):
        """Runs the load. -> its line, None for work that prints none."""
        key, secret = self.system.access
        command = [str(self.options.load), self.system.endpoint, bucket, work]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        command += ["--pids", ",".join(map(str, self.system.pids()))]
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:600]}")
        return json.loads(done.stdout) if done.stdout else None

    def row(self, row, bucket, work, before=None, tries=None, **settings):
        """Measures a row until it is quiet, and writes the quietest attempt. `before` is called before each attempt."""
        best = None
        for _ in range(tries or self.options.tries):
            more = before() if before else {}
            (busy, kernel), begun = busy_ticks(), time.monotonic()
            try:
                line = self.load(bucket, work, **{**settings, **(more or {})})
            except RuntimeError as error:
                print(f"{self.name:22} {row:24} failed: {error}", flush=True)
                return None
            wall, (busy_after, kernel_after) = time.monotonic() - begun, busy_ticks()
            ours = (line["client_cpus"] + line["server_cpus"]) * line["seconds"]
            others = ((busy_after - busy - kernel_after + kernel) / TICKS - ours) / wall
            line["other_cpus"] = round(max(others, 0), 2)
            self.last = line
            if best is None or line["other_cpus"] < best["other_cpus"]:
                best = line
            if best["other_cpus"] <= self.options.quiet:
                break
        best = {"system": self.name, "row": row, **best}
        with open(self.options.out, "a") as out:
            out.write(json.dumps(best) + "\n")
        print(
            f"{self.name:22} {row:24} {best['per_s']:10.1f}/s {best['mib_per_s']:8.1f} MiB/s  p50 {best['p50_ms']:8.2f}"
            f"  p99 {best['p99_ms']:8.2f} ms  cpu {best['server_cpu_ms_per_request']:7.3f} ms  client {best['client_cpus']:.2f}"
            f"  others {best['other_cpus']:.2f}  errors {best['errors']}",
            flush=True,
        )
        return best

    def objects(self):
        for size in self.options.sizes:
            most, bucket = SIZES[size], f"objects-{size}"
            self.load(bucket, "bucket")
            common = {"size": size, "seconds": self.options.seconds, "prefix": "data/"}
            made = self.first(bucket, size)
            yield
            for clients in CLIENTS:
                row = f"{label(size)} {clients}"
                # Keys of each attempt are new ones.
                numbers = iter(range(1, 100))
                fresh = lambda: {"first": next(numbers) * 1_000_000}
                fewer = most if size < MIB else most // 2
                put = self.row(f"PUT {row}", bucket, "put", before=fresh, clients=clients, count=fewer, **common)
                # What the last attempt put. Keys of earlier ones remain.
                written = ((next(numbers) - 1) * 1_000_000, self.last["requests"] if put else 0)
                yield
                few = {"count": 60} if size == 64 * MIB else {}
                self.row(f"GET {row}", bucket, "get", clients=clients, keys=made, **common, **few)
                yield
                self.row(f"HEAD {row}", bucket, "head", clients=clients, keys=made, **common)
                yield
                if put:
                    self.delete(row, bucket, clients, written, common)
                yield

    def first(self, bucket, size):
        """Puts the objects that are read, as many as a slow system makes in a while. -> their number."""
        made = self.load(bucket, "put", size=size, count=SET[size], clients=8, seconds=15, prefix="data/")
        return made["requests"]

    def delete(self, row, bucket, clients, written, common):
        """Deletes are of objects that exist: each attempt has its share of them."""
        first, made = written
        share = max(made // self.options.tries, 1)
        numbers = iter(range(self.options.tries))

        def next_share():
            at = next(numbers) * share
            return {"first": first + at}

        self.row(f"DELETE {row}", bucket, "delete", before=next_share, clients=clients, keys=share, **common)

    def mixed(self):
        bucket = "mixed"
        self.load(bucket, "bucket")
        for size in (4 * KIB, 64 * KIB):
            prefix = f"{label(size).replace(' ', '')}/"
            made = self.load(bucket, "put", size=size, count=SET[size], clients=8, seconds=15, prefix=prefix)
            for clients in CLIENTS:
                row = f"mixed {label(size)} {clients}"
                yield
                self.row(row, bucket, "mixed", size=size, clients=clients, keys=made["requests"], prefix=prefix, seconds=self.options.seconds)

    def list(self):
        for count, shape in self.options.lists:
            bucket = f"list-{shape}-{count}"
            self.load(bucket, "bucket")
            settings = {"size": 16, "clients": 16, "count": count, "shape": shape, "seconds": 3600}
            keys = (key_of(number, shape) for number in range(count))
            put = partial(self.row, f"make {count} {shape}", bucket, "put", tries=1, **settings)
            is_many = count > MANY
            (self.system.fill_many if is_many else self.system.fill)(put, bucket, keys)
            reset_peak(self.system.pids())
            print(f"{self.name:22} before the listings {memory_mib(self.system.pids())} MiB", flush=True)
            for clients in CLIENTS[:1] if is_many else CLIENTS:
                yield
                self.row(f"LIST {count} {shape} {clients}", bucket, "list", clients=clients, seconds=2)
                if shape == "flat" and clients == 1:
                    yield
                    self.row(f"LIST {count} {shape} / {clients}", bucket, "list", clients=clients, seconds=2, delimiter="/")
            if is_many:
                yield
                prefixes = ",".join(prefixes_of(count, shape))
                self.row(f"LIST {count} {shape} by prefixes {CLIENTS[-1]}", bucket, "list", clients=CLIENTS[-1], prefixes=prefixes)
                if shape == "nested":
                    yield
                    directories = ",".join(directories_of(count))
                    self.row(f"LIST {count} {shape} / 1", bucket, "list", clients=1, prefixes=directories, delimiter="/")
            print(f"{self.name:22} peak memory {memory_mib(self.system.pids())} MiB", flush=True)

    def memory(self):
        """Peak memory of the servers while 256 clients upload or download at once, fast ones and slow ones."""
        size, clients = self.options.memory_mib * MIB, 256
        self.load("memory", "bucket")
        for rate in (0, MIB // 2):
            speed = "slow" if rate else "fast"
            for work in ("put", "get"):
                reset_peak(self.system.pids())
                idle = memory_mib(self.system.pids())
                line = self.load(
                    "memory", work, size=size, clients=clients, count=clients, keys=clients, rate=rate, seconds=3600
                )
                line = {"system": self.name, "row": f"memory {work} {speed}", "idle_mib": idle, **line}
                line["peak_mib"] = memory_mib(self.system.pids())
                with open(self.options.out, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    f"{self.name:22} {work} {speed}: peak {line['peak_mib']} MiB, before {idle} MiB, {line['mib_per_s']} MiB/s,"
                    f" slowest {line['max_ms'] / 1000:.1f} s, errors {line['errors']}",
                    flush=True,
                )
            self.load("memory", "delete", clients=8, keys=clients, seconds=600)
            yield

    def syncs(self):
        """System calls of 200 PUTs of 4 KiB that wait for a disk, of all processes of the system."""
        self.load("syncs", "bucket")
        self.load("syncs", "put", size=4096, count=20, clients=1, prefix="warm/", seconds=60)
        out = systems.PP / "run/syncs.trace"
        targets = [word for pid in self.system.pids() for word in ("-p", str(pid))]
        calls = "fsync,fdatasync,syncfs,sync,sync_file_range,pwritev2,msync"
        strace = subprocess.Popen(["strace", "-f", "-c", "-e", f"trace={calls}", "-o", out, *targets], stderr=subprocess.DEVNULL)
        time.sleep(2)
        for clients in CLIENTS:
            self.load("syncs", "put", size=4096, count=100, clients=clients, prefix=f"{clients}/", seconds=60)
        strace.send_signal(signal.SIGINT)
        strace.wait()
        counts = {}
        for line in out.read_text().splitlines():
            words = line.split()
            if len(words) >= 5 and re.fullmatch(r"[\d.]+", words[0]) and words[-1] in calls.split(","):
                counts[words[-1]] = int(words[3]) / 200
        line = {"system": self.name, "row": "syncs", "calls_per_put": counts}
        with open(self.options.out, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{self.name:22} syncs of a PUT: {counts or 'none'}", flush=True)
        yield


def key_of(number, shape):
    """The key that `load` gives a number."""
    return f"{number:08}" if shape == "flat" else f"{number // 100_000:03}/{number // 1000 % 100:02}/{number:08}"


def prefixes_of(count, shape):
    """Prefixes of 10,000 keys each."""
    return [f"{number:04}" if shape == "flat" else f"{number // 10:03}/{number % 10}" for number in range(count // 10_000)]


def directories_of(count):
    """Prefixes of all directories of nested keys: who lists each with a delimiter finds all keys."""
    tops = [f"{number:03}/" for number in range(count // 100_000)]
    return ["", *tops, *(f"{top}{number:02}/" for top in tops for number in range(100))]


def label(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def reset_peak(pids):
    """The peak of resident memory is what is resident now."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def memory_mib(pids):
    """Peak resident memory of the processes together."""
    total = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        total += int(re.search(r"VmHWM:\s+(\d+)", status).group(1))
    return total // 1024


def sizes(text):
    """4096,65536 -> [4096, 65536]"""
    return [int(size) for size in text.split(",")]


def lists(text):
    """10000:flat,100000:nested -> [(10000, "flat"), ...]"""
    return [(int(count), shape) for count, shape in (item.split(":") for item in text.split(","))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sys", default="hekate,versity-xfs,versity-gluster")
    parser.add_argument("--rows", default="syncs,objects,mixed,list")
    parser.add_argument("--lists", type=lists, default=lists("10000:flat,100000:flat,100000:nested"))
    parser.add_argument("--sizes", type=sizes, default=list(SIZES), help="of the row objects, in bytes")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--memory-mib", type=int, default=16, help="size of each of 256 objects of the row memory")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--quiet", type=float, default=0.15, help="CPUs that others may take")
    parser.add_argument("--out", default="s3.jsonl")
    parser.add_argument("--load", default=systems.ROOT / "target/release/examples/load")
    options = parser.parse_args()
    if os.environ.get("S3_NS") != "1":
        os.environ["S3_NS"] = "1"
        inside = 'ip link set lo up; exec "$@"'
        words = ["unshare", "-m", "-n", "--propagation", "private", "sh", "-c", inside, "sh", sys.executable, *sys.argv]
        os.execvp("unshare", words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    benches = []
    try:
        for number, name in enumerate(options.sys.split(",")):
            system = systems.BY_NAME[name](number)
            benches.append(Bench(options, name, system))
            system.up()
        for rows in options.rows.split(","):
            # Row by row in turn, so that what others do meanwhile is much the same for all.
            for _ in zip_longest(*(getattr(bench, rows)() for bench in benches)):
                pass
    finally:
        for bench in benches:
            bench.system.down()


if __name__ == "__main__":
    main()
