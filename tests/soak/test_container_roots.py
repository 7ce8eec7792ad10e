"""A root file system on an overlay whose upper layer is on a mount: made by mmdebstrap, used under unshare and chroot."""

import os
import shutil
import subprocess

from harness import Skip, equal, read, test
from overlays import overlay

IN_ROOT = r"""
set -eu
mount -t proc proc /proc
useradd --create-home somebody
echo bytes > /home/somebody/file
chown somebody: /home/somebody/file
su somebody -c 'echo more >> ~/file; cat ~/file'
dpkg --audit
dpkg --verify
apt-get install --yes --quiet hello > /dev/null
hello
apt-get purge --yes --quiet hello > /dev/null
rm -rf /usr/share/doc
mkdir /usr/share/doc
ls -A /usr/share/doc
"""


def run_in(root):
    """A shell in namespaces of its own, with the root as its root."""
    words = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "chroot", root, "/bin/sh", "-c", IN_ROOT]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1200)
    equal(done.returncode, 0, f"exit status in the root: {done.stdout} {done.stderr}")
    return done.stdout


@test(root=True, limit_s=3000)
def a_root_is_made_and_used_on_an_overlay(store):
    if shutil.which("mmdebstrap") is None:
        raise Skip("mmdebstrap is missing; run scripts/setup.sh soak")
    mnt = store.up(journal=256)
    lower = store.directory("lower")
    with overlay(store.path("merged"), [lower], f"{mnt}/layers") as merged:
        words = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=passwd", "--skip=check/empty", "bookworm", merged]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        equal(done.returncode, 0, f"exit status of mmdebstrap: {done.stderr}")
    # What was made is the lower layer of the next one, both on the mount.
    made = store.remount() + "/layers/upper"
    with overlay(store.path("merged"), [made], f"{mnt}/used") as merged:
        said = run_in(merged)
        assert said.startswith("bytes\nmore\n") and said.rstrip().endswith("Hello, world!"), said
        equal(os.listdir(f"{merged}/usr/share/doc"), [], "a directory that was made anew")
        equal(read(f"{merged}/home/somebody/file"), b"bytes\nmore\n", "a user's file")
    equal(os.getxattr(f"{mnt}/used/upper/usr/share/doc", "trusted.overlay.opaque"), b"y", "the opaque directory")
    assert os.listdir(f"{made}/usr/share/doc"), "the lower layer has changed"
