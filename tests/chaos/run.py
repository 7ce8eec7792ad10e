#!/usr/bin/env python3
"""Chaos with real processes: cycles of load, a fault, its end, and a look whether everything promised was kept.

    HEKATE=PROGRAM CHECK_HISTORY=PROGRAM tests/chaos/run.py --cycles 200 [--seed N] [--kinds kill,cut] [--report FILE]

docs/chaos.md says what is done and what is checked. Needs root. The seed says which faults, of whom, for how long; what
the load does meanwhile also depends on the machine. After a violation what was recorded stays in /var/tmp/hekate-chaos.*.
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

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]

import acked  # noqa: E402
import faults  # noqa: E402
import report  # noqa: E402
from checker import check, checker  # noqa: E402
from cluster import CLIENTS, SERVERS, VOLUMES, Cluster  # noqa: E402
from etcd_cluster import EtcdCluster  # noqa: E402
from harness import HEKATE, Store, equal  # noqa: E402

# Load before a fault, and after it was healed.
BEFORE_S, AFTER_S = 1.0, 2.0
# Who was given no answer when all is healed waits no longer than that: TCP sends again after up to twice the fault.
ANSWER_S = 60
# Whole again: that, and what was missed at so many bytes a second.
WHOLE_S, HEALED_BYTES_S = 30, 50e6
GIVE_UP_S = 180
PROBES_MAX = 400
# A partition that does not answer for longer than the fault and this hangs. Servers that all died need some time to start.
HANGS_S = 45


# What `heal status --prove` ends with.
DIFFERENT, INTERRUPTED = 1, 75


class Violation(AssertionError):
    """A promise that was not kept."""


class Run:
    def __init__(self, store, seed, say=print, etcd=False):
        self.store, self.seed, self.say = store, seed, say
        self.draw = random.Random(seed)
        self.cluster = (EtcdCluster if etcd else Cluster)(store)
        self.command = checker()
        self.results, self.before = [], {}

    def make(self):
        self.cluster.make()
        self.probes = {volume: self.find_probes(volume) for volume, *_ in VOLUMES}
        self.out = self.store.directory("out")

    def find_probes(self, volume):
        """A file in each partition, its bytes beside its inode. Files lie where their directory does, and that anywhere."""
        top = f"{self.cluster.mounted('c1', volume)}/probes"
        os.mkdir(top)
        wanted, found = len(self.cluster.views(volume)), {}
        for number in range(PROBES_MAX):
            os.mkdir(f"{top}/{number}")
            with open(f"{top}/{number}/file", "wb") as file:
                file.write(b"%015d\n" % 0)
            place = self.cluster.at("s1", "--json", "where", f"{volume}:/probes/{number}/file").json()["place"]
            found.setdefault(place["partition"], f"probes/{number}/file")
            if len(found) == wanted:
                return found
        raise AssertionError(f"{PROBES_MAX} files are not in all {wanted} partitions")

    # --- a cycle

    def cycle(self, number, kind, volume):
        fault = faults.of_kind(kind, self.cluster, f"{self.seed}/{number}")
        result = {"cycle": number, "kind": kind, "volume": volume, "victim": fault.victim, "hold_s": fault.hold}
        seconds = BEFORE_S + fault.hold + AFTER_S
        members = self.members(volume)
        loads = Loads(self, number, volume, fault, seconds)
        try:
            time.sleep(BEFORE_S)
            begun = time.monotonic()
            fault.begin()
            time.sleep(max(0, begun + fault.hold - time.monotonic()))
            fault.end()
            result["whole_s"] = self.becomes_whole(loads)
            loads.end()
        finally:
            loads.kill()
            result |= {"notes": fault.notes, "places": fault.places}
        result |= loads.judge()
        result["gaps"] = list(loads.gaps(members, begun))
        self.proves_equal(loads.out)
        self.judge(fault, result)
        fault.over()
        return result

    def members(self, volume):
        """The servers of each partition."""
        servers = {row["brick"]: f"s{row['server']}" for row in self.cluster.status()["bricks"]}
        return [[servers[member["brick"]] for member in view["members"]] for view in self.cluster.views(volume)]

    def becomes_whole(self, loads):
        begun = time.monotonic()
        while lacking := self.lacking(loads):
            took = time.monotonic() - begun
            if took > GIVE_UP_S:
                self.cluster.tell_all(loads.out)
                raise Violation(f"not whole {GIVE_UP_S} s after all was healed: {'; '.join(lacking)}")
            time.sleep(0.2)
        took = time.monotonic() - begun
        limit = WHOLE_S + loads.bytes_written() / HEALED_BYTES_S
        if took > limit:
            raise Violation(f"whole {took:.1f} s after all was healed, not within {limit:.1f} s")
        return round(took, 2)

    def lacking(self, loads):
        try:
            return self.cluster.lacking()
        except subprocess.TimeoutExpired as error:
            self.cluster.tell_all(loads.out)
            raise Violation(f"no answer within {error.timeout} s: {' '.join(error.cmd)}") from error

    def proves_equal(self, out):
        for _ in range(20):
            outcome = self.cluster.try_at("s1", "--json", "heal", "status", "--prove")
            if outcome.exit == 0:
                return
            if outcome.exit != INTERRUPTED:
                break
            time.sleep(0.5)
        if outcome.exit != DIFFERENT:
            raise Violation(f"heal status --prove: exit {outcome.exit}: {outcome.text.strip()[-2000:]}")
        rows = [row for row in outcome.json()["proofs"] if row["differing"]] if "proofs" in outcome.json() else outcome.text.strip()[:3000]
        again = self.cluster.try_at("s1", "--json", "heal", "status", "--prove").exit
        compared = self.cluster.compare()
        with open(f"{out}/compared.json", "w") as file:
            json.dump(compared, file, indent=1)
        raise Violation(f"replicas differ: {rows}; asked again: exit {again}; bricks compared: {out}/compared.json")

    def judge(self, fault, result):
        """What is late is a violation only if it hangs: the aims are told in the report."""
        for gap in result["gaps"]:
            gap["affected"] = fault.affects(gap.pop("servers"))
            if gap["gap_s"] > fault.hold + HANGS_S:
                raise Violation(f"partition {gap['partition']} of {result['volume']} did not answer for {gap['gap_s']} s")

    def run(self, cycles, kinds):
        deck = faults.deck(self.draw, kinds)
        volumes = faults.deck(self.draw, [volume for volume, *_ in VOLUMES])
        for number in range(cycles):
            kind, volume = next(deck), next(volumes)
            begun = time.monotonic()
            try:
                result = self.cycle(number, kind, volume)
            except BaseException as error:
                self.say(f"chaos: cycle {number}, {kind} on {volume}, seed {self.seed}: {type(error).__name__}: {error}")
                raise
            result["took_s"] = round(time.monotonic() - begun, 1)
            self.results.append(result)
            self.note(result)
            self.say(report.line(result))

    def end(self):
        compared = self.cluster.end()
        equal(compared["equal"], True, "replicas in the end")
        # Of a journal that has gone on what had rotted stays until it is written over; nobody reads it.
        if not any(result["kind"] == "rot-journal" for result in self.results):
            equal(compared["problem_count"], 0, "problems of bricks in the end")


class Loads:
    """Processes at work in one cycle: histories on both mounts, writers on one and probes on the other."""

    def __init__(self, run, number, volume, fault, seconds):
        self.run, self.number, self.volume, self.fault = run, number, volume, fault
        self.top = f"cycle{number}"
        self.out = f"{run.out}/{volume}-{self.top}"
        self.mounts = [run.cluster.mounted(client, volume) for client in CLIENTS]
        for directory in (self.out, f"{self.mounts[0]}/{self.top}", *(f"{self.mounts[0]}/{self.top}/{name}" for name in "ha")):
            os.mkdir(directory)
        load = [sys.executable, "-B", f"{HERE}/load.py"]
        seed = f"{run.seed}/{number}"
        roots = [f"{mount}/{self.top}/h" for mount in self.mounts]
        record = f"{self.out}/record"
        os.mkdir(record)
        work = [sys.executable, "-B", acked.__file__, "work", f"{self.mounts[1]}/{self.top}/a", record]
        work += ["--seconds", str(seconds), "--workers", "2", "--seed", seed, "--may-fail", ",".join(fault.allowed)]
        files = [f"{self.mounts[0]}/{path}" for path in run.probes[volume].values()]
        commands = {
            "history": [*load, "history", f"{self.out}/history.jsonl", seed, str(seconds), *roots],
            "acked": work,
            "probe": [*load, "probe", f"{self.out}/probe.json", str(seconds), *files],
        }
        named = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        named["env"] = os.environ | {"MAY_FAIL": ",".join(fault.allowed)}
        self.processes = {name: subprocess.Popen(words, **named) for name, words in commands.items()}

    def end(self):
        """Everybody must have had an answer, and none that nobody should get."""
        limit = time.monotonic() + ANSWER_S
        for name, process in self.processes.items():
            try:
                _, told = process.communicate(timeout=max(1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.run.cluster.tell_all(self.out)
                raise Violation(f"{name}: no answer {ANSWER_S} s after the cluster was whole") from None
            if (process.returncode, told) != (0, ""):
                self.run.cluster.tell_all(self.out)
                raise Violation(f"{name}: exit {process.returncode}: {told.strip()[-2000:]}")

    def kill(self):
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, 9)

    def bytes_written(self):
        """An upper bound of what a replica has missed of the writers' bytes."""
        total = 0
        for name in glob.glob(f"{self.out}/record/*.log"):
            with open(name) as file:
                total += sum(json.loads(line)["begin"]["count"] * acked.BLOCK for line in file if '"op": "write"' in line)
        return total

    def judge(self):
        """-> how much was done."""
        counts = self.verify_acked()
        return {"calls": self.check_history(), "acknowledged": counts["acknowledged"], "probes": self.check_probes()}

    def verify_acked(self):
        """By the other mount; and once more what the cycle before on this volume left, which then goes."""
        before = self.run.before.get(self.volume)
        for top, record in [*([before] if before else []), (self.top, f"{self.out}/record")]:
            words = [sys.executable, "-B", acked.__file__, "verify", f"{self.mounts[0]}/{top}/a", record]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise Violation(f"acknowledged in {top} and not there: {done.stdout}{done.stderr}")
        if before:
            shutil.rmtree(f"{self.mounts[0]}/{before[0]}")
            shutil.rmtree(os.path.dirname(before[1]))
        self.run.before[self.volume] = (self.top, f"{self.out}/record")
        return json.loads(done.stdout)

    def check_history(self):
        path = f"{self.out}/history.jsonl"
        told = check(self.run.command, path)
        if told.returncode:
            raise Violation(f"{path}: {told.stdout[-3000:]}{told.stderr[-1000:]}")
        return int(told.stdout.split()[2])

    def probed(self):
        with open(f"{self.out}/probe.json") as file:
            return json.load(file)

    def check_probes(self):
        """What was last acknowledged is read by the other mount."""
        probed = self.probed()
        for probe in probed:
            if probe["errors"] and not self.fault.allowed:
                raise Violation(f"{probe['file']}: {probe['errors']}")
            with open(probe["file"].replace(*self.mounts), "rb") as file:
                found = file.read()
            if probe["count"] and found != b"%015d\n" % probe["count"] and not probe["errors"]:
                raise Violation(f"{probe['file']}: {found} and not {probe['count']}")
        return sum(probe["count"] for probe in probed)

    def gaps(self, members, begun):
        """For each partition the longest time without an answer, and how long after the fault that began."""
        found = {probe["file"]: probe for probe in self.probed()}
        for partition, path in self.run.probes[self.volume].items():
            probe = found[f"{self.mounts[0]}/{path}"]
            found_gap = {"partition": partition, "gap_s": probe["gap_s"], "after_s": round(probe["begun"] - begun, 2)}
            yield found_gap | {"servers": members[partition]}


def chaos(store, cycles, seed, kinds, say=print, note=lambda result: None, etcd=False):
    """-> the results of all cycles, each of which is noted when it is over."""
    run = Run(store, seed, say, etcd)
    run.note = note
    try:
        run.make()
        run.run(cycles, kinds)
        run.end()
        return run.results
    except BaseException as error:
        keep(run, say, with_disks=isinstance(error, Violation))
        raise
    finally:
        # Whoever interrupts once more waits for that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        run.cluster.clean_up()
        signal.signal(signal.SIGINT, before)


def keep(run, say, with_disks):
    """Leaves logs and records of a run that failed, and its bricks with their journals. Mounts are not looked into: their servers may be
    gone."""
    place, base = tempfile.mkdtemp(prefix="hekate-chaos."), run.store.base
    tops = [f"{base}/{name}" for name in os.listdir(base) if not name.startswith("mnt-")]
    for path in [path for top in tops for form in ("*.log", "state/*.log", "state/etcd/*.log") for path in glob.glob(f"{top}/{form}")] + glob.glob(f"{base}/out/*"):
        to = os.path.join(place, os.path.relpath(path, base))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, to)
    if with_disks:
        for server in SERVERS:
            subprocess.run(["cp", "-a", "--sparse=always", run.cluster.disk(server), f"{place}/{server}-disk"], check=False)
    say(f"chaos: logs and records are in {place}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=len(faults.KINDS))
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--kinds", help="only these kinds of faults")
    parser.add_argument("--etcd", action="store_true", help="the records are in etcd, whose members are victims too")
    parser.add_argument("--report", help="the results are added to this file, as JSON lines")
    options = parser.parse_args()
    known = list(faults.KINDS)
    if options.etcd:
        known = [*faults.ETCD_KINDS, *(kind for kind in known if kind not in faults.NOT_WITH_ETCD)]
    kinds = options.kinds.split(",") if options.kinds else known
    if unknown := set(kinds) - set(known):
        sys.exit(f"chaos: no such kinds: {', '.join(unknown)}; there are: {', '.join(known)}")
    if os.geteuid() != 0:
        sys.exit("chaos: namespaces and disks of its own need root")
    if not os.access(HEKATE, os.X_OK):
        sys.exit(f"chaos: HEKATE={HEKATE} is no program")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"chaos: {options.cycles} cycles, seed {options.seed}", flush=True)
    base = tempfile.mkdtemp(prefix="hekate-chaos.", dir="/var/tmp")

    def note(result):
        if options.report:
            report.append(options.report, options.seed, result)

    results = chaos(Store(base), options.cycles, options.seed, kinds, lambda text: print(text, flush=True), note, options.etcd)
    print(f"{report.table(results)}\n\nno violation")


if __name__ == "__main__":
    main()
