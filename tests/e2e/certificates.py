"""Certificates that Hekate did not issue, ends of TLS that are not its own, and what a server says of them."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
import threading
import time

from harness import read, wait_until
from raw_client import load, parts_of

CONFIGURATION = """
[ca]
default_ca = it
[it]
new_certs_dir = {directory}
database = {directory}/index
serial = {directory}/serial
default_md = sha256
policy = any
x509_extensions = leaf
unique_subject = no
[any]
commonName = supplied
[leaf]
keyUsage = digitalSignature
extendedKeyUsage = {usage}
{names}
"""
DAY_S = 24 * 3600
REFUSED = r"a connection from 127\.0\.0\.1:\d+ at network \S+ was refused: "
# A server writes at most one line in this time about refusals.
REFUSALS_S = 1.1


def openssl(*words):
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl {' '.join(words)}: {done.stderr}"


def make_key(path):
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def cluster_of(state):
    return parts_of(f"{state}/credential.toml")["cluster"]


def make_root(store, name):
    """A root that no cluster trusts -> its certificate and key."""
    key, certificate = store.path(f"{name}.key"), store.path(f"{name}.pem")
    make_key(key)
    openssl("req", "-x509", "-new", "-key", key, "-subj", f"/CN={name}", "-days", "9", "-out", certificate)
    return certificate, key


def forge(store, name, identity, root=None, begins_s=-DAY_S, ends_s=DAY_S, usage="clientAuth"):
    """A credential of the store's cluster, whose certificate was signed outside it: by the cluster's own root, unless another
    one is named. `identity`: a URI, or None -> its file."""
    certificate, key = root or (f"{store.state}/ca/root.pem", f"{store.state}/ca/root.key")
    directory = store.directory(f"{name}-ca")
    names = f"subjectAltName = URI:{identity}" if identity else ""
    with open(f"{directory}/conf", "w") as file:
        file.write(CONFIGURATION.format(directory=directory, usage=usage, names=names))
    open(f"{directory}/index", "w").close()
    make_key(f"{directory}/key")
    openssl("req", "-new", "-key", f"{directory}/key", "-subj", f"/CN={name}", "-out", f"{directory}/request")
    words = ["-config", f"{directory}/conf", "-cert", certificate, "-keyfile", key, "-in", f"{directory}/request"]
    dates = ["-startdate", date(begins_s), "-enddate", date(ends_s), "-rand_serial", "-notext", "-out", f"{directory}/certificate"]
    openssl("ca", "-batch", *words, *dates)
    chain = read(f"{directory}/certificate").decode()
    return write_credential(store, name, chain, read(f"{directory}/key").decode())


def date(after_s):
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + after_s))


def write_credential(store, name, chain, key):
    """With the roots and the cluster of the store."""
    ours, file = parts_of(f"{store.state}/credential.toml"), store.path(f"{name}.hekate")
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(f'cluster = "{ours["cluster"]}"\n')
        for field, text in (("roots", ours["roots"]), ("chain", chain), ("key", key)):
            out.write(f'{field} = """\n{text}"""\n')
    return file


class Poser:
    """Answers at a port as a server of TLS with this credential, or with `says`; keeps what it received."""

    def __init__(self, credential=None, says=None, version=ssl.TLSVersion.TLSv1_3, port=0):
        self.says, self.received, self.connections = says, b"", 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = self.context.maximum_version = version
        if credential:
            # As a server shows it: its roots too.
            load(self.context, credential, with_roots=True)
        self.listener = socket.create_server(("127.0.0.1", port))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        connection.settimeout(20)
        with contextlib.suppress(OSError), connection:
            if self.says is not None:
                connection.sendall(self.says)
                return
            with self.context.wrap_socket(connection, server_side=True) as secured:
                while more := secured.recv(4096):
                    self.received += more


class Log:
    """What a server writes into its log from now on."""

    def __init__(self, state):
        self.path = f"{state}/serve.log"
        self.at = os.path.getsize(self.path)

    def text(self):
        return read(self.path)[self.at :].decode()

    def says(self, *words):
        """Waits for a line with all of these (regular expressions), and forgets what was before. The next refusal has a line
        of its own."""
        is_it = lambda line: all(re.search(word, line) for word in words)
        wait_until(lambda: any(is_it(line) for line in self.text().splitlines()), f"{words} in the log, which has: {self.text()}", limit_s=10)
        self.at = os.path.getsize(self.path)
        time.sleep(REFUSALS_S)
