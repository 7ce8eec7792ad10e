"""Tests of container roots, for which mmdebstrap fetches some 60 MB."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import harness
import test_container_roots

if __name__ == "__main__":
    harness.main([test_container_roots])
