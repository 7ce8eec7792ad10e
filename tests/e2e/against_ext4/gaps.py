"""What Hekate does not do yet, and so is neither drawn nor compared: delete a line when the feature arrives.

HEKATE_NO_GAPS=1 draws and compares everything.
"""

import os

GAPS = {
    "fallocate": "fallocate: keep size, punch, zero",
    "tmpfile": "O_TMPFILE",
    "acl": "POSIX ACLs",
    "append": "O_APPEND where several mounts change a file",
    "atime": "atime moves as with relatime",
}

if os.environ.get("HEKATE_NO_GAPS"):
    GAPS = {}
