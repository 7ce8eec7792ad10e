"""A root file system on overlays that are on a mount: made by mmdebstrap, used under unshare and chroot."""

import os
import shutil
import subprocess

import pytest

from harness import Skip, equal, read
from overlays import fuse_overlay, image_overlay

pytestmark = pytest.mark.soak

IN_ROOT = r"""
set -eu
mount -t proc proc /proc
useradd --create-home somebody
echo bytes > /home/somebody/file
chown somebody: /home/somebody/file
su somebody -c 'echo more >> ~/file; cat ~/file'
dpkg --audit
dpkg --verify
apt-get update --quiet > /dev/null
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


@pytest.mark.root
@pytest.mark.limit(3000)
def test_a_root_is_made_and_used_on_overlays(store):
    if shutil.which("mmdebstrap") is None:
        raise Skip("mmdebstrap is missing; run scripts/setup.sh soak")
    mnt = store.up(journal=256)
    with image_overlay(store.path("made"), [store.directory("lower")], f"{mnt}/made", size="4G") as merged:
        words = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=passwd", "--skip=check/empty", "bookworm", merged]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        equal(done.returncode, 0, f"exit status of mmdebstrap: {done.stderr}")
        before = names_below(merged)
    store.remount()
    # What was made is the lower layer of the next ones.
    with image_overlay(store.path("made"), [store.path("lower")], f"{mnt}/made") as made:
        equal(names_below(made), before, "names in what was made, when it is mounted again")
        for kind in (image_overlay, fuse_overlay):
            use(store, made, f"{mnt}/{kind.__name__}", kind)
        equal(names_below(made), before, "names in the lower layer")


def use(store, made, upper, kind):
    name = kind.__name__
    with kind(store.path(name), [made], upper) as merged:
        said = run_in(merged)
        assert said.startswith("bytes\nmore\n") and said.rstrip().endswith("Hello, world!"), f"{name}: {said}"
    with kind(store.path(name), [made], upper) as merged:
        equal(os.listdir(f"{merged}/usr/share/doc"), [], f"a directory that was made anew, {name}")
        equal(read(f"{merged}/home/somebody/file"), b"bytes\nmore\n", f"a user's file, {name}")


def names_below(root):
    return {os.path.relpath(f"{path}/{name}", root) for path, dirs, files in os.walk(root) for name in dirs + files}
