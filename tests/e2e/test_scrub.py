"""Bits flipped on one server's disk: answered from another server's replica, mended, counted, and never spread."""

import os
import time
import re

import pytest

import index_sums
from harness import equal, free_port, read, same_bytes, wait_until, write
from test_bricks import DAMAGED, SHARD, damage
from test_compare import different
from test_failover import goes_on, has_healed

BLOCK = 4096


def two(store, options=()):
    """Two servers with a brick each, which have a copy each -> the mount. `options`: of `init`."""
    store.init(volume=None, bricks=1, options=options)
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address)
    store.join("s2")
    store.serve_other("s2")
    store.cli("volume", "create", "v", "--copies", "2", "--domain", "server")
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=20)
    return store.mount()


def apart(store):
    """The coordinator and two servers, each a process of its own, with a copy each -> the mount."""
    store.coordinate(f"127.0.0.1:{free_port()}")
    return two(store, ["--coordinator", store.token(state=store.path("c"))])


def flip(paths, wanted):
    """Flips bits of these bytes wherever they are in the files. -> how often they were found"""
    found = 0
    for path in paths:
        whole, at = read(path), -1
        while (at := whole.find(wanted, at + 1)) >= 0:
            damage(path, at + len(wanted) // 2)
            found += 1
    return found


def flip_in_memory(brick, wanted):
    """The same in a brick's index, with its sums made of what is wrong, as if it had been before it was written. -> how often they were found"""
    path = index_sums.paths(brick)[0]
    sound, before = index_sums.live(brick), read(path)
    found, after = flip([path], wanted), read(path)
    changed = {at // BLOCK for at in range(0, len(before), BLOCK) if before[at:at + BLOCK] != after[at:at + BLOCK]}
    index_sums.take_for_right(brick, changed & sound)
    return found


def files_of(brick, part):
    return [os.path.join(top, name) for top, _, names in os.walk(f"{brick}/{part}") for name in names]


def scrubbed(store):
    """What all bricks say of their scrubs, by directory."""
    # Its exit status says whether replicas are known to differ.
    rows = store.try_cli("--json", "scrub", "status").json()["bricks"]
    return {os.path.basename(row["directory"]): row["scrub"] for row in rows}


def ends_equal(store, second="s2-brick"):
    """Everything stops, and what rests on the two bricks is the same and sound."""
    store.umount()
    # Shards that nobody writes are closed, and notes go, after half a second.
    time.sleep(2.5)
    store.stop_other("s2")
    store.stop()
    report = store.try_cli("--json", "debug", "compare", store.path("brick0"), store.path(second)).json()
    equal(report["problem_count"], 0, "problems")
    # The last one to stop may have led alone for a moment, and reserved numbers or ended sessions then.
    others = [row for row in different(report) if row["what"] not in ("counters of the partition", "a slot of a session")]
    equal(others, [], "replicas")


@pytest.mark.limit(200)
def test_flipped_bits_are_mended_from_another_server(store):
    mnt = two(store)
    large = os.urandom(3 * SHARD)
    write(f"{mnt}/large", large, os.O_SYNC)
    contents = {f"{number}": b"what is in file %d: " % number + os.urandom(50) for number in range(60)}
    for name, content in contents.items():
        write(f"{mnt}/{name}", content)
        os.setxattr(f"{mnt}/{name}", "user.about", b"about " + content)
    equal(store.cli("scrub", "start", "--wait").exit, 0, "before anything is damaged")
    store.umount()
    store.stop_other("s2")
    store.stop()
    brick = store.path("s2-brick")
    blocks = 0
    for number, path in enumerate(files_of(brick, "data")):
        for block in (7, 100 + number, 900):
            damage(path, block * BLOCK + 5)
            blocks += 1
    equal(blocks, 9, "damaged blocks")
    # A file's content, and the attribute of another.
    entries = {name: flip_in_memory(brick, contents[name]) for name in ("3", "10", "20", "30", "40", "50")}
    assert all(entries.values()), f"not found in the index: {entries}"
    entries = {name: flip_in_memory(brick, b"about " + contents[name]) for name in ("5", "15", "25", "35", "45", "55")}
    assert all(entries.values()), f"not found in the index: {entries}"
    store.serve("--listen", store.address)
    store.serve_other("s2")
    has_healed(store)
    # What cannot be read differs, and is no reason to stop. s2 was stopped first: if it had to be compared when it came back, its
    # entries are right by now.
    proved = store.try_cli("--json", "heal", "status", "--prove")
    were_compared = proved.exit == 0
    differing = {row["brick"] for proof in proved.json()["proofs"] for row in proof["differing"]}
    assert were_compared != bool(differing), f"{proved.exit}: {proved.text[-500:]}"
    equal(store.status()["waiting_partitions"], [], "partitions after it")
    mnt = store.mount()
    leads = [row["leads"] for row in store.cli("--json", "brick", "list").json()]
    assert min(leads) > 0, f"one server leads all partitions: {leads}"
    same_bytes(read(f"{mnt}/large"), large, "answered from the other server's replica")
    for name, content in contents.items():
        same_bytes(read(f"{mnt}/{name}"), content, name)
        equal(os.getxattr(f"{mnt}/{name}", "user.about"), b"about " + content, f"attribute of {name}")
    by_reads = scrubbed(store)["s2-brick"]["mended_since_start"]
    # Who leads answers reads, and finds its own damage only. All files lie where their directory does.
    place = store.cli("--json", "where", "v:/3").json()["place"]
    leader = store.cli("--json", "volume", "show", "v").json()["views"][place["partition"]]["leader"]
    damaged = next(row["brick"] for row in store.cli("--json", "brick", "list").json() if row["directory"] == brick)
    assert by_reads > 0 or leader != damaged or were_compared, "reads have mended nothing"
    done = store.cli("--json", "scrub", "start", "--wait", "--volume", "v").json()
    equal(sum(row["scrub"]["last"]["damaged"] for row in done), 0, "what nobody could mend")
    told = scrubbed(store)
    # An attribute's value may lie in the index twice, once in a page that is not used any more.
    equal(told["s2-brick"]["mended_since_start"] - by_reads, told["s2-brick"]["last"]["mended"], "mended by the pass")
    assert told["s2-brick"]["mended_since_start"] >= blocks + (0 if were_compared else 12), told["s2-brick"]
    equal(told["brick0"]["mended_since_start"], 0, "mended on the sound brick")
    assert told["s2-brick"]["last"]["bytes_checked"] >= 3 * SHARD, told["s2-brick"]
    equal(store.cli("--json", "scrub", "start", "--wait", "--brick", brick).json()[0]["scrub"]["last"]["mended"], 0, "left")
    same_bytes(read(f"{mnt}/large"), large, "after the scrub")
    store.refuses("scrub", "start", "--brick", "/no/such/brick", words=["no brick called", "brick0"])
    store.refuses("scrub", "start", "--volume", "nowhere", words=["no volume called nowhere"])
    ends_equal(store)


@pytest.mark.limit(200)
def test_damage_on_all_servers_is_told_and_not_spread(store):
    mnt = two(store)
    large = os.urandom(SHARD)
    write(f"{mnt}/large", large, os.O_SYNC)
    store.stop_other("s2")
    store.stop()
    for brick in ("brick0", "s2-brick"):
        (path,) = files_of(store.path(brick), "data")
        damage(path, 500 * BLOCK)
    store.serve("--listen", store.address)
    store.serve_other("s2")
    has_healed(store)
    store.refuses("scrub", "start", "--wait", words=["block 500", "restore these files"], exits=[DAMAGED])
    equal(store.status()["health"], "degraded", "health")
    store.refuses("scrub", "status", words=["block 500"], exits=[DAMAGED])
    with open(f"{mnt}/large", "rb") as file:
        try:
            file.seek(499 * BLOCK)
            file.read(2 * BLOCK)
            raise AssertionError("damaged bytes were answered")
        except OSError:
            pass
        file.seek(0)
        same_bytes(file.read(400 * BLOCK), large[:400 * BLOCK], "what is not damaged")
    with open(f"{mnt}/large", "r+b") as file:
        file.seek(500 * BLOCK)
        file.write(large[500 * BLOCK:501 * BLOCK])
    store.cli("scrub", "start", "--wait")
    equal(store.status()["health"], "good", "health once it was written anew")
    same_bytes(read(f"{mnt}/large"), large, "in the end")
    ends_equal(store)


def is_replaced(store, brick):
    """A new brick takes the place of one whose server has stopped."""
    store.serve_other("s2", "--without", brick)
    store.cli("brick", "replace", brick, store.path("s2-new"), "--journal", "32", state=store.path("s2"))
    store.stop_other("s2")
    store.serve_other("s2", "--without", brick)
    has_healed(store)
    store.cli("brick", "remove", brick, state=store.path("s2"))


@pytest.mark.limit(200)
def test_a_brick_with_a_flipped_key_stops_and_others_answer(store):
    mnt = apart(store)
    names = [f"{os.urandom(20).hex()}-{number}" for number in range(20)]
    for name in names:
        write(f"{mnt}/{name}", name.encode())
    # In order, so that everything is in the index.
    store.stop_other("s2")
    brick = store.path("s2-brick")
    assert flip_in_memory(brick, names[3].encode()), "the name is not in the index"
    store.serve_other("s2")

    def found():
        return next(row for row in store.cli("--json", "brick", "list").json() if row["directory"] == brick)

    def has_stopped():
        # Who compares or lists may meet it before. A brick that is still out of the view is to be scrubbed again.
        store.try_cli("scrub", "start", "--wait")
        return found()["state"] == "stopped"

    wait_until(has_stopped, "the brick stops", limit_s=40)
    assert "replace the brick" in found()["reason"], found()["reason"]
    goes_on(store, mnt, "without it")
    equal(sorted(set(os.listdir(mnt)) & set(names)), sorted(names), "names")
    for name in names:
        same_bytes(read(f"{mnt}/{name}"), name.encode(), name)
    store.stop_other("s2")
    is_replaced(store, brick)


@pytest.mark.limit(200)
def test_a_brick_with_a_flipped_journal_is_replaced(store):
    mnt = apart(store)
    marks = [os.urandom(BLOCK) for _ in range(20)]
    file = os.open(f"{mnt}/written", os.O_RDWR | os.O_CREAT | os.O_SYNC)
    os.write(file, os.urandom(SHARD))
    for number, mark in enumerate(marks):
        os.pwrite(file, mark, number * 10 * BLOCK)
    store.kill_other("s2")
    brick = store.path("s2-brick")
    assert flip(files_of(brick, "journal"), marks[3][:64]), "the write is not in the journal"
    refused = store.refuses("serve", "--detach", state=store.path("s2"), words=["journal/", "rebuild this brick", "--without"])
    assert "offset" in refused.err, refused.err
    os.pwrite(file, b"meanwhile", 11 * BLOCK)
    for number, mark in enumerate(marks):
        same_bytes(os.pread(file, BLOCK, number * 10 * BLOCK), mark, f"block {number * 10}")
    is_replaced(store, brick)
    store.cli("scrub", "start", "--wait")
    # The mount hears of the brick that is new when it meets leaders that have moved there.
    goes_on(store, mnt, "healed")
    store.kill_server()
    for number, mark in enumerate(marks):
        same_bytes(os.pread(file, BLOCK, number * 10 * BLOCK), mark, f"block {number * 10} of the new brick")
    equal(os.pread(file, 9, 11 * BLOCK), b"meanwhile", "what was written meanwhile")
    os.close(file)
    store.serve("--listen", store.address)
    has_healed(store)


@pytest.mark.limit(200)
def test_a_brick_puts_flipped_bits_of_its_index_right(store):
    mnt = store.up()
    large = os.urandom(3 * SHARD)
    write(f"{mnt}/large", large, os.O_SYNC)
    contents = {f"{number:03}": b"what is in file %d: " % number + os.urandom(100) for number in range(400)}
    for name, content in contents.items():
        write(f"{mnt}/{name}", content)
    store.umount()
    store.stop()
    brick = store.path("brick0")
    index, blocks = index_sums.paths(brick)[0], index_sums.live(brick)
    kinds = {read(index)[block * BLOCK] for block in blocks}
    equal(kinds >= {1, 2}, True, f"there are leaves and branches: {kinds}")
    # One in each block, and in the header.
    for block in sorted(blocks | {0}):
        damage(index, block * BLOCK + int.from_bytes(os.urandom(2), "big") % (BLOCK if block else 320), bits=1 << block % 8)
    told = store.try_cli("--json", "brick", "inspect", "--check", brick)
    assert "flipped bit" in told.out, told.text[-500:]
    store.serve()
    mnt = store.mount()
    equal(sorted(os.listdir(mnt)), sorted([*contents, "large"]), "names")
    for name, content in contents.items():
        same_bytes(read(f"{mnt}/{name}"), content, name)
    same_bytes(read(f"{mnt}/large"), large, "large")
    done = store.cli("--json", "scrub", "start", "--wait").json()
    equal(sum(row["scrub"]["last"]["damaged"] for row in done), 0, "what nobody could mend")
    wait_until(lambda: scrubbed(store)["brick0"]["mended_since_start"] > 10, "what the brick has put right is counted")
    equal(store.status()["health"], "good", "health")
    store.umount()
    store.stop()
    equal(store.try_cli("brick", "inspect", "--check", brick).exit, 0, "what is left of it")


def keys_of_checksums(block):
    """Where in a block of an index keys of checksums are (docs/format/index.md)."""
    key = rb"\x01\x00.{5}\x00\x00\x00.{17}\x07\x00{7}[\x00-\x0f]\x00[\x00-\x0f]"
    return [found.start() for found in re.finditer(key, block, re.DOTALL)]


def stops_and_others_answer(store, harm):
    """`harm`: damages a block of the index of a stopped brick, if it is one that it is about. -> whether it was"""
    mnt = apart(store)
    large = os.urandom(3 * SHARD)
    write(f"{mnt}/large", large, os.O_SYNC)
    names = [f"{os.urandom(20).hex()}-{number}" for number in range(200)]
    for name in names:
        write(f"{mnt}/{name}", name.encode())
    store.stop_other("s2")
    brick = store.path("s2-brick")
    index = index_sums.paths(brick)[0]
    rests = read(index)
    harmed = [block for block in index_sums.live(brick) if harm(index, block, rests[block * BLOCK:(block + 1) * BLOCK])]
    assert harmed, "nothing was damaged"
    # Whoever meets it first: the opening, who compares, a read, the scrub.
    started = store.try_cli("--json", "serve", "--detach", state=store.path("s2"))
    if started.exit == 0:
        store.other_pids["s2"] = started.json()["pid"]
        store.try_cli("scrub", "start", "--wait")
        same_bytes(read(f"{mnt}/large"), large, "large")
        found = lambda: next(row for row in store.cli("--json", "brick", "list").json() if row["directory"] == brick)
        wait_until(lambda: found()["state"] == "stopped", "the brick stops", limit_s=20)
        said = found()["reason"]
        assert store.status()["health"] != "good", "nobody says so"
    else:
        said = started.text
        assert "--without" in said, said
    assert "of index/index.redb does not match its sum; the brick is to be replaced" in said, said
    goes_on(store, mnt, "without it")
    equal(sorted(set(os.listdir(mnt)) & set(names)), sorted(names), "names")
    for name in names:
        same_bytes(read(f"{mnt}/{name}"), name.encode(), name)
    same_bytes(read(f"{mnt}/large"), large, "large, without it")
    if started.exit == 0:
        store.stop_other("s2")
    is_replaced(store, brick)
    print(f"{len(harmed)} blocks; the server {'stopped it' if started.exit == 0 else 'did not open it'}")


@pytest.mark.limit(200)
def test_a_brick_with_a_damaged_index_stops_and_others_answer(store):
    def harm(index, block, rests):
        # A few may be what an unused end of another page has.
        places = keys_of_checksums(rests)
        places = places if len(places) > 4 else []
        for at in places:
            # The index of the shard: its blocks would be those of another one, and zeros.
            damage(index, block * BLOCK + at + 35)
        return bool(places)

    stops_and_others_answer(store, harm)


@pytest.mark.limit(200)
def test_a_brick_with_a_damaged_branch_stops_and_others_answer(store):
    def harm(index, block, rests):
        is_branch = rests[0] == 2
        if is_branch:
            damage(index, block * BLOCK + 200, 40)
        return is_branch

    stops_and_others_answer(store, harm)


@pytest.mark.limit(150)
def test_a_scrub_covers_what_no_checkpoint_has_written_home(store):
    mnt = store.up(journal=256)
    parts = [os.urandom(1 << 20) for _ in range(40)]
    write(f"{mnt}/large", b"".join(parts))
    handle = os.open(f"{mnt}/large", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    # The servers run, and nothing makes them write home: large writes take little of the journal.
    assert flip(files_of(store.path("brick0"), "data"), parts[7][:64]), "the bytes are in no data file"
    done = store.cli("--json", "scrub", "start", "--wait").json()
    equal([row["scrub"]["last"]["left_out"] for row in done], [None, None], "left out")
    checked = [row["scrub"]["last"]["bytes_checked"] for row in done]
    assert min(checked) >= 40 << 20, f"{checked} bytes checked of 40 MiB on each brick"
    equal(sum(row["scrub"]["last"]["mended"] for row in done), 1, "mended")
    same_bytes(read(f"{mnt}/large"), b"".join(parts), "after the scrub")
    for brick in ["brick0", "brick1"]:
        assert flip(files_of(store.path(brick), "data"), parts[9][:64]), f"the bytes are in no data file of {brick}"
    store.refuses("scrub", "start", "--wait", words=["block .* of data/"], exits=[DAMAGED])
    os.unlink(f"{mnt}/large")
    wait_until(lambda: not files_of(store.path("brick0"), "data"), "the removed file's room is given back", limit_s=40)
    store.cli("scrub", "start", "--wait")
