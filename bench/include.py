#!/usr/bin/env python3
"""Include files over a wire: what a cache of missing names saves.

  bench/include.py [--delays 0,60,210] [--forms none,negative-lookup,python,...] [--rounds 3] [--out FILE]

Two servers and a client, each in a network namespace of its own, as in lanes.py; the round trip is measured in the same run. Ten
directories with 1,000 files of 2 KiB, 100 in each. One round is 1,000 look-ups, 80 % of them of the same 10 % of the files; a look-up
probes the directories in order until one has the name: 5.5 probes, of which 4.5 find nothing. Mounts are strict, and ask for no
pledges (`-o nopledges`) but in the form `pledges`: with them the client knows names, missing ones too, and needs no such cache.

  open    each probe opens a path from the root of the mount: a strict mount looks up every component of it anew
  openat  each probe opens the name in a directory that is open
  library each probe is a look-up of the library, without a kernel (crates/plugins/examples/lookups.rs)

Forms: none, pledges, negative-lookup (built in), python (python/examples/negative_lookup in a worker), python-inside (the same in the mount's
process; needs the library of python-inside/), gluster, gluster-nl (with its nl-cache; needs glusterfs-server). Names are remembered for
the whole run. Prints a JSON line a measurement: milliseconds a round, and the share of the bound, that is probes / found probes.

Needs root, gcc, HEKATE=PROGRAM (else target/release/hekate). Everything that it made is removed at the end.
"""
import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys

from lanes import BASE, HERE, NODES, Cluster, Machines, Wires
from lanes_gluster import BRICK, CLIENT, PORT

ROOT = f"{HERE}/.."
INSIDE = f"{ROOT}/python-inside/target/release/libhekate_python_inside.so"
EXAMPLE = f"{ROOT}/python/examples/negative_lookup"
LOOKUPS = f"{os.environ.get('CARGO_TARGET_DIR', ROOT + '/target')}/release/examples/lookups"
LAYERS = {
    "none": [],
    "pledges": [],
    "negative-lookup": ["negative-lookup:lifetime=1h"],
    "python": ["python:translator=negative_lookup,lifetime=3600"],
    "python-inside": [f"python-inside:directory={os.path.abspath(EXAMPLE)},library={os.path.abspath(ROOT)}/python,options=lifetime=3600"],
}
WORK = '''
import os, random, sys, time
top, way, rounds, make = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "make"
names = ["lib%04d.php" % number for number in range(1000)]
chance = random.Random(42)
place = [number % 10 for number in range(1000)]
chance.shuffle(place)
directories = ["%s/inc%d" % (top, number) for number in range(10)]
if make:
    for directory in directories: os.mkdir(directory)
    for name, at in zip(names, place):
        with open(directories[at] + "/" + name, "wb") as file: file.write(b"x" * 2048)
hot = chance.sample(range(1000), 100)
cold = [number for number in range(1000) if number not in set(hot)]
opened = [os.open(directory, os.O_PATH) for directory in directories]
def round_of(seed):
    draw, probes, begun = random.Random(seed), 0, time.perf_counter()
    for _ in range(1000):
        name = names[draw.choice(hot) if draw.random() < 0.8 else draw.choice(cold)]
        for number in range(10):
            probes += 1
            try:
                if way == "open": file = os.open(directories[number] + "/" + name, os.O_RDONLY)
                else: file = os.open(name, os.O_RDONLY, dir_fd=opened[number])
            except FileNotFoundError: continue
            os.close(file)
            break
    return (time.perf_counter() - begun) * 1000, probes
for seed in range(2): round_of(1000 + seed)
found = sorted(round_of(seed) for seed in range(rounds))
print(found[len(found) // 2][0], found[len(found) // 2][1])
'''
NL_CACHE = """volume replicate
  type cluster/replicate
  subvolumes client-0 client-1
end-volume
volume nl-cache
  type performance/nl-cache
  option nl-cache-timeout 3600
  option nl-cache-limit 64MB
  subvolumes replicate
end-volume
"""
PLAIN = """volume replicate
  type cluster/replicate
  subvolumes client-0 client-1
end-volume
"""


class Gluster:
    """GlusterFS on the same wires; with nl-cache its bricks tell clients of changes (upcall)."""

    def __init__(self, machines):
        self.machines, self.mounts = machines, []

    def __enter__(self):
        brick = BRICK.replace("  subvolumes locks\n", "  subvolumes upcall\n").replace(
            "volume brick\n", "volume upcall\n  type features/upcall\n  option cache-invalidation on\n  subvolumes locks\nend-volume\nvolume brick\n"
        )
        for number, node in enumerate(("hl1", "hl2")):
            directory = f"{BASE}/g{number}"
            os.makedirs(directory, exist_ok=True)
            self.write(f"brick{number}.vol", brick.format(directory=directory, address=NODES[node], port=PORT))
            words = ["-l", f"{BASE}/brick{number}.log", "-p", f"{BASE}/brick{number}.pid"]
            self.machines.at(node, "glusterfsd", "-f", f"{BASE}/brick{number}.vol", *words)
        return self

    def write(self, name, text):
        with open(f"{BASE}/{name}", "w") as file:
            file.write(text)

    def mount(self, form):
        clients = [CLIENT.format(number=number, address=NODES[node], port=PORT) for number, node in enumerate(("hl1", "hl2"))]
        self.write(f"{form}.vol", "".join(clients) + (NL_CACHE if form == "gluster-nl" else PLAIN))
        directory = f"{BASE}/mnt-{form}"
        os.makedirs(directory, exist_ok=True)
        # Strict: the kernel asks for each name anew.
        strict = ["--entry-timeout=0", "--attribute-timeout=0", "--negative-timeout=0"]
        self.machines.at("hlc", "glusterfs", *strict, "-f", f"{BASE}/{form}.vol", "-l", f"{BASE}/{form}.log", directory)
        self.mounts.append(directory)
        return directory

    def __exit__(self, *_):
        for directory in self.mounts:
            self.machines.at("hlc", "umount", directory, check=False)
        for number in range(2):
            with contextlib.suppress(OSError, ValueError), open(f"{BASE}/brick{number}.pid") as file:
                os.kill(int(file.read()), 15)


def work(machines, directory, way, rounds, make=False):
    said = machines.at("hlc", "python3", "-c", WORK, directory, way, str(rounds), "make" if make else "keep")
    milliseconds, probes = said.split()
    return float(milliseconds), int(probes)


def hekate(machines, forms, rounds, tell):
    with Cluster(machines) as cluster:
        cluster.create("leader")
        asked, pledged = cluster.mount("leader", options=["-o", "nopledges"]), cluster.mount("leader", at="-pledged")
        for node in ("hl1", "hlc"):
            cluster.at(node, "python", "install", EXAMPLE)
            if "python-inside" in forms:
                cluster.at(node, "plugin", "install", INSIDE, "--name", "python-inside")
        made = False
        for form in forms:
            cluster.at("hl1", "volume", "set", "leader", "translators", *(LAYERS[form] or ["--none"]))
            for way in ("open", "openat"):
                tell(form, way, *work(machines, pledged if form == "pledges" else asked, way, rounds, make=not made))
                made = True
            if os.path.exists(LOOKUPS):
                how = "pledges" if form == "pledges" else "asked"
                words = [LOOKUPS, f"{BASE}/bench.hekate", "leader", f"{BASE}/hlc/state", str(rounds), how]
                milliseconds, probes = machines.at("hlc", *words).split()
                tell(form, "library", float(milliseconds), int(probes))
        cluster.umount("leader", at="-pledged")
        cluster.umount("leader")


def gluster(machines, forms, rounds, tell):
    with Gluster(machines) as peer:
        for number, form in enumerate(forms):
            directory = peer.mount(form)
            for way in ("open", "openat"):
                tell(form, way, *work(machines, directory, way, rounds, make=number == 0 and way == "open"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="0,60,210")
    parser.add_argument("--forms", default="none,pledges,negative-lookup,python,gluster,gluster-nl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    forms = options.forms.split(",")
    unknown = [form for form in forms if form not in LAYERS and not form.startswith("gluster")]
    if unknown:
        raise SystemExit(f"include: no form {unknown[0]}; there are {', '.join([*LAYERS, 'gluster', 'gluster-nl'])}")
    out = open(options.out, "a") if options.out else None
    for delay in map(int, options.delays.split(",")):
        shutil.rmtree(BASE, ignore_errors=True)
        os.makedirs(BASE)
        subprocess.run(["gcc", "-O2", "-o", f"{BASE}/netdelay", f"{HERE}/netdelay.c"], check=True)
        with Wires(delay) as wires, Machines() as machines:
            trip, before = wires.round_trip(), {}

            def tell(form, way, milliseconds, probes):
                before.setdefault(way, milliseconds)
                line = json.dumps({
                    "delay_us": delay, "round_trip_us": round(trip), "form": form, "way": way, "ms": round(milliseconds, 1),
                    "probes": probes, "times": round(before[way] / milliseconds, 2),
                })
                print(line, flush=True)
                if out:
                    print(line, file=out, flush=True)

            hekate(machines, [form for form in forms if form in LAYERS], options.rounds, tell)
            peers = [form for form in forms if form not in LAYERS]
            if peers:
                gluster(machines, peers, options.rounds, tell)
        shutil.rmtree(BASE, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
