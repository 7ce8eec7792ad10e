"""Tests of re-export that need larger packages than `make test` installs."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import harness
import test_samba

if __name__ == "__main__":
    harness.main([test_samba])
