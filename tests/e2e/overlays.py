"""Overlays whose layers are on mounts, by the kernel and by fuse-overlayfs, and tmpfs as their measure."""

import contextlib
import os
import shutil
import subprocess

from harness import Skip, equal


@contextlib.contextmanager
def overlay(at, lower, upper, options=""):
    """An overlay of the kernel at `at`; `upper`: the directory that has `upper` and `work`."""
    words = layers(at, lower, upper) + options
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", words, at], capture_output=True, text=True)
    if "unknown filesystem type" in done.stderr:
        raise Skip("the kernel has no overlayfs")
    equal((done.returncode, done.stderr), (0, ""), f"mounting an overlay with {words}")
    with mounted(at):
        yield at


@contextlib.contextmanager
def fuse_overlay(at, lower, upper):
    """The same by fuse-overlayfs, for all users, with devices and set-user-id bits."""
    if shutil.which("fuse-overlayfs") is None:
        raise Skip("fuse-overlayfs is missing; run scripts/setup.sh test")
    words = f"{layers(at, lower, upper)},allow_other,suid,dev"
    done = subprocess.run(["fuse-overlayfs", "-o", words, at], capture_output=True, text=True)
    equal(done.returncode, 0, f"exit status of fuse-overlayfs with {words}: {done.stderr}")
    with mounted(at):
        yield at


@contextlib.contextmanager
def image_overlay(at, lower, upper, size="1G"):
    """An overlay of the kernel at `at`, whose upper layer is in an ext4 in the file `upper`.ext4, mounted at `at`.disk."""
    image, disk = f"{upper}.ext4", f"{at}.disk"
    os.makedirs(disk, exist_ok=True)
    if not os.path.exists(image):
        subprocess.run(["truncate", "-s", size, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    with mounted(disk), overlay(at, lower, f"{disk}/layers") as merged:
        yield merged


def layers(at, lower, upper):
    """Makes the directories. -> the options that name them."""
    for name in (at, f"{upper}/upper", f"{upper}/work"):
        os.makedirs(name, exist_ok=True)
    return f"lowerdir={':'.join(lower)},upperdir={upper}/upper,workdir={upper}/work"


@contextlib.contextmanager
def tmpfs(path):
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    with mounted(path):
        yield path


@contextlib.contextmanager
def mounted(path):
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)
