"""The lists of tests/posix: what may fail, and why."""

import fnmatch
import os

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLS = os.environ.get("HEKATE_POSIX_TOOLS", "")
WAITING = f"{TESTS}/posix/waiting.txt"
EXCLUDED = f"{TESTS}/posix/excluded.txt"


def tool(name):
    """A program that tests/posix/tools.sh has built."""
    path = f"{TOOLS}/{name}"
    assert os.path.exists(path), f"there is no {name}: HEKATE_POSIX_TOOLS is what tests/posix/tools.sh prints"
    return path


def entries(path):
    """The words of each line that is not empty and no comment."""
    with open(path) as file:
        return [line.split(None, 2) for line in file if line.strip() and not line.startswith("#")]


def waiting(suite):
    """-> patterns of what waits for a feature."""
    return [words[1] for words in entries(WAITING) if words[0] == suite]


def excluded(who):
    """-> cases of pjdfstest that may fail where they fail on passthrough_ll too. `who`: root or nobody."""
    cases = [words[1] for words in entries(EXCLUDED) if words[0] == who]
    with open(f"{TESTS}/../docs/semantics.md") as file:
        contract = file.read()
    silent = [case for case in cases if case not in contract]
    assert not silent, f"{EXCLUDED}: docs/semantics.md does not say why: {', '.join(silent)}"
    return cases


def matches(case, patterns):
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns)


def as_user(uid):
    """What a command begins with to be run by this user."""
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def own(path, uid):
    os.chown(path, uid, uid)
