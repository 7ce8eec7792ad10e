"""What users do wrong: each mistake gets an exit status of its kind and a message that names the fix."""

import os
import shutil
import subprocess

import pytest

from harness import HEKATE, NOBODY, equal, free_port, kill, read, wait_until, write

USAGE, INPUT, AWAY, CANNOT_CREATE, DENIED = 64, 66, 69, 73, 77


@pytest.mark.no_fuse
def test_init_refuses_what_cannot_be(store):
    full = store.directory("full")
    write(f"{full}/precious", b"p")
    one, two = store.bricks(2)
    store.refuses("init", "--brick", one, "--brick", full, words=["full is not empty"])
    store.refuses("init", "--brick", one, "--brick", one, words=["named twice"])
    store.refuses("init", "--brick", one, "--brick", f"{one}/", words=["named twice"])
    store.refuses("init", "--brick", one, "--brick", f"{store.base}/../{os.path.basename(store.base)}/brick0", words=["named twice"])
    os.makedirs(one, exist_ok=True)
    os.symlink(one, store.path("link"))
    store.refuses("init", "--brick", one, "--brick", store.path("link"), words=["named twice|same directory"])
    store.refuses("init", "--brick", one, "--brick", f"{one}/inside", words=["."])
    store.refuses("init", "--brick", one, "--volume", "v", "--copies", "2", words=["2 copies", "1 "])
    store.refuses("init", "--brick", one, "--volume", "v", "--copies", "0", words=["'0' for '--copies"])
    store.refuses("init", "--brick", one, "--brick", two, "--volume", "no/good", words=["no/good", "letters"])
    store.refuses("init", "--brick", one, "--pool", "", words=["name of a pool"])
    store.refuses("init", "--brick", one, "--journal", "1", words=["journal"], exits=[2, 64])
    store.refuses("init", words=["--brick"], exits=[2, 64])
    equal(read(f"{full}/precious"), b"p", "a file in a directory that was refused")
    store.init()


@pytest.mark.no_fuse
def test_init_twice(store):
    store.init()
    store.refuses("init", "--brick", store.path("other"), words=["holds a cluster already"])
    store.refuses("init", "--brick", store.path("brick0"), state=store.path("state2"), words=["not empty"])


@pytest.mark.no_fuse
def test_a_refused_init_leaves_nothing_in_the_way(store):
    one, two = store.bricks(2)
    store.refuses("init", "--brick", one, "--brick", two, "--volume", "../up", "--copies", "2", words=["../up"])
    store.refuses("init", "--brick", one, "--brick", two, "--volume", "bad name", "--copies", "2", words=["bad name"])
    store.init()


@pytest.mark.no_fuse
def test_no_server(store):
    for command in [["status"], ["stop"], ["pool", "list"], ["volume", "list"]]:
        store.refuses(*command, words=[f"hekate --state {store.state} serve --detach"], exits=[AWAY])
    store.refuses("mount", "v", store.directory("mnt"), words=[f"hekate --state {store.state} serve --detach"], exits=[AWAY])
    store.refuses("serve", "--detach", words=["no cluster", "hekate init"])
    store.refuses("serve", words=["no cluster", "hekate init"])
    store.init()
    store.refuses("status", words=[f"hekate --state {store.state} serve --detach"], exits=[AWAY])
    store.serve()
    store.kill_server()
    store.refuses("status", words=[f"hekate --state {store.state} serve --detach"], exits=[AWAY])
    store.serve()


@pytest.mark.no_fuse
def test_a_second_server(store):
    store.init()
    store.serve()
    for options in [["--detach"], []]:
        store.refuses("serve", *options, words=["(?i)running|in use|another"])
    equal(store.status()["pid"], store.server_pid, "the first one still answers")


@pytest.mark.no_fuse
def test_bricks_that_are_not_there(store):
    store.init(bricks=3)
    os.rename(store.path("brick1"), store.path("away"))
    store.refuses("serve", "--detach", words=["brick1", "(?i)is its disk mounted|does not exist|missing"])
    os.mkdir(store.path("brick1"))
    store.refuses("serve", "--detach", words=["brick1", "is its disk mounted"])
    os.rmdir(store.path("brick1"))
    # Another cluster's brick in its place.
    store.cli("init", "--brick", store.path("brick1"), "--journal", "32", state=store.path("state2"))
    store.refuses("serve", "--detach", words=["brick1", "(?i)cluster"])
    shutil.rmtree(store.path("brick1"))
    # Two disks exchanged.
    os.rename(store.path("brick0"), store.path("brick1"))
    os.rename(store.path("away"), store.path("brick0"))
    store.refuses("serve", "--detach", words=["brick0", "holds brick"])
    os.rename(store.path("brick0"), store.path("away"))
    os.rename(store.path("brick1"), store.path("brick0"))
    os.rename(store.path("away"), store.path("brick1"))
    store.serve()


def test_mounts_that_cannot_be(store):
    mnt = store.up()
    write(store.path("file"), b"")
    empty = store.directory("empty")
    store.refuses("mount", "nope", empty, words=["no volume called .?nope", "there are: v"])
    store.refuses("mount", "v", store.path("missing"), words=["does not exist", "mkdir -p"])
    store.refuses("mount", "v", store.path("file"), words=["not a directory"])
    store.refuses("mount", "v", mnt, words=["mounted at .* already"])
    store.refuses("mount", "v", empty, "--cache=-1", words=["cache"], exits=[2, 64])
    store.refuses("mount", "v", empty, "--cache=nan", words=["cache"], exits=[2, 64])
    store.refuses("mount", "../v", empty, words=["no volume called|cannot be the name|is no server"])
    store.refuses("umount", empty, words=["no Hekate volume is mounted"], exits=[INPUT])
    store.refuses("umount", "/proc", words=["no Hekate volume is mounted|not of Hekate"])
    equal(os.listdir(mnt), [], "the mount that was there")
    # A name with a blank is a name like others; mountinfo(5) shows it in octal.
    blank = store.mount("with blank")
    store.refuses("mount", "v", blank, words=["mounted at .* already"])
    store.umount("with blank")


def test_a_mount_point_may_be_written_in_any_way(store):
    mnt = store.up()
    store.umount()
    os.symlink(mnt, store.path("link"))
    os.chdir(store.base)
    for written in ["mnt", "mnt/", "./mnt", f"{mnt}/", f"{store.base}/../{os.path.basename(store.base)}/mnt", "link"]:
        for verb, mounted in [("mount", True), ("umount", False)]:
            words = [HEKATE, "--state", "state", verb, *(["v"] if mounted else []), written]
            done = subprocess.run(words, capture_output=True, text=True, timeout=10)
            equal((done.returncode, os.path.ismount(mnt)), (0, mounted), f"{verb} {written}: {done.stderr}")
    os.chdir("/")


def test_volumes_are_made_once_and_deleted_with_care(store):
    mnt = store.up()
    store.refuses("volume", "create", "v", words=["volume called v already"])
    store.refuses("volume", "create", "w", "--copies", "3", words=["3 copies", "2"])
    store.refuses("volume", "create", "w", "--copies", "0", words=["'0' for '--copies"], exits=[USAGE])
    store.refuses("volume", "create", "w", "--min-replicas", "0", words=["'0' for '--min-replicas"], exits=[USAGE])
    store.refuses("volume", "create", "w", "--copies", "2", "--min-replicas", "3", words=["3", "2 copies"])
    store.refuses("volume", "create", "w", "--pool", "nope", words=["no pool called nope", "default"])
    store.refuses("volume", "create", "a/b", words=["a/b", "letters"])
    store.refuses("volume", "show", "nope", words=["no volume called nope"])
    store.refuses("pool", "show", "nope", words=["no pool called nope", "default"])
    store.refuses("volume", "delete", "v", words=["--confirm v"], exits=[USAGE])
    store.refuses("volume", "delete", "v", "--confirm", "w", words=["--confirm v"], exits=[USAGE])
    store.refuses("volume", "delete", "nope", "--confirm", "nope", words=["no volume called nope", "there are: v"])
    refused = store.refuses("volume", "delete", "nope", words=["no volume called nope; there are: v"], exits=[INPUT])
    assert "--confirm" not in refused.err, f"a confirmation is asked for of what is not there: {refused.err}"
    store.refuses("volume", "delete", "v", "--confirm", "v", words=["in use", "umount"])
    write(f"{mnt}/f", b"f" * 100_000)
    equal(len(read(f"{mnt}/f")), 100_000, "the volume that was not deleted")
    store.umount()
    wait_until(lambda: store.try_cli("volume", "delete", "v", "--confirm", "v").exit == 0, "deleted after its session ended", 10)
    wait_until(lambda: store.cli("--json", "volume", "list").json() == [], "gone in the background")
    store.refuses("mount", "v", store.path("mnt"), words=["no volume called"])
    store.cli("volume", "create", "v")
    store.mount()
    equal(os.listdir(mnt), [], "a new volume of the old name")


@pytest.mark.no_fuse
def test_options_that_do_not_exist(store):
    for arguments in [["frobnicate"], ["mount"], ["serve", "--nope"], ["volume"], ["init", "--copies", "x"]]:
        outcome = store.try_cli(*arguments)
        assert outcome.exit in (2, USAGE), f"{arguments}: exit {outcome.exit}"
        assert "--help" in outcome.err, outcome.text
    for arguments in [["--help"], ["mount", "--help"], ["volume", "create", "--help"], ["--version"]]:
        equal(store.try_cli(*arguments).exit, 0, f"exit of {arguments}")


@pytest.mark.no_fuse
def test_servers_that_cannot_be_reached(store):
    store.init()
    store.refuses("status", server="tcp:127.0.0.1:1", words=["127.0.0.1:1"], exits=[AWAY])
    store.refuses("status", server="tcp:192.0.2.1:7000", words=["192.0.2.1:7000"], exits=[AWAY])
    store.refuses("status", server="tcp:localhost", words=["ADDRESS:PORT"], exits=[USAGE])
    store.refuses("status", server="http://x", words=["unix:PATH"], exits=[USAGE])
    store.refuses("status", server="unix:/nonexistent/socket", words=["/nonexistent/socket"], exits=[AWAY])


@pytest.mark.no_fuse
def test_addresses_are_taken_as_people_write_them(store):
    store.init()
    port = free_port()
    for wrong, words in [
        (f"::1:{port}", [r"in brackets", rf"\[::1\]:{port}"]),
        ("localhost", ["has no port", "ADDRESS:PORT"]),
        ("127.0.0.1:port", ["port", "ADDRESS:PORT"]),
        (f"no-such-host.invalid:{port}", ["no-such-host.invalid is not known"]),
        ("127.0.0.1:0", ["needs a fixed port"]),
    ]:
        for command in (["serve", "--listen", wrong], ["coordinator", "--listen", wrong]):
            state = store.path("c") if command[0] == "coordinator" else None
            store.refuses(*command, words=words, exits=[USAGE], state=state)
    store.refuses("serve", "--metrics", f"::1:{port}", words=["in brackets"], exits=[USAGE])
    store.serve("--listen", f"localhost:{port}")
    for server in (f"127.0.0.1:{port}", f"localhost:{port}", f"tcp:localhost:{port}", f"{store.state}/server.sock"):
        equal(store.cli("--json", "status", server=server).json()["pid"], store.server_pid, f"--server {server}")
    store.refuses("status", server=f"::1:{port}", words=["in brackets", rf"\[::1\]:{port}"], exits=[USAGE])
    second = store.join("second")
    equal(second["server"], 2, "a server that joined by a name")
    store.serve_other("second")


@pytest.mark.no_fuse
def test_who_finds_no_server_is_told_what_to_do(store):
    store.init()
    serve = f"hekate --state {store.state} serve --detach"
    store.refuses("status", words=[serve], exits=[AWAY])
    equal(subprocess.run(serve.replace("hekate", HEKATE, 1).split(), capture_output=True).returncode, 0, "what was said works")
    store.stop()
    store.coordinate(f"127.0.0.1:{free_port()}")
    kill(store.coordinator_pid)
    store.coordinator_pid = None
    store.refuses("status", state=store.path("c"), words=[f"hekate --state {store.path('c')} coordinator --detach"], exits=[AWAY])
    store.refuses("status", state=store.path("none"), words=["no server's state", "init --brick DIR", "--server"], exits=[AWAY])
    refused = store.refuses("status", server="127.0.0.1:1", words=["--server"], exits=[AWAY])
    assert "serve --detach" not in refused.err, f"this machine is not where the server is: {refused.err}"


@pytest.mark.no_fuse
def test_a_variable_for_the_state_is_no_required_option(store):
    store.init()
    environment = dict(os.environ, HEKATE_STATE=store.state, HEKATE_SERVER=f"unix:{store.state}/server.sock")
    run = lambda *words: subprocess.run([HEKATE, *words], capture_output=True, text=True, env=environment)
    for words in (["volume", "create"], ["mount"], ["where"], ["status", "--nope"]):
        shown = run(*words).stderr
        assert "Usage: " in shown and "--state" not in shown and "--server" not in shown, shown
    store.serve()
    equal(run("status").returncode, 0, "status with the variables")
    environment["HEKATE_SERVER"] = ""
    equal(run("status").returncode, 0, "a variable without a value is none")
    assert "HEKATE_STATE" in run("--help").stdout, "help names the variable"


def test_what_is_mounted_is_found_by_its_path_and_its_volume(store):
    mnt = store.up()
    os.makedirs(f"{mnt}/a/b")
    write(f"{mnt}/a/b/f", b"f")
    os.symlink("f", f"{mnt}/a/b/link")
    os.symlink(f"{mnt}/a", store.path("to-a"))
    where = lambda place: store.cli("--json", "where", place).json()
    for path, place in [(f"{mnt}/a/b/f", "v:/a/b/f"), (mnt, "v:/"), (f"{mnt}/", "v:/"), (f"{mnt}/a/b/link", "v:/a/b/link"), (f"{store.base}/to-a/b/f", "v:/a/b/f")]:
        equal(where(path)["inode"], where(place)["inode"], f"where {path}")
    store.refuses("where", f"{mnt}/nothing", words=[f"{mnt}/nothing", "no such"], exits=[INPUT])
    store.refuses("where", store.path("state"), words=["not below a mount", f"v at {mnt}", "VOLUME:/PATH"], exits=[USAGE])
    store.refuses("where", "a/b", words=["VOLUME:/PATH", "below a mount"], exits=[USAGE])
    store.refuses("umount", "w", words=["no volume of the name w", f"v at {mnt}"], exits=[INPUT])
    two = store.mount("two")
    store.refuses("umount", "v", words=[mnt, two, "name one"], exits=[USAGE])
    store.umount("two")
    # Other stores of this machine may have a volume of that name mounted.
    source = f"unix:{store.state}/server.sock/v"
    store.umount()
    store.mount(volume=source)
    store.cli("umount", source)
    del store.mount_pids["mnt"]
    equal(os.path.ismount(mnt), False, "mounted")


@pytest.mark.no_fuse
def test_a_new_volume_on_two_servers_is_served_when_it_is_made(store):
    address = f"127.0.0.1:{free_port()}"
    store.init(bricks=1, volume=None)
    store.serve("--listen", address)
    store.join("second")
    store.serve_other("second", "--listen", f"127.0.0.1:{free_port()}")
    wait_until(lambda: all(row["state"] == "online" for row in store.status()["servers"]), "both answer")
    store.cli("volume", "create", "both", "--copies", "2")
    told = store.status()
    equal((told["health"], told["waiting_partitions"]), ("good", []), "right after it was made")


@pytest.mark.no_fuse
def test_values_that_are_out_of_range_are_named(store):
    one = store.path("brick0")
    for words, option in [
        (["init", "--brick", one, "--journal", "-5"], "--journal"),
        (["init", "--brick", one, "--copies", "-1"], "--copies"),
        (["serve", "--slow-op", "-1"], "--slow-op"),
        (["volume", "create", "v", "--spread", "-1"], "--spread"),
        (["volume", "create", "v", "--allow-uid", "-1"], "--allow-uid"),
        (["volume", "create", "v", "--allow-uid", "nobody"], "id -u NAME"),
        (["volume", "create", "v", "--owner", "4294967296"], "--owner"),
        (["where", "v:/", "--offset", "-1"], "--offset"),
        (["status", "--watch", "-1"], "--watch"),
        (["status", "--watch", "0"], "--watch"),
    ]:
        value = words[-1]
        refused = store.refuses(*words, words=[f"invalid value '{value}' for '", option], exits=[USAGE])
        equal(refused.out, "", f"standard output of {words}")
        told = store.try_cli("--json", *words).json()
        equal(told["exit"], USAGE, f"{words} in JSON")
        assert f"'{value}'" in told["error"], told
    store.refuses(words=["From nothing to a mounted volume"], exits=[USAGE])
    shown = store.try_cli()
    equal(shown.exit, USAGE, "exit without a command")
    assert "Examples" in shown.err or "From nothing to a mounted volume" in shown.err, shown.err
    assert "mount-helper" not in shown.err, f"what is for mount(8) is shown: {shown.err}"


@pytest.mark.no_fuse
def test_files_where_directories_are_meant(store):
    write(store.path("file"), b"f")
    is_file = ["file is a file", "directory of its own"]
    store.refuses("init", "--brick", store.path("file"), words=is_file, exits=[USAGE])
    store.refuses("init", "--brick", f"{store.path('file')}/below", words=["is a file", "directory of its own"], exits=[USAGE])
    store.refuses("brick", "inspect", store.path("file"), words=["file is not a brick"], exits=[USAGE])
    store.init()
    store.serve()
    store.refuses("brick", "add", store.path("file"), words=is_file, exits=[USAGE])
    store.refuses("volume", "create", "w", "--pool", "", words=['"" cannot be the name of a pool'], exits=[USAGE])
    store.refuses("partition", "show", "9/9", words=["no partition 9/9", "hekate partition list"])
    store.refuses("serve", words=["in use", "hekate stop"], exits=[AWAY])
    store.refuses("debug", "bundle", store.path("file"), words=["file exists"], exits=[CANNOT_CREATE])
    is_none = ["file is no credential"]
    os.chmod(store.path("file"), 0o600)
    store.refuses("status", server="127.0.0.1:1", credential=store.path("file"), words=is_none, exits=[USAGE])
    store.refuses("status", server="127.0.0.1:1", credential=store.path("none"), words=["read the credential", "none"])
    said = store.cli("brick", "add", store.path("third"), "--journal", "32").out
    assert f"hekate --state {store.state} stop && hekate --state {store.state} serve --detach" in said, said
    assert "may also use it: root alone" in store.cli("volume", "show", "v").out
    store.refuses("mount", "-o", "help", "v", store.path("m"), words=["the options are", "allow_suid", "default_permissions", "cache=SECONDS"])


@pytest.mark.root
@pytest.mark.no_fuse
def test_another_user_is_told_what_to_do(store):
    store.init()
    store.serve()
    os.chmod(store.base, 0o711)
    program = store.path("hekate-for-all")
    shutil.copy(HEKATE, program)
    os.chmod(program, 0o755)
    for command in (["status"], ["volume", "list"], ["stop"], ["brick", "list"]):
        words = [f"user {NOBODY} has no access to {store.state}", "--server"]
        refused = store.refuses(*command, words=words, exits=[DENIED], uid=NOBODY, program=program)
        assert "init --brick" not in refused.err, f"a server runs there: {refused.err}"
