"""The network of a run: a namespace for each node, and between all of them a hub (hub.c) whose ways can be cut, lossy or slow."""

import itertools
import os
import subprocess

import namespaces

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = "tap0"
PREFIX = "hekatechaos"
AND_CLEAN_UP = 'trap "" TERM INT; "$0" "$@"; for name; do ip netns del "$name"; done'


class Wires:
    """`nodes`: their names. Each is reached at `addresses[node]` and `backs[node]`, and runs what `entering(node)` is put before."""

    def __init__(self, directory, nodes):
        self.directory, self.nodes = directory, nodes
        self.addresses = {node: f"127.78.0.{number}" for number, node in enumerate(nodes, 1)}
        self.backs = {node: f"127.79.0.{number}" for number, node in enumerate(nodes, 1)}
        self.ways = {pair: (0, 0, 0) for pair in itertools.permutations(nodes, 2)}
        self.hub = None

    def make(self):
        remove_those_of_the_dead()
        program = f"{self.directory}/hub"
        namespaces.run("cc", "-O2", "-pthread", "-o", program, f"{HERE}/hub.c")
        for node in self.nodes:
            namespaces.make(self.name(node), self.addresses[node])
            namespaces.inside(self.name(node), "ip", "addr", "add", f"{self.backs[node]}/32", "dev", "lo")
        # Also if this process is killed the hub ends, with its input, and the namespaces go.
        words = ["sh", "-c", AND_CLEAN_UP, program, *map(self.name, self.nodes)]
        self.hub = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.hear()
        for node in self.nodes:
            namespaces.raise_device(self.name(node), DEVICE)
            for number, peer in enumerate(self.nodes, 1):
                if peer != node:
                    mac = f"02:00:00:00:00:{number:02x}"
                    for own in (self.addresses, self.backs):
                        namespaces.lead(self.name(node), own[node], DEVICE, own[peer], mac)

    def name(self, node):
        return f"{PREFIX}-{os.getpid()}-{node}"

    def entering(self, node):
        return namespaces.entering(self.name(node))

    def hear(self):
        told = self.hub.stdout.readline().strip()
        if told != "ok":
            raise RuntimeError(f"the hub said {told!r}, not ok")

    def way(self, one, other, cut=0, loss=0, delay_us=0):
        """Changes what becomes of frames from one to the other: cut, so many of 1000 lost, each held so long."""
        if self.ways[one, other] == (cut, loss, delay_us):
            return
        self.ways[one, other] = (cut, loss, delay_us)
        print(self.nodes.index(one) + 1, self.nodes.index(other) + 1, cut, loss, delay_us, file=self.hub.stdin, flush=True)
        self.hear()

    def between(self, some, others, both=True, **named):
        """Changes all ways from some to others; back as well if `both`."""
        for one, other in itertools.product(some, others):
            if one != other:
                self.way(one, other, **named)
                if both:
                    self.way(other, one, **named)

    def mend(self):
        for one, other in self.ways:
            self.way(one, other)

    def end(self):
        if self.hub:
            self.hub.stdin.close()
            self.hub.wait(timeout=30)
        for node in self.nodes:
            namespaces.remove(self.name(node))


def remove_those_of_the_dead():
    """Namespaces of runs that were killed."""
    directory = "/run/netns"
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        words = name.split("-")
        if words[0] == PREFIX and not os.path.exists(f"/proc/{words[1]}"):
            namespaces.remove(name)
