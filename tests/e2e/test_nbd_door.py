"""The block door of servers: opened and closed by name, with the cluster's certificates and clients."""

import os
import socket

import nbd
import pytest

from harness import equal, free_port, same_bytes, wait_until
from test_nbd import BLOCK, sh


def opened(store, *options):
    """Opens the door of volume v at a free port. Returns the port."""
    port = free_port()
    store.cli("nbd", "enable", "v", "--listen", f"127.0.0.1:{port}", *options)
    wait_until(lambda: here(store) == [f"127.0.0.1:{port}"], "the door is open")
    return port


def here(store):
    return store.cli("--json", "nbd", "list").json()[0]["open"]


def pem(store, name, *options):
    """Makes a client of the cluster. Returns the directory with its certificates."""
    store.cli("client", "create", name, *options, "-o", store.path(f"{name}.hekate"))
    store.cli("client", "pem", store.path(f"{name}.hekate"), store.path(name))
    return store.path(name)


def connected(port, certificates, disk="d"):
    client = nbd.NBD()
    client.set_uri_allow_local_file(True)
    client.connect_uri(f"nbds://127.0.0.1:{port}/{disk}?tls-certificates={certificates}")
    return client


def one_server(store):
    store.init()
    store.serve("--listen", f"127.0.0.1:{free_port()}")
    store.cli("vdisk", "create", "v", "d", "16M")


def test_a_door_is_opened_and_closed_by_name(store):
    store.init()
    store.serve()
    store.cli("vdisk", "create", "v", "d", "16M")
    port = opened(store, "--plain")
    client = nbd.NBD()
    client.connect_uri(f"nbd://127.0.0.1:{port}/d")
    client.pwrite(b"x" * BLOCK, 0)
    store.refuses("nbd", "enable", "w", "--listen", "127.0.0.1:1", "--plain", words=["no volume"])
    store.refuses("nbd", "enable", "v", words=["--listen"])
    store.cli("volume", "create", "other", "--copies", "1")
    store.refuses("nbd", "enable", "other", "--listen", f"127.0.0.1:{port}", "--plain", words=["volume v", "another"])
    store.refuses("s3", "enable", "other", "--listen", f"127.0.0.1:{port}", "--http", words=["volume v", "another"])
    store.refuses("volume", "delete", "v", "--confirm", "v", words=["block door", "hekate nbd disable v"])
    page = store.cli("metrics").out
    for line in ['hekate_nbd_connections{volume="v"} 1', 'hekate_vdisk_users{volume="v",vdisk="d"} 1']:
        wait_until(lambda line=line: line in store.cli("metrics").out, f"{line} in the metrics")
    assert "hekate_vdisk_lost_changes" in store.cli("metrics").out, page
    # A unix socket beside the address: the door is opened anew, and clients connect again.
    path = store.path("nbd.sock")
    store.cli("nbd", "enable", "v", "--listen", f"127.0.0.1:{port}", "--plain", "--socket", path)
    wait_until(lambda: len(here(store)) == 2, "both are open")
    assert "16777216" in sh("nbdinfo", f"nbd+unix:///d?socket={path}")
    store.kill_server()
    store.serve()
    wait_until(lambda: len(here(store)) == 2, "both are open after a restart")
    with_socket = nbd.NBD()
    with_socket.connect_uri(f"nbd+unix:///d?socket={path}")
    same_bytes(with_socket.pread(BLOCK, 0), b"x" * BLOCK, "what was written before")
    store.cli("nbd", "disable", "v")
    wait_until(lambda: not store.cli("--json", "nbd", "list").json(), "no door is open")
    wait_until(lambda: not os.path.exists(path), "the socket is gone")
    store.refuses("nbd", "disable", "v", words=["not open"])


def test_a_port_in_use_is_named(store):
    store.init()
    store.serve()
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        store.refuses("nbd", "enable", "v", "--listen", f"127.0.0.1:{port}", "--plain", words=["another program", str(port)])
    wait_until(lambda: here(store), "the door is open once the port is free")
    precious = store.path("precious")
    with open(precious, "w") as file:
        file.write("mine")
    store.refuses("nbd", "enable", "v", "--socket", precious, words=["no socket", precious])
    with open(precious) as file:
        equal(file.read(), "mine", "a file that was no socket")


def test_clients_of_the_cluster_are_let_in_by_their_certificates(store):
    one_server(store)
    store.cli("volume", "create", "other", "--copies", "1")
    port = opened(store)
    good, reader, stranger = (
        pem(store, "good", "--volume", "v"),
        pem(store, "reader", "--volume", "v", "--read-only"),
        pem(store, "stranger", "--volume", "other"),
    )
    client = connected(port, good)
    client.pwrite(b"g" * BLOCK, 0, nbd.CMD_FLAG_FUA)
    assert "d" in sh("nbdinfo", "--list", f"nbds://127.0.0.1:{port}/?tls-certificates={good}")
    reads = connected(port, reader)
    assert reads.is_read_only() and not client.is_read_only()
    same_bytes(reads.pread(BLOCK, 0), b"g" * BLOCK, "what the reader reads")
    with pytest.raises(nbd.Error, match="policy"):
        connected(port, stranger)
    with open(f"{store.state}/serve.log") as log:
        assert "may not use volume v" in log.read(), "the log says why"
    with pytest.raises(nbd.Error):
        plain = nbd.NBD()
        plain.connect_uri(f"nbd://127.0.0.1:{port}/d")
    equal(os.stat(f"{good}/client-key.pem").st_mode & 0o777, 0o600, "mode of the key")
    # Revoked: its connection ends, and it cannot come back.
    store.cli("client", "revoke", "good")

    def is_ended():
        try:
            client.pread(BLOCK, 0)
            return False
        except nbd.Error:
            return True

    wait_until(is_ended, "the connection of a revoked client has ended", limit_s=10)
    with pytest.raises(nbd.Error):
        connected(port, good)
    same_bytes(reads.pread(BLOCK, 0), b"g" * BLOCK, "others go on")

