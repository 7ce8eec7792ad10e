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
    "xattr names": "names of extended attributes outside of user., trusted., security., and with nothing after these",
    "directory times": "a directory whose mtime was set into the future",
    "truncate times": "open with O_TRUNC and truncate move the times also where the size stays",
    "trusted names": "listxattr leaves trusted.* out for users who are not root",
    "removed directories": "descriptors of directories that were removed",
}

# What stays different, and why.
KNOWN = {
    "rename ctime": "rename moves a name and does not change the inode, so its ctime stays (POSIX allows both)",
    "set-group-id": "FUSE does not say whether a writer is in the file's group, so the bit stays where the group may not execute",
    "same value": "setting an extended attribute to what it is moves ctime, as on xfs; on ext4 it does not",
    "moved directories": "the kernel answers ESTALE to a rename of a directory that another mount has moved to another parent, "
                         "until this mount looks at its new place",
    "chown of nothing": "the kernel's FUSE does not pass on chown(-1, -1), which drops set-id bits on ext4",
}

if os.environ.get("HEKATE_NO_GAPS"):
    GAPS = {}
