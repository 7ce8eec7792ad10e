"""What is done to a volume while something is wrong: histories of several mounts, and probes of all partitions.

    load.py history OUT SEED SECONDS ROOT...    processes in turn on the roots, rounds until the time is up (recorder.py)
    load.py probe OUT SECONDS FILE...           writes to each file, durably, again and again

MAY_FAIL=ENOSPC,EIO: what may be answered meanwhile.

Both write what they have seen to OUT once they are done. Whoever waits for an answer, waits: the time may be over by then.
"""

import errno
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import recorder  # noqa: E402

PROCESSES = 4
CALLS = 50
# Between two probes of a partition: a gap is known to that.
PROBE_PAUSE_S = 0.04


def history(out, seed, seconds, roots):
    """Rounds of lines for `check-history`; none begins after the time."""
    end = time.monotonic() + seconds
    crew = recorder.Crew(roots, PROCESSES, seed)
    rounds = []
    while time.monotonic() < end:
        try:
            crew.begin(len(rounds), CALLS)
        except OSError as error:
            if errno.errorcode[error.errno] not in os.environ["MAY_FAIL"].split(","):
                raise
            # What a round begins with could not be made. Nobody has been told of it.
            rounds.append([])
            time.sleep(PROBE_PAUSE_S)
            continue
        rounds.append(crew.end())
    crew.stop()
    recorder.save(out, rounds)


class Probe:
    """A file of a partition, overwritten with a counter."""

    def __init__(self, path):
        self.path, self.count, self.errors, self.answers = path, 0, [], []

    def run(self, end):
        self.answers.append(time.monotonic())
        fd = os.open(self.path, os.O_WRONLY | os.O_DSYNC)
        self.answers.append(time.monotonic())
        while time.monotonic() < end:
            try:
                os.pwrite(fd, b"%015d\n" % (self.count + 1), 0)
                self.count += 1
            except OSError as error:
                self.errors.append(str(error))
            self.answers.append(time.monotonic())
            time.sleep(PROBE_PAUSE_S)
        recorder.close(fd)

    def result(self):
        """The longest time without an answer, when that began, and the last that was acknowledged."""
        gaps = [(after - before, before) for before, after in zip(self.answers, self.answers[1:])]
        longest, begun = max(gaps, default=(0, 0))
        return {"file": self.path, "gap_s": round(longest, 3), "begun": begun, "count": self.count, "errors": self.errors[:5]}


def probe(out, seconds, files):
    end = time.monotonic() + seconds
    probes = [Probe(path) for path in files]
    threads = [threading.Thread(target=probe.run, args=[end]) for probe in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(out, "w") as file:
        json.dump([probe.result() for probe in probes], file)


if __name__ == "__main__":
    if sys.argv[1] == "history":
        history(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5:])
    else:
        probe(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
