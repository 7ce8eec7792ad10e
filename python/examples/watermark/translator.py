"""Changes data: what is written is stored in another form, and what is read is turned back.

Each byte but 0 is shifted by `shift` places among 1 to 255, so the bytes of a volume that is read without this
translator, or with another `shift`, differ from what was written. It shows how to change data on its way; it is no
encryption.

The form is chosen so that nothing else has to change: sizes stay; a byte's form does not depend on where it is, so
appends, copies and joins of stored bytes are right; and 0 stays 0, so that holes, and what truncate and allocate add,
are read as zeros. ETags stay those of the content that was written.

It changes: the data of write and append, the content of put, the bytes of read, and the content of fetch. Symbolic
links, names and extended attributes stay."""

from hekate import PASS, Option, Translator


def tables(shift):
    """The table from a byte to its stored form, and the one back."""
    stored = bytes([0] + [(byte - 1 + shift) % 255 + 1 for byte in range(1, 256)])
    back = bytes(stored.index(byte) for byte in range(256))
    return stored, back


class Watermark(Translator):
    """Stores bytes of files in another form. Files that exist already are read changed."""

    shift = Option(int, default=77, minimum=1, maximum=254, help="places by which bytes are shifted; do not change it")

    def on_start(self):
        self.stored, self.back = tables(self.shift)

    def on_reconfigure(self, old):
        if old["shift"] != self.shift:
            raise ValueError("the shift of a volume with files cannot change: they would be read wrong")

    def write(self, op):
        op.data = op.data.translate(self.stored)
        return self.next(op)

    append = write

    def put(self, op):
        if op.source.name != "Bytes":
            return PASS
        op.source.content = op.source.content.translate(self.stored)
        return self.next(op)

    def read(self, op):
        reply = self.next(op)
        reply.bytes = reply.bytes.translate(self.back)
        return reply

    def fetch(self, op):
        reply = self.next(op)
        if reply.object.content is not None:
            reply.object.content = reply.object.content.translate(self.back)
        return reply

    fetch_inode = fetch
