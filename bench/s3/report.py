#!/usr/bin/env python3
"""Tables of a run of run.py.  report.py FILE [--peers versity-xfs,versity-gluster]

Later lines of a row replace earlier ones. The first system is compared with each of --peers: ratios above 1 are in its favour.
"""

import argparse
import json


def read(path):
    rows, systems = {}, []
    with open(path) as lines:
        for line in map(json.loads, lines):
            rows[line["row"], line["system"]] = line
            systems += [line["system"]] if line["system"] not in systems else []
    return rows, systems


def value(line):
    """Requests a second, or MiB a second of large objects."""
    is_large = line["size"] >= 1 << 20 and line["work"] in ("put", "get")
    return line["mib_per_s"] if is_large else line["per_s"]


def shown(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--peers", default="versity-xfs,versity-gluster")
    options = parser.parse_args()
    rows, systems = read(options.file)
    peers = [peer for peer in options.peers.split(",") if peer in systems]
    names = list(dict.fromkeys(row for row, _ in rows))
    names = [name for name in names if not name.startswith(("syncs", "memory"))]
    first = systems[0]
    heads = ["row", *systems, *(f"to {peer}" for peer in peers), f"p99 of {first}, ms", "CPU ms a request", "others' CPUs"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name in names:
        lines = {system: rows.get((name, system)) for system in systems}
        cells = [shown(value(line)) if line else "-" for line in lines.values()]
        cells = ["errors" if line and line["errors"] else cell for line, cell in zip(lines.values(), cells)]
        own = lines[first]
        for peer in peers:
            other = lines[peer]
            ratio = value(own) / value(other) if own and other and value(other) else None
            cells.append("-" if ratio is None else f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}")
        cells += [f"{own['p99_ms']:.2f}", f"{own['server_cpu_ms_per_request']:.3f}"] if own else ["-", "-"]
        cells.append(f"{max(line['other_cpus'] for line in lines.values() if line):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    for (name, system), line in rows.items():
        if name == "syncs":
            calls = ", ".join(f"{count:.2f} {call}" for call, count in line["calls_per_put"].items())
            print(f"\nsyncs of a PUT, {system}: {calls or 'none'}", end="")
        elif name.startswith("memory"):
            print(f"\n{name}, {system}: peak {line['peak_mib']} MiB, before {line['idle_mib']}, {line['mib_per_s']} MiB/s", end="")
    print()


if __name__ == "__main__":
    main()
