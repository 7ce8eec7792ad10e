"""Several servers, when something comes between them: one hangs, its machine restarts, another cluster answers."""

import json
import os
import re
import signal
import threading
import time

import pytest

from harness import equal, free_port, read, wait_until, write
from test_failover import views
from test_kills import Writers
from servers import three

DENIED = 77


def all_done(writers):
    """No writer was killed, so nothing is in doubt."""
    counts = writers.verify()
    equal(counts["in_doubt"], 0, "ops in doubt, though every writer was answered")
    assert counts["acknowledged"] > 30, f"too slow to say anything: {counts}"


@pytest.mark.limit(150)
def test_a_server_that_hangs_is_waited_for(store):
    mnt = three(store)
    writers = Writers(store, mnt, seconds=11)
    time.sleep(1)
    for pid, hangs_s in [(store.other_pids["s2"], 1.5), (store.server_pid, 2.5), (store.other_pids["s3"], 3.5)]:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(hangs_s)
        before = writers.acknowledged()
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: writers.acknowledged() > before, "writers go on")
    writers.end()
    wait_until(lambda: store.status()["health"] == "good", "all is well again")
    store.remount()
    all_done(writers)


@pytest.mark.limit(150)
def test_a_server_that_hangs_long_is_made_even(store):
    mnt = three(store)
    for number in range(20):
        os.mkdir(f"{mnt}/d{number}")
    writers = Writers(store, mnt, seconds=16)
    time.sleep(0.5)
    # The others give the link up after ten seconds, and it is a new generation that goes on.
    os.kill(store.other_pids["s3"], signal.SIGSTOP)
    time.sleep(12)
    os.kill(store.other_pids["s3"], signal.SIGCONT)
    writers.end()
    wait_until(lambda: store.status()["health"] == "good", "all is well again")
    store.remount()
    all_done(writers)


def restart_machine(store, name, brick):
    """Kills a server (None: the first) and lets its brick believe that its machine has booted since."""
    if name:
        store.kill_other(name)
    else:
        store.kill_server()
    path = f"{store.path(brick)}/life.toml"
    with open(path) as file:
        life = file.read()
    write(path, re.sub('boot = ".*"', 'boot = "another"', life).encode())


@pytest.mark.limit(150)
def test_mounts_take_new_views_after_a_machine_restarts(store):
    mnt = three(store)
    idle = store.mount("idle")
    os.mkdir(f"{idle}/before")
    writers = Writers(store, mnt, seconds=25)

    def epochs():
        return [view["epoch"] for view in store.cli("--json", "volume", "show", "v").json()["views"]]

    for name in ["s2", "s3", "s2"]:
        # Only one at a time lacks its memory: else something is lost, and the writers are told. A view of both that has not begun yet
        # is none: it is well only once all partitions are served.
        wait_until(lambda: all(len(view["members"]) == 2 for view in views(store)), "all are members", limit_s=40)
        wait_until(lambda: store.status()["health"] == "good", "all views have begun", limit_s=40)
        before = epochs()
        restart_machine(store, name, f"{name}-brick")
        store.serve_other(name)
        after = epochs()
        assert all(new >= old for new, old in zip(after, before)) and after != before, f"epochs: {before}, then {after}"
    writers.end()
    store.remount()
    all_done(writers)
    # It has said nothing since, so all that it knows is old.
    for number in range(20):
        os.mkdir(f"{idle}/before/{number}")
    equal(sorted(os.listdir(f"{mnt}/before"), key=int), [str(number) for number in range(20)], "made by old views")


@pytest.mark.limit(150)
def test_a_mount_over_tcp_reaches_all_servers(store):
    three(store, listen=True, mount=False)
    mnt = store.mount(server=f"tcp:{store.address}")
    writers = Writers(store, mnt, seconds=7)
    time.sleep(1)
    store.kill_other("s2")
    store.serve_other("s2", *store.listens["s2"])
    time.sleep(1)
    store.kill_server()
    store.serve("--listen", store.address)
    writers.end()
    sessions = store.cli("--json", "volume", "show", "v").json()["sessions"]
    equal(sessions, 1, "sessions: one on all servers, which outlived them")
    # The same session to the other servers; a user of this machine sees what it did.
    local = store.mount("local")
    equal(set(os.listdir(local)), set(os.listdir(mnt)), "names")
    store.umount("local")
    all_done(writers)


@pytest.mark.limit(120)
def test_a_server_waits_for_the_first_one(store):
    three(store, mount=False)
    store.kill_other("s2")
    store.kill_server()
    started = threading.Thread(target=lambda: store.serve_other("s2"))
    started.start()
    time.sleep(3)
    assert started.is_alive(), "there is no coordinator yet"
    store.serve("--listen", store.address)
    started.join(timeout=30)
    assert "s2" in store.other_pids, "it did not start"
    wait_until(lambda: store.status()["health"] == "good", "all is well")


def other_cluster(store, address):
    """Another cluster of one server, with a volume of the same name -> its state."""
    state = store.path("state-other")
    words = ["--brick", store.path("other-brick"), "--journal", "32", "--volume", "v", "--copies", "1"]
    store.cli("init", *words, state=state)
    store.cli("serve", "--detach", "--listen", address, state=state)
    return state


@pytest.mark.limit(120)
def test_another_cluster_at_an_address_is_told_apart(store):
    mnt = three(store)
    os.mkdir(f"{mnt}/ours")
    address = f"127.0.0.1:{free_port()}"
    state = other_cluster(store, address)
    cluster = json.loads(read(f"{store.path('s2')}/server.json"))["cluster"]
    store.kill_other("s2")
    # By the option, and by hand.
    none = "no root of this cluster has signed its certificate"
    store.refuses("serve", "--join", address, state=store.path("s2"), words=[none, address], exits=[DENIED])
    words = [f"belongs to cluster {cluster}", "the invitation is of cluster"]
    store.refuses("serve", "--join", store.token(state=state), state=store.path("s2"), words=words, exits=[DENIED])
    at_socket = f"unix:{state}/server.sock"
    store.refuses("serve", "--join", at_socket, state=store.path("s2"), words=words, exits=[DENIED])
    kept = read(f"{store.path('s2')}/server.json")
    write(f"{store.path('s2')}/server.json", kept.replace(store.address.encode(), address.encode()))
    store.refuses("serve", state=store.path("s2"), words=[none, address], exits=[DENIED])
    write(f"{store.path('s2')}/server.json", kept)
    store.serve_other("s2")
    # Our first server goes, and theirs takes its address: ours neither read nor write their records.

    def records():
        return store.cli("--json", "volume", "show", "v", state=state).json()["views"], store.cli("volume", "list", state=state).out.count("\n")

    before = records()
    store.kill_server()
    store.cli("stop", state=state)
    wait_until(lambda: not os.path.exists(f"{state}/server.sock"), "theirs has ended")
    store.cli("serve", "--detach", "--listen", store.address, state=state)
    store.refuses("volume", "create", "more", state=store.path("s2"), words=["cluster"], exits=[DENIED, 69])
    restart_machine(store, "s3", "s3-brick")
    store.refuses("serve", state=store.path("s3"), words=[none], exits=[DENIED])
    equal(records(), before, "the other cluster's records")
    store.cli("stop", state=state)
    wait_until(lambda: not os.path.exists(f"{state}/server.sock"), "theirs has ended")
    store.serve("--listen", store.address)
    store.serve_other("s3")
    wait_until(lambda: store.status()["health"] == "good", "all is well")
    equal(os.listdir(mnt), ["ours"], "names")
