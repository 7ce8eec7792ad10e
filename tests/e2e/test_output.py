"""What commands print, and TCP on loopback."""

import os
import re
import socket
import subprocess

import pytest

from harness import HEKATE, equal, read, write


def test_every_command_answers_in_json(store):
    bricks = [word for path in store.bricks(3) for word in ("--brick", path)]
    made = store.cli("--json", "init", *bricks, "--journal", "32", "--volume", "v", "--copies", "2").json()
    equal((len(made["bricks"]), made["volume"]), (3, "v"), "init")
    equal(store.try_cli("--json", "init", *bricks).json()["exit"], 73, "init twice")
    equal(store.try_cli("--json", "status").json()["exit"], 69, "status without a server")
    equal(store.try_cli("--json", "mount", "v", store.directory("mnt")).json()["exit"], 69, "mount without a server")
    store.serve()
    status = store.cli("--json", "status").json()
    equal((status["pid"], status["health"], len(status["bricks"])), (store.server_pid, "good", 3), "status")
    equal([pool["name"] for pool in store.cli("--json", "pool", "list").json()], ["default"], "pool list")
    equal(store.cli("--json", "pool", "show", "default").json()["name"], "default", "pool show")
    equal(store.cli("--json", "volume", "create", "w", "--copies", "3").json()["copies"], 3, "volume create")
    equal({row["name"] for row in store.cli("--json", "volume", "list").json()}, {"v", "w"}, "volume list")
    shown = store.cli("--json", "volume", "show", "w").json()
    equal((shown["name"], {len(view["members"]) for view in shown["views"]}, shown["weaker"]), ("w", {3}, []), "volume show")
    equal(store.try_cli("--json", "volume", "delete", "w").json()["exit"], 64, "volume delete without confirmation")
    equal(store.cli("--json", "volume", "delete", "w", "--confirm", "w").json()["name"], "w", "volume delete")
    store.mount()
    equal(store.try_cli("--json", "mount", "v", store.path("mnt")).json()["exit"] > 0, True, "mounted already")
    assert "checks" in store.cli("--json", "doctor").json()
    equal(store.cli("--json", "umount", store.path("mnt")).json()["mounted"], False, "umount")
    del store.mount_pids["mnt"]
    equal(store.cli("--json", "stop").json()["pid"], store.server_pid, "stop")
    store.server_pid = None
    store.serve()


def test_every_command_answers_people(store):
    store.init(bricks=3)
    store.serve()
    store.mount()
    wanted = {
        ("status",): ["health good", "BRICK", "brick0", "online", "VOLUME", "\nv "],
        ("pool", "list"): ["pool default", "brick2"],
        ("pool", "show", "default"): ["2 copies"],
        ("volume", "list"): ["VOLUME", "v"],
        ("volume", "show", "v"): ["all of the contract", "LEADER"],
        ("doctor",): ["kernel", "good"],
    }
    for command, words in wanted.items():
        text = store.cli(*command).out
        for word in words:
            assert word in text, f"hekate {' '.join(command)} lacks {word!r}:\n{text}"


def test_copies_are_on_as_many_bricks(store):
    """All of the data is on as many bricks as the volume has copies."""
    mnt = store.up(bricks=3)
    for number in range(8):
        write(f"{mnt}/{number}", os.urandom(1 << 20), os.O_SYNC)
    store.umount()
    store.stop()
    files = {}
    for brick in store.bricks(3):
        for directory, _, names in os.walk(f"{brick}/data"):
            for name in names:
                files.setdefault(name, []).append(read(f"{directory}/{name}"))
    equal({name: len(copies) for name, copies in files.items() if len(copies) != 2}, {}, "shards without two copies")
    different = [name for name, copies in files.items() if copies[0] != copies[1]]
    equal(different, [], "shards with different copies")
    equal(len(files), 8, "shards")


def test_tcp_with_a_certificate(store):
    store.init()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store.serve("--listen", f"127.0.0.1:{port}")
    address = f"tcp:127.0.0.1:{port}"
    equal(store.cli("--json", "status", server=address).json()["pid"], store.server_pid, "status over TCP")
    mnt = store.mount(server=address)
    write(f"{mnt}/f", b"f" * 3_000_000)
    equal(read(f"{mnt}/f"), b"f" * 3_000_000, "over TCP")
    local = store.mount("local")
    equal(read(f"{local}/f"), b"f" * 3_000_000, "and by the socket")
    store.kill_server()
    store.serve("--listen", f"127.0.0.1:{port}")
    equal(len(read(f"{mnt}/f")), 3_000_000, "over TCP after the server was killed")
    # A server of another cluster, and somebody who has nothing.
    stranger = store.path("stranger")
    store.cli("init", "--brick", store.path("theirs"), "--journal", "32", state=stranger)
    words = ["no root of this cluster has signed its certificate"]
    store.refuses("status", state=stranger, server=address, words=words, exits=[77])
    store.refuses("mount", "v", store.directory("m2"), state=stranger, server=address, words=words, exits=[77])
    words = ["needs a credential", "--credential FILE", "hekate client create"]
    store.refuses("status", state=store.directory("nothing"), server=address, words=words)
    # Somebody who says something else altogether does no harm.
    for noise in [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100_000]:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            try:
                connection.sendall(noise)
            except OSError:
                pass
    equal(store.status()["health"], "good", "health after noise")


@pytest.mark.no_fuse
def test_addresses_that_cannot_be_listened_at(store):
    store.init()
    store.refuses("serve", "--detach", "--listen", "192.0.2.1:7001", words=["no address of this machine", "0.0.0.0"])
    store.refuses("serve", "--detach", "--listen", "127.0.0.1:0", words=["fixed port"], exits=[64])
    store.refuses("serve", "--detach", "--listen", "Back=127.0.0.1:7001", words=["name of a network"], exits=[64])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        store.refuses("serve", "--detach", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", words=["(?i)in use"])
    store.serve()


@pytest.mark.no_fuse
def test_each_command_has_an_example_in_its_help(store):
    def leaves(*words):
        text = subprocess.run([HEKATE, *words, "--help"], capture_output=True, text=True, check=True).stdout
        listed = re.search(r"\nCommands:\n(.*?)\n\n", text, re.S)
        if not listed:
            return [(words, text)]
        names = [name for name in re.findall(r"^  ([a-z][a-z0-9-]*)", listed[1], re.M) if name != "help"]
        return [leaf for name in names for leaf in leaves(*words, name)]

    found = leaves()
    assert len(found) > 35, f"only {len(found)} commands"
    # Behind the usage, a line that is typed as it stands.
    lacks = [" ".join(words) for words, text in found if not re.search(rf"hekate (--state \S+ )?{'( [^ ]+)? '.join(words)}", text.split("Options:")[1])]
    equal(lacks, [], "commands whose help has no example")
