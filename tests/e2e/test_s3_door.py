"""The S3 door as an operator opens it: keys, certificates, both doors at once, servers that are killed.

HEKATE_S3_STEPS=N: steps of both doors [400]; HEKATE_KILLS=N: processes that are killed [10]; HEKATE_SEED: which of them.
"""

import hashlib
import os
import random
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

pytest.importorskip("boto3", reason="boto3 is missing: scripts/setup.sh test unpacks it")

from botocore.exceptions import BotoCoreError, ClientError  # noqa: E402

from harness import HEKATE, equal, free_port, wait_until  # noqa: E402
from s3 import body_of, client, code_of, key_of, keys_of, open_door  # noqa: E402
from servers import three  # noqa: E402

STEPS = int(os.environ.get("HEKATE_S3_STEPS", "400"))
KILLS = int(os.environ.get("HEKATE_KILLS", "10"))
SEED = os.environ.get("HEKATE_SEED", str(time.time_ns()))


def one_server(store):
    store.init()
    store.serve()


def test_a_door_is_opened_and_closed_by_name(store):
    one_server(store)
    port = open_door(store)
    key = key_of(store)
    s3 = client(port, key)
    s3.create_bucket(Bucket="photos")
    store.refuses("s3", "enable", "w", "--listen", "127.0.0.1:1", words=["no volume"])
    store.refuses("s3", "enable", "v", "--listen", "127.0.0.1:1", "--http", "--certificate", "a", "--key", "b", words=["http"])
    store.cli("volume", "create", "other", "--copies", "1")
    store.refuses("s3", "enable", "other", "--listen", f"127.0.0.1:{port}", "--http", words=["of volume v", "name another one"])
    store.refuses("volume", "delete", "v", "--confirm", "v", words=["hekate s3 disable v"])
    # The same again changes nothing, another port closes the first.
    equal(open_door(store, port=port), port, "the port")
    moved = open_door(store)
    equal([bucket["Name"] for bucket in client(moved, key).list_buckets()["Buckets"]], ["photos"], "buckets")
    listed = store.cli("--json", "s3", "list").json()
    equal([(door["volume"], door["open"]) for door in listed], [("v", [f"127.0.0.1:{moved}"])], "open doors")
    store.cli("s3", "disable", "v")
    wait_until(lambda: not store.cli("--json", "s3", "list").json(), "no door is open")
    store.refuses("s3", "disable", "v", words=["not open"])
    store.refuses("s3", "key", "disable", "HKNONE", words=["no access key HKNONE"])
    wait_until(lambda: store.try_cli("volume", "delete", "v", "--confirm", "v").exit == 0, "the volume is deleted")
    equal(store.cli("--json", "s3", "key", "list").json(), [], "keys go with their volume")


def test_a_port_in_use_is_named(store):
    one_server(store)
    with subprocess.Popen(["/usr/bin/python3", "-c", SQUATTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        port = int(squatter.stdout.readline())
        store.refuses("s3", "enable", "v", "--listen", f"127.0.0.1:{port}", "--http", words=["in use"])
        squatter.stdin.close()
    # The server tries again by itself.
    wait_until(lambda: store.cli("--json", "s3", "list").json()[0]["open"], "the door is open")


SQUATTER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_door_is_open_again_after_a_restart(store):
    one_server(store)
    port, key = open_door(store), key_of(store)
    client(port, key).create_bucket(Bucket="kept")
    client(port, key).put_object(Bucket="kept", Key="a/b", Body=b"bytes")
    store.kill_server()
    store.serve()
    wait_until(lambda: store.cli("--json", "s3", "list").json()[0]["open"], "the door is open")
    equal(body_of(client(port, key), "kept", "a/b"), b"bytes", "the object")


def test_keys_are_what_their_records_say(store):
    one_server(store)
    port, full = open_door(store), key_of(store)
    s3 = client(port, full)
    for bucket in ["mine", "theirs"]:
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    reader = client(port, key_of(store, "--read-only"))
    equal(body_of(reader, "mine", "k"), b"1", "a read")
    equal(code_of(reader.put_object, Bucket="mine", Key="k", Body=b"2"), "AccessDenied", "a write")
    limited = client(port, key_of(store, "--bucket", "mine:write", "--bucket", "theirs:read", "--uid", "1234", "--gid", "77"))
    limited.put_object(Bucket="mine", Key="n", Body=b"2")
    equal(body_of(limited, "theirs", "k"), b"1", "a read")
    equal(code_of(limited.put_object, Bucket="theirs", Key="k", Body=b"2"), "AccessDenied", "a write")
    equal(code_of(limited.create_bucket, Bucket="third"), "AccessDenied", "a new bucket")
    made = os.stat(f"{store.mount()}/mine/n")
    equal((made.st_uid, made.st_gid), (1234, 77), "the owner of a file that a key made")
    shown = store.cli("s3", "key", "list").out
    assert full[0] in shown and full[1] not in shown, "a list shows ids and no secrets"
    store.cli("s3", "key", "disable", full[0])
    wait_until(lambda: code_of(s3.list_buckets) == "InvalidAccessKeyId", "the key is refused", limit_s=5)
    store.cli("s3", "key", "enable", full[0])
    wait_until(lambda: code_of(s3.list_buckets) is None, "the key is accepted", limit_s=5)
    store.cli("s3", "key", "delete", full[0])
    wait_until(lambda: code_of(s3.list_buckets) == "InvalidAccessKeyId", "the key is refused", limit_s=5)
    secret = store.path("secret")
    with open(secret, "w") as file:
        file.write("minio-secret-key\n")
    moved = key_of(store, "--id", "minio-admin", "--secret-file", secret)
    equal(moved, ("minio-admin", "minio-secret-key"), "a key that was in use elsewhere")
    equal(code_of(client(port, moved).list_buckets), None, "a request with it")


def test_a_bucket_says_who_owns_what_is_made(store):
    one_server(store)
    s3, mnt = client(open_door(store), key_of(store, "--uid", "1000", "--gid", "1000")), store.mount()
    s3.create_bucket(Bucket="album")
    store.cli("s3", "bucket", "set", "v", "album", "--owner", "1234:77", "--file-mode", "0640", "--directory-mode", "0710")
    s3.put_object(Bucket="album", Key="d/f", Body=b"1")
    for path, mode in [("d", 0o40710), ("d/f", 0o100640)]:
        made = os.stat(f"{mnt}/album/{path}")
        equal((made.st_uid, made.st_gid, made.st_mode), (1234, 77, mode), path)
    store.cli("s3", "bucket", "set", "v", "album", "--owner", "key")
    s3.put_object(Bucket="album", Key="g", Body=b"1")
    equal(os.stat(f"{mnt}/album/g").st_uid, 1000, "the owner")
    shown = store.cli("--json", "s3", "bucket", "show", "v", "album").json()
    equal((shown["owner"], shown["file_mode"], shown["acl"]), (None, "0640", "private"), "the settings")
    store.refuses("s3", "bucket", "show", "v", "nothing", words=["no bucket nothing"])
    store.refuses("s3", "bucket", "set", "v", "album", "--owner", "ann", words=["1000:100"])
    store.refuses("s3", "bucket", "set", "v", "album", words=["--owner"])


@pytest.mark.soak
@pytest.mark.limit(240)
def test_a_door_whose_session_ended_is_opened_again(store):
    """Servers end a session after 60 s of silence."""
    one_server(store)
    key, port = key_of(store), free_port()
    with alone(store, port) as door:
        client(port, key).create_bucket(Bucket="kept")
        door.send_signal(signal.SIGSTOP)
        time.sleep(70)
        door.send_signal(signal.SIGCONT)
        wait_until(lambda: code_of(client(port, key).put_object, Bucket="kept", Key="k", Body=b"1") is None, "a PUT", limit_s=60)
        door.kill()


def test_the_cluster_s_authority_signs_the_certificate(store):
    one_server(store)
    port = open_door(store, options=["--name", "s3.example"])
    door = store.cli("--json", "s3", "list").json()[0]
    roots = store.path("roots.pem")
    with open(roots, "w") as file:
        file.write(door["roots"])
    s3 = client(port, key_of(store), scheme="https", verify=roots)
    s3.create_bucket(Bucket="sealed")
    s3.put_object(Bucket="sealed", Key="k", Body=b"x" * 100_000)
    equal(body_of(s3, "sealed", "k"), b"x" * 100_000, "an object")
    shown = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", roots, "-verify_hostname", "s3.example"],
        input="", capture_output=True, text=True, timeout=20,
    )
    assert "Verification: OK" in shown.stdout, shown.stdout[-500:]


def test_a_door_in_a_process_of_its_own(store):
    one_server(store)
    key, port = key_of(store), free_port()
    store.refuses("s3", "serve", "v", "--listen", f"127.0.0.1:{port}", words=["--http"])
    store.refuses("s3", "serve", "w", "--listen", f"127.0.0.1:{port}", "--http", words=["w"])
    with alone(store, port) as door:
        s3 = client(port, key)
        s3.create_bucket(Bucket="alone")
        s3.put_object(Bucket="alone", Key="k", Body=b"1" * 50_000)
        equal(body_of(s3, "alone", "k"), b"1" * 50_000, "an object")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/health", timeout=5) as answer:
            equal(answer.status, 200, "the health URL")
        door.send_signal(signal.SIGTERM)
        equal(door.wait(20), 0, "its end")


def test_metrics_count_requests_by_their_operation(store):
    one_server(store)
    port, key = open_door(store), key_of(store)
    s3 = client(port, key)
    s3.create_bucket(Bucket="counted")
    for _ in range(3):
        s3.put_object(Bucket="counted", Key="k", Body=b"x" * 1000)
    body_of(s3, "counted", "k")
    equal(code_of(s3.get_object, Bucket="counted", Key="none"), "NoSuchKey", "an object that is not there")
    equal(code_of(client(port, ("nobody", "x")).list_buckets), "InvalidAccessKeyId", "a key that is not there")

    def counted(name, operation, more=""):
        line = f'hekate_s3_{name}_total{{volume="v",operation="{operation}"{more}}} '
        found = [row.removeprefix(line) for row in store.cli("metrics").out.splitlines() if row.startswith(line)]
        return float(found[0]) if found else None

    wait_until(lambda: counted("requests", "other") == 1, "the counters are those of all requests")
    equal([counted("requests", name) for name in ["CreateBucket", "PutObject", "GetObject"]], [1, 3, 2], "requests")
    equal([counted("errors", "GetObject", f',status="{status}"') for status in ["4xx", "5xx"]], [1, 0], "errors")
    equal(counted("received_bytes", "PutObject"), 3000, "bytes of bodies of requests")
    assert counted("sent_bytes", "GetObject") > 1000, "bytes of bodies of answers"
    equal(counted("requests", "DeleteObject"), None, "an operation that nobody asked for")
    store.cli("s3", "disable", "v")
    wait_until(lambda: counted("requests", "other") is None, "a closed door counts nothing")


def alone(store, port, *options):
    words = [HEKATE, "--state", store.state, "s3", "serve", "v", "--listen", f"127.0.0.1:{port}", "--http", *options]
    door = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    wait_until(lambda: is_up(port) or door.poll() is not None, "the door is open")
    return door


def is_up(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.limit(300)
def test_both_doors_see_each_other_at_once(store):
    """A file that one door has changed is read, renamed or removed through the other right after, and back."""
    one_server(store)
    port, mnt = open_door(store), store.mount()
    s3 = client(port, key_of(store))
    s3.create_bucket(Bucket="both")
    chance, top, etags = random.Random(SEED), f"{mnt}/both", {}
    known = {}
    for step in range(STEPS):
        key = f"{chance.choice('ab')}/{chance.choice('xyz')}"
        path, data = f"{top}/{key}", os.urandom(chance.choice([10, 3_000, 20_000]))
        what = chance.randrange(6)
        if what <= 1:
            s3.put_object(Bucket="both", Key=key, Body=data)
            known[key] = data
            with open(path, "rb") as file:
                equal(file.read(), data, f"step {step}, seed {SEED}: a file after a PUT")
        elif what == 2:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            known[key] = data
            answer = s3.get_object(Bucket="both", Key=key)
            equal(answer["Body"].read(), data, f"step {step}, seed {SEED}: an object after a write")
            assert answer["ETag"] not in etags, f"step {step}, seed {SEED}: an ETag came twice"
            etags[answer["ETag"]] = step
        elif what == 3 and key in known:
            other = f"{chance.choice('ab')}/{chance.choice('xyz')}"
            if os.path.isdir(os.path.dirname(f"{top}/{other}")) and other != key:
                os.rename(path, f"{top}/{other}")
                known[other] = known.pop(key)
                equal(body_of(s3, "both", other), known[other], f"step {step}, seed {SEED}: a renamed file")
                equal(code_of(s3.get_object, Bucket="both", Key=key), "NoSuchKey", f"step {step}, seed {SEED}: its old key")
        elif what == 4 and key in known:
            s3.delete_object(Bucket="both", Key=key)
            del known[key]
            assert not os.path.exists(path), f"step {step}, seed {SEED}: a deleted object is a file still"
        elif what == 5 and key in known:
            os.unlink(path)
            del known[key]
            equal(code_of(s3.head_object, Bucket="both", Key=key), "404", f"step {step}, seed {SEED}: a removed file")
        if step % 50 == 0:
            equal([k for k in keys_of(s3, "both") if not k.endswith("/")], sorted(known), f"step {step}, seed {SEED}: the list")


# Calls that a process is killed in the middle of.
KINDS = ["put", "part", "complete", "delete"]


class Load:
    """Clients that put, complete uploads and delete, and remember what was answered."""

    def __init__(self, ports, key, count=4):
        self.ports, self.key, self.stop = ports, key, threading.Event()
        self.done, self.doubtful, self.wrong = {}, {}, []
        # Of each client: the call that it waits for, and the number of the door.
        self.calls, self.answered = {}, {kind: 0 for kind in KINDS}
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(count)]

    def begin(self):
        client(self.ports[0], self.key, attempts=5).create_bucket(Bucket="load")
        for thread in self.threads:
            thread.start()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(120)
        equal(self.wrong, [], f"seed {SEED}: answers that are never right")

    def work(self, number):
        chance = random.Random(f"{SEED} {number}")
        clients = [client(port, self.key) for port in self.ports]
        while not self.stop.is_set():
            key = f"{number}/{chance.randrange(3)}/{chance.randrange(8)}"
            door = chance.randrange(len(clients))
            s3 = clients[door]
            size = chance.choice([100, 5_000, 40_000, 300_000])
            data = hashlib.sha256(f"{key} {chance.random()}".encode()).digest() * (size // 32)
            what = chance.randrange(8)
            # Whatever an interrupted call may leave is one of these.
            before = self.possible(key)
            try:
                if what == 0:
                    self.doubtful[key] = before | {None}
                    self.call(number, door, "delete", s3.delete_object, Key=key)
                    self.settle(key, None)
                elif what == 1:
                    self.doubtful[key] = before | {data * 40}
                    self.upload(number, door, s3, key, data * 40)
                    self.settle(key, data * 40)
                else:
                    self.doubtful[key] = before | {data}
                    self.call(number, door, "put", s3.put_object, Key=key, Body=data)
                    self.settle(key, data)
            except (BotoCoreError, ClientError) as error:
                code = getattr(error, "response", {}).get("Error", {}).get("Code")
                if code not in [None, "InternalError", "ServiceUnavailable", "SlowDown", "NoSuchUpload", "503", "500"]:
                    self.wrong.append(f"{key}: {error}")
                time.sleep(0.1)

    def call(self, number, door, kind, function, **named):
        self.calls[number] = (kind, door)
        try:
            answer = function(Bucket="load", **named)
        finally:
            self.calls.pop(number)
        self.answered[kind] += 1
        return answer

    def door_in(self, kind, limit_s=5):
        """-> the number of a door that is asked for this now; any if none is for a while."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for asked, door in list(self.calls.values()):
                if asked == kind:
                    return door
            time.sleep(0.001)
        return 0

    def upload(self, client_number, door, s3, key, data):
        upload = s3.create_multipart_upload(Bucket="load", Key=key)["UploadId"]
        middle, parts = max(len(data) // 2, 5 << 20), []
        for number, part in enumerate([data[:middle], data[middle:]] if len(data) > middle else [data], 1):
            named = {"Key": key, "UploadId": upload, "PartNumber": number, "Body": part}
            etag = self.call(client_number, door, "part", s3.upload_part, **named)["ETag"]
            parts.append({"ETag": etag, "PartNumber": number})
        named = {"Key": key, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        self.call(client_number, door, "complete", s3.complete_multipart_upload, **named)

    def possible(self, key):
        return self.doubtful.get(key, {self.done.get(key)})

    def settle(self, key, data):
        self.done[key] = data
        self.doubtful.pop(key, None)

    def verify(self, s3):
        """Every object is one that was answered, or that a call without an answer may have put."""
        listed = set(keys_of(s3, "load"))
        for key in set(self.done) | set(self.doubtful):
            allowed = self.possible(key)
            found = body_of(s3, "load", key) if key in listed else None
            assert found in allowed, f"seed {SEED}: {key} has {len(found or b'')} bytes, allowed {[len(a or b'') for a in allowed]}"


@pytest.mark.limit(240 + 12 * KILLS)
def test_nothing_answered_is_lost_when_doors_and_servers_are_killed(store):
    """Doors and servers are killed in the middle of a call of each kind. No half object, no lost 200, and nothing of
    interrupted uploads is left after `hekate s3 gc`."""
    three(store, listen=True, mount=False)
    key = key_of(store)
    ports = [free_port() for _ in range(3)]
    doors = [alone(store, port) for port in ports]
    load, chance = Load(ports, key), random.Random(SEED)
    try:
        load.begin()
        for number in range(KILLS):
            time.sleep(chance.uniform(0.3, 1.0))
            which = load.door_in(KINDS[number % len(KINDS)])
            time.sleep(chance.choice([0, 0, 0.002, 0.01]))
            if number % 5 == 4:
                name = chance.choice(["s2", "s3"])
                store.kill_other(name)
                time.sleep(chance.uniform(0.0, 1.0))
                store.serve_other(name, *store.listens[name])
            else:
                doors[which].kill()
                doors[which].wait()
                doors[which] = alone(store, ports[which])
        load.end()
        s3 = client(ports[0], key, attempts=5)
        load.verify(s3)
        assert len(load.done) > 20 and min(load.answered.values()) > 0, f"too few calls were answered: {load.answered}"
        store.cli("s3", "gc", "v", "--older-than", "0s", limit_s=120)
        equal(s3.list_multipart_uploads(Bucket="load").get("Uploads", []), [], "uploads that are left")
        load.verify(s3)
    finally:
        load.stop.set()
        for door in doors:
            door.kill()
            door.wait()


@pytest.mark.limit(180)
def test_conditional_writes_at_three_servers_are_one_chain(store):
    """Each PUT with If-Match follows exactly one other: ETags form a chain, in an order that agrees with real time."""
    three(store, listen=True, mount=False)
    key = key_of(store)
    ports = [free_port() for _ in range(3)]
    doors = [alone(store, port) for port in ports]
    try:
        client(ports[0], key).create_bucket(Bucket="chain")
        first = client(ports[0], key).put_object(Bucket="chain", Key="k", Body=b"0", IfNoneMatch="*")["ETag"]
        calls = [call for made in at_once(lambda number: write_chain(ports[number % 3], key, number)) for call in made]
    finally:
        for door in doors:
            door.kill()
            door.wait()
    follows = {}
    for begun, ended, before, after in calls:
        assert before not in follows, f"two PUTs followed {before}"
        follows[before] = (begun, ended, after)
    at, latest, length = first, 0.0, 0
    while at in follows:
        begun, ended, after = follows.pop(at)
        assert ended > latest, "a PUT that ended before one that it follows began"
        at, latest, length = after, max(latest, begun), length + 1
    equal(follows, {}, "PUTs outside of the chain")
    assert length > 50, f"the chain has {length} links"


def at_once(work, count=6):
    made = [None] * count
    threads = [threading.Thread(target=lambda number=number: made.__setitem__(number, work(number))) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def write_chain(port, key, number):
    """-> when each PUT that succeeded began and ended, the ETag that it followed, and its own."""
    s3, made, end = client(port, key), [], time.monotonic() + 12
    while time.monotonic() < end:
        before = s3.head_object(Bucket="chain", Key="k")["ETag"]
        begun = time.monotonic()
        try:
            body = f"{number} {begun}".encode()
            after = s3.put_object(Bucket="chain", Key="k", Body=body, IfMatch=before)["ETag"]
            made.append((begun, time.monotonic(), before, after))
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed", error
    return made
