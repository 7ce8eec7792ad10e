#!/usr/bin/env python3
"""(s) random calls, as fsstress of the Linux Test Project makes them: four processes, each in its own directory, 2,500 calls
from a fixed seed. Half of them change names (creat, mkdir, link, symlink, rename, unlink, rmdir), the others bytes and
attributes (write and read of up to 64 KiB in files of up to 1 MiB, truncate, chmod, utime, stat, list, fsync). A call that
fails because of a missing or a full directory counts. val = seconds."""
import os, random
from pplib import *
d = wdir("s")
CALLS = int(2500 * SCALE)


class Worker:
    def __init__(self, number):
        self.random = random.Random(number)
        self.root = f"{d}/p{number}"
        os.mkdir(self.root)
        self.made = 0
        self.files, self.directories = [], [self.root]

    def new(self):
        self.made += 1
        return f"{self.random.choice(self.directories)}/n{self.made}"

    def file(self):
        return self.random.choice(self.files) if self.files else self.root + "/none"

    def creat(self):
        path = self.new()
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        self.files.append(path)

    def mkdir(self):
        path = self.new()
        os.mkdir(path)
        self.directories.append(path)

    def link(self):
        path = self.new()
        os.link(self.file(), path)
        self.files.append(path)

    def symlink(self):
        os.symlink("f", self.new())

    def rename(self):
        old, path = self.file(), self.new()
        os.rename(old, path)
        self.files[self.files.index(old)] = path

    def unlink(self):
        path = self.file()
        os.unlink(path)
        self.files.remove(path)

    def rmdir(self):
        path = self.random.choice(self.directories[1:] or ["/none"])
        os.rmdir(path)
        self.directories.remove(path)

    def opened(self, flags, act):
        fd = os.open(self.file(), flags)
        try:
            act(fd)
        finally:
            os.close(fd)

    def write(self):
        offset, data = self.random.randrange(1 << 20), bytes([self.made & 255]) * self.random.randrange(1, 65536)
        self.opened(os.O_WRONLY, lambda fd: os.pwrite(fd, data, offset))

    def read(self):
        offset = self.random.randrange(1 << 20)
        self.opened(os.O_RDONLY, lambda fd: os.pread(fd, 65536, offset))

    def fsync(self):
        self.opened(os.O_WRONLY, os.fsync)

    def truncate(self):
        os.truncate(self.file(), self.random.randrange(1 << 20))

    def chmod(self):
        os.chmod(self.file(), self.random.choice([0o600, 0o644, 0o755]))

    def utime(self):
        os.utime(self.file(), (1, self.made))

    def stat(self):
        os.stat(self.file())

    def list(self):
        os.listdir(self.random.choice(self.directories))

    def run(self):
        calls = [self.creat] * 6 + [self.mkdir, self.link, self.symlink] * 2 + [self.rename] * 3 + [self.unlink] * 4 + [
            self.rmdir] + [self.write] * 6 + [self.read] * 4 + [self.stat] * 4 + [
            self.truncate, self.chmod, self.utime, self.list] * 2 + [self.fsync]
        for _ in range(CALLS):
            try:
                self.random.choice(calls)()
            except OSError:
                pass


with CPU() as c:
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            Worker(number).run()
            os._exit(0)
        children.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
assert failed == 0, f"{failed} processes failed"
emit("s", "random_calls_4x2500", round(c.wall, 3), "s", True, c)
