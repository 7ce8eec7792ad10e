"""fsx: random operations on one file, each read compared with what must be there; through both kinds of mount at once.

HEKATE_FSX_OPS=N: operations of each run [3000]; HEKATE_SEED: which [random, and printed on failure].
"""

import errno
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import equal, read, same_bytes, write
from posix_lists import tool, waiting

OPS = int(os.environ.get("HEKATE_FSX_OPS", "3000"))
SEED = int(os.environ.get("HEKATE_SEED", time.time_ns() % 1_000_000_000))
# The greatest length of the file and of an operation.
KINDS = {
    "inline": (16 << 10, 8 << 10),  # its bytes are beside its inode, or in a shard
    "middle": (256 << 10, 64 << 10),
    "shards": (13 << 20, 256 << 10),  # four shards of 4 MiB
}
# How often, in relation. Half of the holes are zeroed ranges, every second open is with O_DIRECT: tests/posix/fsx_preload.c.
WEIGHTS = {
    "close_open": 2, "read": 10, "write": 10, "mapread": 10, "mapwrite": 10, "truncate": 5, "invalidate": 1,
    "fsync": 1, "fdatasync": 1, "posix_fallocate": 3, "punch_hole": 5, "sendfile": 5, "posix_fadvise": 2,
    "copy_file_range": 5,
}
# What fallocate(1) does the same with.
FALLOCATE = {"posix_fallocate": [], "punch_hole": ["--punch-hole"]}


@pytest.mark.limit(max(600, OPS // 30))
def test_fsx_finds_what_it_wrote(store):
    mounts = {"strict": store.up(), "cached": store.mount("cached", options=["--cache", "1"])}
    off = waiting("fsx")
    for operation in off:
        equal(is_refused(mounts["strict"], operation), True, f"tests/posix/waiting.txt: {operation} is refused")
    runs = [(kind, mount) for kind in KINDS for mount in mounts]
    with ThreadPoolExecutor(len(runs)) as pool:
        done = [
            pool.submit(run, store, mounts[mount], f"{kind}-{mount}", KINDS[kind], SEED + number, off)
            for number, (kind, mount) in enumerate(runs)
        ]
        faults = [fault for fault in (one.result() for one in done) if fault]
    assert not faults, f"HEKATE_FSX_OPS={OPS} HEKATE_SEED={SEED}:\n     " + "\n     ".join(faults)
    for kind, mount in runs:
        name = f"{kind}-{mount}"
        same_bytes(read(f"{mounts['strict']}/{name}"), read(f"{mounts['cached']}/{name}"), f"{name} through the other mount")


def run(store, mnt, name, lengths, seed, off, ops=OPS):
    """-> what went wrong, or nothing."""
    configuration, file = store.path(f"{name}.toml"), f"{mnt}/{name}"
    with open(configuration, "w") as out:
        # What is mapped is written out by msync in one half of the runs, in the other when the mount has to.
        out.write(f"nomsyncafterwrite = {'true' if seed % 2 else 'false'}\n")
        out.write(f"flen = {lengths[0]}\n[opsize]\nmin = 1\nmax = {lengths[1]}\n[weights]\n")
        for operation, weight in WEIGHTS.items():
            out.write(f"{operation} = {0 if operation in off else weight}\n")
    words = [tool("fsx"), "-f", configuration, "-N", str(ops), "-S", str(seed), "-P", store.directory("fsx"), file]
    environment = {**os.environ, "LD_PRELOAD": tool("fsx_preload.so"), "FSX_FILE": file}
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/", env=environment)
    preload = [line.split() for line in done.stderr.splitlines() if line.startswith("fsx_preload: ")]
    if done.returncode != 0 or "All operations completed A-OK!" not in done.stdout:
        # What follows is a list of a thousand operations.
        return f"{name}, seed {seed}: exit {done.returncode}: {done.stderr.partition('LOG DUMP')[0].strip()[-1500:]}"
    if not preload or int(preload[0][3]) == 0:
        return f"{name}, seed {seed}: it was never opened with O_DIRECT: {done.stderr[-300:]}"
    return None


def is_refused(mnt, operation):
    """Whether the mount says that it cannot do this yet."""
    path = f"{mnt}/refused"
    write(path, b"0" * 10_000)
    done = subprocess.run(
        ["fallocate", *FALLOCATE[operation], "--length", "4096", path], capture_output=True, text=True
    )
    os.unlink(path)
    return done.returncode != 0 and os.strerror(errno.EOPNOTSUPP) in done.stderr
