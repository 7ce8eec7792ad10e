"""GlusterFS on the wires of lanes.py: two brick processes and a client with replication (AFR), without glusterd, by volume files.

What `gluster volume create V replica 2` makes of the data path is here too: posix, locks and io-threads at each brick, write-behind over
AFR at the client. Caches and read-ahead are left out: they have no part in synchronous writes. Writes with O_SYNC pass write-behind.
"""
import os
import shutil

PORT = 24107

BRICK = """volume posix
  type storage/posix
  option directory {directory}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume brick
  type performance/io-threads
  option thread-count 16
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.address-family inet
  option transport.socket.bind-address {address}
  option transport.socket.listen-port {port}
  option transport.socket.nodelay on
  option auth.addr.brick.allow *
  subvolumes brick
end-volume
"""

CLIENT = """volume client-{number}
  type protocol/client
  option transport-type tcp
  option transport.address-family inet
  option remote-host {address}
  option remote-port {port}
  option remote-subvolume brick
  option transport.socket.nodelay on
end-volume
"""

REPLICATE = """volume replicate
  type cluster/replicate
  option eager-lock {eager}
  option post-op-delay-secs 1
  option afr-pending-xattr client-0,client-1
  subvolumes client-0 client-1
end-volume
volume write-behind
  type performance/write-behind
  subvolumes replicate
end-volume
"""


class Gluster:
    """`servers`: [(node, address)]; `inside`: runs a command at a node."""

    def __init__(self, base, servers, client, inside):
        self.base, self.servers, self.client, self.inside = base, servers, client, inside
        self.mounts = []

    def __enter__(self):
        for number, (node, address) in enumerate(self.servers):
            directory = f"{self.base}/g{number}"
            os.makedirs(directory, exist_ok=True)
            self.write(f"brick{number}.vol", BRICK.format(directory=directory, address=address, port=PORT))
            log, pid = f"{self.base}/brick{number}.log", f"{self.base}/brick{number}.pid"
            self.inside(node, "glusterfsd", "-f", f"{self.base}/brick{number}.vol", "-l", log, "-p", pid)
        return self

    def write(self, name, text):
        with open(f"{self.base}/{name}", "w") as file:
            file.write(text)

    def mount(self, name, eager):
        """-> a directory of its own in the mount"""
        clients = [CLIENT.format(number=number, address=address, port=PORT) for number, (_, address) in enumerate(self.servers)]
        self.write(f"{name}.vol", "".join(clients) + REPLICATE.format(eager="on" if eager else "off"))
        directory = f"{self.base}/mnt-{name}"
        os.makedirs(directory, exist_ok=True)
        self.inside(self.client, "glusterfs", "-f", f"{self.base}/{name}.vol", "-l", f"{self.base}/{name}.log", directory)
        self.mounts.append(directory)
        self.inside(self.client, "mkdir", "-p", f"{directory}/{name}")
        return f"{directory}/{name}"

    def __exit__(self, *_):
        for directory in self.mounts:
            self.inside(self.client, "umount", directory, check=False)
        for number in range(len(self.servers)):
            try:
                with open(f"{self.base}/brick{number}.pid") as file:
                    os.kill(int(file.read()), 15)
            except (OSError, ValueError) as error:
                print(f"lanes: brick {number}: {error}")
            shutil.rmtree(f"{self.base}/g{number}", ignore_errors=True)
