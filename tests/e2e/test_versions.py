"""What another release has written is refused before anything is changed; servers restart one after the other under load."""

import os
import re
import threading

from harness import equal, read, same_bytes, wait_until, write
from test_servers import first


def test_a_brick_of_a_newer_release_is_refused(store):
    mnt = store.up()
    write(f"{mnt}/f", b"kept")
    store.umount()
    store.stop()
    path = f"{store.bricks(2)[0]}/brick.toml"
    text = read(path).decode()
    newer = re.sub(r"format = (\d+)", "format = 99", text)
    assert newer != text, text
    write(path, newer.encode())
    before = {name: os.stat(f"{store.bricks(2)[0]}/{name}").st_mtime_ns for name in os.listdir(store.bricks(2)[0])}
    store.refuses("serve", "--detach", words=["format 99", r"knows \d+", "use the release that wrote it, or a newer one"])
    store.refuses("brick", "inspect", store.bricks(2)[0], words=["format 99"])
    after = {name: os.stat(f"{store.bricks(2)[0]}/{name}").st_mtime_ns for name in os.listdir(store.bricks(2)[0])}
    equal(after, before, "what was changed in the brick")
    write(path, text.encode())
    store.serve()
    equal(read(f"{store.mount()}/f"), b"kept", "bytes")


def test_servers_restart_one_after_the_other_under_load(store):
    """Both copies are on different servers; who writes waits while one of them is away, and nothing fails or is lost."""
    address = first(store)
    store.join("second")
    store.serve_other("second")
    store.cli("volume", "create", "both", "--copies", "2", "--domain", "server")
    mnt = store.mount(volume="both")
    ends, done, faults = threading.Event(), [0, 0], []

    def work(worker):
        try:
            while not ends.is_set():
                number = done[worker]
                write(f"{mnt}/{worker}-{number}", b"%d" % number * 1000, os.O_SYNC)
                os.rename(f"{mnt}/{worker}-{number}", f"{mnt}/{worker}+{number}")
                done[worker] += 1
        except OSError as error:
            faults.append(error)

    def goes_on():
        before = list(done)
        wait_until(lambda: faults or all(now > then + 5 for now, then in zip(done, before)), "work goes on", 60)

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(2):
        goes_on()
        store.stop_other("second")
        store.serve_other("second")
        goes_on()
        store.stop()
        store.serve("--listen", address)
    goes_on()
    ends.set()
    for worker in workers:
        worker.join(timeout=60)
    equal(faults, [], "errors of who wrote")
    equal(len(os.listdir(mnt)), sum(done), "files")
    for worker in range(2):
        for number in range(done[worker]):
            same_bytes(read(f"{mnt}/{worker}+{number}"), b"%d" % number * 1000, f"{worker}+{number}")
