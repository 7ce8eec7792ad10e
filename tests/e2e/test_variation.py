"""`hekate variation` from outside: measuring a volume, dying in the middle, planning, an S3 server of a few lines."""

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

from harness import HEKATE, equal, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JOB = ("--every", "200ms", "--size", "2MiB", "--threads", "4")


def data(name):
    return f"{ROOT}/crates/variation/data/{name}.csv"


def measure(store, target, name, seconds, *more):
    done = store.cli("--json", "variation", "measure", target, "--for", f"{seconds}s", *JOB, "-o", store.path(name), *more)
    return done.json()


def test_a_volume_is_measured_beside_a_disk(store):
    mnt = store.up()
    disk = store.directory("disk")
    raw, volume = measure(store, disk, "raw", 2), measure(store, mnt, "volume", 2)
    for found in (raw, volume):
        equal((found["samples"], found["samples_wanted"]), (10, 10), "samples")
        assert found["summary"]["mean"] > 0 and found["processor_us_per_operation"] > 0, found
    equal((os.listdir(mnt), os.listdir(disk)), ([], []), "files left behind")
    report, pictures = store.path("report.html"), store.path("pictures")
    files = (store.path("raw.hvs"), store.path("volume.hvs"))
    shown = store.cli("--json", "variation", "show", *files, "--report", report, "--export", pictures).json()
    equal([series["name"] for series in shown["series"]], ["raw", "volume"], "series")
    page = open(report, encoding="utf-8").read()
    assert "<svg" in page and "<script" not in page and "rate (IOPS)" in page, page[:500]
    # Nothing is loaded: no address but those of names in SVG.
    equal(set(re.findall(r"(?:src|href)=\"[^\"#]", page)), set(), "what the report loads")
    made = {"or-better.svg", "or-better.png", "time-line.svg", "time-line.png", "summary.json", "summary.csv"}
    assert made <= set(os.listdir(pictures)), os.listdir(pictures)
    waits = store.cli("--json", "variation", "latency", "--servers", "3", "--wait", "quorum", files[0]).json()
    equal((waits["parts"], waits["wait_for"]), (3, 2), "a quorum")


@pytest.mark.no_fuse
def test_a_killed_measurement_is_gone_on_with(store):
    disk, name = store.directory("disk"), store.path("series")
    command = [HEKATE, "variation", "measure", disk, "--for", "3s", *JOB, "-o", name]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: os.path.exists(f"{name}.csv") and sum(1 for _ in open(f"{name}.csv")) > 5, "a few samples")
    running.send_signal(signal.SIGKILL)
    running.wait()
    equal(len(os.listdir(disk)), 1, "what a kill leaves")
    # Half a record, as a death in mid-write leaves it.
    with open(f"{name}.hvs", "ab") as file:
        file.write(b"\x40\x00\x00\x00half")
    again = store.try_cli("--json", "variation", "measure", disk, "--for", "3s", *JOB, "-o", name)
    equal(again.json()["exit"], 73, "without --resume")
    found = measure(store, disk, "series", 3, "--resume")
    equal(found["samples"], 15, "samples of both")
    equal(os.listdir(disk), [], "files left behind")
    equal(sum(1 for line in open(f"{name}.csv") if line[0].isdigit()), 15, "lines of the CSV file")


@pytest.mark.no_fuse
def test_an_interrupted_measurement_keeps_samples(store):
    disk, name = store.directory("disk"), store.path("series")
    command = [HEKATE, "--json", "variation", "measure", disk, "--for", "1h", *JOB, "-o", name]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists(f"{name}.csv") and sum(1 for _ in open(f"{name}.csv")) > 5, "a few samples")
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=20)
    found = json.loads(out)
    equal(running.returncode, 0, "exit status")
    assert 2 <= found["samples"] < found["samples_wanted"], found
    equal(os.listdir(disk), [], "files left behind")


@pytest.mark.no_fuse
def test_plans_answer_as_the_manual_says(store):
    files = [data(name) for name in ("steep", "narrow", "cliff")]
    found = store.cli("--json", "variation", "plan", "--target", "100000", *files).json()
    plans = {plan["kind"]: plan for plan in found["plans"]}
    counts = {name: (plan["best_case"], plan["count"], plan["all_together"]) for name, plan in plans.items()}
    equal(counts, {"steep": (7, 12, 17), "narrow": (15, 22, 27), "cliff": (8, 11, 24)}, "machines")
    for plan in plans.values():
        equal((plan["dice"]["count"], plan["buckets"]["count"]), (plan["count"], plan["count"]), "the other two ways")
    text = store.cli("variation", "plan", "--target", "100000", "--price", "3", "--copies", "2", files[0]).out
    assert "each operation of a user is 2 on machines" in text and "95 % INTERVAL" in text, text


@pytest.mark.no_fuse
def test_bad_series_are_refused_in_words(store):
    bad = store.path("bad.csv")
    for text, words in (("", "empty"), ("time_s,iops\n0,NaN\n", "line 2"), ("a,b\n1,2\n", "no column iops")):
        with open(bad, "w", encoding="utf-8") as file:
            file.write(text)
        for command in (("show",), ("plan", "--target", "10")):
            done = store.try_cli("variation", *command, bad)
            assert done.exit == 65 and words in done.text, (text, done.text)
    with open(bad, "w", encoding="utf-8") as file:
        file.write("mb_per_s\n1\n2\n")
    assert "--unit" in store.try_cli("variation", "show", bad, data("steep")).text, "units that do not go together"
    far = store.try_cli("variation", "plan", "--target", "1e15", data("steep"))
    assert far.exit == 64 and "do not reach" in far.text, far.text
    equal(store.try_cli("variation", "show", store.path("missing.csv")).exit, 66, "no such file")


class Objects(http.server.BaseHTTPRequestHandler):
    """Keeps objects in memory; asks for a signature, but does not check it."""

    protocol_version = "HTTP/1.1"
    kept = {}

    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=key/")
        if signed:
            self.kept[self.path] = body
        self.answer(200 if signed else 403)

    def do_GET(self):
        self.answer(200, self.kept[self.path]) if self.path in self.kept else self.answer(404)

    def do_DELETE(self):
        self.kept.pop(self.path, None)
        self.answer(204)


@pytest.mark.no_fuse
def test_an_s3_endpoint_is_measured_and_emptied(store):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    endpoint = f"http://127.0.0.1:{server.server_port}"
    for access in ("write", "read"):
        more = ("--endpoint", endpoint, "--access", access, "--block", "64KiB")
        found = measure(store, "s3://bucket/test", access, 1, *more)
        assert found["summary"]["mean"] > 0 and not found["summary"]["notes"], found
        equal(Objects.kept, {}, "objects left behind")
    server.shutdown()


@pytest.mark.no_fuse
def test_mistakes_with_s3_are_named(store):
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    ca = store.path("ca.pem")
    with open(ca, "w", encoding="utf-8") as file:
        file.write("no certificate")
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    for exit_status, words, *more in (
        (64, "say where", "--region", "x"),
        (64, "neither http", "--endpoint", "127.0.0.1:9000"),
        (64, "for https", "--endpoint", "http://127.0.0.1:1", "--ca-file", ca),
        (65, "holds no certificate", "--endpoint", "https://127.0.0.1:1", "--ca-file", ca),
        (66, "cannot open", "--endpoint", "https://127.0.0.1:1", "--ca-file", f"{ca}.missing"),
        (69, "nothing listens there", "--endpoint", f"http://127.0.0.1:{port}"),
    ):
        done = store.try_cli("variation", "measure", "s3://bucket/test", *JOB, "--for", "1s", "-o", store.path("s"), *more)
        assert done.exit == exit_status and words in done.text, (more, done.exit, done.text)
        assert not os.path.exists(store.path("s.hvs")), "a recording of nothing"
    done = store.try_cli("variation", "measure", store.directory("disk"), "--ca-file", ca)
    assert done.exit == 64 and "are for s3://" in done.text, done.text


@pytest.mark.no_fuse
def test_names_that_people_write_are_understood(store):
    disk = store.directory("disk")
    measure(store, disk, "disk.1", 1)
    assert os.path.exists(store.path("disk.1.hvs")) and os.path.exists(store.path("disk.1.csv"))
    missing = store.try_cli("variation", "show", store.path("disk.1"))
    assert missing.exit == 66 and "did you mean" in missing.text, missing.text
    with open(store.path("mine.csv"), "w", encoding="utf-8") as file:
        file.write("precious")
    kept = store.try_cli("variation", "measure", disk, "--for", "1s", *JOB, "-o", store.path("mine"))
    assert kept.exit == 73 and open(store.path("mine.csv"), encoding="utf-8").read() == "precious", kept.text
    read = measure(store, disk, "read", 1, "--access", "read")
    assert "page cache" in read["summary"]["notes"][0], read["summary"]["notes"]
