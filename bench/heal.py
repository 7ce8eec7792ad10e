#!/usr/bin/env python3
"""Healing: how soon a replica that missed files and bytes is whole again, and what clients notice of it.

  bench/heal.py [--files 1000] [--gib 0.25] [--journal 128] [--load-s 10] [--quiet] [--out FILE]

Two servers with a brick each, a volume with a copy on both. One server is killed; FILES files of 4 KiB (in directories of 100)
and one file of GIB are written without it; it is served again. Prints a JSON line for each stage:

  missed    what was written without it, and how long that took
  heal      seconds until `heal status` says that nothing is missing, MB/s and files/s of what was missed, bytes that the healed
            server wrote (journal and home), whether the aim is met (30 s and the missed bytes at 50 MB/s), CPU of both servers
  latency   of a client that writes 4 KiB with O_SYNC at random places of a file of 64 MiB, one after the other: p50, p99, the worst:
            before (both servers), alone (one), meanwhile (healing), after. --quiet: nobody writes while it heals
  proof     `heal status --prove`: what all members hold alike, and how long the comparison took
  one-block one block of 4 KiB of the great file changed while the server was away: bytes that the healed server wrote until it is
            whole, when the journals still have the change (log), and when they have gone on and replicas are compared (compared)

It runs in a network namespace of its own, so that its addresses are nobody else's. Servers and client talk over unix sockets. Needs root and HEKATE=PROGRAM (else target/release/hekate); BENCH_DIR [/var/tmp]: where it works, three times GIB.
Everything that it made is removed at the end.
"""
import argparse, json, os, random, shutil, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.environ.get("BENCH_DIR", "/var/tmp") + "/hekate-heal"
HEKATE = os.path.abspath(os.environ.get("HEKATE", os.path.join(HERE, "../target/release/hekate")))
ADDRESS = {"s1": "127.0.0.1:7301", "s2": "127.0.0.1:7302"}
BLOCK = 4096
# 4 KiB writes with O_SYNC, each with when it ended and the microseconds that it took.
LOAD = """
import os, random, sys, time
path, blocks, out = sys.argv[1], 16384, open(sys.argv[2], "w")
file = os.open(path, os.O_RDWR | os.O_SYNC)
said = os.urandom(4096)
while not os.path.exists(sys.argv[3]):
    begun = time.monotonic(); os.pwrite(file, said, random.randrange(blocks) * 4096); ended = time.monotonic()
    out.write(f"{ended} {(ended - begun) * 1e6:.1f}\\n")
"""


def run(*words, check=True, **named):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **named)
    if check and done.returncode:
        raise SystemExit(f"heal: {' '.join(words)}: exit {done.returncode}: {done.stdout} {done.stderr}")
    return done.stdout


def cli(name, *words, **named):
    return run(HEKATE, "--state", f"{BASE}/{name}", *words, **named)


def told(name, *words, **named):
    return json.loads(cli(name, "--json", *words, **named))


def status(*options):
    """`heal status`, whose exit status says whether all is well. Nothing: the server did not answer."""
    said = cli("s1", "--json", "heal", "status", *options, check=False)
    return json.JSONDecoder().raw_decode(said)[0] if said.startswith("{") else {}


def wait(condition, what, limit_s):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"heal: after {limit_s} s still not: {what}")
        time.sleep(0.1)


class Cluster:
    """Two servers, the volume, its mount."""

    def __init__(self, journal):
        self.pids, self.mnt = {}, f"{BASE}/mnt"
        os.makedirs(self.mnt)
        cli("s1", "init", "--brick", f"{BASE}/b1", "--journal", str(journal))
        self.serve("s1")
        cli("s2", "join", cli("s1", "token", "create").strip(), "--brick", f"{BASE}/b2", "--journal", str(journal))
        self.serve("s2")
        cli("s1", "volume", "create", "v", "--copies", "2", "--domain", "server")
        wait(lambda: told("s1", "status")["health"] == "good", "the cluster is well", 30)
        self.mount_pid = told("s1", "mount", "v", self.mnt)["pid"]

    def serve(self, name):
        self.pids[name] = told(name, "serve", "--detach", "--listen", ADDRESS[name])["pid"]

    def kill(self):
        """The second one; until the first has all partitions to itself."""
        os.kill(self.pids["s2"], signal.SIGKILL)
        wait(lambda: all(len(view["members"]) == 1 for view in told("s1", "volume", "show", "v")["views"]), "the first serves alone", 60)

    def whole(self, limit_s):
        """Serves the second one and waits. -> seconds, bytes that the second one wrote, their CPU seconds"""
        begun = time.monotonic()
        self.serve("s2")
        cpu = {name: cpu_s(pid) for name, pid in self.pids.items()}
        heard = {}
        while True:
            said = status()
            if "missing" in said and not said["missing"] and not said["waiting"]:
                break
            for row in said.get("missing", []):
                heard[(row["ring"], row["partition"])] = row
            if time.monotonic() - begun > limit_s:
                raise SystemExit(f"heal: not whole after {limit_s} s: {said}")
            time.sleep(0.2)
        took = time.monotonic() - begun
        return took, written(self.pids["s2"]), {name: round(cpu_s(pid) - cpu[name], 2) for name, pid in self.pids.items()}

    def end(self):
        """Also after a failure, when a server may be gone: whoever waits for the mount would wait for ever."""
        subprocess.run(["umount", "-l", self.mnt], capture_output=True)
        for pid in [self.mount_pid, *self.pids.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def written(pid):
    """Bytes that a process has written since it was started, to its journal and its data files among others."""
    with open(f"/proc/{pid}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar:"))


def cpu_s(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


class Load:
    """A client in a process of its own."""

    def __init__(self, cluster):
        self.out, self.stop, self.path = f"{BASE}/load", f"{BASE}/load-stop", f"{cluster.mnt}/load"
        self.process = None

    def begin(self):
        for path in [self.out, self.stop]:
            if os.path.exists(path):
                os.remove(path)
        self.process = subprocess.Popen([sys.executable, "-c", LOAD, self.path, self.out, self.stop])

    def end(self, phase):
        open(self.stop, "w").close()
        self.process.wait()
        self.process = None
        with open(self.out) as file:
            rows = [float(line.split()[1]) for line in file]
        rows.sort()
        at = lambda share: round(rows[min(len(rows) - 1, int(len(rows) * share))]) if rows else None
        return {"stage": "latency", "phase": phase, "writes": len(rows), "p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999), "worst_us": at(1)}

    def during(self, phase, seconds):
        self.begin()
        time.sleep(seconds)
        return self.end(phase)


def fill(path, size, chunk=1 << 20):
    said = os.urandom(chunk + 4096)
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, chunk):
            start = random.randrange(4096)
            file.write(said[start:start + min(chunk, size - at)])
        os.fsync(file.fileno())


def small_files(top, count):
    said = os.urandom(2 * BLOCK)
    for number in range(count):
        if number % 100 == 0:
            os.makedirs(f"{top}/{number // 100}")
        with open(f"{top}/{number // 100}/{number}", "wb", buffering=0) as file:
            start = random.randrange(BLOCK)
            file.write(said[start:start + BLOCK])


def change(path, at):
    file = os.open(path, os.O_RDWR | os.O_SYNC)
    os.pwrite(file, os.urandom(BLOCK), at)
    os.close(file)


def outrun(path, journal):
    """Journals go on past what they had: the same block again and again, beside the change that counts."""
    file = os.open(path, os.O_RDWR)
    for _ in range(journal * 256 * 3 // 2):
        os.pwrite(file, os.urandom(BLOCK), 0)
    os.fsync(file)
    os.close(file)


def prove(cluster):
    begun = time.monotonic()
    said = status("--prove")
    proofs = said["proofs"]
    return {
        "stage": "proof", "seconds": round(time.monotonic() - begun, 2), "partitions": len(proofs), "ended": all(one["ended"] for one in proofs),
        "equal": sum(one["equal"] for one in proofs), "left_out": sum(one["left_out"] for one in proofs),
        "differing": sum(len(one["differing"]) for one in proofs), "missing": len(said["missing"]),
    }


def measure(options, tell):
    size = int(options.gib * (1 << 30))
    cluster = Cluster(options.journal)
    load = Load(cluster)
    try:
        fill(load.path, 64 << 20)
        tell(load.during("before", options.load_s))
        cluster.kill()
        begun = time.monotonic()
        small_files(f"{cluster.mnt}/small", options.files)
        made = time.monotonic()
        fill(f"{cluster.mnt}/great", size)
        os.sync()
        missed = size + options.files * BLOCK
        tell({"stage": "missed", "files": options.files, "bytes": missed, "files_s": round(made - begun, 1), "great_s": round(time.monotonic() - made, 1)})
        tell(load.during("alone", options.load_s))
        if not options.quiet:
            load.begin()
        took, sent, cpu = cluster.whole(600 + missed / 5e6)
        meanwhile = None if options.quiet else load.end("meanwhile")
        aim = 30 + missed / 50e6
        tell({
            "stage": "heal", "seconds": round(took, 1), "aim_s": round(aim, 1), "met": took <= aim, "mb_s": round(missed / took / 1e6, 1),
            "files_s": round(options.files / took), "bytes_written": sent, "cpu_s": cpu,
        })
        if meanwhile:
            tell(meanwhile)
        tell(load.during("after", options.load_s))
        tell(prove(cluster))
        for way in ["log", "compared"]:
            cluster.kill()
            change(f"{cluster.mnt}/great", random.randrange(size // BLOCK) * BLOCK)
            if way == "compared":
                outrun(load.path, options.journal)
            took, sent, cpu = cluster.whole(600)
            tell({"stage": "one-block", "way": way, "file_bytes": size, "seconds": round(took, 1), "bytes_written": sent, "cpu_s": cpu})
        tell(prove(cluster))
    finally:
        if load.process:
            load.process.kill()
        cluster.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--gib", type=float, default=0.25)
    parser.add_argument("--journal", type=int, default=128, help="MiB of each brick")
    parser.add_argument("--load-s", type=float, default=10)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    if os.environ.get("HEKATE_HEAL_INSIDE") is None:
        script = 'ip link set lo up && exec "$0" "$@"'
        words = ["unshare", "--net", "sh", "-c", script, sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        os.execvpe(words[0], words, os.environ | {"HEKATE_HEAL_INSIDE": "1"})

    def tell(row):
        line = json.dumps(row)
        print(line, flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(line + "\n")

    os.makedirs(BASE)
    try:
        tell({"stage": "settings", "date": time.strftime("%F %T"), "files": options.files, "gib": options.gib, "journal_mib": options.journal,
              "quiet": options.quiet, "load": os.getloadavg()[0], "version": run(HEKATE, "--version").strip()})
        measure(options, tell)
    finally:
        shutil.rmtree(BASE, ignore_errors=True)


main()
