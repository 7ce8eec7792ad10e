"""A volume's graph is replaced every second while fsx, or fio with checksums, uses two mounts of it: they do not notice.

HEKATE_SWAP_S=N: how long each runs [60]; HEKATE_SEED: which operations fsx does [random, and printed on failure].
"""

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import test_fsx
from harness import EXAMPLES, Skip, equal, same_bytes, read
from posix_lists import waiting

pytestmark = pytest.mark.soak
SWAP_S = int(os.environ.get("HEKATE_SWAP_S", "60"))
# What runs when the time is over goes on to its end.
LIMIT_S = SWAP_S + 400
FSX_OPS = 3000
STACKS = [
    ["negative-lookup", "io-stats"],
    ["trace:file=/dev/null"],
    ["python:translator=hello", "negative-lookup"],
    ["python:translator=negative_lookup"],
    [],
    # The next one differs by options only: the layers stay and take them.
    ["io-stats", "negative-lookup:lifetime=10s"],
    ["io-stats:top=3", "negative-lookup:lifetime=1s"],
    ["python:translator=negative_lookup", "python:translator=hello", "io-stats"],
]


def swapped(store, jobs):
    """Runs each job, a function of a number, again and again for SWAP_S while the graph is replaced. Returns how often
    all were run together."""
    for name in ("hello", "negative_lookup"):
        store.cli("python", "install", f"{EXAMPLES}/{name}")
    end, used, swaps = time.monotonic() + SWAP_S, set(), 0

    def repeat(job):
        count = 0
        while time.monotonic() < end:
            job(count)
            count += 1
        return count

    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(repeat, job) for job in jobs]
        while not all(one.done() for one in running):
            store.cli("volume", "set", "v", "translators", *(STACKS[swaps % len(STACKS)] or ["--none"]))
            swaps += 1
            time.sleep(1)
            for report in store.cli("--json", "graph", "v").json():
                equal(report["refused"], None, "why a graph was refused")
                used.add((report["process"], report["change"]))
        rounds = sum(one.result() for one in running)
    print(f"{rounds} rounds, {swaps} graphs set, {len(used)} taken by the two mounts")
    assert len(used) >= swaps, f"{swaps} graphs were set; the two mounts took {len(used)}"
    return rounds


@pytest.mark.limit(LIMIT_S)
def test_graphs_are_swapped_under_fsx(store):
    mounts = {"strict": store.up(), "cached": store.mount("cached", options=["--cache", "1"])}
    off, seed = waiting("fsx"), test_fsx.SEED

    def job(kind, mount):
        def round_of(number):
            lengths = test_fsx.KINDS[kind]
            fault = test_fsx.run(store, mounts[mount], f"{kind}-{mount}", lengths, seed + number, off, FSX_OPS)
            assert not fault, f"HEKATE_SEED={seed}, round {number}: {fault}"

        return round_of

    swapped(store, [job(kind, mount) for kind in test_fsx.KINDS for mount in mounts])
    for kind in test_fsx.KINDS:
        for mount in mounts:
            name = f"{kind}-{mount}"
            same_bytes(read(f"{mounts['strict']}/{name}"), read(f"{mounts['cached']}/{name}"), name)


@pytest.mark.limit(LIMIT_S)
def test_graphs_are_swapped_under_fio_which_verifies(store):
    if not shutil.which("fio"):
        raise Skip("fio is missing; run scripts/setup.sh bench")
    mounts = {"strict": store.up(), "cached": store.mount("cached", options=["--cache", "1"])}

    def job(mount, direct):
        def round_of(number):
            """Writes a file in random order and reads it back, and does so again over it."""
            syncs = "--sync=1" if direct else "--fsync=32"
            words = [
                "fio", f"--name={mount}-{direct}", f"--directory={mounts[mount]}", "--rw=randwrite", "--size=8m",
                "--bsrange=4k-128k", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", f"--direct={direct}",
                syncs, f"--randseed={number}", "--loops=2",
            ]
            done = subprocess.run(words, capture_output=True, text=True, cwd=store.directory("fio"))
            assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stderr[-1500:]}"

        return round_of

    swapped(store, [job(mount, direct) for mount in mounts for direct in (0, 1)])
