"""Attacks that worked once (docs/security.md), each by somebody with less than they gained."""

import contextlib
import fcntl
import glob
import itertools
import os
import resource
import socket
import stat
import subprocess
import threading
import time

import pytest

from harness import NOBODY, HEKATE, equal, free_port, read, wait_until
from raw_client import CONTROL, HELLO, TO_CONTROL, Raw, Refused, Session, control, greeted, header, set_mode, user, write_shard
from test_users import program_for_all

AWAY, DENIED = 69, 77


@pytest.mark.no_fuse
def test_a_relay_is_no_server(store):
    """Whoever holds the port of a server that is down can send what it receives to another one, and gains nothing."""
    ports = [free_port(), free_port()]
    store.init()
    store.serve("--listen", f"127.0.0.1:{ports[0]}")
    store.join("two")
    store.serve_other("two", "--listen", f"127.0.0.1:{ports[1]}")
    wait_until(lambda: store.status()["health"] == "good", "both servers in touch")
    store.stop_other("two")
    away = lambda: [row["state"] for row in store.status()["servers"]] == ["online", "away"]
    wait_until(away, "the second server is away")
    with Relay(ports[1], ports[0]) as relay:
        for _ in range(5):
            equal(away(), True, "the second server is away, as the first one sees it")
            time.sleep(0.2)
        assert relay.connections and relay.seen, "the first server has not connected"
        for known in (b"identify", b"coordinator", b"127.0.0.1", b"server-status"):
            assert known not in relay.seen, f"{known!r} in what the relay has seen"
        # A byte that it changes ends the connection.
        relay.flips = True
        server = f"127.0.0.1:{ports[1]}"
        store.refuses("status", server=server, words=["127.0.0.1"], exits=[AWAY, DENIED])
        relay.flips = False
        # To a client that has a credential of the cluster any of its servers will do.
        equal(store.cli("--json", "status", server=server).json()["pid"], store.server_pid, "who answers through it")
    store.serve_other("two", "--listen", f"127.0.0.1:{ports[1]}")
    wait_until(lambda: store.status()["health"] == "good", "both servers in touch again")


class Relay:
    """Sends what comes to one port to the other one, and back."""

    def __init__(self, port, to):
        self.to, self.seen, self.connections, self.flips = to, b"", 0, False
        self.listener = socket.create_server(("127.0.0.1", port))

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                asks, _ = self.listener.accept()
                self.connections += 1
                answers = socket.create_connection(("127.0.0.1", self.to))
                for source, target in ((asks, answers), (answers, asks)):
                    threading.Thread(target=self.pump, args=(source, target), daemon=True).start()

    def pump(self, source, target):
        with contextlib.suppress(OSError):
            while more := source.recv(65536):
                self.seen = (self.seen + more)[-1 << 20 :]
                if self.flips:
                    more = more[:-1] + bytes([more[-1] ^ 1])
                target.sendall(more)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.root
@pytest.mark.no_fuse
@pytest.mark.limit(180)
def test_strangers_do_not_keep_others_out(store):
    store.init()
    store.serve()
    os.chmod(store.state, 0o711)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    held = []
    with contextlib.suppress(OSError, EOFError):
        for _ in range(4200):
            raw, *_ = greeted(f"{store.state}/server.sock", TO_CONTROL, NOBODY)
            held.append(raw)
    equal(store.try_cli("status").exit, 0, f"status, while a stranger has {len(held)} connections")
    session = Session(f"{store.state}/server.sock", "v")
    session.create("f")


@pytest.mark.root
@pytest.mark.no_fuse
def test_strangers_take_little_memory(store):
    store.init()
    store.serve()
    os.chmod(store.state, 0o711)
    before, held = memory(store.server_pid), []
    for _ in range(20):
        raw, *_ = greeted(f"{store.state}/server.sock", TO_CONTROL, NOBODY)
        with contextlib.suppress(ConnectionError):
            raw.socket.sendall(header(16 * 2**20, CONTROL) + bytes(16 * 2**20 - 1))
        held.append(raw)
    grown = memory(store.server_pid) - before
    assert grown < 64 * 2**20, f"20 questions that have not ended take {grown >> 20} MiB"


def memory(pid):
    return int(read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()


@pytest.mark.no_fuse
def test_a_slow_handshake_ends_in_time(store):
    port = free_port()
    store.init()
    store.serve("--listen", f"127.0.0.1:{port}")
    raw = Raw(("127.0.0.1", port))
    raw.challenge()
    raw.socket.sendall(header(4000, HELLO))
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < begun + 30:
            raw.socket.sendall(b"x")
            raw.socket.settimeout(4)
            with contextlib.suppress(TimeoutError):
                if raw.socket.recv(1) == b"":
                    break
    assert time.monotonic() < begun + 25, "it goes on after 30 s"


@pytest.mark.root
def test_what_is_made_is_private(store):
    before = os.umask(0o000)
    try:
        store.init()
        store.serve()
        store.mount(options=["--trace"])
        store.umount()
        store.stop()
    finally:
        os.umask(before)
    made = [store.state] + store.bricks(2)
    for path in made + glob.glob(f"{store.state}/*") + glob.glob(f"{store.base}/brick0/**/*", recursive=True):
        mode = os.lstat(path).st_mode
        equal(stat.S_IMODE(mode) & 0o077, 0, f"mode {stat.S_IMODE(mode):o} of {os.path.relpath(path, store.base)} for others")


@pytest.mark.root
def test_a_state_directory_that_a_mount_made_is_private(store):
    before = os.umask(0o022)
    try:
        store.try_cli("mount", "v", store.directory("mnt"))
        store.init()
    finally:
        os.umask(before)
    equal(os.stat(store.state).st_mode & 0o077, 0, "mode of the state directory for others")


@pytest.mark.root
@pytest.mark.no_fuse
def test_keys_are_files_of_ones_own(store):
    program = program_for_all(store)
    kinds = {"file": lambda path: open(path, "w").close(), "link": lambda path: os.symlink(store.path("victim"), path)}
    names = ["credential.toml", "credential.toml.new", "seal.key", "seal.key.new", "ca", "ca/root.key.new"]
    for number, (name, (kind, make)) in enumerate(itertools.product(names, kinds.items())):
        state = store.directory(f"state{number}")
        with open(store.path("victim"), "w") as victim:
            victim.write("precious")
        os.chown(state, NOBODY, NOBODY)
        with user(NOBODY):
            os.makedirs(os.path.dirname(f"{state}/{name}"), exist_ok=True)
            make(f"{state}/{name}")
        done = store.try_cli("init", "--brick", store.path(f"brick{number}"), state=state, program=program)
        equal(read(store.path("victim")), b"precious", f"a file that a {kind} {name} leads to")
        if done.exit == 0:
            equal(os.lstat(f"{state}/{name}").st_uid, 0, f"who owns {name}")


@pytest.mark.root
@pytest.mark.no_fuse
def test_a_stranger_does_not_hold_a_brick(store):
    store.init()
    opened = []
    with user(NOBODY):
        for path in glob.glob(f"{store.bricks(2)[0]}/*") + [store.bricks(2)[0], f"{store.state}/coordinator.redb"]:
            with contextlib.suppress(OSError):
                opened.append(os.open(path, os.O_RDONLY))
                fcntl.flock(opened[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    store.serve()
    store.stop()
    [os.close(one) for one in opened]
    equal(len(opened), 0, "files of a brick and of the state that a stranger can open")


@pytest.mark.root
@pytest.mark.no_fuse
def test_a_brick_is_not_made_where_others_may_write(store):
    path = store.directory("open")
    os.chmod(path, 0o777)
    done = store.try_cli("init", "--brick", path)
    assert done.exit in range(64, 79) or os.stat(path).st_mode & 0o077 == 0, f"{done.text}"
    theirs = store.directory("theirs")
    os.chown(theirs, NOBODY, NOBODY)
    store.refuses("init", "--brick", theirs, words=["theirs", f"{NOBODY}|owner|belongs"], state=store.path("other"))


@pytest.mark.root
def test_a_log_follows_no_link(store):
    store.init()
    store.serve()
    os.chmod(store.state, 0o711)
    names, victim = f"/tmp/hekate-{NOBODY}-mount-v*.log", store.path("victim")
    with open(victim, "w") as file:
        file.write("precious")
    os.chown(victim, NOBODY, NOBODY)
    os.symlink(victim, f"/tmp/hekate-{NOBODY}-mount-v.log")
    try:
        server, program = f"unix:{store.state}/server.sock", program_for_all(store)
        store.try_cli("mount", "v", "/tmp", server=server, uid=NOBODY, program=program, state="/proc/none")
        equal(read(victim), b"precious", "a file that a link leads to")
        equal([path for path in glob.glob(names) if not os.path.islink(path)], [], "logs that a refused mount has left")
    finally:
        for path in glob.glob(names):
            os.unlink(path)


@pytest.mark.root
@pytest.mark.no_fuse
def test_a_server_in_a_pid_namespace_answers(store):
    store.init()
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", HEKATE, "--state", store.state, "serve"]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        address = f"{store.state}/server.sock"
        wait_until(lambda: os.path.exists(address), "the server's socket")
        os.chmod(store.state, 0o711)
        equal(store.cli("--json", "status").json()["health"], "good", "health")
        equal(control(address, {"request": "stop"}, NOBODY)["error"]["exit"], 77, "stop by a stranger")
    finally:
        server.kill()
        server.wait(20)


@pytest.mark.root
@pytest.mark.no_fuse
def test_ops_go_to_their_own_partition_only(store):
    """Through another partition they part the replicas, and then the server does not start any more."""
    store.init(bricks=3)
    store.serve()
    os.chmod(store.state, 0o711)
    store.cli("volume", "create", "theirs", "--copies", "2", "--owner", str(NOBODY))
    session = Session(f"{store.state}/server.sock", "theirs", NOBODY)
    inode = session.create("f")
    leaders = [view["leader"] for view in session.views]
    members = [{member["brick"] for member in view["members"]} for view in session.views]
    home = session.partition_of(inode)
    done = []
    for partition in (p for p in range(len(leaders)) if leaders[p] in members[home] and members[p] != members[home]):
        with contextlib.suppress(Refused):
            session.do(session.at(partition), set_mode(inode, 0o600))
            done.append(f"SetAttr of an inode of partition {home} through {partition}")
    other = next(p for p in range(len(leaders)) if leaders[p] not in members[0])
    for partition, count in ((0, 100_000), (other, 4096)):
        with contextlib.suppress(Refused):
            session.do(session.at(partition), write_shard(7779, 0, 0, bytes(count)))
            done.append(f"WriteShard through {partition}")
    # One of the two may be the shard's own.
    assert len(done) <= 1 and "SetAttr" not in str(done), f"done: {done}"
    equal(store.status()["health"], "good", "health")
    store.stop()
    store.serve()


@pytest.mark.no_fuse
def test_output_that_nobody_reads_is_no_panic(store):
    store.init()
    store.serve()
    for words in (["status"], ["--json", "status"], ["volume", "list"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as closed:
            done = subprocess.run([HEKATE, "--state", store.state, *words], stdout=closed, stderr=subprocess.PIPE, text=True)
        assert "panicked" not in done.stderr, f"{words}: {done.stderr[:200]}"


def test_a_bundle_is_made_while_a_mount_waits(store):
    store.up()
    store.kill_server()
    store.cli("debug", "bundle", store.path("bundle.tar.gz"), limit_s=40)
    store.serve()
