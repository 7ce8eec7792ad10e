"""A Debian guest whose root is a vDisk, under qemu: booted, killed in mid-write, booted again.

GUEST_DIR=DIR: kernel, initrd and disk of tests/guest/image.sh, which makes them [target/guest].
"""

import os
import re
import shutil
import subprocess
import threading
import time

import pytest

from harness import kill, wait_until
from test_nbd import made, sh

ROOT = os.path.join(os.path.dirname(__file__), "../..")
GUEST = os.path.realpath(os.environ.get("GUEST_DIR", os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "guest")))
BOOT_S = 600

# The first process of the guest: checks what an earlier life has written, then writes and syncs, and says so each time.
INIT = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc 2>/dev/null
mkdir -p /data
count=$(cat /data/count 2>/dev/null || echo 0)
if [ "$count" = 0 ] || (cd /data && md5sum --quiet -c sums); then echo "guest: begins at $count"; else echo "guest: damaged"; fi
while :; do
  count=$((count + 1))
  dd if=/dev/urandom of=/data/new bs=64k count=3 conv=fsync status=none
  mv /data/new /data/$((count % 20))
  (cd /data && md5sum [0-9]* >sums.new) && echo $count >/data/count.new
  sync
  mv /data/sums.new /data/sums; mv /data/count.new /data/count
  sync
  echo "guest: wrote $count"
done
"""


class Guest:
    """qemu, and what the guest says on its console."""

    def __init__(self, uri, script):
        disk = f"file={uri},format=raw,if=virtio,cache=none"
        line = ["qemu-system-x86_64", "-machine", "pc", "-accel", "tcg", "-cpu", "max", "-m", "1024", "-display", "none"]
        line += ["-no-reboot", "-nic", "none", "-monitor", "none", "-serial", "stdio", "-drive", disk]
        line += ["-drive", f"file={script},format=raw,if=virtio,readonly=on", "-kernel", f"{GUEST}/kernel", "-initrd", f"{GUEST}/initrd"]
        line += ["-append", "root=/dev/vda rw console=ttyS0 panic=-1 edd=off no_timer_check init=/bin/sh -- /dev/vdb"]
        self.said = []
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        threading.Thread(target=lambda: self.said.extend(iter(self.process.stdout.readline, "")), daemon=True).start()

    def find(self, pattern):
        """What the guest has said last that the pattern matches."""
        found = [match for line in list(self.said) if (match := re.search(pattern, line))]
        return int(found[-1][1]) if found else None

    def waits_for(self, pattern, least=0):
        def is_there():
            assert "guest: damaged" not in "".join(self.said), "".join(self.said[-40:])
            assert self.process.poll() is None, "".join(self.said[-40:])
            found = self.find(pattern)
            return found is not None and found >= least

        wait_until(is_there, f"the guest says {pattern}", limit_s=BOOT_S)
        return self.find(pattern)

    def kill(self):
        kill(self.process.pid)
        self.process.wait()


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.limit(3600)
def test_a_guest_boots_from_a_vdisk_after_kills(store):
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("there is no qemu-system-x86_64; scripts/setup.sh soak installs it")
    subprocess.run([f"{ROOT}/tests/guest/image.sh", GUEST], check=True)
    door = made(store, "16G")
    sh("nbdcopy", f"{GUEST}/disk", door.uri("d0"), timeout=900)
    script = store.path("init")
    with open(script, "w") as file:
        file.write(INIT.ljust(65536))
    wrote = 0
    for turn, victim in enumerate(["guest", "server", "door", "guest"]):
        guest = Guest(door.uri("d0"), script)
        try:
            begun = guest.waits_for(r"guest: begins at (\d+)")
            assert begun >= wrote, f"turn {turn}: {wrote} was synced and {begun} is there"
            wrote = guest.waits_for(r"guest: wrote (\d+)", least=begun + 5)
            if victim == "server":
                # The guest waits, and goes on.
                store.kill_server()
                store.serve()
                wrote = guest.waits_for(r"guest: wrote (\d+)", least=wrote + 5)
            time.sleep(0.3)
            if victim == "door":
                door.kill()
            wrote = guest.find(r"guest: wrote (\d+)")
        finally:
            guest.kill()
        if victim == "door":
            door.start()
        wait_until(lambda: not store.cli("--json", "vdisk", "show", "v", "d0").json()["open_at"], "the vDisk is closed", limit_s=90)
    sh("nbdcopy", door.uri("d0"), store.path("image"), timeout=900)
    # Its journal is played first, as the next boot would.
    checked = subprocess.run(["e2fsck", "-f", "-y", store.path("image")], capture_output=True, text=True)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    door.stop()
