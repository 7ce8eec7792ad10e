"""The program that judges recorded histories: CHECK_HISTORY=PROGRAM, else it is built (crates/sim)."""

import os
import subprocess

from harness import Skip

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def checker():
    """-> the command that judges a file."""
    if os.environ.get("CHECK_HISTORY"):
        return [os.environ["CHECK_HISTORY"]]
    words = ["cargo", "run", "-q", "-p", "hekate-sim", "--bin", "check-history", "--"]
    try:
        subprocess.run(["cargo", "build", "-q", *words[3:-1]], cwd=REPOSITORY, check=True)
    except FileNotFoundError:
        raise Skip("there is no cargo, and CHECK_HISTORY names no program") from None
    return words


def check(command, path):
    return subprocess.run([*command, path], cwd=REPOSITORY, capture_output=True, text=True)
