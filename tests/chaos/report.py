"""What a run of chaos has measured: a line a cycle, and a table of fail-over times.

    report.py FILE...     the table over files that `run.py --report` wrote
"""

import json
import os
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import faults  # noqa: E402

PERCENTILE = 0.9


def line(result):
    """One cycle."""
    gaps = [gap["gap_s"] for gap in result["gaps"] if gap["affected"]]
    worst = f"gaps {statistics.median(gaps):.2f}/{max(gaps):.2f} s" if gaps else "nobody affected"
    notes = f" ({'; '.join(result['notes'])[:160]})" if result["notes"] else ""
    done = f"{result['calls']} calls, {result['acknowledged']} acknowledged, {result['probes']} probes"
    return (f"{result['cycle']:3} {result['kind']:11} {result['volume']:7} {result['victim']} {result['hold_s']:4} s: {worst}, "
            f"whole {result['whole_s']} s, {done}, {result['took_s']} s{notes}")


def append(path, seed, result):
    with open(path, "a") as file:
        file.write(json.dumps({"seed": seed, **result}) + "\n")


def row(kind, results):
    """How often, fail-over times of affected partitions, how many met the aim, and how soon the cluster was whole."""
    gaps = sorted(gap["gap_s"] for result in results for gap in result["gaps"] if gap["affected"])
    aim = {**faults.KINDS, **faults.ETCD_KINDS}[kind].aim_s
    times = [gaps[0], statistics.median(gaps), gaps[min(len(gaps) - 1, int(len(gaps) * PERCENTILE))], gaps[-1]] if gaps else []
    within = f"{sum(gap <= aim for gap in gaps)} of {len(gaps)} in {aim} s" if aim and gaps else ""
    whole = [result["whole_s"] for result in results]
    cells = [kind, str(len(results)), str(len(gaps)), *(f"{time:.2f}" for time in times or [0] * 4), within]
    return cells + [f"{statistics.median(whole):.1f}", f"{max(whole):.1f}"]


def table(results):
    """In Markdown. Kinds that did not come are named as such."""
    head = ["fault", "cycles", "partitions", "min s", "median s", "p90 s", "max s", "aim", "whole, median s", "whole, max s"]
    kinds = {kind: [result for result in results if result["kind"] == kind] for kind in [*faults.KINDS, *faults.ETCD_KINDS]}
    rows = [head, ["---"] * len(head), *(row(kind, found) for kind, found in kinds.items() if found)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    missing = [kind for kind, found in kinds.items() if not found and kind in faults.KINDS]
    total = f"{len(results)} cycles, {sum(result['calls'] for result in results)} calls judged, "
    total += f"{sum(result['acknowledged'] for result in results)} ops acknowledged and found, {sum(result['probes'] for result in results)} probes"
    return f"{text}\n\n{total}; kinds that did not come: {', '.join(missing) or 'none'}"


if __name__ == "__main__":
    everything = []
    for name in sys.argv[1:]:
        with open(name) as file:
            everything += [json.loads(text) for text in file]
    print(table(everything))
