"""A cluster of three servers, a coordinator of its own process and two clients, each in a network namespace of its own."""

import glob
import os
import shutil
import signal
import subprocess
import time

import harness
from harness import Outcome, kill, wait_until
from wires import Wires

SERVERS = ["s1", "s2", "s3"]
CLIENTS = ["c1", "c2"]
COORDINATOR = "k"
PORT = 7100
# name, mode, copies
VOLUMES = [("leader2", "leader", 2), ("hsr2", "hsr", 2), ("leader3", "leader", 3), ("hsr3", "hsr", 3)]
# Each server's brick lies on a small file system of its own.
DISK_BYTES = 640 << 20
JOURNAL_MIB = 32
# Of what a command said, in a message.
TEXT_MAX = 3000


class Cluster:
    """`store`: where its files lie, and what cleans up after it."""

    def __init__(self, store):
        self.store = store
        self.pids, self.bricks, self.holders = {}, {}, {}
        self.wires = Wires(store.directory("net"), [COORDINATOR, *SERVERS, *CLIENTS])

    def state(self, node):
        return self.store.path("c" if node == COORDINATOR else f"{node}/state")

    def disk(self, server):
        return self.store.path(f"{server}-disk")

    def brick(self, server):
        """Where it is now."""
        return self.bricks.get(server, f"{self.disk(server)}/brick")

    def address(self, node):
        return f"{self.wires.addresses[node]}:{PORT}"

    def listens(self, node):
        """Servers talk among themselves on `back`, and with clients on `front`."""
        if node == COORDINATOR:
            return ["--listen", self.address(node)]
        return ["--listen", f"front={self.address(node)}", "--listen", f"back={self.wires.backs[node]}:{PORT}"]

    def try_at(self, node, *arguments, limit_s=120):
        """Runs a command in the node's network, with its state; it may fail."""
        words = [*self.wires.entering(node), *self.apart(node), harness.HEKATE, "--state", self.state(node), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s, cwd="/")
        return Outcome(arguments, done)

    def apart(self, node):
        """What is put before a server's command so that it does not see the others' unix sockets: they would be a way around
        the network. It is one mount namespace for all lives of a server: in a new one its disk looks as if mounted anew."""
        return ["nsenter", f"--mount=/proc/{self.holders[node].pid}/ns/mnt", "--wd=/"] if node in SERVERS else []

    def boot(self, node):
        """A server's machine starts: what its disk has not synced counts as lost."""
        self.let_go(node)
        others = [self.store.path(server) for server in SERVERS if server != node]
        hide = "; ".join(f"mount -t tmpfs none {directory}" for directory in others)
        # What is unmounted outside would go on being mounted here.
        hide += f"; for directory in {self.store.path('mnt')}-*; do umount -l $directory 2>/dev/null || :; done"
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "--propagation", "slave"]
        words += ["sh", "-c", f"set -e; {hide}; echo; exec sleep infinity"]
        self.holders[node] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.holders[node].stdout.readline() == b"\n", f"{node} has no mount namespace"

    def let_go(self, node):
        if holder := self.holders.pop(node, None):
            holder.kill()
            holder.wait()
            holder.stdout.close()

    def at(self, node, *arguments, **named):
        outcome = self.try_at(node, *arguments, **named)
        told = outcome.text.strip()[-TEXT_MAX:]
        assert outcome.exit == 0, f"at {node}: hekate {' '.join(arguments)}: exit {outcome.exit}: {told}"
        return outcome

    # --- making it

    def make(self):
        self.wires.make()
        for server in SERVERS:
            self.store.directory(server)
            self.make_disk(server)
        for server in SERVERS:
            self.boot(server)
        self.make_cluster()
        self.make_volumes()

    def make_cluster(self):
        self.start(COORDINATOR)
        for number, server in enumerate(SERVERS):
            brick = ["--brick", self.brick(server), "--journal", str(JOURNAL_MIB)]
            token = self.at(COORDINATOR, "token", "create").out.strip()
            self.at(server, *(["init", "--coordinator"] if number == 0 else ["join"]), token, *brick)
            self.start(server)

    def make_volumes(self):
        for volume, mode, copies in VOLUMES:
            self.at("s1", "volume", "create", volume, "--copies", str(copies), "--domain", "server", "--mode", mode)
        wait_until(lambda: self.is_whole(), "all partitions serve", limit_s=60)
        for client in CLIENTS:
            self.make_client(client)
            for volume, *_ in VOLUMES:
                self.mount(client, volume)

    def make_client(self, client):
        os.makedirs(self.state(client))
        self.create_client(client, self.credential(client))

    def create_client(self, name, file):
        volumes = [word for volume, *_ in VOLUMES for word in ("--volume", volume)]
        self.at("s1", "client", "create", name, *volumes, "-o", file)

    def credential(self, client):
        return f"{self.state(client)}/credential"

    def make_disk(self, server):
        image = f"{self.disk(server)}.ext4"
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        os.makedirs(self.disk(server))
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, self.disk(server)], check=True)

    def mount(self, client, volume):
        # Each asks another server first.
        first = SERVERS[CLIENTS.index(client) % len(SERVERS)]
        directory = self.mounted(client, volume)
        os.makedirs(directory, exist_ok=True)
        words = ["--json", "--server", f"tcp:{self.address(first)}", "--credential", self.credential(client), "mount", volume, directory]
        self.pids[client, volume] = self.at(client, *words).json()["pid"]

    def mount_again(self):
        for client in CLIENTS:
            for volume, *_ in VOLUMES:
                self.at(client, "umount", self.mounted(client, volume))
                self.mount(client, volume)

    def mounted(self, client, volume):
        return self.store.path(f"mnt-{client}-{volume}")

    # --- processes

    def try_start(self, node, *options):
        """Starts a server, or the coordinator, as it was started first."""
        command = "coordinator" if node == COORDINATOR else "serve"
        outcome = self.try_at(node, "--json", command, "--detach", *self.listens(node), *options)
        if outcome.exit == 0:
            self.pids[node] = outcome.json()["pid"]
        return outcome

    def start(self, node, *options):
        outcome = self.try_start(node, *options)
        assert outcome.exit == 0, f"{node} does not start: exit {outcome.exit}: {outcome.text.strip()}"

    def kill(self, node):
        kill(self.pids.pop(node))

    def stop(self, node):
        pid = self.pids.pop(node)
        self.at(node, "stop")
        wait_until(lambda: harness.is_gone(pid), f"{node} ended", limit_s=30)

    def signal(self, node, number):
        os.kill(self.pids[node], number)

    # --- looking

    def status(self, node="s1"):
        return self.at(node, "--json", "status").json()

    def views(self, volume, node="s1"):
        return self.at(node, "--json", "volume", "show", volume).json()["views"]

    def lacking(self):
        """What keeps the cluster from being whole, in words; empty if nothing does."""
        outcome = self.try_at("s1", "--json", "status", limit_s=20)
        if outcome.exit:
            return [f"status: {outcome.text.strip()}"]
        status = outcome.json()
        found = [] if status["health"] == "good" else [f"health is {status['health']}"]
        for volume, _, copies in VOLUMES:
            shown = self.try_at("s1", "--json", "volume", "show", volume, limit_s=20)
            if shown.exit:
                return [f"volume show {volume}: {shown.text.strip()}"]
            short = [partition for partition, view in enumerate(shown.json()["views"]) if len(view["members"]) < copies]
            if short:
                found.append(f"{volume}: partitions {short} have fewer than {copies} members")
        return found

    def is_whole(self):
        return not self.lacking()

    def tell_all(self, directory):
        """Writes down what all say of themselves, and where their threads are if gdb is there."""
        names = {pid: node if isinstance(node, str) else "-".join(node) for node, pid in self.pids.items()}
        for pid, name in names.items():
            with open(f"{directory}/{name}.threads", "w") as file:
                for task in sorted(glob.glob(f"/proc/{pid}/task/*")):
                    words = [read_text(f"{task}/{what}").strip() for what in ("comm", "wchan", "syscall")]
                    file.write(f"{os.path.basename(task)} {' '.join(words)}\n")
        for node in SERVERS:
            with open(f"{directory}/{node}.txt", "w") as file:
                for words in (["status"], ["partition", "list"], ["heal", "list"], ["debug", "slow"]):
                    file.write(f"--- {' '.join(words)}\n{self.told(node, words)}\n")
        # Mounts first: to be looked at wakes who waits.
        for pid, name in reversed(names.items()):
            with open(f"{directory}/{name}.stacks", "w") as file:
                words = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 40"]
                if shutil.which("gdb"):
                    subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60)

    def told(self, node, words):
        try:
            return self.try_at(node, *words, limit_s=10).text
        except subprocess.TimeoutExpired:
            return "no answer"

    # --- the end

    def end(self):
        """-> whether what rests on the bricks is equal."""
        for client in CLIENTS:
            for volume, *_ in VOLUMES:
                self.at(client, "umount", self.mounted(client, volume))
        # Servers learn within a second that a session has ended, and each forgets what it kept for its retries.
        time.sleep(2.5)
        wait_until(self.is_whole, "the cluster is whole in the end", limit_s=60)
        return self.compare()

    def compare(self):
        """What rests on the bricks, once all servers are killed at once: those that are stopped one after the other leave
        views, in which others go on."""
        for server in SERVERS:
            self.signal(server, signal.SIGSTOP)
        for server in SERVERS:
            self.kill(server)
        self.stop(COORDINATOR)
        return self.try_at(COORDINATOR, "--json", "debug", "compare").json()

    def clean_up(self):
        for pid in self.pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for node in list(self.holders):
            self.let_go(node)
        harness.clean_up(self.store.base)
        self.wires.end()


def read_text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return str(error)
