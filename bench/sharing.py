#!/usr/bin/env python3
"""What mounts that remember cost each other: two that share a tree, a file, a directory; ten that remember 100,000 names.

  bench/sharing.py [--forms strict,asked] [--seconds 5] [--parts read,write,file,names,directory] [--names 100000] [--mounts 10] [--out FILE]

One server with two bricks and two mounts on this machine. `strict` mounts are given pledges (docs/coherence.md), `asked` are not
(`-o nopledges`). Each part prints a JSON line: rates in calls a second, 50th and 99th percentile and longest call in ms.

  read       both mounts stat all files of a tree of 1,000
  write      one does, while the other makes, writes and removes files in that tree
  file       ping-pong: one writes 100 bytes to a file, the other reads them, and the other way round
  names      ping-pong: one makes a name, the other finds and removes it, and the other way round
  directory  --mounts mounts list a directory of --names files and stat each; then it is renamed. Memory (RSS) of server and mounts

Needs root, HEKATE=PROGRAM (else target/release/hekate), bricks on BENCH_DIR (else /var/tmp). Everything that it made is removed.
"""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

HEKATE = os.environ.get("HEKATE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../target/release/hekate"))


class Store:
    """A server with two bricks."""

    def __init__(self):
        self.base = tempfile.mkdtemp(prefix="hekate-sharing.", dir=os.environ.get("BENCH_DIR", "/var/tmp"))
        self.mounts = {}

    def cli(self, *words):
        command = [HEKATE, "--state", f"{self.base}/state", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def __enter__(self):
        bricks = [word for number in (1, 2) for word in ("--brick", f"{self.base}/b{number}")]
        self.cli("init", *bricks, "--volume", "v", "--copies", "2")
        self.cli("serve", "--detach")
        return self

    def mount(self, name, form):
        directory = f"{self.base}/{name}"
        os.makedirs(directory, exist_ok=True)
        options = ["-o", "nopledges"] if form == "asked" else []
        self.mounts[name] = json.loads(self.cli("--json", "mount", "v", directory, *options))["pid"]
        return directory

    def umount_all(self):
        for name in list(self.mounts):
            self.cli("umount", f"{self.base}/{name}")
            del self.mounts[name]

    def server(self):
        return json.loads(self.cli("--json", "status"))["pid"]

    def pledges(self):
        lines = self.cli("metrics").splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("hekate_pledges"))

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.umount_all()
        with contextlib.suppress(subprocess.CalledProcessError):
            self.cli("stop")
        shutil.rmtree(self.base, ignore_errors=True)


def resident(pid):
    """-> MiB"""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def summary(took, seconds):
    milliseconds = sorted(1000 * one for one in took)
    at = lambda share: round(milliseconds[min(len(milliseconds) - 1, int(share * len(milliseconds)))], 3)
    return {"rate": round(len(took) / seconds), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1)}


def at_once(seconds, *jobs):
    """Runs each job again and again. -> what their calls took, summed up."""
    took, failed = [[] for _ in jobs], []
    begun = time.monotonic()

    def run(job, own):
        try:
            number = 0
            while time.monotonic() - begun < seconds:
                at = time.perf_counter()
                job(number)
                own.append(time.perf_counter() - at)
                number += 1
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            failed.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(jobs, took)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if failed:
        raise failed[0]
    return [summary(own, seconds) for own in took]


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def tree(top):
    for number in range(20):
        os.makedirs(f"{top}/t/{number}", exist_ok=True)
        for file in range(50):
            write(f"{top}/t/{number}/{file}", b"x" * 100)
    return [f"t/{number}/{file}" for number in range(20) for file in range(50)]


def stats(top, paths):
    return lambda number: os.stat(f"{top}/{paths[number * 7 % len(paths)]}")


def writes(top):
    def job(number):
        path = f"{top}/t/{number % 20}/new{number % 10}"
        write(path, b"y" * 100)
        os.unlink(path)

    return job


def in_turn(seconds, one, two):
    """Runs the jobs in turn. -> what both took, summed up."""
    took, begun, number = [], time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        at = time.perf_counter()
        (one, two)[number % 2](number)
        took.append(time.perf_counter() - at)
        number += 1
    return summary(took, seconds)


def ping_pong_file(here, there):
    def job(writer, reader):
        def go(number):
            content = b"%0100d" % number
            with open(f"{writer}/file", "r+b") as file:
                file.write(content)
            with open(f"{reader}/file", "rb") as file:
                assert file.read() == content

        return go

    write(f"{here}/file", b"0" * 100)
    return job(here, there), job(there, here)


def ping_pong_names(here, there):
    def job(maker, remover):
        def go(number):
            write(f"{maker}/names/{number % 5}", b"")
            os.stat(f"{remover}/names/{number % 5}")
            os.unlink(f"{remover}/names/{number % 5}")

        return go

    os.makedirs(f"{here}/names", exist_ok=True)
    return job(here, there), job(there, here)


def large_directory(store, form, names, mounts):
    first = store.mount("m0", form)
    if not os.path.exists(f"{first}/large"):
        os.mkdir(f"{first}/large")
        for number in range(names):
            os.close(os.open(f"{first}/large/{number:06}", os.O_CREAT | os.O_WRONLY))
    others = [store.mount(f"m{number}", form) for number in range(1, mounts)]
    # What was changed a moment ago is not pledged.
    time.sleep(1.2)
    server, before = store.server(), {}
    before = {"server": resident(server), "mounts": [resident(pid) for pid in store.mounts.values()]}
    took = []
    for top in [first, *others]:
        begun = time.monotonic()
        for entry in os.scandir(f"{top}/large"):
            entry.stat()
        took.append(time.monotonic() - begun)
    pledges = store.pledges()
    after = {"server": resident(server), "mounts": [resident(pid) for pid in store.mounts.values()]}
    begun = time.monotonic()
    os.rename(f"{first}/large", f"{first}/renamed")
    renamed = time.monotonic() - begun
    for top in others:
        assert not os.path.exists(f"{top}/large"), "the old name is there"
    begun = time.monotonic()
    for number in range(100):
        os.chmod(f"{first}/renamed/{number:06}", 0o600)
    changed = (time.monotonic() - begun) / 100
    os.rename(f"{first}/renamed", f"{first}/large")
    return {"list_s": [round(one, 2) for one in took], "pledges": pledges, "rename_ms": round(1000 * renamed, 1),
            "chmod_of_what_all_remember_ms": round(1000 * changed, 2), "server_mib": [round(before["server"]), round(after["server"])],
            "mount_mib": [round(statistics.mean(before["mounts"]), 1), round(statistics.mean(after["mounts"]), 1)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", default="strict,asked")
    parser.add_argument("--parts", default="read,write,file,names,directory")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--names", type=int, default=100_000)
    parser.add_argument("--mounts", type=int, default=10)
    parser.add_argument("--out")
    asked = parser.parse_args()
    with Store() as store:
        for part in asked.parts.split(","):
            for form in asked.forms.split(","):
                if part == "directory":
                    found = large_directory(store, form, asked.names, asked.mounts)
                else:
                    here, there = store.mount("one", form), store.mount("two", form)
                    if part in ("read", "write"):
                        paths = tree(here)
                        time.sleep(1.2)
                        second = stats(there, paths) if part == "read" else writes(there)
                        found = dict(zip(("one", "two"), at_once(asked.seconds, stats(here, paths), second)))
                    else:
                        jobs = {"file": ping_pong_file, "names": ping_pong_names}[part](here, there)
                        found = in_turn(asked.seconds, *jobs)
                store.umount_all()
                line = json.dumps({"part": part, "form": form, **found})
                print(line, flush=True)
                if asked.out:
                    with open(asked.out, "a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
