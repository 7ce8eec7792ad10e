"""{{name}}: what it does, for whom, and what it does not do."""

from hekate import PASS, Option, Translator, ops


class {{Class}}(Translator):
    """One line for `hekate translator show`."""

    suffix = Option(str, default=".secret", minimum=1, help="names that end so cannot be looked up")

    def on_start(self):
        self.log.info("started, options: %s", dict(self.options))

    def lookup(self, op):
        if op.name.endswith(self.suffix.encode()):
            self.metrics.count("hidden")
            raise ops.error("NotFound")
        return PASS
