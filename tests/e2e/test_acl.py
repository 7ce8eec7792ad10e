"""POSIX ACLs: what setfacl and the kernel make of them on a mount is what they make of them on a local file system."""

import difflib
import errno
import os
import subprocess

import pytest

from harness import Skip, equal, raises

ALICE, BOB, CREW = 61_001, 61_002, 61_010
STEPS = f"""
umask 027; mkdir d; touch d/f; chmod 750 d; chmod 640 d/f
setfacl -m u:{ALICE}:rwx,g:{CREW}:r-x d; setfacl -m u:{ALICE}:rw-,m::r-- d/f
chmod 770 d; chmod g-w d; chmod 606 d/f
setfacl -d -m u:{BOB}:rwx,g:{CREW}:r-x,o::- d
umask 077; touch d/born; mkdir d/sub; mkdir -p d/sub/deep; touch d/sub/deep/file; mkfifo d/pipe; ln -s born d/link
setfacl -x u:{ALICE} d; setfacl -m u:{BOB}:- d/sub
setfacl -k d/sub/deep; touch d/sub/deep/later
cp -p d/f d/copy; setfacl -b d/f; chmod 2770 d/sub; mkdir d/sub/inherits
mkdir plain; umask 000; touch plain/open; umask 022; mkdir plain/dir
setfacl --set u::rw-,g::r--,o::- plain/open; mv plain/open d/moved
""".strip().splitlines()


def run(where, command, uid=None, gid=None):
    words = ["bash", "-c", command]
    if uid is not None:
        words = ["setpriv", f"--reuid={uid}", f"--regid={gid or uid}", "--clear-groups", *words]
    return subprocess.run(words, cwd=where, capture_output=True, text=True)


def shown(where):
    modes = run(where, "find . -mindepth 1 -printf '%p %M %U %G\\n' | sort").stdout
    return modes + run(where, "find . ! -type l | sort | xargs getfacl -n -p 2>&1").stdout


def alike(found, wanted, what):
    differs = [line for line in difflib.unified_diff(wanted.split("\n"), found.split("\n"), "local", "mount", lineterm="", n=6)]
    assert not differs, f"{what}: " + " | ".join(differs[:30])


@pytest.mark.root
def test_acls_are_what_they_are_on_a_local_file_system(store):
    if run("/", "command -v setfacl getfacl").returncode != 0:
        raise Skip("setfacl is missing: apt-get install acl")
    mnt = store.up()
    other = store.mount("other")
    local = store.directory("local")
    for where in (mnt, local):
        os.chmod(where, 0o755)
    for step in STEPS:
        done = [run(where, step) for where in (mnt, local)]
        equal((done[0].returncode, done[0].stderr), (done[1].returncode, done[1].stderr), step)
        alike(shown(mnt), shown(local), f"after {step}")
    equal(shown(other), shown(local), "the other mount")
    asked = ["cat d/f", "echo x >> d/born", "ls d", "touch d/new$$", "ls d/sub/deep", "cat d/sub/deep/later", "echo y > d/moved", "rm -f d/new*"]
    for uid, gid in ((ALICE, ALICE), (BOB, BOB), (65_534, CREW), (65_534, 65_534)):
        for command in asked:
            outcomes = [run(where, command, uid, gid) for where in (mnt, local)]
            codes = [done.returncode for done in outcomes]
            equal(codes[0], codes[1], f"{command} as {uid}:{gid} ({outcomes[0].stderr.strip()})")
    store.kill_server()
    store.serve()
    equal(shown(mnt), shown(local), "after the server was killed")


@pytest.mark.root
def test_acls_are_checked_where_they_enter(store):
    mnt = store.up()
    open(f"{mnt}/f", "w").close()
    os.symlink("f", f"{mnt}/l")
    access, default = "system.posix_acl_access", "system.posix_acl_default"
    minimal = bytes.fromhex("02000000" "01000600ffffffff" "04000400ffffffff" "20000000ffffffff")
    os.setxattr(f"{mnt}/f", access, minimal)
    equal((os.stat(f"{mnt}/f").st_mode & 0o777, os.listxattr(f"{mnt}/f")), (0o640, []), "one that the mode says")
    raises(errno.ENODATA, os.getxattr, f"{mnt}/f", access)
    raises(errno.EOPNOTSUPP, os.setxattr, f"{mnt}/f", access, b"\x01\0\0\0")
    for bad in (minimal[:-1], minimal[:12], minimal + minimal[4:]):
        raises(errno.EINVAL, os.setxattr, f"{mnt}/f", access, bad)
    named = b"".join(b"\x02\0\x06\0" + number.to_bytes(4, "little") for number in range(1000))
    full = minimal[:12] + named + minimal[12:20] + bytes.fromhex("10000600ffffffff") + minimal[20:]
    raises(errno.E2BIG, os.setxattr, f"{mnt}/f", access, full)
    raises(errno.EACCES, os.setxattr, f"{mnt}/f", default, minimal)
    raises(errno.EOPNOTSUPP, os.setxattr, f"{mnt}/l", access, minimal, follow_symlinks=False)
    equal(os.stat(f"{mnt}/f").st_mode & 0o777, 0o640, "after what was refused")


@pytest.mark.root
def test_a_caching_mount_knows_the_attributes_that_it_gives(store):
    """It answers from what it was told of an inode; what it was told before must not hide what it has done since."""
    store.init()
    store.serve()
    mnt = store.mount(options=["--cache", "600"])
    other = store.mount("other")
    path = f"{mnt}/f"
    with open(path, "w"):
        pass
    for turn in range(20):
        equal(os.listxattr(path), [], "before")
        raises(errno.ENODATA, os.getxattr, path, "user.a")
        os.setxattr(path, "user.a", b"%d" % turn)
        # The kernel asks for the attributes anew, as `ls -l` does.
        run(mnt, "ls -l . >/dev/null; stat f >/dev/null")
        equal(os.getxattr(path, "user.a"), b"%d" % turn, "what this mount has set")
        equal(os.getxattr(f"{other}/f", "user.a"), b"%d" % turn, "on a strict mount")
        os.removexattr(path, "user.a")
        raises(errno.ENODATA, os.getxattr, f"{other}/f", "user.a")
    os.mkdir(f"{mnt}/d")
    equal(run(mnt, f"setfacl -d -m u:{BOB}:rwx d && ls -l d && touch d/born && mkdir d/sub").returncode, 0, "setfacl")
    for name in ("d/born", "d/sub"):
        told = run(mnt, f"ls -l {name} >/dev/null; getfacl -cn {name}").stdout
        assert f"user:{BOB}:" in told, f"{name} has what its directory gave it: {told}"
    os.setxattr(f"{other}/d/born", "user.b", b"1")
    equal(os.getxattr(f"{mnt}/d/born", "user.b"), b"1", "of an inode that has some this mount asks")
