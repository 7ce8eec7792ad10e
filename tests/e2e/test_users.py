"""Users who are not root."""

import ctypes
import os
import shutil
import subprocess

import pytest

import harness
from harness import NOBODY, Skip, equal

CLONE_NEWNS = 0x20000


def program_for_all(store):
    """A copy that other users may run, wherever the program was built."""
    path = store.path("hekate")
    shutil.copy(harness.HEKATE, path)
    os.chmod(path, 0o755)
    return path


def public_server(store):
    """A server whose socket everybody can reach, as with /run/hekate."""
    store.init()
    store.serve()
    os.chmod(store.state, 0o711)
    return {"server": f"unix:{store.state}/server.sock", "uid": NOBODY, "state": store.path("nobody"),
            "program": program_for_all(store)}


@pytest.mark.root
@pytest.mark.no_fuse
def test_strangers_may_look_but_not_change(store):
    as_nobody = public_server(store)
    equal(store.try_cli("--json", "status", **as_nobody).exit, 0, "status")
    for command in [["stop"], ["volume", "create", "w"], ["volume", "delete", "v", "--confirm", "v"]]:
        store.refuses(*command, words=[f"user {NOBODY}", "root"], exits=[77], **as_nobody)
    store.refuses("init", "--brick", "/proc/brick", words=["."], uid=NOBODY, state="/proc/x", program=as_nobody["program"])
    refused = store.refuses("status", words=["(?i)permission|denied|running"], uid=NOBODY, state="/root/x", program=as_nobody["program"])
    assert "panicked" not in refused.text


@pytest.mark.root
def test_strangers_may_not_mount(store):
    as_nobody = public_server(store)
    mnt = store.directory("theirs")
    os.chown(mnt, NOBODY, NOBODY)
    home = store.directory("nobody")
    os.chown(home, NOBODY, NOBODY)
    store.refuses("mount", "v", mnt, words=[f"user {NOBODY} may not use volume v", "--allow-uid"], exits=[77], **as_nobody)


@pytest.mark.root
def test_users_mount_what_is_theirs(store):
    as_nobody = public_server(store)
    private_device(store)
    store.cli("volume", "create", "theirs", "--owner", str(NOBODY))
    home = store.directory("nobody")
    mnt = store.directory("theirs")
    for path in (home, mnt):
        os.chown(path, NOBODY, NOBODY)
    store.cli("mount", "theirs", mnt, **as_nobody)
    run = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sh", "-ec"]
    script = f"cd {mnt}; mkdir d; echo hello > d/f; sync d/f; cat d/f; ls -la; stat -c %u d"
    done = subprocess.run([*run, script], capture_output=True, text=True)
    assert done.returncode == 0 and "hello" in done.stdout and done.stdout.endswith(f"{NOBODY}\n"), done.stdout + done.stderr
    store.cli("umount", mnt, **as_nobody)
    equal(os.path.ismount(mnt), False, "still mounted")


def private_device(store):
    """A /dev/fuse that everybody may open, as on a desktop, in a mount namespace of this test's own."""
    if shutil.which("fusermount3") is None:
        raise Skip("needs fusermount3")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise Skip("needs unshare(2)")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    found = os.stat("/dev/fuse")
    devices = store.directory("dev")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", devices], check=True)
    os.mknod(f"{devices}/fuse", 0o20666, found.st_rdev)
    os.chmod(f"{devices}/fuse", 0o666)
    subprocess.run(["mount", "--bind", f"{devices}/fuse", "/dev/fuse"], check=True)
