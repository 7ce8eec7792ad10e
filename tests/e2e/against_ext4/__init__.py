"""Random system calls on a Hekate mount and on a local ext4, which must do the same (tests/e2e/test_against_ext4.py).

`generate` draws ops, `side` does one on one file system, `watch` and `tree` compare what is left, `run` drives and makes
what failed short, `replay` does recorded ops again, `gaps` says what is not drawn or compared yet.
"""
