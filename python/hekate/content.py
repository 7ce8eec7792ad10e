"""The bytes of a file of a volume in memory, with the holes and the room that a real volume would have.

Up to INLINE_MAX bytes are beside the inode, where nothing is a hole. Beyond, they are in shards of SHARD_BYTES, each
with a length of its own; a block that was never written, or was punched, is a hole, also if room is reserved for it."""

BLOCK_BYTES = 4096
INLINE_MAX = 16 << 10
SHARD_BYTES = 4 << 20


def blocks_of(offset, end):
    """Numbers of the blocks that a range touches."""
    return range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def parts_of(offset, end):
    """The parts of a range that lie in one shard each."""
    while offset < end:
        part_end = min(end, (offset // SHARD_BYTES + 1) * SHARD_BYTES)
        yield offset, part_end
        offset = part_end


class Content:
    """`blocks`: bytes by the number of their block. `reserved`: numbers of blocks that have room and no bytes.
    `lengths`: bytes of each shard up to the last one that was written."""

    def __init__(self):
        self.blocks, self.reserved, self.lengths, self.is_inline = {}, set(), {}, True

    def blocks_used(self):
        return len(self.blocks) + len(self.reserved)

    def blocks_needed(self, offset, end):
        """Number of blocks for which a write of this range needs room that it does not have."""
        numbers = blocks_of(offset, end)
        if len(numbers) <= self.blocks_used():
            return sum(number not in self.blocks and number not in self.reserved for number in numbers)
        return len(numbers) - sum(number in numbers for kept in (self.blocks, self.reserved) for number in kept)

    def read(self, offset, length):
        found = bytearray(length)
        for number in blocks_of(offset, offset + length):
            block = self.blocks.get(number)
            if block is not None:
                start = number * BLOCK_BYTES
                low, high = max(offset, start), min(offset + length, start + BLOCK_BYTES)
                found[low - offset : high - offset] = block[low - start : high - start]
        return bytes(found)

    def write(self, offset, data):
        if not data:
            return
        end = offset + len(data)
        if end > INLINE_MAX:
            self.spill()
        for number in blocks_of(offset, end):
            block = self.block(number)
            start = number * BLOCK_BYTES
            low, high = max(offset, start), min(end, start + BLOCK_BYTES)
            block[low - start : high - start] = data[low - offset : high - offset]
        for _, part_end in parts_of(offset, end):
            self.reach(part_end)

    def block(self, number):
        """A block, which has bytes from now on."""
        self.reserved.discard(number)
        return self.blocks.setdefault(number, bytearray(BLOCK_BYTES))

    def reach(self, end):
        """Notes that a shard was written up to `end`."""
        shard = (end - 1) // SHARD_BYTES
        self.lengths[shard] = max(self.lengths.get(shard, 0), end - shard * SHARD_BYTES)

    def spill(self):
        """Moves bytes from beside the inode to a shard: all of them are written there, zeros too."""
        if self.is_inline:
            self.is_inline = False
            for number in blocks_of(0, self.lengths.get(0, 0)):
                self.block(number)

    def clear(self, offset, end):
        """Whole blocks become holes, parts of blocks zeros."""
        for number in [n for n in self.blocks if n * BLOCK_BYTES < end and (n + 1) * BLOCK_BYTES > offset]:
            start = number * BLOCK_BYTES
            low, high = max(offset, start), min(end, start + BLOCK_BYTES)
            if high - low == BLOCK_BYTES:
                del self.blocks[number]
            else:
                self.blocks[number][low - start : high - start] = bytes(high - low)
        whole = range(-(-offset // BLOCK_BYTES), end // BLOCK_BYTES)
        self.reserved = {number for number in self.reserved if number not in whole}

    def truncate(self, before, size):
        """The size changes from `before` to `size`."""
        if size == 0:
            self.__init__()
            return
        if size > INLINE_MAX:
            self.spill()
        if size < before:
            end = max([before, *((shard + 1) * SHARD_BYTES for shard in self.lengths)])
            self.clear(size, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
            kept = {shard: min(length, size - shard * SHARD_BYTES) for shard, length in self.lengths.items()}
            self.lengths = {shard: length for shard, length in kept.items() if length > 0}

    def home_end(self, offset):
        """Where the blocks end that the shard of `offset` has in its data file. Only behind them room is reserved."""
        return -(-self.written_end(offset) // BLOCK_BYTES) * BLOCK_BYTES

    def reserve(self, offset, end):
        """Makes room: holes before the last written block become zeros, blocks behind it stay holes."""
        self.spill()
        for low, high in parts_of(offset, end):
            home_end = self.home_end(low)
            for number in blocks_of(low, min(high, home_end)):
                self.block(number)
            if low < home_end:
                self.reach(min(high, home_end))
            self.reserved.update(number for number in blocks_of(home_end, high) if number not in self.blocks)

    def zero(self, offset, end):
        """Writes zeros. Behind the last written block this needs no bytes."""
        self.spill()
        for low, high in parts_of(offset, end):
            if low // BLOCK_BYTES * BLOCK_BYTES >= self.home_end(low):
                self.reserve(low, high)
            else:
                self.write(low, bytes(high - low))

    def seek(self, offset, size, hole):
        """The first position from `offset` that is in a hole, or is not. None if there is none."""
        if self.is_inline:
            return size if hole else offset
        if not hole:
            found = (max(offset, number * BLOCK_BYTES) for number in self.blocks if number >= offset // BLOCK_BYTES)
            return min((at for at in found if at < min(size, self.written_end(at))), default=None)
        at = offset
        while at < size:
            if at >= self.written_end(at) or at // BLOCK_BYTES not in self.blocks:
                return at
            at = min((at // BLOCK_BYTES + 1) * BLOCK_BYTES, self.written_end(at))
        return size

    def written_end(self, offset):
        """The position behind the last byte that was written in the shard of `offset`."""
        shard = offset // SHARD_BYTES
        return shard * SHARD_BYTES + self.lengths.get(shard, 0)
