"""The sums of a brick's index (docs/format/index-sums.md), read a second time: to damage what has a sum, and the sum with it."""

import os
import struct

from harness import read

BLOCK, PAIR, CONTENT, SUMS = 4096, 1024, 504, 63
WORD = (1 << 64) - 1
# XXH3 as xxHash's own specification has it, for inputs of over 240 bytes.
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
PRIME32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh3_64(data, seed):
    words = struct.unpack("<24Q", SECRET)
    secret = struct.pack("<24Q", *((word + (-seed if at % 2 else seed)) & WORD for at, word in enumerate(words)))
    sums = [PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2], PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0]]

    def take(at, secret_at):
        stripe, keys = struct.unpack_from("<8Q", data, at), struct.unpack_from("<8Q", secret, secret_at)
        for lane, (value, key) in enumerate(zip(stripe, keys)):
            mixed = value ^ key
            sums[lane ^ 1] = (sums[lane ^ 1] + value) & WORD
            sums[lane] = (sums[lane] + (mixed & 0xFFFFFFFF) * (mixed >> 32)) & WORD

    for stripe in range((len(data) - 1) // 64):
        take(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            for lane, key in enumerate(struct.unpack_from("<8Q", secret, 128)):
                sums[lane] = (sums[lane] ^ sums[lane] >> 47 ^ key) * PRIME32[0] & WORD
    take(len(data) - 64, 121)
    keys, result = struct.unpack_from("<8Q", secret, 11), len(data) * PRIME64[0]
    for lane in range(0, 8, 2):
        product = (sums[lane] ^ keys[lane]) * (sums[lane + 1] ^ keys[lane + 1])
        result += product & WORD ^ product >> 64
    result = (result & WORD) ^ (result & WORD) >> 37
    result = result * 0x165667919E3779F9 & WORD
    return result ^ result >> 32


def paths(brick):
    return f"{brick}/index/index.redb", f"{brick}/index/index.sums"


def sum_of(block, data):
    return max(xxh3_64(data, block), 1)


def sums_of(brick):
    """As they rest. -> a list by block; every check is right."""
    sums = []
    rests = read(paths(brick)[1])
    for at in range(0, len(rests), PAIR):
        pair = rests[at:at + PAIR]
        seed = WORD - 1 - 2 * (at // PAIR)
        assert not any(pair) or pair == pair_of(seed, pair[:CONTENT]), f"the pair at {at}"
        sums += struct.unpack_from(f"<{SUMS}Q", pair)
    return sums


def pair_of(seed, content):
    return b"".join(content + struct.pack("<Q", xxh3_64(content, seed + half)) for half in (0, 1))


def live(brick):
    """Blocks of the index that match their sums."""
    index = read(paths(brick)[0])
    # A file that became shorter when it was closed leaves sums of what it had behind its end.
    is_there = lambda block: (block + 1) * BLOCK <= len(index)
    matches = lambda block, known: known and is_there(block) and sum_of(block, index[block * BLOCK:(block + 1) * BLOCK]) == known
    return {block for block, known in enumerate(sums_of(brick)) if block > 0 and matches(block, known)}


def take_for_right(brick, blocks):
    """As if these blocks were written as they are now: what memory flipped before a sum was made of it."""
    index_path, sums_path = paths(brick)
    index, sums = read(index_path), sums_of(brick)
    for block in blocks:
        sums[block] = sum_of(block, index[block * BLOCK:(block + 1) * BLOCK])
    with open(sums_path, "r+b") as file:
        for number in {block // SUMS for block in blocks}:
            file.seek(number * PAIR)
            file.write(pair_of(WORD - 1 - 2 * number, struct.pack(f"<{SUMS}Q", *sums[number * SUMS:(number + 1) * SUMS])))
            file.flush()
            os.fsync(file.fileno())
