"""Mounts of one volume, and what they owe to each other."""

import errno
import mmap
import os
import subprocess
import threading

import pytest
from harness import equal, raises, read, wait_until, write


def test_two_mounts_see_each_other_at_once(store):
    one = store.up()
    two = store.mount("two")
    for turn in range(60):
        here, there = (one, two) if turn % 2 else (two, one)
        name, data = f"f{turn}", b"%d" % turn * (1 + turn * 500)
        write(f"{here}/{name}", data)
        equal(read(f"{there}/{name}"), data, f"turn {turn}: content")
        write(f"{here}/{name}", data[:7])
        equal((read(f"{there}/{name}"), os.stat(f"{there}/{name}").st_size), (data[:7], len(data[:7])), "overwritten")
        with open(f"{here}/{name}", "ab") as file:
            file.write(b"+")
        equal(os.stat(f"{there}/{name}").st_size, len(data[:7]) + 1, "size after an append")
        os.chmod(f"{here}/{name}", 0o600)
        equal(os.stat(f"{there}/{name}").st_mode & 0o777, 0o600, "mode")
        os.rename(f"{here}/{name}", f"{here}/g{turn}")
        raises(errno.ENOENT, os.stat, f"{there}/{name}")
        raises(errno.EEXIST, os.mkdir, f"{there}/g{turn}")
        equal(read(f"{there}/g{turn}"), data[:7] + b"+", "renamed")
        equal(sorted(os.listdir(one)), sorted(os.listdir(two)), "listings")
        os.unlink(f"{here}/g{turn}")
        raises(errno.ENOENT, os.open, f"{there}/g{turn}", os.O_RDONLY)
        os.mkdir(f"{here}/d")
        os.rmdir(f"{there}/d")
        raises(errno.ENOENT, os.stat, f"{here}/d")


def test_open_files_see_what_another_mount_writes(store):
    one = store.up()
    two = store.mount("two")
    write(f"{one}/f", b"0" * 100_000)
    handles = [os.open(f"{mnt}/f", os.O_RDWR) for mnt in (one, two)]
    for turn in range(60):
        writer, reader = handles[turn % 2], handles[1 - turn % 2]
        at = turn * 1531
        os.pwrite(writer, b"%08d" % turn, at)
        equal(os.pread(reader, 8, at), b"%08d" % turn, f"turn {turn}")
    os.ftruncate(handles[0], 10)
    equal(os.fstat(handles[1]).st_size, 10, "size after the other truncated")
    equal(os.pread(handles[1], 100, 0), read(f"{one}/f"), "content after the other truncated")
    for handle in handles:
        os.close(handle)


def test_a_file_that_another_mount_unlinks_stays_readable(store):
    one = store.up()
    two = store.mount("two")
    data = os.urandom(300_000)
    write(f"{one}/f", data)
    handle = os.open(f"{one}/f", os.O_RDONLY)
    os.unlink(f"{two}/f")
    for _ in range(6):
        equal(os.pread(handle, len(data), 0) == data, True, "still the same content")
        threading.Event().wait(0.5)
    os.close(handle)
    wait_until(lambda: store.status()["orphans"] == 0, "the orphan collected once nobody has it open")


def test_appends_from_two_mounts_in_turn(store):
    """At the same moment is another matter: docs/semantics.md, section 2."""
    one = store.up()
    two = store.mount("two")
    handles = [os.open(f"{mnt}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for mnt in (one, two)]
    wanted = [b"%06d %s" % (number, b"." * (number % 90)) for number in range(200)]
    for number, line in enumerate(wanted):
        os.write(handles[number % 2], line + b"\n")
    equal(read(f"{one}/log").splitlines() == wanted, True, "all lines in order")
    for handle in handles:
        os.close(handle)


def test_exclusive_creates_have_one_winner(store):
    one = store.up()
    two = store.mount("two")
    wins = {one: 0, two: 0}

    def race(mnt):
        for number in range(200):
            try:
                os.close(os.open(f"{mnt}/lock{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                wins[mnt] += 1
            except FileExistsError:
                pass

    threads = [threading.Thread(target=race, args=[mnt]) for mnt in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sum(wins.values()), 200, f"winners of 200 races ({wins[one]} and {wins[two]})")


def test_crossing_moves_of_directories_never_make_a_ring(store):
    one = store.up()
    two = store.mount("two")
    for turn in range(30):
        os.makedirs(f"{one}/{turn}/a")
        os.makedirs(f"{one}/{turn}/b")
        outcomes = []

        def move(mnt, child, parent):
            try:
                os.rename(f"{mnt}/{turn}/{child}", f"{mnt}/{turn}/{parent}/{child}")
                outcomes.append("moved")
            except OSError as error:
                outcomes.append(errno.errorcode[error.errno])

        threads = [threading.Thread(target=move, args=args) for args in [(one, "a", "b"), (two, "b", "a")]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = sum(len(names) for _, names, _ in os.walk(f"{one}/{turn}"))
        equal((left, outcomes.count("moved")), (2, 1), f"turn {turn}: directories left and moves done ({outcomes})")


def test_a_read_only_mount_refuses_changes(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f")
    store.umount()
    store.mount(options=["--read-only"])
    equal(read(f"{mnt}/f"), b"f", "content")
    raises(errno.EROFS, os.mkdir, f"{mnt}/d")
    raises(errno.EROFS, os.open, f"{mnt}/f", os.O_WRONLY)
    raises(errno.EROFS, os.unlink, f"{mnt}/f")


def test_a_cache_is_a_choice(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f" * 50_000)
    cached = store.mount("cached", options=["--cache", "1"])
    equal(read(f"{cached}/f"), b"f" * 50_000, "through the cache")
    write(f"{mnt}/f", b"g" * 30_000)
    wait_until(lambda: read(f"{cached}/f") == b"g" * 30_000, "the cache shows another mount's change", 5)
    for number in range(100):
        write(f"{cached}/{number}", b"%d" % number)
        os.rename(f"{cached}/{number}", f"{cached}/r{number}")
        equal(read(f"{cached}/r{number}"), b"%d" % number, "own changes at once")
        equal(read(f"{mnt}/r{number}"), b"%d" % number, "written through")


def test_past_the_page_cache_and_through_it_is_the_same(store):
    store.init()
    store.serve()
    path = f"{store.mount(options=['--cache', '600'])}/f"
    write(path, b"0" * 40_000)
    through = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(through, 40_000)
    past = os.open(path, os.O_RDWR | os.O_SYNC)
    for turn in range(1, 40):
        at, wanted = 4096 * (turn % 9) + turn, bytes([turn]) * 3000
        os.pwrite(past, wanted, at)
        equal(os.pread(through, 3000, at), wanted, "read through the pages")
        equal(mapped[at:at + 3000], wanted, "mapped")
        wanted = bytes([turn + 100]) * 3000
        if turn % 2:
            os.pwrite(through, wanted, at + 100)
        else:
            mapped[at + 100:at + 3100] = wanted
        equal(os.pread(past, 3000, at + 100), wanted, "read past the pages")
        equal(os.fstat(past).st_size, 40_000, "size")
    mapped.close()
    os.close(through)
    os.close(past)


def test_a_caching_mount_knows_its_directories_after_its_own_changes(store):
    """The kernel asks for a directory's attributes after each change in it; what the mount answers must have in it all that
    it has done, by whatever op and thread."""
    store.init()
    store.serve()
    mnt = store.mount(options=["--cache", "600"])
    strict = store.mount("strict")
    top = f"{mnt}/d"
    os.mkdir(top)

    def told(path):
        found = os.stat(path)
        return found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns

    def as_it_is(what):
        equal(told(top), told(f"{strict}/d"), what)

    for number in range(100):
        write(f"{top}/{number}", b"")
    as_it_is("files made")
    for turn in range(10):
        write(f"{top}/a{turn}", b"")
        os.chmod(top, 0o700 + turn)
        as_it_is("chmod")
        write(f"{top}/b{turn}", b"")
        os.mkdir(f"{top}/sub{turn}")
        as_it_is("mkdir")
        os.unlink(f"{top}/a{turn}")
        os.rename(f"{top}/b{turn}", f"{top}/sub{turn}/c")
        as_it_is("rename")
        write(f"{top}/e{turn}", b"")
        os.link(f"{top}/e{turn}", f"{top}/l{turn}")
        as_it_is("link")
        os.symlink("x", f"{top}/s{turn}")
        as_it_is("symlink")
        os.chown(top, turn, turn)
        as_it_is("chown")

    def many(worker):
        for number in range(60):
            path = f"{top}/w{worker}-{number}"
            write(path, b"")
            if number % 3:
                os.unlink(path)
            if number % 20 == 7:
                os.mkdir(f"{path}-d")

    workers = [threading.Thread(target=many, args=(worker,)) for worker in range(6)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    as_it_is("six at once")


@pytest.mark.root
def test_what_root_mounts_is_read_ahead_further(store):
    device = os.stat(store.up()).st_dev
    path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    if not os.access(path, os.W_OK):
        pytest.skip(f"{path} cannot be written here")
    equal(read(path), b"512\n", "how far the kernel reads ahead, in KiB")


def test_unmounting_while_in_use(store):
    mnt = store.up()
    write(f"{mnt}/f", b"f")
    handle = os.open(f"{mnt}/f", os.O_RDONLY)
    store.refuses("umount", mnt, words=["in use", "--lazy"])
    store.cli("umount", "--lazy", mnt)
    equal(os.path.ismount(mnt), False, "still mounted")
    equal(os.pread(handle, 1, 0), b"f", "what is open stays usable")
    os.close(handle)
    del store.mount_pids["mnt"]
    wait_until(lambda: store.status()["volumes"][0]["sessions"] == 0, "its session ended")
    store.mount()
    equal(read(f"{mnt}/f"), b"f", "mounted again")
    os.kill(store.mount_pids.pop("mnt"), 15)
    wait_until(lambda: not os.path.ismount(mnt), "SIGTERM unmounts")
    store.mount()
    subprocess.run(["umount" if os.geteuid() == 0 else "fusermount3", *([] if os.geteuid() == 0 else ["-u"]), mnt], check=True)
    del store.mount_pids["mnt"]
