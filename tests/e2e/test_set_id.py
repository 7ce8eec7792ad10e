"""Set-user-id and set-group-id bits, and who takes them: the measure is the local file system below E2E_DIR."""

import ctypes
import itertools
import os
import stat

import pytest

from harness import NOBODY, equal, write

LIBC = ctypes.CDLL(None, use_errno=True)
GROUP = 4711
PR_CAPBSET_DROP, CAP_FSETID = 24, 4


def write_in_place(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(b"g")


def append(path):
    with open(path, "ab", buffering=0) as file:
        file.write(b"g")


def fallocate(path):
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 8192)


def punch(path):
    with open(path, "r+b") as file:
        assert LIBC.fallocate(file.fileno(), 3, ctypes.c_long(0), ctypes.c_long(1)) == 0, ctypes.get_errno()


def copy(path):
    with open(path, "r+b") as file:
        fd = os.open(os.path.dirname(path) + "/source", os.O_RDONLY)
        os.copy_file_range(fd, file.fileno(), 3)
        os.close(fd)


def ftruncate(path):
    with open(path, "r+b") as file:
        os.ftruncate(file.fileno(), 1)


def truncate(path):
    os.truncate(path, 1)


def open_truncated(path):
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def change_group(path):
    os.chown(path, -1, os.getegid())


def change_mode(path):
    os.chmod(path, 0o6776)


CHANGES = [write_in_place, append, fallocate, punch, copy, ftruncate, truncate, open_truncated, change_group, change_mode]
# (uid, gid, other groups, keeps CAP_FSETID)
USERS = {
    "outsider": (NOBODY, NOBODY, [], True),
    "member": (NOBODY, GROUP, [], True),
    "member of one more group": (NOBODY, NOBODY, [7, GROUP], True),
    "root": (0, 0, [], True),
    "root without CAP_FSETID": (0, 0, [], False),
}
MODES = [0o6777, 0o6767, 0o4666, 0o2666, 0o2676, 0o2766]


def as_user(user, function, path):
    uid, gid, groups, keeps = USERS[user]
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            if not keeps:
                drop_fsetid()
            os.setresuid(uid, uid, uid)
            function(path)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the parent sees the status)
            print(f"{function.__name__} by {user} of {path}: {error}", flush=True)
            os._exit(1)
    equal(os.waitpid(child, 0)[1], 0, f"status of {function.__name__} by {user}")


def drop_fsetid():
    """capset(2): the effective, permitted and inheritable sets, 32 bits each, twice."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert LIBC.capget(header, data) == 0, "capget"
    for index in (0, 1):
        data[index] &= ~(1 << CAP_FSETID)
    assert LIBC.capset(header, data) == 0, "capset"


def modes_after(root):
    """-> {(change, user, mode): the mode afterwards}"""
    write(f"{root}/source", b"source")
    os.chmod(f"{root}/source", 0o644)
    found = {}
    for change, user, mode in itertools.product(CHANGES, USERS, MODES):
        path = f"{root}/file"
        write(path, b"0123456789")
        os.chown(path, NOBODY, GROUP)
        os.chmod(path, mode)
        as_user(user, change, path)
        found[change.__name__, user, oct(mode)] = oct(stat.S_IMODE(os.stat(path).st_mode))
        os.unlink(path)
    os.unlink(f"{root}/source")
    return found


@pytest.mark.root
@pytest.mark.limit(240)
def test_set_id_bits_go_as_on_a_local_file_system(store):
    local = store.directory("local")
    os.chmod(store.base, 0o755)
    os.chmod(os.path.dirname(store.base), 0o755)
    mnt = store.up()
    os.chmod(mnt, 0o777)
    wanted, found = modes_after(local), modes_after(mnt)
    different = {key: (found[key], wanted[key]) for key in wanted if found[key] != wanted[key]}
    equal(different, {}, "modes afterwards that are not those of the local file system (found, wanted)")
