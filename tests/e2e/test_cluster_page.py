"""The commands of docs/cluster.md, as they are written there: machines are namespaces with files of their own."""

import json
import os
import re
import subprocess

import pytest

from harness import HEKATE, equal, wait_until

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/cluster.md")
# What a machine has for itself.
OWN = ["/var/lib/hekate", "/run/hekate", "/srv", "/mnt"]


def run(*words, check=True):
    subprocess.run(words, capture_output=True, check=check, timeout=60)


def blocks():
    """-> (address of the machine, its commands), in the order of the page."""
    with open(PAGE) as file:
        text = file.read()
    marked = re.search(r"<!-- begin: three machines -->(.*?)<!-- end: three machines -->", text, re.S)[1]
    found = re.findall(r"```\n# machine (\S+)\n(.*?)```", marked, re.S)
    assert len(found) == marked.count("```\n# machine"), "a block of another form"
    return found


class Machines:
    def __init__(self, store):
        self.store, self.prefix, self.holders = store, f"hkpage{os.getpid()}", {}

    def __enter__(self):
        run("ip", "netns", "add", f"{self.prefix}-switch")
        self.in_network("switch", "ip", "link", "add", "wire", "type", "bridge")
        self.in_network("switch", "ip", "link", "set", "wire", "up")
        os.makedirs(self.store.directory("bin"), exist_ok=True)
        os.symlink(HEKATE, f"{self.store.path('bin')}/hekate")
        # ssh(1) is a way to run a command on another machine: this one is as good for namespaces.
        with open(self.store.path("bin/ssh"), "w") as file:
            file.write(f'#!/bin/sh\nexec nsenter -t "$(cat {self.store.base}/pid-$1)" -m -n {HEKATE} "$3" "$4"\n')
        os.chmod(self.store.path("bin/ssh"), 0o755)
        return self

    def in_network(self, node, *words):
        run("nsenter", f"--net=/run/netns/{self.prefix}-{node}", *words)

    def make(self, address):
        node = address.rsplit(".", 1)[1]
        run("ip", "netns", "add", f"{self.prefix}-{node}")
        self.in_network("switch", "ip", "link", "add", f"to{node}", "type", "veth", "peer", "name", "eth0", "netns", f"{self.prefix}-{node}")
        self.in_network("switch", "ip", "link", "set", f"to{node}", "master", "wire", "up")
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            self.in_network(node, "ip", *words)
        hide = "; ".join(f"mkdir -p {path} && mount -t tmpfs -o size=1g tmpfs {path}" for path in OWN)
        words = ["nsenter", f"--net=/run/netns/{self.prefix}-{node}", "unshare", "-m", "--propagation", "private"]
        words += ["setpriv", "--pdeathsig", "KILL", "sh", "-c", f"set -e; {hide}; mkdir /mnt/photos; echo; exec sleep infinity"]
        self.holders[address] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        with open(self.store.path(f"pid-{address}"), "w") as file:
            file.write(str(self.holders[address].pid))
        assert self.holders[address].stdout.readline() == b"\n", f"{address} is no machine"

    def at(self, address, script):
        """Runs a script in a directory that all machines share: what the page says to carry is there."""
        if address not in self.holders:
            self.make(address)
        pid = self.holders[address].pid
        words = ["nsenter", "-t", str(pid), "-m", "-n", f"--wd={self.store.base}", "env", f"PATH={self.store.path('bin')}:{os.environ['PATH']}"]
        words += ["bash", "-euc", script]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        assert done.returncode == 0, f"at {address}: {script}: {done.stdout} {done.stderr}"
        return done.stdout

    def __exit__(self, *_):
        for address, holder in self.holders.items():
            words = ["nsenter", "-t", str(holder.pid), "-m", "-n", self.store.path("bin/hekate")]
            for last in (["umount", "/mnt/photos"], ["stop"]):
                subprocess.run([*words, *last], capture_output=True, timeout=60)
        for address, holder in self.holders.items():
            holder.kill()
            holder.wait()
            holder.stdout.close()
            run("ip", "netns", "del", f"{self.prefix}-{address.rsplit('.', 1)[1]}", check=False)
        run("ip", "netns", "del", f"{self.prefix}-switch", check=False)


@pytest.mark.root
def test_three_machines_and_a_client_as_the_page_says(store):
    with Machines(store) as machines:
        for address, script in blocks():
            machines.at(address, script)
        first, client = blocks()[0][0], blocks()[-1][0]
        machines.at(client, "echo written > /mnt/photos/file; sync /mnt/photos/file")
        equal(machines.at(first, "cat /mnt/photos/file").strip(), "written", "content")
        # Names and contents of all servers, by the mount of a server's machine too.
        for address in (first, client):
            machines.at(address, f"mkdir /mnt/photos/{address}; cd /mnt/photos/{address}; for n in $(seq 32); do echo $n > $n; done; cat * | wc -l")
        status = lambda: json.loads(machines.at(first, "hekate --json status"))
        wait_until(lambda: status()["health"] == "good", "a good state")
        equal([row["state"] for row in status()["servers"]], ["online"] * 3, "servers")
