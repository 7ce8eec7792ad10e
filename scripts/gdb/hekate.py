"""The graphs of a Hekate program, live or from its core file.

    gdb -p PID -x scripts/gdb/hekate.py -ex hekate-graph -ex detach -ex quit
    gdb /usr/bin/hekate core -x scripts/gdb/hekate.py -ex hekate-graph

The program keeps the text in the buffer HEKATE_GRAPH_TEXT, at most a second old.
"""

import gdb


class HekateGraph(gdb.Command):
    """Print the graphs of the volumes that the program has open, with their options and counters."""

    def __init__(self):
        super().__init__("hekate-graph", gdb.COMMAND_DATA)

    def invoke(self, _argument, _from_tty):
        text = gdb.parse_and_eval("(char *)&HEKATE_GRAPH_TEXT").string("utf-8", "replace")
        print(text or "no volume is open, or the program has just been started")


HekateGraph()
