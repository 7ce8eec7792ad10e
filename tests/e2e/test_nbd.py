"""vDisks and the block door, by real NBD clients."""

import os
import random
import signal
import subprocess
import threading
import time

import nbd
import pytest

from certificates import make_key, openssl
from harness import HEKATE, equal, free_port, kill, same_bytes, wait_until, write

MIB = 1 << 20
BLOCK = 4096
# HEKATE_KILLS=N: so many kills of servers and doors in mid-write [3].
KILLS = int(os.environ.get("HEKATE_KILLS", "3"))


class Door:
    """`hekate nbd serve`, until the test ends."""

    def __init__(self, store, *options, volume="v", name="nbd"):
        self.store, self.volume, self.options = store, volume, options
        self.socket = store.path(f"{name}.sock")
        self.log = store.path(f"{name}.log")
        self.start()

    def start(self):
        line = [HEKATE, "--state", self.store.state, "nbd", "serve", self.volume, "--socket", self.socket, *self.options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log)
        wait_until(lambda: os.path.exists(self.socket) or self.process.poll() is not None, "the door is open")
        assert self.process.poll() is None, open(self.log).read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        equal(self.process.wait(30), 0, "exit status of the door")

    def kill(self):
        kill(self.process.pid)
        self.process.wait()
        os.unlink(self.socket)

    def uri(self, disk):
        return f"nbd+unix:///{disk}?socket={self.socket}"

    def connect(self, disk):
        client = nbd.NBD()
        client.add_meta_context("base:allocation")
        client.connect_uri(self.uri(disk))
        return client


def sh(*line, **named):
    limits = {"timeout": 120, **named}
    return subprocess.run(line, check=True, capture_output=True, text=True, **limits).stdout


def made(store, *sizes):
    store.init()
    store.serve()
    for number, size in enumerate(sizes):
        store.cli("vdisk", "create", "v", f"d{number}", size)
    return Door(store)


def blocks(seed, count):
    return random.Random(seed).randbytes(count * BLOCK)


# --- clients ---


def test_real_clients_read_what_others_wrote(store):
    door = made(store, "64M")
    assert "export-size: 67108864" in sh("nbdinfo", door.uri("d0"))
    assert "d0" in sh("nbdinfo", "--list", f"nbd+unix:///?socket={door.socket}")
    content = blocks(1, 5000)
    with open(store.path("image"), "wb") as file:
        file.write(content)
    sh("nbdcopy", store.path("image"), door.uri("d0"))
    sh("nbdcopy", door.uri("d0"), store.path("copy"))
    with open(store.path("copy"), "rb") as file:
        same_bytes(file.read(), content.ljust(64 * MIB, b"\0"), "what nbdcopy read")
    sh("qemu-img", "convert", "-f", "raw", "-O", "qcow2", door.uri("d0"), store.path("image.qcow2"))
    sh("qemu-img", "compare", door.uri("d0"), store.path("image.qcow2"))
    extents = sh("nbdinfo", "--map", "--totals", door.uri("d0"))
    assert "hole,zero" in extents and "data" in extents, extents
    client = door.connect("d0")
    client.trim(4 * MIB, 0)
    client.zero(MIB, 5 * MIB, nbd.CMD_FLAG_NO_HOLE)
    client.pwrite(b"x" * 700, 10 * MIB + 300, nbd.CMD_FLAG_FUA)
    same_bytes(client.pread(MIB, 0), bytes(MIB), "trimmed")
    same_bytes(client.pread(2 * MIB, 5 * MIB), bytes(MIB) + content[6 * MIB : 7 * MIB], "zeroed, and what follows")
    same_bytes(client.pread(1000, 10 * MIB), content[10 * MIB :][:300] + b"x" * 700, "a part of a block")
    found = []
    client.block_status(64 * MIB, 0, lambda context, offset, entries, error: found.extend(entries))
    equal(found[:2], [4 * MIB, nbd.STATE_HOLE | nbd.STATE_ZERO], "the first extent")
    client.shutdown()
    door.stop()


def test_several_connections_of_one_client_and_a_flush_that_covers_all(store):
    door = made(store, "64M")
    clients = [door.connect("d0") for _ in range(4)]
    assert all(client.can_multi_conn() for client in clients)

    def work(number):
        for block in range(number, 400, 4):
            clients[number].pwrite(bytes([block % 251 + 1]) * BLOCK, block * BLOCK)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    clients[0].flush()
    found = clients[3].pread(400 * BLOCK, 0)
    same_bytes(found, b"".join(bytes([block % 251 + 1]) * BLOCK for block in range(400)), "what four have written")
    [client.shutdown() for client in clients]
    door.stop()


# --- snapshots ---


def test_snapshots_and_clones_while_the_vdisk_is_written(store):
    door = made(store, "64M")
    client = door.connect("d0")
    before, after = blocks(2, 1000), blocks(3, 1000)
    client.pwrite(before, 0)
    said = store.cli("vdisk", "snapshot", "v", "d0", "first", "--label", "why=test").out
    assert "made snapshot d0@first" in said, said
    client.pwrite(after, 0)
    store.cli("vdisk", "clone", "v", "d0@first", "copy")
    snapshot, copy = door.connect("d0@first"), door.connect("copy")
    same_bytes(snapshot.pread(len(before), 0), before, "the snapshot")
    assert snapshot.is_read_only()
    copy.pwrite(b"c" * BLOCK, 0)
    same_bytes(copy.pread(len(before), 0), b"c" * BLOCK + before[BLOCK:], "the clone")
    same_bytes(client.pread(len(after), 0), after, "the vDisk")
    store.refuses("vdisk", "rollback", "v", "d0", "first", words=["--yes"])
    store.refuses("vdisk", "rollback", "v", "d0", "first", "--yes", words=["NBD clients", "disconnect"])
    store.refuses("vdisk", "snapshot", "v", "d0", "first", words=["a snapshot first already"])
    store.refuses("vdisk", "clone", "v", "d0", "other", words=["hekate vdisk snapshot v d0"])
    shown = store.cli("--json", "vdisk", "show", "v", "d0").json()
    equal(shown["snapshots"][0]["labels"], {"why": "test"}, "labels")
    assert shown["space"]["shared"] > 0 and shown["open_at"], shown
    [one.shutdown() for one in (client, snapshot, copy)]
    wait_until(lambda: not store.cli("--json", "vdisk", "show", "v", "d0").json()["open_at"], "the door gives it up")
    store.cli("vdisk", "rollback", "v", "d0", "first", "--yes")
    client = door.connect("d0")
    same_bytes(client.pread(len(before), 0), before, "rolled back")
    store.cli("vdisk", "resize", "v", "d0", "128M")
    store.refuses("vdisk", "resize", "v", "d0", "32M", words=["--shrink"])
    client.shutdown()
    client = door.connect("d0")
    equal(client.get_size(), 128 * MIB, "size of the next connection")
    client.shutdown()
    store.cli("vdisk", "rename", "v", "copy", "base")
    wait_until(lambda: not store.cli("--json", "vdisk", "show", "v", "base").json()["open_at"], "the door gives it up")
    store.cli("vdisk", "template", "v", "base")
    store.cli("vdisk", "clone", "v", "base", "of-template")
    store.cli("vdisk", "delete", "v", "d0@first")
    store.refuses("vdisk", "delete", "v", "d0", words=["--yes"])
    store.cli("vdisk", "delete", "v", "d0", "--yes")
    client = door.connect("of-template")
    same_bytes(client.pread(len(before), 0), b"c" * BLOCK + before[BLOCK:], "of the template")
    client.shutdown()
    equal([disk["vdisk"] for disk in store.cli("--json", "vdisk", "list", "v").json()], ["base", "of-template"], "vDisks")
    door.stop()


def test_a_scrub_gives_space_back_and_changes_no_byte(store):
    door = made(store, "64M")
    client = door.connect("d0")
    content = bytearray(blocks(4, 8000))
    client.pwrite(bytes(content), 0)
    store.cli("vdisk", "snapshot", "v", "d0", "old")
    for block in range(0, 8000, 2):
        content[block * BLOCK : (block + 1) * BLOCK] = blocks(block, 1)
    for at in range(0, len(content), 4 * MIB):
        client.pwrite(bytes(content[at : at + 4 * MIB]), at)
    store.cli("vdisk", "delete", "v", "d0@old")
    client.shutdown()
    client = connect_again(store, door)
    before = store.cli("--json", "vdisk", "show", "v", "d0").json()["space"]["own"]
    done = store.cli("--json", "vdisk", "scrub", "v", "d0").json()
    equal((done["merged"], done["removed"]), (1, 1), "layers")
    after = store.cli("--json", "vdisk", "show", "v", "d0").json()["space"]["own"]
    assert after < before * 0.7, (before, after)
    same_bytes(client.pread(len(content) // 2, 0), bytes(content[: len(content) // 2]), "after the scrub")
    client.shutdown()
    door.stop()


# --- deaths ---


def write_until(client, model, chance, end):
    """Writes blocks until a time, or an error -> the blocks whose write was not acknowledged, and whether there was an error."""
    while time.monotonic() < end():
        block, data = chance.randrange(16000), bytes([chance.randrange(1, 255)]) * BLOCK
        try:
            client.pwrite(data, block * BLOCK)
        except nbd.Error:
            return {block}, True
        model[block * BLOCK : (block + 1) * BLOCK] = data
        try:
            if chance.random() < 0.1:
                client.flush()
        except nbd.Error:
            return set(), True
    return set(), False


def check_model(client, model, doubtful, when):
    found = b"".join(client.pread(16 * MIB, at * 16 * MIB) for at in range(4))
    for block in range(len(model) // BLOCK):
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        if found[here] != model[here]:
            assert block in doubtful, f"{when}: block {block} was acknowledged and is not there"
            model[here] = found[here]


@pytest.mark.limit(120 + 20 * KILLS)
def test_a_vdisk_goes_on_when_its_server_is_killed_and_comes_back(store):
    door = made(store, "64M")
    client, model, chance = door.connect("d0"), bytearray(64 * MIB), random.Random(5)
    for turn in range(max(2, KILLS // 2)):
        stop = [None]

        def kill_and_serve():
            time.sleep(chance.uniform(0.2, 0.6))
            store.kill_server()
            store.serve()
            stop[0] = time.monotonic() + 0.3

        thread = threading.Thread(target=kill_and_serve)
        thread.start()
        doubtful, failed = write_until(client, model, chance, lambda: stop[0] or time.monotonic() + 60)
        thread.join()
        assert not failed, f"turn {turn}: a write failed instead of waiting for the server"
        check_model(client, model, doubtful, f"turn {turn}")
    client.shutdown()
    door.stop()


@pytest.mark.limit(120 + 20 * KILLS)
def test_acknowledged_bytes_are_there_after_the_door_was_killed_in_mid_write(store):
    door = made(store, "64M")
    model, chance = bytearray(64 * MIB), random.Random(6)
    for turn in range(max(3, KILLS // 2)):
        client = door.connect("d0")
        timer = threading.Timer(chance.uniform(0.2, 0.8), door.kill)
        timer.start()
        doubtful, failed = write_until(client, model, chance, lambda: time.monotonic() + 60)
        timer.join()
        assert failed, f"turn {turn}: the door was not killed in mid-write"
        door.start()
        client = connect_again(store, door)
        check_model(client, model, doubtful, f"turn {turn}")
        client.shutdown()
    door.stop()


def connect_again(store, door, disk="d0"):
    """Connects once the session of the killed door has ended."""
    wait_until(lambda: not store.cli("--json", "vdisk", "show", "v", disk).json()["open_at"], "its session has ended")
    return door.connect(disk)


@pytest.mark.root
def test_ext4_on_a_vdisk_is_clean_after_the_door_was_killed(store):
    door = made(store, "256M")
    mnt, file = store.directory("fs"), store.path("disk")
    open(file, "w").close()
    fuse = subprocess.Popen(["nbdfuse", file, door.uri("d0")])
    try:
        wait_until(lambda: os.path.getsize(file) == 256 * MIB, "nbdfuse shows the vDisk")
        sh("mkfs.ext4", "-q", "-F", file)
        sh("mount", "-o", "loop", file, mnt)
        for number in range(30):
            with open(f"{mnt}/{number}", "wb") as written:
                written.write(blocks(number, 40))
        sh("sync", "-f", mnt)
        door.kill()
    finally:
        subprocess.run(["umount", "-l", mnt], check=False, capture_output=True)
        subprocess.run(["fusermount3", "-u", "-z", file], check=False, capture_output=True)
        fuse.kill()
        fuse.wait()
    door.start()
    connect_again(store, door).shutdown()
    sh("nbdcopy", door.uri("d0"), store.path("image"))
    checked = subprocess.run(["e2fsck", "-f", "-y", store.path("image")], capture_output=True, text=True)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    sh("mount", "-o", "loop,ro", store.path("image"), mnt)
    try:
        for number in range(30):
            with open(f"{mnt}/{number}", "rb") as found:
                same_bytes(found.read(), blocks(number, 40), f"file {number}")
    finally:
        sh("umount", mnt)
    door.stop()


def test_a_vdisk_that_is_taken_away_is_changed_no_more_by_whoever_had_it(store):
    door = made(store, "64M")
    client = door.connect("d0")
    before = blocks(7, 500)
    client.pwrite(before, 0)
    client.flush()
    store.refuses("vdisk", "steal", "v", "d0", words=["would lose d0", "--yes"])
    said = store.cli("vdisk", "steal", "v", "d0", "--yes").out
    assert "took d0 from" in said, said
    other = Door(store, name="other")
    new = other.connect("d0")
    same_bytes(new.pread(len(before), 0), before, "what the one before has flushed")
    new.pwrite(b"n" * BLOCK, 0, nbd.CMD_FLAG_FUA)
    try:
        for block in range(50):
            client.pwrite(b"o" * BLOCK, block * BLOCK)
    except nbd.Error:
        pass
    for failing in (client.flush, lambda: client.pwrite(b"o" * BLOCK, 0, nbd.CMD_FLAG_FUA), client.flush):
        with pytest.raises(nbd.Error):
            failing()
    with pytest.raises(nbd.Error):
        client.pread(BLOCK, 0)
    same_bytes(new.pread(len(before), 0), b"n" * BLOCK + before[BLOCK:], "the vDisk of its new owner")
    new.shutdown()
    again = connect_again(store, other)
    same_bytes(again.pread(len(before), 0), b"n" * BLOCK + before[BLOCK:], "after it was opened again")
    again.shutdown()
    client.shutdown()
    store.refuses("vdisk", "steal", "v", "d0", "--yes", words=["nobody has d0 open"])
    [one.stop() for one in (door, other)]


# --- mistakes ---


def test_mistakes_are_named_with_their_mend(store):
    door = made(store, "64M", "64M")
    client = door.connect("d0")
    other = Door(store, name="other")
    with pytest.raises(nbd.Error) as refused:
        other.connect("d0")
    assert refused.value.errno, refused.value
    with pytest.raises(nbd.Error):
        door.connect("nonesuch")
    store.refuses("vdisk", "delete", "v", "d0", "--yes", words=["d0 is open at", "close it there"])
    for line, words in (
        (["create", "v", "d0", "1G"], ["a vDisk d0 already"]),
        (["create", "v", "a/b", "1G"], ["cannot be a name"]),
        (["create", "v", "x", "100"], ["multiple of 512"]),
        (["create", "v", "x", "100T"], ["at most 64 TiB"]),
        (["create", "nonesuch", "x", "1G"], ["nonesuch"]),
        (["show", "v", "nonesuch"], ["no vDisk nonesuch", "d0, d1"]),
        (["clone", "v", "d0@nonesuch", "x"], ["no snapshot nonesuch"]),
        (["rename", "v", "d1", "d0"], ["a vDisk d0 already"]),
        (["resume", "v", "d1"], ["needs no resume"]),
    ):
        store.refuses("vdisk", *line, words=words)
    store.refuses("nbd", "serve", "v", "--listen", "127.0.0.1:1", words=["--client-ca", "--plain"])
    port = free_port()
    third = Door(store, "--listen", f"127.0.0.1:{port}", "--plain", name="third")
    store.refuses("nbd", "serve", "v", "--listen", f"127.0.0.1:{port}", "--plain", words=[str(port), "another program"])
    client.shutdown()
    [one.stop() for one in (door, other, third)]


def make_certificates(directory):
    """An authority, and certificates of it for a server and a client, named as libnbd wants them."""
    at = lambda name: f"{directory}/{name}"
    make_key(at("ca-key.pem"))
    openssl("req", "-x509", "-new", "-key", at("ca-key.pem"), "-subj", "/CN=test", "-days", "9", "-out", at("ca-cert.pem"))
    names = b"subjectAltName=DNS:localhost,IP:127.0.0.1\n"
    for name, extensions in (("server", names), ("client", b"extendedKeyUsage=clientAuth\n")):
        make_key(at(f"{name}-key.pem"))
        write(at("extensions"), extensions)
        openssl("req", "-new", "-key", at(f"{name}-key.pem"), "-subj", f"/CN={name}", "-out", at("request"))
        ca = ["-CA", at("ca-cert.pem"), "-CAkey", at("ca-key.pem"), "-CAcreateserial", "-days", "9"]
        openssl("x509", "-req", "-in", at("request"), *ca, "-extfile", at("extensions"), "-out", at(f"{name}-cert.pem"))


def test_tls_asks_for_a_certificate_of_the_authority(store):
    made(store, "64M").stop()
    directory = store.directory("pki")
    make_certificates(directory)
    port = free_port()
    files = ["--certificate", f"{directory}/server-cert.pem", "--key", f"{directory}/server-key.pem"]
    door = Door(store, "--listen", f"127.0.0.1:{port}", *files, "--client-ca", f"{directory}/ca-cert.pem")
    uri = f"nbds://localhost:{port}/d0?tls-certificates={directory}"
    assert "with TLS" in sh("nbdinfo", uri)
    with open(store.path("image"), "wb") as file:
        file.write(blocks(9, 2000))
    sh("nbdcopy", store.path("image"), uri)
    sh("nbdcopy", uri, store.path("copy"))
    with open(store.path("copy"), "rb") as file:
        same_bytes(file.read(2000 * BLOCK), blocks(9, 2000), "over TLS")
    for wrong in (f"nbd://localhost:{port}/d0", f"nbds://localhost:{port}/d0?tls-certificates={store.directory('none')}"):
        assert subprocess.run(["nbdinfo", wrong], capture_output=True).returncode, wrong
    door.stop()
