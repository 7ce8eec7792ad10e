"""Translators of Hekate in Python: layers that see every op of a volume (docs/python-translators.md).

    from hekate import Translator, Option, timer, ops, PASS, HekateError
"""

from . import ops
from .options import Option
from .translator import PASS, Translator, timer
from .values import HekateError

__all__ = ["PASS", "HekateError", "Option", "Translator", "ops", "timer"]
