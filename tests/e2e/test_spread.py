"""Directories whose names several partitions share.

HEKATE_FILES=N: names in a long one [2500].
"""

import errno
import os
import stat
import threading
import time

import pytest

from harness import equal, raises, read, write

NAMES = int(os.environ.get("HEKATE_FILES", "2500"))


def up(store, spread=8):
    """A volume in whose root directories begin wide, mounted."""
    store.init(volume=None)
    store.serve()
    made = store.cli("--json", "volume", "create", "v", "--spread", str(spread)).json()
    equal(made["spread"], spread, "spread as it was made")
    return store.mount()


@pytest.mark.no_fuse
def test_a_spread_is_checked_and_shown(store):
    store.init()
    store.serve()
    for bad in ("0", "3", "1024"):
        store.refuses("volume", "create", "w", "--spread", bad, words=[f"a spread of {bad}", "power of two from 1 to"])
    store.cli("volume", "create", "w", "--spread", "4")
    equal(store.cli("--json", "volume", "show", "w").json()["spread"], 4, "as JSON")
    assert "names in 4 partitions" in store.cli("volume", "show", "w").out
    equal(store.cli("--json", "volume", "show", "v").json()["spread"], 1, "as it is without the option")


@pytest.mark.limit(300)
def test_thousands_of_names_are_listed_in_order(store):
    mnt = up(store)
    wide = f"{mnt}/wide"
    os.mkdir(wide)
    names = {f"{number:05}" for number in range(NAMES)}
    for name in names:
        os.close(os.open(f"{wide}/{name}", os.O_CREAT | os.O_WRONLY))
    stop = threading.Event()

    def come_and_go():
        number = 0
        while not stop.is_set():
            path = f"{wide}/{number % 100:05}-more"
            write(path, b"")
            os.rename(path, f"{path}-still")
            os.unlink(f"{path}-still")
            number += 1

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(3):
            found = os.listdir(wide)
            equal(found, sorted(found), "byte order")
            equal(names - set(found), set(), "names that are missing")
            equal({name[:5] for name in found} - names, set(), "names that never were")
    finally:
        stop.set()
        thread.join()
    with os.scandir(wide) as entries:
        equal({entry.name: entry.stat().st_size for entry in entries}, dict.fromkeys(names, 0), "entries with attributes")
    shares = store.cli("--json", "where", "v:/wide").json()["names"]
    equal((len(shares), {share["equal"] for share in shares}), (8, {True}), "partitions")
    counts = [share["replicas"][0]["has"]["entries"] for share in shares]
    equal(sum(counts), NAMES, "names of all partitions")
    assert min(counts) > NAMES // 12, f"names are uneven over the partitions: {counts}"
    store.remount()
    equal(len(os.listdir(wide)), NAMES, "mounted anew")
    raises(errno.ENOTEMPTY, os.rmdir, wide)
    for name in names:
        os.unlink(f"{wide}/{name}")
    os.rmdir(wide)
    raises(errno.ENOENT, os.stat, wide)


def test_attributes_of_a_shared_directory_are_one(store):
    mnt = up(store)
    wide, other = f"{mnt}/wide", store.mount("other") + "/wide"
    os.mkdir(wide)
    before = os.stat(wide)
    for number in range(30):
        os.mkdir(f"{other}/d{number}")
        equal(os.stat(wide).st_nlink, 3 + number, "links, as another mount makes directories")
    assert os.stat(wide).st_mtime_ns > before.st_mtime_ns
    os.chmod(wide, 0o2750)
    for number in range(30):
        os.mkdir(f"{other}/e{number}")
        mode = stat.S_IMODE(os.stat(f"{wide}/e{number}").st_mode)
        assert mode & stat.S_ISGID, f"set-group-id is inherited wherever the name rests: {mode:o}"
    equal(stat.S_IMODE(os.stat(other).st_mode), 0o2750, "mode through the other mount")
    os.utime(wide, ns=(1, 2))
    equal((os.stat(other).st_atime_ns, os.stat(other).st_mtime_ns), (1, 2), "times through the other mount")
    os.rename(f"{wide}/d0", f"{mnt}/d0")
    equal((os.stat(wide).st_nlink, os.stat(f"{mnt}/d0").st_nlink), (61, 2), "links after one moved out")
    raises(errno.ENOTEMPTY, os.rename, f"{mnt}/d0", wide)


@pytest.mark.limit(180)
def test_no_file_is_lost_to_rmdir_while_the_server_is_killed(store):
    mnt = up(store)
    other = store.mount("other")
    stop, failures, made, removed = threading.Event(), [], [0], [0]

    def make():
        number = 0
        try:
            while not stop.is_set():
                path = f"{mnt}/d/{number}"
                number += 1
                try:
                    os.makedirs(f"{mnt}/d", exist_ok=True)
                    write(path, b"x")
                except (FileNotFoundError, FileExistsError):
                    continue
                equal(read(path), b"x", "what was made")
                os.unlink(path)
                made[0] += 1
        except (OSError, AssertionError) as error:
            failures.append(f"round {number}: {error}")

    def remove():
        try:
            while not stop.is_set():
                try:
                    os.rmdir(f"{other}/d")
                    removed[0] += 1
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                        raise
        except OSError as error:
            failures.append(f"rmdir: {error}")

    threads = [threading.Thread(target=work) for work in (make, remove)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(1)
        store.kill_server()
        time.sleep(0.2)
        store.serve()
    time.sleep(2)
    stop.set()
    for thread in threads:
        thread.join()
    equal(failures, [], "errors")
    assert made[0] > 5 and removed[0] > 2, f"too slow to say anything: {made} made, {removed} removed"
    if os.path.exists(f"{mnt}/d"):
        equal(os.listdir(f"{mnt}/d"), [], "what is left")
        os.rmdir(f"{mnt}/d")
    equal(os.listdir(other), [], "what is left in the root")


def test_bricks_are_read_out_with_the_names_of_all_partitions(store):
    mnt = up(store)
    os.mkdir(f"{mnt}/wide")
    for number in range(200):
        write(f"{mnt}/wide/{number}", b"%d" % number)
    os.mkdir(f"{mnt}/wide/sub")
    write(f"{mnt}/wide/sub/f", b"f")
    os.utime(f"{mnt}/wide", ns=(1, 1_234_567_890_000_000_000))
    store.umount()
    store.stop()
    brick = store.bricks(2)[0]
    store.cli("brick", "inspect", "--check", brick)
    store.cli("brick", "export", brick, store.directory("out"))
    found = store.path("out") + "/v"
    equal(len(os.listdir(f"{found}/wide")), 201, "names")
    equal({name: read(f"{found}/wide/{name}") for name in os.listdir(f"{found}/wide") if name != "sub"},
          {str(number): b"%d" % number for number in range(200)}, "content")
    equal(read(f"{found}/wide/sub/f"), b"f", "in a directory of it")
    equal(os.stat(f"{found}/wide").st_mtime_ns, 1_234_567_890_000_000_000, "time")
    equal(os.path.exists(f"{found}/lost+found"), False, "lost+found")
    store.cli("debug", "compare")
