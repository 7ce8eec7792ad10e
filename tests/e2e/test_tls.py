"""TCP with TLS 1.3: who is refused, at which end and in which words, and what a certificate opens."""

import base64
import contextlib
import errno
import fcntl
import json
import os
import random
import re
import socket
import ssl
import tarfile
import threading
import time

import pytest

from certificates import DAY_S, REFUSALS_S, REFUSED, Log, Poser, cluster_of, forge, make_root, write_credential
from harness import equal, free_port, raises, read, wait_until, write
from helper_install import fails, install_helper, works
from raw_client import (
    CHALLENGE, HELLO, READ_ONLY, TO_CONTROL, Raw, Refused, Session, control, greeted, header, open_volume, parts_of, peer, refusal, resume,
    tls,
)
from servers import three
from test_servers import changed

USAGE, AWAY, EXISTS, DENIED = 64, 69, 73, 77
# `hekate client revoke` promises that no server answers the client any more after this time.
REVOKED_S = 5


def up(store, *options, **named):
    """A server with volume `v` that answers over TCP -> its address."""
    store.init(**named)
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address, *options)
    return store.address


def host_port(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def refuses(store, address, credential, *words, exits=(DENIED,)):
    return store.refuses("status", server=address, credential=credential, words=words, exits=exits)


def test_addresses_of_a_network_are_tried_in_order(store):
    """The first is nobody's, the second one of IPv6: for a client, and for another server."""
    port, dead = free_port(), f"127.0.0.1:{free_port()}"
    store.init()
    store.serve("--listen", f"[::1]:{port}", "--advertise", dead, "--advertise", f"[::1]:{port}")
    web = store.client("web", "--volume", "v")
    equal(parts_of(web)["servers"], [dead, f"[::1]:{port}"], "addresses of the credential")
    store.join("s2")
    store.serve_other("s2", "--listen", f"127.0.0.1:{free_port()}")
    wait_until(lambda: [row["state"] for row in store.status()["servers"]] == ["online"] * 2, "both servers answer each other")
    store.cli("volume", "create", "w", "--copies", "2", "--domain", "server")
    both = store.client("both", "--volume", "w")
    mnt = store.mount(volume="w", credential=both)
    for number in range(20):
        write(f"{mnt}/{number}", b"x")
    equal(sorted(map(int, os.listdir(mnt))), list(range(20)), "names, of partitions that either server leads")


@pytest.mark.no_fuse
def test_lifetimes_are_settings(store):
    up(store)
    told = store.cli("ca", "set", "--servers", "30d", "--clients", "10d").out
    assert "30 days for servers, 10 for clients" in told, told
    store.client("web", "--volume", "v")
    left = store.cli("--json", "client", "show", "web").json()["expires"] - time.time()
    assert 9.9 * DAY_S < left < 10.1 * DAY_S, f"{left} s"
    for wrong, words in [(["--servers", "0d"], ["expires at once"]), (["--clients", "9999d"], ["1 to 1825"]), ([], ["--servers"])]:
        store.refuses("ca", "set", *wrong, words=words, exits=[USAGE])
    # What expires within 14 days is shown.
    assert "certificate of client web expires" in store.cli("status").out
    assert 'hekate_certificate_expires_seconds{holder="client web"}' in store.cli("metrics").out


@pytest.mark.no_fuse
def test_certificates_of_clients_that_are_refused(store):
    address = up(store)
    cluster, log = cluster_of(store.state), Log(store.state)
    web = store.client("web", "--volume", "v", "--expires", "3s")
    equal(store.try_cli("status", server=address, credential=web).exit, 0, "while it is valid")
    issued = time.monotonic()
    ours = lambda name: f"hekate://{cluster}/client/{name}"
    unsigned = "no root of (its|this) cluster has signed (the|its) certificate"
    for name, identity, named, client_says, server_says in [
        ("own-root", ours("web"), {"root": make_root(store, "theirs")}, unsigned, unsigned),
        ("early", ours("web"), {"begins_s": DAY_S, "ends_s": 2 * DAY_S}, "not valid yet", "is not valid yet; check both clocks"),
        ("late", ours("web"), {"begins_s": -2 * DAY_S, "ends_s": -DAY_S}, "has expired", "has expired; check both clocks"),
        # Its holder takes ours for the other cluster.
        ("other", f"hekate://{'0' * 32}/client/web", {}, "of another cluster", "it refuses this end: .* of another cluster"),
    ]:
        refuses(store, address, forge(store, name, identity, **named), re.escape(address), client_says)
        log.says(REFUSED, server_says)
    time.sleep(max(0, issued + 3.5 - time.monotonic()))
    refuses(store, address, web, "the certificate has expired", "renew")
    log.says(REFUSED, "its certificate has expired; check both clocks, then renew it")
    # Ours has signed these, and the cluster's records do not have them.
    refuses(store, address, forge(store, "stranger", ours("stranger")), "client stranger is not known to the cluster")
    refuses(store, address, forge(store, "web-too", ours("web")), "the certificate of client web has been revoked", "newest credential")
    # A credential without a holder is none, for either end.
    nobody = forge(store, "nobody", None)
    store.refuses("status", server=address, credential=nobody, words=["names no holder"], exits=[USAGE])
    for shown, says in ((nobody, "names no server or client"), (store.path("other.hekate"), "is of another cluster")):
        with contextlib.suppress(OSError, EOFError):
            Raw(host_port(address), credential=shown).challenge()
            raise AssertionError(f"a certificate that {says} is accepted")
        log.says(REFUSED, f"its certificate {says}")
    equal(store.status()["health"], "good", "health")


@pytest.mark.no_fuse
def test_a_client_of_another_cluster(store):
    """Each end says so, and the client does it before it has sent anything but its first message."""
    address, theirs = up(store), store.path("theirs")
    port = f"127.0.0.1:{free_port()}"
    store.cli("init", "--brick", store.path("their-brick"), "--journal", "32", "--volume", "v", "--copies", "1", state=theirs)
    store.cli("serve", "--detach", "--listen", port, state=theirs)
    try:
        their_web, log = store.client("theirs", "--volume", "v", state=theirs), Log(store.state)
        refuses(store, address, their_web, re.escape(address), "no root of this cluster has signed its certificate")
        log.says(REFUSED, "it refuses this end: no root of its cluster has signed the certificate")
        # A client that does not look at the server is refused by the server.
        with contextlib.suppress(OSError, EOFError):
            Raw(host_port(address), credential=their_web).challenge()
            raise AssertionError("it is accepted")
        log.says(REFUSED, "no root of this cluster has signed its certificate")
        for state, at in ((theirs, address), (store.state, port)):
            said = store.refuses("status", state=state, server=at, words=["no root of this cluster"], exits=[DENIED])
            assert at in said.err, said.err
    finally:
        store.cli("stop", state=theirs)


@pytest.mark.no_fuse
def test_other_protocols_are_refused(store):
    address = up(store)
    log, old = Log(store.state), tls()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_2
    with socket.create_connection(host_port(address)) as connection:
        try:
            old.wrap_socket(connection)
            raise AssertionError("TLS 1.2 is spoken")
        except ssl.SSLError as error:
            assert "PROTOCOL_VERSION" in str(error), error
    log.says(REFUSED, "it does not speak TLS 1.3")
    # The Hello of a client of the time before.
    for plain in [header(4, HELLO) + bytes(4), b"GET / HTTP/1.0\r\n\r\n"]:
        with socket.create_connection(host_port(address), timeout=20) as connection:
            connection.sendall(plain)
            told = b""
            with contextlib.suppress(ConnectionError):
                while more := connection.recv(100):
                    told += more
            # At most an alert, which is a record of seven bytes.
            assert told in (b"", b"\x15\x03\x03\x00\x02\x02" + told[-1:]), f"it answers {told!r} to {plain!r}"
    log.says(REFUSED, "it does not speak TLS: plain text, or another protocol")
    for suite in ("AES128-SHA256", "ECDHE-RSA-AES128-SHA"):
        old.set_ciphers(f"{suite}:@SECLEVEL=0")
        with socket.create_connection(host_port(address)) as connection, contextlib.suppress(OSError):
            old.wrap_socket(connection)
            raise AssertionError(f"{suite} is spoken")
    raw, *_ = greeted(host_port(address), TO_CONTROL)
    equal((raw.socket.version(), raw.socket.session.has_ticket), ("TLSv1.3", False), "version, and a ticket for resumption")


@pytest.mark.no_fuse
def test_servers_that_a_client_refuses(store):
    address, cluster = up(store), None
    cluster = cluster_of(store.state)
    web, theirs = store.client("web", "--volume", "v"), store.path("theirs")
    store.cli("init", "--brick", store.path("their-brick"), "--journal", "32", state=theirs)
    server = f"hekate://{cluster}/server/1"
    both = "clientAuth,serverAuth"
    as_server = lambda name, **named: forge(store, name, server, usage=both, **named)
    is_client = "a client's(, not a server's| cannot be used as a server's)"
    posers = {
        "a client's certificate": (Poser(web), is_client),
        "a client's name with the usage of a server": (Poser(forge(store, "wide", f"hekate://{cluster}/client/web", usage=both)), is_client),
        "another cluster": (Poser(f"{theirs}/credential.toml"), "no root of this cluster has signed its certificate"),
        "another root": (Poser(as_server("own", root=make_root(store, "root"))), "no root of this cluster has signed its certificate"),
        "an expired one": (Poser(as_server("late", begins_s=-2 * DAY_S, ends_s=-DAY_S)), "has expired; check both clocks"),
        "an early one": (Poser(as_server("early", begins_s=DAY_S, ends_s=2 * DAY_S)), "is not valid yet; check both clocks"),
        "another cluster's name": (Poser(forge(store, "name", f"hekate://{'1' * 32}/server/1", usage=both)), "of another cluster"),
        "TLS 1.2": (Poser(f"{store.state}/credential.toml", version=ssl.TLSVersion.TLSv1_2), "does not speak TLS 1.3"),
        "plain text": (Poser(says=b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" * 9), "does not speak TLS"),
    }
    for what, (poser, says) in posers.items():
        with poser:
            refused = store.refuses("status", server=poser.address, credential=web, words=[poser.address, says], exits=[DENIED])
            assert poser.connections and poser.received == b"", f"{what} has received {poser.received!r} before {refused.err}"
            store.refuses("mount", "v", store.directory("m"), server=poser.address, credential=web, words=[says], exits=[DENIED])
            equal(poser.received, b"", f"what {what} has received of a mount")
    with Poser(f"{store.state}/credential.toml") as poser:
        Raw(host_port(poser.address), credential=web).socket.sendall(b"sent")
        wait_until(lambda: poser.received == b"sent", "what is sent to a server")
    equal(store.cli("--json", "status", server=address, credential=web).json()["pid"], store.server_pid, "the real one")


@pytest.mark.no_fuse
def test_tokens_that_are_refused(store):
    address, theirs = up(store), store.path("theirs")
    store.cli("init", "--brick", store.path("their-brick"), "--journal", "32", state=theirs)
    port = f"127.0.0.1:{free_port()}"
    store.cli("serve", "--detach", "--listen", port, state=theirs)
    try:
        token, short = store.token(), store.token("--expires", "1s")
        joins = lambda token, *words, exits=(DENIED,): store.refuses(
            "join", token, "--brick", store.path("b9"), "--journal", "32", state=store.path("s9"), words=words, exits=exits
        )
        again = "hekate token create"
        for part in (token[:-1], token[: len(token) // 2], token[3:], "hekate1-"):
            joins(part, "not a token, or not all of it", again, exits=[USAGE])
        joins(changed(token, id="00000000"), "not known, or was used already", again)
        joins(changed(token, secret="0" * 32), "the token's secret is wrong", again)
        joins(changed(token, secret=""), "the token's secret is wrong", again)
        # The token is of one cluster, the address of the other: neither learns the secret.
        log = Log(theirs)
        joins(changed(token, addresses=[port]), "its cluster is not the one that the token is of", re.escape(port))
        log.says(REFUSED, "it refuses this end")
        of_theirs = store.token(state=theirs)
        joins(changed(of_theirs, addresses=[address]), "its cluster is not the one that the token is of", re.escape(address))
        fields = {name: field for name, field in fields_of(token).items() if name in ("fingerprint", "addresses")}
        joins(changed(of_theirs, **fields), "not known, or was used already")
        joins(changed(token, cluster="0" * 32), f"answers for cluster {cluster_of(store.state)}", "the token is of " + "0" * 32)
        with Poser(f"{theirs}/credential.toml") as poser, Poser(f"{store.state}/credential.toml") as ours:
            joins(changed(token, addresses=[poser.address]), "its cluster is not the one that the token is of")
            assert poser.connections and poser.received == b"", f"a false cluster has received {poser.received!r}"
            equal(ours.connections, 0, "connections to an address that the token does not name")
        time.sleep(1.2)
        joins(short, "the token has expired", again)
        equal(os.path.exists(store.path("s9")), False, "a state directory after joins that were refused")
        # One token, two servers at once: one of them has joined.
        token, outcomes = store.token(), []
        words = lambda number: ["join", token, "--brick", store.path(f"b{number}"), "--journal", "32"]
        join = lambda number: outcomes.append(store.try_cli(*words(number), state=store.path(f"s{number}")))
        both = [threading.Thread(target=join, args=(number,)) for number in (2, 3)]
        [thread.start() for thread in both]
        [thread.join() for thread in both]
        equal(sorted(outcome.exit for outcome in outcomes), [0, DENIED], "both with one token")
        joins(token, "was used already", again)
        # The first address of a token does not answer: the next one does.
        token = store.token()
        store.cli(*["join", changed(token, addresses=[f"127.0.0.1:{free_port()}", address])], "--brick", store.path("b4"), "--journal", "32", state=store.path("s4"))
    finally:
        store.cli("stop", state=theirs)
    for name in ("s2", "s3", "s4"):
        if os.path.exists(store.path(f"{name}/server.json")):
            store.serve_other(name)


def fields_of(token):
    text = token.removeprefix("hekate1-")
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.no_fuse
def test_a_credential_is_a_file_of_ones_own(store):
    address = up(store)
    web = store.client("web", "--volume", "v")
    for mode in (0o644, 0o640, 0o604, 0o660):
        os.chmod(web, mode)
        words = ["other users can read", re.escape(web), "chmod 600"]
        store.refuses("status", credential=web, words=words, exits=[DENIED])
        store.refuses("mount", "v", store.directory("m"), server=address, credential=web, words=words, exits=[DENIED])
    os.chmod(web, 0o400)
    equal(store.cli("--json", "status", credential=web).json()["pid"], store.server_pid, "which only its owner reads")
    store.refuses("client", "create", "more", "--volume", "v", "-o", web, words=["exists already", "another file"], exits=[EXISTS])
    store.refuses("client", "create", "web", "--volume", "v", "-o", f"{web}2", words=["client called web already"], exits=[USAGE])
    equal(os.path.exists(f"{web}2"), False, "a file of a client that was not made")
    os.chmod(f"{store.state}/credential.toml", 0o644)
    store.stop()
    store.refuses("serve", words=["other users can read", "credential.toml", "chmod 600"], exits=[DENIED])
    os.chmod(f"{store.state}/credential.toml", 0o600)
    store.serve()


# --- what a certificate opens ---


CHANGES = {
    "create": lambda mnt: write(f"{mnt}/new", b"x"),
    "write": lambda mnt: written(f"{mnt}/f", os.O_WRONLY),
    "write and read": lambda mnt: written(f"{mnt}/f", os.O_RDWR),
    "append": lambda mnt: written(f"{mnt}/f", os.O_WRONLY | os.O_APPEND),
    "write and sync": lambda mnt: written(f"{mnt}/f", os.O_WRONLY | os.O_SYNC),
    "truncate": lambda mnt: os.truncate(f"{mnt}/f", 1),
    "mkdir": lambda mnt: os.mkdir(f"{mnt}/new"),
    "rmdir": lambda mnt: os.rmdir(f"{mnt}/d"),
    "unlink": lambda mnt: os.unlink(f"{mnt}/f"),
    "rename": lambda mnt: os.rename(f"{mnt}/f", f"{mnt}/g"),
    "link": lambda mnt: os.link(f"{mnt}/f", f"{mnt}/g"),
    "symlink": lambda mnt: os.symlink("f", f"{mnt}/g"),
    "mknod": lambda mnt: os.mkfifo(f"{mnt}/g"),
    "chmod": lambda mnt: os.chmod(f"{mnt}/f", 0o600),
    "chown": lambda mnt: os.chown(f"{mnt}/f", 1, 1),
    "utime": lambda mnt: os.utime(f"{mnt}/f", (1, 1)),
    "setxattr": lambda mnt: os.setxattr(f"{mnt}/f", "user.more", b"x"),
    "removexattr": lambda mnt: os.removexattr(f"{mnt}/f", "user.kept"),
}


def written(path, flags):
    """A file may be opened: what is written to it is refused at the latest when it is synced."""
    handle = os.open(path, flags)
    try:
        os.write(handle, b"changed")
        os.fsync(handle)
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)


@pytest.mark.root
def test_a_credential_that_may_only_read(store):
    address = up(store)
    mnt = store.mount("local")
    write(f"{mnt}/f", b"f" * 100_000)
    os.mkdir(f"{mnt}/d")
    os.setxattr(f"{mnt}/f", "user.kept", b"x")
    os.symlink("f", f"{mnt}/s")
    reader = store.client("reader", "--volume", "v", "--read-only")
    before = os.stat(f"{mnt}/f")
    read_only = store.mount("reads", credential=reader)
    for what, change in CHANGES.items():
        try:
            change(read_only)
            raise AssertionError(f"{what} is done")
        except OSError as error:
            equal(errno.errorcode[error.errno], "EROFS", what)
    equal(read(f"{read_only}/f"), b"f" * 100_000, "content")
    equal((sorted(os.listdir(read_only)), os.readlink(f"{read_only}/s")), (["d", "f", "s"], "f"), "names")
    equal((os.getxattr(f"{read_only}/f", "user.kept"), os.statvfs(read_only).f_bsize > 0), (b"x", True), "an attribute, and statfs")
    after = os.stat(f"{mnt}/f")
    equal((after.st_mtime_ns, after.st_ctime_ns, after.st_mode), (before.st_mtime_ns, before.st_ctime_ns, before.st_mode), "the file")
    # By hand as well: the server refuses it, not the mount.
    session = Session(host_port(address), "v", credential=reader)
    with pytest.raises(Refused) as refused:
        session.create("by-hand")
    equal(refused.value.number, READ_ONLY, "what the server refuses it with")
    for words in (["volume", "create", "more"], ["token", "create"], ["client", "list"], ["stop"]):
        store.refuses(*words, credential=reader, words=["client reader may only read the state", "--admin"], exits=[DENIED])


@pytest.mark.root
def test_a_credential_is_for_its_volumes(store):
    address = up(store)
    for name in ("w", "x"):
        store.cli("volume", "create", name, "--copies", "2")
    one = store.client("one", "--volume", "v", "--volume", "w")
    other = store.client("other", "--volume", "x")
    for volume in ("v", "w"):
        write(f"{store.mount(volume, volume=volume, credential=one)}/f", volume.encode())
    words = ["client one may not use volume x", "its credential names others"]
    store.refuses("mount", "x", store.directory("m"), credential=one, words=words, exits=[DENIED])
    at = host_port(address)
    assert "may not use volume x" in refusal(at, open_volume("x"), credential=one).what
    session = Session(at, "v", credential=one)
    equal(greeted(at, resume("v", session.session), credential=one)[1], session.session, "its session, once more")
    for who in (other, f"{store.state}/credential.toml"):
        refused = refusal(at, resume("v", session.session), credential=who)
        assert "session" in refused.what or "may not" in refused.what, refused
    refused = refusal(f"{store.state}/server.sock", resume("v", session.session))
    assert refused.what, refused
    # Nobody gets a client for volumes that are not there.
    store.refuses("client", "create", "more", "--volume", "none", "-o", store.path("m.hekate"), words=["no volume is called none", "v, w, x"])
    store.refuses("client", "create", "more", "-o", store.path("m.hekate"), words=["--volume, or --admin"])
    equal(os.path.exists(store.path("m.hekate")), False, "a file of a client that was not made")


def test_the_log_says_who_was_refused(store):
    address = up(store)
    store.cli("volume", "create", "w", "--copies", "2")
    web, log, at = store.client("web", "--volume", "v"), Log(store.state), host_port(address)
    named = lambda who: rf"{who} from 127\.0\.0\.1:\d+ at network front was refused: "
    refusal(at, open_volume("w"), credential=web)
    log.says(named("client web"), "client web may not use volume w")
    store.refuses("stop", server=address, credential=web, words=["may only read"], exits=[DENIED])
    log.says(named("client web"), "may only read the state")
    session = Session(at, "v", credential=web)
    refusal(at, resume("v", session.session), credential=f"{store.state}/credential.toml")
    log.says(named("server 1"), "the session belongs to another user or client")
    control(at, {"request": "status"})
    log.says(named("a process without a certificate"), "no certificate")
    refusal(at, peer(1, 1, 1), credential=web)
    log.says(named("client web"), "cannot be used as that of server 1")
    begun = time.monotonic()
    for _ in range(40):
        refusal(at, open_volume("w"), credential=web)
    seconds = time.monotonic() - begun
    lines = log.text().splitlines()
    assert 1 <= len(lines) <= seconds + 1, (seconds, lines)
    time.sleep(REFUSALS_S)
    log.at = os.path.getsize(log.path)
    refusal(at, open_volume("w"), credential=web)
    log.says(named("client web"), r"\(\d+ more since the last line\)")
    store.cli("debug", "bundle", store.path("bundle.tar.gz"))
    with tarfile.open(store.path("bundle.tar.gz")) as archive:
        lines = archive.extractfile("hekate-debug/logs/serve.log").read()
    assert b"client client-1 may not use volume" in lines and b"client web" not in lines, lines


def test_doctor_knows_credentials(store):
    up(store)
    web = store.client("web", "--volume", "v")

    def row(what, **named):
        # If a check fails, a second document has the error.
        rows = json.JSONDecoder().raw_decode(store.try_cli("--json", "doctor", **named).out)[0]["checks"]
        return next((one["state"], one["found"], one["fix"]) for one in rows if one["check"] == what)

    def says(credential, state, found, fix):
        told = row("credential", credential=credential)
        assert told[0] == state and found in told[1] and fix in told[2], told

    own = row("server's credential")
    assert own[0] == "good" and own[1].startswith("server 1, valid until "), own
    says(web, "good", "client web, valid until ", "")
    identity = f"hekate://{cluster_of(store.state)}/client/web"
    says(forge(store, "ended", identity, ends_s=-60), "bad", "client web, expired ", "hekate client renew web -o ")
    says(forge(store, "ending", identity, begins_s=-90 * DAY_S, ends_s=13.5 * DAY_S), "weak", "in 13 days", "hekate client renew web -o ")
    says(forge(store, "begins", identity, begins_s=7200, ends_s=DAY_S), "bad", "the clock of this machine is behind", "set the clock")
    other = parts_of(forge(store, "other", identity))
    says(write_credential(store, "mixed", parts_of(web)["chain"], other["key"]), "bad", "the key is not that of the certificate", "hekate client renew")
    says(store.path("none"), "bad", "cannot be read", "hekate client renew")
    os.chmod(web, 0o644)
    says(web, "bad", "other users can read it", f"chmod 600 {web}")
    assert store.try_cli("doctor", credential=web).exit == AWAY, "it fails"
    # A user who may not read the server's is told so.
    equal(row("server's credential", uid=4001)[0], "weak", "of another user")


@pytest.mark.root
def test_an_administrator_does_everything(store):
    address = up(store)
    admin = store.client("admin", "--admin")
    away = {"credential": admin, "state": store.path("none")}
    store.cli("volume", "create", "w", "--copies", "2", **away)
    web = store.path("web.hekate")
    store.cli("client", "create", "web", "--volume", "w", "-o", web, **away)
    token = store.cli("token", "create", **away).out.strip()
    store.join("two", invitation=token)
    store.serve_other("two")
    write(f"{store.mount(volume='w', credential=admin)}/f", b"by the administrator")
    equal(read(f"{store.mount('web', volume='w', credential=web)}/f"), b"by the administrator", "content")
    equal({row["name"] for row in store.cli("--json", "client", "list", **away).json()}, {"admin", "web"}, "clients")
    store.cli("client", "revoke", "web", **away)
    store.refuses("status", credential=web, words=["client web has been revoked"], exits=[DENIED])
    store.umount("web")


@pytest.mark.root
def test_mounts_with_a_credential(store):
    """By mount(8), and with several servers of which one does not answer."""
    address = up(store)
    install_helper(store)
    web, mnt, state = store.client("web", "--volume", "v"), store.directory("mnt"), f"state={store.path('none')}"
    for source, options in [("v", f"credential={web}"), (f"{address}/v", f"credential={web}"), (f"tcp:{address}/v", f"_netdev,credential={web},ro")]:
        works("mount", "-t", "hekate", source, mnt, "-o", f"{state},{options}")
        equal(os.path.ismount(mnt), True, f"{source} with {options}")
        if "ro" not in options.split(","):
            write(f"{mnt}/f", source.encode())
        works("umount", mnt)
    says = ["over TCP a command needs a credential"]
    fails("mount", "-t", "hekate", f"{address}/v", mnt, "-o", state, exit=1, says=says)
    nobody = f"127.0.0.1:{free_port()}"
    for servers in (f"{nobody},{address}", f"{address},{nobody}", f" {nobody} , {address} "):
        equal(store.cli("--json", "status", server=servers, credential=web).json()["pid"], store.server_pid, servers)
        mounted = store.mount("several", server=servers, credential=web)
        equal(read(f"{mounted}/f"), f"{address}/v".encode(), "content")
        store.umount("several")
    other = f"127.0.0.1:{free_port()}"
    store.refuses("status", server=f"{nobody},{other}", credential=web, words=[other], exits=[AWAY])


# --- revocation, renewal, rotation ---


@pytest.mark.root
@pytest.mark.limit(120)
def test_a_revoked_client_is_out(store):
    """Everywhere within 5 s: its connections and mounts, and what its sessions held."""
    local = three(store, listen=True)
    web = store.client("web", "--volume", "v")
    addresses = [store.address] + [store.listens[name][1] for name in ("s2", "s3")]
    mnt = store.mount("web", credential=web)
    write(f"{mnt}/locked", b"x")
    held = os.open(f"{mnt}/locked", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    removed = os.open(f"{mnt}/removed", os.O_RDWR | os.O_CREAT)
    os.write(removed, b"r" * 4_000_000)
    os.fsync(removed)
    os.unlink(f"{mnt}/removed")
    sessions = lambda: store.cli("--json", "volume", "show", "v").json()["sessions"]
    equal(sessions(), 2, "sessions")
    other = os.open(f"{local}/locked", os.O_RDWR)
    raises(errno.EWOULDBLOCK, fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raws = [Raw(host_port(address), credential=web) for address in addresses]
    open_ones = [greeted(host_port(address), TO_CONTROL, credential=web)[0] for address in addresses]
    open_ones += [Session(host_port(address), "v", credential=web).raw for address in addresses]
    store.cli("client", "revoke", "web")
    end = time.monotonic() + REVOKED_S
    left = lambda: max(0.01, end - time.monotonic())
    for raw in raws + open_ones:
        raw.socket.settimeout(left())
        with contextlib.suppress(ConnectionError):
            while raw.socket.recv(4096):
                pass
    for address in addresses:
        wait_until(lambda: store.try_cli("status", server=address, credential=web).exit == DENIED, f"{address} refuses it", limit_s=left() + 1)
        store.refuses("status", server=address, credential=web, words=["client web has been revoked"], exits=[DENIED])
        assert "revoked" in refusal(host_port(address), open_volume("v"), credential=web).what
    wait_until(lambda: took(other), "its lock is free", limit_s=10)
    wait_until(lambda: sessions() == 1, "its sessions have ended", limit_s=10)
    # Whoever used the mount is told, at once.
    begun = time.monotonic()
    for what, call in {"a name": lambda: os.stat(f"{mnt}/other"), "a read": lambda: os.pread(held, 1, 0), "a new file": lambda: write(f"{mnt}/new", b"x")}.items():
        try:
            call()
            raise AssertionError(f"{what} is answered")
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOTCONN), f"{what}: {error}"
    assert time.monotonic() < begun + 10, "it waits"
    for handle in (held, removed, other):
        with contextlib.suppress(OSError):
            os.close(handle)
    store.cli("umount", mnt)
    del store.mount_pids["web"]
    equal(os.path.exists(f"{local}/locked"), True, "the local mount goes on")
    # Its name is free for another one, which the old file does not open.
    again = store.path("again.hekate")
    store.cli("client", "create", "web", "--volume", "v", "-o", again)
    wait_until(lambda: store.try_cli("status", credential=again).exit == 0, "a new client of that name", limit_s=5)
    wait_until(lambda: "newest credential" in store.try_cli("status", credential=web).err, "each server knows the new client", limit_s=5)
    store.refuses("status", credential=web, words=["has been revoked", "newest credential"], exits=[DENIED])


def took(handle):
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


@pytest.mark.root
def test_credentials_are_renewed(store):
    up(store)
    web, new = store.client("web", "--volume", "v"), store.path("new.hekate")
    store.cli("client", "renew", "web", "-o", new)
    assert parts_of(web)["key"] != parts_of(new)["key"], "the key of the new one"
    for file in (web, new):
        equal(store.try_cli("status", credential=file).exit, 0, f"exit with {file}")
        equal(os.stat(file).st_mode & 0o777, 0o600, f"mode of {file}")
    # A client renews its own, and nobody else's.
    store.client("other", "--volume", "v")
    store.cli("client", "renew", "web", "-o", new, credential=web, state=store.path("none"))
    store.refuses("client", "renew", "other", "-o", store.path("o"), credential=web, words=["may only read"], exits=[DENIED])
    equal(os.path.exists(store.path("o")), False, "a credential that was refused")
    # A mount goes on past the end of its certificate, since it renews it.
    brief = store.client("brief", "--volume", "v", "--expires", "6s")
    before, mnt = read(brief), store.mount(credential=brief)
    end = time.monotonic() + 9
    number = 0
    while time.monotonic() < end:
        write(f"{mnt}/{number}", b"x")
        number += 1
        time.sleep(0.1)
    assert read(brief) != before, "the file has the old certificate"
    equal(os.stat(brief).st_mode & 0o777, 0o600, "mode of the renewed file")
    store.kill_server()
    store.serve("--listen", store.address)
    equal(len(os.listdir(mnt)), number, "names, by new connections")
    store.cli("client", "revoke", "web")
    for file in (web, new):
        wait_until(lambda: store.try_cli("status", credential=file).exit == DENIED, f"{file} is refused", limit_s=REVOKED_S)
    store.refuses("client", "renew", "web", "-o", new, words=["client web was revoked", "make another"])


@pytest.mark.root
@pytest.mark.limit(150)
def test_the_root_is_replaced_while_a_mount_writes(store):
    three(store, listen=True, mount=False, apart=True)
    web, late = store.client("web", "--volume", "v"), store.client("late", "--volume", "v")
    mnt = store.mount("web", credential=web)
    ends, done, faults = threading.Event(), [], []

    def work():
        while not ends.is_set():
            begun = time.monotonic()
            try:
                write(f"{mnt}/{len(done)}", b"x" * 5000, os.O_SYNC)
            except OSError as error:
                faults.append(error)
            done.append(time.monotonic() - begun)

    worker = threading.Thread(target=work)
    worker.start()
    states = [store.state, store.path("s2"), store.path("s3"), store.path("c")]
    served = lambda: [parts_of(f"{state}/credential.toml") for state in states]
    roots = lambda: [parts["roots"].count("BEGIN") for parts in served()]
    authority = lambda: store.cli("--json", "ca", "show").json()
    try:
        first = read(f"{store.path('c')}/ca/root.pem").decode()
        old = {parts["chain"] for parts in served()}
        store.refuses("ca", "rotate", "switch", words=["next step", "ca rotate start"])
        store.refuses("ca", "rotate", "finish", words=["next step", "ca rotate start"])
        key = store.path("new-root.key")
        store.cli("ca", "rotate", "start", "--root-key", key)
        equal([oct(os.stat(path).st_mode & 0o777) for path in (key, store.path("new-root.pem"))], ["0o600"] * 2, "modes of the new root")
        store.refuses("ca", "rotate", "start", "--root-key", store.path("k"), words=["next step", "ca rotate switch"])
        wait_until(lambda: roots() == [2] * 4, "all servers trust both roots", limit_s=20)
        status = authority()
        equal((status["next_step"], len(status["roots"]), sorted(status["behind"])), ("switch", 2, ["late", "web"]), "after its first step")
        issued = read(store.path("new-root.pem")).decode()

        def renew():
            for name, file in (("web", web), ("late", late)):
                store.cli("client", "renew", name, "-o", file)
                assert issued in parts_of(file)["roots"], f"the credential of {name} has the new root"
            equal(authority()["behind"], [], "clients that are behind")
            # A mount looks for a newer credential every 5 s.
            time.sleep(6)

        store.refuses("ca", "rotate", "switch", words=["do not trust the new root yet", "late, web|web, late", "client renew", "--force"])
        renew()
        store.cli("ca", "rotate", "switch")
        wait_until(lambda: not old & {parts["chain"] for parts in served()}, "all have new certificates", limit_s=20)
        equal(authority()["next_step"], "finish", "after its second step")
        # Without its new credential a client would be left out.
        store.refuses("ca", "rotate", "finish", words=["below the old root", "late, web|web, late", "client renew", "--force"])
        renew()
        before = len(done)
        time.sleep(1)
        assert len(done) > before, "the mount writes no more"
        store.cli("ca", "rotate", "finish")
        wait_until(lambda: roots() == [1] * 4, "all servers trust the new root only", limit_s=20)
        equal({parts["roots"] for parts in served()}, {issued}, "the root of all servers")
        equal((authority()["next_step"], len(authority()["roots"])), ("start", 1), "after its last step")
        # What the old root signed opens nothing any more.
        cluster = cluster_of(store.state)
        of_old = (f"{store.path('c')}/ca/root.pem", f"{store.path('c')}/ca/root.key")
        stale = forge(store, "stale", f"hekate://{cluster}/client/web", root=of_old)
        refuses(store, store.address, stale, "no root of its cluster has signed the certificate")
        assert first not in {parts["roots"] for parts in served()}
        # All have to connect anew.
        for name in ("s2", "s3"):
            store.kill_other(name)
            store.serve_other(name, *store.listens[name])
            wait_until(lambda: store.status()["health"] == "good", "all is well", limit_s=30)
        store.refuses("join", store.token(), "--brick", store.path("new"), "--pool", "none", state=store.path("s9"), words=["no pool called none"])
    finally:
        ends.set()
        worker.join(timeout=60)
    equal((faults, len(os.listdir(mnt))), ([], len(done)), "failures, and names in the end")
    write(f"{store.mount('late', credential=late)}/late", b"x")
    store.umount("web")
    write(f"{store.mount('web', credential=web)}/again", b"x")


# --- sockets and hostile bytes ---


@pytest.mark.root
def test_every_socket_that_listens(store):
    """TLS, a unix socket, or metrics: nothing else answers anywhere."""
    three(store, listen=True, apart=True)
    store.stop_other("s2")
    metrics = f"127.0.0.1:{free_port()}"
    store.serve_other("s2", *store.listens["s2"], "--listen", f"second=127.0.0.1:{free_port()}", "--metrics", metrics)
    web = store.client("web", "--volume", "v", "--network", "front")
    store.mount("web", credential=web)
    pids = {store.server_pid, store.coordinator_pid, *store.other_pids.values(), *store.mount_pids.values()}
    found = []
    for line in works("ss", "-Htlnp").splitlines():
        at, owners = line.split()[3], {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        if owners & pids:
            found.append(at)
    assert len(found) == 6 and metrics in found, f"sockets that listen: {found}"
    for at in found:
        with socket.create_connection(host_port(at), timeout=20) as connection:
            if at == metrics:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1."), at
                continue
            secured = tls().wrap_socket(connection)
            equal(secured.version(), "TLSv1.3", at)
        with socket.create_connection(host_port(at), timeout=3) as silent:
            # Nothing comes before the other end has begun, and nothing in plain text after.
            silent.setblocking(False)
            time.sleep(0.3)
            raises(errno.EAGAIN, silent.recv, 1)
            silent.settimeout(20)
            silent.sendall(header(4, CHALLENGE) + bytes(4))
            told = b""
            with contextlib.suppress(ConnectionError):
                while more := silent.recv(100):
                    told += more
            assert len(told) <= 7 and told[:1] in (b"", b"\x15"), f"{at} answers {told!r}"
    for line in works("ss", "-Hulnp").splitlines():
        assert not {int(pid) for pid in re.findall(r"pid=(\d+)", line)} & pids, f"a socket for datagrams: {line}"


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", read(f"/proc/{pid}/status").decode())[1]) << 10


@pytest.mark.root
@pytest.mark.limit(150)
def test_half_open_connections_keep_nobody_out(store):
    """2,000 that say nothing, and a few that go on slowly, while a mount works."""
    address = up(store)
    web = store.client("web", "--volume", "v")
    mnt = store.mount(credential=web)
    write(f"{mnt}/f", b"x")
    before, faults, done, ends = resident(store.server_pid), [], [], threading.Event()

    def work():
        while not ends.is_set():
            begun = time.monotonic()
            try:
                write(f"{mnt}/{len(done) % 50}", b"x" * 1000, os.O_SYNC)
            except OSError as error:
                faults.append(error)
            done.append(time.monotonic() - begun)

    worker = threading.Thread(target=work)
    worker.start()
    hello = client_hello()
    held, most = [], 0
    try:
        for number in range(2000):
            one = socket.create_connection(host_port(address), timeout=20)
            held.append(one)
            # A third has said nothing, a third half of its first message, a third all of it, and does not go on.
            with contextlib.suppress(OSError):
                one.sendall([b"", hello[: len(hello) // 2], hello][number % 3])
            if number % 100 == 0:
                most = max(most, resident(store.server_pid))
        # Some go on, a byte at a time.
        for at in range(20):
            for one in held[-60:]:
                with contextlib.suppress(OSError):
                    one.sendall(hello[at : at + 1])
            most = max(most, resident(store.server_pid))
        begun = time.monotonic()
        equal(store.try_cli("status", credential=web).exit, 0, "a command meanwhile")
        assert time.monotonic() < begun + 10, "a command meanwhile takes long"
        time.sleep(1)
    finally:
        ends.set()
        worker.join(timeout=60)
        [one.close() for one in held]
    assert len(done) > 20 and not faults and max(done) < 10, f"the mount meanwhile: {len(done)} writes, {faults}, {max(done):.1f} s at most"
    assert most - before < 40 << 20, f"the server has grown by {most - before >> 20} MiB"
    threads = lambda: len(os.listdir(f"/proc/{store.server_pid}/task"))
    handles = lambda: len(os.listdir(f"/proc/{store.server_pid}/fd"))
    wait_until(lambda: handles() < 200 and threads() < 200, f"connections are given back: {handles()}, {threads()}", limit_s=30)
    store.remount()
    equal(read(f"{mnt}/f"), b"x", "content in the end")


def client_hello():
    """The first message of a client."""
    arrived, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls().wrap_bio(arrived, sent).do_handshake()
    return sent.read()


@pytest.mark.root
@pytest.mark.limit(150)
def test_random_bytes_cost_their_connection_only(store):
    """Before the handshake, in it, and behind it: by who has a certificate, and by who has none."""
    address = up(store)
    web, some, hello = store.client("web", "--volume", "v"), random.Random(11), client_hello()
    mnt = store.mount(credential=web)
    write(f"{mnt}/f", b"kept")
    before = resident(store.server_pid)
    for number in range(60):
        with socket.create_connection(host_port(address), timeout=20) as connection, contextlib.suppress(OSError):
            noise = some.randbytes(some.choice([1, 5, 100, 5000, 70_000]))
            broken = bytearray(hello)
            broken[some.randrange(len(broken))] ^= 1 << some.randrange(8)
            record = b"\x16\x03\x01" + some.choice([b"\xff\xff", b"\x40\x01", b"\x00\x00"])
            connection.sendall([noise, record + noise, bytes(broken) + noise, hello + noise][number % 4])
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    for number in range(60):
        credential = [None, web, f"{store.state}/credential.toml"][number % 3]
        raw = Raw(host_port(address), credential=credential)
        with contextlib.suppress(OSError, EOFError):
            raw.challenge()
            noise = some.randbytes(some.choice([16, 100, 5000, 70_000]))
            if number % 2:
                raw.socket.sendall(noise)
            else:
                # Behind TLS's back: what comes is no record of this connection.
                plain = socket.socket(fileno=os.dup(raw.socket.fileno()))
                plain.sendall(some.choice([noise, b"\x17\x03\x03" + len(noise[:9000]).to_bytes(2, "big") + noise[:9000]]))
                plain.shutdown(socket.SHUT_WR)
                plain.close()
            equal(raw.has_ended(), True, f"it goes on after noise {number}")
        raw.close()
    session = Session(host_port(address), "v", credential=web)
    with contextlib.suppress(OSError, EOFError):
        session.raw.socket.sendall(some.randbytes(200_000))
        session.raw.has_ended()
    grown = resident(store.server_pid) - before
    assert grown < 40 << 20, f"the server has grown by {grown >> 20} MiB"
    equal(read(f"{mnt}/f"), b"kept", "content")
    assert "panicked" not in read(f"{store.state}/serve.log").decode(), "a panic in the log"
    equal(control(host_port(address), {"request": "identify"})["ok"]["server"], 1, "who answers")
