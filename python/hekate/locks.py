"""Locks of one inode of a volume in memory: conflicts, and how ranges are split."""

from . import ops


def conflict(locks, wanted):
    """The first lock of another owner that `wanted` conflicts with, or None. Styles never conflict."""
    for held in locks:
        overlaps = held.start <= wanted.end and wanted.start <= held.end
        exclusive = ops.LockKind.Write in (held.kind, wanted.kind)
        if held.owner != wanted.owner and held.style == wanted.style and overlaps and exclusive:
            return held
    return None


def with_lock(locks, wanted):
    """The locks after `wanted` was taken, converted or released. The owner's locks in its range are replaced."""
    left = []
    for held in locks:
        is_other = (held.owner, held.style) != (wanted.owner, wanted.style)
        if is_other or held.end < wanted.start or wanted.end < held.start:
            left.append(held)
            continue
        if held.start < wanted.start:
            left.append(held.changed(end=wanted.start - 1))
        if held.end > wanted.end:
            left.append(held.changed(start=wanted.end + 1))
    return left + ([wanted.changed()] if wanted.kind != ops.LockKind.Unlock else [])
