"""A store of several servers."""

from harness import free_port, wait_until


def three(store, listen=False, mount=True, apart=False, options=()):
    """Three servers with a brick each, and a volume with its copies on two of them -> the mount, if it is wanted.

    `listen`: all of them on TCP, not the first alone. `apart`: the coordinator is a process of its own. `options`: those of
    `init`.
    """
    if apart:
        store.coordinator_address = f"127.0.0.1:{free_port()}"
        store.coordinate(store.coordinator_address)
        options = ["--coordinator", store.token(state=store.path("c"))]
    store.init(volume=None, bricks=1, options=options)
    store.address = f"127.0.0.1:{free_port()}"
    store.serve("--listen", store.address)
    store.listens = {}
    for name in ["s2", "s3"]:
        store.join(name)
        store.listens[name] = ["--listen", f"127.0.0.1:{free_port()}"] if listen else []
        store.serve_other(name, *store.listens[name])
    store.cli("volume", "create", "v", "--copies", "2", "--domain", "server")
    wait_until(lambda: store.status()["health"] == "good", "all partitions serve", limit_s=20)
    return store.mount() if mount else None
