#!/usr/bin/env python3
"""Where the time of one op goes in the real server and mount: 4 KiB O_SYNC writes by fio, creating files, looking names up,
writing and reading 64 KiB after 64 KiB.

  bench/profile_server.py [--dir DIR] [--seconds 5] [--jobs 1,8] [--copies 2] [--cache SECONDS] [--own] [--json]

Makes a store with one brick a copy below DIR [/var/tmp/hekate-profile], serves and mounts it, and runs each workload three
times: undisturbed (us an op, CPU and context switches by thread name), under `strace -c` (system calls by name) and under
`perf record` (top symbols). strace slows what it watches, so its counts of futex are upper bounds, and times come from the
first run only. A thread that ends between two samples (20 ms) is not counted. In the end everything that it started is stopped, by process id, and DIR is removed.

Environment: HEKATE=PROGRAM, else it is built in release. Needs root for perf and strace, fio, strace and perf.
"""
import argparse, collections, json, os, re, shutil, signal, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYMBOLS = 25


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp/hekate-profile")
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument("--jobs", default="1,8", help="numbers of fio jobs")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--cache", type=float, help="as `hekate mount --cache`; without it strict")
    parser.add_argument("--own", action="store_true", help="the server mounts the volume itself (hekate serve --mount)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Store:
    """A server and a mount of ours in a directory of ours."""

    def __init__(self, options):
        self.program = os.environ.get("HEKATE") or self.build()
        self.directory = os.path.abspath(options.dir)
        self.mount_point = os.path.join(self.directory, "mnt")
        self.options = options
        self.pids = {}
        self.handles = []

    @staticmethod
    def build():
        subprocess.run(["cargo", "build", "--release", "-p", "hekate", "--features", "measuring"], cwd=HERE, check=True)
        return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "target")), "release", "hekate")

    def run(self, *words):
        state = os.path.join(self.directory, "state")
        done = subprocess.run([self.program, "--state", state, *words], stdout=subprocess.PIPE, text=True, timeout=120)
        if done.returncode:
            raise SystemExit(f"profile_server: hekate {' '.join(words)} did not succeed")
        return done.stdout

    def __enter__(self):
        # Only a directory that is ours is ever removed.
        os.mkdir(self.directory)
        try:
            os.mkdir(self.mount_point)
            bricks = [os.path.join(self.directory, f"brick{n + 1}") for n in range(self.options.copies)]
            flags = [word for brick in bricks for word in ("--brick", brick)]
            self.run("init", *flags, "--volume", "profile", "--copies", str(self.options.copies))
            own, cache = [], []
            if self.options.own:
                cached = f":cache={self.options.cache:g}" if self.options.cache is not None else ""
                own = ["--mount", f"profile:{self.mount_point}{cached}"]
            elif self.options.cache is not None:
                cache = ["--cache", str(self.options.cache)]
            self.pids["server"] = json.loads(self.run("--json", "serve", "--detach", *own))["pid"]
            if not own:
                self.pids["mount"] = json.loads(self.run("--json", "mount", *cache, "profile", self.mount_point))["pid"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def opened(self, name):
        """A file that stays open as long as the store."""
        self.handles.append(os.open(os.path.join(self.mount_point, name), os.O_CREAT | os.O_RDWR))
        return self.handles[-1]

    def __exit__(self, *_):
        while self.handles:
            os.close(self.handles.pop())
        for words in (["umount", self.mount_point], ["stop"]):
            try:
                self.run(*words)
            except (SystemExit, subprocess.TimeoutExpired):
                pass
        for pid in self.pids.values():
            end(pid)
        if os.path.ismount(self.mount_point):
            subprocess.run(["umount", "-l", self.mount_point], check=False)
        shutil.rmtree(self.directory)


def is_alive(pid):
    try:
        return re.search(r"^State:\s*Z", open(f"/proc/{pid}/status").read(), re.M) is None
    except OSError:
        return False


def end(pid):
    """Ends a process that this program started, if it has not ended by itself."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        for _ in range(100):
            if not is_alive(pid):
                return
            if number:
                os.kill(pid, number)
                number = 0
            time.sleep(0.05)


class Threads:
    """What each thread of some processes has used, sampled, since threads come and go while it is measured."""

    def __init__(self, pids):
        self.pids = pids
        self.first, self.last, self.names = {}, {}, {}
        self.begun = False
        self.ended = threading.Event()
        self.sampler = threading.Thread(target=self.go_on)

    def __enter__(self):
        self.sample()
        self.begun = True
        self.busy = busy_seconds()
        self.sampler.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.sampler.join()
        self.sample()
        self.busy = busy_seconds() - self.busy

    def go_on(self):
        while not self.ended.wait(0.02):
            self.sample()

    def sample(self):
        for name, pid in self.pids.items():
            for task in os.listdir(f"/proc/{pid}/task"):
                try:
                    base = f"/proc/{pid}/task/{task}"
                    comm = re.sub(r"\d+$", "N", open(f"{base}/comm").read().strip())
                    cpu = int(open(f"{base}/schedstat").read().split()[0])
                    switches = re.findall(r"ctxt_switches:\s*(\d+)", open(f"{base}/status").read())
                    used = (cpu, int(switches[0]), int(switches[1]))
                except (OSError, IndexError):
                    continue
                self.names[task] = (name, comm)
                self.first.setdefault(task, (0, 0, 0) if self.begun else used)
                self.last[task] = used

    def rows(self, ops):
        """CPU microseconds and switches an op, by process and thread name."""
        sums = collections.defaultdict(lambda: [0, 0, 0])
        for task, last in self.last.items():
            for at, (now, before) in enumerate(zip(last, self.first[task])):
                sums[self.names[task]][at] += now - before
        return [{"process": key[0], "thread": key[1], "cpu_us": used[0] / 1e3 / ops, "voluntary": used[1] / ops,
                 "involuntary": used[2] / ops} for key, used in sorted(sums.items()) if any(used)]


def busy_seconds():
    """CPU time of the whole machine, other programs included."""
    words = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


def fio(store, jobs, seconds):
    """-> (ops, seconds, median and 99th percentile in us)"""
    words = ["fio", "--name=write", f"--directory={store.mount_point}", "--rw=randwrite", "--bs=4k", "--sync=1",
             "--ioengine=psync", "--size=16m", f"--numjobs={jobs}", "--thread", "--group_reporting", "--output-format=json",
             "--fallocate=none", "--randrepeat=0"]
    # The files first: growing them is another op.
    subprocess.run(words + ["--create_only=1"], check=True, stdout=subprocess.DEVNULL)

    def work():
        text = subprocess.run(words + ["--time_based", f"--runtime={seconds}"], check=True, stdout=subprocess.PIPE).stdout
        write = json.loads(text)["jobs"][0]["write"]
        percentiles = write["clat_ns"]["percentile"]
        return {"ops": write["total_ios"], "seconds": write["runtime"] / 1e3,
                "p50_us": percentiles["50.000000"] / 1e3, "p99_us": percentiles["99.000000"] / 1e3}
    return work


def timed(seconds, op, between=lambda number: None):
    """`op` again and again for so long; what is done `between` two of them does not count."""
    def work():
        times, took, number = [], 0, 0
        while took < seconds:
            between(number)
            before = time.monotonic()
            op(number)
            times.append(time.monotonic() - before)
            took += times[-1]
            number += 1
        times.sort()
        at = lambda share: times[int((len(times) - 1) * share)] * 1e6
        return {"ops": len(times), "seconds": took, "p50_us": at(0.5), "p99_us": at(0.99)}
    return work


def creates(store, seconds):
    count = [0]
    directory = os.path.join(store.mount_point, "files")
    os.makedirs(directory, exist_ok=True)

    def create(_):
        count[0] += 1
        os.close(os.open(f"{directory}/file-{count[0]:08}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    return timed(seconds, create)


def lookups(store, seconds):
    """Of names that the kernel does not know: each is looked up once, then it forgets all."""
    directory = os.path.join(store.mount_point, "names")
    names = [f"{directory}/file-{number:08}" for number in range(5_000)]
    os.makedirs(directory, exist_ok=True)
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))

    def forget(number):
        if number % len(names) == 0:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("2")
            os.stat(directory)
    return timed(seconds, lambda number: os.stat(names[number % len(names)]), forget)


BLOCK, BLOCKS = 64 << 10, 2048


def writes(store, seconds):
    """One after the other into a new file, which is emptied and begun anew when it has 128 MiB."""
    handle = store.opened("written")
    block = os.urandom(BLOCK)

    def again(number):
        if number % BLOCKS == 0:
            os.ftruncate(handle, 0)
            os.sync()
    return timed(seconds, lambda number: os.pwrite(handle, block, number % BLOCKS * BLOCK), again)


def reads(store, seconds):
    """One after the other of a file that no page cache has when each lap of 128 MiB begins."""
    handle = store.opened("read")
    for number in range(BLOCKS):
        os.pwrite(handle, os.urandom(BLOCK), number * BLOCK)

    def forget(number):
        if number % BLOCKS == 0:
            os.sync()
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("1")
    return timed(seconds, lambda number: os.pread(handle, BLOCK, number % BLOCKS * BLOCK), forget)


def undisturbed(store, work):
    with Threads(store.pids) as threads:
        result = work()
    result["threads"] = threads.rows(result["ops"])
    result["machine_cpu_us"] = threads.busy * 1e6 / result["ops"]
    return result


def watched(command, work):
    """Runs `work` while `command` watches; both have ended when this returns."""
    watcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        if watcher.poll() is not None:
            return None
        return work()
    finally:
        if watcher.poll() is None:
            watcher.send_signal(signal.SIGINT)
        try:
            watcher.wait(30)
        except subprocess.TimeoutExpired:
            watcher.kill()
            watcher.wait()


def system_calls(store, work):
    calls = {}
    for name, pid in store.pids.items():
        with tempfile.NamedTemporaryFile("r") as out:
            result = watched(["strace", "-f", "-c", "-o", out.name, "-p", str(pid)], work)
            rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+(\w+)$", out.read(), re.M)
        if result is None:
            calls[name] = "strace did not start (not root, or someone traces it already)"
        else:
            each = {call: int(count) / result["ops"] for count, call in rows if call != "total"}
            calls[name] = {call: count for call, count in sorted(each.items(), key=lambda row: -row[1]) if count >= 0.01}
    return calls


def symbols(store, work):
    with tempfile.TemporaryDirectory() as scratch:
        data = os.path.join(scratch, "perf.data")
        pids = ",".join(str(pid) for pid in store.pids.values())
        result = watched(["perf", "record", "-e", "cpu-clock", "-F", "2000", "-g", "-o", data, "-p", pids], work)
        if result is None or not os.path.exists(data):
            return ["perf did not start (not root, or perf_event_paranoid)"]
        words = ["perf", "report", "-i", data, "--stdio", "--no-children", "-g", "none", "--sort", "comm,symbol"]
        text = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    lines = [re.sub(r"[\s-]+$", "", line.strip()) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return lines[:SYMBOLS]


def show(name, result):
    print(f"\n== {name}: {result['ops'] / result['seconds']:.0f} ops/s, {result['p50_us']:.0f} us p50, "
          f"{result['p99_us']:.0f} us p99; CPU of the whole machine {result['machine_cpu_us']:.0f} us an op")
    print(f"{'thread':34} {'CPU us/op':>10} {'voluntary':>10} {'involuntary':>12}")
    for row in result["threads"]:
        print(f"{row['process'] + ' ' + row['thread']:34} {row['cpu_us']:10.1f} {row['voluntary']:10.2f} {row['involuntary']:12.2f}")
    for process, calls in result["system_calls"].items():
        text = calls if isinstance(calls, str) else ", ".join(f"{call} {count:.2f}" for call, count in calls.items())
        print(f"system calls an op, {process}: {text}")
    print("top symbols (share of samples, thread, symbol):")
    for line in result["symbols"]:
        print(f"  {line}")


def main():
    options = arguments()
    missing = [tool for tool in ("fio", "strace", "perf") if not shutil.which(tool)]
    if missing:
        raise SystemExit(f"profile_server: install {', '.join(missing)} (apt-get install fio strace linux-perf)")
    # A signal takes the same way out as an end: everything is cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = {}
    with Store(options) as store:
        workloads = {f"4 KiB O_SYNC write, {jobs} jobs": fio(store, jobs, options.seconds)
                     for jobs in map(int, options.jobs.split(","))}
        workloads |= {"create": creates(store, options.seconds), "look-up": lookups(store, options.seconds),
                      "64 KiB write": writes(store, options.seconds), "64 KiB read": reads(store, options.seconds)}
        for name, work in workloads.items():
            work()
            results[name] = undisturbed(store, work)
            results[name]["system_calls"] = system_calls(store, work)
            results[name]["symbols"] = symbols(store, work)
            if not options.json:
                show(name, results[name])
    if options.json:
        print(json.dumps({"cache": options.cache, "own": options.own, "copies": options.copies, "workloads": results}))


main()
