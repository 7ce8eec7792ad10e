#!/usr/bin/env python3
"""Tables and a figure of what lanes.py found.

  bench/lanes_report.py RUN.jsonl [--svg FILE] [--trip MICROSECONDS]

Prints Markdown: the rate of each mode, and what issue 7 aims at as ratios, a column for each round trip and number of jobs; for each of these
latency percentiles in ms as well; the rates of two mounts that fight over a shard, and what pieces of safety cost (pieces.sh). The SVG has the cumulative latency
distributions at the round trip nearest to MICROSECONDS (500 if not said), one job and eight.
"""
import argparse
import json
import math

COLOURS = ["#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7d5ba6", "#8d6e63", "#2e4057", "#00798c", "#999999"]
PIECES = {"fast-write-not-listed": "lists of unsettled writes", "stamps-not-compared": "stamps: counts alone", "sync-off": "sync",
          "checksums-off": "checksums", "times-off": "times"}
# Whose rate to whose, and the aim (0: none).
RATIOS = [("hsr", "afr", 2), ("hsr", "afr-optimised", 1.5), ("hsr", "fast-path", 0.8), ("hsr", "leader", 0), ("hsr", "gluster-eager", 0),
          ("afr", "gluster", 1), ("hsr-loose", "leader-loose", 0)]
WIDTH, HEIGHT, MARGIN = 460, 300, 48


def table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print()


def percentile(found, name):
    return f"{found['percentiles_us'][name] / 1000:.2f}"


def rates(found):
    for trip in sorted({one["round_trip_us"] for one in found}):
        for jobs in sorted({one["jobs"] for one in found}):
            here = [one for one in found if (one["round_trip_us"], one["jobs"]) == (trip, jobs)]
            base = next((one["iops"] for one in here if one["mode"] == "leader"), None)
            print(f"Round trip {trip / 1000:.2f} ms, {jobs} job{'s' if jobs > 1 else ''}:\n")
            cells = [[one["mode"], f"{one['iops']:.0f}", f"{one['iops'] / base:.2f}" if base else "", percentile(one, "50.000000"),
                      percentile(one, "90.000000"), percentile(one, "99.000000"), percentile(one, "99.900000")] for one in here]
            table(["mode", "writes/s", "to leader", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"], cells)


def headline(found):
    if not found:
        return
    columns = sorted({(one["round_trip_us"], one["jobs"]) for one in found})
    rate = {(one["mode"], one["round_trip_us"], one["jobs"]): one["iops"] for one in found}
    rows = [[mode, *(f"{rate[mode, *column]:,.0f}" if (mode, *column) in rate else "" for column in columns)] for mode in dict.fromkeys(one["mode"] for one in found)]
    for mode, base, aim in RATIOS:
        ratios = [(rate.get((mode, *column)), rate.get((base, *column))) for column in columns]
        cells = [f"{own / other:.2f}" if own and other else "" for own, other in ratios]
        bold = [f"**{cell}**" if cell and aim and float(cell) < aim else cell for cell in cells]
        if any(cells):
            rows.append([f"{mode} to {base}" + (f", aim {aim:g}" if aim else ""), *bold])
    table(["writes/s", *(f"{trip / 1000:.2f} ms, {jobs} job{'s' if jobs > 1 else ''}" for trip, jobs in columns)], rows)


def fights(found):
    rows = [[f"{one['round_trip_us'] / 1000:.2f}", one["mode"], one.get("placement", ""), " + ".join(f"{rate:.0f}" for rate in one["iops_each"])] for one in found]
    table(["round trip ms", "mode", "inode and shard", "writes/s of two mounts"], rows)


def costs(found):
    rows = []
    for mode in ("hsr", "leader"):
        for jobs in sorted({one["jobs"] for one in found}):
            here = {one["without"]: one["iops"] for one in found if (one["mode"], one["jobs"]) == (mode, jobs)}
            rows += [[mode, jobs, PIECES.get(piece, piece), f"{rate:.0f}", f"{rate / here['nothing']:.2f}"] for piece, rate in here.items()]
    table(["mode", "jobs", "without", "writes/s", "to with all"], rows)


def panel(found, left, title):
    """One figure: share of writes that took at most so long, over a logarithmic axis from 0.1 ms to 100 ms."""
    def x(microseconds):
        return left + MARGIN + (WIDTH - MARGIN - 10) * (math.log10(max(microseconds, 100)) - 2) / 3

    def y(share):
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share / 100

    out = [f'<text x="{left + WIDTH / 2}" y="20" text-anchor="middle" font-weight="bold">{title}</text>']
    for exponent in range(2, 6):
        at = x(10 ** exponent)
        out.append(f'<line x1="{at:.1f}" y1="{y(0)}" x2="{at:.1f}" y2="{y(100)}" stroke="#ddd"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{10 ** (exponent - 3):g} ms</text>')
    for share in (0, 25, 50, 75, 100):
        out.append(f'<line x1="{x(100)}" y1="{y(share):.1f}" x2="{x(1e5)}" y2="{y(share):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left + MARGIN - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share} %</text>')
    for number, one in enumerate(found):
        points = " ".join(f"{x(took):.1f},{y(float(share)):.1f}" for share, took in one["percentiles_us"].items())
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.6"/>')
    return out


def figure(found, trip_wanted, path):
    trip = min({one["round_trip_us"] for one in found}, key=lambda trip: abs(trip - trip_wanted))
    here = [one for one in found if one["round_trip_us"] == trip]
    jobs = sorted({one["jobs"] for one in here})
    out = []
    for number, count in enumerate(jobs):
        title = f"{count} job{'s' if count > 1 else ''}, round trip {trip / 1000:.2f} ms"
        out += panel([one for one in here if one["jobs"] == count], number * WIDTH, title)
    modes = [one["mode"] for one in here if one["jobs"] == jobs[0]]
    for number, mode in enumerate(modes):
        at = 10 + number * (WIDTH * len(jobs) - 20) / len(modes)
        out.append(f'<rect x="{at:.0f}" y="{HEIGHT}" width="12" height="4" fill="{COLOURS[number % len(COLOURS)]}"/>')
        out.append(f'<text x="{at + 16:.0f}" y="{HEIGHT + 6}">{mode}</text>')
    size = f'width="{WIDTH * len(jobs)}" height="{HEIGHT + 20}"'
    with open(path, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n')
        file.write('<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--svg")
    parser.add_argument("--trip", type=float, default=500)
    options = parser.parse_args()
    with open(options.run) as file:
        found = [json.loads(line) for line in file]
    measured = [one for one in found if "jobs" in one and "without" not in one]
    headline(measured)
    rates(measured)
    fights([one for one in found if "fight" in one])
    costs([one for one in found if "without" in one])
    if options.svg:
        figure(measured, options.trip, options.svg)


main()
