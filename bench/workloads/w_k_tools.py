#!/usr/bin/env python3
"""(k) what developers run on a mount: pip install of numpy and django, cargo build of 30 crates without dependencies, git with
20,000 files (GIT_FILES) of 200 bytes. run.py has fetched the wheels into $PP/wheels.
val = seconds."""
import os, subprocess, sys
from pplib import *
d = wdir("k")
FILES = int(os.environ.get("GIT_FILES", 20000))
WHEELS = os.environ.get("PP", "/var/tmp/pp") + "/wheels"
ENV = dict(os.environ, HOME=d, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b",
           RUSTUP_HOME=os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup")),
           CARGO_HOME=os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")), CARGO_INCREMENTAL="0")
PACKAGES = ["numpy", "django"]


def run(*line, **named):
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV, **named)


def timed(name, act):
    with CPU() as c:
        act()
    emit("k", name, round(c.wall, 3), "s", True, c)


def make_crates(root):
    """A chain of five crates, six times."""
    members = [f"c{n}" for n in range(30)]
    for n, name in enumerate(members):
        os.makedirs(f"{root}/{name}/src")
        below = f'c{n - 6} = {{ path = "../c{n - 6}" }}\n' if n >= 6 else ""
        with open(f"{root}/{name}/Cargo.toml", "w") as fh:
            fh.write(f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{below}')
        with open(f"{root}/{name}/src/lib.rs", "w") as fh:
            fh.write("".join(f"pub fn f{k}(x: u64) -> u64 {{ x.wrapping_mul({k + 3}) }}\n" for k in range(200)))
    with open(f"{root}/Cargo.toml", "w") as fh:
        fh.write(f"[workspace]\nresolver = \"2\"\nmembers = {members!r}\n".replace("'", '"'))


def make_files(root):
    for n in range(FILES):
        if n % 100 == 0:
            os.makedirs(f"{root}/d{n // 100}")
        with open(f"{root}/d{n // 100}/f{n % 100}", "wb") as fh:
            fh.write(b"%0200d" % n)


pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", WHEELS, "--no-cache-dir"]
timed("pip_install", lambda: run(*pip, "--target", d + "/site", *PACKAGES))
cold()
imported = "import django, numpy; from django.db import models"
timed("import_cold", lambda: run(sys.executable, "-c", imported, cwd=d + "/site"))
timed("import_warm", lambda: run(sys.executable, "-c", imported, cwd=d + "/site"))
make_crates(d + "/crates")
cargo = lambda: run("cargo", "build", "--offline", "-q", cwd=d + "/crates")
timed("cargo_build", cargo)
timed("cargo_build_again", cargo)
tree = d + "/tree"
git = lambda *words: run("git", "-C", tree, *words)
run("git", "init", "-q", tree)
timed("git_make_files", lambda: make_files(tree))
timed("git_add", lambda: git("add", "."))
timed("git_commit", lambda: git("commit", "-q", "-m", "m"))
timed("git_status", lambda: git("status"))
cold()
timed("git_status_cold", lambda: git("status"))
timed("git_clone", lambda: run("git", "clone", "-q", tree, d + "/clone"))
timed("git_gc", lambda: git("gc", "-q"))
timed("git_fsck", lambda: git("fsck"))
