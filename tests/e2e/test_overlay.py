"""overlayfs over mounts: what container tools do with layers.

The measure is an overlay whose layers are on tmpfs: the same work must leave the same merged tree and the same upper layer.
"""

import ctypes
import errno
import hashlib
import io
import os
import stat
import subprocess
import tarfile

import pytest

from harness import NOBODY, equal, raises, read, write
from overlays import fuse_overlay, image_overlay, overlay, tmpfs

LIBC = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4


def renameat2(old, new, flags):
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), old)


def whiteout(path):
    found = os.lstat(path)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


# --- RENAME_WHITEOUT ---


@pytest.mark.root
def test_a_rename_leaves_a_whiteout(store):
    mnt, other = store.up(), store.mount("mnt2")
    for number in range(8):
        # Directories of one volume lie in several partitions.
        for name in (f"from{number}", f"to{number}"):
            os.mkdir(f"{mnt}/{name}")
        old, new = f"{mnt}/from{number}/f", f"{mnt}/to{number}/g"
        write(old, b"bytes")
        os.chown(f"{mnt}/from{number}", NOBODY, NOBODY)
        renameat2(old, new, WHITEOUT)
        for side in (mnt, other):
            found = os.lstat(f"{side}/from{number}/f")
            wanted = (stat.S_IFCHR, 0, 1, 0, 0)
            equal((found.st_mode, found.st_rdev, found.st_nlink, found.st_uid, found.st_gid), wanted, "the whiteout")
            equal(read(f"{side}/to{number}/g"), b"bytes", "what was renamed")
            equal(os.listdir(f"{side}/from{number}"), ["f"], "names")
        write(old + "2", b"other")
        raises(errno.EEXIST, renameat2, old + "2", new, WHITEOUT | NOREPLACE)
        raises(errno.EINVAL, renameat2, old + "2", new, WHITEOUT | EXCHANGE)
        renameat2(old + "2", new, WHITEOUT)
        equal(read(f"{other}/to{number}/g"), b"other", "what replaced it")
        os.mkdir(f"{mnt}/from{number}/d")
        renameat2(f"{mnt}/from{number}/d", f"{mnt}/to{number}/d", WHITEOUT)
        equal((whiteout(f"{other}/from{number}/d"), os.stat(f"{other}/from{number}").st_nlink), (True, 2), "after a directory")
        equal(os.stat(f"{other}/to{number}").st_nlink, 3, "links of its new parent")
        renameat2(old, new, EXCHANGE)
        equal((read(f"{other}/from{number}/f"), whiteout(f"{other}/to{number}/g")), (b"other", True), "exchanged")
        for name in ("f2", "d"):
            os.unlink(f"{mnt}/from{number}/{name}")


# --- layers ---


def make_lower(root):
    for directory in ("keep", "gone", "opaque/inside", "moved/deep", "linked"):
        os.makedirs(f"{root}/{directory}")
        for name in ("a", "b"):
            write(f"{root}/{directory}/{name}", f"{directory} {name}".encode())
    os.symlink("keep/a", f"{root}/symlink")
    os.link(f"{root}/linked/a", f"{root}/linked/hard")
    os.setxattr(f"{root}/keep/a", "user.lower", b"value")
    os.chmod(f"{root}/keep/b", 0o4755)


def work(root):
    """Makes, changes, renames and removes, in the upper layer, what is in the lower one and what is not."""
    write(f"{root}/new", b"new")
    with open(f"{root}/keep/a", "ab") as file:
        file.write(b", appended")
    os.unlink(f"{root}/keep/b")
    os.unlink(f"{root}/symlink")
    for name in ("a", "b"):
        os.unlink(f"{root}/gone/{name}")
    os.rmdir(f"{root}/gone")
    subprocess.run(["rm", "-rf", f"{root}/opaque"], check=True)
    os.mkdir(f"{root}/opaque")
    write(f"{root}/opaque/only", b"only")
    os.rename(f"{root}/linked/b", f"{root}/keep/b")
    os.rename(f"{root}/keep/b", f"{root}/opaque/only")
    os.mkdir(f"{root}/made")
    os.rename(f"{root}/made", f"{root}/renamed")
    # A directory of the lower layer is moved by a copy, as mv(1) does, if the overlay answers EXDEV.
    subprocess.run(["mv", f"{root}/moved", f"{root}/renamed/moved"], check=True)
    renameat2(f"{root}/renamed", f"{root}/new", EXCHANGE)
    raises(errno.EEXIST, renameat2, f"{root}/new", f"{root}/renamed", NOREPLACE)
    os.setxattr(f"{root}/keep", "user.upper", b"value")
    os.chmod(f"{root}/keep", 0o711)
    os.chown(f"{root}/linked/a", NOBODY, NOBODY)
    fd = os.open(f"{root}/keep", os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"unnamed")
    os.link(f"/proc/self/fd/{fd}", f"{root}/keep/named", src_dir_fd=0, follow_symlinks=True)
    os.close(fd)
    os.truncate(f"{root}/linked/a", 3)
    os.statvfs(root)


def tree(root):
    """-> {path: what it is}, of what does not depend on the file system below."""
    found = {}
    for path, directories, files in os.walk(root):
        for name in directories + files:
            full = f"{path}/{name}"
            info = os.lstat(full)
            is_file = stat.S_ISREG(info.st_mode)
            names = [n for n in os.listxattr(full, follow_symlinks=False) if n.startswith(("user.", "trusted.overlay.opaque"))]
            xattrs = {n: os.getxattr(full, n, follow_symlinks=False) for n in names}
            content = hashlib.sha256(read(full)).hexdigest() if is_file else os.readlink(full) if os.path.islink(full) else ""
            links = 0 if stat.S_ISDIR(info.st_mode) else info.st_nlink
            # Whiteouts share an inode or not, as the kernel likes.
            links = 0 if whiteout(full) else links
            found[os.path.relpath(full, root)] = (info.st_mode, info.st_uid, info.st_rdev, links, content, xattrs)
    return found


@pytest.mark.root
def test_an_overlay_on_a_mount_does_what_one_on_tmpfs_does(store):
    mnt = store.up()
    with tmpfs(store.path("ram")) as ram:
        make_lower(store.directory("ram/lower"))
        trees = []
        for upper in (f"{ram}/layers", f"{mnt}/layers"):
            with overlay(store.path("merged"), [f"{ram}/lower"], upper) as merged:
                work(merged)
                trees.append((tree(merged), tree(f"{upper}/upper")))
                types = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(merged)}
                equal(types["keep"], True, "d_type in a listing")
        equal(trees[1][0], trees[0][0], "the merged tree")
        equal(trees[1][1], trees[0][1], "the upper layer")
        assert whiteout(f"{mnt}/layers/upper/symlink"), "no whiteout of a removed name"
        equal(os.getxattr(f"{mnt}/layers/upper/opaque", "trusted.overlay.opaque"), b"y", "the opaque directory")
        # The layers are whole for the next mount, and for a mount of the volume anew.
        for _ in range(2):
            with overlay(store.path("merged"), [f"{ram}/lower"], f"{mnt}/layers") as merged:
                equal(tree(merged), trees[0][0], "the merged tree, mounted again")
            mnt = store.remount()


def layer(files, removed=(), opaque=()):
    """A tar of a layer as images have it (OCI image-spec, layer.md)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        directories = {os.path.dirname(path) for path in (*files, *removed)} | set(opaque)
        for directory in sorted(d for d in directories if d):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        marks = {os.path.join(os.path.dirname(path), ".wh." + os.path.basename(path)): b"" for path in removed}
        marks |= {f"{directory}/.wh..wh..opq": b"" for directory in opaque}
        for path, content in {**files, **marks}.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def unpack(tar, directory, namespace):
    """As container tools unpack a layer for overlayfs: marks become whiteouts and opaque directories."""
    os.makedirs(directory)
    with tarfile.open(fileobj=io.BytesIO(tar)) as entries:
        # Owners and modes as they are; the `filter` of `extract` is newer than Debian 12's Python.
        entries.extraction_filter = lambda member, _: member
        for entry in entries:
            parent, name = os.path.split(f"{directory}/{entry.name}")
            if name == ".wh..wh..opq":
                os.setxattr(parent, f"{namespace}.overlay.opaque", b"y")
            elif name.startswith(".wh."):
                os.mknod(f"{parent}/{name[4:]}", stat.S_IFCHR, 0)
            else:
                entries.extract(entry, directory)


@pytest.mark.root
def test_layers_of_an_image_are_unpacked_on_a_mount(store):
    mnt = store.up()
    layers = [
        layer({"etc/a": b"one", "etc/b": b"one", "lib/x": b"one", "lib/y": b"one"}),
        layer({"etc/a": b"two", "lib/z": b"two"}, removed=["etc/b"], opaque=["lib"]),
        layer({"etc/c": b"three"}, removed=["lib/z"]),
    ]
    wanted = {"etc": None, "etc/a": b"two", "etc/c": b"three", "lib": None}
    for namespace, options in (("trusted", ""), ("user", ",userxattr")):
        base = f"{mnt}/{namespace}"
        lower = [f"{base}/{number}" for number in range(len(layers))]
        for tar, directory in zip(layers, lower):
            unpack(tar, directory, namespace)
        # All layers are on the mount, the top one first.
        with overlay(store.path("merged"), lower[::-1], f"{base}/top", options) as merged:
            names = {os.path.relpath(f"{path}/{name}", merged) for path, dirs, files in os.walk(merged) for name in dirs + files}
            found = {name: None if os.path.isdir(f"{merged}/{name}") else read(f"{merged}/{name}") for name in names}
            equal(found, wanted, f"the image with {namespace}.overlay.*")
            subprocess.run(["rm", "-rf", f"{merged}/etc"], check=True)
            os.mkdir(f"{merged}/etc")
            equal(os.listdir(f"{merged}/etc"), [], "what is in a directory that was made anew")
        equal(os.getxattr(f"{base}/top/upper/etc", f"{namespace}.overlay.opaque"), b"y", "the opaque directory")


# --- hard links ---


def lose_first_names(root):
    """Of files with two names, the name that was looked up first is removed or replaced. -> what the other one answers."""
    answers = {}
    for how in ("removed", "replaced"):
        first, second = f"{root}/{how}", f"{root}/{how}.link"
        write(first, b"kept")
        os.link(first, second)
        os.stat(second)
        if how == "removed":
            os.unlink(first)
        else:
            write(f"{root}/new", b"new")
            os.rename(f"{root}/new", first)
        try:
            answers[how] = read(second)
        except OSError as error:
            answers[how] = errno.errorcode[error.errno]
    return answers


def names_of(root):
    return {name: read(f"{root}/{name}") for name in os.listdir(root)}


KEPT = {"removed": b"kept", "replaced": b"kept"}
NAMES = {"removed.link": b"kept", "replaced": b"new", "replaced.link": b"kept"}


@pytest.mark.root
def test_hard_links_are_kept_by_fuse_overlayfs_and_in_an_image(store):
    mnt, lower = store.up(), store.directory("lower")
    for kind in (fuse_overlay, image_overlay):
        write(f"{lower}/below", b"below")
        upper = f"{mnt}/{kind.__name__}"
        with kind(store.path("merged"), [lower], upper) as merged:
            equal(lose_first_names(merged), KEPT, f"the other names, {kind.__name__}")
            os.unlink(f"{merged}/below")
            equal(names_of(merged), NAMES, f"the names, {kind.__name__}")
        with kind(store.path("merged"), [lower], upper) as merged:
            equal(names_of(merged), NAMES, f"the names when it is mounted again, {kind.__name__}")
    # The layers of one kind are those of the other.
    assert whiteout(f"{mnt}/fuse_overlay/upper/below"), "no whiteout of a removed name"
    with overlay(store.path("merged"), [lower], f"{mnt}/fuse_overlay") as merged:
        equal(names_of(merged), NAMES, "the layers of fuse-overlayfs in an overlay of the kernel")


@pytest.mark.root
def test_a_hard_link_on_an_overlay_of_the_kernel_may_be_stale(store):
    """docs/limits.md: the kernel looks an inode up by the name by which it was found first."""
    mnt, lower = store.up(), store.directory("lower")
    kept = store.mount("kept", options=["--cache", "60"])
    for upper in (f"{mnt}/asked", f"{kept}/cached"):
        with overlay(store.path("merged"), [lower], upper) as merged:
            equal(lose_first_names(merged), {"removed": "ESTALE", "replaced": "ESTALE"}, f"the other names, {upper}")
        equal(names_of(f"{upper}/upper"), NAMES, f"the upper layer, {upper}")
        with overlay(store.path("merged"), [lower], upper) as merged:
            equal(names_of(merged), NAMES, f"the overlay when it is mounted again, {upper}")
