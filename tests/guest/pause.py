#!/usr/bin/env python3
"""Pauses the guest of run.sh, its clock too, and lets it go on: pause.py stop|cont [DIR], DIR as GUEST_DIR [target/guest]."""
import json
import os
import socket
import sys


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("stop", "cont"):
        sys.exit("use: pause.py stop|cont [DIR]")
    directory = sys.argv[2] if len(sys.argv) == 3 else os.environ.get("GUEST_DIR", "target/guest")
    path = os.path.join(directory, "qmp")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(path)
            stream = connection.makefile("rw")
            stream.readline()
            for command in ("qmp_capabilities", sys.argv[1]):
                print(json.dumps({"execute": command}), file=stream, flush=True)
                while "return" not in (answer := json.loads(stream.readline())):
                    if "error" in answer:
                        sys.exit(f"pause.py: {command}: {answer['error']['desc']}")
    except (OSError, ValueError) as error:
        sys.exit(f"pause.py: {path}: {error}; is a guest running?")


main()
