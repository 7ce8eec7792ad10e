#!/usr/bin/python3
"""Writes the Python and C sides of the vocabulary of crates/proto.

    python/generate.py            writes python/hekate/ops.py and ops.pyi, include/hekate_ops.h, and the reference in
                                  docs/python-translators.md
    python/generate.py --check    says which of them are not current, and exits with 1 if one is not
"""

import sys
from pathlib import Path

from codegen import header, page, python, rust, stub

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs/python-translators.md"


def outputs():
    """Text by path."""
    vocabulary = rust.read(ROOT)
    return {
        ROOT / "python/hekate/ops.py": python.write(vocabulary),
        ROOT / "python/hekate/ops.pyi": stub.write(vocabulary),
        ROOT / "include/hekate_ops.h": header.write(vocabulary),
        GUIDE: page.write(vocabulary, GUIDE.read_text()),
    }


def stale():
    """Paths whose text is not what would be written."""
    return [path for path, text in outputs().items() if not path.exists() or path.read_text() != text]


def main():
    if sys.argv[1:] == ["--check"]:
        found = stale()
        for path in found:
            print(f"{path.relative_to(ROOT)} is not current: run python/generate.py", file=sys.stderr)
        return 1 if found else 0
    for path, text in outputs().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
