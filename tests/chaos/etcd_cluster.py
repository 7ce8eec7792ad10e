"""The same cluster with its records in etcd: a member beside each server, in the server's network."""

import os
import signal
import subprocess

import harness
from cluster import SERVERS, Cluster
from harness import Outcome, kill, wait_until


class EtcdCluster(Cluster):
    def make_cluster(self):
        for number, server in enumerate(SERVERS):
            words = ["init"] if number == 0 else ["join", self.at("s1", "token", "create").out.strip()]
            self.at(server, *words, "--brick", self.brick(server), "--journal", "32")
            self.start(server)
        for server in SERVERS:
            self.start_member(server)
        self.at("s2", "coordinator", "move", "--to", "etcd")
        in_etcd = lambda server: self.at(server, "--json", "coordinator", "show").json()["place"].startswith("etcd:")
        wait_until(lambda: all(in_etcd(server) for server in SERVERS), "all servers use etcd")

    def start_member(self, server):
        words = ["coordinator", "etcd", "--detach", "--address", self.wires.backs[server]]
        self.at(server, *words)

    def member_pid(self, server):
        with open(f"{self.state(server)}/etcd/etcd.pid") as file:
            return int(file.read())

    def kill_member(self, server):
        kill(self.member_pid(server))

    def signal_member(self, server, number):
        os.kill(self.member_pid(server), number)

    def leader(self):
        """The server beside which etcd's leader runs."""
        rows = self.at("s1", "--json", "coordinator", "show").json()["members"]
        return next("s" + row["name"].removeprefix("server-") for row in rows if row["state"] == "leader")

    def compare(self):
        for server in SERVERS:
            self.signal(server, signal.SIGSTOP)
        for server in SERVERS:
            self.kill(server)
        # In the network of the first server, where etcd is, and beside the disks of all.
        words = [*self.wires.entering("s1"), harness.HEKATE, "--state", self.state("s1"), "--json", "debug", "compare"]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, cwd="/")
        return Outcome(["debug", "compare"], done).json()

    def clean_up(self):
        for server in SERVERS:
            try:
                self.kill_member(server)
            except (OSError, ValueError):
                pass  # it was not made, or has ended
        super().clean_up()
