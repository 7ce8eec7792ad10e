"""pjdfstest: what POSIX says of each call, on a mount of Hekate and in the same run on libfuse's passthrough_ll over the
local disk. A case may fail on Hekate only if it is in tests/posix/excluded.txt and fails there too."""

import contextlib
import grp
import os
import pwd
import re
import shutil
import subprocess

import pytest

from harness import NOBODY, PATIENCE, equal, wait_until
from posix_lists import as_user, excluded, matches, own, tool, waiting
from test_users import private_device, public_server

# All that pjdfstest 0.2.2 has on Linux.
CASES = 398
# The kernel has no LINK_MAX for FUSE, so glibc says 127 for every mount and the case does not run.
SKIPPED = {"link::link_count_max": ("Cannot get value for LINK_MAX",)}
# Why cases do not run without root: they switch users, make devices or mount.
NEEDS_ROOT = ("requires root privileges", "process doesn't have the CAP_SYS_ADMIN cap")
CONFIGURATION = """
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
secondary_fs = "{second}"
[settings]
naptime = 0.01
allow_remount = {remount}
[dummy_auth]
entries = [["{nobody}", "{nobodies}"], ["daemon", "daemon"]]
"""


@pytest.mark.root
@pytest.mark.limit(300)
def test_pjdfstest_as_root(store):
    """On a strict mount, and on one that keeps names and attributes."""
    directory, may_fail = short_names(store), excluded("root")
    store.init()
    store.serve()
    mounts = {directory("strict", 0): [], directory("cached", 0): ["--cache", "1"]}
    for mnt, options in mounts.items():
        store.cli("mount", *options, "v", mnt)
        os.chmod(mnt, 0o755)
    found = [all_cases(store, mnt) for mnt in mounts]
    with passthrough_ll(directory("other", 0), directory("below", 0)) as other:
        reference = all_cases(store, other)
    for outcomes in found:
        complain(judge(outcomes, reference, may_fail, waiting("pjdfstest"), SKIPPED))
    for mnt in mounts:
        store.cli("umount", mnt)


@pytest.mark.root
@pytest.mark.limit(300)
def test_pjdfstest_as_nobody(store):
    """In a directory of root's mount, and on a mount of their own."""
    directory = short_names(store)
    as_nobody = public_server(store)
    for name in ("pjdfstest", "passthrough_ll"):
        shutil.copy(tool(name), store.path(name))
    own(store.directory("nobody"), NOBODY)
    store.cli("volume", "create", "theirs", "--owner", str(NOBODY))
    roots, theirs = directory("roots", 0), directory("theirs", NOBODY)
    store.cli("mount", "v", roots)
    os.mkdir(f"{roots}/t")
    own(f"{roots}/t", NOBODY)
    store.cli("mount", "theirs", theirs, **as_nobody)
    found = [some_cases(store, place, NOBODY) for place in (f"{roots}/t", theirs)]
    program = store.path("passthrough_ll")
    with passthrough_ll(directory("other", NOBODY), directory("below", NOBODY), program, NOBODY) as other:
        reference = some_cases(store, other, NOBODY)
    for outcomes in found:
        skipped = {case: NEEDS_ROOT for case in outcomes} | SKIPPED
        complain(judge(outcomes, reference, excluded("nobody"), waiting("pjdfstest"), skipped))
    store.cli("umount", theirs, **as_nobody)
    store.cli("umount", roots)


@pytest.mark.no_fuse
def test_pjdfstest_is_judged_by_its_lists():
    """An exclusion holds as long as the case fails on both, no longer."""
    passes, fails, skips = ("ok", ""), ("FAILED", "words"), ("skipped", "no reason")
    for here, there, lists, wanted in [
        (passes, passes, {}, None),
        (passes, fails, {}, None),
        (fails, passes, {}, "words"),
        (fails, fails, {}, "words"),
        (fails, passes, {"excluded": ["a::b"]}, "passes on passthrough_ll"),
        (fails, skips, {"excluded": ["a::b"]}, "passes on passthrough_ll"),
        (fails, fails, {"excluded": ["a::b"]}, None),
        (passes, fails, {"excluded": ["a::b"]}, "delete"),
        (fails, passes, {"waiting": ["a::*"]}, None),
        (passes, passes, {"waiting": ["a::*"]}, "delete"),
        (skips, passes, {}, "no reason"),
        (skips, passes, {"skipped": ("no",)}, None),
    ]:
        skipped = {"a::b": lists.get("skipped", ())}
        faults = judge({"a::b": here}, {"a::b": there}, lists.get("excluded", []), lists.get("waiting", []), skipped)
        equal(len(faults), 0 if wanted is None else 1, f"{here} {there} {lists}: {faults}")
        assert wanted is None or wanted in faults[0], faults


def judge(found, reference, excluded_cases, waiting_patterns, skipped):
    """-> what is wrong, a line each. `skipped`: what the reasons begin with for which cases need not run."""
    failed = [case for case, (verdict, _) in found.items() if verdict == "FAILED"]
    faults = []
    for case in failed:
        if case in excluded_cases:
            if reference[case][0] != "FAILED":
                faults.append(f"{case}: excluded, but passes on passthrough_ll")
        elif not matches(case, waiting_patterns):
            faults.append(f"{case}: {found[case][1]}")
    for case in excluded_cases:
        if case not in failed:
            faults.append(f"{case}: is excluded and does not fail: delete it from tests/posix/excluded.txt")
    for pattern in waiting_patterns:
        if not any(matches(case, [pattern]) for case in failed):
            faults.append(f"{pattern}: nothing of it fails any more: delete it from tests/posix/waiting.txt")
    for case, (verdict, why) in found.items():
        if verdict == "skipped" and not why.startswith(skipped.get(case, ())):
            faults.append(f"{case}: skipped: {why}")
    return faults


def complain(faults):
    assert not faults, f"{len(faults)} faults:\n     " + "\n     ".join(faults)


def all_cases(store, directory):
    """As root. What mounts read-only runs by itself: pjdfstest keeps files open, and then nothing can be remounted."""
    found = some_cases(store, directory)
    found.update(run(store, directory, ["erofs"]))
    return found


def some_cases(store, directory, uid=None):
    found = run(store, directory, [], uid)
    equal(len(found), CASES, "cases")
    return found


def run(store, directory, patterns, uid=None):
    """-> case: (verdict, why)."""
    configuration = store.path("pjdfstest.toml")
    nobody = pwd.getpwuid(NOBODY)
    with open(configuration, "w") as file:
        file.write(CONFIGURATION.format(
            second=store.directory("second"), remount=str("erofs" in patterns).lower(),
            nobody=nobody.pw_name, nobodies=grp.getgrgid(nobody.pw_gid).gr_name,
        ))
    program = tool("pjdfstest") if uid is None else store.path("pjdfstest")
    environment = {"PATH": f"{remounter(store)}:{os.environ['PATH']}", "NO_COLOR": "1", "RUST_BACKTRACE": "0"}
    done = subprocess.run(
        [*as_user(uid), program, "-c", configuration, "-p", directory, *patterns],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/", env=environment, timeout=200 * PATIENCE,
    )
    return parse(done.stdout, done.stderr)


def remounter(store):
    """A directory with a `mount` that asks no helper: `mount` of libfuse would start the file system another time."""
    directory = store.directory("bin")
    if not os.path.exists(f"{directory}/mount"):
        with open(f"{directory}/mount", "w") as file:
            file.write(f'#!/bin/sh\nexec {shutil.which("mount")} -i "$@"\n')
        os.chmod(f"{directory}/mount", 0o755)
    return directory


def parse(out, err):
    found, case = {}, None
    for line in out.splitlines():
        match = re.match(r"(\S+::\S+)\s+(ok|FAILED|skipped)$", line)
        if match:
            case = match[1]
            found[case] = (match[2], "")
        elif case and line.strip() and not line.startswith("Summary: "):
            found[case] = (found[case][0], f"{found[case][1]} {line.strip()}".strip())
    summary = re.search(r"^Summary: (\d+) failed, (\d+) skipped, (\d+) passed, 0 expected failures, (\d+) total$", out, re.M)
    assert summary, f"pjdfstest did not end: {out[-300:]} {err[-1000:]}"
    counts = [sum(verdict == wanted for verdict, _ in found.values()) for wanted in ("FAILED", "skipped", "ok")]
    equal([*counts, len(found)], [int(number) for number in summary.groups()], "what was understood of the output")
    return found


def short_names(store):
    """-> what makes a directory of a user's. In a mount namespace of this test's own, as the path of a socket has 108 bytes."""
    private_device(store)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt"], check=True)
    disk = store.directory("disk")

    def directory(name, uid):
        """Of the local disk."""
        os.mkdir(f"/mnt/{name}")
        os.mkdir(f"{disk}/{name}")
        own(f"{disk}/{name}", uid)
        subprocess.run(["mount", "--bind", f"{disk}/{name}", f"/mnt/{name}"], check=True)
        return f"/mnt/{name}"

    return directory


@contextlib.contextmanager
def passthrough_ll(directory, below, program=None, uid=None):
    """libfuse's example over a directory of the local disk, without any cache. -> its mount."""
    rights = ",allow_other,suid,dev" if uid is None else ""
    options = f"source={below},timeout=0,cache=never,default_permissions{rights}"
    words = [*as_user(uid), program or tool("passthrough_ll"), "-f", "-o", options, directory]
    server = subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: kind_of(directory).startswith("fuse") or server.poll() is not None, "passthrough_ll mounted")
        assert server.poll() is None, f"passthrough_ll: exit {server.returncode}: {server.stderr.read()}"
        yield directory
    finally:
        server.terminate()
        server.wait(20)


def kind_of(directory):
    """The type of the last file system that was mounted there."""
    with open("/proc/self/mounts") as file:
        kinds = [line.split()[2] for line in file if line.split()[1] == directory]
    return kinds[-1] if kinds else ""
