"""What operators see: rates and latencies, metrics for Prometheus, slow ops, a bundle for who helps; bricks added and removed."""

import errno
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request

import pytest

from harness import HEKATE, equal, free_port, raises, read, wait_until, write
from test_bricks import SHARD, damage
from test_failover import goes_on
from test_scrub import files_of, flip_in_memory


def samples(text):
    """-> {name and labels: value} of OpenMetrics text, whose form is checked."""
    assert text.endswith("# EOF\n"), "OpenMetrics ends with # EOF"
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (EOF|(HELP|TYPE|UNIT) [a-z_]+ .+)", line), line
            continue
        name, value = re.fullmatch(r'([a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})?) (\S+)', line).groups()
        assert name not in found, f"{name} twice"
        found[name] = float(value)
    return found


def test_prometheus_reads_counters_and_histograms(store):
    port = free_port()
    store.init(bricks=2)
    store.serve("--metrics", f"127.0.0.1:{port}")
    mnt = store.mount()
    for number in range(50):
        write(f"{mnt}/{number}", b"x" * 100)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text"), answer.headers
        found = samples(answer.read().decode())
    equal(found['hekate_op_duration_seconds_count{op="create"}'], 50, "creates")
    equal(found['hekate_op_duration_seconds_bucket{le="+Inf",op="create"}'], 50, "creates in all buckets")
    buckets = [value for name, value in found.items() if name.startswith('hekate_op_duration_seconds_bucket{') and 'op="create"' in name]
    equal(buckets, sorted(buckets), "buckets are cumulative")
    assert found['hekate_op_duration_seconds_sum{op="create"}'] > 0
    equal(sum(value for name, value in found.items() if name.startswith("hekate_brick_online{")), 2, "bricks online")
    equal(found["hekate_partitions_waiting"], 0, "waiting partitions")
    assert found["process_resident_memory_bytes"] > 1 << 20 and found["process_cpu_seconds_total"] >= 0
    printed = samples(store.cli("metrics").out)
    equal(set(found) - set(printed), set(), "what `hekate metrics` lacks")
    for path, status in (("/", 404), ("/metrics/x", 404)):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)
            raise AssertionError(f"{path} was answered")
        except urllib.error.HTTPError as error:
            equal(error.code, status, path)
    store.umount()
    store.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused = store.try_cli("serve", "--detach", "--metrics", f"127.0.0.1:{port}")
    equal(refused.exit, 74, f"a port that is taken: {refused.err}")
    assert f"127.0.0.1:{port}" in refused.err, refused.err


def test_status_is_watched(store):
    mnt = store.up()
    words = [HEKATE, "--state", store.state, "status", "--watch", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        ends = threading.Event()
        worker = threading.Thread(target=lambda: [write(f"{mnt}/f", b"x") for _ in iter(ends.is_set, True)])
        worker.start()
        time.sleep(3.5)
        store.kill_server()
        time.sleep(1.5)
        store.serve()
        time.sleep(2.5)
        ends.set()
        worker.join()
        # Not SIGINT, which what a shell started in the background ignores.
        watching.terminate()
        out = watching.communicate(timeout=10)[0]
    for words in ("health good", "A SECOND", "create", "is it running?"):
        assert words in out, f"{words!r} is not in\n{out}"
    assert re.search(r"^(write|getattr|lookup) +\d+\.\d +0 +\d+ us +\d+ us", out, re.M), out
    assert out.rindex("health good") > out.index("is it running?"), "it goes on when the server is back"
    words = [HEKATE, "--json", "--state", store.state, "status", "--watch", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        lines = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.kill()
    equal([line["health"] for line in lines], ["good", "good"], "a JSON object a line")


def log_of(store):
    return read(f"{store.state}/serve.log").decode()


def test_damage_that_a_read_meets_is_shown_until_it_is_gone(store):
    mnt = store.up()
    for name in ("kept", "removed"):
        write(f"{mnt}/{name}", os.urandom(SHARD), os.O_SYNC)
    store.stop()
    paths = [path for brick in store.bricks(2) for path in files_of(brick, "data")]
    equal(len(paths), 4, "two files of two copies each")
    for path in paths:
        damage(path, 500 * 4096)
    store.serve()
    equal(store.status()["health"], "good", "health before anything is read")
    for name in ("kept", "removed"):
        for _ in range(2):
            raises(errno.EIO, read, f"{mnt}/{name}")
    told = store.status()
    equal((told["health"], told["damaged"], len(told["damage"])), ("degraded", 2, 2), "what a read has met")
    equal(samples(store.cli("metrics").out)["hekate_damaged"], 2, "in the metrics")
    names = {f"block 500 of {os.path.relpath(path, os.path.dirname(os.path.dirname(os.path.dirname(path))))}" for path in paths}
    equal({item["what"] for item in told["damage"]}, names, "what is named")
    text = store.cli("status").out
    for item in told["damage"]:
        for where, what in (("status", text), ("the log", log_of(store))):
            lines = [line for line in what.splitlines() if item["what"] in line]
            equal(len(lines), 1, f"lines in {where} of {item['what']}")
            for word in ("volume v", item["directory"], "from a backup"):
                assert word in lines[0], f"{where} lacks {word!r}: {lines[0]}"
    with open(f"{mnt}/kept", "r+b") as file:
        file.seek(500 * 4096)
        file.write(os.urandom(4096))
    wait_until(lambda: store.status()["damaged"] == 1, "what was written anew is not counted any more")
    os.unlink(f"{mnt}/removed")
    wait_until(lambda: store.status()["health"] == "good", "what was removed is not counted any more")
    equal(samples(store.cli("metrics").out)["hekate_damaged"], 0, "in the metrics")
    equal(len(read(f"{mnt}/kept")), SHARD, "the file that was written anew")


def store_mapped(path, at, byte):
    """Stores a byte through a shared mapping; the page is written back when this returns."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[at] = byte
        mapped.flush()


def test_a_file_that_two_mounts_without_pledges_map_is_named_once(store):
    store.init()
    store.serve()
    mnt = store.mount("mnt", options=("-o", "nopledges"))
    other = store.mount("other", options=("-o", "nopledges"))
    for name in ("shared", "alone", "written"):
        write(f"{mnt}/{name}", bytes(100_000))
    for round in range(3):
        store_mapped(f"{mnt}/alone", round, 1)
        store_mapped(f"{mnt}/written", round, 1)
        with open(f"{other}/written", "r+b") as file:
            file.write(b"x")
        store_mapped(f"{mnt}/shared", round, 1)
        store_mapped(f"{other}/shared", 4096 + round, 2)
    wait_until(lambda: store.status()["mapped_by_two"] == 1, "the file that both have mapped is counted")
    number = os.stat(f"{mnt}/shared").st_ino
    told = store.status()
    equal([(row["volume"], row["inode"]) for row in told["mapped_files"]], [("v", number)], "which")
    # The second mount has the log of the first one.
    session = int(re.search(r"is mounted as session (\d+)", read(f"{store.state}/mount-v.log").decode())[1])
    assert session in told["mapped_files"][0]["sessions"], (session, told["mapped_files"])
    # More of it, for some heartbeats, is not told again.
    for round in range(3):
        store_mapped(f"{mnt}/shared", round, 3)
        store_mapped(f"{other}/shared", 4096 + round, 4)
        time.sleep(1.1)
    equal(store.status()["mapped_by_two"], 1, "counted once")
    lines = [line for line in log_of(store).splitlines() if "is mapped and stored to by two mounts" in line]
    equal(len(lines), 1, "lines in the log")
    for word in ("volume v", f"inode {number} ", "of user 0", "journal_mode=DELETE", *(f"session {row}" for row in told["mapped_files"][0]["sessions"])):
        assert word in lines[0], f"the log lacks {word!r}: {lines[0]}"
    assert "warning: two mounts (sessions " in store.cli("status").out
    equal(samples(store.cli("metrics").out)["hekate_files_mapped_by_two_mounts_total"], 1, "in the metrics")
    equal(store.status()["health"], "good", "health")


@pytest.mark.limit(150)
def test_each_brick_that_stops_is_named_with_its_cause_and_the_fix(store):
    store.init(bricks=3, volume=None)
    store.serve()
    store.cli("volume", "create", "v", "--copies", "3", "--min-replicas", "1")
    mnt = store.mount()
    names = [f"{os.urandom(20).hex()}-{number}" for number in range(20)]
    for name in names:
        write(f"{mnt}/{name}", name.encode())
    store.stop()
    bricks = store.bricks(2)
    for brick, name in zip(bricks, names):
        assert flip_in_memory(brick, name.encode()), "the name is not in the index"
    store.serve()
    stopped = lambda: [row for row in store.cli("--json", "brick", "list").json() if row["state"] == "stopped"]

    def both_have_stopped():
        # While views are formed without the first one, a scrub of the other cannot ask who else has the entry.
        store.try_cli("scrub", "start", "--wait")
        return len(stopped()) == 2

    wait_until(both_have_stopped, "two bricks have stopped", limit_s=60)
    goes_on(store, mnt, "without them")
    equal({row["directory"] for row in stopped()}, set(bricks), "which")
    for row in stopped():
        assert row["brick"] in row["reason"], row
        (line,) = [line for line in log_of(store).splitlines() if line.startswith(f"hekate-serve: brick {row['directory']} (")]
        for word in (row["brick"], row["reason"], f"hekate brick replace {row['directory']} "):
            assert word in line, f"the log lacks {word!r}: {line}"
    for command in ("status", "brick list"):
        text = store.cli(*command.split()).out
        for row in stopped():
            assert f"brick {row['directory']} of server 1 has stopped: {row['reason']}" in text, f"{command}: {text}"
            assert f"hekate brick replace {row['directory']} " in text, f"{command}: {text}"
    for command in ("status", "brick list", "partition list", "heal list"):
        text = store.try_cli(*command.split()).out
        assert not re.search(r"\baway\b", text), f"{command} calls a stopped brick away: {text}"
    equal(store.status()["health"], "degraded", "health")
    equal(sorted(set(os.listdir(mnt)) & set(names)), sorted(names), "names")
    for name in names:
        equal(read(f"{mnt}/{name}"), name.encode(), name)
    store.umount()
    store.stop()


def test_slow_ops_are_kept_and_named(store):
    store.init(bricks=2)
    store.serve("--slow-op", "1")
    mnt = store.mount()
    handle = os.open(f"{mnt}/secret-name", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
    number = os.fstat(handle).st_ino

    def kept():
        os.write(handle, os.urandom(256 << 10))
        return store.cli("--json", "debug", "slow").json()["ops"]

    wait_until(kept, "an op of over a millisecond", 30)
    found = store.cli("--json", "debug", "slow").json()
    equal(found["limit_milliseconds"], 1, "the limit")
    assert found["count"] >= len(found["ops"]) >= 1
    assert all(op["milliseconds"] >= 1 and op["syncing_milliseconds"] <= op["milliseconds"] for op in found["ops"]), found
    text = store.cli("debug", "slow").out
    assert "op(s) at work" in text and "secret-name" not in text, text
    assert "slow op: " in read(f"{store.state}/serve.log").decode()
    os.close(handle)
    assert number > 0


def test_an_op_that_waits_is_seen_at_work(store):
    address = f"127.0.0.1:{free_port()}"
    store.init(bricks=1, volume=None)
    store.serve("--listen", address)
    store.join("second")
    store.serve_other("second", "--listen", f"127.0.0.1:{free_port()}")
    # The first server leads and hosts the coordinator, so it keeps its lease while the second one is stopped.
    store.cli("volume", "create", "both", "--copies", "2", "--leader", "1")
    mnt = store.mount(volume="both")
    wait_until(lambda: not store.status()["waiting_partitions"], "all partitions serve")
    at_work = lambda: [op for op in store.cli("--json", "debug", "slow").json()["at_work"] if op["op"] == "create"]
    equal(at_work(), [], "nothing is at work")
    os.kill(store.other_pids["second"], signal.SIGSTOP)
    try:
        writers = [threading.Thread(target=write, args=(f"{mnt}/{number}", b"x")) for number in range(8)]
        for writer in writers:
            writer.start()
        wait_until(lambda: any(op["milliseconds"] > 300 for op in at_work()), "a create is at work for 300 ms")
    finally:
        os.kill(store.other_pids["second"], signal.SIGCONT)
    for writer in writers:
        writer.join(timeout=60)
    equal(sorted(os.listdir(mnt)), [str(number) for number in range(8)], "files in the end")
    wait_until(lambda: not at_work(), "nothing is at work any more")


def test_a_bundle_says_no_names(store):
    store.init(bricks=2, volume="holiday")
    store.serve()
    mnt = store.mount(volume="holiday")
    write(f"{mnt}/letter", b"x")
    made = store.path("bundle.tar.gz")
    told = store.cli("--json", "debug", "bundle", made).json()
    equal(os.stat(made).st_mode & 0o777, 0o600, "mode of the bundle")
    with tarfile.open(made) as archive:
        files = {entry.name.removeprefix("hekate-debug/"): archive.extractfile(entry).read() for entry in archive}
    equal(sorted(files), sorted(told["holds"]), "files")
    for name in ("status.json", "bricks.json", "volumes.json", "metrics.txt", "doctor.json", "slow-ops.json", "logs/serve.log"):
        assert files[name], name
    everything = b"\n".join(files.values()) + "\n".join(files).encode()
    seal = read(f"{store.state}/seal.key")
    for hidden in (b"holiday", b"letter", store.bricks(2)[0].encode(), store.state.encode(), mnt.encode(), seal, seal.hex().encode(), b"PRIVATE KEY", b"-----BEGIN"):
        assert hidden not in everything, f"{hidden!r} is in the bundle"
    host = re.escape(os.uname().nodename.encode())
    assert not re.search(rb"(?<![\w.-])" + host + rb"(?![\w-])", everything), "the host's name is in the bundle"
    equal(json.loads(files["status.json"])["health"], "good", "it is JSON still")
    tokens = {row["stands_for"]: row["token"] for row in told["tokens"]}
    assert f'"{tokens["holiday"]}"'.encode() in files["volumes.json"], files["volumes.json"]
    again = store.try_cli("debug", "bundle", made)
    equal(again.exit, 73, f"twice to the same file: {again.err}")
    named = store.path("named.tar.gz")
    store.cli("debug", "bundle", "--with-names", named)
    with tarfile.open(named) as archive:
        assert b"holiday" in archive.extractfile("hekate-debug/volumes.json").read()
    store.umount()
    store.stop()
    alone = store.cli("--json", "debug", "bundle", store.path("alone.tar.gz")).json()
    assert any(what.startswith("status.json") for what in alone["missing"]), "without a server it says what is missing"
    store.serve()


def test_bricks_are_added_and_removed(store):
    mnt = store.up(bricks=2)
    write(f"{mnt}/f", b"stays")
    third = store.directory("third")
    made = store.cli("--json", "brick", "add", third).json()
    equal((made["directory"], made["unopened"]), (third, True), "brick add")
    assert "already" in store.try_cli("brick", "add", third).err
    rows = {row["directory"]: row for row in store.cli("--json", "brick", "list").json()}
    equal((rows[third]["state"], rows[third]["replicas"]), ("not opened yet", 0), "a brick that is not open yet")
    refused = store.try_cli("volume", "create", "three", "--copies", "3")
    equal(refused.exit, 64, f"nothing is placed on it yet: {refused.err}")
    store.umount()
    store.stop()
    store.serve()
    mnt = store.mount()
    equal(read(f"{mnt}/f"), b"stays", "bytes")
    equal(store.cli("--json", "brick", "show", third).json()["state"], "online", "after the next start")
    store.cli("brick", "remove", third)
    equal(len(store.cli("--json", "brick", "list").json()), 2, "bricks after one was removed")
    fourth = store.directory("fourth")
    store.cli("brick", "add", fourth)
    store.umount()
    store.stop()
    store.serve()
    store.cli("volume", "create", "three", "--copies", "3")
    mnt = store.mount("three", volume="three")
    write(f"{mnt}/f", b"on three")
    for verb in ("remove", "drain"):
        refused = store.try_cli("brick", verb, fourth)
        equal(refused.exit, 69, f"brick {verb}: {refused.err}")
        assert "three" in refused.err and "it holds" in refused.err, refused.err
    assert "nothing rests" not in store.try_cli("brick", "drain", fourth).err


def test_bricks_that_cannot_be_added(store):
    store.init(bricks=2)
    store.serve()
    full = store.directory("full")
    write(f"{full}/x", b"x")
    brick = store.bricks(2)[0]
    for words, code, said in (
        ([full], 64, "not empty"),
        ([f"{brick}/inner"], 64, "lie in each other"),
        ([brick], 64, "is a brick of this server already"),
        ([store.path("new"), "--pool", "none"], 64, "there is no pool called none; there are: default"),
        ([store.path("new"), "--journal", "1"], 64, "32"),
    ):
        refused = store.try_cli("brick", "add", *words)
        equal(refused.exit, code, f"brick add {words}: {refused.err}")
        assert said in refused.err, f"brick add {words}: {refused.err}"
    equal(len(store.cli("--json", "brick", "list").json()), 2, "bricks")
    assert not os.path.exists(store.path("new")), "nothing was made"
    missing = store.try_cli("brick", "show", "/nowhere")
    equal((missing.exit, brick in missing.err), (66, True), missing.err)
    store.stop()
    equal(store.try_cli("brick", "add", store.path("new")).exit, 69, "without a server")
    store.serve()
