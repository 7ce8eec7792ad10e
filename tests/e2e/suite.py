"""Runs the tests that are named on the command line, or all of them."""

import harness
import test_acl
import test_against_ext4
import test_apart
import test_bricks
import test_compare
import test_crashes
import test_files
import test_histories
import test_kills
import test_locks
import test_mistakes
import test_mounts
import test_names
import test_output
import test_processes
import test_room
import test_servers
import test_space
import test_spread
import test_users
import test_waits

MODULES = [test_files, test_names, test_acl, test_mounts, test_locks, test_crashes, test_mistakes, test_output, test_users, test_waits, test_room, test_bricks, test_compare, test_servers, test_space, test_spread, test_processes, test_apart, test_kills, test_against_ext4, test_histories]

if __name__ == "__main__":
    harness.main(MODULES)
