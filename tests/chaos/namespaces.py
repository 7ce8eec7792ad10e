"""Network namespaces whose processes reach each other by addresses of 127.0.0.0/8.

Addresses of that range, routed between the namespaces (route_localnet), are nobody else's on a machine that runs this. Neighbours are told by hand: nothing is broadcast. Needs root.
"""

import subprocess


def run(*words, check=True, **named):
    """-> what it printed."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **named)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout} {done.stderr}")
    return done.stdout


def entering(name):
    """What is put before a command that is to be in that network, and in nothing else of its own."""
    return ["nsenter", f"--net=/run/netns/{name}"]


def inside(name, *words, **named):
    return run(*entering(name), *words, **named)


def make(name, address):
    """A namespace with this address, in which no other of 127.0.0.0/8 but 127.0.0.1 is local."""
    run("ip", "netns", "add", name)
    inside(name, "ip", "link", "set", "lo", "up")
    inside(name, "ip", "addr", "add", f"{address}/32", "dev", "lo")
    inside(name, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
    inside(name, "ip", "route", "add", "local", "127.0.0.1/32", "dev", "lo", "table", "local", check=False)
    inside(name, "ip", "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local", check=False)


def remove(name):
    run("ip", "netns", "del", name, check=False)


def raise_device(name, device):
    inside(name, "ip", "link", "set", device, "mtu", "9000", "up")
    inside(name, "sysctl", "-qw", f"net.ipv4.conf.{device}.route_localnet=1", f"net.ipv4.conf.{device}.rp_filter=0")


def lead(name, address, device, peer_address, peer_mac):
    """The peer is reached through the device."""
    inside(name, "ip", "neigh", "replace", peer_address, "lladdr", peer_mac, "dev", device)
    inside(name, "ip", "route", "add", f"{peer_address}/32", "dev", device, "src", address)
