#!/usr/bin/env python3
"""Block devices side by side: vDisks, Ceph RBD, images on GlusterFS, a local image; by fio, in one run.

  bench/vdisk.py [--sys NAME,...] [--seconds 8] [--size 1024] [--out FILE]
  bench/vdisk.py --stacks [--out FILE]       vDisks only: after 1, 10 and 100 snapshots, and on clones of depth 1, 5 and 20
  bench/vdisk.py --maps [--out FILE]         vDisks only: memory and time that opening takes; needs `cargo build --release -p
                                             hekate-vdisk --features measuring --example make_map`

| system | what fio speaks to |
|---|---|
| hekate, hekate-tls | the block door of a server, over TCP; two servers with a brick each, two copies; the second with TLS |
| hekate-file | a raw file on the FUSE mount of the same cluster, by qemu-nbd |
| gluster-raw, gluster-qcow2 | an image on a mount of GlusterFS replica 2, by qemu-nbd |
| rbd, rbd-secure | Ceph RBD, pool of size 2, fio's engine rbd without a cache; the second with encrypted messages |
| local | a raw file on XFS, by qemu-nbd: the floor |

Bricks, OSDs and images are on loop devices with direct I/O (systems/common.sh). Each device is filled first. Rows: 4 KiB random
writes, the same with a flush behind each, 4 KiB random reads, 64 KiB sequential writes and reads; depth 1 and 16. Writes without a
flush end with one, which is part of the time. Prints a JSON line a row: operations a second, MiB/s, latency, the CPU of the whole
machine for an operation, the load before the row.

Needs root, fio with the engines nbd and rbd, qemu-nbd, GlusterFS and Ceph for their systems, HEKATE=PROGRAM (else
target/release/hekate). Everything that it made is removed at the end.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
PP = os.environ.get("PP", "/var/tmp/pp")
MNT = os.environ.get("MNT", "/mnt/pp")
PROGRAM = os.path.realpath(os.environ.get("HEKATE", f"{HERE}/../target/release/hekate"))
SYSTEMS = ["hekate", "hekate-tls", "hekate-file", "rbd", "rbd-secure", "gluster-raw", "gluster-qcow2", "local"]
ROWS = {
    "randwrite": ["--rw=randwrite", "--bs=4k", "--end_fsync=1"],
    "randwrite+flush": ["--rw=randwrite", "--bs=4k", "--fsync=1"],
    "randread": ["--rw=randread", "--bs=4k"],
    "seqwrite64k": ["--rw=write", "--bs=64k", "--end_fsync=1"],
    "seqread64k": ["--rw=read", "--bs=64k"],
}
SOCKET = f"{PP}/run/bench.nbd"
STATE = f"{PP}/run/hekate"
# fio takes no directory of certificates.
PEM = "/etc/pki/libnbd"


def sh(*line, **named):
    return subprocess.run(line, check=True, text=True, stdout=subprocess.PIPE, **named).stdout


def system(script, what, variant, **environment):
    variants = {"GV": variant, "CV": variant, "HEKATE": PROGRAM, "NOTRACE": "1"}
    sh(f"{HERE}/systems/{script}.sh", what, env={**os.environ, **variants, **environment})


def hekate(*words):
    return sh(PROGRAM, "--state", STATE, *words)


class Served:
    """A process that serves NBD at a unix socket."""

    def __init__(self, *line):
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        for _ in range(300):
            if os.path.exists(SOCKET):
                return
            time.sleep(0.1)
        raise SystemExit(f"{line[0]} does not serve")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def nbd(uri):
    return ["--ioengine=nbd", f"--uri={uri}"]


class Vdisk:
    """Two servers; the door of the first."""

    def __init__(self, size, tls=False):
        system("hekate", "up", "r2-two")
        hekate("vdisk", "create", "pv", "d", f"{size}M")
        if tls:
            hekate("nbd", "enable", "pv", "--listen", "127.0.0.1:10809")
            hekate("client", "create", "bench", "--volume", "pv", "-o", f"{PP}/run/bench.hekate")
            if os.path.exists(PEM):
                raise SystemExit(f"{PEM} exists, where fio's engine nbd looks for certificates; move it away")
            hekate("client", "pem", f"{PP}/run/bench.hekate", PEM)
        else:
            hekate("nbd", "enable", "pv", "--listen", "127.0.0.1:10809", "--plain")
        self.tls = tls
        self.engine = self.of("d")

    def of(self, disk):
        if self.tls:
            return nbd(f"nbds://127.0.0.1:10809/{disk}")
        return nbd(f"nbd://127.0.0.1:10809/{disk}")

    def down(self):
        system("hekate", "down", "r2-two")
        if self.tls:
            sh("rm", "-rf", f"{PP}/run/bench.hekate", PEM)


class Image:
    """An image on a mounted file system, by qemu-nbd."""

    def __init__(self, script, variant, size, form="raw"):
        self.script, self.variant = script, variant
        if script:
            system(script, "up", variant)
            directory = sh(f"{HERE}/systems/{script}.sh", "dir", env={**os.environ, "GV": variant}).strip()
        else:
            directory = f"{MNT}/local"
            sh("bash", "-c", f". {HERE}/systems/common.sh; xfs_up b1 {directory}")
        image = f"{directory}/image"
        sh("qemu-img", "create", "-q", "-f", form, image, f"{size}M")
        self.served = Served("qemu-nbd", "-t", "-e", "4", "-f", form, "--cache=none", "--aio=threads", "-k", SOCKET, image)
        self.engine = nbd(f"nbd+unix:///?socket={SOCKET}")

    def down(self):
        self.served.stop()
        if self.script:
            system(self.script, "down", self.variant)
        else:
            sh("bash", "-c", f". {HERE}/systems/common.sh; xfs_down b1 {MNT}/local")


class Rbd:
    def __init__(self, size, secure=False):
        system("ceph", "up", "s2", CEPH_SECURE="1" if secure else "")
        configuration = f"{PP}/run/ceph/ceph.conf"
        with open(configuration) as file:
            text = file.read().replace("[client]", "[client]\nrbd_cache = false")
        with open(f"{configuration}.bench", "w") as file:
            file.write(text)
        os.environ["CEPH_CONF"] = f"{configuration}.bench"
        os.environ["CEPH_ARGS"] = f"-c {configuration}.bench"
        sh("rbd", "create", "rbd/d", "--size", f"{size}M")
        self.engine = ["--ioengine=rbd", "--clientname=admin", "--pool=rbd", "--rbdname=d"]

    def down(self):
        del os.environ["CEPH_CONF"], os.environ["CEPH_ARGS"]
        system("ceph", "down", "s2")


def up(name, size):
    if name.startswith("rbd"):
        return Rbd(size, secure=name == "rbd-secure")
    if name.startswith("gluster"):
        return Image("gluster", "r2", size, form=name.split("-")[1])
    if name == "hekate-file":
        return Image("hekate", "r2-two", size)
    if name == "local":
        return Image(None, None, size)
    return Vdisk(size, tls=name == "hekate-tls")


def busy_seconds():
    """CPU seconds of the machine that were not idle."""
    with open("/proc/stat") as file:
        numbers = [int(number) for number in file.readline().split()[1:]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def fio(engine, options, size, seconds=None):
    limit = ["--time_based", f"--runtime={seconds}"] if seconds else []
    line = ["fio", "--name=r", "--output-format=json", "--thread=1", f"--size={size}M", "--randrepeat=0", *engine, *options, *limit]
    before, begun = busy_seconds(), time.monotonic()
    said = sh(*line, stderr=subprocess.STDOUT)
    if "{" not in said:
        raise SystemExit(f"{' '.join(line)}: {said}")
    # fio puts notes before the report.
    found = json.loads(said[said.index("{") :])["jobs"][0]
    took, busy = time.monotonic() - begun, busy_seconds() - before
    kind = "read" if found["read"]["total_ios"] else "write"
    count = found[kind]["total_ios"]
    latency = found[kind]["clat_ns"]
    # The flush at the end counts.
    elapsed = max(found[kind]["runtime"] / 1000, took if "--end_fsync=1" in options else 0)
    return {
        "ops_s": round(count / elapsed, 1),
        "MiB_s": round(found[kind]["io_bytes"] / elapsed / 2**20, 1),
        "mean_us": round(latency["mean"] / 1000),
        "p99_us": round(latency.get("percentile", {}).get("99.000000", 0) / 1000),
        "cpu_us_op": round(busy / count * 1e6, 1),
    }


def fill(engine, size):
    fio(engine, ["--rw=write", "--bs=1m", "--iodepth=4", "--end_fsync=1", "--refill_buffers=1"], size)


def out_of(arguments):
    return open(arguments.out, "a") if arguments.out else sys.stdout


def side_by_side(arguments):
    out = out_of(arguments)
    for name in arguments.sys.split(","):
        device = up(name, arguments.size)
        try:
            fill(device.engine, arguments.size)
            for row, options in ROWS.items():
                for depth in (1, 16):
                    load = round(os.getloadavg()[0], 2)
                    measured = fio(device.engine, [*options, f"--iodepth={depth}"], arguments.size, arguments.seconds)
                    print(json.dumps({"system": name, "row": row, "depth": depth, "load": load, **measured}), file=out, flush=True)
        finally:
            device.down()


def stacks(arguments):
    """How snapshots and clones cost."""
    out = out_of(arguments)
    device = Vdisk(arguments.size)

    def rows(what, disk):
        for row in ("randwrite", "randread", "seqread64k"):
            measured = fio(device.of(disk), [*ROWS[row], "--iodepth=16"], arguments.size, arguments.seconds)
            print(json.dumps({"stack": what, "row": row, "depth": 16, **measured}), file=out, flush=True)

    def scatter(disk, megabytes):
        fio(device.of(disk), ["--rw=randwrite", "--bs=4k", "--iodepth=16", f"--io_size={megabytes}M", "--end_fsync=1"], arguments.size)

    try:
        fill(device.of("d"), arguments.size)
        rows("no snapshot", "d")
        made = 0
        for count in (1, 10, 100):
            while made < count:
                hekate("vdisk", "snapshot", "pv", "d", f"s{made}")
                scatter("d", 4)
                made += 1
            rows(f"{count} snapshots", "d")
        source, depth = "d@s0", 0
        for wanted in (1, 5, 20):
            while depth < wanted:
                depth += 1
                hekate("vdisk", "clone", "pv", source, f"c{depth}")
                scatter(f"c{depth}", 4)
                hekate("vdisk", "snapshot", "pv", f"c{depth}", "s")
                source = f"c{depth}@s"
            rows(f"clone of depth {wanted}", f"c{wanted}")
            hekate("vdisk", "scrub", "pv", f"c{wanted}")
            rows(f"clone of depth {wanted}, scrubbed", f"c{wanted}")
    finally:
        device.down()


def memory(process, what):
    """MiB of a process, by the name that proc(5) gives it."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what))


def timed(*line):
    begun = time.time()
    sh(*line)
    return round(time.time() - begun, 3)


def opened(what, out, walks=True, **more):
    """Opens a vDisk in a process of its own, and reads its whole map if `walks`."""
    served = Served(PROGRAM, "--state", STATE, "nbd", "serve", "pv", "--socket", SOCKET)
    try:
        uri = f"nbd+unix:///m?socket={SOCKET}"
        before = memory(served.process, "VmRSS")
        opening = timed("nbdinfo", "--size", uri)
        after = memory(served.process, "VmHWM")
        again = timed("nbdinfo", "--size", uri)
        walk = timed("nbdinfo", "--map", "--totals", uri) if walks else None
        grown = memory(served.process, "VmHWM")
    finally:
        served.stop()
    row = {"map": what, "opening_s": opening, "again_s": again, "walk_s": walk, "idle_MiB": round(before, 1)}
    row |= {"opening_MiB": round(after - before, 1), "walk_MiB": round(grown - before, 1), **more}
    print(json.dumps(row), file=out, flush=True)


def maps(arguments):
    """What opening a vDisk takes, by its size and by what its last owner left."""
    out = out_of(arguments)
    make = os.environ.get("MAKE_MAP", f"{HERE}/../target/release/examples/make_map")
    for gib in (1, 64, 1024):
        blocks = gib << 18
        system("hekate", "up", "r2-two")
        try:
            # A log ends with 256 MiB, or with half of the map's 16,384 pages changed, and as many changed by the checkpoint's end.
            log = str(min(4369, max(2 * 8192 // 15, 4369 // gib)))
            for left, words in (("closed", ["0"]), ("killed", [log]), ("killed in a checkpoint", [log, "writing"])):
                hekate("vdisk", "create", "pv", "m", f"{gib}G")
                making = timed(make, f"{STATE}/server.sock", "pv", "m", str(blocks), *words)
                opened(f"{gib} GiB, {left}", out, walks=left == "closed", appends=int(words[0]), making_s=making)
                hekate("vdisk", "delete", "pv", "m", "--yes")
        finally:
            system("hekate", "down", "r2-two")
    # What fio wrote, and the process was killed.
    system("hekate", "up", "r2-two")
    try:
        hekate("vdisk", "create", "pv", "m", "1G")
        served = Served(PROGRAM, "--state", STATE, "nbd", "serve", "pv", "--socket", SOCKET)
        fio(nbd(f"nbd+unix:///m?socket={SOCKET}"), ["--rw=randwrite", "--bs=4k", "--iodepth=16"], 1024)
        served.process.kill()
        served.process.wait()
        opened("1 GiB written at random, killed", out)
    finally:
        system("hekate", "down", "r2-two")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sys", default=",".join(SYSTEMS))
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--out")
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--maps", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.sys.split(",")) - set(SYSTEMS)
    if unknown:
        parser.error(f"no system {unknown.pop()}; there are: {', '.join(SYSTEMS)}")
    work = maps if arguments.maps else stacks if arguments.stacks else side_by_side
    work(arguments)


if __name__ == "__main__":
    main()
