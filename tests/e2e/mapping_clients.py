"""Processes that add to words of a file through a shared mapping, and print how often as JSON.

    mapping_clients.py FILE WORD --times N | --until FILE [--lock]

Without --lock nobody else adds to the word. With it the word is everybody's, and each adds under a lock of fcntl(2).
"""

import argparse
import contextlib
import fcntl
import json
import mmap
import os
import struct
import time

WORD = struct.Struct("=Q")


@contextlib.contextmanager
def locked(file):
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("word", type=int)
    parser.add_argument("--times", type=int, default=1 << 62)
    parser.add_argument("--until")
    parser.add_argument("--lock", action="store_true")
    asked = parser.parse_args()
    added, begun = 0, time.monotonic()
    with open(asked.file, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as pages:
        while added < asked.times and not (asked.until and os.path.exists(asked.until)):
            with locked(file) if asked.lock else contextlib.nullcontext():
                (before,) = WORD.unpack_from(pages, asked.word * WORD.size)
                WORD.pack_into(pages, asked.word * WORD.size, before + 1)
            added += 1
    print(json.dumps({"added": added, "seconds": time.monotonic() - begun}))


if __name__ == "__main__":
    main()
