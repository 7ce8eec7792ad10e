"""Chaos with real processes, the short form (tests/chaos, docs/chaos.md): one fault of each kind, and every promise is kept.

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


# No other test has these faults: of the network, of two servers at once, of a full disk beside load.
KINDS = ["cut", "split", "pair", "loss", "full"]


@pytest.mark.root
@pytest.mark.limit(600)
def test_promises_are_kept_in_chaos(store):
    keeps_promises(store, KINDS)


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.limit(900)
def test_promises_are_kept_in_more_kinds_of_chaos(store):
    keeps_promises(store, [kind for kind in faults.SHORT if kind not in KINDS])


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.limit(900)
def test_promises_are_kept_in_chaos_with_etcd(store):
    keeps_promises(store, list(faults.ETCD_KINDS), etcd=True)


def keeps_promises(store, kinds, etcd=False):
    missing = [name for name in NEEDED if not shutil.which(name)]
    missing += [path for path in ["/dev/net/tun", "/dev/loop-control"] if not os.path.exists(path)]
    if missing:
        raise Skip(f"needs {', '.join(missing)}")
    results = run.chaos(Store(store.directory("chaos")), len(kinds), SEED, kinds, lambda text: print(text, flush=True), etcd=etcd)
    print(report.table(results), flush=True)
    equal(sorted(result["kind"] for result in results), sorted(kinds), "kinds of faults")
