"""Disks that fill up."""

import errno
import os
import subprocess

from harness import equal, read, test, wait_until, write

PART = 1 << 20


def fill(directory):
    """Files of 1 MiB until there is no room. -> their names."""
    names = []
    for number in range(10_000):
        name = f"{directory}/full{number}"
        try:
            write(name, bytes([number % 251]) * PART)
        except OSError as error:
            equal(errno.errorcode[error.errno], "ENOSPC", "a full disk")
            if os.path.exists(name):
                os.unlink(name)
            return names
        names.append(name)
    raise AssertionError("no end of room")


@test(root=True)
def a_full_disk_says_so_and_empties_again(store):
    bricks = []
    for number in range(2):
        disk = store.directory(f"disk{number}")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", disk], check=True)
        bricks.append(f"{disk}/brick")
    mnt = store.up(directories=bricks)
    write(f"{mnt}/kept", b"k" * 100_000)
    first = fill(mnt)
    assert len(first) > 30, f"full after {len(first)} MiB"
    for number, name in enumerate(first):
        equal(read(name) == bytes([number % 251]) * PART, True, f"{name} is whole")
    store.kill_server()
    store.serve()
    equal(len(os.listdir(mnt)), len(first) + 1, "files after a restart on full disks")
    for name in first:
        os.unlink(name)
    # What is deleted is collected in the background, and its room comes back when a checkpoint of each brick has ended.
    second = []

    def holds_as_much_again():
        for name in second:
            os.unlink(name)
        second[:] = fill(mnt)
        return len(second) > len(first) * 3 // 4

    wait_until(holds_as_much_again, f"room for {len(first)} MiB again after deletes", limit_s=40)
    for name in second:
        os.unlink(name)
    equal(read(f"{mnt}/kept"), b"k" * 100_000, "what was there before")
    equal([brick["state"] for brick in store.status()["bricks"]], ["online", "online"], "bricks")

