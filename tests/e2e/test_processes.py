"""One volume served by several processes: data on all of them, processes killed one by one and all at once."""

import os
import threading
import time

from harness import equal, read, same_bytes, wait_until, write
from servers import three


def test_files_of_three_processes(store):
    mnt = three(store)
    for number in range(30):
        os.mkdir(f"{mnt}/d{number}")
        write(f"{mnt}/d{number}/f", b"%d" % number)
    for number in range(0, 30, 2):
        os.rename(f"{mnt}/d{number}", f"{mnt}/d{number + 1}/moved")
        os.link(f"{mnt}/d{number + 1}/f", f"{mnt}/d{number + 1}/linked")
    big = os.urandom(9 << 20)
    write(f"{mnt}/big", big)
    os.truncate(f"{mnt}/big", 5 << 20)
    store.remount()
    equal(sorted(os.listdir(mnt)), sorted(["big"] + [f"d{number}" for number in range(1, 30, 2)]), "names")
    for number in range(0, 30, 2):
        same_bytes(read(f"{mnt}/d{number + 1}/moved/f"), b"%d" % number, "a file that moved with its directory")
        equal(os.stat(f"{mnt}/d{number + 1}/linked").st_nlink, 2, "links")
    same_bytes(read(f"{mnt}/big"), big[:5 << 20], "a file of several shards")


def places(found):
    """Every place that `hekate where` lists of a file or directory."""
    return [found["place"]] + found.get("names", []) + found.get("shards", [])


def test_where_files_of_three_processes_rest(store):
    mnt = three(store)
    os.makedirs(f"{mnt}/a/b")
    write(f"{mnt}/a/b/big", os.urandom(64 << 20))
    found = [store.cli("--json", "where", place).json() for place in ["v:/", "v:/a", "v:/a/b", "v:/a/b/big"]]
    everywhere = [place for one in found for place in places(one)]
    assert len(found[-1]["shards"]) == 16, f"{len(found[-1]['shards'])} shards"
    for place in everywhere:
        equal((len(place["replicas"]), place["equal"]), (2, True), f"replicas that are equal in {place}")
        assert all(replica["has"] and not replica["error"] for replica in place["replicas"]), place
    bricks = {replica["brick"] for place in everywhere for replica in place["replicas"]}
    equal(len(bricks), 3, "bricks of three servers")
    store.kill_other("s3")
    wait_until(lambda: store.status()["health"] == "degraded", "the loss is seen", limit_s=20)
    # What another server leads cannot be found while that one is away, and it is named.
    for place in ["v:/", "v:/a/b/big"]:
        asked = store.try_cli("--json", "where", place)
        if asked.exit == 0:
            errors = [replica["error"] for one in places(asked.json()) for replica in one["replicas"] if replica["error"]]
            assert all("server-3" in error for error in errors), errors
            assert errors or place == "v:/", "a file of 16 shards has copies on each of three servers"
        else:
            assert "server-3" in asked.text, asked.text
    store.serve_other("s3")
    wait_until(lambda: store.status()["health"] == "good", "it is whole again", limit_s=20)
    again = store.cli("--json", "where", "v:/a/b/big").json()
    stamps = lambda one: [[replica["has"] for replica in shard["replicas"]] for shard in one["shards"]]
    equal(stamps(again), stamps(found[-1]), "what was there before")


def test_a_process_that_is_away_is_waited_for_and_named(store):
    mnt = three(store)
    # Directories are scattered over the partitions.
    for number in range(40):
        os.mkdir(f"{mnt}/d{number}")
    store.kill_other("s3")
    wait_until(lambda: store.status()["health"] == "degraded", "the loss is seen", limit_s=20)
    status = store.status()
    named = [row for row in status["waiting_partitions"] if "of server 3" in row["waits_for"]]
    assert named, f"nobody says that server 3 is missing: {status['waiting_partitions']}"
    done = []

    def work():
        for number in range(40):
            write(f"{mnt}/d{number}/f", b"%d" % number)
            done.append(number)

    writer = threading.Thread(target=work)
    writer.start()
    time.sleep(1.5)
    assert len(done) < 40, "some partition has a copy there, so its writers wait"
    store.serve_other("s3")
    writer.join(timeout=60)
    equal(len(done), 40, "files written once it is back")
    wait_until(lambda: store.status()["health"] == "good", "it is whole again", limit_s=20)
    for number in range(40):
        same_bytes(read(f"{mnt}/d{number}/f"), b"%d" % number, "what waited")


def test_processes_are_killed_under_load(store):
    mnt = three(store)
    failures, counts, stop = [], {}, threading.Event()

    def work(worker):
        counts[worker] = 0
        try:
            while not stop.is_set():
                number = counts[worker]
                write(f"{mnt}/w{worker}-{number}", b"%d" % number)
                if number % 3 == 0:
                    os.mkdir(f"{mnt}/w{worker}-{number}.d")
                    os.rename(f"{mnt}/w{worker}-{number}", f"{mnt}/w{worker}-{number}.d/f")
                counts[worker] += 1
        except OSError as error:
            failures.append(f"worker {worker}, op {counts[worker]}: {error}")

    threads = [threading.Thread(target=work, args=[worker]) for worker in range(3)]
    for thread in threads:
        thread.start()
    for round in range(4):
        time.sleep(0.7)
        if round % 2 == 0:
            store.kill_other("s2")
            time.sleep(0.2)
            store.serve_other("s2")
        else:
            store.kill_other("s3")
            store.kill_server()
            time.sleep(0.2)
            store.serve("--listen", store.address)
            store.serve_other("s3")
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    equal(failures, [], "errors that writers saw")
    assert min(counts.values()) > 3, f"too slow to say anything: {counts}"
    store.remount()
    for worker, count in counts.items():
        for number in range(count):
            path = f"{mnt}/w{worker}-{number}" + (".d/f" if number % 3 == 0 else "")
            same_bytes(read(path), b"%d" % number, path)
    everything = set(os.listdir(mnt))
    wanted = {f"w{worker}-{number}" + (".d" if number % 3 == 0 else "") for worker, count in counts.items() for number in range(count)}
    # The last op of a worker was acknowledged, so nothing is there that nobody counted.
    equal(everything, wanted, "names")
