"""Mounts of users who are not root, through fusermount3."""

import errno
import os
import shutil
import subprocess

import pytest

from harness import NOBODY, Skip, equal, kill, raises, write
from helper_install import fails, install_helper, options_of, run, works, write_fstab
from test_users import private_device, public_server


def up(store):
    """A volume of nobody's. -> how commands are run for nobody, and an empty directory of theirs."""
    as_nobody = public_server(store)
    private_device(store)
    store.cli("volume", "create", "theirs", "--owner", str(NOBODY))
    directories = [store.directory(name) for name in ("nobody", "theirs")]
    for path in directories:
        os.chown(path, NOBODY, NOBODY)
    return as_nobody, directories[1]


def fuse_conf(store, text):
    """In place of the machine's, for this test."""
    path = store.path("fuse.conf")
    with open(path, "w") as file:
        file.write(text)
    if not os.path.exists("/etc/fuse.conf"):
        raise Skip("needs an /etc/fuse.conf to put another in its place")
    subprocess.run(["mount", "--bind", path, "/etc/fuse.conf"], check=True)


@pytest.mark.root
def test_users_options_reach_the_kernel(store):
    as_nobody, mnt = up(store)
    store.cli("mount", "theirs", mnt, **as_nobody)
    works("sh", "-ec", f"cd {mnt}; printf '#!/bin/sh\\necho ran' > s; chmod 755 s; ./s", uid=NOBODY)
    assert {"rw", "nosuid", "nodev", "relatime", f"user_id={NOBODY}"} <= options_of(mnt), options_of(mnt)
    raises(errno.EACCES, os.listdir, mnt)
    store.refuses("mount", "-o", "remount,ro", "theirs", mnt, words=["only root may"], exits=[77], **as_nobody)
    store.cli("umount", mnt, **as_nobody)
    store.cli("mount", "-o", "ro,noexec,noatime", "theirs", mnt, **as_nobody)
    assert {"ro", "noexec", "nosuid", "nodev", "noatime"} <= options_of(mnt), options_of(mnt)
    for line, errors in [(f"{mnt}/s", "Permission denied"), (f"touch {mnt}/t", "Read-only file system")]:
        done = run("sh", "-c", line, uid=NOBODY)
        assert done.returncode != 0 and errors in done.stderr, done
    store.cli("umount", mnt, **as_nobody)
    for option in ("suid", "dev"):
        store.refuses("mount", "-o", option, "theirs", mnt, words=["root's mounts only"], exits=[77], **as_nobody)
    equal(os.path.ismount(mnt), False, "still mounted")


@pytest.mark.root
def test_other_users_come_in_if_root_allows_it(store):
    as_nobody, mnt = up(store)
    fuse_conf(store, "# user_allow_other\n")
    words = ["user_allow_other", "/etc/fuse.conf", "root"]
    store.refuses("mount", "-o", "allow_other", "theirs", mnt, words=words, exits=[77], **as_nobody)
    fuse_conf(store, "user_allow_other\n")
    store.cli("mount", "-o", "allow_other", "theirs", mnt, **as_nobody)
    assert "allow_other" in options_of(mnt), options_of(mnt)
    write(f"{mnt}/f", b"by root")
    equal(works("sh", "-c", f"cat {mnt}/f", uid=12345), "by root", "content for somebody else")
    equal(run("sh", "-c", f"echo x > {mnt}/f", uid=12345).returncode != 0, True, "somebody else may not write")
    store.cli("umount", mnt, **as_nobody)


@pytest.mark.root
def test_a_user_mounts_what_fstab_lets_users_mount(store):
    as_nobody, mnt = up(store)
    if os.stat(shutil.which("mount")).st_mode & 0o4000 == 0:
        raise Skip("needs a mount(8) that is set-user-id")
    install_helper(store)
    sbin = os.path.realpath("/sbin")
    for name in ("mount.hekate", "mount.fuse.hekate"):
        os.unlink(f"{sbin}/{name}")
        os.symlink(as_nobody["program"], f"{sbin}/{name}")
    source = f"{as_nobody['server']}/theirs"
    write_fstab(store, f"{source} {mnt} hekate noauto,user,state={as_nobody['state']} 0 0")
    works("mount", mnt, uid=NOBODY)
    assert {"noexec", "nosuid", "nodev", f"user_id={NOBODY}"} <= options_of(mnt), options_of(mnt)
    works("sh", "-ec", f"echo mine > {mnt}/f; cat {mnt}/f", uid=NOBODY)
    fails("umount", mnt, exit=32, says=["umount"], uid=12345)
    works("umount", mnt, uid=NOBODY)
    equal(os.path.ismount(mnt), False, "still mounted")


@pytest.mark.root
def test_a_users_killed_mount_is_mounted_over(store):
    as_nobody, mnt = up(store)
    pid = store.cli("--json", "mount", "theirs", mnt, **as_nobody).json()["pid"]
    works("sh", "-c", f"echo before > {mnt}/f", uid=NOBODY)
    kill(pid)
    done = run("cat", f"{mnt}/f", uid=NOBODY)
    assert "not connected" in done.stderr, done
    said = store.cli("mount", "theirs", mnt, **as_nobody).err
    assert f"removed the mount at {mnt}, whose process had ended" in said, said
    equal(works("cat", f"{mnt}/f", uid=NOBODY), "before", "content")
    equal(len([line for line in open("/proc/self/mountinfo") if f" {mnt} " in line]), 1, "mounts there")
    store.cli("umount", mnt, **as_nobody)
