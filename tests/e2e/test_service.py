"""What a system runs Hekate with: the service manager, man(1), the completion of a shell, directories without --state."""

import fcntl
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import termios

import pytest

import harness
from harness import NOBODY, Skip, equal, free_port, is_gone, kill, wait_until
from helper_install import own_namespace, run, works
from test_users import program_for_all

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Manager:
    """What a service manager hears at NOTIFY_SOCKET."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.environment = {"NOTIFY_SOCKET": address.replace("\0", "@")}

    def hears(self, what, limit_s=20):
        """Everything up to a message with this assignment."""
        self.socket.settimeout(limit_s * harness.PATIENCE)
        heard = []
        while not heard or what not in heard[-1].split("\n"):
            heard.append(self.socket.recv(4096).decode())
        return heard


def started(store, *words, environment={}, **named):
    """A command that runs in the foreground."""
    whole = dict(os.environ, **environment)
    return subprocess.Popen([harness.HEKATE, "--state", store.state, *words], env=whole, cwd="/", stdin=subprocess.DEVNULL, **named)


def told_in_order(store, address):
    manager = Manager(address)
    server = started(store, "serve", environment=manager.environment, stderr=subprocess.PIPE, text=True)
    heard = manager.hears("READY=1")
    assert any(text.startswith("STATUS=opening brick ") for text in heard), heard
    equal(heard[-1], f"READY=1\nSTATUS=serving at {store.state}/server.sock", "the last word before it serves")
    equal(store.status()["pid"], server.pid, "who answers once it is ready")
    server.send_signal(signal.SIGTERM)
    assert manager.hears("STOPPING=1")[-1].startswith("STOPPING=1\nSTATUS="), "what it says when it stops"
    equal(server.wait(timeout=30), 0, "exit status")
    return server.stderr.read()


@pytest.mark.no_fuse
def test_a_server_tells_the_service_manager(store):
    store.init()
    said = told_in_order(store, store.path("notify"))
    assert "hekate-serve: serving at" in said and "<6>" not in said, said
    told_in_order(store, f"\0hekate-{os.getpid()}")
    # A manager that is not there is no reason not to serve.
    server = started(store, "serve", environment={"NOTIFY_SOCKET": store.path("nobody")}, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: store.try_cli("status").exit == 0, "it serves")
    server.send_signal(signal.SIGTERM)
    assert "cannot notify the service manager" in server.communicate(timeout=30)[1]


@pytest.mark.no_fuse
def test_a_server_that_cannot_start_tells_why(store):
    store.init()
    shutil.move(store.path("brick0"), store.path("elsewhere"))
    manager = Manager(store.path("notify"))
    server = started(store, "serve", environment=manager.environment, stderr=subprocess.DEVNULL)
    equal(server.wait(timeout=30) in range(64, 79), True, "refused")
    manager.socket.settimeout(1)
    heard = []
    try:
        while True:
            heard.append(manager.socket.recv(4096).decode())
    except TimeoutError:
        pass
    assert "brick0" in heard[-1] and not any("READY" in text for text in heard), heard
    shutil.move(store.path("elsewhere"), store.path("brick0"))


def test_a_mount_tells_the_service_manager(store):
    store.init()
    store.serve()
    manager = Manager(store.path("notify"))
    mnt = store.directory("mnt")
    mount = started(store, "mount", "--foreground", "v", mnt, environment=manager.environment)
    equal(manager.hears("READY=1")[-1], f"READY=1\nSTATUS=v is mounted at {mnt}", "what it says")
    equal(os.path.ismount(mnt), True, "mounted")
    mount.send_signal(signal.SIGTERM)
    equal(mount.wait(timeout=30), 0, "exit status")


def test_a_hang_up_ends_each_process_in_order(store):
    """SIGHUP does as SIGTERM: in the foreground, in the background, and when the terminal is closed."""
    store.coordinate(f"127.0.0.1:{free_port()}")
    os.kill(store.coordinator_pid, signal.SIGHUP)
    wait_until(lambda: not os.path.exists(f"{store.path('c')}/server.sock"), "the coordinator has removed its socket")
    wait_until(lambda: is_gone(store.coordinator_pid), "the coordinator has ended")
    store.coordinator_pid = None

    mnt = store.up()
    mount, server = store.mount_pids.pop("mnt"), store.server_pid
    equal([os.getsid(pid) for pid in (mount, server)], [mount, server], "each is the leader of a session of its own")
    os.kill(mount, signal.SIGHUP)
    wait_until(lambda: is_gone(mount), "the mount's process has ended")
    equal(os.path.ismount(mnt), False, "mounted after a hang-up")
    equal(store.status()["volumes"][0]["sessions"], 0, "sessions after a hang-up")
    os.kill(server, signal.SIGHUP)
    wait_until(lambda: is_gone(server), "the server has ended")
    equal(os.path.exists(f"{store.state}/server.sock"), False, "its socket is there")
    store.server_pid = None

    terminal, line = os.openpty()
    take = lambda: fcntl.ioctl(line, termios.TIOCSCTTY, 0)
    server = started(store, "serve", start_new_session=True, preexec_fn=take, stderr=subprocess.PIPE, text=True)
    os.close(line)
    wait_until(lambda: store.try_cli("status").exit == 0, "it serves")
    os.close(terminal)
    said = server.communicate(timeout=30)[1]
    equal((server.returncode, said.splitlines()[-1]), (0, "hekate-serve: stopping"), "after its terminal was closed")


@pytest.mark.no_fuse
def test_a_hang_up_that_is_ignored_at_the_start_stays_ignored(store):
    store.init()
    server = started(store, "serve", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), stderr=subprocess.DEVNULL)
    wait_until(lambda: store.try_cli("status").exit == 0, "it serves")
    server.send_signal(signal.SIGHUP)
    equal(store.status()["pid"], server.pid, "who answers after the signal, as with nohup(1)")
    server.send_signal(signal.SIGTERM)
    equal(server.wait(timeout=30), 0, "exit status")


@pytest.mark.no_fuse
def test_lines_for_the_journal_have_priorities(store):
    store.init()
    with tempfile.TemporaryFile() as journal:
        found = os.fstat(journal.fileno())
        environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        server = started(store, "serve", environment=environment, stderr=journal)
        wait_until(lambda: store.try_cli("status").exit == 0, "it serves")
        server.send_signal(signal.SIGTERM)
        equal(server.wait(timeout=30), 0, "exit status")
        shutil.move(store.path("brick0"), store.path("elsewhere"))
        equal(started(store, "serve", environment=environment, stderr=journal).wait(timeout=30) > 0, True, "refused")
        shutil.move(store.path("elsewhere"), store.path("brick0"))
        journal.seek(0)
        lines = journal.read().decode().splitlines()
    equal([line for line in lines if not re.match(r"<[2-6]>[^<]", line)], [], "lines without a priority")
    assert f"<6>serving at {store.state}/server.sock" in lines and lines[-1].startswith("<3>"), lines
    # Its own log file, as --detach has it, is no journal.
    server = started(store, "serve", environment=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: store.try_cli("status").exit == 0, "it serves")
    server.send_signal(signal.SIGTERM)
    assert "<6>" not in server.communicate(timeout=30)[1]


def commands(*words):
    """What help lists, and what is below each."""
    text = works(harness.HEKATE, *words, "--help")
    listed = re.search(r"\nCommands:\n(.*?)\n\n", text, re.S)
    names = re.findall(r"^  (\S+)", listed[1], re.M) if listed else []
    return [list(words)] + [below for name in names if name != "help" for below in commands(*words, name)]


@pytest.mark.no_fuse
def test_each_command_has_a_man_page(store):
    works(harness.HEKATE, "man", store.path("man"))
    wanted = {"-".join(["hekate", *words]) + ".1" for words in commands()}
    assert "hekate-volume-create.1" in wanted, wanted
    equal(set(os.listdir(store.path("man/man1"))), wanted, "pages")
    equal(os.listdir(store.path("man/man8")), ["mount.hekate.8"], "pages of section 8")
    if not shutil.which("man") or not shutil.which("groff"):
        raise Skip("needs man and groff to read the pages")
    for page in glob.glob(store.path("man/man?/*")):
        read = run("man", "--warnings", "-E", "UTF-8", "-l", page)
        equal((read.returncode, read.stderr), (0, ""), page)
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"]:
            assert re.search(rf"^{section}$", re.sub(".\b", "", read.stdout), re.M), f"{page} has no {section}"


def completed(store, *words):
    """What bash offers for the last word."""
    script = f"""
        source {store.path('completion')}
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _hekate "$1" "${{!#}}" "${{@: -2:1}}" && printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return works("bash", "--norc", "-c", script, "bash", *words).split()


@pytest.mark.no_fuse
def test_bash_completes_commands_and_options(store):
    with open(store.path("completion"), "w") as file:
        file.write(works(harness.HEKATE, "completion", "bash"))
    works("bash", "-n", store.path("completion"))
    equal(completed(store, "hekate", "vol"), ["volume"], "hekate vol")
    equal(completed(store, "hekate", "volume", "cr"), ["create"], "hekate volume cr")
    offered = completed(store, "hekate", "volume", "create", "--")
    assert {"--pool", "--copies", "--owner", "--json"} <= set(offered), offered
    equal(completed(store, "hekate", "volume", "create", "--domain", ""), ["disk", "server"], "values of --domain")
    assert "mount" in completed(store, "hekate", "mount") and "mount-helper" not in completed(store, "hekate", "m")
    equal(completed(store, "hekate", "completion", "z"), ["zsh"], "hekate completion z")


@pytest.mark.no_fuse
def test_other_shells_take_their_completion(store):
    parsers = {shell: words for shell, words in {"zsh": ["zsh", "-n"], "fish": ["fish", "-n"]}.items() if shutil.which(shell)}
    for shell in ["zsh", "fish"]:
        with open(store.path(shell), "w") as file:
            file.write(works(harness.HEKATE, "completion", shell))
    refused = run(harness.HEKATE, "completion", "tcsh")
    equal(refused.returncode, 64, "another shell")
    assert "bash, zsh, fish" in refused.stderr, refused.stderr
    if not parsers:
        raise Skip("needs zsh or fish to parse them; tests/package has both")
    for shell, words in parsers.items():
        works(*words, store.path(shell))


@pytest.mark.no_fuse
def test_the_unit_is_one_that_systemd_takes(store):
    unit = f"{REPOSITORY}/packaging/debian/scripts/hekate.service"
    with open(unit) as file:
        settings = [line.split("=")[0] for line in file if "=" in line and not line.startswith("#")]
    # Each of these gives the server a mount namespace, where each start looks like a disk that was mounted anew.
    namespaces = {"PrivateTmp", "PrivateDevices", "PrivateMounts", "DynamicUser", "RootDirectory", "RootImage", "BindPaths",
                  "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "TemporaryFileSystem", "ProtectSystem", "ProtectHome",
                  "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
                  "ProtectControlGroups", "MountFlags", "LogNamespace", "PrivateIPC", "NoExecPaths", "ExecPaths"}
    equal(namespaces & set(settings), set(), "settings with a mount namespace")
    if not shutil.which("systemd-analyze"):
        raise Skip("needs systemd-analyze")
    with open(unit) as file:
        text = file.read().replace("/usr/bin/hekate", harness.HEKATE)
    with open(store.path("hekate.service"), "w") as file:
        file.write(text)
    checked = run("systemd-analyze", "verify", "--man=no", store.path("hekate.service"))
    equal((checked.returncode, checked.stderr), (0, ""), "systemd-analyze verify")


@pytest.mark.root
@pytest.mark.no_fuse
def test_root_has_its_state_in_var_and_its_socket_in_run(store):
    own_namespace()
    for directory in ["/var/lib", "/run"]:
        works("mount", "-t", "tmpfs", "tmpfs", directory)
    bricks = [word for path in store.bricks(2) for word in ("--brick", path)]
    # A umask that is meant for something else keeps nobody from the socket.
    line = 'umask 077; "$0" init --journal 32 "$@" && "$0" --json serve --detach'
    pid = int(re.search(r'"pid": (\d+)', works("sh", "-c", line, harness.HEKATE, *bricks))[1])
    try:
        mode = lambda path: oct(os.stat(path).st_mode & 0o777)
        equal(mode("/var/lib/hekate"), "0o700", "mode of /var/lib/hekate")
        for name in ("credential.toml", "seal.key", "ca/root.key"):
            equal(mode(f"/var/lib/hekate/{name}"), "0o600", f"mode of {name}")
        equal(mode("/run/hekate"), "0o755", "mode of /run/hekate")
        os.chmod(store.base, 0o755)
        works(program_for_all(store), "--server", "unix:/run/hekate/server.sock", "--json", "pool", "list", uid=NOBODY)
        works(harness.HEKATE, "stop")
    finally:
        if os.path.exists(f"/proc/{pid}"):
            kill(pid)


@pytest.mark.root
@pytest.mark.no_fuse
def test_users_have_xdg_directories(store):
    program = program_for_all(store)
    home, runtime = store.directory("h"), store.directory("run")
    for path in [home, runtime]:
        os.chown(path, NOBODY, NOBODY)

    def as_user(*words, **variables):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HEKATE_"))}
        full = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", program, *words]
        return subprocess.run(full, env={**plain, **variables}, capture_output=True, text=True, cwd="/", timeout=60)

    def serves(socket_path, **variables):
        done = as_user("--json", "serve", "--detach", **variables)
        equal(done.returncode, 0, done.stdout + done.stderr)
        pid = int(re.search(r'"pid": (\d+)', done.stdout)[1])
        try:
            equal(os.stat(os.path.dirname(socket_path)).st_mode & 0o777, 0o700, f"mode of where {socket_path} is")
            assert os.path.exists(socket_path), f"no {socket_path}"
            equal(as_user("stop", **variables).returncode, 0, "stop")
        finally:
            if not harness.is_gone(pid):
                kill(pid)

    made = as_user("init", "--brick", f"{home}/brick", "--journal", "32", HOME=home)
    equal(made.returncode, 0, made.stderr)
    state = f"{home}/.local/state/hekate"
    equal(os.stat(state).st_mode & 0o777, 0o700, f"mode of {state}")
    serves(f"{runtime}/hekate/server.sock", HOME=home, XDG_RUNTIME_DIR=runtime)
    serves(f"{state}/server.sock", HOME=home)
    os.rename(state, f"{home}/hekate")
    serves(f"{home}/hekate/server.sock", HOME="/nonexistent", XDG_STATE_HOME=home)
    away = as_user("serve", HOME="/nonexistent", XDG_STATE_HOME=home, XDG_RUNTIME_DIR=store.path("no-such"))
    assert away.returncode > 0 and "no-such/hekate" in away.stderr and "--state DIR" in away.stderr, away.stderr
    nowhere = as_user("status")
    equal(nowhere.returncode in (64, 69), True, nowhere.stderr)
