"""What goes wrong in a cycle. A fault has a kind, a victim, how long it lasts, and who need not answer meanwhile.

`begin` makes it, `end` heals it as an operator would. What users may be told meanwhile is `allowed`: names of errnos.
"""

import os
import random
import shutil
import signal
import time

from cluster import CLIENTS, COORDINATOR, SERVERS, VOLUMES
from harness import wait_until

# Of the lease.
LEASE_S = 3
BLOCK = 4096
# After the start of a brick that may be broken.
SETTLE_S = 4
# What a scrub's exit status says then.
DAMAGED = 74


class Fault:
    """Nothing goes wrong. The others say what is different."""

    hold_s = (2, 4)
    allowed = ()
    # Within that a partition is to answer again: the aims.
    aim_s = None

    def __init__(self, cluster, draw):
        self.cluster, self.draw = cluster, draw
        self.victim = draw.choice(SERVERS)
        self.hold = round(draw.uniform(*self.hold_s), 1)
        # For the line of the cycle, and for its record only.
        self.notes, self.places = [], []

    def begin(self):
        pass

    def end(self):
        pass

    def over(self):
        """The cycle is over, and everything was looked at."""

    def affects(self, servers):
        """Whether a partition with members on these servers is touched."""
        return self.victim in servers

    @property
    def others(self):
        return [node for node in self.cluster.wires.nodes if node != self.victim]


# --- processes


class Kill(Fault):
    """SIGKILL; the server stays away for longer than its lease."""

    hold_s, aim_s = (6, 9), 5

    def begin(self):
        self.cluster.kill(self.victim)

    def end(self):
        self.cluster.start(self.victim)


class Restart(Kill):
    """SIGKILL, and started again while its lease may still run."""

    hold_s = (0, 2)


class Stop(Fault):
    """Stopped in order: nobody has to wait for the lease."""

    hold_s, aim_s = (3, 6), 1

    def begin(self):
        self.cluster.stop(self.victim)

    def end(self):
        self.cluster.start(self.victim)


class Pause(Fault):
    """SIGSTOP for longer than a lease: it must serve nothing of the old view when it wakes."""

    hold_s, aim_s = (LEASE_S + 1.5, 10), 5

    def begin(self):
        self.cluster.signal(self.victim, signal.SIGSTOP)

    def end(self):
        self.cluster.signal(self.victim, signal.SIGCONT)


class Nap(Pause):
    """SIGSTOP for less than a lease, or just about it."""

    hold_s, aim_s = (0.5, LEASE_S + 0.5), None


class AllDie(Fault):
    """All servers are killed, and started again in any order."""

    hold_s = (0, 2)

    def begin(self):
        for server in self.draw.sample(SERVERS, len(SERVERS)):
            self.cluster.kill(server)

    def end(self):
        for server in self.draw.sample(SERVERS, len(SERVERS)):
            self.cluster.start(server)

    def affects(self, servers):
        return True


class Reboot(Restart):
    """The same of its machine: what its brick had not synced counts as lost."""

    def end(self):
        self.cluster.boot(self.victim)
        self.cluster.start(self.victim)


class AllReboot(AllDie):
    """All machines at once: what was written and not synced may be lost, and who synced it then is told so, once."""

    allowed = ("EIO",)

    def end(self):
        for server in SERVERS:
            self.cluster.boot(server)
        super().end()

    def over(self):
        # Clients remember what they had not synced before, on all volumes, and say so when it is closed next.
        self.cluster.mount_again()


class CoordinatorDies(AllDie):
    """The coordinator is killed: nobody serves when leases are over."""

    hold_s = (1, 6)

    def begin(self):
        self.cluster.kill(COORDINATOR)

    def end(self):
        self.cluster.start(COORDINATOR)


# --- members of etcd


class Member(Fault):
    """The member of etcd beside a server is killed."""

    hold_s, aim_s = (3, 8), 5

    def begin(self):
        self.victim = self.member()
        self.cluster.kill_member(self.victim)

    def member(self):
        return self.victim

    def end(self):
        self.cluster.start_member(self.victim)

    def affects(self, servers):
        return True


class MemberLeader(Member):
    """etcd's leader is killed."""

    def member(self):
        return self.cluster.leader()


class MemberPause(Member):
    """etcd's leader is stopped for a while (SIGSTOP), and wakes as a leader that was replaced."""

    def begin(self):
        self.victim = self.cluster.leader()
        self.cluster.signal_member(self.victim, signal.SIGSTOP)

    def end(self):
        self.cluster.signal_member(self.victim, signal.SIGCONT)


class Machine(Kill):
    """A server and the member of etcd beside it are killed."""

    def begin(self):
        self.cluster.kill_member(self.victim)
        super().begin()

    def end(self):
        self.cluster.start_member(self.victim)
        super().end()


class Majority(Member):
    """Two members are killed: nobody serves when leases are over, and all goes on when one is back."""

    aim_s = None

    def begin(self):
        self.gone = self.draw.sample(SERVERS, 2)
        for server in self.gone:
            self.cluster.kill_member(server)

    def end(self):
        for server in self.gone:
            self.cluster.start_member(server)


# --- the network


class Cut(Fault):
    """The server reaches nobody, and nobody it."""

    hold_s, aim_s = (6, 12), 5
    one_way = None

    def begin(self):
        wires = self.cluster.wires
        if self.one_way == "in":
            wires.between(self.others, [self.victim], both=False, cut=1)
        else:
            wires.between([self.victim], self.others, both=self.one_way is None, cut=1)

    def end(self):
        self.cluster.wires.mend()


class CutOut(Cut):
    """What the server says is heard by nobody; it hears everything."""

    one_way = "out"


class CutIn(Cut):
    """The server hears nothing; what it says is heard."""

    one_way = "in"


class Split(Cut):
    """A server and a client on one side, everybody else on the other: the client must be shown nothing old."""

    def begin(self):
        there = [self.victim, CLIENTS[1]]
        self.cluster.wires.between(there, [node for node in self.others if node not in there], cut=1)


class Apart(Cut):
    """The server and the coordinator do not hear each other, or one of them the other; everybody else hears both."""

    def begin(self):
        one_way = self.draw.choice([None, True, False])
        self.notes.append({None: "both ways", True: "what the server says", False: "what the coordinator says"}[one_way])
        pair = [self.victim], [COORDINATOR]
        self.cluster.wires.between(*(pair if one_way is not False else pair[::-1]), both=one_way is None, cut=1)


class Pair(Cut):
    """Two servers do not hear each other, or one of them the other; the coordinator and clients hear both."""

    aim_s = None

    def begin(self):
        other = self.draw.choice([server for server in SERVERS if server != self.victim])
        both = self.draw.random() < 0.5
        self.notes.append(f"{self.victim} {'and' if both else 'to'} {other}")
        self.cluster.wires.between([self.victim], [other], both=both, cut=1)


class CutBack(Cut):
    """The network of servers is cut at the victim: it reaches neither another server nor the coordinator, and clients reach it."""

    def begin(self):
        behind = [node for node in self.others if node not in CLIENTS]
        self.cluster.wires.between([self.victim], behind, cut=1)


class CutFront(Cut):
    """The network of clients is cut at the victim: no client reaches it, and all servers do."""

    aim_s = None

    def begin(self):
        self.cluster.wires.between([self.victim], CLIENTS, cut=1)


class Revoke(Fault):
    """A third client mounts and writes; its credential is revoked, and within 5 s nobody answers it any more."""

    hold_s = (8, 12)

    def begin(self):
        cluster, name = self.cluster, f"guest-{self.draw.randrange(1 << 30)}"
        volume, client = VOLUMES[1][0], CLIENTS[0]
        file, directory = f"{cluster.state(client)}/{name}", cluster.store.directory(f"mnt-{name}")
        cluster.create_client(name, file)
        words = ["--json", "--server", f"tcp:{cluster.address(self.victim)}", "--credential", file, "mount", volume, directory]
        self.mounted = client, directory
        cluster.at(client, *words)
        with open(f"{directory}/of-{name}", "w") as written:
            written.write(name)
        cluster.at("s1", "client", "revoke", name)
        end = time.monotonic() + 5
        while self.answers(f"{directory}/of-{name}"):
            assert time.monotonic() < end, f"{name} was revoked 5 s ago, and is answered still"
            time.sleep(0.1)
        os.unlink(f"{cluster.mounted(client, volume)}/of-{name}")

    def answers(self, path):
        try:
            with open(path, "r+") as file:
                os.fsync(file.fileno())
            return True
        except OSError:
            return False

    def end(self):
        client, directory = self.mounted
        self.cluster.try_at(client, "umount", "--lazy", directory)
        os.rmdir(directory)


class Renew(Fault):
    """The root is replaced and all certificates are renewed while everything works; nothing fails."""

    hold_s, aim_s = (9, 12), 1

    def begin(self):
        self.cluster.at("s1", "ca", "rotate", "start", "--root-key", self.cluster.store.path(f"root-{self.draw.randrange(1 << 30)}"))
        self.renew_clients()
        # Mounts look for a newer credential every 5 s.
        time.sleep(6)
        self.cluster.at("s1", "ca", "rotate", "switch")

    def renew_clients(self):
        for client in CLIENTS:
            self.cluster.at("s1", "client", "renew", client, "-o", self.cluster.credential(client))

    def end(self):
        self.renew_clients()

    def affects(self, servers):
        return False

    def over(self):
        time.sleep(6)
        self.cluster.at("s1", "ca", "rotate", "finish")


class Blind(Cut):
    """A client does not reach one of the servers: it waits, nobody else does, and it goes on afterwards."""

    hold_s, aim_s = (2, 6), None

    def begin(self):
        self.cluster.wires.between([self.draw.choice(CLIENTS)], [self.victim], cut=1)


class Loss(Cut):
    """Frames are lost, everywhere or on the ways of one server."""

    aim_s = None

    def begin(self):
        some = self.draw.choice([[self.victim], self.cluster.wires.nodes])
        loss = self.draw.choice([10, 50, 200])
        self.notes.append(f"{loss} of 1000 {'on ways of ' + self.victim if len(some) == 1 else 'everywhere'}")
        self.cluster.wires.between(some, self.cluster.wires.nodes, loss=loss)

    def affects(self, servers):
        return True


class Slow(Loss):
    """Frames come late, on the ways of one server."""

    def begin(self):
        delay_us = self.draw.choice([2_000, 20_000, 100_000])
        self.notes.append(f"{delay_us} us")
        self.cluster.wires.between([self.victim], self.others, delay_us=delay_us)


# --- disks


class Full(Fault):
    """The disk under a brick is full of something else. What grows is refused, nothing is lost."""

    hold_s, allowed = (3, 8), ("ENOSPC",)

    def begin(self):
        self.filler = f"{self.cluster.disk(self.victim)}/filler"
        with open(self.filler, "wb") as file:
            for size in (1 << 20, 1 << 12):
                self.fill(file.fileno(), size)

    def fill(self, fd, size):
        while True:
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, size)
            except OSError:
                return

    def end(self):
        os.unlink(self.filler)


class RotUp(Fault):
    """Bits of data files flip while the server is up; a scrub finds all that no reader found, and others have what mends it. What is
    left of a damaged index or journal costs the brick: it is replaced."""

    part, flips = "data", 12

    def begin(self):
        self.flip(self.part, self.flips)

    def end(self):
        self.scrub_or_replace()

    def flip(self, part, count):
        """Flips bits, and says where."""
        files = files_with_content(f"{self.cluster.brick(self.victim)}/{part}")
        for _ in range(count if files else 0):
            path, places = self.draw.choice(files)
            first, last = self.draw.choice(places)
            at, bit = self.draw.randrange(first, last), self.draw.randrange(8)
            try:
                flip_bit(path, at, bit)
            except (FileNotFoundError, IndexError):
                continue  # the server has removed it, or shortened it, meanwhile
            self.places.append(f"{part}: byte {at} of {os.path.basename(path)}")

    def scrub(self):
        """-> what no other replica could mend."""
        outcome = self.cluster.try_at(self.victim, "--json", "brick", "scrub", "--wait")
        assert outcome.exit in (0, DAMAGED), f"scrub of {self.victim}: exit {outcome.exit}: {outcome.text.strip()}"
        rows = outcome.json()
        if "error" in rows:
            # The index is so broken that the brick has stopped itself.
            return [rows["error"]]
        found = next(row for row in rows if row["directory"] == self.cluster.brick(self.victim))["scrub"]["last"]
        self.notes.append(f"scrub: {found['mended']} mended, {found['damaged']} not")
        return found["damage"]

    def scrub_or_replace(self):
        if damage := self.scrub():
            self.notes.append(f"damaged: {', '.join(damage)}")
            assert self.part != "data", f"nobody mends what is damaged on {self.victim}: {damage}"
            self.cluster.stop(self.victim)
            self.replace()

    def replace(self):
        """As an operator does (docs/operating.md): an empty brick takes its place and learns everything."""
        cluster, brick = self.cluster, self.cluster.brick(self.victim)
        cluster.start(self.victim, "--without", brick)
        new = f"{cluster.disk(self.victim)}/brick{time.time_ns()}"
        old = next(row["brick"] for row in cluster.at(self.victim, "--json", "brick", "list").json() if row["directory"] == brick)
        cluster.at(self.victim, "brick", "replace", brick, new, "--journal", "32")
        cluster.stop(self.victim)
        cluster.start(self.victim, "--without", brick)
        cluster.bricks[self.victim] = new
        wait_until(lambda: cluster.try_at(self.victim, "brick", "remove", old).exit == 0, "the old brick is not needed", limit_s=60)
        shutil.rmtree(brick)
        self.notes.append("replaced")


class RotDown(RotUp):
    """Bits flip while the server is away. A brick that does not open any more is replaced as well."""

    hold_s = (1, 5)

    def begin(self):
        self.cluster.kill(self.victim)
        self.flip(self.part, self.flips)

    def end(self):
        outcome = self.cluster.try_start(self.victim)
        if outcome.exit:
            self.notes.append(f"does not start: {outcome.text.strip()}")
            self.replace()
        elif self.is_broken():
            self.notes.append("the brick is broken")
            self.cluster.stop(self.victim)
            self.replace()
        else:
            self.scrub_or_replace()

    def is_broken(self):
        """Whether the brick takes no writes, or keeps partitions from being served, some seconds after its start."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            if any(row["state"] not in ("online", "starting") for row in self.own_bricks()):
                return True
            waiting = self.cluster.try_at(self.victim, "--json", "partition", "list", "--waiting")
            if waiting.exit == 0 and any("damaged" in (row["waits_for"] or "") for row in waiting.json()):
                self.notes.append("partitions wait because of damage")
                return True
            time.sleep(0.2)
        return False

    def own_bricks(self):
        directory = self.cluster.brick(self.victim)
        return [row for row in self.cluster.status(self.victim)["bricks"] if row["directory"] == directory]


class RotIndex(RotDown):
    part, flips = "index", 3


class RotJournal(RotDown):
    part, flips = "journal", 3


def flip_bit(path, at, bit):
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit]), at)


def files_with_content(top):
    """(path, [(from, to)]) of all files with bytes that are not a hole, and those bytes."""
    found = []
    for directory, _, names in os.walk(top):
        for path in (os.path.join(directory, name) for name in sorted(names)):
            places = content_of(path)
            if places:
                found.append((path, places))
    return sorted(found)


def content_of(path):
    """Parts of 4 KiB that are not all zeros: zeros of a journal's tail tell nothing."""
    try:
        file = open(path, "rb", buffering=0)
    except FileNotFoundError:
        return []  # the server removes files as well
    with file:
        return [(at, at + BLOCK) for at, part in enumerate_parts(file) if any(part)]


def enumerate_parts(file):
    at = 0
    while part := file.read(BLOCK):
        yield at, part
        at += len(part)


KINDS = {
    "kill": Kill, "restart": Restart, "stop": Stop, "pause": Pause, "nap": Nap, "all-die": AllDie,
    "reboot": Reboot, "all-reboot": AllReboot, "coordinator": CoordinatorDies,
    "cut": Cut, "cut-out": CutOut, "cut-in": CutIn, "split": Split, "apart": Apart, "pair": Pair, "blind": Blind, "cut-back": CutBack,
    "cut-front": CutFront, "revoke": Revoke, "renew": Renew, "loss": Loss,
    "slow": Slow, "full": Full, "rot-up": RotUp, "rot-data": RotDown, "rot-index": RotIndex, "rot-journal": RotJournal,
}
# Those of a cluster whose records are in etcd, besides all that need no coordinator of its own process.
ETCD_KINDS = {"member": Member, "member-leader": MemberLeader, "member-pause": MemberPause, "machine": Machine, "majority": Majority}
NOT_WITH_ETCD = ["coordinator", "apart"]
# Of the short form.
SHORT = ["kill", "stop", "pause", "cut", "cut-out", "split", "pair", "loss", "cut-back", "cut-front",
         "revoke", "renew", "full", "rot-up"]


def deck(draw, kinds):
    """Kinds without end, each as often as the others."""
    while True:
        yield from draw.sample(kinds, len(kinds))


def of_kind(kind, cluster, seed):
    fault = {**KINDS, **ETCD_KINDS}[kind](cluster, random.Random(seed))
    fault.kind = kind
    return fault
