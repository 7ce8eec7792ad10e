"""Options of a translator: typed, checked, and described for `hekate translator show`."""

from types import MappingProxyType
from typing import Any, Mapping

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_REQUIRED = object()


class Option:
    """An option, declared in the class: `limit = Option(int, default=10, minimum=0, help="...")`.

    `kind`: int, float, str, bool, or list (of str, separated by commas). An option without a default must be set.
    `self.limit` is its value; `self.options` has all of them."""

    def __init__(self, kind, default=_REQUIRED, *, minimum=None, maximum=None, choices=None, help=""):
        if kind not in (int, float, str, bool, list):
            raise TypeError(f"an option is int, float, str, bool or list, not {kind!r}")
        self.kind, self.minimum, self.maximum, self.help, self.name = kind, minimum, maximum, help, ""
        self.choices = None if choices is None else list(choices)
        self.is_required = default is _REQUIRED
        self.default = None if self.is_required else default

    def __set_name__(self, owner, name):
        self.name = name
        if self.default is not None:
            self.default = self.checked(self.default)

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.options[self.name]

    def __set__(self, instance, value):
        raise AttributeError(f"option {self.name!r} is set by the volume's graph, not by the translator")

    def parse(self, text):
        """The value that a text stands for. Raises ValueError with the reason."""
        if not isinstance(text, str):
            return self.checked(text)
        word = text.strip()
        if self.kind is bool:
            if word.lower() not in _TRUE + _FALSE:
                raise ValueError(f"option {self.name!r} is true or false, not {text!r}")
            return word.lower() in _TRUE
        if self.kind is list:
            return self.checked([item.strip() for item in text.split(",") if item.strip()])
        if self.kind is str:
            return self.checked(text)
        try:
            return self.checked(self.kind(word))
        except ValueError as error:
            wrong = f"option {self.name!r} is {_WORDS[self.kind]}{self.range_text()}, not {text!r}"
            raise (error if "option" in str(error) else ValueError(wrong)) from None

    def checked(self, value):
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.kind is list and isinstance(value, (tuple, set, frozenset)):
            value = list(value)
        if type(value) is not self.kind or (self.kind is list and not all(isinstance(item, str) for item in value)):
            raise ValueError(f"option {self.name!r} is {_WORDS[self.kind]}, not {value!r}")
        for item in value if self.kind is list else [value]:
            if self.choices is not None and item not in self.choices:
                known = ", ".join(str(choice) for choice in self.choices)
                raise ValueError(f"option {self.name!r} has no choice {item!r}; there are: {known}")
        size = len(value) if self.kind in (str, list) else value
        below, above = self.minimum, self.maximum
        if size != size or (below is not None and size < below) or (above is not None and size > above):
            length = "has a length" if self.kind in (str, list) else "is a number"
            raise ValueError(f"option {self.name!r} {length}{self.range_text()}, not {size}")
        return value

    def range_text(self):
        if self.minimum is None and self.maximum is None:
            return ""
        if self.maximum is None:
            return f" of at least {self.minimum}"
        if self.minimum is None:
            return f" of at most {self.maximum}"
        return f" from {self.minimum} to {self.maximum}"

    def describe(self):
        """For people and for JSON."""
        found = {"type": self.kind.__name__, "help": self.help, "required": self.is_required, "default": self.default}
        limits = {"minimum": self.minimum, "maximum": self.maximum, "choices": self.choices}
        return {**found, **{name: value for name, value in limits.items() if value is not None}}


_WORDS = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false",
    list: "a list of words separated by commas",
}  # fmt: skip


class OptionHolder:
    """The part of a translator that has its options."""

    options: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def declared_options(cls):
        """Options by name, those of base classes first."""
        found = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, Option)})
        return {name: value for name, value in found.items() if getattr(cls, name) is value}

    @classmethod
    def parse_options(cls, given):
        """Values of all options. Raises ValueError if one is unknown, wrong, or missing."""
        known = cls.declared_options()
        for name in given:
            if name not in known:
                there = f"there are: {', '.join(sorted(known))}" if known else "it has none"
                raise ValueError(f"the translator has no option {name!r}; {there}")
        missing = [name for name, option in known.items() if option.is_required and name not in given]
        if missing:
            raise ValueError(f"option {missing[0]!r} must be set: {known[missing[0]].help}")
        return {
            name: option.parse(given[name]) if name in given else option.default for name, option in known.items()
        }

    def set_options(self, values):
        """Replaces all values at once: a method that reads `self.options` once sees either the old or the new ones."""
        self.options = MappingProxyType(dict(values))
