#!/usr/bin/env python3
"""(i) names and attributes: a tree of 40 directories with 50 files of 1 KiB each. ls -lR after a remount, and again; stat of
each path; the same by ten programs' worth of look-ups of missing names; git add, commit, status and clone of the tree; cp -r.
val = seconds."""
import os, shutil, subprocess
from pplib import *
d = wdir("i")
tree = d + "/tree"
ENV = dict(os.environ, HOME=d, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b")
run = lambda *a: subprocess.run(a, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)


def timed(name, act):
    with CPU() as c:
        act()
    emit("i", name, round(c.wall, 4), "s", True, c)


def make():
    for n in range(40):
        os.makedirs(f"{tree}/d{n}")
        for k in range(50):
            with open(f"{tree}/d{n}/f{k}", "wb") as fh:
                fh.write(b"x" * 1024)


paths = [f"{tree}/d{n}/f{k}" for n in range(40) for k in range(50)]


def stat_all():
    for _ in range(3):
        for path in paths:
            os.stat(path)


def missing_all():
    for _ in range(3):
        for path in paths:
            os.path.exists(path + ".h")


timed("create", make)
cold()
timed("ls_lR_cold", lambda: run("ls", "-lR", tree))
timed("ls_lR_warm", lambda: run("ls", "-lR", tree))
timed("stat_3x2000", stat_all)
timed("missing_3x2000", missing_all)
timed("cp_r", lambda: run("cp", "-r", tree, d + "/copy"))
git = lambda *a: run("git", "-C", tree, *a)
run("git", "init", "-q", tree)
timed("git_add", lambda: git("add", "."))
timed("git_commit", lambda: git("commit", "-q", "-m", "m"))
timed("git_status", lambda: git("status"))
timed("git_clone", lambda: run("git", "clone", "-q", tree, d + "/clone"))
settle()
timed("rm_rf", lambda: shutil.rmtree(d + "/copy"))
