"""Whether replicas hold the same, read from disk by code of its own; and where a file rests."""

import json
import os
import re
import shutil
import subprocess

import pytest

from harness import NOBODY, equal, write
from test_bricks import SHARD, content

DIFFERENT, USAGE, NOT_A_DIRECTORY, NO_INPUT, IN_USE, DAMAGED, DENIED = 1, 64, 65, 66, 69, 74, 77


def compare(store, *bricks, exit=0, **named):
    outcome = store.try_cli("--json", "debug", "compare", *bricks, **named)
    equal(outcome.exit, exit, f"compare: {outcome.text[-1500:]}")
    return outcome.json()


def different(report):
    """-> all that is named as different."""
    return [row for part in report["partitions"] for row in part["differences"]]


def what_has(row):
    return {os.path.basename(replica["directory"]): replica["has"] for replica in row["replicas"]}


def where(store, place, *options):
    return store.cli("--json", "where", place, *options).json()


def has(place):
    return [replica["has"] for replica in place["replicas"]]


@pytest.mark.limit(150)
def test_replicas_of_a_tree_are_equal(store):
    mnt = store.up()
    content(mnt)
    store.umount()
    store.stop()
    report = compare(store)
    equal((report["equal"], report["views_known"], report["problem_count"]), (True, True, 0), "after an orderly stop")
    parts = report["partitions"]
    equal({part["state"] for part in parts}, {"equal"}, "partitions")
    equal({len(part["replicas"]) for part in parts}, {2}, "replicas")
    equal({sum(replica["leader"] for replica in part["replicas"]) for part in parts}, {1}, "leaders of a partition")
    for part in parts:
        one, other = part["replicas"]
        equal((one["digest"], one["entries"], one["shards"]), (other["digest"], other["entries"], other["shards"]), "a digest")
    assert sum(part["replicas"][0]["shards"] for part in parts) > 8, "shards were not looked at"
    assert sum(part["replicas"][0]["entries"] for part in parts) > 100, "entries were not looked at"
    # Another start, with its checkpoints, leaves everything as it is but for the numbers that each leader reserves.
    store.serve()
    store.stop()
    report = compare(store)
    equal(report["equal"], True, "after another start")
    held = [[(replica["entries"], replica["shards"]) for replica in part["replicas"]] for part in parts]
    parts = report["partitions"]
    equal([[(replica["entries"], replica["shards"]) for replica in part["replicas"]] for part in parts], held, "what is held")
    # Without the state nothing but the bricks tells which partitions there are.
    named = compare(store, *store.bricks(2), state=store.path("no state"))
    equal((named["equal"], named["views_known"]), (True, False), "bricks that are named")
    digests = {part["partition"]: part["replicas"][0]["digest"] for part in parts}
    for part in named["partitions"]:
        equal([replica["digest"] for replica in part["replicas"]], [digests[part["partition"]]] * len(part["replicas"]), "a digest")
    text = store.cli("debug", "compare").out
    for word in [r"ring 1 partition 0: equal, digest ", f"{len(parts)} partitions: {len(parts)} equal, 0 different"]:
        assert word in text, f"the answer lacks {word!r}:\n{text}"


@pytest.mark.limit(150)
def test_replicas_are_equal_after_kills(store):
    mnt = store.up(bricks=3)
    for turn in range(3):
        worker = subprocess.Popen(
            ["python3", "-c", "import os,sys,itertools\nfor n in itertools.count():\n p=f'{sys.argv[1]}-{n % 50}'\n open(p,'wb').write(os.urandom(n*999%200000))\n n%7 or os.rename(p, p+'r')", f"{mnt}/{turn}"],
            stderr=subprocess.DEVNULL,
        )
        try:
            worker.wait(timeout=2)
        except subprocess.TimeoutExpired:
            pass
        store.kill_server()
        store.serve()
        worker.kill()
        worker.wait()
    store.umount()
    store.stop()
    report = compare(store)
    equal({part["state"] for part in report["partitions"]}, {"equal"}, "partitions")


@pytest.mark.limit(150)
def test_a_replica_that_missed_something_is_named(store):
    mnt = store.up()
    os.makedirs(f"{mnt}/a/b")
    write(f"{mnt}/a/b/rewritten", os.urandom(2 * SHARD + 5000))
    write(f"{mnt}/a/attributes", b"x")
    write(f"{mnt}/a/gone", b"gone")
    store.umount()
    store.stop()
    equal(compare(store)["equal"], True, "before")
    kept = store.path("kept")
    shutil.copytree(store.path("brick1"), kept)
    store.serve()
    mnt = store.mount()
    with open(f"{mnt}/a/b/rewritten", "r+b") as file:
        file.seek(SHARD + 8192)
        file.write(b"new" * 100)
    os.setxattr(f"{mnt}/a/attributes", "user.new", b"1")
    os.unlink(f"{mnt}/a/gone")
    write(f"{mnt}/a/b/more", b"more")
    store.umount()
    store.stop()
    equal(compare(store)["equal"], True, "with what is new on both")
    # As if one brick had slept meanwhile.
    shutil.rmtree(store.path("brick1"))
    shutil.copytree(kept, store.path("brick1"))
    report = compare(store, exit=DIFFERENT)
    equal(report["equal"], False, "with an old brick")
    rows = {(row["kind"], row["path"]): row for row in different(report)}
    shard = rows["shard", "/a/b/rewritten"]
    equal(shard["bytes_that_differ"], [[8192, 12287]], "bytes that differ")
    counts = {brick: int(re.search(r"stamp (\d+)/", text)[1]) for brick, text in what_has(shard).items()}
    equal(counts["brick0"], counts["brick1"] + 1, f"writes to the shard, {counts}")
    for key, missing in [(("name", "/a/b/more"), "brick1"), (("name", "/a/gone"), "brick0"), (("xattr", "/a/attributes"), "brick1")]:
        assert key in rows, f"{key} is not among {sorted(map(str, rows))}"
        there = {brick for brick, held in what_has(rows[key]).items() if held is not None}
        equal(there, {"brick0", "brick1"} - {missing}, f"who has {key}")
    assert ("inode", "/a/b/rewritten") in rows, f"its size and times: {sorted(map(str, rows))}"
    outcome = store.try_cli("debug", "compare")
    equal(outcome.exit, DIFFERENT, "exit status")
    for word in ["DIFFERENT", '"/a/b/rewritten"', "bytes of the shard that differ: 8192-12287", "(leader)", "of volume 1 (v)"]:
        assert word in outcome.out, f"the answer lacks {word!r}:\n{outcome.out}"


def test_a_flipped_bit_in_one_replica_is_named(store):
    mnt = store.up()
    os.mkdir(f"{mnt}/d")
    write(f"{mnt}/d/large", os.urandom(SHARD))
    store.umount()
    store.stop()
    files = [f"{top}/{name}" for top, _, names in os.walk(f"{store.path('brick1')}/data") for name in names]
    equal(len(files), 1, "data files")
    with open(files[0], "r+b") as file:
        file.seek(5 * 4096 + 77)
        byte = file.read(1)[0]
        file.seek(5 * 4096 + 77)
        file.write(bytes([byte ^ 1]))
    report = compare(store, exit=DIFFERENT)
    rows = different(report)
    equal([(row["kind"], row["path"], row["bytes_that_differ"]) for row in rows], [("shard", "/d/large", [[5 * 4096, 6 * 4096 - 1]])], "rows")
    assert "1 blocks damaged" in what_has(rows[0])["brick1"], rows
    assert "damaged" not in what_has(rows[0])["brick0"], rows
    equal([os.path.basename(row["directory"]) for row in report["problems"]], ["brick1"], "problems")
    # Alone, there is nothing that it differs from; it is damaged all the same.
    alone = compare(store, store.path("brick1"), exit=DAMAGED)
    equal({part["state"] for part in alone["partitions"]}, {"alone"}, "one brick")
    equal(compare(store, store.path("brick0"))["problem_count"], 0, "the other brick")
    store.serve()
    store.cli("brick", "scrub", "--wait")
    store.stop()
    equal(compare(store)["equal"], True, "mended")


@pytest.mark.no_fuse
def test_mistakes_with_compare(store):
    store.refuses("debug", "compare", words=["hekate init", "debug compare DIR DIR"], exits=[USAGE])
    store.init()
    store.refuses("debug", "compare", store.directory("nothing"), words=["(?i)not a brick"])
    store.serve()
    store.refuses("debug", "compare", words=["in use", "hekate stop"], exits=[IN_USE])
    store.refuses("debug", "compare", *store.bricks(2), words=["in use", "stop the server first"], exits=[IN_USE])
    store.stop()
    other = store.path("other")
    store.cli("init", "--brick", store.path("stranger"), "--journal", "32", state=other)
    store.refuses("debug", "compare", store.path("brick0"), store.path("stranger"), words=["different clusters"], exits=[USAGE])
    equal(compare(store)["equal"], True, "empty bricks")
    assert "Examples" in store.cli("debug", "compare", "--help").out


def test_where_a_file_rests(store):
    mnt = store.up(bricks=3)
    os.makedirs(f"{mnt}/a/b")
    write(f"{mnt}/a/b/large", os.urandom(2 * SHARD + 17))
    write(f"{mnt}/a/small", b"small")
    os.symlink("small", f"{mnt}/a/link")
    odd = os.fsencode(f"{mnt}/a/") + b"\xff\xfe:"
    write(odd, b"")
    views = store.cli("--json", "volume", "show", "v").json()["views"]

    def check(place):
        view = views[place["partition"]]
        equal({replica["brick"] for replica in place["replicas"]}, {member["brick"] for member in view["members"]}, "replicas")
        equal([replica["brick"] for replica in place["replicas"] if replica["leader"]], [view["leader"]], "the leader")
        equal((place["epoch"], place["equal"]), (view["epoch"], True), "epoch; equal")
        assert all(replica["directory"] in store.bricks(3) for replica in place["replicas"]), place

    found = where(store, "v:/a/b/large")
    equal((found["kind"], found["size"], found["number"]), ("file", 2 * SHARD + 17, os.stat(f"{mnt}/a/b/large").st_ino), "the file")
    check(found["place"])
    equal([(shard["index"], shard["file_offset"]) for shard in found["shards"]], [(0, 0), (1, SHARD), (2, 2 * SHARD)], "shards")
    for shard in found["shards"]:
        check(shard)
        equal(len({json.dumps(held) for held in has(shard)}), 1, "what the replicas have")
    equal(found["pieces"], [{"data": found["shards"][0]["data"], "file_offset": 0, "length": 2 * SHARD + 17}], "pieces")
    before = has(found["shards"][1])[0]["stamp"]
    with open(f"{mnt}/a/b/large", "r+b") as file:
        file.seek(SHARD)
        file.write(b"once more")
    found = where(store, "v:/a/b/large", "--offset", str(SHARD + 1))
    equal([(shard["index"], shard["file_offset"]) for shard in found["shards"]], [(1, SHARD), (2, 2 * SHARD)], "from an offset on")
    counts = [int(stamp.split("/")[0]) for stamp in (before, has(found["shards"][0])[0]["stamp"])]
    assert counts[0] < counts[1], f"the stamp's count: {counts}"
    small = where(store, "v:/a/small")
    equal((small["beside_the_inode"], small["shards"], small["pieces"]), (True, [], []), "a small file")
    equal(where(store, "v:/a/link")["kind"], "symlink", "a link, which is not followed")
    equal(where(store, b"v:/a/\xff\xfe:")["number"], os.stat(odd).st_ino, "a name that is no text")
    directory = where(store, "v://a/./")
    check(directory["place"])
    equal([held["entries"] for held in has(directory["names"][0])], [4, 4], "names in a directory")
    equal(where(store, "v:/")["number"], 1, "the root")
    text = store.cli("where", "v:/a/b/large").out
    for word in ["leader", "shard 2 at byte 8388608", "stamp ", store.path("brick")]:
        assert word in text, f"the answer lacks {word!r}:\n{text}"
    assert "NOT EQUAL" not in text, text


def test_where_goes_on_over_holes(store):
    mnt = store.up()
    with open(f"{mnt}/sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 5)
        file.write(b"end")
    found, asked = where(store, "v:/sparse"), 1
    while found["next_offset"] is not None:
        equal(found["shards"], [], "holes")
        found, asked = where(store, "v:/sparse", "--offset", str(found["next_offset"])), asked + 1
    equal([shard["index"] for shard in found["shards"]], [(1 << 40) // SHARD - 1], "the only shard")
    assert 2 < asked < 9, f"asked {asked} times"
    assert "--offset" in store.cli("where", "v:/sparse").out


@pytest.mark.root
def test_mistakes_with_where(store):
    store.init()
    store.refuses("where", "v:/a", words=["is it running", f"hekate --state {store.state} serve"], exits=[IN_USE])
    store.serve()
    mnt = store.mount()
    write(f"{mnt}/file", b"x")
    store.refuses("where", "w:/a", words=["no volume called", "there are: v"], exits=[USAGE])
    store.refuses("where", "v:/missing/a", words=["v:/missing/a: no such name"], exits=[NO_INPUT])
    store.refuses("where", "v:/file/a", words=["v:/file/a: not a directory"], exits=[NOT_A_DIRECTORY])
    for wrong in ["v", "/file", ":/file", "v:file", "v:"]:
        store.refuses("where", wrong, words=["VOLUME:/PATH"], exits=[USAGE])
    store.refuses("where", "v:/../file", words=[r"\.\."], exits=[USAGE])
    os.chmod(store.state, 0o755)
    store.refuses("where", "v:/file", words=["need root"], exits=[DENIED], uid=NOBODY, server=f"unix:{store.state}/server.sock")
    assert "Examples" in store.cli("where", "--help").out
