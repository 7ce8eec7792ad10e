"""Chaos with real processes, the short form (tests/chaos, docs/chaos.md): a fault of each of ten kinds, and nothing promised broken.

HEKATE_SEED: which [1]; the long form takes another each time.
"""

import os
import shutil
import sys

import pytest

from harness import Skip, Store, equal

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
import faults  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402

SEED = os.environ.get("HEKATE_SEED", "1")
# What the network and the disks of a run are made with.
NEEDED = ["cc", "ip", "nsenter", "mke2fs"]


@pytest.mark.root
@pytest.mark.limit(900)
def test_promises_are_kept_in_chaos(store):
    missing = [name for name in NEEDED if not shutil.which(name)] + [path for path in ["/dev/net/tun", "/dev/loop-control"] if not os.path.exists(path)]
    if missing:
        raise Skip(f"needs {', '.join(missing)}")
    results = run.chaos(Store(store.directory("chaos")), len(faults.SHORT), SEED, faults.SHORT, lambda text: print(text, flush=True))
    print(report.table(results), flush=True)
    equal(sorted(result["kind"] for result in results), sorted(faults.SHORT), "kinds of faults")
