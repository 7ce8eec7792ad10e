"""Processes that use one SQLite database, and keep a record, outside of the mount, of what was committed.

    sqlite_clients.py write DB RECORD WORKER [--until FILE]   transactions until FILE exists; a line in RECORD for each
    sqlite_clients.py read DB [--until FILE]                  checks each snapshot; exit status 1 if one is not whole
    sqlite_clients.py verify DB RECORD...                     everything recorded is there; prints counts as JSON

A transaction adds a row, changes an old one and adds to the counter of its worker, so a snapshot is whole only if the
counters agree with the rows. Each row is of a length that its number says, over a page now and then.
"""

import argparse
import json
import os
import random
import sqlite3
import sys
import time

BUSY_S = 120
# Rows that are changed again: the nth transaction changes row n - BACK.
BACK = 7
# SQLite polls for its locks, so without pauses one client has them all the time, on any file system.
PAUSE_S = 0.03


def connect(path, mode=None):
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    if mode:
        found = connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
        assert found == mode, f"journal mode {found}, not {mode}"
    connection.execute("PRAGMA synchronous=FULL")
    # Every read is to come from the file: what another process or mount wrote must be seen there.
    connection.execute("PRAGMA cache_size=10")
    return connection


def content(worker, number, turn):
    return f"{worker} {number} {turn} ".ljust(40 + (number * 397) % 6000, "x")


def make(path, mode, workers):
    connection = connect(path, mode)
    connection.execute("CREATE TABLE rows (worker INT, number INT, turn INT, body TEXT, PRIMARY KEY (worker, number))")
    connection.execute("CREATE INDEX bodies ON rows (body)")
    connection.execute("CREATE TABLE counters (worker INT PRIMARY KEY, number INT)")
    connection.executemany("INSERT INTO counters VALUES (?, 0)", [(worker,) for worker in range(workers)])
    connection.close()


def write(path, record, worker, until):
    connection = connect(path)
    log = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    while not os.path.exists(until):
        connection.execute("BEGIN IMMEDIATE")
        # As a counter is used: what was read in the transaction is written back plus one.
        number = connection.execute("SELECT number FROM counters WHERE worker = ?", (worker,)).fetchone()[0] + 1
        connection.execute("INSERT INTO rows VALUES (?, ?, 0, ?)", (worker, number, content(worker, number, 0)))
        old = number - BACK
        connection.execute("UPDATE rows SET turn = 1, body = ? WHERE worker = ? AND number = ?", (content(worker, old, 1), worker, old))
        connection.execute("UPDATE counters SET number = ? WHERE worker = ?", (number, worker))
        connection.execute("COMMIT")
        os.write(log, b"%d\n" % number)
        time.sleep(random.uniform(0.2, 1) * PAUSE_S)


def whole(connection):
    """Checks one snapshot. -> the counters, by worker."""
    connection.execute("BEGIN")
    counters = dict(connection.execute("SELECT worker, number FROM counters"))
    found = {worker: 0 for worker in counters}
    for worker, number, turn, body in connection.execute("SELECT * FROM rows ORDER BY worker, number"):
        found[worker] += 1
        assert number == found[worker], f"worker {worker}: row {number} follows {found[worker] - 1}"
        wanted = 1 if number + BACK <= counters[worker] else 0
        assert turn == wanted, f"worker {worker} row {number}: turn {turn}, not {wanted}"
        assert body == content(worker, number, turn), f"worker {worker} row {number}: {body[:60]!r}"
    connection.execute("COMMIT")
    assert found == counters, f"rows {found}, counters {counters}"
    return counters


def read(path, until):
    connection = connect(path)
    before, snapshots = {}, 0
    while not os.path.exists(until):
        counters = whole(connection)
        back = [worker for worker in before if counters[worker] < before[worker]]
        assert not back, f"counters went back: {before}, then {counters}"
        before, snapshots = counters, snapshots + 1
        time.sleep(random.uniform(1, 3) * PAUSE_S)
    print(json.dumps({"snapshots": snapshots}))


def verify(path, records):
    """Worker N's record is the Nth."""
    connection = connect(path)
    problems = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    assert not problems, f"integrity_check: {problems[:5]}"
    counters = whole(connection)
    for worker, record in enumerate(records):
        with open(record) as file:
            acknowledged = [int(line) for line in file]
        assert acknowledged == sorted(set(acknowledged)), f"worker {worker}: a number twice: an update was lost"
        last = acknowledged[-1] if acknowledged else 0
        assert counters[worker] >= last, f"worker {worker}: {counters[worker]} rows, {last} were committed"
    print(json.dumps({"rows": sum(counters.values())}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["write", "read", "verify"])
    parser.add_argument("database")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--until")
    asked = parser.parse_args()
    if asked.what == "write":
        write(asked.database, asked.rest[0], int(asked.rest[1]), asked.until)
    elif asked.what == "read":
        read(asked.database, asked.until)
    else:
        verify(asked.database, asked.rest)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"wrong: {error}")
