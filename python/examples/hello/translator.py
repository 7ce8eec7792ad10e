"""The smallest translator: it logs a line for each name that is looked up, and changes nothing."""

from hekate import PASS, Translator


class Hello(Translator):
    """Logs each name that is looked up."""

    def lookup(self, op):
        self.log.info("hello, %s", op.name.decode(errors="replace"))
        return PASS
