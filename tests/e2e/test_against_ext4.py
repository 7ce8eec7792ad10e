"""Random system calls do on a mount what they do on a local ext4, from one mount and from two in turn.

HEKATE_OPS=N: how many a run [5,000]; HEKATE_SEED: which [63]; HEKATE_SHORTEN_S: how long to look for few ops that show
a difference again [20]; HEKATE_NO_GAPS=1: also what `against_ext4/gaps.py` leaves out.
"""

import os
import subprocess

import pytest

from against_ext4.run import Run
from harness import STACK, Skip

OPS = int(os.environ.get("HEKATE_OPS", "5000"))
# The same in each run, as a difference that `KNOWN` names may show itself in a new way; `make soak` draws others.
SEED = os.environ.get("HEKATE_SEED", "63")
LIMIT_S = 300 + OPS // 10
IMAGE_BYTES = 8 << 30


def local_ext4(store):
    """-> the directory of a new ext4 in a file."""
    image, directory = store.path("ext4.image"), store.directory("ext4")
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    for words in (["mkfs.ext4", "-q", "-O", "^has_journal", "-I", "256", image],
                  ["mount", "-o", "loop,nosuid,nodev", image, directory]):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"{words[0]}: {done.stderr.strip()}")
    return directory


def compare(store, names):
    store.init(bricks=2)
    store.serve()
    mounts = [store.mount(name) for name in names]
    ext4 = local_ext4(store)
    os.setgroups([])
    try:
        # Outside of the store's directory, which goes with the test.
        keep = os.path.join(os.environ.get("E2E_DIR", "/var/tmp"), f"hekate-against-ext4.{len(names)}.{SEED}.jsonl")
        counts = Run(mounts, ext4, SEED, OPS, keep).run()
        too_few = [kind for kind, (done, _) in counts.items() if not done and OPS >= 10_000]
        assert not too_few, f"HEKATE_SEED={SEED}: never succeeded: {too_few}"
    finally:
        os.chdir("/")
        subprocess.run(["umount", ext4], check=True)


@pytest.mark.root
@pytest.mark.limit(LIMIT_S)
def test_one_mount_does_what_ext4_does(store):
    compare(store, ["mnt"])


@pytest.mark.root
@pytest.mark.limit(LIMIT_S)
def test_two_mounts_in_turn_do_what_ext4_does(store):
    if any("negative" in layer for layer in STACK):
        raise Skip("a translator remembers which names are missing, also those that the other mount has made since")
    compare(store, ["mnt", "other"])
