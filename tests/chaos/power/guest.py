"""What runs in the guest of run.py: a cluster on the disks that lose power, what was acknowledged before, and load until power goes.

Everything is told to the host over one virtio port, a line of JSON each; a line has arrived when its write returns.
"""

import glob
import json
import os
import subprocess
import sys
import threading
import time
import traceback

TOP = "/tests/tests"
sys.path += [f"{TOP}/e2e", f"{TOP}/chaos", f"{TOP}/chaos/power"]
import cluster  # noqa: E402
from disk import DISKS  # noqa: E402
from durable import Changer, Log, Noise, verify  # noqa: E402
from harness import Store, wait_until  # noqa: E402

cluster.CLIENTS[:] = ["c1"]
RECORD = "/run/record"
WHOLE_S = 60
# The host, whose clock is another, counts these.
TICK_S = 0.2
INTERRUPTED = 75


class Port:
    def __init__(self):
        wait_until(lambda: glob.glob("/dev/vport*"), "a port")
        self.file = os.open(glob.glob("/dev/vport*")[0], os.O_WRONLY)

    def say(self, **entry):
        os.write(self.file, json.dumps(entry).encode() + b"\n")


class Here:
    """In place of the network of a run: all on loopback."""

    def __init__(self, nodes):
        self.addresses = {node: f"127.78.0.{number}" for number, node in enumerate(nodes, 1)}

    def entering(self, _):
        return []

    def make(self):
        pass


class Cluster(cluster.Cluster):
    """As of tests/chaos, but that state and brick of each server, and the coordinator, lie on a disk that loses power."""

    def __init__(self):
        super().__init__(Store("/run/hekate"))
        self.wires = Here([cluster.COORDINATOR, *cluster.SERVERS, *cluster.CLIENTS])

    def state(self, node):
        return f"{self.disk(node)}/state" if node in DISKS else f"/run/{node}"

    def disk(self, node):
        return f"/disks/{node}"

    def apart(self, _):
        return []

    def make_disk(self, _):
        pass

    def start_again(self):
        for node in DISKS:
            self.start(node)
        wait_until(self.is_whole, "whole", limit_s=WHOLE_S)
        os.mkdir(self.state("c1"))
        self.at("s1", "client", "renew", "c1", "-o", self.credential("c1"))
        for volume, *_ in cluster.VOLUMES:
            self.mount("c1", volume)

    def proves_equal(self):
        for _ in range(30):
            outcome = self.try_at("s1", "--json", "heal", "status", "--prove")
            if outcome.exit != INTERRUPTED:
                break
            time.sleep(1)
        assert outcome.exit == 0, f"heal status --prove: exit {outcome.exit}: {outcome.text.strip()[-2000:]}"

    def tops(self):
        """-> the directory of each log."""
        return {f"{volume}-{number}": f"{self.mounted('c1', volume)}/d{number}" for volume, *_ in cluster.VOLUMES for number in range(2)}


def mount_disks():
    for number, (node, kind) in enumerate(DISKS.items()):
        os.makedirs(f"/disks/{node}")
        subprocess.run(["mount", "-t", kind, f"/dev/vd{chr(ord('c') + number)}", f"/disks/{node}"], check=True)


def verify_all(own, port):
    counts = {"acknowledged": 0, "in_doubt": 0, "in_doubt_done": 0, "entries": 0, "noise": 0}
    differing = []
    for name, top in own.tops().items():
        log = Log(f"{RECORD}/{name}.log")
        found = verify(top, log, counts, differing)
        if found:
            port.say(log=name, **found)
    for volume, *_ in cluster.VOLUMES:
        noise = Noise(f"{own.mounted('c1', volume)}/noise")
        counts["noise"] += noise.verify(differing)
    assert not differing, "acknowledged and not there, or there and never written:\n" + "\n".join(differing[:40])
    return counts


def load(own, port, seed):
    """Until power goes."""
    for name, top in own.tops().items():
        if os.fork() == 0:
            at_work(lambda: Changer(top, Log(f"{RECORD}/{name}.log"), f"{seed}/{name}", name, port).run(float("inf")), port)
    for volume, *_ in cluster.VOLUMES:
        if os.fork() == 0:
            at_work(lambda: Noise(f"{own.mounted('c1', volume)}/noise").run(f"{seed}/{volume}"), port)
    while True:
        time.sleep(60)


def at_work(work, port):
    try:
        work()
    except BaseException:
        port.say(violation=f"a writer ended: {traceback.format_exc()[-3000:]}")
    os._exit(1)


def make_directories(own):
    for top in own.tops().values():
        os.mkdir(top)
    for volume, *_ in cluster.VOLUMES:
        os.mkdir(f"{own.mounted('c1', volume)}/noise")
    os.sync()


def run(port, plan):
    begun = time.monotonic()
    mount_disks()
    threading.Thread(target=tick, args=[port], daemon=True).start()
    own = Cluster()
    if plan["task"] == "make":
        own.make()
        make_directories(own)
    else:
        own.start_again()
    started = time.monotonic()
    port.say(event="started", seconds=round(started - begun, 1))
    counts = verify_all(own, port)
    own.proves_equal()
    port.say(event="verified", seconds=round(time.monotonic() - started, 1), **counts)
    if plan["task"] == "end":
        compared = own.end()
        assert (compared["equal"], compared["problem_count"]) == (True, 0), f"replicas in the end: {json.dumps(compared)[:3000]}"
        port.say(event="ended")
    elif plan["task"] != "verify":
        port.say(event="working")
        load(own, port, plan["seed"])


def tick(port):
    while True:
        port.say(event="tick")
        time.sleep(TICK_S)


def main():
    for module in ("virtio_console", "xfs", "fuse"):
        subprocess.run(["modprobe", module], check=True)
    # What is not synced is written soon all the same, and no flush follows: more is pending.
    for name in ("dirty_writeback_centisecs", "dirty_expire_centisecs"):
        with open(f"/proc/sys/vm/{name}", "w") as file:
            file.write("20")
    port = Port()
    subprocess.run(["cp", "-r", "/tests/record", RECORD], check=True)
    with open("/tests/plan.json") as file:
        plan = json.load(file)
    try:
        run(port, plan)
    except BaseException:
        for path in glob.glob("/disks/*/state/*.log"):
            print(f"--- {path}", subprocess.run(["tail", "-n", "20", path], capture_output=True, text=True).stdout, flush=True)
        os.sync()
        port.say(violation=traceback.format_exc()[-4000:])


main()
