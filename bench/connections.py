#!/usr/bin/env python3
"""What connections over TLS cost a server: memory and threads of idle ones, of busy ones, and of a flood of half-open ones.

  bench/connections.py [--idle 2000] [--busy 200] [--half-open 10000] [--seconds 5]

One server on loopback, one client's certificate. An idle connection has finished the handshake of a session and waits. A busy one asks
who answers (`identify`), one round trip after the other, in ten processes. A half-open one has connected and sends nothing, or 5 bytes
of a handshake; 400 at a time are kept. Prints a JSON line for each. Needs HEKATE=PROGRAM (else target/release/hekate)."""
import argparse, json, multiprocessing, os, resource, shutil, socket, ssl, struct, subprocess, sys, time, tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
HEKATE = os.path.abspath(os.environ.get("HEKATE", f"{HERE}/../target/release/hekate"))
BASE, PORT = "/var/tmp/hekate-connections", 7155
VERSION = 12
CHALLENGE, HELLO, CONTROL = 1, 2, 6


def hekate(*words):
    return subprocess.run([HEKATE, "--state", f"{BASE}/state", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def context():
    with open(f"{BASE}/web", "rb") as file:
        credential = tomllib.load(file)
    for name in ("chain", "key", "roots"):
        with open(f"{BASE}/{name}.pem", "w") as file:
            file.write(credential[name])
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(f"{BASE}/roots.pem")
    made.load_cert_chain(f"{BASE}/chain.pem", f"{BASE}/key.pem")
    return made


def frame(kind, body):
    return struct.pack("<IB3xQ", len(body), kind, 1) + body


def text(value):
    return struct.pack("<I", len(value)) + value.encode()


def receive(stream):
    head = b""
    while len(head) < 16:
        head += stream.recv(16 - len(head)) or sys.exit("connections: the server ended a connection")
    length, body = struct.unpack("<I", head[:4])[0], b""
    while len(body) < length:
        body += stream.recv(length - len(body))
    return body


def connected():
    # socket.create_connection looks the address up, which takes longer than all that follows.
    stream = socket.socket()
    stream.connect(("127.0.0.1", PORT))
    return stream


def greeted(made, purpose):
    stream = made.wrap_socket(connected())
    assert struct.unpack("<I", receive(stream)[:4])[0] == VERSION, "the server speaks another version"
    stream.sendall(frame(HELLO, struct.pack("<I", VERSION) + purpose))
    return stream, receive(stream)


def of_server(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"])


def ask(made, seconds, count, done):
    streams = [greeted(made, b"\x03")[0] for _ in range(count)]
    asked, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for stream in streams:
            stream.sendall(frame(CONTROL, text('{"request":"identify"}')))
        for stream in streams:
            receive(stream)
        asked += count
    done.put(asked)
    time.sleep(1)


def measure(options, pid):
    made = context()
    before, threads = of_server(pid)
    stream, accepted = greeted(made, b"\x01" + text("v"))
    session, kept = accepted[1:9], [stream]
    while len(kept) < options.idle:
        kept.append(greeted(made, b"\x02" + text("v") + session)[0])
    time.sleep(1)
    after, now = of_server(pid)
    print(json.dumps({"idle": options.idle, "kib_each": (after - before) / options.idle, "threads": now - threads}), flush=True)

    done, processes = multiprocessing.Queue(), 10
    workers = [multiprocessing.Process(target=ask, args=(made, options.seconds, options.busy // processes, done)) for _ in range(processes)]
    [worker.start() for worker in workers]
    rate = sum(done.get() for _ in workers) / options.seconds
    busy, now = of_server(pid)
    [worker.join() for worker in workers]
    print(json.dumps({"busy": options.busy, "beside_idle": options.idle, "round_trips_s": rate, "kib_each": (busy - after) / options.busy,
                      "threads": now - threads}), flush=True)

    most, waits, open_now, begun = 0, [], [], time.monotonic()
    for number in range(options.half_open):
        one = connected()
        open_now.append(one)
        if number % 2:
            one.sendall(b"\x16\x03\x01\x02\x00")
        if len(open_now) > 400:
            open_now.pop(0).close()
        if number % 500 == 250:
            at = time.monotonic()
            greeted(made, b"\x03")[0].close()
            waits.append(time.monotonic() - at)
            most = max(most, of_server(pid)[0])
    took = time.monotonic() - begun
    print(json.dumps({"half_open": options.half_open, "a_second": options.half_open / took, "honest_handshakes": len(waits),
                      "slowest_ms": max(waits) * 1000, "kib_more_at_most": most - busy}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--half-open", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    os.mkdir(BASE)
    try:
        hekate("init", "--brick", f"{BASE}/brick", "--volume", "v", "--copies", "1", "--journal", "32")
        hekate("serve", "--detach", "--listen", f"127.0.0.1:{PORT}")
        hekate("client", "create", "web", "--volume", "v", "-o", f"{BASE}/web")
        measure(options, json.loads(hekate("--json", "status"))["pid"])
    finally:
        subprocess.run([HEKATE, "--state", f"{BASE}/state", "stop"], stdout=subprocess.DEVNULL)
        shutil.rmtree(BASE, ignore_errors=True)


main()
