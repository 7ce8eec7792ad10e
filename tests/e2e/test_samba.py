"""Samba re-export of a mount: smbd on a loopback port, smbclient as its client."""

import errno
import fcntl
import os
import re
import select
import shutil
import subprocess

import pytest

from harness import Skip, equal, free_port, raises, read, same_bytes, wait_until, write

pytestmark = pytest.mark.soak

CONFIGURATION = """
[global]
  interfaces = lo
  bind interfaces only = yes
  smb ports = {port}
  private dir = {base}/smb
  lock directory = {base}/smb
  state directory = {base}/smb
  cache directory = {base}/smb
  pid directory = {base}/smb
  ncalrpc dir = {base}/smb/rpc
  log file = {base}/smb/log
  passdb backend = tdbsam:{base}/smb/passdb.tdb
  server role = standalone server
  # The extensions for unix, with fcntl locks, are those of the first version of the protocol.
  server min protocol = NT1
  client min protocol = NT1
  ea support = yes
  disable spoolss = yes
  load printers = no
[v]
  path = {mnt}
  read only = no
"""


class Samba:
    """A share `v` over a mount, for root."""

    def __init__(self, store, mnt):
        for program in ("smbd", "smbclient", "smbpasswd"):
            if shutil.which(program) is None:
                raise Skip(f"needs {program}")
        self.port = free_port()
        os.makedirs(store.path("smb/rpc"))
        self.configuration = store.path("smb.conf")
        with open(self.configuration, "w") as file:
            file.write(CONFIGURATION.format(port=self.port, base=store.base, mnt=mnt))
        added = ["smbpasswd", "-c", self.configuration, "-s", "-a", "root"]
        subprocess.run(added, input="secret\nsecret\n", text=True, check=True, capture_output=True)
        # It ends its whole process group with itself, so that must not be the test's; but it ends with the test.
        words = ["setpriv", "--pdeathsig", "TERM", "smbd", "--foreground", "--no-process-group", "-s", self.configuration, "--debug-stdout"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, start_new_session=True, **quiet)
        wait_until(lambda: self.try_do("ls").returncode == 0, "smbd answers", 40)

    def words(self, *more):
        return ["smbclient", "-s", self.configuration, "-p", str(self.port), "-U", "root%secret", "//127.0.0.1/v", *more]

    def try_do(self, *commands):
        return subprocess.run(self.words("-c", "; ".join(commands)), capture_output=True, text=True, timeout=120)

    def do(self, *commands):
        """-> what smbclient says."""
        done = self.try_do(*commands)
        assert done.returncode == 0 and "NT_STATUS" not in done.stdout, f"{commands}: {done.stdout}{done.stderr}"
        return done.stdout

    def end(self):
        self.process.terminate()
        self.process.wait()


def up(store):
    mnt = store.up()
    return mnt, Samba(store, mnt)


@pytest.mark.root
@pytest.mark.limit(180)
def test_files_through_samba(store):
    mnt, samba = up(store)
    data = os.urandom(30_000_000)
    write(store.path("here"), data)
    samba.do(f"put {store.path('here')} big", "mkdir d", r"rename big d\moved", f"get d\\moved {store.path('back')}")
    same_bytes(read(store.path("back")), data, "there and back")
    same_bytes(read(f"{mnt}/d/moved"), data, "on the mount")
    write(f"{mnt}/d/ours", b"ours")
    samba.do(f"get d/ours {store.path('ours')}")
    equal(read(store.path("ours")), b"ours", "what the mount wrote")
    for number in range(500):
        write(f"{mnt}/d/name{number}", b"")
    equal(len(re.findall(r"^  name\d+ ", samba.do("cd d", "ls"), re.M)), 500, "names listed")
    samba.do(r"del d\name*", r"del d\moved", r"del d\ours", "rmdir d")
    equal(os.listdir(mnt), [], "all deleted")
    samba.end()


@pytest.mark.root
@pytest.mark.limit(180)
def test_extended_attributes_through_samba(store):
    mnt, samba = up(store)
    write(f"{mnt}/f", b"f")
    samba.do("setea f colour green")
    equal(os.getxattr(f"{mnt}/f", "user.colour"), b"green", "set by Samba")
    os.setxattr(f"{mnt}/f", "user.size", b"large")
    assert "SIZE (0)" in samba.do("geteas f").upper(), samba.do("geteas f")
    samba.do("setmode f +h")
    assert b"DOSATTRIB" in b"".join(name.encode() for name in os.listxattr(f"{mnt}/f")), os.listxattr(f"{mnt}/f")
    assert re.search(r"^  f +A?H", samba.do("ls"), re.M), samba.do("ls")
    samba.end()


@pytest.mark.root
@pytest.mark.limit(180)
def test_locks_hold_between_samba_and_other_mounts(store):
    mnt, samba = up(store)
    other = store.mount("other")
    write(f"{mnt}/f", b"f" * 100)
    handle = os.open(f"{other}/f", os.O_RDWR)
    words = ["stdbuf", "-oL", "-eL", *samba.words("-m", "NT1")]
    client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def ask(lines, until):
        os.write(client.stdin.fileno(), lines.encode() + b"\n")
        said = b""
        while not re.search(until.encode(), said):
            # It takes a line from its buffer only when another one comes.
            if not select.select([client.stdout], [], [], 0.5)[0]:
                os.write(client.stdin.fileno(), b"\n")
                continue
            part = os.read(client.stdout.fileno(), 65536)
            assert part, f"smbclient ended: {said}"
            said += part
        return said.decode()

    ask("posix", "capabilities")
    number = re.search(r"fnum (\d+)", ask("posix_open f rw 0644", r"fnum \d+\n"))[1]
    # It says nothing of what goes well, so a word of ours follows.
    assert "failed" not in ask(f"lock {number} w 0 10\n!echo done", "done")
    raises(errno.EAGAIN, fcntl.lockf, handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 50)
    assert "failed" in ask(f"lock {number} w 32 1\n!echo done", "done"), "Samba locks what the other mount has locked"
    assert "failed" not in ask(f"unlock {number} 0 10\n!echo done", "done")
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)
    client.stdin.close()
    client.wait(30)
    os.close(handle)
    samba.end()
