"""S3 endpoints on this machine, each on fresh XFS file systems on loop devices with direct I/O (bench/systems/common.sh).

A system has `up()`, which returns once it answers, `down()`, `pids()` of all processes that work for it, and `access`:
key id and secret. Programs are named by HEKATE, VERSITYGW, WEED and MINIO; folders by PP and MNT.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SYSTEMS = HERE.parent / "systems"
ROOT = HERE.parent.parent
PP = Path(os.environ.get("PP", "/var/tmp/pp"))
MNT = Path(os.environ.get("MNT", "/mnt/pp"))
PORT = 19000
OWN_ACCESS = ("benchaccess", "benchsecretbenchsecret")


def shell(command, **environment):
    """Runs a line of bash that knows the functions of common.sh."""
    environment = {**os.environ, "PP": str(PP), "MNT": str(MNT), **environment}
    script = f". {SYSTEMS}/common.sh; {command}"
    subprocess.run(["bash", "-c", script], check=True, env=environment, stdout=subprocess.DEVNULL)


def program(variable, default):
    found = shutil.which(os.environ.get(variable, str(default)))
    if not found:
        raise SystemExit(f"{variable}: no program {default}; see bench/README.md")
    return found


def make_files(directory, keys):
    def make(key):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0123456789abcdef")

    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(make, keys):
            pass


def make_empty_files(directory, keys):
    """One call of the file system for each key."""
    made = set()

    def make(key):
        path = os.path.join(directory, key)
        parent = os.path.dirname(path)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        os.mknod(path, 0o100644)

    threads = 16
    with ThreadPoolExecutor(threads) as pool:
        keys = list(keys)
        for _ in pool.map(lambda share: [make(key) for key in share], (keys[at::threads] for at in range(threads))):
            pass


def stop(process, seconds=30):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class System:
    access = OWN_ACCESS

    def __init__(self, number):
        """`number`: of the systems that are up at once; each has its own port and images."""
        self.port = PORT + number
        self.images = [f"s3-{number}-{image}" for image in (1, 2)]
        self.processes = []

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def run(self, *command, **environment):
        """Starts a server of this system."""
        (PP / "run").mkdir(parents=True, exist_ok=True)
        log = open(PP / "run" / f"{type(self).__name__}.log", "w")
        process = subprocess.Popen(
            [str(word) for word in command], stdout=log, stderr=log, env={**os.environ, **environment}
        )
        self.processes.append(process)
        self.wait()

    def wait(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{type(self).__name__} does not answer at port {self.port}")
                time.sleep(0.2)

    def fill(self, put, bucket, keys):
        """Makes the objects of a listing. `put` makes them over S3."""
        return put()

    def fill_many(self, put, bucket, keys):
        """The same for a million of them."""
        return self.fill(put, bucket, keys)

    def pids(self):
        return [process.pid for process in self.processes]

    def directory(self, options="noatime"):
        """A fresh file system on the first image."""
        directory = MNT / self.images[0]
        shell(f"xfs_up {self.images[0]} {directory}", XFS_OPTIONS=options)
        return directory

    def down(self):
        for process in reversed(self.processes):
            stop(process)
        self.processes = []
        if (MNT / self.images[0]).is_mount():
            shell(f"xfs_down {self.images[0]} {MNT}/{self.images[0]}")


class Hekate(System):
    """Two copies on two bricks of one server, whose door is measured."""

    variable = "HEKATE"

    def __init__(self, number):
        super().__init__(number)
        self.program = program(self.variable, ROOT / "target/release/hekate")
        self.states = [PP / f"run/hekate-{number}"]
        self.servers = []

    def hekate(self, *words, state=0):
        command = [self.program, "--state", str(self.states[state]), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def serve(self, *options, state=0):
        text = self.hekate("serve", "--detach", *options, state=state)
        self.servers.append(int(re.search(r"server (\d+) answers", text).group(1)))

    def fill_many(self, put, bucket, keys):
        """As empty files on a mount: a PUT waits for the disks, and makes what is listed in the same way."""
        directory = MNT / "hekate"
        directory.mkdir(parents=True, exist_ok=True)
        self.hekate("mount", "--cache", 60, "v", directory)
        try:
            make_empty_files(directory / bucket, keys)
        finally:
            self.hekate("umount", directory)

    def bricks(self):
        bricks = [MNT / image for image in self.images]
        for image, brick in zip(self.images, bricks):
            shell(f"xfs_up {image} {brick}; mkdir -p {brick}/brick")
        for state in self.states:
            shutil.rmtree(state, ignore_errors=True)
        return [brick / "brick" for brick in bricks]

    def up(self):
        one, two = self.bricks()
        self.hekate("--json", "init", "--brick", one, "--brick", two, "--volume", "v", "--copies", 2)
        self.serve()
        self.open_door()

    def open_door(self):
        self.hekate("s3", "enable", "v", "--listen", f"127.0.0.1:{self.port}", "--http")
        key = json.loads(self.hekate("--json", "s3", "key", "create", "v"))
        self.access = (key["id"], key["secret"])
        self.wait()

    def pids(self):
        return self.servers

    def down(self):
        for state in reversed(range(len(self.states))):
            subprocess.run([self.program, "--state", self.states[state], "stop"], capture_output=True)
        self.servers = []
        for image in self.images:
            shell(f"xfs_down {image} {MNT}/{image}")


class HekateBefore(Hekate):
    """Another build, beside the one that is measured: HEKATE_BEFORE."""

    variable = "HEKATE_BEFORE"


class HekateTwo(Hekate):
    """Two servers with a brick each, over loopback TCP with TLS; the door is in one of them."""

    def __init__(self, number):
        super().__init__(number)
        self.states.append(PP / f"run/hekate-{number}.2")

    def up(self):
        one, two = self.bricks()
        self.hekate("--json", "init", "--brick", one)
        self.serve("--listen", "127.0.0.1:17801")
        self.hekate("join", self.hekate("token", "create").strip(), "--brick", two, state=1)
        self.serve("--listen", "127.0.0.1:17802", state=1)
        self.hekate("volume", "create", "v", "--copies", 2)
        # Both open the door: whichever comes first has the port.
        self.open_door()


class VersityXfs(System):
    """versitygw over XFS mounted `-o sync`: one copy, and each write is on the disk when it returns."""

    def up(self):
        self.root = self.directory("noatime,sync")
        self.gateway(self.root)

    def fill(self, put, bucket, keys):
        """As files, without S3 and without syncs: with both it takes hours. Their listing reads no less."""
        for process in self.processes:
            stop(process)
        self.processes = []
        device = subprocess.run(["findmnt", "-no", "SOURCE", self.root], capture_output=True, text=True).stdout.strip()
        subprocess.run(["umount", self.root], check=True)
        subprocess.run(["mount", "-o", "noatime", device, self.root], check=True)
        make_files(self.root / bucket, keys)
        subprocess.run(["umount", self.root], check=True)
        subprocess.run(["mount", "-o", "noatime,sync", device, self.root], check=True)
        self.gateway(self.root)

    def gateway(self, directory):
        access, secret = self.access
        command = [program("VERSITYGW", "versitygw"), "--access", access, "--secret", secret]
        self.run(*command, "--port", f"127.0.0.1:{self.port}", "posix", directory)



class VersityGluster(VersityXfs):
    """versitygw over GlusterFS, replica 2, with bricks on XFS mounted `-o sync`."""

    options = "noatime,sync"

    def gluster(self, word):
        own = {"GV": "r2", "XFS_OPTIONS": self.options, "IMGD": str(PP / "images-gluster")}
        environment = {**os.environ, "PP": str(PP), "MNT": str(MNT), **own}
        subprocess.run([SYSTEMS / "gluster.sh", word], check=True, env=environment, stdout=subprocess.DEVNULL)

    def up(self):
        self.gluster("up")
        self.root = MNT / "gluster"
        self.gateway(self.root)

    def fill(self, put, bucket, keys):
        make_files(self.root / bucket, keys)

    def pids(self):
        own = str(PP)
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                is_gluster = words[0].rsplit("/", 1)[-1] in ("glusterfs", "glusterfsd", "glusterd")
                if is_gluster and any(own in word or str(MNT) in word for word in words):
                    found.append(int(process.name))
        return found + super().pids()

    def down(self):
        System.down(self)
        self.gluster("down")


class VersityGlusterAsItComes(VersityGluster):
    """The same with bricks on XFS mounted as usual: what was put is in the page caches of the bricks."""

    options = "noatime"


class SeaweedFs(System):
    """One process, one copy, as it comes."""

    def up(self):
        directory = self.directory()
        access, secret = self.access
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = PP / "run/weed.json"
        config.write_text(json.dumps({"identities": [identity]}))
        # Its volumes are of 30 GB otherwise, and none has room. Each bucket takes seven of them.
        room = ["-master.volumeSizeLimitMB=256", "-volume.max=60"]
        command = [program("WEED", "weed"), "server", f"-dir={directory}", "-ip=127.0.0.1", *room]
        self.run(*command, "-s3", f"-s3.port={self.port}", f"-s3.config={config}")
        time.sleep(5)



class MinIo(System):
    """One process, one drive, as it comes."""

    def up(self):
        directory = self.directory() / "data"
        directory.mkdir()
        access, secret = self.access
        environment = {"MINIO_ROOT_USER": access, "MINIO_ROOT_PASSWORD": secret, "MINIO_BROWSER": "off"}
        self.run(
            program("MINIO", "minio"), "server", "--address", f"127.0.0.1:{self.port}", directory, **environment
        )
        time.sleep(3)



BY_NAME = {
    "hekate": Hekate,
    "hekate-before": HekateBefore,
    "hekate-two": HekateTwo,
    "versity-xfs": VersityXfs,
    "versity-gluster": VersityGluster,
    "versity-gluster-plain": VersityGlusterAsItComes,
    "seaweedfs": SeaweedFs,
    "minio": MinIo,
}
