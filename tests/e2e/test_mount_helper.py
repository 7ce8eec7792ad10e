"""mount(8), fstab and the options of mounts, as root."""

import errno
import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import NOBODY, equal, free_port, raises, read, wait_until, write
from helper_install import fails, install_helper, options_of, run, works, write_fstab


def up(store):
    """A server and the mount helper. -> an empty directory, and -o for this server."""
    store.init()
    store.serve()
    install_helper(store)
    return store.directory("mnt"), f"state={store.state}"


def sessions(store):
    return store.status()["volumes"][0]["sessions"]


@pytest.mark.root
def test_mount_by_type(store):
    mnt, state = up(store)
    works("mount", "-t", "hekate", "v", mnt, "-o", f"{state},noexec,noatime,x-systemd.requires=net,comment=of a kind")
    equal(works("findmnt", "-n", "-o", "SOURCE,FSTYPE", "--mountpoint", mnt).split(), ["v", "fuse.hekate"], "findmnt")
    wanted = {"rw", "noexec", "nosuid", "nodev", "noatime", "allow_other"}
    assert wanted <= options_of(mnt), options_of(mnt)
    write(f"{mnt}/f", b"by type")
    works("umount", mnt)
    wait_until(lambda: sessions(store) == 0, "its session ended")
    works("mount", "-t", "fuse.hekate", "v", mnt, "-o", state)
    equal(read(f"{mnt}/f"), b"by type", "content")
    assert {"nosuid", "nodev", "relatime"} <= options_of(mnt) and "noexec" not in options_of(mnt), options_of(mnt)
    works("umount", mnt)


@pytest.mark.root
def test_mounts_of_fstab(store):
    mnt, state = up(store)
    other, later = store.directory("with space"), store.directory("later")
    port = free_port()
    store.stop()
    store.serve("--listen", f"127.0.0.1:{port}")
    write_fstab(
        store,
        f"v {mnt} hekate defaults,_netdev,nofail,{state} 0 0",
        f"127.0.0.1:{port}/v {other.replace(' ', chr(92) + '040')} hekate ro,{state},x-systemd.automount 0 0",
        f"unix:{store.state}/server.sock/v {later} hekate noauto,user,exec,{state} 0 0",
    )
    works("mount", "-a")
    works("mount", "-a")
    equal(sessions(store), 2, "mounted, each once")
    write(f"{mnt}/f", b"x" * 9)
    equal(read(f"{other}/f"), b"x" * 9, "the other mount's content")
    raises(errno.EROFS, os.unlink, f"{other}/f")
    equal(os.path.ismount(later), False, "noauto")
    works("mount", later)
    shown = options_of(later)
    assert {"nosuid", "nodev"} <= shown and "noexec" not in shown, shown
    for directory in (mnt, other, later):
        works("umount", directory)
    wait_until(lambda: sessions(store) == 0, "their sessions ended")


@pytest.mark.root
def test_what_the_mount_helper_refuses(store):
    mnt, state = up(store)
    hekate = ["mount", "-t", "hekate", "v", mnt, "-o"]
    fails(*hekate, f"{state},frobnicate", exit=1, says=['"frobnicate" is no option of Hekate', "cache=SECONDS"])
    fails(*hekate, f"{state},cache=soon", exit=1, says=["cache=soon", "0 to 86400 seconds"])
    fails("mount", "-t", "hekate", "nothing", mnt, "-o", state, exit=1, says=["nothing"])
    fails("mount", "-t", "hekate", "/dev/null", mnt, "-o", state, exit=1, says=["ADDRESS:PORT/VOLUME"])
    fails("mount.hekate", "v", f"{mnt}/no", "-o", state, exit=1, says=["mkdir -p"])
    fails("mount.hekate", "v", mnt, "-N", "/proc/1/ns/mnt", "-o", state, exit=1, says=["nsenter"])
    fails("mount.hekate", "v", exit=1, says=["DIRECTORY"])
    works("mount", "-f", "-t", "hekate", "v", mnt, "-o", state)
    equal(os.path.ismount(mnt), False, "mounted by a fake mount")
    works("mount", "-s", "-t", "hekate", "v", mnt, "-o", f"{state},frobnicate")
    said = works("mount.hekate", "-v", "v", store.directory("two"), "-o", state)
    assert "v is mounted at" in said, said
    fails("mount.hekate", "v", mnt, "-o", state, exit=1, says=["is mounted at", "already"])
    store.cli("umount", mnt)
    store.cli("umount", store.path("two"))


@pytest.mark.root
def test_options_of_hekate_mount_are_the_same(store):
    mnt = store.up()
    store.umount()
    store.mount(options=["-o", "noexec", "-o", "rw,ro,cache=0.5"])
    assert {"ro", "noexec"} <= options_of(mnt), options_of(mnt)
    raises(errno.EROFS, os.mkdir, f"{mnt}/d")
    store.umount()
    store.refuses("mount", "-o", "frobnicate", "v", mnt, words=["frobnicate", "there are: ro, rw, noexec"])
    store.refuses("mount", "-o", f"server=unix:{store.state}/server.sock", "tcp:127.0.0.1:1/v", mnt, words=["names the server"])
    store.refuses("mount", "somewhere/v", mnt, words=["ADDRESS:PORT/VOLUME"])
    store.mount(volume=f"unix:{store.state}/server.sock/v", state=store.path("no-such-state"))
    equal(works("findmnt", "-n", "-o", "SOURCE", "--mountpoint", mnt), f"unix:{store.state}/server.sock/v", "source")


@pytest.mark.root
def test_programs_and_devices_in_a_mount(store):
    mnt = store.up()
    write(f"{mnt}/script", b"#!/bin/sh\necho ran\n")
    os.chmod(f"{mnt}/script", 0o755)
    shutil.copy(shutil.which("id"), f"{mnt}/id")
    os.chmod(f"{mnt}/id", 0o4755)
    os.mknod(f"{mnt}/null", 0o20666, os.makedev(1, 3))
    os.chmod(f"{mnt}/null", 0o666)

    def who():
        return works(f"{mnt}/id", "-un", uid=NOBODY)

    equal(works(f"{mnt}/script"), "ran", "a program runs")
    equal(who() == "root", False, "set-user-id counts in a usual mount")
    raises(errno.EACCES, os.open, f"{mnt}/null", os.O_WRONLY)
    store.umount()
    store.mount(options=["-o", "noexec"])
    raises(errno.EACCES, subprocess.run, [f"{mnt}/script"])
    store.umount()
    store.mount(options=["-o", "suid,dev"])
    equal(who(), "root", "set-user-id with suid")
    write(f"{mnt}/null", b"gone")
    equal(read(f"{mnt}/null"), b"", "a device with dev")


@pytest.mark.root
def test_set_id_and_devices_by_mount(store):
    """mount(8) turns suid and dev into flags and does not pass them on, so there are words of our own."""
    mnt, state = up(store)
    write_fstab(store)
    forbidden = {"nosuid", "nodev"}

    def by_line(*options, fstab):
        words = ",".join([state, *options])
        if fstab:
            write_fstab(store, f"v {mnt} hekate {words} 0 0")
            works("mount", mnt)
        else:
            works("mount", "-t", "hekate", "v", mnt, "-o", words)
        found = options_of(mnt) & {"nosuid", "nodev", "noexec"}
        works("umount", mnt)
        return found

    wanted = [
        (["defaults"], forbidden),
        (["defaults", "suid", "dev"], forbidden),
        (["exec"], forbidden),
        (["allow_suid", "allow_dev"], set()),
        (["defaults", "allow_suid", "allow_dev", "suid", "dev"], set()),
        (["allow_suid"], {"nodev"}),
        (["allow_dev"], {"nosuid"}),
        (["allow_suid", "allow_dev", "nosuid"], {"nosuid"}),
        (["nosuid", "allow_suid", "allow_dev", "nodev", "noexec"], {"nosuid", "nodev", "noexec"}),
        (["user"], {"nosuid", "nodev", "noexec"}),
        (["users", "exec"], forbidden),
        (["user", "suid", "dev", "exec"], set()),
        (["owner"], forbidden),
        (["owner", "suid", "allow_suid"], {"nodev"}),
    ]
    for fstab in (False, True):
        for options, flags in wanted:
            equal(by_line(*options, fstab=fstab), flags, f"flags of {','.join(options)} (fstab: {fstab})")
    write_fstab(store)
    works("mount", "-t", "hekate", "v", mnt, "-o", state)
    works("mount", "-o", "remount,allow_suid", mnt)
    equal(options_of(mnt) & forbidden, forbidden, "a remount with the nosuid that mount(8) adds")
    works("mount", "-o", "remount,suid,allow_suid", mnt)
    equal(options_of(mnt) & forbidden, {"nodev"}, "a remount with suid and allow_suid")
    works("mount", "-o", "remount,nosuid", mnt)
    equal(options_of(mnt) & forbidden, forbidden, "a remount with nosuid")
    works("umount", mnt)


@pytest.mark.root
def test_remounting_changes_flags_and_nothing_else(store):
    mnt, state = up(store)
    works("mount", "-t", "hekate", "v", mnt, "-o", f"{state},noexec")
    write(f"{mnt}/f", b"f")
    handle = os.open(f"{mnt}/f", os.O_WRONLY)
    fails("mount", "-o", "remount,ro", mnt, exit=32, says=["open for writing", "fuser -vm"])
    os.close(handle)
    works("mount", "-o", "remount,ro", mnt)
    raises(errno.EROFS, os.unlink, f"{mnt}/f")
    assert {"ro", "noexec", "nosuid"} <= options_of(mnt), options_of(mnt)
    store.cli("mount", "-o", "remount,rw,exec", "v", mnt)
    assert {"rw", "nosuid", "nodev"} <= options_of(mnt) and "noexec" not in options_of(mnt), options_of(mnt)
    write(f"{mnt}/f", b"g")
    fails("mount", "-o", "remount,noatime", mnt, exit=1, says=["when mounting"])
    said = store.cli("mount", "-o", "remount,ro,cache=5", "v", mnt).err
    assert "leaves cache as" in said, said
    write_fstab(store, f"v {mnt} hekate {state},noexec,cache=1 0 0")
    works("mount", "-o", "remount,rw", mnt)
    assert {"rw", "noexec"} <= options_of(mnt), options_of(mnt)
    equal(read(f"{mnt}/f"), b"g", "content")
    equal(sessions(store), 1, "sessions")
    works("umount", mnt)
    fails("mount.hekate", "v", mnt, "-o", f"{state},remount,ro", exit=1, says=["nothing to remount"])


@pytest.mark.root
def test_a_mount_at_boot_waits_for_its_server(store):
    mnt, state = up(store)
    store.stop()
    begun = time.monotonic()
    fails("mount", "-t", "hekate", "v", mnt, "-o", state, exit=32, says=["is it running"])
    equal(time.monotonic() - begun < 10, True, "without _netdev it fails at once")
    fails("mount", "-t", "hekate", "v", mnt, "-o", f"{state},_netdev,wait=3", exit=32, says=["waited for 3 s", "is it running"])
    equal(os.path.ismount(mnt), False, "mounted without a server")
    waiting = subprocess.Popen(["mount", "-t", "hekate", "v", mnt, "-o", f"{state},_netdev"], stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    equal(waiting.poll(), None, "it still waits")
    store.serve()
    said = waiting.communicate(timeout=30)[1]
    equal(waiting.returncode, 0, "mounted once the server was there")
    assert "waiting for up to 60 s" in said, said
    write(f"{mnt}/f", b"f")
    works("umount", mnt)


@pytest.mark.root
@pytest.mark.no_fuse
def test_doctor_says_how_the_mount_helper_is_installed(store):
    row = lambda: next(row for row in store.cli("--json", "doctor").json()["checks"] if row["check"] == "mount helper")
    install_helper(store)
    equal(row()["state"], "good", "with the links")
    os.unlink(os.path.realpath("/sbin") + "/mount.fuse.hekate")
    found = row()
    equal(found["state"], "weak", "without one of them")
    assert "/sbin/mount.fuse.hekate" in found["found"], found
    equal(run("sh", "-c", found["fix"]).returncode, 0, "the line works")
    equal(row()["state"], "good", "with what doctor said")


@pytest.mark.root
def test_a_soft_mount_gives_up_on_a_server_that_is_away(store):
    mnt = store.up()
    store.umount()
    store.mount(options=["-o", "soft=2"])
    write(f"{mnt}/f", b"f")
    os.kill(store.server_pid, signal.SIGSTOP)
    time.sleep(4.5)  # until nothing is answered from memory any more
    try:
        for what in (os.stat, read, os.listdir):
            begun = time.monotonic()
            try:
                what(mnt if what is os.listdir else f"{mnt}/f")
                raise AssertionError(f"{what.__name__} succeeds while the server is away")
            except OSError as error:
                equal(error.errno, errno.ETIMEDOUT, what.__name__)
            took = time.monotonic() - begun
            assert 1.5 < took < 20, f"{what.__name__} gave up after {took:.1f} s"
    finally:
        os.kill(store.server_pid, signal.SIGCONT)
    wait_until(lambda: answers(f"{mnt}/f"), "it goes on once the server is back")


def answers(path):
    try:
        return read(path) == b"f"
    except OSError:
        return False


@pytest.mark.root
def test_reading_changes_no_access_time_with_noatime(store):
    mnt = store.up()
    plain = store.mount("plain")
    store.umount()
    store.mount(options=["-o", "noatime"])
    write(f"{mnt}/f", b"f" * 5000)
    os.utime(f"{mnt}/f", ns=(10**18, 10**18 + 10**9))
    for _ in range(3):
        read(f"{mnt}/f")
    time.sleep(1.5)
    equal(os.stat(f"{mnt}/f").st_atime_ns, 10**18, "time of access after reading with noatime")
    read(f"{plain}/f")
    wait_until(lambda: os.stat(f"{mnt}/f").st_atime_ns > 10**18, "without it the time of access follows")
