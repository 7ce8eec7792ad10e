"""What mounts answer from memory: never what was before, and at whose cost."""

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time

from harness import equal, raises, read, wait_until, write

ROUNDS = int(os.environ.get("COHERENCE_ROUNDS", "150"))


def two_mounts(store):
    """-> two mounts of one volume."""
    return store.up(), store.mount("other")


def exchange(one, two):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, one.encode(), -100, two.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def ops(store, name):
    """How often the server has executed an op of clients."""
    return store.status()["ops"].get(name, {}).get("done", 0)


def test_two_mounts_never_show_what_was_before(store):
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    for number in range(ROUNDS):
        here, there = ((one, two), (two, one))[number % 2]
        name = f"n{number % 7}"
        raises(errno.ENOENT, os.stat, f"{there}/d/{name}")
        write(f"{here}/d/{name}", b"x" * (number + 1))
        equal(os.stat(f"{there}/d/{name}").st_size, number + 1, "a size")
        os.chmod(f"{there}/d/{name}", 0o600 + number % 8)
        equal(os.stat(f"{here}/d/{name}").st_mode & 0o777, 0o600 + number % 8, "a mode")
        os.utime(f"{here}/d/{name}", ns=(number, number))
        equal(os.stat(f"{there}/d/{name}").st_mtime_ns, number, "a time")
        os.link(f"{there}/d/{name}", f"{there}/d/more")
        equal(os.stat(f"{here}/d/{name}").st_nlink, 2, "links")
        os.rename(f"{here}/d/more", f"{here}/d/{name}-moved")
        raises(errno.ENOENT, os.stat, f"{there}/d/more")
        equal(os.stat(f"{there}/d/{name}-moved").st_nlink, 2, "links of the moved name")
        with open(f"{there}/d/{name}", "ab") as file:
            file.write(b"yy")
        equal(os.stat(f"{here}/d/{name}-moved").st_size, number + 3, "a size after an append")
        before = os.stat(f"{there}/d").st_mtime_ns
        os.unlink(f"{here}/d/{name}-moved")
        assert os.stat(f"{there}/d").st_mtime_ns > before, "the directory's time did not move"
        equal(os.stat(f"{there}/d/{name}").st_nlink, 1, "links after a removal")
        os.setxattr(f"{there}/d/{name}", "user.a", b"1")
        equal(os.getxattr(f"{here}/d/{name}", "user.a"), b"1", "an attribute")
        os.unlink(f"{there}/d/{name}")
        raises(errno.ENOENT, os.stat, f"{here}/d/{name}")
    os.mkdir(f"{one}/d/sub")
    equal(os.stat(f"{two}/d").st_nlink, 3, "links of a directory")
    os.rmdir(f"{two}/d/sub")
    raises(errno.ENOENT, os.stat, f"{one}/d/sub")


def test_the_root_shows_what_another_mount_changes_in_it(store):
    one, two = two_mounts(store)
    for number in range(20):
        before = os.stat(two).st_mtime_ns
        equal(os.stat(two).st_mtime_ns, before, "a time that nobody has changed")
        write(f"{one}/{number}", b"")
        assert os.stat(two).st_mtime_ns > before, "the root's time did not move"
        os.chmod(one, 0o700 + number % 8)
        equal(os.stat(two).st_mode & 0o777, 0o700 + number % 8, "the root's mode")
        time.sleep(0.1)
    # What changes often is not pledged.
    time.sleep(1.1)
    for number in range(3):
        os.stat(two)
        os.chmod(one, 0o750 + number)
        equal(os.stat(two).st_mode & 0o777, 0o750 + number, "the root's mode after a while")
        time.sleep(1.1)


def test_names_and_attributes_are_asked_for_once(store):
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    for number in range(50):
        write(f"{one}/d/{number}", b"1")

    def look():
        for number in range(50):
            os.stat(f"{two}/d/{number}")
            raises(errno.ENOENT, os.stat, f"{two}/d/no-{number}")
            raises(errno.ENODATA, os.getxattr, f"{two}/d/{number}", "user.a")

    # What was changed a moment ago is not pledged.
    time.sleep(1.1)
    look()
    names = ("lookup", "getattr", "getxattr")
    before = {name: ops(store, name) for name in names}
    for _ in range(20):
        look()
    asked = {name: ops(store, name) - before[name] for name in names}
    assert sum(asked.values()) < 100, f"3,000 look-ups and more asked the server: {asked}"


def test_who_makes_a_directory_knows_what_is_missing_there(store):
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    before = ops(store, "lookup")
    for number in range(100):
        write(f"{one}/d/{number}", b"1")
    asked = ops(store, "lookup") - before
    # One follows each create, in its message.
    assert asked < 110, f"100 new files cost {asked} look-ups"
    for number in range(20):
        raises(errno.ENOENT, os.stat, f"{one}/d/new-{number}")
        write(f"{two}/d/new-{number}", b"2")
        equal(read(f"{one}/d/new-{number}"), b"2", "what the other mount has made")
        raises(errno.EEXIST, os.mkdir, f"{one}/d/new-{number}")
        os.rename(f"{one}/d/{number}", f"{one}/d/moved-{number}")
        raises(errno.ENOENT, os.stat, f"{one}/d/{number}")
        os.rename(f"{two}/d/moved-{number}", f"{two}/d/{number}")
        raises(errno.ENOENT, os.stat, f"{one}/d/moved-{number}")
        equal(read(f"{one}/d/{number}"), b"1", "what the other mount has moved")
        os.mkdir(f"{one}/own-{number}")
        raises(errno.ENOENT, os.stat, f"{one}/own-{number}/a")
        write(f"{two}/own-{number}/a", b"2")
        raises(errno.EEXIST, os.open, f"{one}/own-{number}/a", os.O_CREAT | os.O_EXCL)


def test_a_directory_is_listed_once(store):
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    names = {str(number) for number in range(30)}
    for name in names:
        write(f"{one}/d/{name}", b"1")

    def look():
        os.stat(f"{two}/d")
        found = {(entry.name, entry.stat().st_size) for entry in os.scandir(f"{two}/d")}
        equal(found, {(name, 1) for name in names}, "names and sizes")

    # What was changed a moment ago is not pledged, and the first list moves the time of access.
    for _ in range(2):
        time.sleep(1.1)
        look()
    before = ops(store, "list")
    for _ in range(20):
        look()
    asked = ops(store, "list") - before
    assert asked < 3, f"the server was asked {asked} times for a list that has not changed"
    for number in range(10):
        write(f"{one}/d/new-{number}", b"2")
        names.add(f"new-{number}")
        equal(set(os.listdir(f"{two}/d")), names, "a name that the other mount has made")
        os.rename(f"{one}/d/new-{number}", f"{one}/d/moved-{number}")
        names.symmetric_difference_update({f"new-{number}", f"moved-{number}"})
        equal(set(os.listdir(f"{two}/d")), names, "a name that the other mount has moved")
        os.unlink(f"{one}/d/{number}")
        names.remove(f"{number}")
        equal(set(os.listdir(f"{two}/d")), names, "a name that the other mount has removed")
        time.sleep(0.2)


def test_what_is_missing_from_a_directory_is_asked_for_a_few_times(store):
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    for number in range(30):
        write(f"{one}/d/{number}", b"1")
    time.sleep(1.1)
    os.stat(f"{two}/d")
    before = ops(store, "lookup")
    for number in range(200):
        raises(errno.ENOENT, os.stat, f"{two}/d/no-{number}")
    asked = ops(store, "lookup") - before
    assert asked < 10, f"200 missing names cost {asked} look-ups"
    for number in range(200):
        if number % 10 == 0:
            write(f"{one}/d/no-{number}", b"2")
            equal(read(f"{two}/d/no-{number}"), b"2", "what the other mount has made")
        else:
            raises(errno.ENOENT, os.stat, f"{two}/d/no-{number}")


def test_times_show_writes_that_told_nobody(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"1" * (1 << 20))
    with open(f"{one}/f", "r+b", buffering=0) as file:

        def overwrite(count, byte):
            for number in range(count):
                os.pwrite(file.fileno(), byte * 4096, 4096 * (number % 256))
                time.sleep(0.001)

        overwrite(500, b"2")
        before, told = os.stat(f"{two}/f"), ops(store, "wrote")
        time.sleep(1.2)
        overwrite(50, b"3")
        told = ops(store, "wrote")
        overwrite(500, b"4")
        told = ops(store, "wrote") - told
        assert told < 50, f"500 writes told the leader {told} times"
        wrote = time.time_ns()
        after = os.stat(f"{two}/f")
        assert after.st_mtime_ns > before.st_mtime_ns, "the other mount sees that the file was written"
        assert abs(after.st_mtime_ns - wrote) < 500_000_000, (after.st_mtime_ns, wrote)
        own = os.stat(f"{one}/f")
        assert own.st_mtime_ns == after.st_mtime_ns
        overwrite(3, b"5")
        assert os.stat(f"{one}/f").st_mtime_ns > own.st_mtime_ns, "and so does the writer"
        os.utime(f"{one}/f", ns=(5, 6))
        assert os.stat(f"{two}/f").st_mtime_ns == 6, "times that are set are those that count"


def test_a_writer_that_hangs_hides_its_times_for_six_seconds_at_most(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"1" * (1 << 20))
    before = os.stat(f"{two}/f")
    time.sleep(1.2)
    with open(f"{one}/f", "r+b", buffering=0) as file:

        def overwrite():
            for number in range(300):
                os.pwrite(file.fileno(), b"2" * 4096, 4096 * (number % 256))
                time.sleep(0.001)
            told = ops(store, "wrote")
            os.pwrite(file.fileno(), b"3" * 4096, 0)
            return ops(store, "wrote") == told

        wait_until(overwrite, "the writer has a grant")
        wrote = time.time_ns()
        go_on = hang(store.mount_pids["mnt"])
        try:
            begun = time.monotonic()
            shown = os.stat(f"{two}/f")
            waited = time.monotonic() - begun
        finally:
            go_on()
        assert 0.5 < waited < 8, f"the answer took {waited:.1f} s"
        assert shown.st_mtime_ns > before.st_mtime_ns, "what may have been written counts as written"
        assert shown.st_mtime_ns >= wrote - 500_000_000, (shown.st_mtime_ns, wrote)
        os.pwrite(file.fileno(), b"4" * 4096, 0)
        assert os.stat(f"{two}/f").st_mtime_ns > shown.st_mtime_ns, "the writer goes on"


def hang(pid):
    """Stops a process, and lets it go on in the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: has_stopped(pid), "all threads have stopped")
    except BaseException:
        os.kill(pid, signal.SIGCONT)
        raise
    return lambda: os.kill(pid, signal.SIGCONT)


def has_stopped(pid):
    states = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as stat:
            states.append(stat.read().rpartition(b")")[2].split()[0])
    return all(state == b"T" for state in states)


def grow(file, times=40, size=4096):
    """Makes a file longer, without a look at its attributes. -> how long it is."""
    end = os.lseek(file, 0, os.SEEK_END)
    for _ in range(times):
        end += os.pwrite(file, b"g" * size, end)
    return end


def grows_alone(store, file):
    """-> how long the file is, once its writer tells nobody of its end."""
    end = 0

    def tells_nobody():
        nonlocal end
        told = ops(store, "wrote")
        end = grow(file)
        return ops(store, "wrote") - told <= 4

    wait_until(tells_nobody, "the writer moves the end by itself")
    return end


def test_a_stream_tells_nobody_of_its_end(store):
    one, two = two_mounts(store)
    file = os.open(f"{one}/f", os.O_CREAT | os.O_RDWR, 0o644)
    end = 0
    try:
        for turn in range(3):
            end = grows_alone(store, file)
            equal(os.stat(f"{two}/f").st_size, end, f"turn {turn}: the size at the other mount")
            equal(read(f"{two}/f")[-4096:], b"g" * 4096, "its last bytes")
            equal(os.fstat(file).st_size, end, "the size at the writer's mount")
        grows_alone(store, file)
        os.truncate(f"{two}/f", 100)
        equal((os.fstat(file).st_size, os.stat(f"{two}/f").st_size), (100, 100), "after a truncate by the other mount")
        os.pwrite(file, b"e", 199)
        equal(read(f"{two}/f"), b"g" * 100 + b"\0" * 99 + b"e", "what was cut off is gone")
    finally:
        os.close(file)
    os.unlink(f"{two}/f")
    raises(errno.ENOENT, os.stat, f"{one}/f")


def test_a_writer_that_dies_loses_no_byte(store):
    one, two = two_mounts(store)
    file = os.open(f"{one}/f", os.O_CREAT | os.O_RDWR, 0o644)
    end = grows_alone(store, file)
    store.kill_mount()
    with contextlib.suppress(OSError):
        os.close(file)
    begun = time.monotonic()
    equal(os.stat(f"{two}/f").st_size, end, "the size")
    assert time.monotonic() - begun < 8, "it waited too long"
    equal(read(f"{two}/f"), b"g" * end, "the bytes")


def test_a_writer_that_dies_with_its_server_loses_no_byte(store):
    one = store.up()
    file = os.open(f"{one}/f", os.O_CREAT | os.O_RDWR, 0o644)
    end = grows_alone(store, file)
    store.kill_server()
    store.kill_mount()
    with contextlib.suppress(OSError):
        os.close(file)
    store.serve()
    two = store.mount("two")
    equal(os.stat(f"{two}/f").st_size, end, "the size")
    equal(read(f"{two}/f"), b"g" * end, "the bytes")


def test_a_writer_goes_on_after_its_server(store):
    one, two = two_mounts(store)
    file = os.open(f"{one}/f", os.O_CREAT | os.O_RDWR, 0o644)
    for turn in range(2):
        end = grows_alone(store, file)
        store.kill_server()
        store.serve()
        equal(os.stat(f"{two}/f").st_size, end, f"turn {turn}: the size at the other mount")
        end = grow(file)
        equal(os.stat(f"{two}/f").st_size, end, f"turn {turn}: afterwards")
    os.close(file)


def test_appends_of_two_mounts_follow_each_other(store):
    one, two = two_mounts(store)
    write(f"{one}/log", b"-" * 20_000)
    here, there = (os.open(f"{mnt}/log", os.O_WRONLY | os.O_APPEND) for mnt in (one, two))
    wanted = b"-" * 20_000
    for turn in range(6):
        for file, letter in ((here, b"h"), (there, b"t")):
            for _ in range(12):
                wanted += letter * 100
                os.write(file, letter * 100)
        equal(read(f"{(one, two)[turn % 2]}/log"), wanted, f"turn {turn}")
    os.close(here)
    os.close(there)


def test_a_client_that_hangs_delays_others_by_six_seconds_at_most(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"1")
    time.sleep(1.1)
    os.stat(f"{two}/f")
    go_on = hang(store.mount_pids["other"])
    try:
        told = []

        def poll():
            while not told and time.monotonic() < end:
                slow = store.status()["slow_clients"]
                told.extend(client for client in slow if client["seconds"] >= 1)
                time.sleep(0.2)

        begun = time.monotonic()
        end = begun + 8
        watcher = threading.Thread(target=poll)
        watcher.start()
        os.chmod(f"{one}/f", 0o600)
        took = time.monotonic() - begun
        watcher.join()
        assert 4 < took < 8, f"a change took {took:.1f} s"
        assert told and told[0]["volume"] == "v", f"status does not name who is waited for: {told}"
        begun = time.monotonic()
        os.chmod(f"{one}/f", 0o604)
        assert time.monotonic() - begun < 1, "the next change waited again"
    finally:
        go_on()
    equal(os.stat(f"{two}/f").st_mode & 0o777, 0o604, "the mode at who slept")


def test_a_dead_client_delays_nobody_longer(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"1")
    time.sleep(1.1)
    os.stat(f"{two}/f")
    store.kill_mount("other")
    begun = time.monotonic()
    os.chmod(f"{one}/f", 0o600)
    assert time.monotonic() - begun < 8


def test_after_a_restart_of_the_server_changes_go_on_at_once(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"1")
    time.sleep(1.1)
    for round_ in range(3):
        os.stat(f"{two}/f")
        store.kill_server()
        store.serve()
        begun = time.monotonic()
        os.chmod(f"{one}/f", 0o600 + round_)
        took = time.monotonic() - begun
        assert took < 4, f"a change took {took:.1f} s though both mounts live"
        equal(os.stat(f"{two}/f").st_mode & 0o777, 0o600 + round_, "the mode")


def answers_alone(store, look):
    """True if the kernel answers without the mount's process."""
    look()
    done = threading.Event()
    go_on = hang(store.mount_pids["other"])
    try:
        threading.Thread(target=lambda: (look(), done.set()), daemon=True).start()
        return done.wait(2)
    finally:
        go_on()
        done.wait(10)


def test_the_kernel_answers_by_names_that_are_pledged(store):
    one, two = two_mounts(store)
    os.makedirs(f"{one}/d/e")
    write(f"{one}/d/e/f", b"1")
    time.sleep(1.1)

    def look():
        os.stat(f"{two}/d/e/f")
        raises(errno.ENOENT, os.stat, f"{two}/d/e/none")

    assert any(answers_alone(store, look) for _ in range(5)), "the mount's process was asked each time"
    write(f"{one}/d/e/none", b"")
    os.unlink(f"{one}/d/e/f")
    os.stat(f"{two}/d/e/none")
    raises(errno.ENOENT, os.stat, f"{two}/d/e/f")


def test_a_renamed_name_is_forgotten_by_its_new_name(store):
    """The kernel moves what it knows of the old name to the new one."""
    one, two = two_mounts(store)
    os.mkdir(f"{one}/d")
    for number in range(12):
        # New names, since what was recalled a moment ago is not pledged.
        here, there = ([f"{mount}/d/{name}{number}" for name in "abc"] for mount in (one, two))
        write(there[0], b"1")
        os.stat(here[0])
        if number % 3:
            os.rename(here[0], here[1])
        else:
            write(there[1], b"22")
            os.stat(here[1])
            exchange(here[0], here[1])
            equal(os.stat(there[1]).st_size, 1, "a size")
            os.unlink(there[0])
            raises(errno.ENOENT, os.stat, here[0])
        os.rename(there[1], there[2])
        raises(errno.ENOENT, os.stat, here[1])
    os.mkdir(f"{one}/d/sub")
    os.stat(f"{one}/d/sub")
    os.rename(f"{one}/d/sub", f"{one}/d/moved")
    os.rmdir(f"{two}/d/moved")
    raises(errno.ENOENT, os.stat, f"{one}/d/moved")


def test_changes_of_the_same_names_by_two_mounts_end(store):
    """Each holds the directory's lock at home while it waits for the other to forget a name."""
    mounts = two_mounts(store)
    os.mkdir(f"{mounts[0]}/d")
    took, inside, failures = [], [0], []
    end = time.monotonic() + 6

    def work(mount):
        try:
            while time.monotonic() < end:
                os.path.exists(f"{mount}/d/lock")
                begun = time.monotonic()
                try:
                    os.close(os.open(f"{mount}/d/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                except FileExistsError:
                    continue
                finally:
                    took.append(time.monotonic() - begun)
                inside[0] += 1
                equal(inside[0], 1, "holders of the lock")
                os.stat(f"{mount}/d/lock")
                inside[0] -= 1
                os.unlink(f"{mount}/d/lock")
        except Exception as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(mount,)) for mount in mounts for _ in range(2)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not failures, failures
    assert len(took) > 20 and max(took) < 4, f"{len(took)} attempts, the longest took {max(took):.1f} s"


def test_small_files_are_asked_for_once(store):
    one, two = two_mounts(store)
    for number in range(50):
        write(f"{one}/{number}", b"%d" % number)
    time.sleep(1.1)

    def look():
        for number in range(50):
            equal(read(f"{two}/{number}"), b"%d" % number, "content")

    # The first read moves the time of access, which the other mount remembered.
    look()
    time.sleep(1.1)
    look()
    look()
    before = ops(store, "read")
    for _ in range(10):
        look()
    assert ops(store, "read") - before < 50, "1,000 reads asked the server"


def test_what_another_mount_writes_is_read_whatever_its_times_say(store):
    one, two = two_mounts(store)
    write(f"{one}/f", b"00000000")
    os.utime(f"{one}/f", ns=(1, 1))
    handle = os.open(f"{two}/f", os.O_RDONLY)
    for number in range(ROUNDS):
        content = b"%08d" % number
        with open(f"{one}/f", "r+b") as file:
            file.write(content)
        if number % 2:
            os.utime(f"{one}/f", ns=(1, 1))
        if number % 3:
            equal(os.pread(handle, 100, 0), content, "what an open file reads")
        equal(read(f"{two}/f"), content, "what a new one reads")
        if number % 10 == 0:
            # Long enough for what was recalled to be pledged again.
            time.sleep(1.1)
            equal(os.pread(handle, 100, 0), content, "what an open file reads later")
            equal(read(f"{two}/f"), content, "what a new one reads later")
            equal(read(f"{two}/f"), content, "what a new one reads then")
    os.close(handle)


def test_a_file_that_has_grown_is_read_as_it_is(store):
    """Of a larger file the attributes do not tell of each change."""
    one, two = two_mounts(store)
    write(f"{one}/f", b"a" * 1000)
    time.sleep(1.1)
    handle = os.open(f"{two}/f", os.O_RDONLY)
    equal(os.pread(handle, 10, 0), b"a" * 10, "content")
    file = os.open(f"{one}/f", os.O_RDWR)
    os.pwrite(file, b"b" * 100_000, 0)
    for number in range(20):
        content = b"%010d" % number
        os.pwrite(file, content, 0)
        equal(os.pread(handle, 10, 0), content, "content")
        os.utime(f"{one}/f", ns=(1, 1))
    os.ftruncate(file, 5)
    equal(os.pread(handle, 10, 0), b"00000", "content")
    os.close(file)
    os.close(handle)


def test_a_reader_sees_its_own_mounts_writes(store):
    one = store.up()
    write(f"{one}/f", b"0" * 10)
    reader = os.open(f"{one}/f", os.O_RDONLY)
    writer = os.open(f"{one}/f", os.O_RDWR)
    for number in range(50):
        content = b"%010d" % number
        equal(len(os.pread(reader, 20, 0)), 10, "length")
        os.pwrite(writer, content, 0)
        equal(os.pread(reader, 20, 0), content, "content")
    os.ftruncate(writer, 3)
    equal(os.pread(reader, 20, 0), b"000", "content after a truncate")
    os.close(reader)
    os.close(writer)
