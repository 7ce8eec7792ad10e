"""PostgreSQL with its data on a mount, killed together with the server.

HEKATE_ROUNDS=N: how often [2]; HEKATE_SEED: when, and what dies first [random, and printed on failure].
"""

import glob
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from harness import NOBODY, PATIENCE, Skip, equal, is_gone, wait_until

ROUNDS = int(os.environ.get("HEKATE_ROUNDS", "2"))
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))
LIMIT_S = 120 + 60 * ROUNDS
# pgbench -i makes 100,000 accounts, some 15 MB, for each.
SCALE = 1
BENCH_CLIENTS = 4
WRITERS = 3
SETTINGS = {
    "listen_addresses": "''", "shared_buffers": "16MB", "max_connections": "30", "max_wal_size": "64MB", "min_wal_size": "32MB",
    # Often enough that a kill meets a checkpoint now and then.
    "checkpoint_timeout": "30s", "autovacuum_naptime": "5s", "jit": "off", "logging_collector": "off",
}


def programs(store):
    """The directory of the newest PostgreSQL's programs: Debian's, or what scripts/setup.sh has unpacked."""
    pattern = "usr/lib/postgresql/*/bin/postgres"
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(__file__), "../../target"))
    unpacked = os.path.abspath(f"{target}/postgres")
    for root in ("", unpacked):
        if found := sorted(glob.glob(f"{root}/{pattern}"), key=lambda path: int(path.split("/")[-3])):
            break
    else:
        raise Skip("needs PostgreSQL: scripts/setup.sh test")
    if root == "":
        return os.path.dirname(found[-1])
    # Where the user nobody finds it; its parts find each other by their places.
    shutil.copytree(unpacked, store.path("postgres"), symlinks=True)
    return os.path.dirname(found[-1]).replace(unpacked, store.path("postgres"))


class Cluster:
    """A database cluster of the user nobody, on a mount."""

    def __init__(self, store, mnt):
        self.bin = programs(store)
        self.data = f"{mnt}/data"
        self.log = store.path("postgres.log")
        self.socket = store.directory("socket")
        self.process = None
        os.chown(self.socket, NOBODY, NOBODY)

    def command(self, program, *words):
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return [*as_nobody, f"{self.bin}/{program}", *words]

    def environment(self):
        return {**os.environ, "PGHOST": self.socket, "PGUSER": "tester", "PGDATABASE": "postgres", "PGCONNECT_TIMEOUT": "30"}

    def start_program(self, program, *words, **named):
        named = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True, **named}
        return subprocess.Popen(self.command(program, *words), env=self.environment(), cwd="/", **named)

    def run(self, program, *words):
        """A program that must succeed -> what it prints."""
        told = self.start_program(program, *words)
        out = told.communicate(timeout=300 * PATIENCE)[0]
        equal(told.returncode, 0, f"{program} {' '.join(words)}: {out[-600:]}: exit status")
        return out

    def make(self):
        os.mkdir(self.data, 0o700)
        os.chown(self.data, NOBODY, NOBODY)
        self.run("initdb", "-k", "-A", "trust", "-U", "tester", "-E", "UTF8", "--locale=C", self.data)
        with open(f"{self.data}/postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
            file.write(f"unix_socket_directories = '{self.socket}'\n")

    def start(self):
        """Recovers what there is; back once it answers."""
        log = open(self.log, "a")
        self.process = self.start_program("postgres", "-D", self.data, stdout=log)
        log.close()

        def answers():
            equal(self.process.poll(), None, f"postgres ended by itself: {tail(self.log)}: exit status")
            return subprocess.run(self.command("pg_isready", "-q"), env=self.environment(), cwd="/").returncode == 0

        wait_until(answers, "PostgreSQL answers", limit_s=120)

    def stop(self):
        """In order: with a last checkpoint."""
        self.process.send_signal(signal.SIGINT)
        equal(self.process.wait(timeout=120 * PATIENCE), 0, f"how postgres stopped: {tail(self.log)}")

    def processes(self):
        """postgres and its children."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [self.process.pid, *map(int, file.read().split())]

    def ask(self, query):
        """-> the rows, as text."""
        return [line.split("|") for line in self.run("psql", "-XAtqc", query).splitlines()]


def tail(path):
    with open(path, errors="replace") as file:
        return file.read()[-1500:]


class Writers:
    """Clients of which each transaction that was acknowledged is recorded here."""

    def __init__(self, cluster):
        self.cluster, self.committed, self.asked = cluster, [0] * WRITERS, [0] * WRITERS
        self.told = [""] * WRITERS

    def begin(self):
        self.before = list(self.committed)
        self.threads = [threading.Thread(target=self.work, args=[worker], daemon=True) for worker in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def are_at_work(self, more):
        """Whether each has committed so many more since it began; none may have ended."""
        equal([thread.is_alive() for thread in self.threads], [True] * WRITERS, f"writers that work; they were told {self.told}")
        return all(now >= then + more for now, then in zip(self.committed, self.before))

    def work(self, worker):
        """Until postgres is gone. What was not acknowledged before a kill may be there or not."""
        found = self.cluster.ask(f"SELECT coalesce(max(number), 0) FROM acknowledged WHERE worker = {worker}")
        number = int(found[0][0])
        psql = self.cluster.start_program("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", stdin=subprocess.PIPE, bufsize=1)
        try:
            while True:
                number += 1
                self.asked[worker] = number
                # From a purse of the lower half to its counterpart: always in this order, for else they would wait for each other.
                amount, one = number * 31 % 1000 - 500, number * 7919 % 50
                psql.stdin.write(
                    f"BEGIN; INSERT INTO acknowledged VALUES ({worker}, {number}, repeat('{number} ', {number % 300 + 1}));"
                    f"UPDATE purses SET amount = amount + {amount} WHERE id = {one};"
                    f"UPDATE purses SET amount = amount - {amount} WHERE id = {99 - one}; COMMIT;\n\\echo done {number}\n"
                )
                told = psql.stdout.readline()
                if told != f"done {number}\n":
                    self.told[worker] = told
                    return
                self.committed[worker] = number
        except BrokenPipeError:
            pass
        finally:
            psql.kill()
            psql.communicate()

    def end(self):
        for thread in self.threads:
            thread.join(timeout=60 * PATIENCE)
            equal(thread.is_alive(), False, "a writer goes on after postgres was killed")


def prepare(cluster):
    cluster.make()
    cluster.start()
    cluster.run("pgbench", "-i", "-q", "-s", str(SCALE), "--foreign-keys")
    cluster.run("psql", "-Xqc", "CREATE EXTENSION amcheck")
    cluster.run(
        "psql", "-Xqc",
        "CREATE TABLE acknowledged (worker int, number int, body text, PRIMARY KEY (worker, number));"
        "CREATE INDEX ON acknowledged (md5(body));"
        "CREATE TABLE purses (id int PRIMARY KEY, amount bigint); INSERT INTO purses SELECT generate_series(0, 99), 0",
    )


def recoveries(cluster):
    with open(cluster.log, errors="replace") as file:
        return file.read().count("automatic recovery in progress")


def kill_together(store, cluster, with_mount, chance):
    """At one moment, in any order; back when all are gone."""
    victims = [store.server_pid, *cluster.processes()] + ([store.mount_pids["mnt"]] if with_mount else [])
    chance.shuffle(victims)
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            # A backend whose client has gone, or an autovacuum worker that was done.
            pass
    store.server_pid = None
    if with_mount:
        del store.mount_pids["mnt"]
        store.cli("umount", "--lazy", store.path("mnt"))
    # Postgres waits for the server in its mount until that is back; a request that is on its way is done or not.
    store.serve()
    wait_until(lambda: all(map(is_gone, victims)), "all that was killed is gone")
    cluster.process.wait()
    if with_mount:
        store.mount()


def check(cluster, writers):
    """Everything that was acknowledged is there, and the whole is consistent."""
    for worker in range(WRITERS):
        found = cluster.ask(
            "SELECT count(*), coalesce(max(number), 0), count(*) FILTER (WHERE body <> repeat(number || ' ', number % 300 + 1))"
            f"FROM acknowledged WHERE worker = {worker}"
        )[0]
        rows, last, wrong = map(int, found)
        label = f"writer {worker}, {writers.committed[worker]} acknowledged and {writers.asked[worker]} asked for"
        equal((rows, wrong), (last, 0), f"{label}: rows and wrong ones, with {last} the last")
        assert writers.committed[worker] <= last <= writers.asked[worker], f"{label}: {last} are there"
    equal(cluster.ask("SELECT sum(amount) FROM purses"), [["0"]], "money in all purses")
    sums = [f"(SELECT coalesce(sum({column}), 0) FROM {table})" for column, table in [
        ("abalance", "pgbench_accounts"), ("tbalance", "pgbench_tellers"), ("bbalance", "pgbench_branches"), ("delta", "pgbench_history"),
    ]]
    found = cluster.ask(f"SELECT {', '.join(sums)}")[0]
    equal(len(set(found)), 1, f"kinds of sums of accounts, tellers, branches, history ({found})")
    cluster.run("pg_amcheck", "--all", "--heapallindexed", "--parent-check", "--rootdescend")


@pytest.mark.root
@pytest.mark.limit(LIMIT_S)
def test_postgres_survives_kills_together_with_the_server(store):
    if shutil.which("setpriv") is None:
        raise Skip("needs setpriv")
    chance = random.Random(SEED)
    cluster = Cluster(store, store.up())
    try:
        prepare(cluster)
        writers = Writers(cluster)
        for turn in range(ROUNDS):
            done = lambda: int(cluster.ask("SELECT count(*) FROM pgbench_history")[0][0])
            history = done()
            bench = cluster.start_program("pgbench", "-n", "-c", str(BENCH_CLIENTS), "-T", str(LIMIT_S))
            writers.begin()
            wait_until(lambda: writers.are_at_work(5) and done() > history, "writers and pgbench at work", limit_s=60)
            time.sleep(chance.uniform(0.5, 3))
            assert writers.are_at_work(5), "writers still at work"
            equal(bench.poll(), None, "pgbench's exit status before the kill")
            kill_together(store, cluster, with_mount=turn % 2 == 1, chance=chance)
            writers.end()
            bench.communicate(timeout=60 * PATIENCE)
            cluster.start()
            equal(recoveries(cluster), turn + 1, "recoveries in postgres' log")
            check(cluster, writers)
            assert done() > history, "what pgbench had done is gone"
            # Checksums of all pages can only be looked at while nobody changes them.
            cluster.stop()
            cluster.run("pg_checksums", "--check", "-D", cluster.data)
            cluster.start()
        cluster.stop()
    except AssertionError as error:
        raise AssertionError(f"HEKATE_SEED={SEED}, round {turn if 'turn' in locals() else 'none'}: {error}") from error
