"""An NFS server over a mount (nfs-ganesha, in user space) and a client of it (libnfs), in a network of a test's own.

Both need no kernel module. The server keeps nothing that a restart would not take from it: its clients' file handles are
those of the mount.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess

from harness import Skip, wait_until
from helper_install import own_namespace

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
PORT, MOUNT_PORT = 22049, 22048
LIBRARY = "libnfs.so.13"

CONFIGURATION = """
NFS_CORE_PARAM {{
    NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Enable_NLM = false; Enable_RQUOTA = false; Protocols = 3, 4;
    Enable_UDP = false; mount_path_pseudo = true; Plugins_Dir = {plugins};
}}
NFSV4 {{ RecoveryRoot = {base}/recovery; RecoveryBackend = fs; Graceless = true; Only_Numeric_Owners = true; }}
EXPORT {{
    Export_Id = 7; Path = {mnt}; Pseudo = /v; Access_Type = RW; Squash = None; SecType = sys; Transports = TCP;
    Filesystem_id = 7.7; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }}
}}
"""


def own_network():
    """A network with a loopback of its own, and a /run for what listens there."""
    own_namespace()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise Skip("needs unshare(2)")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    os.mkdir("/run/rpcbind")


def plugins():
    return next(directory for directory, _, names in os.walk("/usr/lib") if "libfsalvfs.so" in names)


class Server:
    """Exports a mount as /v."""

    def __init__(self, store, mnt):
        for program in ("ganesha.nfsd", "rpcbind"):
            if shutil.which(program) is None:
                raise Skip(f"needs {program}")
        self.store = store
        store.directory("recovery")
        self.configuration = store.path("ganesha.conf")
        with open(self.configuration, "w") as file:
            named = {"PORT": PORT, "MOUNT_PORT": MOUNT_PORT, "plugins": plugins(), "base": store.base, "mnt": mnt}
            file.write(CONFIGURATION.format(**named))
        self.rpcbind = subprocess.Popen(["rpcbind", "-f"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.exists("/run/rpcbind.sock"), "rpcbind listens")
        self.process = None
        self.start()

    def start(self):
        words = ["ganesha.nfsd", "-F", "-f", self.configuration, "-N", "NIV_EVENT"]
        words += ["-L", self.store.path("ganesha.log"), "-p", self.store.path("ganesha.pid")]
        # It sets up a table of as many descriptors as it may have.
        self.process = subprocess.Popen(["prlimit", "--nofile=4096", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.answers() or self.process.poll() is not None, "the NFS server listens", 40)
        assert self.process.poll() is None, f"the NFS server ended: {self.log()}"

    def answers(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", PORT)) == 0 and "NFS SERVER INITIALIZED" in self.log(40)

    def log(self, lines=5):
        try:
            with open(self.store.path("ganesha.log")) as file:
                return "".join(file.readlines()[-lines:])
        except FileNotFoundError:
            return ""

    def kill(self):
        """All that it remembers is gone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.unlink(self.store.path("ganesha.log"))

    def end(self):
        for process in (self.process, self.rpcbind):
            process.kill()
            process.wait()


class Client:
    """Calls of libnfs, which answer -errno."""

    def __init__(self, version=3):
        try:
            self.lib = ctypes.CDLL(LIBRARY)
        except OSError:
            raise Skip(f"needs {LIBRARY}") from None
        self.lib.nfs_init_context.restype = ctypes.c_void_p
        self.lib.nfs_get_error.restype = ctypes.c_char_p
        self.lib.nfs_parse_url_dir.restype = ctypes.c_void_p
        self.lib.nfs_readdir.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.nfs_init_context())
        url = f"nfs://127.0.0.1/v?version={version}&nfsport={PORT}&mountport={MOUNT_PORT}"
        assert self.lib.nfs_parse_url_dir(self.context, url.encode()), self.error()
        self.call("mount", b"127.0.0.1", b"/v")

    def error(self):
        return (self.lib.nfs_get_error(self.context) or b"").decode()

    def call(self, name, *arguments):
        result = getattr(self.lib, f"nfs_{name}")(self.context, *arguments)
        if result < 0:
            raise OSError(-result, f"nfs_{name}{arguments}: {self.error()}")
        return result

    def open(self, path, flags=os.O_RDONLY):
        file = ctypes.c_void_p()
        self.call("open", path.encode(), flags, ctypes.byref(file))
        return file

    def close(self, file):
        self.call("close", file)

    def pread(self, file, length, offset=0):
        space = ctypes.create_string_buffer(length)
        filled = self.call("pread", file, ctypes.c_uint64(offset), ctypes.c_uint64(length), space)
        return space.raw[:filled]

    def pwrite(self, file, data, offset=0):
        return self.call("pwrite", file, ctypes.c_uint64(offset), ctypes.c_uint64(len(data)), data)

    def write(self, path, data):
        file = ctypes.c_void_p()
        self.call("creat", path.encode(), 0o644, ctypes.byref(file))
        written = 0
        while written < len(data):
            written += self.pwrite(file, data[written:written + (1 << 18)], written)
        self.call("fsync", file)
        self.close(file)

    def read(self, path):
        file, found = self.open(path), b""
        while part := self.pread(file, 1 << 18, len(found)):
            found += part
        self.close(file)
        return found

    def names(self, path):
        directory = ctypes.c_void_p()
        self.call("opendir", path.encode(), ctypes.byref(directory))
        names = []
        while entry := self.lib.nfs_readdir(self.context, directory):
            # struct nfsdirent: next, name, ...
            names.append(ctypes.cast(entry, ctypes.POINTER(ctypes.c_char_p))[1].decode())
        self.lib.nfs_closedir(self.context, directory)
        return sorted(set(names) - {".", ".."})
