"""Names and directories that other processes and other mounts remove at the same moment: what system calls answer then.

The measure is a local file system, where these exercises answer ENOENT (or find what was there), and never ESTALE, ENOTDIR
or EIO. The same exercises run on the file system below `E2E_DIR` first, so that the sets of errors are not of our making.
"""

import ctypes
import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import traceback

import pytest

from harness import equal, raises, write

# What a walk may answer for a name that is removed at the same moment.
GONE = {"ENOENT"}


class Answers:
    """Which errors the calls of several threads answered: {(call, errno's name)}."""

    def __init__(self):
        self.found, self.lock = set(), threading.Lock()
        self.calls = 0

    def of(self, call, function, *arguments, **named):
        """Calls. -> what it returns, or None after an error, which is noted."""
        try:
            self.calls += 1
            return function(*arguments, **named)
        except OSError as error:
            with self.lock:
                self.found.add((call, errno.errorcode[error.errno]))
            return None


def grow(root, depth=3, width=4):
    """A tree of directories with files, symbolic links and FIFOs; what is removed at the same moment is left out."""
    try:
        for number in range(width):
            write(f"{root}/f{number}", b"bytes")
        os.symlink("f0", f"{root}/link")
        os.mkfifo(f"{root}/fifo")
        for number in range(width if depth else 0):
            os.mkdir(f"{root}/d{number}")
            grow(f"{root}/d{number}", depth - 1, width - 1)
    except FileNotFoundError:
        pass


def walk(answers, path):
    """As find, ls -lR and du do: through descriptors of directories, with fstat, getdents, fstatat, open and read."""
    fd = answers.of("open", os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if fd is None:
        return
    try:
        assert stat.S_ISDIR(answers.of("fstat", os.fstat, fd).st_mode), path
        answers.of("listxattr", os.listxattr, fd)
        for name in answers.of("getdents", os.listdir, fd) or []:
            found = answers.of("fstatat", os.stat, name, dir_fd=fd, follow_symlinks=False)
            answers.of("getxattr", lambda: os.listxattr(f"{path}/{name}", follow_symlinks=False))
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                walk(answers, f"{path}/{name}")
            elif stat.S_ISLNK(found.st_mode):
                answers.of("readlink", os.readlink, name, dir_fd=fd)
            elif stat.S_ISREG(found.st_mode):
                file = answers.of("openat", os.open, name, os.O_RDONLY, dir_fd=fd)
                if file is not None:
                    answers.of("read", os.read, file, 10)
                    os.close(file)
    finally:
        os.close(fd)


def remove(answers, path):
    """As rm -rf does; what somebody else has removed is passed over."""
    fd = answers.of("open", os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if fd is not None:
        for name in answers.of("getdents", os.listdir, fd) or []:
            found = answers.of("fstatat", os.stat, name, dir_fd=fd, follow_symlinks=False)
            if found is not None and stat.S_ISDIR(found.st_mode):
                remove(answers, f"{path}/{name}")
            elif found is not None:
                answers.of("unlink", os.unlink, name, dir_fd=fd)
        os.close(fd)
    answers.of("rmdir", os.rmdir, path)


def make(answers, root, seed):
    """Makes, renames and links names in directories that are being removed."""
    chance = random.Random(seed)
    for number in range(60):
        place = f"{root}/" + "/".join(f"d{chance.randrange(3)}" for _ in range(chance.randrange(1, 4)))
        answers.of("mkdir", os.mkdir, f"{place}/made{number}")
        answers.of("create", lambda: os.close(os.open(f"{place}/new{number}", os.O_CREAT | os.O_WRONLY)))
        answers.of("rename", os.rename, f"{place}/new{number}", f"{root}/d{chance.randrange(3)}/moved{number}")
        answers.of("link", os.link, f"{place}/f0", f"{place}/linked{number}")
        answers.of("chmod", os.chmod, place, 0o755)
        answers.of("truncate", os.truncate, f"{place}/f1", 3)


def at_once(*jobs):
    """Runs functions in threads; raises what one of them raises."""
    failed = []

    def run(job):
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if failed:
        raise failed[0]


def exercise(roots, rounds, with_makers):
    """Removes, walks and (`with_makers`) makes at once in one tree that is seen under each of `roots`."""
    answers = Answers()
    for turn in range(rounds):
        top = f"tree{turn}"
        os.mkdir(f"{roots[0]}/{top}")
        grow(f"{roots[0]}/{top}")
        ways = [f"{root}/{top}" for root in roots]
        jobs = [lambda way=way: walk(answers, way) for way in ways * 2]
        jobs += [lambda way=way: remove(answers, way) for way in ways]
        if with_makers:
            jobs += [lambda way=way: make(answers, way, turn) for way in ways]
        else:
            jobs += [lambda: remove(answers, ways[0])]
        at_once(*jobs)
        for way in ways:
            shutil.rmtree(way, ignore_errors=True)
            assert not os.path.lexists(way), f"{way} was left"
    return answers


def judge(store, roots, rounds=4):
    local = store.directory("local")
    for with_makers in (False, True):
        wanted = exercise([local], rounds, with_makers)
        found = exercise(roots, rounds, with_makers)
        # A directory may be seen to be filled again while it is being removed, if somebody makes names in it.
        may = {(call, error) for call, _ in wanted.found | found.found for error in GONE}
        may |= {("rmdir", "ENOTEMPTY"), ("mkdir", "EEXIST"), ("link", "EEXIST")} if with_makers else set()
        equal(wanted.found - may, set(), "errors of the local file system beyond those that are allowed")
        equal(found.found - may, set(), f"errors that a local file system does not answer (makers: {with_makers})")


@pytest.mark.limit(150)
def test_a_tree_is_removed_and_walked_at_once(store):
    judge(store, [store.up()])


@pytest.mark.limit(150)
def test_a_tree_is_removed_and_walked_at_once_on_two_mounts(store):
    judge(store, [store.up(), store.mount("mnt2")])


@pytest.mark.limit(150)
def test_a_tree_is_removed_and_walked_at_once_on_mounts_that_cache(store):
    store.up()
    judge(store, [store.mount(f"cached{number}", options=("--cache", "1")) for number in range(2)], rounds=2)


def test_a_tree_is_removed_by_rm_on_two_mounts_at_once(store):
    mounts = [store.up(), store.mount("mnt2")]
    for _ in range(3):
        os.mkdir(f"{mounts[0]}/tree")
        grow(f"{mounts[0]}/tree")
        running = [subprocess.Popen(["rm", "-rf", f"{mount}/tree"], stderr=subprocess.PIPE, text=True) for mount in mounts]
        errors = [process.communicate()[1] for process in running]
        equal(errors, ["", ""], "what rm says")
        equal([os.listdir(mount) for mount in mounts], [[], []], "what is left")


def test_a_removed_directory_answers_as_on_a_local_file_system(store):
    """`by`: the mount that removes; `user`: the one whose process uses it. The first pair is the local file system."""
    local = store.directory("local")
    mnt, other = store.up(), store.mount("mnt2")
    for user, by in ((local, local), (mnt, mnt), (mnt, other)):
        os.mkdir(f"{user}/d")
        write(f"{user}/f", b"")
        os.chmod(f"{user}/d", 0o751)
        at_once(lambda: use_removed(user, by))
        equal(sorted(os.listdir(user)), ["f"], "names afterwards")
        os.unlink(f"{user}/f")


def getdents(fd):
    """getdents64(2): readdir(3) and so `os.listdir` takes its ENOENT for the end of the directory."""
    buffer = ctypes.create_string_buffer(4096)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(217 if os.uname().machine == "x86_64" else 61, fd, buffer, len(buffer)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def use_removed(user, by):
    fd = os.open(f"{user}/d", os.O_RDONLY | os.O_DIRECTORY)
    inode = os.fstat(fd).st_ino
    child = os.fork()
    if child == 0:
        work_in_removed(user, by)
    equal(os.waitpid(child, 0)[1], 0, f"status of who worked in {user}/d")
    found = os.fstat(fd)
    equal((stat.S_IMODE(found.st_mode), found.st_nlink, found.st_ino), (0o751, 0, inode), "fstat of a removed directory")
    raises(errno.ENOENT, getdents, fd)
    raises(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    raises(errno.ENOENT, os.open, "x", os.O_RDONLY, dir_fd=fd)
    raises(errno.ENOENT, os.mkdir, "x", dir_fd=fd)
    raises(errno.ENOENT, os.stat, "x", dir_fd=fd)
    raises(errno.ENOENT, os.symlink, "y", "x", dir_fd=fd)
    raises(errno.ENOENT, os.rename, f"{user}/f", "x", dst_dir_fd=fd)
    raises(errno.ENOENT, os.link, f"{user}/f", "x", dst_dir_fd=fd)
    raises(errno.ENOENT, os.unlink, "x", dir_fd=fd)
    raises(errno.ENOENT, os.rmdir, "x", dir_fd=fd)
    os.fsync(fd)
    os.fchmod(fd, 0o700)
    equal(stat.S_IMODE(os.fstat(fd).st_mode), 0o700, "mode that was set")
    os.close(fd)
    raises(errno.ENOENT, os.stat, f"{user}/d")
    raises(errno.ENOENT, os.rmdir, f"{user}/d")


def work_in_removed(user, by):
    """A process whose working directory another one removes."""
    status = 1
    try:
        os.chdir(f"{user}/d")
        os.rmdir(f"{by}/d")
        equal(os.stat(".").st_nlink, 0, "links of the working directory")
        os.chdir(".")
        if user == by:
            raises(errno.ENOENT, os.getcwd)
        raises(errno.ENOENT, os.mkdir, "x")
        raises(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY)
        raises(errno.ENOENT, os.stat, "x")
        equal(os.listdir("."), [], "names")
        os.chdir("..")
        equal(sorted(os.listdir(".")), ["f"], "names of the parent")
        status = 0
    except BaseException:  # noqa: BLE001 (the parent sees the status)
        traceback.print_exc()
    finally:
        os._exit(status)


@pytest.mark.limit(150)
def test_a_name_that_is_replaced_all_the_time_is_always_found(store):
    """rename(2): there is no moment at which the new name leads nowhere."""
    for mounts in on_one_and_two(store):
        jobs = [lambda number=number: replace(mounts[0], number) for number in range(3)]
        write(f"{mounts[0]}/name", b"")
        equal(use_beside(mounts, jobs), set(), f"errors of who uses the name on {mounts}")


@pytest.mark.limit(150)
def test_a_name_that_comes_and_goes_is_found_or_not(store):
    for mounts in on_one_and_two(store):
        jobs = [lambda: come_and_go(mounts[0])] * 2
        found = use_beside(mounts, jobs)
        equal({error for _, error in found} - {"ENOENT"}, set(), f"errors of who uses the name on {mounts}: {found}")


def on_one_and_two(store):
    """Mounts on which an exercise runs: the local file system's, one, and two of a volume."""
    yield [store.directory("local")]
    mnt = store.up()
    yield [mnt]
    yield [mnt, store.mount("mnt2")]


def replace(mount, number):
    for _ in range(300):
        write(f"{mount}/new{number}", b"bytes")
        os.rename(f"{mount}/new{number}", f"{mount}/name")


def come_and_go(mount):
    for _ in range(300):
        os.close(os.open(f"{mount}/name", os.O_WRONLY | os.O_CREAT, 0o644))
        try:
            os.unlink(f"{mount}/name")
        except FileNotFoundError:
            pass


def use_beside(mounts, jobs):
    """Uses a name on all mounts, by processes of their own, until the jobs, in others, have ended. -> errors by call."""
    users = [spawn(lambda report, mount=mount: use(mount, report)) for mount in mounts * 2]
    changing = [spawn(lambda report, job=job: job()) for job in jobs]
    for pid, _ in changing:
        equal(os.waitpid(pid, 0)[1], 0, "status of who changes the name")
    found = set()
    for pid, report in users:
        os.kill(pid, signal.SIGTERM)
        equal(os.waitpid(pid, 0)[1], 0, "status of who uses the name")
        with open(report) as file:
            found |= {tuple(line.split()) for line in file}
        os.unlink(report)
    return found


def spawn(job):
    """Runs a function in a process. -> its pid, and the path that the function is given to report at."""
    handle, report = tempfile.mkstemp()
    os.close(handle)
    pid = os.fork()
    if pid == 0:
        try:
            job(report)
            os._exit(0)
        except BaseException:  # noqa: BLE001 (the parent sees the status)
            traceback.print_exc()
            os._exit(1)
    return pid, report


def use(mount, report):
    answers, ended = Answers(), []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    while not ended:
        answers.of("stat", os.stat, f"{mount}/name")
        answers.of("chmod", os.chmod, f"{mount}/name", 0o644)
        answers.of("open", lambda: os.close(os.open(f"{mount}/name", os.O_RDONLY)))
        answers.of("listxattr", os.listxattr, f"{mount}/name")
        answers.of("truncate", os.truncate, f"{mount}/name", 1)
    with open(report, "w") as file:
        file.writelines(f"{call} {error}\n" for call, error in answers.found)
