"""The coordinator in etcd: members beside the servers, moves under load, members and servers that die, backups."""

import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest

from etcd import (
    FIRST, Own, in_state, kill_member, member, move, pause_member, place, pid_of, resume_member, shown, state_of, three_with_etcd,
)
from harness import equal, free_port, kill, raises, read, wait_until, write
from servers import three

USAGE, DATA, AWAY, EXISTS, DENIED = 64, 65, 69, 73, 77
# A write may wait for a server or a leader of etcd that died.
PAUSE_S = 5


class Writer:
    """Writes small files one after another, durably, until it is stopped; every error and the longest wait are kept."""

    def __init__(self, mnt):
        self.mnt, self.count, self.longest, self.errors, self.ends = mnt, 0, 0, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends:
            begun = time.monotonic()
            try:
                write(f"{self.mnt}/w{self.count}", str(self.count).encode(), os.O_SYNC)
                self.count += 1
            except OSError as error:
                self.errors.append(error)
            self.longest = max(self.longest, time.monotonic() - begun)

    def stop(self):
        """-> the longest wait, in seconds; all files are there."""
        self.ends = True
        self.thread.join()
        equal(self.errors, [], "errors of writes")
        for number in range(self.count):
            equal(read(f"{self.mnt}/w{number}"), str(number).encode(), "what was written")
        return self.longest

    def progress(self):
        seen = self.count
        wait_until(lambda: self.count > seen + 3, "writes go on", limit_s=15)


@pytest.mark.limit(180)
def test_records_move_to_etcd_and_back_under_load(store):
    mnt = three_with_etcd(store, moved=False)
    writer = Writer(mnt)
    writer.progress()
    told = store.cli("coordinator", "move", "--to", "etcd", state=store.path("s2"))
    assert "records moved from" in told.out and "to etcd:https" in told.out, told.out
    wait_until(lambda: all(place(store, name).startswith("etcd:") for name in [FIRST, "s2", "s3"]), "all servers use etcd")
    store.refuses("coordinator", "move", "--to", "etcd", words=["already"])
    moved = move(store, "embedded", "s2")
    assert moved["pause_ms"] < PAUSE_S * 1000, moved
    wait_until(lambda: [place(store, name)[:8] for name in [FIRST, "s2", "s3"]] == ["server:2", "own", "server:2"], "server 2 has them")
    # Its own coordinator is the first one's, whose old records are in the way no more.
    move(store, "embedded", FIRST)
    wait_until(lambda: place(store, "s3").startswith("server:1"), "server 1 has them again")
    move(store)
    writer.progress()
    assert writer.stop() < PAUSE_S
    equal(max(view["epoch"] for view in store.cli("--json", "partition", "list").json()), 1, "views that were formed meanwhile")
    store.cli("volume", "create", "after", "--copies", "2")


@pytest.mark.limit(240)
def test_records_move_from_and_to_a_coordinator_of_its_own(store):
    mnt = three(store, listen=True, apart=True)
    names, apart = [FIRST, "s2", "s3"], store.coordinator_address
    store.etcd_ports = {}
    for name in names:
        member(store, name)
    writer = Writer(mnt)
    writer.progress()

    def move_there(to, state, wanted):
        moved = move(store, to, state)
        assert moved["pause_ms"] < PAUSE_S * 1000, moved
        wait_until(lambda: [place(store, name)[: len(word)] for name, word in zip(names, wanted)] == wanted, f"all servers know {wanted}")
        writer.progress()

    move_there("etcd", FIRST, ["etcd:https"] * 3)
    # Nobody needs the process any more.
    store.cli("stop", state=store.path("c"))
    writer.progress()
    store.refuses("coordinator", "move", "--to", apart, words=[apart.split(":")[1]], limit_s=60)
    writer.progress()
    store.coordinate(apart)
    move_there(apart, "s2", [f"tcp:{apart}"] * 3)
    store.refuses("coordinator", "move", "--to", apart, words=["already"])
    # With a server's own file, and with a server that missed both moves.
    move_there("embedded", "s3", ["server:3", "server:3", "own"])
    store.stop_other("s2")
    move(store, apart, FIRST)
    store.serve_other("s2", *store.listens["s2"])
    wait_until(lambda: all(place(store, name) == f"tcp:{apart}" for name in names), "all servers use the process")
    writer.progress()
    # A coordinator that another cluster has, or none, takes no records.
    store.cli("--json", "coordinator", "--detach", state=store.path("stranger"))
    stranger = f"unix:{store.path('stranger')}/server.sock"
    store.refuses("coordinator", "move", "--to", stranger, words=["cluster"])
    store.refuses("coordinator", "move", "--to", "nowhere", words=["HOST:PORT"], exits=[2, USAGE])
    store.cli("stop", state=store.path("stranger"))
    store.cli("volume", "create", "after", "--copies", "2")
    # The process is restarted, and has what was recorded since the records came back.
    store.cli("stop", state=store.path("c"))
    store.coordinate(apart)
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=30)
    assert "after" in [volume["name"] for volume in store.cli("--json", "volume", "list").json()]
    writer.stop()


@pytest.mark.limit(180)
def test_servers_that_were_down_follow_a_move(store):
    three_with_etcd(store, mount=False, moved=False)
    store.stop_other("s3")
    move(store)
    store.serve_other("s3", *store.listens["s3"])
    assert place(store, "s3").startswith("etcd:")
    # The first server, which held the records, is started again too.
    store.stop()
    store.serve("--listen", store.address)
    assert place(store).startswith("etcd:")
    begun = time.monotonic()
    store.refuses("serve", "--detach", words=["running here already"])
    assert time.monotonic() - begun < 15, "a second server of a state directory is refused late"
    # Where a server knew the coordinator last nobody is any more: others know.
    store.stop_other("s3")
    move(store, "embedded", FIRST)
    move(store, "embedded", "s2")
    with open(f"{store.path('s3')}/server.json") as file:
        known = json.load(file)
    assert known["servers"], known
    known["coordinator"] = f"tcp:127.0.0.1:{free_port()}"
    for servers, options in [(known["servers"], []), ([], ["--join", store.listens["s2"][1]])]:
        with open(f"{store.path('s3')}/server.json", "w") as file:
            json.dump({**known, "servers": servers}, file)
        store.serve_other("s3", *options, *store.listens["s3"])
        assert place(store, "s3").removeprefix("server:2@") == f"tcp:{store.listens['s2'][1]}", place(store, "s3")
        store.stop_other("s3")
    move(store, "etcd", "s2")
    store.serve_other("s3", *store.listens["s3"])
    wait_until(lambda: all(place(store, name)[:4] == "etcd" for name in [FIRST, "s2", "s3"]), "all servers use etcd")


@pytest.mark.limit(240)
def test_a_leader_of_etcd_and_a_server_are_killed(store):
    mnt = three_with_etcd(store)
    writer = Writer(mnt)
    writer.progress()
    leader = in_state(store, "leader")[0]
    kill_member(store, state_of(leader))
    writer.progress()
    wait_until(lambda: len(in_state(store, "leader")) == 1, "etcd has another leader")
    assert writer.longest < PAUSE_S, f"{writer.longest} s"
    member(store, state_of(leader))
    wait_until(lambda: len(in_state(store, "member")) == 2, "three members")
    # A server with its member, as a machine that dies.
    store.kill_other("s3")
    kill_member(store, "s3")
    writer.progress()
    assert writer.stop() < PAUSE_S
    store.serve_other("s3", *store.listens["s3"])
    equal(member(store, "s3")["state"], "ready", "the member after the restart")


@pytest.mark.limit(240)
def test_without_a_majority_nobody_serves_and_with_it_all_goes_on(store):
    mnt = three_with_etcd(store)
    write(f"{mnt}/before", b"1")
    for name in ["s2", "s3"]:
        kill_member(store, name)
    time.sleep(4)
    refused = []
    attempt = threading.Thread(target=lambda: refused.append(write(f"{mnt}/meanwhile", b"2", os.O_SYNC)), daemon=True)
    attempt.start()
    attempt.join(3)
    assert attempt.is_alive(), "a write was answered without a lease"
    for name in ["s2", "s3"]:
        store.refuses("coordinator", "show", state=store.path(name), words=["etcd"], limit_s=30)
        os.remove(f"{store.path(name)}/etcd/etcd.pid")
    member_again = [threading.Thread(target=member, args=(store, name)) for name in ["s2", "s3"]]
    for thread in member_again:
        thread.start()
    for thread in member_again:
        thread.join()
    attempt.join(30)
    equal(read(f"{mnt}/meanwhile"), b"2", "the write that waited")


@pytest.mark.soak
@pytest.mark.limit(240)
def test_a_member_that_is_cut_off_costs_no_lease(store):
    mnt = three_with_etcd(store)
    writer = Writer(mnt)
    for name in [FIRST, "s2", "s3"]:
        pause_member(store, name)
        time.sleep(3.5)
        resume_member(store, name)
        wait_until(lambda: len(in_state(store, "leader")) == 1, "etcd has a leader")
        time.sleep(1)
    assert writer.stop() < PAUSE_S


@pytest.mark.limit(240)
def test_a_follower_with_a_slow_disk_costs_no_lease(store):
    mnt = three_with_etcd(store)
    follower = state_of(in_state(store, "member")[0])
    # Attached to every thread that the member has or makes, so that each of its syncs takes 500 ms longer.
    command = ["strace", "-f", "-q", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=500000"]
    out = store.path("strace")
    slow = subprocess.Popen([*command, "-o", out, "-p", str(pid_of(store, follower))])
    try:
        wait_until(lambda: os.path.exists(out) and os.path.getsize(out) > 0, "a sync of the follower is delayed")
        writer, begun = Writer(mnt), time.monotonic()
        while time.monotonic() < begun + 8:
            store.cli("--json", "coordinator", "show", state=store.path(follower), limit_s=30)
            time.sleep(0.5)
        store.cli("volume", "create", "meanwhile", "--copies", "2", limit_s=30)
        writer.progress()
        assert writer.stop() < PAUSE_S
    finally:
        # With SIGINT it lets the process go on.
        slow.send_signal(signal.SIGINT)
        slow.wait()
    equal(max(view["epoch"] for view in store.cli("--json", "partition", "list").json()), 1, "views that were formed meanwhile")


@pytest.mark.limit(240)
def test_a_member_is_replaced(store):
    three_with_etcd(store, mount=False)
    store.kill_other("s3")
    kill_member(store, "s3")
    store.refuses("coordinator", "member", "remove", "server-9", words=["no member server-9", "server-1, server-2, server-3"])
    store.cli("coordinator", "member", "remove", "server-3")
    # A machine without bricks takes its place.
    told = store.cli("join", store.token(), "--witness", state=store.path("s4"))
    assert "no bricks" in told.out and "coordinator etcd" in told.out, told.out
    store.serve_other("s4", "--listen", f"127.0.0.1:{free_port()}")
    member(store, "s4")
    equal(sorted(in_state(store, "leader") + in_state(store, "member")), ["server-1", "server-2", "server-4"], "members")
    wait_until(lambda: place(store, "s2").count("https") == 3, "servers know the new member")
    for name in [FIRST, "s2"]:
        kill_member(store, name)
        member(store, name)
    store.serve_other("s3", *store.listens["s3"])
    equal(place(store, "s3").count("https"), 3, "members that the server knows after its start")


@pytest.mark.limit(180)
def test_a_server_that_moves_the_records_is_killed(store):
    """Whatever it has done: all servers agree on one of the two."""
    mnt = three_with_etcd(store, moved=False)
    writer = Writer(mnt)
    for number in range(6):
        to = "etcd" if place(store, FIRST)[:4] != "etcd" else "embedded"
        words = ["coordinator", "move", "--to", to]
        moving = threading.Thread(target=lambda: store.try_cli(*words, state=store.path("s2")))
        moving.start()
        time.sleep(random.uniform(0, 0.12))
        store.kill_other("s2")
        moving.join()
        store.serve_other("s2", *store.listens["s2"])
        kinds = lambda: {place(store, name).replace("own", "server:2").split("@")[0][:8] for name in ["s2", "s3"]}
        wait_until(lambda: len(kinds()) == 1, f"the servers agree: {kinds()}", limit_s=30)
        store.cli("volume", "create", f"v{number}", "--copies", "2")
    writer.stop()
    if place(store)[:4] != "etcd":
        move(store)
    wait_until(lambda: all(place(store, name)[:4] == "etcd" for name in [FIRST, "s2", "s3"]), "all servers use etcd")


def test_an_etcd_that_is_there(store):
    own = Own(store)
    for wrong, words, exits in [
        (["--etcd", "https://127.0.0.1:1", "--etcd-ca", own.ca], ["127.0.0.1:1"], [AWAY]),
        (["--etcd", own.address], ["CA's certificate", "missing"], [USAGE]),
        (["--etcd", own.address.replace("https", "ftp")], ["no address of etcd"], [USAGE, DATA]),
        (["--etcd", "http://10.0.0.1:2379"], ["unencrypted"], [USAGE, DATA]),
        (["--etcd", own.address, "--etcd-ca", own.ca], ["etcd"], [AWAY]),
        (["--etcd", own.address, "--etcd-ca", "/nonexistent"], ["/nonexistent"], range(64, 79)),
        (["--etcd", own.address, "--etcd-cert", own.certificate], ["--etcd-key"], [USAGE]),
    ]:
        store.refuses("init", "--brick", store.path("b"), *wrong, words=words, exits=exits)
    store.init(options=own.options())
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address)
    assert place(store) == f"etcd:{own.address}"
    # Another server gets in with what the token brings.
    store.join("s2")
    store.serve_other("s2", "--listen", f"127.0.0.1:{free_port()}")
    assert place(store, "s2") == f"etcd:{own.address}"
    mnt = store.mount()
    write(f"{mnt}/a", b"1", os.O_SYNC)
    store.refuses("coordinator", "etcd", "--detach", "--address", "127.0.0.1", words=["has not made", "etcdctl"])
    second = store.refuses("init", "--brick", store.path("c"), *own.options(), state=store.path("other"), words=["holds keys already"])
    equal(second.exit, EXISTS, "a second cluster in it")
    # It is restarted: nobody serves meanwhile, and all goes on.
    own.end()
    own.start()
    write(f"{mnt}/b", b"2", os.O_SYNC)
    # The quota is reached: writes of etcd are refused, and the command says what to do.
    own.end()
    own.words += ["--quota-backend-bytes", "1000000"]
    own.start()
    text = "x" * 100_000
    while "space" not in own.etcdctl("put", "filler", text).stderr:
        pass
    wait_until(lambda: "alarm disarm" in " ".join(shown(store)["alarms"]), "the alarm is shown")
    store.refuses("volume", "create", "w", words=["quota"], limit_s=60)
    revision = json.loads(own.etcdctl("get", "/", "-w", "json").stdout)["header"]["revision"]
    own.etcdctl("del", "filler")
    own.etcdctl("compact", str(revision))
    own.etcdctl("defrag")
    own.etcdctl("alarm", "disarm")
    wait_until(lambda: store.try_cli("volume", "create", "w").exit == 0, "writes go on", limit_s=30)
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=30)
    equal(read(f"{mnt}/b"), b"2", "the file")
    store.umount()
    store.stop_other("s2")
    store.stop()
    own.end()


@pytest.mark.soak
@pytest.mark.limit(900)
def test_what_idle_servers_read_does_not_grow_with_partitions(store):
    own = Own(store)
    three(store, mount=False, options=own.options())
    (ring, record), *views = sorted(own.pairs("/rings/").items())
    bricks = [key.removeprefix("/bricks/") for key in own.pairs("/bricks/")]

    def elsewhere(text, number):
        """The record, of another ring, on bricks of no server."""
        for place, brick in enumerate(bricks):
            text = text.replace(brick, f"{number:028x}{place:04x}")
        return text.replace('"ring":1,', f'"ring":{number},')

    def cpu_s():
        pids = [own.process.pid, store.server_pid, *store.other_pids.values()]
        ticks = []
        for pid in pids:
            with open(f"/proc/{pid}/stat") as file:
                ticks.append(sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])))
        return ticks[0] / os.sysconf("SC_CLK_TCK"), sum(ticks[1:]) / 3 / os.sysconf("SC_CLK_TCK")

    def measure(seconds=20):
        """-> bytes a second that etcd sends, and seconds of CPU a second of etcd and of a server."""
        taken = lambda: (own.metric("etcd_network_client_grpc_sent_bytes_total"), *cpu_s(), time.monotonic())
        before = taken()
        time.sleep(seconds)
        after = taken()
        return [(b - a) / (after[-1] - before[-1]) for a, b in zip(before[:-1], after[:-1])]

    number, sent = 1, {}
    for count in [16, 256, 1024, 10_000]:
        while number * len(views) < count:
            number += 1
            key = f"/rings/{number:05}"
            texts = [(ring, record), *views]
            own.put([(name.replace(ring, key), elsewhere(text, number)) for name, text in texts])
        # Servers take over the new rings first. All records are 3 MB in the end: each reading of all would show.
        steady = lambda: measure(5)[0] < sent.get(16, 50_000) + 20_000
        wait_until(steady, f"readings of changes alone with {count} partitions", limit_s=300)
        sent[count], *cpu = measure()
        size = sum(len(key) + len(value) for key, value in own.pairs("/rings/").items())
        print(f"{count} partitions, {size} bytes: {sent[count]:.0f} bytes/s sent, CPU of etcd {cpu[0]:.3f}, of a server {cpu[1]:.3f}")
    assert store.status()["health"] == "good"
    assert sent[10_000] < sent[16] + 20_000, sent
    store.stop_other("s3")
    store.stop_other("s2")
    store.stop()
    own.end()


@pytest.mark.limit(180)
def test_backups_are_restored(store):
    mnt = three_with_etcd(store)
    file = store.path("records.json")
    told = store.cli("coordinator", "backup", file)
    assert "records of cluster" in told.out, told.out
    equal(os.stat(file).st_mode & 0o777, 0o600, "mode of the backup")
    write(f"{mnt}/a", b"1", os.O_SYNC)
    store.umount()
    store.refuses("coordinator", "restore", file, words=["in use", "--replace"], exits=[EXISTS])
    with open(file) as backup, open(store.path("bad.json"), "w") as bad:
        bad.write(backup.read().replace("default", "defbult"))
    store.refuses("coordinator", "restore", store.path("bad.json"), words=["its sum is wrong"], exits=[DATA])
    # etcd is lost: the first server keeps the records from now on. Servers that are stopped in order would form views
    # that the backup does not know.
    for name in [FIRST, "s2", "s3"]:
        kill_member(store, name)
    for name in ["s2", "s3"]:
        store.kill_other(name)
    store.kill_server()
    os.remove(f"{store.state}/coordinator.redb")
    told = store.cli("coordinator", "restore", file, "--here")
    assert "restored at own" in told.out, told.out
    store.serve("--listen", store.address)
    for name in ["s2", "s3"]:
        store.serve_other(name, "--join", f"tcp:{store.address}".removeprefix("tcp:"), *store.listens[name])
    mnt = store.mount()
    equal(read(f"{mnt}/a"), b"1", "the file")


@pytest.mark.limit(120)
def test_records_that_say_less_than_a_brick_are_refused(store):
    store.up()
    old = store.path("old.json")
    store.cli("coordinator", "backup", old)
    write(f"{store.path('mnt')}/a", b"1", os.O_SYNC)
    store.umount()
    for _ in range(2):
        store.stop()
        store.serve()
    store.stop()
    store.cli("coordinator", "restore", old, "--replace")
    store.refuses("serve", "--detach", words=["older copy of the cluster's records", "opening of the brick", "restore FILE --accept"])
    told = store.cli("coordinator", "restore", old, "--replace", "--accept")
    assert "sessions of mounts have ended" in told.out, told.out
    store.serve()
    mnt = store.mount()
    equal(read(f"{mnt}/a"), b"1", "the file")
    write(f"{mnt}/b", b"2", os.O_SYNC)
    store.refuses("coordinator", "restore", old, words=["in use"])


@pytest.mark.no_fuse
def test_mistakes_with_the_coordinator(store):
    store.init()
    store.refuses("coordinator", "show", words=["serve --detach"], exits=[AWAY])
    store.refuses("coordinator", "etcd", "--detach", words=["does not answer", "hekate serve"], exits=[AWAY])
    store.serve()
    store.refuses("coordinator", "move", "--to", "etcd", words=["no etcd that is ready", "hekate coordinator etcd"])
    store.refuses("coordinator", "move", "--to", "embedded", words=["already"])
    store.refuses("coordinator", "etcd", "--detach", words=["--address"], exits=[USAGE])
    store.refuses("coordinator", "etcd", "--detach", "--program", "no-etcd", words=["not installed", "etcd-server"], exits=[AWAY])
    store.refuses("coordinator", "etcd", "--stop", words=["--detach"], exits=[AWAY])
    if not os.path.exists("/run/systemd/system"):
        store.refuses("coordinator", "etcd", words=["no systemd", "--detach"], exits=[USAGE])
    store.refuses("coordinator", "backup", "/nonexistent/file", words=["/nonexistent/file"])
    store.refuses("coordinator", "restore", "/nonexistent/file", words=["/nonexistent/file"])
    assert "no etcd" in store.cli("coordinator", "member", "list").out
