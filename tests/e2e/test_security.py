"""What docs/security.md promises, tried by somebody who does not use our client (raw_client.py)."""

import base64
import contextlib
import glob
import json
import os
import random
import struct
import subprocess

import pytest

from harness import NOBODY, equal, free_port, read, wait_until
from helper_install import run
from raw_client import (
    CONTROL, DENIED, HELLO, PACKET, PROTOCOL, REQUESTS, ROOT, SERVER, SESSION_ENDED, STALE, TO_CONTROL, Raw, Refused,
    Session, control, get_attributes, greeted, header, listen, open_volume, parts_of, peer, refusal, resume, sync, text, wide,
    write_shard,
)
from test_users import program_for_all

SOMEBODY = 12345
NAMES = [b"red\x1b[31m", b"two\nlines", b"\x1b]0;title\x07", b"back\x08\r", b"not utf-8 \xff\x9b31m"]


def up(store, *options):
    """Volume `v` of root and `theirs` of nobody, in one ring. -> the socket, which all can reach."""
    store.init()
    store.serve(*options)
    os.chmod(store.state, 0o711)
    store.cli("volume", "create", "theirs", "--copies", "2", "--owner", str(NOBODY), "--allow-uid", str(SOMEBODY))
    return f"{store.state}/server.sock"


def is_well(store):
    """Nothing panicked, and all that is served is."""
    equal(store.status()["health"], "good", "health")
    with open(f"{store.state}/serve.log") as log:
        assert "panicked" not in log.read(), "a panic in the server's log"


@pytest.mark.root
@pytest.mark.no_fuse
def test_a_volumes_user_reaches_no_other_volume(store):
    address = up(store)
    roots = Session(address, "v")
    inode = roots.create("private", mode=0o600)
    theirs = Session(address, "theirs", NOBODY)
    equal(theirs.ring, roots.ring, "the ring that both share")
    theirs.do(theirs.home(ROOT), get_attributes(ROOT))
    for purpose in (open_volume("v"), resume("v", roots.session), listen("v", roots.session), resume("v", theirs.session)):
        equal(refusal(address, purpose, NOBODY).number, DENIED, f"{purpose!r}")
    look, home = get_attributes(inode), theirs.home(inode)
    equal(theirs.refusal(home, look, volume=roots.volume).number, DENIED, "another volume on this connection")
    equal(theirs.refusal(home, look, session=roots.session).number, DENIED, "another session on this connection")
    equal(theirs.refusal(home, look).number, STALE, "another volume's inode")
    equal(theirs.refusal(theirs.at(0, ring=99), look).number, DENIED, "another ring")
    equal(theirs.refusal(home, b"\x06" + wide(5) + b"\0\0\x02" + wide(inode)).number, DENIED, "a leg")
    brick = b"\x02" + bytes.fromhex(theirs.map["bricks"][0]["brick"])[::-1]
    equal(theirs.refusal(brick, sync(roots.volume, 1, 0)).number, DENIED, "a shard of another volume")
    for partition in (len(theirs.views), 2**32 - 1):
        equal(theirs.refusal(theirs.at(partition, epoch=1), look).number, PROTOCOL, "a partition that is not there")
    # One foreign request, and none of its frame is done.
    name = b"\x01\x04" + wide(ROOT) + text("private") + b"\0"
    both = [roots.request(roots.home(ROOT), name), roots.request(roots.home(ROOT), name, volume=theirs.volume)]
    equal(roots.send(*both)[:2], bytes([0, DENIED]), "the request beside a foreign one")
    roots.do(roots.home(inode), look)
    is_well(store)


@pytest.mark.root
@pytest.mark.no_fuse
def test_a_session_is_taken_up_by_its_user_only(store):
    address = up(store)
    theirs = Session(address, "theirs", NOBODY)
    greeted(address, resume("theirs", theirs.session), NOBODY)
    for uid in (SOMEBODY, 0):
        for purpose in (resume("theirs", theirs.session), listen("theirs", theirs.session)):
            equal(refusal(address, purpose, uid).number, DENIED, f"a session of nobody's, for user {uid}")
    equal(Session(address, "theirs", SOMEBODY).session != theirs.session, True, "a session of their own")
    for session in (0, 10**6, 2**64 - 1):
        equal(refusal(address, resume("theirs", session), NOBODY).number, SESSION_ENDED, f"session {session}")
    theirs.do(SERVER, b"\x05\x03")
    equal(refusal(address, resume("theirs", theirs.session), NOBODY).number, SESSION_ENDED, "a session that ended")
    equal(refusal(address, peer(2, 1, 1), NOBODY).number, DENIED, "a server that runs as nobody")


@pytest.mark.root
@pytest.mark.no_fuse
def test_strangers_ask_for_what_all_may_see_only(store):
    address = up(store)
    for request in ("status", "server-status", "identify", "pool-list", "volume-list", "brick-list", "partition-list", "metrics"):
        assert "ok" in control(address, {"request": request}, NOBODY), request
    assert "ok" in control(address, {"request": "volume-show", "name": "v"}, NOBODY), "volume-show"
    volume = {"name": "w", "pool": "default", "copies": 1, "allowed_uids": [NOBODY]}
    for request in [
        {"request": "stop"},
        {"request": "partition-force", "ring": 1, "partition": 0, "brick": "/"},
        {"request": "volume-create", **volume},
        {"request": "volume-delete", "name": "theirs"},
        {"request": "scrub-start", "brick": None},
        {"request": "scrub-here", "bricks": [], "volume": None},
        {"request": "repair", "repair": "copy", "brick": "0" * 32, "what": {"entry": {"key": []}}},
        {"request": "missing"},
        {"request": "missing-here"},
        {"request": "names-here", "ring": 1, "volume": 1, "inode": "1", "parent": None},
        {"request": "brick-add", "directory": "/var/tmp/brick", "pool": "default", "journal_mib": 32},
        {"request": "brick-remove", "brick": store.bricks(2)[0]},
        {"request": "slow-ops"},
        {"request": "where", "volume": "v", "path": [47], "offset": 0},
        {"request": "held", "ring": 1, "looks": []},
        {"request": "coordinator", "ask": "get", "key": "/cluster"},
        {"request": "coordinator", "ask": "list", "prefix": ""},
        {"request": "coordinator", "ask": "transact", "expect": [], "writes": [["/volumes/v", None]]},
        {"request": "coordinator", "ask": "keep", "key": "/alive/1", "value": "", "milliseconds": 1},
        {"request": "coordinator", "ask": "release", "key": "/alive/1"},
        {"request": "coordinator", "ask": "watch", "prefixes": ["/"], "after": 0, "milliseconds": 1},
    ]:
        answer = control(address, request, NOBODY)
        equal(answer.get("error", {}).get("exit"), 77, f"{request}: {answer}")
    seen = str(control(address, {"request": "status"}, NOBODY))
    assert read(f"{store.state}/seal.key").hex() not in seen, "the key that seals"
    is_well(store)


@pytest.mark.root
@pytest.mark.no_fuse
def test_names_lead_nowhere_else(store):
    address = up(store)
    for name in ("../x", "/etc", "..", "", "a/b", "a\nb", "\x1b[31m", "a\0b", "x" * 64):
        volume = {"request": "volume-create", "name": name, "pool": "default", "copies": 1, "allowed_uids": []}
        for request in (volume, {"request": "volume-show", "name": name}, {"request": "volume-delete", "name": name}):
            answer = control(address, request)
            equal(answer.get("error", {}).get("exit"), 64, f"{request}: {answer}")
            assert not set("\x1b\0") & set(answer["error"]["text"]), f"a raw control character: {answer}"
    for brick in ("/etc", "../..", "/"):
        equal(control(address, {"request": "scrub-start", "brick": brick})["error"]["exit"], 64, brick)
    for what in ({"entry": {"key": []}}, {"entry": {"key": [1] * 40}}, {"block": {"ring": 1, "shard": [1, 2], "block": 0}}):
        for repair in ("mend", "copy"):
            answer = control(address, {"request": "repair", "repair": repair, "brick": "0" * 32, "what": what})
            assert answer.get("error"), f"{repair} of {what}: {answer}"
    session = Session(address, "theirs", NOBODY)
    for name in (b"", b".", b"..", b"a/b", b"a\0b", b"n" * 256):
        with contextlib.suppress(EOFError, Refused):
            session.create(name)
            raise AssertionError(f"made {name!r}")
        session = Session(address, "theirs", NOBODY)
    is_well(store)


@pytest.mark.no_fuse
def test_who_has_no_certificate_is_refused(store):
    port = free_port()
    store.init()
    store.serve("--listen", f"127.0.0.1:{port}")
    address, ours = ("127.0.0.1", port), f"{store.state}/credential.toml"
    web = store.client("web", "--volume", "v")
    equal(control(address, {"request": "identify"})["ok"]["server"], 1, "who answers, without a certificate")
    for request in [
        {"request": "status"},
        {"request": "volume-list"},
        {"request": "metrics"},
        {"request": "stop"},
        {"request": "token-create", "expires_s": 60},
        {"request": "client-list"},
        {"request": "ca-show"},
        {"request": "coordinator", "ask": "list", "prefix": ""},
        {"request": "enroll", "token": "0" * 8, "secret": "0" * 32, "public_key": "04" * 65, "pool": "default"},
    ]:
        equal(control(address, request).get("error", {}).get("exit"), 77, f"{request}, without a certificate")
    for purpose in (open_volume("v"), resume("v", 1), listen("v", 1), peer(2, 1, 1)):
        refused = refusal(address, purpose)
        assert refused.number == DENIED and "no certificate" in refused.what, f"{refused}"
    # A certificate is its holder's: a client's is no server's, and a server's is of that server.
    for credential, holder, server in ((web, "client web", 1), (web, "client web", 2), (ours, "server 1", 2)):
        refused = refusal(address, peer(server, 1, 1), credential=credential)
        equal(refused.number, DENIED, f"{holder} as server {server}")
        assert f"the certificate of {holder} cannot be used as that of server {server}" in refused.what, f"{refused}"
    is_well(store)


@pytest.mark.root
@pytest.mark.no_fuse
@pytest.mark.limit(120)
def test_garbage_costs_its_connection_only(store):
    port = free_port()
    address = up(store, "--listen", f"127.0.0.1:{port}")
    tcp = ("127.0.0.1", port)
    theirs = store.client("theirs", "--volume", "theirs")
    store.join("two")
    twos = store.path("two/credential.toml")
    some = random.Random(7)
    silent = [Raw(there, NOBODY) for there in (address, tcp)]
    version = Raw(address, NOBODY).challenge()
    for there in (address, tcp):
        for first in [
            some.randbytes(300),
            header(2**32 - 1, HELLO),
            header(4097, HELLO) + bytes(4097),
            header(0, 99),
            header(4, REQUESTS) + bytes(4),
            header(36, HELLO) + struct.pack("<I", version) + bytes(32),
        ]:
            raw = Raw(there, NOBODY, some.choice([None, twos, theirs]))
            raw.challenge()
            raw.socket.sendall(first)
            equal(raw.has_ended(), True, f"{there} goes on after {first[:24]!r}")
    for there, known in ((address, None), (tcp, None), (tcp, theirs), (tcp, twos)):
        purposes = [(TO_CONTROL, CONTROL)]
        if there == address or known:
            purposes += [(open_volume("theirs"), REQUESTS), (open_volume("theirs"), PACKET)]
        if known == twos:
            purposes += [(peer(2, 5, 1), PACKET)]
        for purpose, kind in purposes:
            lies = [header(16 * 2**20 + 1, kind), header(9, kind) + b"\xff\xff\xff\xff" + bytes(5)]
            lies += [header(50, kind) + b"\xff" + some.randbytes(49), header(4, kind) + struct.pack("<I", 1025)]
            for lie in lies:
                raw, *_ = greeted(there, purpose, NOBODY, known)
                raw.socket.sendall(lie)
                with contextlib.suppress(ConnectionError):
                    while raw.socket.recv(4096):
                        pass
    session = Session(address, "theirs", NOBODY)
    requests = [session.request(SERVER, b"\x05\x01")] * 1025
    session.raw.send(REQUESTS, struct.pack("<I", len(requests)) + b"".join(requests))
    equal(session.raw.has_ended(), True, "1,025 requests in a frame")
    for request in ["[" * 50_000, '{"x":' + "[" * 50_000, '{"request":' * 5_000, "", "null", '{"request":"\\u001b[2J"}']:
        equal(control(address, request, NOBODY)["error"]["exit"], 64, request[:30])
    for raw in silent:
        raw.challenge()
        equal(raw.has_ended(), True, "one that says nothing is kept")
    store.serve_other("two")
    wait_until(lambda: store.status()["health"] == "good", "both servers in touch")
    is_well(store)


@pytest.mark.root
@pytest.mark.no_fuse
def test_strangers_read_no_brick_and_no_state(store):
    before = os.umask(0o000)
    try:
        store.init()
        store.serve()
    finally:
        os.umask(before)
    session = Session(f"{store.state}/server.sock", "v")
    data = 5 << 64
    partition = next(p for p in range(len(session.views)) if wrote(session, p, data))
    session.do(session.at(partition), write_shard(data, 0, 0, b"private " * 12500))
    store.stop()
    equal(os.stat(store.state).st_mode & 0o777, 0o700, "mode of the state directory")
    for name, mode in (("credential.toml", 0o600), ("seal.key", 0o600), ("ca", 0o700), ("ca/root.key", 0o600)):
        equal(os.stat(f"{store.state}/{name}").st_mode & 0o777, mode, f"mode of {name}")
    for brick in store.bricks(2):
        files = glob.glob(f"{brick}/data/*/*") + glob.glob(f"{brick}/journal/*") + glob.glob(f"{brick}/index/*")
        assert len(files) > 5 and any(b"private" in read(path) for path in files), f"no content in {brick}"
        for path in files:
            equal(os.stat(path).st_mode & 0o077, 0, f"mode of {path} for others")
    program = program_for_all(store)
    target = store.directory("target")
    os.chown(target, NOBODY, NOBODY)
    both = store.bricks(2)
    for words in (["brick", "inspect", "--all", both[0]], ["brick", "export", both[0], target], ["debug", "compare", *both]):
        done = store.try_cli(*words, uid=NOBODY, program=program)
        assert done.exit != 0 and "Permission denied" in done.text and "panicked" not in done.text, f"{words}: {done.text}"
    store.refuses("debug", "compare", words=["Permission denied|is missing"], uid=NOBODY, program=program)
    found = glob.glob(f"{target}/**/*", recursive=True)
    assert not any(os.path.isfile(path) and os.path.getsize(path) for path in found), f"content exported: {found}"


def wrote(session, partition, data):
    """Whether the shard's partition is this one: only its leader keeps what is written."""
    with contextlib.suppress(Refused):
        session.do(session.at(partition), write_shard(data, 0, 0, b"x"))
        return True


@pytest.mark.root
@pytest.mark.no_fuse
def test_keys_are_in_nothing_that_is_shown(store):
    port = free_port()
    store.init()
    store.serve("--listen", f"127.0.0.1:{port}")
    invitation = store.token()
    store.join("two", invitation=invitation)
    store.serve_other("two", "--listen", f"127.0.0.1:{free_port()}")
    web, admin = store.client("web", "--volume", "v"), store.client("admin", "--admin")
    states = [store.state, store.path("two")]
    equal(read(f"{states[1]}/seal.key"), read(f"{states[0]}/seal.key"), "the key that seals, of the server that joined")
    equal(os.path.exists(f"{states[1]}/ca"), False, "the root's key at the server that joined")
    for path in [web, admin] + [f"{state}/{name}" for state in states for name in ("seal.key", "credential.toml")]:
        equal(os.stat(path).st_mode & 0o777, 0o600, f"mode of {path}")
    store.cli("--server", f"tcp:127.0.0.1:{port}", "status")
    words = [["--json", "status"], ["doctor"], ["--json", "volume", "show", "v"], ["ca", "show"], ["--json", "ca", "show"]]
    words += [["client", "list"], ["--json", "client", "list"], ["--json", "client", "show", "web"]]
    shown = "".join(store.cli(*command).text for command in words)
    shown += store.cli("--json", "status", server=f"127.0.0.1:{port}", credential=web).text
    shown += str(control(f"{store.state}/server.sock", {"request": "coordinator", "ask": "list", "prefix": ""}))
    bundle = store.path("bundle.tar.gz")
    store.cli("debug", "bundle", bundle)
    equal(os.stat(bundle).st_mode & 0o777, 0o600, "mode of the bundle")
    shown += subprocess.run(["tar", "-xzOf", bundle], capture_output=True, check=True).stdout.decode(errors="replace")
    for path in glob.glob(f"{store.base}/*/*.log") + glob.glob(f"{store.base}/*/*.json") + glob.glob("/proc/self/cmdline"):
        shown += read(path).decode(errors="replace")
    for pid in (store.server_pid, store.other_pids["two"]):
        shown += read(f"/proc/{pid}/cmdline").decode(errors="replace") + read(f"/proc/{pid}/environ").decode(errors="replace")
    for what, form in forms_of_keys([web, admin, *(f"{state}/credential.toml" for state in states)], states[0], invitation):
        assert form not in shown, f"{what} is shown"


def forms_of_keys(credentials, state, invitation):
    """Of each key, and of the secret of an invitation -> what it is, and how it could be shown."""
    keys = {"the key that seals": read(f"{state}/seal.key"), "the root's key": key_of(read(f"{state}/ca/root.key").decode())}
    keys |= {f"the key of {os.path.relpath(path, '/')}": key_of(parts_of(path)["key"]) for path in credentials}
    for what, key in keys.items():
        for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1], str(list(key))[1:-1]):
            yield what, form
    told = invitation.removeprefix("hekate1-")
    yield "the secret of an invitation", json.loads(base64.urlsafe_b64decode(told + "=" * (-len(told) % 4)))["secret"]
    yield "an invitation", invitation


def key_of(pem):
    """The number that is the private key, of 32 bytes: RFC 5915 in PKCS #8."""
    whole = base64.b64decode("".join(line for line in pem.splitlines() if "-----" not in line))
    at = whole.index(b"\x02\x01\x01\x04\x20") + 5
    return whole[at : at + 32]


@pytest.mark.root
def test_a_volumes_user_is_root_in_it_and_nowhere_else(store):
    """Not promised: permissions within a volume are checked by the kernel of a mount, not by the server."""
    address = up(store)
    session = Session(address, "theirs", NOBODY)
    session.create("of-root", mode=0o600)
    session.create("set-id", mode=0o4755)
    session.create("zero", b"\x06" + struct.pack("<Q", os.makedev(1, 5)), mode=0o666)
    mnt = store.mount(volume="theirs")
    program = f"{mnt}/set-id"
    with open("/usr/bin/id", "rb") as source, open(program, "r+b") as target:
        target.write(source.read())
    os.chmod(program, 0o4755)
    found = os.stat(program)
    equal((found.st_uid, found.st_mode & 0o7777), (0, 0o4755), "owner and mode, as nobody made them")
    ran = run(program, "-u", uid=SOMEBODY)
    equal(ran.stdout.strip(), str(SOMEBODY), "who a set-user-id program runs as")
    reads = run("head", "-c1", f"{mnt}/zero", uid=SOMEBODY)
    assert reads.returncode != 0 and "Permission denied" in reads.stderr, f"a device node opens: {reads}"
    reads = run("cat", f"{mnt}/of-root", uid=SOMEBODY)
    assert "Permission denied" in reads.stderr, f"the kernel of the mount does not check modes: {reads}"


def test_names_are_shown_without_control_characters(store):
    mnt = store.up().encode()
    for name in NAMES:
        os.mkdir(mnt + b"/" + name)
        with open(mnt + b"/" + name + b"/" + name, "wb") as file:
            file.write(os.urandom(50000))
    store.umount()
    store.stop()
    brick = store.bricks(2)[0]
    for path in glob.glob(f"{brick}/data/*/*"):
        with open(path, "r+b") as file:
            file.write(bytes([read(path)[0] ^ 1]))
    target = store.directory("target")
    outputs = [store.try_cli("brick", "inspect", "--all", "--check", brick), store.try_cli("brick", "export", brick, target)]
    outputs.append(store.try_cli("debug", "compare"))
    assert "u{1b}" in outputs[1].text, f"no name in {outputs[1].text}"
    shown = "".join(output.text for output in outputs)
    for path in glob.glob(f"{store.state}/*.log"):
        shown += read(path).decode(errors="replace")
    rough = {character for character in shown if not character.isprintable()} - {"\n"}
    equal(rough, set(), "control characters in what is shown")
    assert not any(line.startswith("lines") for line in shown.splitlines()), "a name that makes a line of its own"
