"""Runs the tests that are named on the command line, or all of them."""

import importlib
import pathlib

import harness

if __name__ == "__main__":
    files = sorted(pathlib.Path(__file__).parent.glob("test_*.py"))
    harness.main([importlib.import_module(file.stem) for file in files])
