"""Makes the package of this tree importable, and its fixtures available."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tests")]

pytest_plugins = ["hekate.testing"]
