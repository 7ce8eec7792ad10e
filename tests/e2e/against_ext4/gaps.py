"""What Hekate does not do yet, and so is neither drawn nor compared: delete a line when the feature arrives.

HEKATE_NO_GAPS=1 draws and compares everything.
"""

import os

GAPS = {
    "atime": "listing through a descriptor with O_NOATIME leaves atime; and once atime was seen to move at an open",
    "refused link": "a link of an open file without a name, which answers ENOENT, was seen to move a directory's ctime",
}

# What stays different, and why.
KNOWN = {
    "set-group-id": "where the group may not execute, the bit that another mount has just set may stay when an outsider writes",
    "appended": "the offset after a write with O_APPEND is by the size that the kernel knew before it: another mount may have appended",
    "copied": "copy_file_range copies no more than the size that the kernel knew: another mount may have written; so it is asked first",
    "same value": "setting an extended attribute to what it is moves ctime, as on xfs; on ext4 it does not",
    "removed directories": "a directory that another mount removed has no extended attributes for those who have it open",
    "moved directories": "the kernel answers ESTALE to a rename of a directory that another mount has moved to another parent, "
                         "until this mount looks at its new place",
    "copied within": "ext4 copies in parts, and looks whether the time of access is due again after its own writes; it is set on both",
    "cached reads": "before Linux 6.6 the page cache answers reads of strict mounts too, and the server is not told of them",
    "chown of nothing": "the kernel's FUSE does not pass on chown(-1, -1), which drops set-id bits on ext4",
}

if os.environ.get("HEKATE_NO_GAPS"):
    GAPS = {}
