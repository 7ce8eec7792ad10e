"""Mounting overlayfs, and tmpfs as its measure."""

import contextlib
import os
import subprocess

from harness import Skip, equal


@contextlib.contextmanager
def overlay(at, lower, upper, options=""):
    """An overlay at `at`; `upper`: the directory that has `upper` and `work`."""
    for name in (at, f"{upper}/upper", f"{upper}/work"):
        os.makedirs(name, exist_ok=True)
    words = f"lowerdir={':'.join(lower)},upperdir={upper}/upper,workdir={upper}/work{options}"
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", words, at], capture_output=True, text=True)
    if "unknown filesystem type" in done.stderr:
        raise Skip("the kernel has no overlayfs")
    equal((done.returncode, done.stderr), (0, ""), f"mounting an overlay with {words}")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


@contextlib.contextmanager
def tmpfs(path):
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
