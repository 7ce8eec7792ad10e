"""Several servers: joining, what status shows of them, and where copies go."""

import base64
import json
import os
import shutil
import socket

import pytest

from harness import equal, free_port, kill, wait_until

USAGE, AWAY, EXISTS, DENIED = 64, 69, 73, 77


def first(store, **named):
    """The first server, which listens on TCP -> its address."""
    store.init(volume=None, **named)
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address)
    return store.address


def changed(token, **fields):
    """The token with other fields (crates/tls/src/token.rs)."""
    begin = "hekate1-"
    text = token.removeprefix(begin)
    held = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return begin + base64.urlsafe_b64encode(json.dumps(held | fields).encode()).decode().rstrip("=")


def states(store, state=None):
    servers = store.cli("--json", "status", state=state).json()["servers"]
    return {server["name"]: server["state"] for server in servers}


@pytest.mark.no_fuse
def test_three_servers(store):
    address = first(store, bricks=2)
    equal(store.join("state2")["server"], 2, "the number of the second server")
    equal(states(store), {"server-1": "online", "server-2": "away"}, "a server that has joined and is not served")
    store.serve_other("state2", "--listen", f"127.0.0.1:{free_port()}")
    # Any server tells a new one where the first is.
    store.join("state3", invitation=f"unix:{store.path('state2')}/server.sock")
    store.serve_other("state3")
    online = {"server-1": "online", "server-2": "online", "server-3": "online"}
    for state in [None, store.path("state2"), store.path("state3")]:
        equal(states(store, state), online, f"servers as {state} sees them")
    status = store.status()
    equal(status["health"], "good", "health")
    equal([brick["server"] for brick in status["bricks"]], [1, 1, 2, 3], "servers of the bricks")
    equal({brick["state"] for brick in status["bricks"]}, {"online"}, "states of the bricks")
    text = store.cli("status").out
    for word in ["SERVER", "server-3", f"tcp:{address}", store.path("state3-brick")]:
        assert word in text, f"status lacks {word}: {text}"


@pytest.mark.no_fuse
def test_a_server_that_is_away_is_named(store):
    address = first(store)
    store.join("state2")
    store.serve_other("state2")
    store.kill_other("state2")
    status = store.status()
    equal((status["health"], states(store)), ("degraded", {"server-1": "online", "server-2": "away"}), "one is away")
    equal([brick["state"] for brick in status["bricks"]], ["online", "online", "away"], "its brick")
    assert "state2/server.sock" in status["servers"][1]["reason"], status["servers"][1]
    assert "away" in store.cli("status").out
    store.serve_other("state2")
    equal(store.status()["health"], "good", "health after it came back")
    # Without the first server there is no coordinator, which the others say until it is back.
    store.kill_server()
    store.refuses("status", state=store.path("state2"), words=[f"tcp:{address}"], exits=[AWAY])
    store.serve("--listen", address)
    equal(states(store, store.path("state2")), {"server-1": "online", "server-2": "online"}, "both are back")


@pytest.mark.no_fuse
def test_copies_on_different_servers(store):
    address = first(store, bricks=3)
    words = ["2 servers", "1: ", "hekate join", "--domain disk"]
    store.refuses("volume", "create", "v", "--copies", "2", "--domain", "server", words=words, exits=[USAGE])
    store.cli("volume", "create", "disks", "--copies", "3")
    equal(store.cli("--json", "volume", "show", "disks").json()["domain"], "disk", "with one server")
    for name in ["state2", "state3"]:
        store.join(name)
        store.serve_other(name)
    store.refuses("volume", "create", "v", "--copies", "4", "--domain", "server", words=["4 servers"], exits=[USAGE])
    store.cli("volume", "create", "asked", "--copies", "3", "--domain", "server")
    store.cli("volume", "create", "chosen", "--copies", "2", state=store.path("state3"))
    for name, copies in [("asked", 3), ("chosen", 2)]:
        shown = store.cli("--json", "volume", "show", name).json()
        equal(shown["domain"], "server", f"domain of {name}")
        server = {place["brick"]: place["server"] for place in shown["bricks"]}
        for view in shown["views"]:
            equal(len({server[member["brick"]] for member in view["members"]}), copies, f"servers of a view of {name}")
    equal({volume["name"] for volume in store.cli("--json", "volume", "list").json()}, {"disks", "asked", "chosen"}, "volumes")
    # A ring that was there before stays as it is.
    equal(store.cli("--json", "volume", "show", "disks").json()["domain"], "disk", "the volume from before")
    # What the servers would need each other for waits (there is no way between them yet), so they are not well.
    for name in list(store.other_pids):
        store.stop_other(name)
    kill(store.server_pid)
    store.server_pid = None


@pytest.mark.no_fuse
def test_joins_that_cannot_be(store):
    first(store)
    token = store.token()
    joins = ["join", token, "--journal", "32"]
    state = store.path("state2")
    one = ["--brick", store.path("new")]
    for wrong in (store.address, "127.0.0.1", token[:-9], token[9:], "hekate1-"):
        store.refuses("join", wrong, *one, state=state, words=["not a token", "hekate token create", "unix:PATH"], exits=[USAGE])
    store.refuses(*joins, "--brick", store.path("brick0"), state=state, words=["brick0", "is a brick of cluster", "already"])
    store.cli("init", "--brick", store.path("theirs"), "--journal", "32", state=store.path("state9"))
    store.refuses(*joins, "--brick", store.path("theirs"), state=state, words=["theirs", "is a brick of cluster"])
    store.refuses(*joins, *one, "--pool", "nope", state=state, words=["no pool called nope", "there are: default"])
    store.refuses(*joins, *one, words=["holds a cluster of its own"], exits=[EXISTS])
    nobody = f"127.0.0.1:{free_port()}"
    store.refuses("join", changed(token, addresses=[nobody]), *one, state=state, words=[nobody, "(?i)refused"], exits=[AWAY])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        if os.fork() == 0:
            other.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" * 9)
            os._exit(0)
        words = [taken, "does not speak TLS"]
        store.refuses("join", changed(token, addresses=[taken]), *one, state=state, words=words, exits=[AWAY, DENIED])
        equal(os.path.exists(state), False, "a state directory after joins that were refused")
        store.refuses("serve", state=state, words=["no cluster", "hekate join"])
        store.refuses("serve", "--join", token, state=state, words=["has not joined", "--brick DIR"], exits=[USAGE])
        store.cli(*joins, *one, state=state)
        store.refuses(*joins, "--brick", store.path("more"), state=state, words=["server 2 of cluster", "hekate serve"], exits=[EXISTS])
        store.refuses("init", "--brick", store.path("more"), state=state, words=["holds a cluster already"], exits=[EXISTS])
        store.refuses("serve", "--detach", "--listen", taken, state=state, words=["(?i)in use"])
    store.refuses("serve", "--detach", "--listen", "127.0.0.1:0", state=state, words=["port"], exits=[USAGE])
    store.serve_other("state2")
    for options in [["--detach"], []]:
        store.refuses("serve", *options, state=state, words=["(?i)running|in use|another"])


@pytest.mark.no_fuse
def test_serving_and_joining_at_once(store):
    address = first(store)
    brick = store.path("new")
    named = ["--join", store.token(), "--brick", brick, "--journal", "32"]
    store.serve_other("state2", *named)
    equal(states(store), {"server-1": "online", "server-2": "online"}, "both")
    store.stop_other("state2")
    # The same words again: it has joined by now.
    store.serve_other("state2", *named)
    equal(len(store.status()["bricks"]), 3, "bricks")
    # The first server moves.
    store.stop()
    address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", address)
    store.kill_other("state2")
    store.serve_other("state2", "--join", address)
    wait_until(lambda: states(store)["server-2"] == "online", "server 2 online at the first one's new address")
    store.stop_other("state2")
    store.serve_other("state2")


@pytest.mark.no_fuse
def test_disks_of_a_joined_server_that_are_exchanged(store):
    address = first(store)
    store.join("state2")
    os.rename(store.path("state2-brick"), store.path("away"))
    store.refuses("serve", "--detach", state=store.path("state2"), words=["state2-brick", "is its disk mounted"])
    store.cli("init", "--brick", store.path("state2-brick"), "--journal", "32", state=store.path("state9"))
    store.refuses("serve", "--detach", state=store.path("state2"), words=["state2-brick", "(?i)cluster"])
    shutil.rmtree(store.path("state2-brick"))
    os.rename(store.path("away"), store.path("state2-brick"))
    store.serve_other("state2")
