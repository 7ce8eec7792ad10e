"""Translators: a volume's graph while it is used, those that are built in, in shared libraries, and in Python."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import xml.dom.minidom

import pytest

from harness import Skip, equal, raises, read, same_bytes, wait_until, write

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def graph(store, volume="v"):
    """-> the report of the one program that has the volume open."""
    reports = store.cli("--json", "graph", volume).json()
    equal(len(reports), 1, "programs")
    return reports[0]


def layer(store, number=0, volume="v"):
    return graph(store, volume)["layers"][number]


def put(store, *layers, volume="v"):
    """Sets the translators, and waits until all programs use them."""
    words = [*layers] if layers else ["--none"]
    status = store.cli("--json", "volume", "set", volume, "translators", *words).json()
    change = status["graph"]["change"]
    wait_until(lambda: graph(store, volume)["change"] == change, f"change {change} is used")


# --- graphs ---


def test_a_graph_is_checked_shown_and_changed_with_files_open(store):
    store.up()
    store.umount()
    # Each look-up is to reach the layers.
    mnt = store.mount(options=["-o", "nopledges"])
    file = os.open(f"{mnt}/open", os.O_RDWR | os.O_CREAT)
    os.write(file, b"before")
    listed = store.cli("translator", "list").out
    assert all(name in listed for name in ("negative-lookup", "trace", "io-stats", "fault", "read-only")), listed
    shown = store.cli("--json", "translator", "show", "fault").json()
    assert {option["name"] for option in shown["options"]} >= {"ops", "share", "error", "delay"}, shown
    store.refuses("translator", "show", "nonesuch", words=["built in are negative-lookup"])
    for layers, words in (
        (["nonesuch"], ["built in are", "plugin list"]),
        (["trace:what=1"], ["has no option \"what\"; it has ops, file"]),
        (["fault:share=101"], ["share takes a share of a hundred"]),
        (["read-only", "trace"], ["name it after trace"]),
        (["negative-lookup", "negative-lookup"], ["remove the other"]),
        (["trace"] * 17, ["at most 16"]),
        (["python:translator=nonesuch"], ["no translator nonesuch in Python", "python install"]),
        ([], ["--none"]),
    ):
        store.refuses("volume", "set", "v", "translators", *layers, words=words)
    store.refuses("volume", "set", "nonesuch", "translators", "trace", words=["nonesuch"])
    store.refuses("graph", "nonesuch", words=["used here: v"])
    layers = b'[[translator]]\nname = "negative-lookup"\nlifetime = "1h"\n[[translator]]\nname = "io-stats"\n'
    write(store.path("graph.toml"), layers)
    dry = store.cli("volume", "set", "v", "translators", "--file", store.path("graph.toml"), "--dry-run").out
    assert "negative-lookup:lifetime=1h\n  io-stats\n  distribute" in dry, dry
    equal(graph(store)["layers"], [], "layers after a dry run")
    status = store.cli("--json", "volume", "set", "v", "translators", "--file", store.path("graph.toml")).json()
    equal(status["graph"]["change"], 1, "change")
    wait_until(lambda: graph(store)["change"] == 1, "the mount uses the graph")
    os.write(file, b" and after")
    equal(read(f"{mnt}/open"), b"before and after", "content")
    missing_ops = lambda: layer(store, 1)["ops"]
    for _ in range(3):
        assert not os.path.exists(f"{mnt}/missing")
    before = missing_ops()
    for _ in range(20):
        assert not os.path.exists(f"{mnt}/missing")
    found = layer(store)
    assert int(found["counters"]["hits"]) >= 20, found
    write(f"{mnt}/missing", b"not any more")
    equal(read(f"{mnt}/missing"), b"not any more", "a name that was missing")
    assert before > 0
    report = graph(store)
    assert report["program"].startswith("mount at ") and len(report["partitions"]) == 16, report
    xml.dom.minidom.parseString(store.cli("graph", "v", "--svg").out)
    assert "lookup: " in store.cli("graph", "v").out.replace("op lookup", "lookup")
    put(store)
    os.write(file, b"!")
    os.close(file)
    equal(read(f"{mnt}/open"), b"before and after!", "content at the end")
    equal(graph(store)["layers"], [], "layers at the end")


def test_servers_refuse_changes_of_a_read_only_volume(store):
    mnt = store.up()
    write(f"{mnt}/file", b"old")
    file = os.open(f"{mnt}/file", os.O_RDWR)
    put(store, "read-only")
    for change in (
        lambda: os.mkdir(f"{mnt}/directory"), lambda: os.write(file, b"new"), lambda: os.unlink(f"{mnt}/file"),
        lambda: os.chmod(f"{mnt}/file", 0o600), lambda: os.setxattr(f"{mnt}/file", "user.a", b"b"),
    ):
        raises(errno.EROFS, change)
    os.fsync(file)
    equal(read(f"{mnt}/file"), b"old", "content")
    put(store)
    os.pwrite(file, b"new", 0)
    os.close(file)
    equal(read(f"{mnt}/file"), b"new", "content")


def test_ops_are_traced_and_faults_are_what_was_asked_for(store):
    mnt = store.up()
    trace = store.path("trace.jsonl")
    put(store, f"trace:file={trace},ops=create+read", "fault:ops=read,share=100,error=EDQUOT")
    write(f"{mnt}/file", b"x" * 1000)
    raises(errno.EDQUOT, lambda: read(f"{mnt}/file"))
    lines = [json.loads(line) for line in read(trace).splitlines()]
    assert {line["op"] for line in lines} == {"create", "read"}, lines
    assert any(line["op"] == "create" and line["name"] == "file" for line in lines), lines
    assert all(line["errno"] == errno.EDQUOT for line in lines if line["op"] == "read"), lines
    put(store, f"trace:file={trace},ops=create", "fault:ops=read,share=0")
    equal(read(f"{mnt}/file"), b"x" * 1000, "content without faults")
    # A layer that cannot start leaves the graph as it was.
    change = graph(store)["change"]
    store.cli("volume", "set", "v", "translators", "trace:file=/nonesuch/trace")
    assert "/nonesuch/trace" in graph(store)["refused"]
    equal((graph(store)["change"], read(f"{mnt}/file")), (change, b"x" * 1000), "the graph that stays")
    store.refuses("mount", "v", store.directory("second"), words=["/nonesuch/trace"])
    put(store)


def test_io_stats_name_the_busiest_files_and_processes(store):
    mnt = store.up()
    put(store, "io-stats:top=2")
    script = "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n" \
        "for _ in range(200): os.pwrite(f, b'x' * 100, 0)\ninput()"
    busy = subprocess.Popen([sys.executable, "-c", script, f"{mnt}/busy"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: layer(store)["counters"]["bytes written"] == "20000", "all is written")
        counters = layer(store)["counters"]
        who = f"uid {os.getuid()}, process {busy.pid} ({read(f'/proc/{busy.pid}/comm').decode().strip()}): "
        first = counters["top client 001"]
        assert first.startswith(who) and first.endswith(" ops, 20000 bytes"), counters
        assert counters["top file 001"].endswith(": 200 ops, 20000 bytes"), counters
    finally:
        busy.communicate(b"\n")
    put(store)


@pytest.mark.limit(120)
def test_graphs_are_swapped_every_second_under_load(store):
    mnt = store.up()
    store.cli("python", "install", f"{ROOT}/python/examples/hello")
    stacks = [
        ["negative-lookup", "io-stats"], ["trace:file=/dev/null"], ["python:translator=hello", "negative-lookup"], [],
        ["io-stats", "trace:file=/dev/null", "negative-lookup:lifetime=10s"],
    ]
    over, faults, rounds = threading.Event(), [], [0, 0, 0]

    def work(number):
        directory, count = f"{mnt}/w{number}", 0
        try:
            os.mkdir(directory)
            while not over.is_set():
                name, content = f"{directory}/f{count % 50}", os.urandom(20_000 if count % 3 else 100)
                assert count < 50 or os.path.exists(name), f"{name} is missing"
                write(name, content, os.O_SYNC if count % 5 == 0 else 0)
                same_bytes(read(name), content, name)
                os.rename(name, f"{name}.new")
                assert not os.path.exists(name), f"{name} is there after its rename"
                os.rename(f"{name}.new", name)
                same_bytes(read(name), content, f"{name} after two renames")
                count += 1
        except Exception as error:
            faults.append(f"worker {number}, round {count}: {error!r}")
        rounds[number] = count

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for number in range(6):
        store.cli("volume", "set", "v", "translators", *(stacks[number % len(stacks)] or ["--none"]))
        time.sleep(1)
    over.set()
    for worker in workers:
        worker.join()
    equal(faults, [], "faults")
    assert min(rounds) > 10, rounds
    put(store)
    equal(graph(store)["replaced"], 0, "graphs with ops under way")


def test_every_door_runs_the_graph(store):
    """The S3 door of the server, and one of a process of its own."""
    mnt = store.up()
    trace = store.path("trace.jsonl")
    put(store, f"trace:file={trace},ops=put+fetch+make-prefix")
    key = store.cli("--json", "s3", "key", "create", "v").json()
    door = store.cli("--json", "s3", "enable", "v", "--listen", "127.0.0.1:0", "--http").json()["open"][0]
    words = ["curl", "-sSf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{key['id']}:{key['secret']}"]
    words += ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    subprocess.run([*words, "-X", "PUT", f"http://{door}/bucket"], check=True)
    subprocess.run([*words, "-X", "PUT", "--data-binary", "content", f"http://{door}/bucket/object"], check=True)
    equal(read(f"{mnt}/bucket/object"), b"content", "the object as a file")
    assert any(json.loads(line)["op"] == "put" for line in read(trace).splitlines()), read(trace)
    programs = {report["program"] for report in store.cli("--json", "graph", "v").json()}
    equal(programs, {f"mount at {mnt}", "S3 door of the server"}, "programs")
    store.cli("volume", "set", "v", "translators", "fault:ops=put,share=100,error=EIO")
    changes = lambda: [report["change"] for report in store.cli("--json", "graph", "v").json()]
    wait_until(lambda: all(change == 2 for change in changes()), "both use the change")
    putting = [*words, "-X", "PUT", "--data-binary", "other", f"http://{door}/bucket/object"]
    said = subprocess.run(putting, capture_output=True)
    assert said.returncode != 0, "a PUT that a translator refuses succeeded"
    equal(read(f"{mnt}/bucket/object"), b"content", "the object after a refused PUT")
    store.cli("s3", "disable", "v")
    put(store)


# --- shared libraries ---


def test_translators_in_c_and_rust_are_installed_and_used(store):
    mnt = store.up()
    library = store.path("librefuse_names.so")
    source = f"{ROOT}/examples/plugins/refuse-names/refuse_names.c"
    words = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", f"-I{ROOT}/include"]
    subprocess.run([*words, "-o", library, source], check=True)
    assert "refuses to make names" in store.cli("plugin", "install", library, "--name", "refuse-names").out
    subprocess.run(["cargo", "build", "-q", "-p", "count-names"], check=True, cwd=ROOT)
    target = os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target")
    store.cli("plugin", "install", f"{target}/debug/libcount_names.so", "--name", "count-names")
    rows = store.cli("--json", "plugin", "list").json()
    equal([row["state"] for row in rows], ["good", "good"], "installed libraries")
    assert "suffix" in store.cli("translator", "show", "refuse-names").out
    known = ["it has deadline, threads, suffix"]
    store.refuses("volume", "set", "v", "translators", "refuse-names:prefix=x", words=known)
    put(store, "count-names:suffix=.h", "refuse-names:suffix=.exe")
    raises(errno.EACCES, lambda: write(f"{mnt}/virus.exe", b""))
    write(f"{mnt}/a.txt", b"text")
    raises(errno.EACCES, lambda: os.rename(f"{mnt}/a.txt", f"{mnt}/a.exe"))
    for number in range(5):
        assert not os.path.exists(f"{mnt}/a{number}.h")
    equal(read(f"{mnt}/a.txt"), b"text", "content")
    equal(layer(store, 1)["counters"]["refused"], "2", "refused names")
    assert int(layer(store, 0)["counters"]["missing"]) >= 5
    put(store, "count-names:suffix=.h", "refuse-names:suffix=.com")
    write(f"{mnt}/virus.exe", b"")
    raises(errno.EACCES, lambda: write(f"{mnt}/virus.com", b""))
    store.refuses("plugin", "install", "/bin/true", words=["cannot be loaded|no symbol"])
    store.refuses("plugin", "install", store.path("nonesuch.so"), words=["nonesuch.so"])
    store.refuses("plugin", "remove", "nonesuch", words=["nonesuch"])
    store.cli("plugin", "remove", "refuse-names")
    raises(errno.EACCES, lambda: write(f"{mnt}/virus.com", b""))
    # A mount that lacks it is refused, the one that has it goes on.
    store.refuses("mount", "v", store.directory("second"), words=["refuse-names", "plugin list"])
    put(store)


# --- Python ---


def translator(store, name, text):
    """Installs a translator with this source."""
    directory = store.directory(f"sources/{name}")
    imports = "import errno, os, threading, time\nfrom hekate import *\nfrom hekate import ops\n"
    write(f"{directory}/translator.py", (imports + text).encode())
    store.cli("python", "install", directory)


def test_from_nothing_to_a_translator_in_python(store):
    mnt = store.up()
    project = store.path("no_secrets")
    store.cli("python", "new", project)
    store.refuses("python", "new", project, words=["exists already"])
    store.cli("python", "test", project, limit_s=120)
    store.cli("python", "install", project)
    equal([row["name"] for row in store.cli("--json", "python", "list").json()], ["no_secrets"], "installed")
    assert "deadline" in store.cli("translator", "show", "python:no_secrets").out
    put(store, "python:translator=no_secrets")
    write(f"{mnt}/file", b"content")
    equal(read(f"{mnt}/file"), b"content", "content")
    assert layer(store)["counters"]["worker"] == "runs"
    put(store)
    store.cli("python", "remove", "no_secrets")
    store.refuses("python", "remove", "no_secrets", words=["no_secrets"])


def test_what_a_translator_in_python_does_wrong_hits_only_its_ops(store):
    mnt = store.up()
    store.cli("volume", "create", "other")
    other = store.mount("other", volume="other")
    translator(store, "wrong", """
class Wrong(Translator):
    def lookup(self, op):
        if op.name == b"raises": raise ValueError("no luck")
        if op.name == b"refuses": raise OSError(errno.EDQUOT, "enough")
        if op.name == b"type": return 7
        if op.name == b"loops":
            while True: pass
        if op.name == b"exits": os._exit(3)
        if op.name == b"leaks": return len([b"x" * (1 << 20) for _ in range(4096)])
        if op.name == b"floods":
            for number in range(10000): self.log.warning("line %d", number)
        return PASS
""")
    put(store, "python:translator=wrong,deadline=2s,memory=256M")
    log = f"{store.state}/mount-v.log"
    for name, number in (("raises", errno.EIO), ("refuses", errno.EDQUOT), ("type", errno.EIO), ("leaks", errno.EIO)):
        raises(number, lambda: os.stat(f"{mnt}/{name}"))
    wanted = ('raise ValueError("no luck")', "lookup", "MemoryError")
    said = lambda: all(words in read(log).decode() for words in wanted)
    wait_until(said, "the tracebacks are in the log")
    equal(layer(store)["counters"]["workers started"], "1", "workers")
    raises(errno.ENOENT, lambda: os.stat(f"{mnt}/floods"))
    lines = read(log).decode().count("line ")
    assert lines < 300, f"{lines} lines in the log"
    for name in ("exits", "loops"):
        raises(errno.EIO, lambda: os.stat(f"{mnt}/{name}"))
        write(f"{other}/{name}", b"other users see nothing")
        runs = lambda: layer(store)["counters"]["worker"] == "runs"
        wait_until(runs, f"another worker runs after {name}", limit_s=20)
        write(f"{mnt}/after-{name}", b"goes on")
    equal(layer(store)["counters"]["workers started"], "3", "workers")
    put(store, "python:translator=wrong,deadline=1s,stuck=pass,memory=256M")
    for name in ("exits", "loops"):
        raises(errno.ENOENT, lambda: os.stat(f"{mnt}/{name}"))
        write(f"{mnt}/passed-{name}", b"passes by")
    put(store)
    translator(store, "broken", """
class Broken(Translator):
    def on_start(self): raise ValueError('never')
    def lookup(self, op): return PASS
""")
    change = graph(store)["change"]
    store.cli("volume", "set", "v", "translators", "python:translator=broken")
    assert "never" in graph(store)["refused"], graph(store)
    equal((graph(store)["change"], os.path.exists(f"{mnt}/passed-loops")), (change, True), "the graph that stays")
    put(store)
    directory = store.directory("sources/syntax")
    write(f"{directory}/translator.py", b"class (")
    store.refuses("python", "install", directory, words=["SyntaxError"])
    equal(sorted(os.listdir(other)), ["exits", "loops"], "the other volume")


def test_a_translator_in_python_is_replaced_while_it_is_used_and_keeps_its_state(store):
    mnt = store.up()
    source = """
class Counting(Translator):
    step = Option(int, default=1, minimum=1, help="what each look-up adds")
    def lookup(self, op):
        if op.name.startswith(b"count"):
            self.state["count"] = self.state.get("count", 0) + self.step
            self.metrics.gauge("count VERSION", self.state["count"])
        return PASS
    @timer(seconds=0.2)
    def tick(self):
        self.metrics.count("ticks")
        self.next.getattr(inode=1)
"""
    translator(store, "counting", source.replace("VERSION", "1"))
    store.refuses("volume", "set", "v", "translators", "python:translator=counting,steps=2", words=["steps", "step"])
    put(store, "python:translator=counting")
    look = lambda: os.path.exists(f"{mnt}/count-{os.urandom(4).hex()}")
    counters = lambda: layer(store)["counters"]
    [look() for _ in range(5)]
    wait_until(lambda: counters().get("count 1") == "5", f"5 are counted: {counters()}")
    put(store, "python:translator=counting,step=10")
    look()
    wait_until(lambda: counters().get("count 1") == "15", "15 are counted with another option")
    store.refuses("volume", "set", "v", "translators", "python:translator=counting,step=0", words=["step"])
    translator(store, "counting", source.replace("VERSION", "2"))
    wait_until(lambda: counters().get("workers started") == "2", "it is loaded again")
    look()
    wait_until(lambda: counters().get("count 2") == "25", f"the count goes on: {counters()}")
    wait_until(lambda: "ticks" in counters(), "the timer runs")
    put(store)


@pytest.mark.parametrize("name", ["quota", "watermark", "negative_lookup", "op_trace"])
def test_the_examples_in_python_work_on_a_mount(store, name):
    mnt = store.up()
    options = {"quota": ",extensions=log,limit=1000", "op_trace": f",file={store.path('trace')}"}.get(name, "")
    store.cli("python", "install", f"{ROOT}/python/examples/{name}")
    example_works(store, mnt, name, f"python:translator={name}{options}")


@pytest.mark.soak
@pytest.mark.limit(600)
@pytest.mark.parametrize("name", ["hello", "watermark", "negative_lookup", "op_trace"])
def test_the_examples_in_python_work_inside_the_process(store, name):
    store.init()
    store.serve()
    store.cli("plugin", "install", python_inside(), "--name", "python-inside")
    mnt = store.mount()
    options = {"op_trace": f",options=file={store.path('trace')}"}.get(name, "")
    places = f"directory={ROOT}/python/examples/{name},library={ROOT}/python"
    example_works(store, mnt, name, f"python-inside:{places}{options}")
    if name == "hello":
        assert "hello, f9.txt" in read(f"{store.state}/mount-v.log").decode()


def python_inside():
    """-> the library that has Python in it, of Debian's Python as pytest."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not os.path.exists(f"{sysconfig.get_path('include')}/Python.h"):
        raise Skip(f"the headers of Python {version} are missing: scripts/setup.sh soak installs libpython3-dev")
    words = ["cargo", "build", "-q", "--release", "--manifest-path", f"{ROOT}/python-inside/Cargo.toml"]
    environment = {**os.environ, "PYO3_PYTHON": sys.executable, "CARGO_TARGET_DIR": f"{ROOT}/python-inside/target"}
    subprocess.run(words, check=True, env=environment)
    return f"{ROOT}/python-inside/target/release/libhekate_python_inside.so"


def example_works(store, mnt, name, layer_text):
    """Uses a mount above an example of python/examples."""
    put(store, layer_text)
    for number in range(10):
        assert not os.path.exists(f"{mnt}/f{number}.txt")
        content = os.urandom(5000)
        write(f"{mnt}/f{number}.txt", content, os.O_SYNC if number % 2 else 0)
        same_bytes(read(f"{mnt}/f{number}.txt"), content, f"file {number} under {name}")
    if name == "quota":
        write(f"{mnt}/small.log", b"x" * 900)
        raises(errno.EDQUOT, lambda: write(f"{mnt}/large.log", b"x" * 900))
    if name == "op_trace":
        trace = store.path("trace")
        wait_until(lambda: os.path.exists(trace) and b"write" in read(trace), "lines in the trace")
    put(store)
    if name == "watermark":
        # Without it its mark shows.
        found = read(f"{mnt}/f9.txt")
        assert found != content and len(found) == len(content), "the content has no mark"


@pytest.mark.soak
@pytest.mark.limit(300)
def test_a_debugger_prints_the_graph_from_a_core(store):
    for program in ("gdb", "gcore"):
        if not shutil.which(program):
            raise Skip(f"{program} is missing: scripts/setup.sh soak installs gdb")
    mnt = store.up()
    put(store, "negative-lookup:lifetime=5s", "io-stats")
    write(f"{mnt}/file", b"content")
    pid = store.mount_pids["mnt"]
    program = os.readlink(f"/proc/{pid}/exe")
    core = store.path("core")

    def is_printed():
        """From a core that is taken while nothing changes, so that the text, at most a second old, is the graph's."""
        before = store.cli("graph", "v").out
        time.sleep(1.5)
        subprocess.run(["gcore", "-o", core, str(pid)], check=True, capture_output=True)
        if store.cli("graph", "v").out != before:
            return False
        words = ["gdb", "-q", "-batch", program, f"{core}.{pid}"]
        words += ["-x", f"{ROOT}/scripts/gdb/hekate.py", "-ex", "hekate-graph"]
        printed = subprocess.run(words, capture_output=True, text=True).stdout
        assert before.strip() in printed, f"{before}\n--- is not in\n{printed}"
        return True

    wait_until(is_printed, "the mount is idle for a second", limit_s=60)
