#!/usr/bin/env python3
"""Lanes over a wire: durable 4 KiB writes in each mode of a volume, over a network with a round trip.

  bench/lanes.py [--delays 0,50,200,450] [--modes leader,hsr] [--jobs 1,8] [--seconds 10] [--fight] [--out FILE]

Two servers and a client, each in a network namespace of its own; between each two of them a wire (netdelay.c) that holds
each frame for DELAY microseconds (0: a veth pair). The round trip that a small TCP message takes is measured in the same run. A volume
of two copies for each mode, one file of 256 MiB that is written once, then fio: random writes of 4 KiB with O_SYNC, one job and eight
(threads, each in its share of the file). Prints a JSON line a measurement: rate, and the whole latency distribution (percentiles).

Modes are those of `hekate volume create`, afr-optimised (with --eager-lock and --piggyback), and gluster, gluster-eager: GlusterFS's
own replication on the same wires, eager lock off and on (needs glusterfs-server). --fight: two mounts write the same 4 MiB, one job each,
of a file whose inode and bytes are led by one server (placement together) and of one where they are not (apart).
--growing: each job writes a file of its own from its beginning instead, so each write makes it longer, in pieces of 4 KiB and of
64 KiB, with O_SYNC and without; also through a mount without pledges (and so without grants).
--loose: leader-loose and hsr-loose, the same writes without O_SYNC (which strict mounts pass on one by one all the same).

The modes afr and fast-path need a program that is built with --features measuring.

HEKATE_PLAIN_TCP=1 in the environment measures without encryption (a program that is built with --features measuring); --plain measures
both in turn, `plain` in a line says which. --sequential: 1 MiB writes and cold reads of a file of 512 MiB too, and CPU seconds a GB.

The addresses are of 127.0.0.0/8, routed between the namespaces (route_localnet). Needs root, fio, gcc and HEKATE=PROGRAM (else target/release/hekate). Everything that it made is removed at the end.
"""
import argparse, contextlib, json, os, shutil, signal, subprocess, sys, time

from lanes_gluster import Gluster

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../tests/chaos")
import namespaces  # noqa: E402: beside the tests that use it as well
from namespaces import inside, run  # noqa: E402

BASE = "/var/tmp/hekate-lanes"
HEKATE = os.path.abspath(os.environ.get("HEKATE", os.path.join(HERE, "../target/release/hekate")))
NODES = {"hlc": "127.77.0.9", "hl1": "127.77.0.1", "hl2": "127.77.0.2"}
OPTIONS = {"afr-optimised": ["afr", "--eager-lock", "--piggyback"], "bypass": ["bypass", "--leader", "1"]}
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7999))
while True:
    one, _ = server.accept()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while (said := one.recv(64)):
        one.sendall(said)
"""
ASK = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], 7999))
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took = []
for _ in range(500):
    begun = time.perf_counter(); one.sendall(b"x" * 64); one.recv(64); took.append(time.perf_counter() - begun)
print(sorted(took)[250] * 1e6)
"""


class Wires:
    """The namespaces and what is between them."""

    def __init__(self, delay):
        self.delay, self.started = delay, []

    def __enter__(self):
        for node, address in NODES.items():
            namespaces.make(node, address)
        names = list(NODES)
        for number, (one, other) in enumerate([(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]):
            self.connect(one, other, number)
        return self

    def connect(self, one, other, number):
        ends = [(one, f"w{number}a", other), (other, f"w{number}b", one)]
        if self.delay == 0:
            run("ip", "link", "add", ends[0][1], "netns", one, "type", "veth", "peer", "name", ends[1][1], "netns", other)
        else:
            words = [f"{BASE}/netdelay", one, ends[0][1], other, ends[1][1], str(self.delay)]
            self.started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            wait(lambda: all(f"{end}:" in inside(node, "ip", "-o", "link") for node, end, _ in ends), "the wire")
        for node, end, _ in ends:
            namespaces.raise_device(node, end)
        for node, end, peer in ends:
            namespaces.lead(node, NODES[node], end, NODES[peer], mac(peer, ends))

    def round_trip(self):
        """Microseconds that 64 bytes take there and back, between the client and a server."""
        server = subprocess.Popen(["nsenter", "--net=/run/netns/hl1", sys.executable, "-c", ECHO, NODES["hl1"]])
        time.sleep(0.5)
        try:
            return float(inside("hlc", sys.executable, "-c", ASK, NODES["hl1"]))
        finally:
            server.kill()
            server.wait()

    def __exit__(self, *_):
        for process in self.started:
            process.send_signal(signal.SIGTERM)
            process.wait()
        for node in NODES:
            namespaces.remove(node)


def mac(node, ends):
    end = next(end for at, end, _ in ends if at == node)
    return inside(node, "ip", "-o", "link", "show", end).split("link/ether ")[1].split()[0]


def wait(condition, what, limit_s=15):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"lanes: {what} does not come")
        time.sleep(0.05)


class Machines:
    """A process for each node in whose namespaces all others of that node run: its network, and a view of the file system without the
    other nodes' unix sockets, which would be a way past the wires."""

    def __enter__(self):
        for node in NODES:
            os.makedirs(f"{BASE}/{node}", exist_ok=True)
        self.holders = {node: self.hold(node) for node in NODES}
        return self

    def hold(self, node):
        hide = "".join(f"mount -t tmpfs none {BASE}/{other}; " for other in NODES if other != node)
        words = [*namespaces.entering(node), "unshare", "-m", "--propagation", "private", "sh", "-c", f"{hide}echo; exec sleep infinity"]
        holder = subprocess.Popen(words, stdout=subprocess.PIPE)
        holder.stdout.readline()
        return holder

    def at(self, node, *words, **named):
        return run("nsenter", "-t", str(self.holders[node].pid), "-m", "-n", *words, **named)

    def __exit__(self, *_):
        for holder in self.holders.values():
            holder.kill()
            holder.wait()


class Cluster:
    """Two servers with a brick each."""

    def __init__(self, machines):
        self.machines = machines

    def __enter__(self):
        self.at("hl1", "init", "--brick", f"{BASE}/b1", "--journal", "256")
        self.at("hl1", "serve", "--detach", "--listen", f"{NODES['hl1']}:7100")
        token = self.at("hl1", "token", "create").strip()
        self.at("hl2", "join", token, "--brick", f"{BASE}/b2", "--journal", "256")
        self.at("hl2", "serve", "--detach", "--listen", f"{NODES['hl2']}:7100")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{BASE}/bench.hekate")
        self.at("hl1", "client", "create", "bench", "--admin", "-o", f"{BASE}/bench.hekate")
        return self

    def at(self, node, *words, **named):
        return self.machines.at(node, HEKATE, "--state", f"{BASE}/{node}/state", *words, **named)

    def create(self, mode):
        self.at("hl1", "volume", "create", mode, "--copies", "2", "--domain", "server", "--mode", *OPTIONS.get(mode, [mode]))
        wait(lambda: json.loads(self.at("hl1", "--json", "status"))["health"] == "good", "a good state")

    def mount(self, mode, at="", options=()):
        directory = f"{BASE}/mnt-{mode}{at}"
        os.makedirs(directory, exist_ok=True)
        self.at("hlc", "--credential", f"{BASE}/bench.hekate", "--server", f"tcp:{NODES['hl1']}:7100", "mount", *options, mode, directory)
        return directory

    def umount(self, mode, at=""):
        self.at("hlc", "umount", f"{BASE}/mnt-{mode}{at}", check=False)

    def __exit__(self, *_):
        for node in ["hl2", "hl1"]:
            self.at(node, "stop", check=False)


PERCENTILES = "1:5:10:25:50:75:90:95:99:99.5:99.9:99.99"


def fio(machines, *jobs, seconds, sync=1):
    """-> what each of these jobs was told"""
    words = ["fio", "--rw=randwrite", "--bs=4k", "--ioengine=psync", f"--sync={sync}", "--overwrite=1", "--thread", "--time_based", "--ramp_time=2",
             f"--runtime={seconds}", "--output-format=json", f"--percentile_list={PERCENTILES}", *(word for job in jobs for word in job)]
    told = [job["write"] for job in json.loads(machines.at("hlc", *words))["jobs"]]
    return [{"iops": one["iops"], "mean_us": one["clat_ns"]["mean"] / 1000,
             "percentiles_us": {name: value / 1000 for name, value in one["clat_ns"]["percentile"].items()}} for one in told]


def measure(machines, path, jobs, seconds, sync=1):
    share = 256 // jobs
    job = ["--name=w", f"--filename={path}", f"--size={share}m", f"--offset_increment={share}m", f"--numjobs={jobs}", "--group_reporting"]
    return fio(machines, job, seconds=seconds, sync=sync)[0]


def grow(machines, directory, jobs, seconds):
    """Jobs that write new files. -> a result for each size of a piece, with O_SYNC and without"""
    found = []
    for kib, sync in ((4, 1), (64, 1), (4, 0), (64, 0)):
        job = ["--name=w", f"--directory={directory}", f"--filename_format=g.{kib}.{sync}.$jobnum", "--rw=write", f"--bs={kib}k", "--size=4g",
               "--fallocate=none", "--overwrite=0", f"--numjobs={jobs}", "--group_reporting"]
        found.append({"kib": kib, "sync": sync} | fio(machines, job, seconds=seconds, sync=sync)[0])
        machines.at("hlc", "sh", "-c", f"rm {directory}/g.*")
    return found


def fight_files(cluster, mode, directory):
    """-> the names of two files of one shard, by placement. `together`: one server leads the inode and the shard, so that writes
    and times share syncs; `apart`: they share none, and on one machine's disk that alone costs a third."""
    found = {}
    for number in range(64):
        name = f"fight{number}"
        cluster.machines.at("hlc", "dd", "if=/dev/zero", f"of={directory}/{name}", "bs=1M", "count=4", "conv=fsync")
        placed = json.loads(cluster.at("hl1", "--json", "where", f"{mode}:/{name}"))
        inode, shard = ([one["brick"] for one in place["replicas"] if one["leader"]] for place in (placed["place"], placed["shards"][0]))
        found.setdefault("together" if inode == shard else "apart", name)
        if len(found) == 2:
            return found
    raise SystemExit("lanes: 64 files, and no two of them are placed differently")


def fight(machines, paths, seconds):
    """All write the same shard. -> the rate of each"""
    jobs = [[f"--name=w{number}", f"--filename={path}", "--size=4m"] for number, path in enumerate(paths)]
    return {"iops_each": [told["iops"] for told in fio(machines, *jobs, seconds=seconds)]}


def fill(machines, path):
    machines.at("hlc", "dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=256", "conv=fsync")
    return path


SEQUENTIAL_MIB = 512


def cpu_seconds():
    """-> what all processes of the program have used so far"""
    ticks = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe").split(" ")[0] == HEKATE:
                fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def sequential(cluster, mode, path):
    """-> MiB a second of a write and of a cold read, and CPU seconds of Hekate's processes a GB"""
    def timed(*words):
        begun, cpu = time.monotonic(), cpu_seconds()
        cluster.machines.at("hlc", "dd", "bs=1M", f"count={SEQUENTIAL_MIB}", *words)
        took = time.monotonic() - begun
        return SEQUENTIAL_MIB / took, (cpu_seconds() - cpu) / (SEQUENTIAL_MIB / 1024)

    big = f"{os.path.dirname(path)}/big"
    write, write_cpu = timed("if=/dev/zero", f"of={big}", "conv=fsync")
    cluster.umount(mode)
    cluster.mount(mode)
    run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
    read, read_cpu = timed(f"if={big}", "of=/dev/null")
    cluster.machines.at("hlc", "rm", big)
    return {"write_mib_s": write, "write_cpu_s_per_gib": write_cpu, "read_mib_s": read, "read_cpu_s_per_gib": read_cpu}


def measure_all(options, about, cluster, gluster):
    machines = cluster.machines
    modes = options.modes.split(",")
    files = {}
    for mode in modes:
        if mode.startswith("gluster"):
            files[mode] = fill(machines, f"{gluster.mount(mode, mode == 'gluster-eager')}/file")
        else:
            cluster.create(mode)
            files[mode] = fill(machines, f"{cluster.mount(mode)}/file")

    def tell(**found):
        line = json.dumps(about | found)
        print(line, flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(line + "\n")

    if options.growing:
        places = {mode: os.path.dirname(path) for mode, path in files.items()}
        own = [mode for mode in modes if not mode.startswith("gluster")]
        places |= {f"{mode}-nopledges": cluster.mount(mode, "-nopledges", ("-o", "nopledges")) for mode in own}
        for jobs in map(int, options.jobs.split(",")):
            for mode, directory in places.items():
                for grown in grow(machines, directory, jobs, options.seconds):
                    tell(mode=mode, jobs=jobs, growing=True, **grown)
        for mode in own:
            cluster.umount(mode, "-nopledges")
            cluster.umount(mode)
        return
    for jobs in map(int, options.jobs.split(",")):
        for mode in modes:
            tell(mode=mode, jobs=jobs, **measure(machines, files[mode], jobs, options.seconds))
            if options.loose and mode in ("leader", "hsr"):
                tell(mode=f"{mode}-loose", jobs=jobs, **measure(machines, files[mode], jobs, options.seconds, sync=0))
    own = [mode for mode in modes if not mode.startswith("gluster")]
    for mode in own if options.sequential else []:
        tell(mode=mode, **sequential(cluster, mode, files[mode]))
    for mode in own if options.fight else []:
        mounts = [os.path.dirname(files[mode]), cluster.mount(mode, "-2")]
        for placement, name in fight_files(cluster, mode, mounts[0]).items():
            paths = [f"{mount}/{name}" for mount in mounts]
            tell(mode=mode, fight=2, placement=placement, **fight(machines, paths, options.seconds))
        cluster.umount(mode, "-2")
    for mode in own:
        cluster.umount(mode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="0,50,200,450")
    parser.add_argument("--modes", default="leader,hsr")
    parser.add_argument("--jobs", default="1,8")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--fight", action="store_true")
    parser.add_argument("--growing", action="store_true", help="writes that make new files longer")
    parser.add_argument("--loose", action="store_true", help="leader and hsr without O_SYNC as well")
    parser.add_argument("--plain", action="store_true", help="each measurement with encryption and without")
    parser.add_argument("--rounds", type=int, default=1, help="how often each measurement is repeated")
    parser.add_argument("--sequential", action="store_true", help="1 MiB writes and cold reads of a file too")
    parser.add_argument("--out")
    options = parser.parse_args()
    os.mkdir(BASE)
    try:
        run("cc", "-O2", "-pthread", "-o", f"{BASE}/netdelay", f"{HERE}/netdelay.c")
        turns = [False, True] * options.rounds if options.plain else [None] * options.rounds
        for delay, plain in ((delay, plain) for delay in map(int, options.delays.split(",")) for plain in turns):
            if plain is not None:
                os.environ.pop("HEKATE_PLAIN_TCP", None)
                os.environ |= {"HEKATE_PLAIN_TCP": "1"} if plain else {}
            with Wires(delay) as wires, contextlib.ExitStack() as stack:
                about = {"delay_us": delay, "round_trip_us": round(wires.round_trip())}
                about |= {} if plain is None else {"plain": plain}
                if "HEKATE_PLANTED" in os.environ:
                    about["without"] = os.environ["HEKATE_PLANTED"] or "nothing"
                machines = stack.enter_context(Machines())
                gluster = None
                if "gluster" in options.modes:
                    servers = [(node, NODES[node]) for node in ("hl1", "hl2")]
                    gluster = stack.enter_context(Gluster(BASE, servers, "hlc", machines.at))
                measure_all(options, about, stack.enter_context(Cluster(machines)), gluster)
                stack.close()
            for name in ["b1", "b2", "hl1", "hl2", "hlc"]:
                shutil.rmtree(f"{BASE}/{name}", ignore_errors=True)
    finally:
        shutil.rmtree(BASE, ignore_errors=True)


if __name__ == "__main__":
    main()
