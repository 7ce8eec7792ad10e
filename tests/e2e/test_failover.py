"""A server that is away is done without: others lead its partitions, and it is healed when it comes back."""

import errno
import os
import signal
import subprocess
import threading
import time

import pytest

from harness import equal, free_port, wait_until
from test_compare import compare
from test_kills import Writers
from servers import three

# Of the lease, 3 s, and some round trips; a busy machine takes longer.
GONE_ON_S = 20


def views(store):
    return store.cli("--json", "volume", "show", "v").json()["views"]


def goes_on(store, mnt, what):
    """Names in all partitions are made without that server. -> seconds that it took"""
    begun = time.monotonic()
    for number in range(40):
        os.mkdir(f"{mnt}/{what}{number}")
    took = time.monotonic() - begun
    assert took < GONE_ON_S, f"{what}: {took:.1f} s"
    return took


def synced(mnt, what):
    """Files of several shards are on stable storage of who is there."""
    for number in range(0, 40, 5):
        with open(f"{mnt}/{what}{number}/file", "wb") as file:
            file.write(os.urandom(100_000))
            file.flush()
            os.fsync(file.fileno())


def has_healed(store):
    """All views have all members again."""
    wait_until(lambda: all(len(view["members"]) == 2 for view in views(store)), "all replicas are members", limit_s=40)
    wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=20)


def ends_equal(store):
    store.umount()
    time.sleep(2.5)
    for name in list(store.other_pids):
        store.stop_other(name)
    store.stop()
    report = compare(store, *[store.path(name) for name in ("brick0", "s2-brick", "s3-brick")])
    equal((report["equal"], report["problem_count"]), (True, 0), "replicas")


@pytest.mark.limit(200)
def test_a_killed_server_is_done_without(store):
    mnt = three(store)
    goes_on(store, mnt, "before")
    store.kill_other("s2")
    goes_on(store, mnt, "killed")
    synced(mnt, "before")
    alone = [view for view in views(store) if len(view["members"]) == 1]
    assert alone, "no partition had a copy there"
    for number in range(40):
        os.rename(f"{mnt}/killed{number}", f"{mnt}/before{(number + 7) % 40}/moved")
    store.serve_other("s2")
    has_healed(store)
    # What was written before it dies is synced after it.
    with open(f"{mnt}/between", "wb") as file:
        file.write(os.urandom(9 << 20))
        store.kill_other("s3")
        file.flush()
        os.fsync(file.fileno())
    goes_on(store, mnt, "again")
    equal(len(os.listdir(mnt)), 81, "directories and a file")
    store.serve_other("s3")
    has_healed(store)
    ends_equal(store)


@pytest.mark.limit(120)
def test_a_server_that_stops_is_not_waited_for(store):
    mnt = three(store)
    goes_on(store, mnt, "before")
    store.stop_other("s3")
    # It has said so: nobody waits for its lease.
    wait_until(lambda: any(len(view["members"]) == 1 for view in views(store)), "other views", limit_s=10)
    goes_on(store, mnt, "stopped")
    store.serve_other("s3")
    has_healed(store)
    ends_equal(store)


@pytest.mark.limit(200)
def test_who_slept_longer_than_its_lease_serves_no_old_view(store):
    mnt = three(store)
    writers = Writers(store, mnt, seconds=14)
    time.sleep(0.5)
    for name in ["s2", "s3"]:
        os.kill(store.other_pids[name], signal.SIGSTOP)
        time.sleep(5)
        os.kill(store.other_pids[name], signal.SIGCONT)
        time.sleep(1.5)
    writers.end()
    has_healed(store)
    ends_equal(store)


@pytest.mark.limit(200)
def test_a_server_that_hangs_is_done_without(store):
    mnt = three(store)
    goes_on(store, mnt, "before")
    # Its connections stay: who has asked it something looks for the others by himself.
    os.kill(store.other_pids["s2"], signal.SIGSTOP)
    goes_on(store, mnt, "hangs")
    synced(mnt, "before")
    os.kill(store.other_pids["s2"], signal.SIGCONT)
    has_healed(store)
    ends_equal(store)


@pytest.mark.limit(200)
def test_any_server_can_die_with_a_coordinator_apart(store):
    mnt = three(store, listen=True, apart=True)
    equal(store.status()["coordinator"][0].startswith("tcp:127.0.0.1:"), True, "where the coordinator is")
    goes_on(store, mnt, "before")
    # The one that made the cluster, at which the mount was made.
    store.kill_server()
    goes_on(store, mnt, "killed")
    synced(mnt, "before")
    store.serve("--listen", store.address)
    has_healed(store)
    equal(len(os.listdir(mnt)), 80, "directories")


@pytest.mark.limit(200)
def test_nobody_serves_without_the_coordinator(store):
    mnt = three(store, listen=True, apart=True)
    address = store.status()["coordinator"][0].removeprefix("tcp:")
    goes_on(store, mnt, "before")
    store.kill_coordinator()
    # Leases are over by then. Who asks waits, and is answered once it is back.
    time.sleep(4)
    waiting = subprocess.Popen(["mkdir", f"{mnt}/meanwhile"])
    time.sleep(2)
    equal(waiting.poll(), None, "a mkdir without the coordinator")
    store.refuses("status", words=["the coordinator", f"tcp:{address}"], exits=[69])
    store.coordinate(address)
    equal(waiting.wait(timeout=30), 0, "the mkdir once it is back")
    goes_on(store, mnt, "after")
    has_healed(store)


def waiting(store):
    """Partitions that wait for somebody, by name."""
    rows = store.cli("--json", "partition", "list", "--waiting").json()
    return {f"{row['ring']}/{row['partition']}": row for row in rows}


@pytest.mark.limit(200)
def test_a_volume_may_want_all_of_its_copies(store):
    three(store, listen=True, mount=False)
    store.refuses("volume", "create", "w", "--min-replicas", "3", words=["from 1 to 2"])
    store.cli("volume", "create", "w", "--domain", "server", "--min-replicas", "2")
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=20)
    equal(store.cli("--json", "volume", "show", "w").json()["min_replicas"], 2, "what it wants")
    mnt = store.mount("w", "w")
    goes_on(store, mnt, "before")
    store.kill_other("s2")
    making = subprocess.Popen(["mkdir", *[f"{mnt}/killed{number}" for number in range(40)]])
    time.sleep(8)
    equal(making.poll(), None, "40 directories with a copy less than the volume wants")
    ring = store.cli("--json", "partition", "show", next(iter(waiting(store)))).json()
    equal((ring["min_replicas"], ring["volumes"]), (2, ["w"]), "the ring of what waits")
    assert "server 2" in ring["waits_for"], ring["waits_for"]
    store.serve_other("s2")
    equal(making.wait(timeout=40), 0, "the same with both")
    wait_until(lambda: store.status()["health"] == "good", "all is well again", limit_s=40)


@pytest.mark.limit(200)
def test_a_partition_whose_last_replicas_are_gone_is_forced(store):
    mnt = three(store, listen=True, apart=True)
    goes_on(store, mnt, "before")
    store.kill_other("s2")
    goes_on(store, mnt, "alone")
    store.kill_other("s3")
    store.serve_other("s2")
    # Those of s2 and s3: s2 lacks what s3 took alone.
    bricks = {os.path.basename(row["directory"]): row["brick"] for row in store.cli("--json", "brick", "list").json()}
    old, last = bricks["s2-brick"], bricks["s3-brick"]

    def stuck():
        return {name for name, row in waiting(store).items() if [member["brick"] for member in row["members"]] == [last]}

    wait_until(stuck, "partitions wait for s3 alone", limit_s=20)
    time.sleep(4)
    names = stuck()
    fine = next(f"{row['ring']}/{row['partition']}" for row in store.cli("--json", "partition", "list").json() if old not in row["placed"])
    at = {"state": store.path("s2")}
    brick = ["--brick", store.path("s2-brick")]
    name = sorted(names)[0]
    store.refuses("partition", "force", name, *brick, words=["lost for good", f"--confirm {name}"], **at)
    store.refuses("partition", "force", name, *brick, "--confirm", fine, words=["lost for good"], **at)
    store.refuses("partition", "force", fine, *brick, "--confirm", fine, words=["no replica on"], **at)
    store.refuses("partition", "force", "1", *brick, words=["as 1/5"], **at)
    other = ["--brick", store.path("brick0"), "--confirm", name]
    store.refuses("partition", "force", name, *other, words=["no replica on"])
    shown = store.cli("--json", "partition", "show", name).json()
    equal([(row["brick"], row["whole"]) for row in shown["replicas"]], [(old, True)], "replicas that are there")
    for name in names:
        losses = store.cli("--json", "partition", "force", name, *brick, "--confirm", name, **at).json()["losses"]
        equal(losses, 1, "losses")
    wait_until(lambda: not stuck(), "they are led by s2", limit_s=20)
    store.refuses("partition", "force", name, *brick, "--confirm", name, words=["nothing to force"], **at)
    goes_on(store, mnt, "forced")
    store.serve_other("s3")
    has_healed(store)
    ends_equal_apart(store)


def ends_equal_apart(store):
    store.umount()
    time.sleep(2.5)
    for name in list(store.other_pids):
        store.stop_other(name)
    store.stop()


def reboot(store):
    """The server is gone, and its bricks will find that the machine has booted since."""
    store.kill_server()
    for brick in store.bricks(2):
        with open(f"{brick}/life.toml") as file:
            lines = ['boot = "another"\n' if line.startswith("boot") else line for line in file]
        with open(f"{brick}/life.toml", "w") as file:
            file.writelines(lines)
    store.serve()


def outcome(call, descriptor):
    try:
        call(descriptor)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


def test_what_all_replicas_lost_is_told_once_to_each_who_had_it_open(store):
    store.init()
    store.serve()
    mnt = store.mount()
    handles = {}
    # A sync covers all metadata that its bricks have, so what is to be lost comes after it.
    for name, size in (("synced", 9_000_000), ("small", 1000), ("great", 9_000_000)):
        handles[name] = os.open(f"{mnt}/{name}", os.O_RDWR | os.O_CREAT)
        os.write(handles[name], os.urandom(size))
        if name == "synced":
            os.fsync(handles[name])
    other, closing = (os.open(f"{mnt}/great", os.O_RDWR) for _ in range(2))
    directory = os.open(mnt, os.O_RDONLY)
    os.mkdir(f"{mnt}/made")
    reboot(store)
    for name in ("small", "great"):
        equal(outcome(os.fsync, handles[name]), "EIO", f"the first fsync of {name}")
        equal(outcome(os.fsync, handles[name]), "done", f"the second fsync of {name}")
    equal(outcome(os.fsync, handles["synced"]), "done", "of what was on stable storage")
    later = os.open(f"{mnt}/great", os.O_RDWR)
    equal(outcome(os.fsync, later), "done", "of who opened it afterwards")
    equal(outcome(os.fsync, other), "EIO", "of another who had it open")
    equal(outcome(os.fsync, other), "done", "of the same once more")
    equal(outcome(os.close, closing), "EIO", "the close of a third")
    equal(outcome(os.fsync, directory), "EIO", "of the directory, whose names may be gone")
    equal(outcome(os.fsync, directory), "done", "of the directory once more")
    # What is written after it is as any other.
    os.pwrite(handles["great"], b"again", 0)
    equal(outcome(os.fsync, handles["great"]), "done", "of what was written afterwards")
    for descriptor in [*handles.values(), other, later, directory]:
        equal(outcome(os.close, descriptor), "done", "a close")


def test_mistakes_with_a_coordinator_are_named(store):
    address, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    brick = ["--brick", store.path("brick0")]
    store.refuses("init", *brick, "--coordinator", address, words=["not a token", "hekate token create", "unix:PATH"])
    store.coordinate(address)
    own = store.path("c")
    there = ["--coordinator", store.token(state=own), "--journal", "32"]
    store.refuses("coordinator", "--listen", other, words=["in use"], state=own)
    store.refuses("serve", words=["belongs to a coordinator", "hekate coordinator"], state=own)
    store.refuses("init", *brick, words=["belongs to a coordinator", "--state"], state=own)
    store.refuses("status", words=["a coordinator answers here", "ask a server"], state=own)
    words = ["join", there[1], "--brick", store.path("b9")]
    store.refuses(*words, words=["no cluster yet", "init --coordinator"], state=store.path("s9"))
    store.cli("init", *brick, *there)
    store.refuses("init", *brick, *there, words=["holds a cluster already"], exits=[73])
    again = ["--brick", store.path("brick1")]
    for invitation in (store.token(state=own), f"unix:{own}/server.sock"):
        words = ["has cluster", "hekate join"]
        store.refuses("init", *again, "--coordinator", invitation, words=words, state=store.path("twice"))
    store.refuses("coordinator", "--listen", other, words=["belongs to a server", "--state"], exits=[73])
    store.serve("--listen", other)
    store.refuses("init", *again, "--coordinator", store.token(), words=["hekate join"], state=store.path("twice"))
    # The coordinator tells where it is, and a server where its coordinator is.
    store.join("s2")
    store.serve_other("s2")
    equal(store.status()["coordinator"], [f"tcp:{address}"], "the coordinator")
    equal(len(store.status()["servers"]), 2, "servers")


@pytest.mark.limit(200)
def test_a_mount_made_while_a_server_was_away_finds_it_later(store):
    mnt = three(store, listen=True, apart=True)
    goes_on(store, mnt, "before")
    store.kill_other("s2")
    goes_on(store, mnt, "killed")
    late = store.mount("late")
    store.serve_other("s2")
    has_healed(store)
    # Nothing was asked of it since, so nobody has told it that others lead now.
    store.kill_server()
    goes_on(store, late, "late")
    store.serve("--listen", store.address)
    has_healed(store)
    equal(len(os.listdir(mnt)), 120, "directories")


def fsyncs(mnt, number, until, failed, done):
    """A file, and names in a directory, are synced again and again until then."""
    directory = f"{mnt}/fsync{number}"
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/file", "wb", buffering=0) as file:
        handle = os.open(directory, os.O_RDONLY)
        count = 0
        while not until.is_set():
            try:
                file.write(os.urandom(20_000))
                os.fsync(file.fileno())
                open(f"{directory}/name{count % 50}", "wb").close()
                os.fsync(handle)
            except OSError as error:
                failed.append(f"round {count} of {directory}: {error}")
            count += 1
            done[number] = count
        os.close(handle)


def fails_a_sync(store, name):
    """One of the next calls of fdatasync(2) of a server fails, and its brick stops. -> once views are without it"""
    command = ["strace", "-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=5"]
    tracer = subprocess.Popen([*command, "-p", str(store.other_pids[name]), "-o", store.path("strace-fail")])
    try:
        wait_until(lambda: any(len(view["members"]) == 1 for view in views(store)), "views without the brick", limit_s=60)
    finally:
        tracer.terminate()
        tracer.wait()


@pytest.mark.root
@pytest.mark.limit(300)
def test_a_failed_sync_of_one_brick_fails_no_fsync(store):
    mnt = three(store)
    goes_on(store, mnt, "before")
    for name in ["s2", "s3", "s2"]:
        until, failed, done = threading.Event(), [], {}
        threads = [threading.Thread(target=fsyncs, args=(mnt, number, until, failed, done)) for number in range(6)]
        for thread in threads:
            thread.start()
        fails_a_sync(store, name)
        reached = dict(done)
        wait_until(lambda: all(done.get(number, 0) > reached.get(number, 0) + 2 for number in range(6)), "all go on")
        until.set()
        for thread in threads:
            thread.join()
        equal(failed, [], "calls that failed")
        store.kill_other(name)
        store.serve_other(name)
        has_healed(store)
    ends_equal(store)
