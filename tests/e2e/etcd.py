"""Members of etcd: those that the cluster makes beside its servers, and an etcd that is there."""

import base64
import json
import os
import signal
import ssl
import subprocess
import urllib.request

from harness import free_port, kill, wait_until
from servers import three

FIRST = "state"


def member(store, name, *options):
    """Makes the member beside a server, or starts it again."""
    words = ["--json", "coordinator", "etcd", "--detach", "--address", "127.0.0.1"]
    ports = store.etcd_ports.setdefault(name, (free_port(), free_port()))
    words += ["--client-port", str(ports[0]), "--peer-port", str(ports[1]), *options]
    return store.cli(*words, state=store.path(name), limit_s=90).json()["member"]


def pid_of(store, name):
    with open(f"{store.path(name)}/etcd/etcd.pid") as file:
        return int(file.read())


def kill_member(store, name):
    kill(pid_of(store, name))


def pause_member(store, name):
    os.kill(pid_of(store, name), signal.SIGSTOP)


def resume_member(store, name):
    os.kill(pid_of(store, name), signal.SIGCONT)


def shown(store, state=FIRST):
    return store.cli("--json", "coordinator", "show", state=store.path(state)).json()


def place(store, state=FIRST):
    return shown(store, state)["place"]


def in_state(store, wanted):
    """Names of the members in a state: leader, member, learner."""
    return [row["name"] for row in shown(store)["members"] if row["state"] == wanted]


def state_of(name):
    """The state directory of the server beside which a member runs."""
    number = int(name.removeprefix("server-"))
    return FIRST if number == 1 else f"s{number}"


def move(store, to="etcd", state=FIRST):
    return store.cli("--json", "coordinator", "move", "--to", to, state=store.path(state)).json()


def three_with_etcd(store, mount=True, moved=True):
    """Three servers, each with a member of etcd, in which the records are -> the mount."""
    mnt = three(store, listen=True, mount=mount)
    store.etcd_ports = {}
    for name in [FIRST, "s2", "s3"]:
        member(store, name)
    if moved:
        move(store)
        wait_until(lambda: all(place(store, name).startswith("etcd:") for name in [FIRST, "s2", "s3"]), "all servers use etcd")
    return mnt


class Own:
    """An etcd of one member that the cluster has not made, with certificates of its own."""

    def __init__(self, store, name="own-etcd"):
        self.directory = store.directory(name)
        self.port, peer = free_port(), free_port()
        self.address = f"https://127.0.0.1:{self.port}"
        self.ca, self.certificate, self.key = certificates(self.directory)
        tls = ["--cert-file", self.certificate, "--key-file", self.key, "--trusted-ca-file", self.ca, "--client-cert-auth"]
        words = ["etcd", "--name", "own", "--data-dir", f"{self.directory}/data", "--initial-cluster", f"own=http://127.0.0.1:{peer}"]
        words += ["--listen-client-urls", self.address, "--advertise-client-urls", self.address]
        words += ["--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
        self.metrics_address = f"http://127.0.0.1:{free_port()}"
        self.words = [*words, *tls, "--listen-metrics-urls", self.metrics_address]
        self.start()

    def start(self):
        with open(f"{self.directory}/log", "a") as log:
            self.process = subprocess.Popen(self.words, stderr=log, stdout=log, start_new_session=True)
        wait_until(lambda: self.etcdctl("endpoint", "health").returncode == 0, "etcd answers")

    def etcdctl(self, *words):
        tls = ["--cacert", self.ca, "--cert", self.certificate, "--key", self.key, "--endpoints", self.address]
        return subprocess.run(["etcdctl", *tls, *words], capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"})

    def call(self, path, request):
        """-> the answer of etcd's JSON gateway."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.certificate, self.key)
        asked = urllib.request.Request(f"{self.address}/v3/{path}", json.dumps(request).encode())
        with urllib.request.urlopen(asked, context=context, timeout=30) as answer:
            return json.load(answer)

    def pairs(self, prefix):
        """-> keys and values below a prefix that ends with a slash."""
        found = self.call("kv/range", {"key": coded(prefix), "range_end": coded(prefix[:-1] + "0")})
        return {decoded(pair["key"]): decoded(pair["value"]) for pair in found.get("kvs", [])}

    def put(self, pairs):
        for at in range(0, len(pairs), 100):
            puts = [{"request_put": {"key": coded(key), "value": coded(value)}} for key, value in pairs[at : at + 100]]
            self.call("kv/txn", {"success": puts})

    def metric(self, name):
        with urllib.request.urlopen(f"{self.metrics_address}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def options(self):
        return ["--etcd", self.address, "--etcd-ca", self.ca, "--etcd-cert", self.certificate, "--etcd-key", self.key]

    def end(self):
        self.process.kill()
        self.process.wait()


def coded(text):
    return base64.b64encode(text.encode()).decode()


def decoded(text):
    return base64.b64decode(text).decode()


def certificates(directory):
    """-> files of an authority, and of a certificate for 127.0.0.1 that it has signed, with its key."""
    ca, ca_key, key, request = (f"{directory}/{name}" for name in ["ca.pem", "ca.key", "own.key", "own.csr"])
    certificate, extensions = f"{directory}/own.pem", f"{directory}/own.ext"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", ca_key, "-out", ca,
            "-subj", "/CN=etcd authority", "-days", "30")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=own")
    with open(extensions, "w") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", certificate, "-days", "30",
            "-extfile", extensions)
    return ca, certificate, key


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)
