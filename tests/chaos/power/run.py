#!/usr/bin/env python3
"""Cuts the power of a guest with a whole cluster, again and again, and looks for what was acknowledged (docs/chaos.md).

A guest under qemu (tests/guest/image.sh) with three servers and a coordinator, each on a disk that keeps apart what was not flushed
(disk.py), is killed under load. What it acknowledged has been told to this process before. Each disk then loses what a power cut may
take, and the guest boots again: everything acknowledged must be there, no brick may refuse to open, replicas must be equal.

Environment: HEKATE=PROGRAM, GUEST_DIR=DIR for kernel and root of the guest [target/guest], TMPDIR for the disks [/var/tmp].
"""

import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import disk
from disk import DISKS

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(os.path.dirname(HERE))
HEKATE = os.path.abspath(os.environ.get("HEKATE", "target/release/hekate"))
GUEST = os.path.abspath(os.environ.get("GUEST_DIR", f"{os.environ.get('CARGO_TARGET_DIR', 'target')}/guest"))
DISK_BYTES = 512 << 20
MEMORY_MIB = 1536
# An emulated guest on a busy machine may take so long from one event to the next.
PATIENCE_S = 1800
# How much is done before power goes, if it is done soon enough.
LOAD_OPS, LOAD_TICKS = (50, 600), 150
# Under load a disk is told to flush something more often than this.
FLUSHES_S = 15
# A disk has written down what is pending so soon after the guest is gone.
DISK_S = 30
# Of guests that are to go on, so many lose power while servers start or what was acknowledged is looked for.
EARLY = 0.25
# Of the guest's ticks (guest.py), so many at most before that.
EARLY_TICKS = 60
MAKERS = {"ext4": ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=0"], "xfs": ["mkfs.xfs", "-q"]}


class Violation(Exception):
    pass


def accelerator():
    """As tests/guest/run.sh chooses it. An emulated guest's clock counts its instructions while it is at work (4 ns each), so that it does
    not notice how busy this machine is: its servers would lose their leases."""
    if os.access("/dev/kvm", os.W_OK) and any(os.path.isdir(f"/sys/module/kvm_{maker}") for maker in ("intel", "amd")):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg", "-cpu", "max", "-icount", "shift=2"]


class Guest:
    """One boot, on the images in `directory`, of which it leaves what was not flushed beside them."""

    def __init__(self, directory, tests_disk, console, forgets):
        self.directory, self.told = directory, f"{directory}/told"
        self.pending_line = ""
        self.servers = []
        for name in os.listdir(directory):
            if not name.endswith(".img"):
                os.remove(f"{directory}/{name}")
        open(self.told, "w").close()
        self.stream = open(self.told)
        drives = []
        for name in DISKS:
            path = f"{directory}/{name}"
            self.servers.append(subprocess.Popen([sys.executable, "-B", f"{HERE}/disk.py", f"{path}.img", f"{path}.socket", forgets]))
            drives += ["-drive", f"file=nbd+unix:///?socket={path}.socket,format=raw,if=virtio,cache=writeback"]
        while not all(os.path.exists(f"{directory}/{name}.socket") for name in DISKS):
            time.sleep(0.05)
        # It goes with this process, and the disks with it.
        words = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "pc", *accelerator(), "-smp", "1", "-m", str(MEMORY_MIB)]
        words += ["-display", "none", "-no-reboot", "-nic", "none", "-monitor", "none", "-serial", f"file:{console}"]
        words += ["-drive", f"file={GUEST}/disk,format=raw,if=virtio,snapshot=on"]
        words += ["-drive", f"file={tests_disk},format=raw,if=virtio,readonly=on", *drives]
        words += ["-device", "virtio-serial", "-chardev", f"file,id=told,path={self.told}", "-device", "virtserialport,chardev=told"]
        words += ["-kernel", f"{GUEST}/kernel", "-initrd", f"{GUEST}/initrd"]
        words += ["-append", "root=/dev/vda rw console=ttyS0 panic=-1 edd=off no_timer_check init=/tests-init"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": directory})

    def lines(self, end):
        """What the guest tells until then, each line once it is whole."""
        while True:
            alive = self.process.poll() is None
            text = self.stream.readline()
            if text:
                self.pending_line += text
                if text.endswith("\n"):
                    line, self.pending_line = self.pending_line, ""
                    yield json.loads(line)
            elif not alive or time.monotonic() > end:
                return
            else:
                time.sleep(0.02)

    def lose_power(self, disk=None):
        """At once, or when that disk is to flush something."""
        if disk is not None:
            self.servers[disk].send_signal(signal.SIGUSR1)
            try:
                self.process.wait(timeout=FLUSHES_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self):
        """-> once the disks have written down what is pending."""
        self.process.kill()
        self.process.wait()
        for server in self.servers:
            try:
                server.wait(timeout=DISK_S)
            except subprocess.TimeoutExpired:
                server.kill()


class Run:
    def __init__(self, base, seed, images, forgets, say):
        self.base, self.seed, self.images, self.forgets, self.say = base, seed, images, forgets, say
        self.draw = random.Random(f"power/{seed}")
        self.record, self.console = f"{base}/record", f"{base}/console.log"
        self.live, self.other, self.before = (f"{base}/{name}" for name in ("live", "other", "before"))
        self.results, self.last_cut = [], {}
        for directory in (self.record, self.live, self.other):
            os.mkdir(directory)

    def make_disks(self):
        for name, kind in DISKS.items():
            with open(f"{self.live}/{name}.img", "wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run([*MAKERS[kind], file.name], check=True)

    def tests_disk(self, plan):
        """Program, tests and the record so far: the second disk of tests/guest/init."""
        top, image = f"{self.base}/tests", f"{self.base}/tests.img"
        if not os.path.isdir(top):
            for path in ("e2e", "chaos"):
                shutil.copytree(f"{TESTS}/{path}", f"{top}/tests/{path}", ignore=shutil.ignore_patterns("__pycache__"))
            subprocess.run(["strip", "-o", f"{top}/hekate", HEKATE], check=True)
            write(f"{top}/settings", "E2E_PATIENCE=5\n")
            write(f"{top}/names", "")
            write(f"{top}/tests/e2e/run.sh", "#!/bin/sh\nexec python3 -B /tests/tests/chaos/power/guest.py\n")
        write(f"{top}/plan.json", json.dumps(plan))
        shutil.rmtree(f"{top}/record", ignore_errors=True)
        shutil.copytree(self.record, f"{top}/record")
        with open(image, "wb") as file:
            file.truncate(128 << 20)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", top, image], check=True)
        return image

    def boot(self, directory, task, early=None, records=True):
        """One guest; killed as the task says, or after so many ticks. -> what it told, last by name, and of `tick` and `done` how many."""
        plan = {"task": task, "seed": f"{self.seed}/{len(self.results)}"}
        ops, disk = self.draw.randint(*LOAD_OPS), self.draw.choice([None, *range(1, len(DISKS))])
        told = {"tick": 0, "done": 0}
        guest = Guest(directory, self.tests_disk(plan), self.console, self.forgets)
        try:
            for line in guest.lines(time.monotonic() + PATIENCE_S):
                self.take(line, told, records)
                if is_enough(told, task, early, ops):
                    break
            else:
                raise Violation(f"the guest ended, or was not done in {PATIENCE_S} s; see {self.console}")
            if task in ("make", "go on"):
                guest.lose_power(disk)
                for line in guest.lines(0):
                    self.take(line, told, records)
            return told
        finally:
            guest.kill()

    def take(self, line, told, records):
        if "violation" in line:
            raise Violation(line["violation"])
        if "log" in line:
            told["done"] += "done" in line
            name = line.pop("log")
            if records:
                with open(f"{self.record}/{name}.log", "a") as file:
                    file.write(json.dumps(line) + "\n")
        elif line["event"] == "tick":
            told["tick"] += 1
        else:
            told[line.pop("event")] = line | {"tick": told["tick"]}

    def cut(self, directory, seed):
        told = {}
        for name in DISKS:
            writes = disk.pending_of(f"{self.live}/{name}.img")
            told[name] = disk.cut(f"{directory}/{name}.img", writes, f"{self.seed}/{seed}/{name}")
        self.last_cut = told
        return told

    def anything_pending(self):
        """Else all images of a cut are the same."""
        return any(disk.pending_of(f"{self.live}/{name}.img") for name in DISKS)

    def copy(self, to):
        shutil.rmtree(to, ignore_errors=True)
        os.mkdir(to)
        for name in DISKS:
            subprocess.run(["cp", "--sparse=always", f"{self.live}/{name}.img", to], check=True)

    def round(self, number, task):
        """Other images of the last cut first, of which each is only looked at; then the one that goes on."""
        began = time.monotonic()
        for image in range(1, self.images if self.anything_pending() else 1):
            self.copy(self.other)
            told = self.cut(self.other, f"{number}/{image}")
            self.keep_before(self.other)
            self.note(number, f"image {image}", told, self.boot(self.other, "verify", records=False), began)
        told = self.cut(self.live, f"{number}/0")
        self.keep_before(self.live)
        early = self.draw.randrange(EARLY_TICKS) if task == "go on" and self.draw.random() < EARLY else None
        self.note(number, task if early is None else "early", told, self.boot(self.live, task, early), began)

    def keep_before(self, directory):
        """For who looks into a violation: the disks as the guest found them."""
        shutil.rmtree(self.before, ignore_errors=True)
        os.mkdir(self.before)
        for name in DISKS:
            subprocess.run(["cp", "--sparse=always", f"{directory}/{name}.img", self.before], check=True)
        shutil.copytree(self.record, f"{self.before}/record")

    def note(self, number, task, told, events, began):
        result = {"seed": self.seed, "round": number, "task": task, "cut": told, "took_s": round(time.monotonic() - began, 1), **events}
        self.results.append(result)
        started, verified = events.get("started"), events.get("verified")
        words = [f"{number:3} {task:7}", ", ".join(f"{name} {how}" for name, how in told.items())]
        words += [f"started in {started['seconds']} s of its time"] if started else []
        words += [f"{verified['acknowledged']} acknowledged, {verified['in_doubt_done']} of {verified['in_doubt']} in doubt"] if verified else []
        words += [f"{events.get('done', 0)} more", f"{result['took_s']} s"]
        self.say("; ".join(words))

    def again(self, base):
        """Looks once more at the disks that another run kept."""
        for name in os.listdir(f"{base}/before/record"):
            shutil.copy(f"{base}/before/record/{name}", self.record)
        for name in DISKS:
            subprocess.run(["cp", "--sparse=always", f"{base}/before/{name}.img", self.live], check=True)
        self.note(0, "again", {}, self.boot(self.live, "verify"), time.monotonic())

    def run(self, rounds, end):
        self.make_disks()
        self.round(0, "make")
        number = 1
        while number <= rounds and time.monotonic() < end:
            self.round(number, "go on")
            number += 1
        self.round(number, "end")


def is_enough(told, task, early, ops):
    """Whether power goes now."""
    if early is not None:
        return told["tick"] >= early
    if task in ("verify", "end"):
        return {"verify": "verified", "end": "ended"}[task] in told
    return "working" in told and (told["done"] >= ops or told["tick"] - told["working"]["tick"] >= LOAD_TICKS)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


def total(results):
    verified = [result["verified"] for result in results if "verified" in result]
    return (f"{len(results) - 1} torn sets of disks, {len(verified) - 1} of them looked through, {sum(result.get('done', 0) for result in results)} ops acknowledged, "
            f"{sum(each['in_doubt'] for each in verified)} in doubt of which {sum(each['in_doubt_done'] for each in verified)} were there")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--images", type=int, default=2, help="how many torn sets of disks of each cut are looked at")
    parser.add_argument("--forgets", default="0", help="the chance that a disk forgets a flush: a run has to find what is missing then")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no round begins later than that, but the last")
    parser.add_argument("--again", metavar="DIR", help="only looks once more at the disks that a run with a violation kept")
    parser.add_argument("--report", help="the results are added to this file, as JSON lines")
    options = parser.parse_args()
    for program in ("qemu-system-x86_64", "mkfs.xfs"):
        if not shutil.which(program) and not shutil.which(program, path="/usr/sbin:/sbin"):
            sys.exit(f"power: {program} is missing; run scripts/setup.sh soak")
    subprocess.run([f"{TESTS}/guest/image.sh", GUEST], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"power: {options.rounds} rounds, seed {options.seed}, {' '.join(accelerator()[:2])}", flush=True)
    base = tempfile.mkdtemp(prefix="hekate-power.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    run = Run(base, options.seed, options.images, options.forgets, lambda text: print(text, flush=True))
    try:
        if options.again:
            run.again(options.again)
        else:
            run.run(options.rounds, time.monotonic() + options.minutes * 60)
    except Violation as violation:
        sys.exit(f"power: after {len(run.results)} guests, seed {options.seed}, disks cut {run.last_cut}: {violation}\n"
                 f"power: disks, record and console are in {base}")
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise
    finally:
        if options.report:
            with open(options.report, "a") as file:
                file.writelines(json.dumps(result) + "\n" for result in run.results)
    shutil.rmtree(base)
    print(f"power: no violation: {total(run.results)}")


if __name__ == "__main__":
    main()
