"""The mount helper where mount(8) looks for it, in a mount namespace of a test's own: nothing of the machine changes."""

import ctypes
import os
import subprocess

import harness
from harness import Skip

CLONE_NEWNS = 0x20000


def own_namespace():
    """From here on mounts of this process and its children are theirs alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise Skip("needs unshare(2)")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def install_helper(store):
    """/sbin with the two links that `hekate doctor` names, and everything else that it has."""
    own_namespace()
    real = os.path.realpath("/sbin")
    old = store.directory("sbin")
    subprocess.run(["mount", "--bind", real, old], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", real], check=True)
    for name in os.listdir(old):
        os.symlink(f"{old}/{name}", f"{real}/{name}")
    for name in ("mount.hekate", "mount.fuse.hekate"):
        os.symlink(harness.HEKATE, f"{real}/{name}")


def write_fstab(store, *lines):
    """In place of the machine's."""
    path = store.path("fstab")
    with open(path, "w") as file:
        file.write("".join(f"{line}\n" for line in lines))
    if not os.path.exists("/etc/fstab"):
        raise Skip("needs an /etc/fstab to put another in its place")
    subprocess.run(["mount", "--bind", path, "/etc/fstab"], check=True)


def run(*words, uid=None, limit_s=60):
    """Any program. -> what it did."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid is not None else []
    return subprocess.run([*user, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s, cwd="/")


def works(*words, **named):
    done = run(*words, **named)
    assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def fails(*words, exit, says, **named):
    done = run(*words, **named)
    assert done.returncode == exit, f"{' '.join(words)}: exit {done.returncode}, not {exit}: {done.stdout}{done.stderr}"
    for text in says:
        assert text in done.stderr, f"{' '.join(words)}: the message lacks {text!r}: {done.stderr}"


def options_of(directory):
    """As findmnt shows them."""
    return set(works("findmnt", "-n", "-o", "OPTIONS", "--mountpoint", directory).split(","))
