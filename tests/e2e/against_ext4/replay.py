#!/usr/bin/env python3
"""Does recorded ops again and shows both answers: replay.py OPS EXT4_DIRECTORY MOUNT [MOUNT]

OPS: a file that a failed run of tests/e2e/test_against_ext4.py left. The directories are on an ext4 and on one or two
mounts of one Hekate volume. For root.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from against_ext4.run import Different, Pair, brief, show


def main():
    if len(sys.argv) < 4 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        ops = [json.loads(line) for line in file]
    pair = Pair([os.path.abspath(mount) for mount in sys.argv[3:]], os.path.abspath(sys.argv[2]))
    try:
        for number, op in enumerate(ops):
            print(number, show(op), end=" ", flush=True)
            outcome, wrong = pair.do(op)
            print("->", outcome[0], brief(outcome[1]), *wrong, sep="\n   " if wrong else " ")
        pair.compare_trees()
    except Different as different:
        sys.exit(f"\n{different.words}")
    finally:
        pair.end()


if __name__ == "__main__":
    main()
