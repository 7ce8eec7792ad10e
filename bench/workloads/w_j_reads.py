#!/usr/bin/env python3
"""(j) reads of bytes by programs that open their files to read only: a file of 256 MiB in pieces of 128 KiB, after a
remount, and twice again; its first 32 MiB in pieces of 4 KiB, again; 4 KiB at 20,000 random places of these; a tree of 400
files of 40 KiB each, as a compiler reads its headers, after a remount, and again; the same file mapped. val = seconds."""
import mmap, os, random, subprocess
from pplib import *
d = wdir("j")
MIB = 1 << 20
large, some = d + "/large", 32 * MIB
tree = [f"{d}/tree/d{n % 10}/f{n}" for n in range(400)]


def timed(name, act):
    with CPU() as c:
        act()
    emit("j", name, round(c.wall, 4), "s", True, c)


def make():
    with open(large, "wb") as file:
        for _ in range(256):
            file.write(os.urandom(MIB))
    for path in tree:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.urandom(40 * 1024))
    os.sync()


def read_in(piece, count):
    handle = os.open(large, os.O_RDONLY)
    for _ in range(count):
        if not os.read(handle, piece):
            break
    os.close(handle)


def read_randomly():
    handle, draw = os.open(large, os.O_RDONLY), random.Random(1)
    for _ in range(20_000):
        os.pread(handle, 4096, draw.randrange(some // 4096) * 4096)
    os.close(handle)


def read_tree():
    for path in tree:
        with open(path, "rb", buffering=0) as file:
            while file.read(65536):
                pass


def read_mapped():
    handle = os.open(large, os.O_RDONLY)
    with mmap.mmap(handle, 256 * MIB, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        sum(mapped[at] for at in range(0, len(mapped), 4096))
    os.close(handle)


timed("make", make)
cold()
timed("seq128k_cold", lambda: read_in(128 * 1024, 1 << 30))
# What was changed a moment ago is not kept.
settle(3)
timed("seq128k_again", lambda: read_in(128 * 1024, 1 << 30))
timed("seq128k_warm", lambda: read_in(128 * 1024, 1 << 30))
timed("seq4k_warm", lambda: read_in(4096, some // 4096))
timed("rand4k_warm", read_randomly)
timed("mapped_warm", read_mapped)
timed("tree_cold", read_tree)
timed("tree_again", read_tree)
timed("tree_warm", read_tree)
