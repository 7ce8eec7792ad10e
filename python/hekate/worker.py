"""The process in which one Python translator of one volume's graph runs. Started by the client:

    python3 -m hekate.worker CONFIG_JSON
    python3 -m hekate.worker --describe DIRECTORY

CONFIG_JSON: {"name", "directory", "options": {name: text}, "control": FD, "memory_bytes_max": N or 0,
"channels": [{"socket": FD, "memory": FD}, ...], "area_bytes": A}.

`memory` of a channel is 2*A bytes that both sides map: the first area is written by the host, the second by the
worker. `socket` carries frames of 16 bytes: u8 kind, 3 bytes 0, u32 length in the sender's area, u64 number.

    host -> worker   1 CALL    u8 durable, Op
                     2 RESULT  Result<Reply, Error>, with the number of the NEXT that it answers
    worker -> host   3 NEXT    u8 durable, Op; number: that of the CALL, on channel 0 a counter
                     4 DONE    Result<Reply, Error>, with the number of the CALL
                     5 PASS    nothing, with the number of the CALL

A channel has one call at a time: CALL, any number of NEXT and RESULT, DONE or PASS. Channel 0 is for the worker's own
ops (timers, on_start), which need no CALL.

`control` carries one JSON object a line. Worker to host: {"ready": true, "ops", "summary", "options"}, or
{"failed": text} if the translator cannot be loaded or its on_start raises; {"log": level, "text"}; {"metrics":
{"counts", "gauges", "times"}} once a second, with what was recorded since the last one (gauges: the value);
{"reconfigured": true} or {"refused": text}; {"state": base64}. Host to worker: {"state": base64}, {"start": true},
{"begin": true} (this instance is the live one from now on), {"recall": true} (what it remembers may be out of date),
{"reconfigure": {all options}}, {"describe": true}, which is answered by {"description"}, {"stop": true}. Calls wait
until on_start has returned.

Invariants: no exception of a translator ends the process. What breaks the protocol ends it at once, with one line. A
call whose thread runs out of memory outside of a method is refused with ENOMEM, or the process ends."""

import json
import os
import signal
import sys

from .translator import LoadError, describe, load


def describe_directory(directory):
    """Prints the description of the translator in a directory. Returns the exit status."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        found = {"name": os.path.basename(os.path.abspath(directory)), **describe(load(directory))}
    except LoadError as error:
        found = {"failed": str(error)}
    except Exception:
        import traceback

        found = {"failed": traceback.format_exc()}
    print(json.dumps(found), file=out)
    return 1 if "failed" in found else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--describe":
        return describe_directory(arguments[1])
    if len(arguments) != 1:
        print("usage: python3 -m hekate.worker CONFIG_JSON | --describe DIRECTORY", file=sys.stderr)
        return 64
    from .process import Process

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the host as well, which then ends the worker
    Process(json.loads(arguments[0])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
