"""Programs that people use, at work on a mount: git and SQLite.

HEKATE_GIT_COMMITS=N: how many commits of which git has the documents and tests [40], or 0: all commits of all files;
HEKATE_ROUNDS=N: how often each SQLite test kills [2]; HEKATE_SEED: what and when [random, and printed on failure].
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import sqlite_clients
from harness import PATIENCE, Skip, equal, kill, read, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = f"{HERE}/sqlite_clients.py"
# A git repository to work with; this one unless told.
SOURCE = os.environ.get("HEKATE_GIT_SOURCE", os.path.dirname(os.path.dirname(HERE)))
COMMITS = int(os.environ.get("HEKATE_GIT_COMMITS", "40"))
# What few commits are of.
SOME = ["Makefile", "docs", "python", "scripts", "tests"]
ROUNDS = int(os.environ.get("HEKATE_ROUNDS", "2"))
# The database grows with the rounds, readers read all of it, and in rollback mode each commit waits for the readers.
GO_ON_S = 60 + 5 * ROUNDS
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))
LIMIT_S = 120 + 20 * ROUNDS
# Of which a killed one is replaced at once.
WRITERS = 3


# --- git ---

GIT_SETTINGS = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "gc.auto", "GIT_CONFIG_VALUE_0": "0", "GIT_CONFIG_KEY_1": "safe.directory", "GIT_CONFIG_VALUE_1": "*",
    "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@localhost", "GIT_COMMITTER_DATE": "1700000000 +0000",
}


def git(directory, *words):
    """-> what it prints."""
    environment = {**os.environ, **GIT_SETTINGS}
    done = subprocess.run(["git", "-C", directory, *words], capture_output=True, text=True, env=environment)
    equal(done.returncode, 0, f"git {' '.join(words)} in {directory}: {done.stdout[-300:]}{done.stderr[-300:]}: exit status")
    return done.stdout


def copy_source(store):
    """-> a copy of its own, for somebody may be working in that repository."""
    source = store.path("source")
    commits = git(SOURCE, "rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD").split()
    if not COMMITS or len(commits) <= COMMITS:
        git(store.base, "clone", "--quiet", "--bare", "--no-local", SOURCE, source)
        return source
    git(store.base, "init", "--quiet", "--bare", "--initial-branch=main", source)
    words = ["git", "-C", SOURCE, "fast-export", f"{commits[-1]}..HEAD", "--", *SOME]
    with subprocess.Popen(words, env={**os.environ, **GIT_SETTINGS}, stdout=subprocess.PIPE) as export:
        subprocess.run(["git", "-C", source, "fast-import", "--quiet"], stdin=export.stdout, check=True)
    equal(export.returncode, 0, "exit status of git fast-export")
    # The branch has the name that it has there.
    git(source, "symbolic-ref", "HEAD", git(source, "for-each-ref", "--format=%(refname)").split()[0])
    return source


def work_with_git(base, source):
    """The same on any file system -> what git says of it in the end, and the work tree."""
    clone, second = f"{base}/clone", f"{base}/second"
    git(base, "clone", "--quiet", "--no-local", source, clone)
    found = [git(clone, "fsck", "--full", "--strict", "--no-dangling")]
    commits = git(clone, "rev-list", "HEAD").split()
    # Back in history and forth again: files change, go and come.
    git(clone, "checkout", "--quiet", commits[len(commits) // 2])
    found += [git(clone, "status", "--porcelain"), git(clone, "ls-files", "--stage")]
    git(clone, "checkout", "--quiet", "-b", "change", commits[0])
    for number in range(3):
        with open(f"{clone}/changes.txt", "a") as file:
            file.write(f"line {number}\n")
        git(clone, "mv", "Makefile", "Makefile.moved") if number == 1 else None
        git(clone, "add", "--all", "--force")
        git(clone, "commit", "--quiet", "-m", f"change {number}")
    git(clone, "branch", "other", commits[-1])
    # This one has hard links to the objects of the first.
    git(base, "clone", "--quiet", "--local", clone, second)
    git(clone, "gc", "--quiet", "--aggressive" if len(commits) < 100 else "--prune=now")
    found.append(tree_of(clone))
    for repository in (clone, second):
        found += [git(repository, "fsck", "--full", "--strict", "--no-dangling"), git(repository, "status", "--porcelain")]
        found.append(git(repository, "rev-list", "--objects", "--all"))
    loose, packs = [dict(line.split(": ") for line in git(clone, "count-objects", "-v").splitlines())[key] for key in ("count", "packs")]
    return [*found, loose, packs, git(clone, "for-each-ref")]


def tree_of(top):
    """Each path below, but git's own, with mode and content."""
    found = {}
    for directory, names, files in os.walk(top):
        if ".git" in names:
            names.remove(".git")
        for name in names + files:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            content = os.readlink(path) if os.path.islink(path) else read(path) if os.path.isfile(path) else None
            found[os.path.relpath(path, top)] = (mode, content)
    return found


@pytest.mark.limit(240)
def test_git_does_what_it_does_on_a_local_disk(store):
    if subprocess.run(["git", "-C", SOURCE, "-c", "safe.directory=*", "rev-parse", "HEAD"], capture_output=True).returncode != 0:
        raise Skip(f"{SOURCE} is no git repository; HEKATE_GIT_SOURCE names one")
    mnt = store.up()
    source = copy_source(store)
    local = work_with_git(store.directory("local"), source)
    mounted = work_with_git(mnt, source)
    for number, (ours, theirs) in enumerate(zip(mounted, local, strict=True)):
        equal(ours, theirs, f"result {number} on the mount, against the local disk")
    store.kill_server()
    store.serve()
    store.remount()
    for repository in ("clone", "second"):
        # This looks at inode numbers, sizes and times alone, which git wrote down before.
        equal(git(f"{mnt}/{repository}", "diff-files"), "", "files that look changed after a remount")
        git(f"{mnt}/{repository}", "fsck", "--full", "--strict", "--no-dangling")
    equal(tree_of(f"{mnt}/second"), tree_of(f"{store.base}/local/second"), "the second work tree after a remount")


# --- SQLite ---


class Clients:
    """Writers and readers of a database, over any of the mounts."""

    def __init__(self, store, databases, readers=2):
        self.store, self.databases = store, databases
        self.until = store.path("until")
        self.records = [f"{store.directory('record')}/{worker}" for worker in range(WRITERS)]
        self.writers = [self.writer(worker) for worker in range(WRITERS)]
        self.readers = [self.start("read", databases[number % len(databases)]) for number in range(readers)]

    def start(self, what, database, *words):
        full = [sys.executable, "-B", CLIENTS, what, database, *words, "--until", self.until]
        return subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def writer(self, worker):
        return self.start("write", self.databases[worker % len(self.databases)], self.records[worker], str(worker))

    def committed(self):
        return [sum(1 for _ in open(record)) if os.path.exists(record) else 0 for record in self.records]

    def go_on(self, more=3):
        """Waits until each writer has committed so many more."""
        before = self.committed()

        def is_further():
            ended = [process.communicate()[0] for process in self.writers + self.readers if process.poll() is not None]
            assert not ended, f"a client ended by itself: {ended}"
            return all(now >= then + more for now, then in zip(self.committed(), before))

        wait_until(is_further, f"each writer commits {more} more; so far {before}", limit_s=GO_ON_S)

    def kill_writer(self, worker):
        kill(self.writers[worker].pid)
        self.writers[worker].wait()
        self.writers[worker] = self.writer(worker)

    def end(self):
        """Stops all; none may have complained."""
        with open(self.until, "w"):
            pass
        for process in self.writers + self.readers:
            told = process.communicate(timeout=60 * PATIENCE)[0]
            equal(process.returncode, 0, f"a client's exit status: {told}")

    def verify(self, database):
        words = [sys.executable, "-B", CLIENTS, "verify", database, *self.records]
        done = subprocess.run(words, capture_output=True, text=True)
        equal(done.returncode, 0, f"the database against the record: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def seeded():
    try:
        yield random.Random(SEED)
    except AssertionError as error:
        raise AssertionError(f"HEKATE_SEED={SEED}: {error}") from error


def sqlite_under_kills(store, mode):
    mnt = store.up()
    database = f"{mnt}/database"
    sqlite_clients.make(database, mode, WRITERS)
    with seeded() as chance:
        clients = Clients(store, [database])
        for turn in range(ROUNDS):
            clients.go_on()
            time.sleep(chance.uniform(0, 0.3))
            victims = chance.choice([["writer"], ["server"], ["server", "writer"], ["writer", "server"]])
            victims = ["server", "writer"] if turn == 0 else victims
            for victim in victims:
                if victim == "server":
                    store.kill_server()
                else:
                    # One that waits for the server dies when that is back, at the latest.
                    os.kill(clients.writers[turn % WRITERS].pid, signal.SIGKILL)
            if "server" in victims:
                time.sleep(chance.uniform(0, 0.5))
                store.serve()
            if "writer" in victims:
                clients.kill_writer(turn % WRITERS)
        clients.go_on()
        clients.end()
        clients.verify(database)
        store.kill_server()
        store.serve()
        store.remount()
        clients.verify(database)


@pytest.mark.limit(LIMIT_S)
def test_sqlite_in_rollback_mode_survives_kills(store):
    sqlite_under_kills(store, "delete")


@pytest.mark.limit(LIMIT_S)
def test_sqlite_in_wal_mode_survives_kills(store):
    sqlite_under_kills(store, "wal")


@pytest.mark.limit(LIMIT_S)
def test_sqlite_over_two_mounts_loses_no_update(store):
    """In rollback mode, for WAL wants memory that its users share."""
    one = store.up()
    two = store.mount("two")
    sqlite_clients.make(f"{one}/database", "delete", WRITERS)
    with seeded():
        clients = Clients(store, [f"{one}/database", f"{two}/database"])
        for turn in range(ROUNDS):
            clients.go_on(6)
            if turn % 2 == 1:
                store.kill_server()
                store.serve()
        clients.end()
        for mnt in (one, two):
            clients.verify(f"{mnt}/database")
