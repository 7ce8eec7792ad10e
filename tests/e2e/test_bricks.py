"""Looking into a stopped brick, and getting files out of one disk without a cluster.

HEKATE_STRIDE=N: one of so many pages of an index is damaged [23].
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess

import pytest

from harness import equal, read, same_bytes, wait_until, write

USAGE, NOT_ALL, INPUT, IN_USE, CANNOT_CREATE, DAMAGED = 64, 65, 66, 69, 73, 74
SHARD = 4 << 20
STRIDE = int(os.environ.get("HEKATE_STRIDE", "23"))


def content(mnt):
    """A tree with something of everything."""
    os.makedirs(f"{mnt}/a/b/c")
    os.makedirs(f"{mnt}/empty")
    for number in range(40):
        directory = f"{mnt}/d{number % 8}"
        os.makedirs(directory, exist_ok=True)
        write(f"{directory}/{number}", os.urandom(number * 700))
    write(f"{mnt}/a/b/c/large", os.urandom(3 * SHARD + 12_345))
    write(f"{mnt}/a/nothing", b"")
    with open(f"{mnt}/sparse", "wb") as file:
        file.seek(100 << 20)
        file.write(b"in the middle")
        file.truncate(200 << 20)
    with open(f"{mnt}/a/rewritten", "wb") as file:
        file.write(os.urandom(200_000))
        file.seek(50_000)
        file.write(b"journaled")
        file.truncate(150_001)
    os.symlink("../a/b", f"{mnt}/a/link")
    os.symlink("/etc/passwd", f"{mnt}/a/out")
    os.link(f"{mnt}/a/b/c/large", f"{mnt}/second name")
    os.link(f"{mnt}/d1/1", f"{mnt}/a/third")
    for name in [b" ", b"-rf", b"\xff\xfe", "ü".encode(), b"new\nline", b"x" * 255, b"...", b"lost+found"]:
        write(os.path.join(mnt.encode(), name), name)
    os.mkfifo(f"{mnt}/fifo", 0o640)
    os.chmod(f"{mnt}/d1/1", 0o4711)
    os.chmod(f"{mnt}/d2", 0o1770)
    os.chmod(f"{mnt}/d3", 0o500)
    if os.geteuid() == 0:
        os.chown(f"{mnt}/d4", 1234, 4321)
        os.chown(f"{mnt}/d4/4", 5, 6)
        os.lchown(f"{mnt}/a/link", 7, 8)
        os.mknod(f"{mnt}/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.setxattr(f"{mnt}/d5/5", "user.one", b"1\0\xff")
    os.setxattr(f"{mnt}/d5", "user.large", b"x" * 3000)
    os.utime(f"{mnt}/d6/6", ns=(1_234_567_890_123_456_789, 987_654_321_000_000_001))
    os.utime(f"{mnt}/d7", ns=(1, 2))


def picture(top):
    """All that an export has to keep, by path. Access times are those of a look that did not read."""
    found, links = {}, {}
    for directory, directories, files in os.walk(os.fsencode(top)):
        for name in [b"."] + directories + files if directory == os.fsencode(top) else directories + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            entry = [stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns]
            if not stat.S_ISDIR(status.st_mode):
                entry += [status.st_size, status.st_nlink, status.st_rdev]
                links.setdefault(status.st_ino, []).append(path[len(top):])
            if stat.S_ISLNK(status.st_mode):
                entry.append(os.readlink(path))
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                entry += [(key, os.getxattr(path, key)) for key in sorted(os.listxattr(path))]
            if stat.S_ISREG(status.st_mode):
                entry.append(digest(path))
            found[path[len(top):]] = entry
    return found, sorted(sorted(names) for names in links.values() if len(names) > 1)


def digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def same_tree(found, wanted):
    for path in sorted(set(found[0]) | set(wanted[0])):
        equal(found[0].get(path), wanted[0].get(path), f"{path}")
    equal(found[1], wanted[1], "hard links")


def fingerprint(brick):
    """Every byte of a brick, and when it was written."""
    found = {}
    for directory, _, names in os.walk(brick):
        for name in names:
            path = f"{directory}/{name}"
            found[path] = (os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns, digest(path))
    return found


def inspect(store, *arguments, exit=0, brick=None):
    """-> the JSON objects, each with a type."""
    outcome = store.try_cli("--json", "brick", "inspect", *arguments, brick or store.path("brick0"))
    equal(outcome.exit, exit, f"inspect: {outcome.text[-500:]}")
    found = [json.loads(line) for line in outcome.out.splitlines()]
    equal([value for value in found if "type" not in value], [], "objects without a type")
    return found


def of_type(found, kind):
    return [value for value in found if value["type"] == kind]


def export(store, to, *options, exit=0, brick=None, **named):
    outcome = store.try_cli("--json", "brick", "export", *options, brick or store.path("brick0"), to, **named)
    equal(outcome.exit, exit, f"export: {outcome.text[-500:]}")
    return outcome.json()


@pytest.mark.limit(150)
def test_one_brick_has_all_files_of_two_copies(store):
    mnt = store.up()
    content(mnt)
    wanted = picture(mnt)
    store.kill_mount()
    store.cli("umount", "--lazy", mnt)
    store.kill_server()
    for turn, brick in enumerate(store.bricks(2)):
        before = fingerprint(brick)
        to = store.path(f"out{turn}")
        report = export(store, to, brick=brick)
        equal((report["complete"], report["findings"]), (True, []), "after a kill")
        same_tree(picture(f"{to}/v"), wanted)
        assert os.stat(f"{to}/v/sparse").st_blocks * 512 < 10 << 20, "the sparse file has its holes no more"
        kinds = {value["type"] for value in inspect(store, "--all", "--check", brick=brick)}
        lacking = {"brick", "life", "segment", "record", "log_end", "meta", "entry", "shard", "data_files", "opening", "summary"} - kinds
        equal(lacking, set(), "types")
        equal(fingerprint(brick), before, "something was written to the brick")
    store.serve()
    store.stop()
    report = export(store, store.path("again"))
    equal(report["complete"], True, "after an orderly stop")
    same_tree(picture(f"{store.path('again')}/v"), wanted)
    specials = ["--exclude", "fifo", "--exclude", "null"]  # diff(1) calls any two of them different
    subprocess.run(["diff", "-r", "--no-dereference", *specials, store.path("out0"), store.path("again")], check=True)
    # On another machine nothing is known but the brick: volumes have numbers, and holes may be elsewhere.
    moved = store.path("moved")
    shutil.copytree(store.path("brick0"), moved)
    life = read(f"{moved}/life.toml").decode()
    write(f"{moved}/life.toml", life.replace('boot = "', 'boot = "another ').encode())
    equal(of_type(inspect(store, brick=moved), "life")[0]["reborn"], True, "reborn on another machine")
    outcome = store.try_cli("--json", "brick", "export", "--volume", "1", moved, store.path("alone"), state=store.path("no state"))
    # Only if some partition has no log yet, which is up to where the directories happened to go.
    doubtful = {finding["path"] for finding in outcome.json()["findings"]}
    assert (outcome.exit, doubtful) in [(0, set()), (NOT_ALL, {"sparse"})], outcome.text
    same_tree(picture(f"{store.path('alone')}/volume-1"), wanted)


def test_what_is_on_other_bricks_is_listed(store):
    mnt = store.up(bricks=3)
    content(mnt)
    wanted = picture(mnt)
    store.umount()
    store.stop()
    whole = 0
    for turn, brick in enumerate(store.bricks(3)):
        to = store.path(f"out{turn}")
        report = export(store, to, brick=brick, exit=NOT_ALL)
        incomplete = {finding["path"] for finding in report["findings"] if finding["finding"] == "incomplete"}
        equal({finding["finding"] for finding in report["findings"]} - {"incomplete", "elsewhere", "lost+found"}, set(), "findings")
        by_digest = {entry[-1] for entry in wanted[0].values()}
        for path, entry in picture(f"{to}/v")[0].items():
            text = path.decode(errors="replace").lstrip("/")
            if entry[0] == stat.S_IFREG and not any(isinstance(name, str) and name == text for name in incomplete):
                assert entry[-1] in by_digest or entry[5] == 0, f"{path} is neither whole nor listed"
                whole += 1
    assert whole > 40, f"only {whole} files"


def test_a_running_brick_is_left_alone(store):
    store.init()
    store.serve()
    brick = store.path("brick0")
    for command in [["inspect", brick], ["export", brick, store.path("out")]]:
        store.refuses("brick", *command, words=["in use", "stop the server first"], exits=[IN_USE])
    assert not os.path.exists(store.path("out")), "made for nothing"
    equal(store.status()["waiting_partitions"], [], "partitions")
    equal(store.status()["health"], "good", "health")


@pytest.mark.no_fuse
def test_mistakes_with_bricks(store):
    store.init()
    brick, out = store.path("brick0"), store.directory("out")
    nothing = store.directory("nothing")
    for path in [nothing, store.path("missing"), "/dev/null"]:
        store.refuses("brick", "inspect", path, words=["(?i)not a brick|not a directory"])
        store.refuses("brick", "export", path, out, words=["(?i)not a brick|not a directory"])
    write(f"{out}/mine", b"mine")
    store.refuses("brick", "export", brick, out, words=["out is not empty"], exits=[CANNOT_CREATE])
    store.refuses("brick", "export", brick, f"{out}/mine", words=["(?i)not a directory"], exits=[CANNOT_CREATE])
    store.refuses("brick", "export", brick, store.path("new"), "--volume", "w", words=["volume w", r"1 \(v\)"], exits=[INPUT])
    assert not os.path.exists(store.path("new")), "made for nothing"
    equal(os.listdir(out), ["mine"], "a directory that was refused")
    for command in ["inspect", "export"]:
        assert "Example" in store.cli("brick", command, "--help").out
    export(store, store.path("new"))
    store.refuses("brick", "export", brick, store.path("new"), words=["not empty"], exits=[CANNOT_CREATE])
    text = store.cli("brick", "inspect", brick).out
    for word in ["brick ", "journal:", "log:", "entries:", "problems: 0"]:
        assert word in text, f"the summary lacks {word!r}:\n{text}"
    piped = subprocess.run(f"'{os.environ['HEKATE']}' brick inspect --all '{brick}' | head -1", shell=True, capture_output=True, text=True)
    assert "panicked" not in piped.stderr, piped.stderr


def damage(path, offset, count=1, bits=0x55):
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ bits for byte in old))


def stopped_brick(store):
    """-> mount's picture, the brick, stopped; its server was killed, so that the journal has something."""
    mnt = store.up()
    write(f"{mnt}/large", os.urandom(SHARD + 100_000), os.O_SYNC)
    for number in range(30):
        write(f"{mnt}/{number}", b"%d" % number * 1000, os.O_SYNC)
    wanted = {name: read(f"{mnt}/{name}") for name in os.listdir(mnt)}
    store.umount()
    store.kill_server()
    return wanted, store.path("brick0")


def test_a_damaged_block_is_named_and_never_copied(store):
    wanted, brick = stopped_brick(store)
    shard = max(of_type(inspect(store, "--data"), "shard"), key=lambda shard: shard["record"]["length"])
    write(f"{brick}/data/00/junk", b"junk")
    equal([it["file"] for it in of_type(inspect(store), "unreferenced_file")], ["data/00/junk"], "files of nobody")
    damage(f"{brick}/{shard['file']}", 3 * 4096 + 17)
    problems = of_type(inspect(store, "--check", exit=DAMAGED), "problem")
    equal([(it["file"], it["offset"]) for it in problems], [(shard["file"], 3 * 4096)], "problems")
    store.refuses("brick", "inspect", "--check", brick, words=["1 problem"], exits=[DAMAGED])
    report = export(store, store.path("out"), exit=DAMAGED)
    equal([(it["finding"], it["path"]) for it in report["findings"]], [("damaged", "large")], "findings")
    large = bytearray(wanted["large"])
    found = read(f"{store.path('out')}/v/large")
    at = found.index(b"\0" * 4096)
    assert at % 4096 == 0 and f"bytes {at} to" in report["findings"][0]["what"], (at, report["findings"])
    large[at:at + 4096] = bytes(4096)
    same_bytes(found, bytes(large), "all but the damaged block")
    for name in set(wanted) - {"large"}:
        same_bytes(read(f"{store.path('out')}/v/{name}"), wanted[name], name)


def test_a_damaged_journal_is_named_and_read_up_to_the_damage(store):
    wanted, brick = stopped_brick(store)
    records = [record for record in of_type(inspect(store, "--journal"), "record") if not record["applied"]]
    target = records[len(records) // 2]
    damage(f"{brick}/{target['file']}", target["offset"] + 50)
    found = inspect(store, exit=DAMAGED)
    problem = of_type(found, "problem")[0]
    equal((problem["file"], problem["offset"]), (target["file"], target["offset"]), "the problem")
    equal(of_type(found, "log_end")[0]["offset"], target["offset"], "the log's end")
    store.refuses("brick", "export", brick, store.path("out"), words=[target["file"], "--up-to-damage"], exits=[DAMAGED])
    before = fingerprint(brick)
    export(store, store.path("out"), "--up-to-damage", exit=DAMAGED)
    names = os.listdir(f"{store.path('out')}/v")
    assert 0 < len([name for name in names if not name.startswith("lost+found")]) < len(wanted), names
    equal(fingerprint(brick), before, "something was written to the brick")


@pytest.mark.limit(150)
def test_a_damaged_index_is_named_and_never_a_panic(store):
    mnt = store.up()
    for number in range(300):
        write(f"{mnt}/{number:03}", b"%d" % number * 300)
    store.umount()
    store.stop()
    brick = store.path("brick0")
    index = f"{brick}/index/index.redb"
    shutil.copy(index, store.path("sound"))
    files_in = lambda top: sorted(name for _, _, names in os.walk(top) for name in names if name.isdigit())
    store.try_cli("brick", "export", brick, store.path("out"))
    all_files = files_in(store.path("out"))
    assert len(all_files) > 100, f"{len(all_files)} files on this brick"
    named = 0
    for page in range(1, os.path.getsize(index) // 4096, STRIDE):
        shutil.copy(store.path("sound"), index)
        damage(index, page * 4096 + 600, 40)
        out = store.path(f"out{page}")
        checked = store.try_cli("--json", "brick", "inspect", "--check", brick)
        exported = store.try_cli("--json", "brick", "export", brick, out)
        for outcome in (checked, exported):
            assert "panicked" not in outcome.text and outcome.exit in (0, DAMAGED, NOT_ALL), f"page {page}: {outcome.text[-300:]}"
        if checked.exit == DAMAGED:
            named += 1
            assert "index/index.redb" in checked.out, checked.out
        if exported.exit == 0:
            equal(files_in(out), all_files, f"files of an export that says that it has all, page {page}")
        for directory, _, names in os.walk(out):
            for name in names:
                if name.isdigit() and exported.exit == 0:
                    equal(read(f"{directory}/{name}"), b"%d" % int(name) * 300, f"page {page}, {name}")
        shutil.rmtree(out, ignore_errors=True)
    assert named > 0, "no damage was seen"


def test_a_scrub_mends_what_has_rotted_and_a_read_does_too(store):
    mnt = store.up()
    wanted = os.urandom(SHARD)
    write(f"{mnt}/large", wanted, os.O_SYNC)
    store.cli("stop")
    bricks = [store.path("brick0"), store.path("brick1")]
    files = [[os.path.join(top, name) for top, _, names in os.walk(f"{brick}/data") for name in names] for brick in bricks]
    equal([len(found) for found in files], [1, 1], "data files of the two copies")
    for at, found in enumerate(files):
        damage(found[0], (100 + 10 * at) * 4096, 4096)
    store.serve()
    done = store.cli("--json", "brick", "scrub", "--wait").json()
    equal([brick["scrub"]["last"]["mended"] for brick in done], [1, 1], "mended blocks")
    equal([brick["scrub"]["last"]["damaged"] for brick in done], [0, 0], "damaged blocks")
    assert min(brick["scrub"]["last"]["bytes_checked"] for brick in done) >= SHARD, done
    same_bytes(read(f"{mnt}/large"), wanted, "after the scrub")
    store.cli("stop")
    for at, found in enumerate(files):
        damage(found[0], (300 + 10 * at) * 4096, 4096)
    store.serve()
    same_bytes(read(f"{mnt}/large"), wanted, "answered from the other copy")
    equal(store.status()["waiting_partitions"], [], "partitions")
    equal(store.status()["health"], "good", "health")
    store.refuses("brick", "scrub", "/no/such/brick", words=["no brick called", bricks[0]])
    # What is damaged on both copies is told, and not zeros.
    store.cli("stop")
    for found in files:
        damage(found[0], 500 * 4096, 1)
    store.serve()
    store.refuses("brick", "scrub", "--wait", words=["block 500"], exits=[DAMAGED])
    equal(store.status()["health"], "degraded", "health")
    try:
        read(f"{mnt}/large")
        raise AssertionError("damaged bytes were answered")
    except OSError:
        pass
    os.unlink(f"{mnt}/large")
    wait_until(lambda: store.try_cli("brick", "scrub", "--wait").exit == 0, "the damaged file is gone")
    equal(store.status()["health"], "good", "health")
