"""What Hekate does not do yet, and so is neither drawn nor compared: delete a line when the feature arrives.

HEKATE_NO_GAPS=1 draws and compares everything.
"""

import os

GAPS = {
    "truncate times": "truncate to the size that a file has moves its times",
    "atime": "listing through a descriptor with O_NOATIME leaves atime; and once atime was seen to move at an open",
    "removed directories": "rmdir moves the ctime of a directory that somebody has open",
    "capabilities": "chown of a directory leaves its security.capability (it is not set at all until then)",
    "refused link": "a link of an open file without a name, which answers ENOENT, was seen to move a directory's ctime",
    "ACL times": "to remove an ACL that is not there moves no ctime",
}

# What stays different, and why.
KNOWN = {
    "set-group-id": "FUSE does not say whether a writer is in the file's group, so the bit stays where the group may not execute",
    "copied": "copy_file_range copies on the server and leaves the atime of its source",
    "same value": "setting an extended attribute to what it is moves ctime, as on xfs; on ext4 it does not",
    "moved directories": "the kernel answers ESTALE to a rename of a directory that another mount has moved to another parent, "
                         "until this mount looks at its new place",
    "chown of nothing": "the kernel's FUSE does not pass on chown(-1, -1), which drops set-id bits on ext4",
}

if os.environ.get("HEKATE_NO_GAPS"):
    GAPS = {}
