"""Programs that others wrote, as clients of the S3 door: awscli, s3cmd, rclone, restic and mc."""

import hashlib
import json
import os
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("boto3", reason="boto3 is missing: scripts/setup.sh test unpacks it")

from harness import equal, read, same_bytes  # noqa: E402
from s3 import body_of, code_of, keys_of  # noqa: E402
from s3_clients import BUCKET, MIB, ODD_NAMES, PLAIN_NAME_MAX, Door, make_tree, put, restic_of, same_trees, tree_of  # noqa: E402

S3 = f"s3://{BUCKET}"
# s3cmd writes ^I for a tab in a key, and so on.
S3CMD_NAMES = [name for name in ODD_NAMES if name.isprintable()]


def keys_below(door, prefix=""):
    return sorted(key for key in keys_of(door.s3, BUCKET) if key.startswith(prefix) and not key.endswith("/"))


def names_below(top, prefix=""):
    return sorted(prefix + os.fsdecode(name) for name in tree_of(top))


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def refusal_of(url):
    """-> the status that a GET without a key is refused with."""
    try:
        get(url)
    except urllib.error.HTTPError as error:
        return error.code
    return None


# --- awscli ---


@pytest.mark.limit(120)
def test_awscli_copies_lists_and_moves(store):
    door = Door(store)
    large = os.urandom(9 * MIB)
    put(store.base, "large", large)
    door.aws("s3", "cp", "large", f"{S3}/a dir/large+1")
    assert "9437184 a dir/large+1" in door.aws("s3", "ls", "--recursive", S3)
    door.aws("s3", "mv", f"{S3}/a dir/large+1", "back")
    same_bytes(read(store.path("back")), large, "there and back")
    equal(keys_below(door), [], "keys")


@pytest.mark.soak
@pytest.mark.limit(600)
def test_awscli_syncs_a_tree_both_ways(store):
    door, tree = Door(store), make_tree(store.path("tree"))
    door.aws("s3", "sync", "tree", f"{S3}/t")
    equal(keys_below(door, "t/"), names_below(tree, "t/"), "keys")
    equal(door.aws("s3", "sync", "tree", f"{S3}/t"), "", "what a second sync copies")
    door.aws("s3", "sync", f"{S3}/t", "back")
    same_trees(store.path("back"), tree, "there and back")
    os.unlink(f"{tree}/many/1/5")
    put(tree, "many/new", b"new")
    door.aws("s3", "sync", "--delete", "tree", f"{S3}/t")
    door.aws("s3", "sync", "--delete", f"{S3}/t", "back")
    same_trees(store.path("back"), tree, "after a change")
    door.aws("s3", "sync", f"{S3}/t", f"{S3}/copy")
    equal(keys_below(door, "copy/"), names_below(tree, "copy/"), "keys of the copy")
    door.aws("s3", "mv", f"{S3}/t/large", f"{S3}/t/large+1")
    door.aws("s3", "rm", f"{S3}/t/sizes/1")
    names = {"t/large", "t/sizes/1"} ^ {*names_below(tree, "t/"), "t/large+1"}
    equal(keys_below(door, "t/"), sorted(names), "keys after a move and a removal")
    door.aws("s3", "rm", "--recursive", f"{S3}/t")
    equal(keys_below(door, "t/"), [], "keys that are left")
    door.aws("s3", "mv", "--recursive", f"{S3}/copy", "moved")
    same_trees(store.path("moved"), tree, "moved out")
    equal(keys_below(door), [], "keys that are left")
    door.aws("s3", "rb", "--force", S3)
    equal(door.aws("s3", "ls"), "", "buckets")


@pytest.mark.soak
@pytest.mark.limit(300)
def test_awscli_streams_presigns_and_checks(store):
    door = Door(store)
    data = os.urandom(20 * MIB)
    door.aws("s3", "cp", "-", f"{S3}/stream", input=data, text=False)
    same_bytes(door.aws("s3", "cp", f"{S3}/stream", "-", text=False), data, "streamed")
    url = door.aws("s3", "presign", f"{S3}/stream", "--expires-in", "60").strip()
    same_bytes(get(url), data, "a presigned URL")
    equal(refusal_of(url.replace("stream?", "other?")), 403, "a presigned URL with another key")
    put(store.base, "body", b"body of nine")
    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
        words = ["--bucket", BUCKET, "--key", f"sum/{algorithm}"]
        made = json.loads(door.aws("s3api", "put-object", *words, "--body", "body", "--checksum-algorithm", algorithm))
        shown = json.loads(door.aws("s3api", "head-object", *words, "--checksum-mode", "ENABLED"))
        equal(shown[f"Checksum{algorithm}"], made[f"Checksum{algorithm}"], algorithm)
        door.aws("s3api", "get-object", *words, "--checksum-mode", "ENABLED", "got")
        equal(read(store.path("got")), b"body of nine", algorithm)
    typed = ["--content-type", "text/x-odd", "--metadata", "colour=green", "--acl", "public-read"]
    door.aws("s3", "cp", "body", f"{S3}/typed", *typed)
    shown = json.loads(door.aws("s3api", "head-object", "--bucket", BUCKET, "--key", "typed"))
    equal((shown["ContentType"], shown["Metadata"]), ("text/x-odd", {"colour": "green"}), "what was stored with it")
    equal(get(f"{door.url}/{BUCKET}/typed"), b"body of nine", "a public object without a key")
    equal(refusal_of(f"{door.url}/{BUCKET}/stream"), 403, "a private object without a key")
    listed = json.loads(door.aws("s3api", "list-objects-v2", "--bucket", BUCKET, "--page-size", "2"))
    equal([entry["Key"] for entry in listed["Contents"]], keys_below(door), "keys in pages of two")
    door.refuses("env", "AWS_SECRET_ACCESS_KEY=wrong", sys.executable, "-m", "awscli", "s3", "ls", word="SignatureDoesNotMatch")


# --- s3cmd ---


@pytest.mark.soak
@pytest.mark.limit(600)
def test_s3cmd_puts_lists_and_deletes_odd_names(store):
    door = Door(store)
    # It takes `*` in what it gets or deletes for a pattern.
    names = [name for name in S3CMD_NAMES if "*" not in name]
    tree = make_tree(store.path("tree"), names, large=12 * MIB)
    for name in names:
        door.s3cmd("put", f"{tree}/odd/{name}", f"{S3}/one/{name}")
        door.s3cmd("get", "--force", f"{S3}/one/{name}", "one")
        equal(read(store.path("one")), f"what is in {name}".encode(), name)
    equal(keys_below(door, "one/"), sorted(f"one/{name}" for name in names), "keys")
    listed = door.s3cmd("ls", "--recursive", f"{S3}/one/")
    for name in names:
        assert f"  {S3}/one/{name}\n" in listed, f"{name} is not listed: {listed}"
        door.s3cmd("del", f"{S3}/one/{name}")
    equal(keys_below(door), [], "keys that are left")


@pytest.mark.soak
@pytest.mark.limit(600)
def test_s3cmd_syncs_a_tree_both_ways(store):
    door = Door(store)
    tree = make_tree(store.path("tree"), S3CMD_NAMES, large=17 * MIB)
    door.s3cmd("sync", "--multipart-chunk-size-mb=5", "tree/", f"{S3}/t/")
    equal(keys_below(door, "t/"), names_below(tree, "t/"), "keys")
    door.s3cmd("sync", f"{S3}/t/", store.directory("back") + "/")
    same_trees(store.path("back"), tree, "there and back")
    os.unlink(f"{tree}/many/1/5")
    put(tree, "many/new", b"new")
    door.s3cmd("sync", "--delete-removed", "tree/", f"{S3}/t/")
    equal(keys_below(door, "t/"), names_below(tree, "t/"), "keys after a change")
    door.s3cmd("del", "--recursive", "--force", f"{S3}/t/")
    equal(keys_below(door), [], "keys that are left")


@pytest.mark.soak
@pytest.mark.limit(300)
def test_s3cmd_shows_copies_and_publishes(store):
    door = Door(store)
    data = os.urandom(12 * MIB)
    put(store.base, "large", data)
    door.s3cmd("mb", "s3://second")
    door.s3cmd("put", "--multipart-chunk-size-mb=5", "--add-header=x-amz-meta-colour: green", "large", "s3://second/large")
    shown = door.s3cmd("info", "s3://second/large")
    for words in [f"File size: {len(data)}", "x-amz-meta-colour: green", "MIME type:"]:
        assert words in shown, shown
    assert "s3://second/" in door.s3cmd("info", "s3://second")
    assert str(len(data)) in door.s3cmd("du", "s3://second")
    door.s3cmd("cp", "s3://second/large", f"{S3}/copy")
    door.s3cmd("mv", f"{S3}/copy", f"{S3}/moved")
    same_bytes(body_of(door.s3, BUCKET, "moved"), data, "copied and moved")
    equal(keys_below(door), ["moved"], "keys")
    door.s3cmd("modify", "--add-header=x-amz-meta-colour: blue", f"{S3}/moved")
    equal(door.s3.head_object(Bucket=BUCKET, Key="moved")["Metadata"].get("colour"), "blue", "changed metadata")
    equal(refusal_of(f"{door.url}/{BUCKET}/moved"), 403, "a private object without a key")
    # It changes an ACL by a list of grants, and makes one by its name.
    door.s3cmd("setacl", "--acl-public", f"{S3}/moved")
    same_bytes(get(f"{door.url}/{BUCKET}/moved"), data, "a public object without a key")
    door.s3cmd("setacl", "--acl-private", f"{S3}/moved")
    equal(refusal_of(f"{door.url}/{BUCKET}/moved"), 403, "a private object without a key")
    door.s3cmd("put", "--acl-public", "large", f"{S3}/public")
    same_bytes(get(f"{door.url}/{BUCKET}/public"), data, "a public object without a key")
    assert "s3://second/large" in door.s3cmd("la")
    door.s3cmd("rb", "--recursive", "--force", "s3://second")
    equal(code_of(door.s3.head_bucket, Bucket="second"), "404", "a removed bucket")


# --- rclone ---


# Small enough for a file of 50 MiB to be put in parts, and copied in parts.
PARTS = ["--s3-upload-cutoff", "10M", "--s3-chunk-size", "5M", "--s3-copy-cutoff", "15M"]


@pytest.mark.soak
@pytest.mark.limit(600)
def test_rclone_syncs_a_tree_both_ways(store):
    door, tree = Door(store), make_tree(store.path("tree"))
    there = f"door:{BUCKET}/t"
    door.rclone("sync", *PARTS, "tree", there)
    assert door.s3.head_object(Bucket=BUCKET, Key="t/large")["ETag"].endswith('-10"'), "the large file was not put in ten parts"
    door.rclone("check", "--download", "tree", there)
    equal(door.rclone("lsf", "-R", "--files-only", there, "--format", "p", "--csv").count("many/"), 40, "files in many")
    door.rclone("sync", there, "back")
    same_trees(store.path("back"), tree, "there and back")
    os.unlink(f"{tree}/many/1/5")
    put(tree, "many/new", b"new")
    os.truncate(f"{tree}/large", 49 * MIB)
    door.rclone("sync", *PARTS, "tree", there)
    door.rclone("check", "--download", "tree", there)
    door.rclone("sync", there, "back")
    same_trees(store.path("back"), tree, "after a change")


@pytest.mark.soak
@pytest.mark.limit(600)
def test_rclone_moves_and_copies_at_the_door(store):
    door, tree = Door(store), make_tree(store.path("tree"))
    there, moved = f"door:{BUCKET}/t", f"door:{BUCKET}/moved"
    door.rclone("copy", *PARTS, "tree", there)
    door.rclone("copy", *PARTS, there, f"door:{BUCKET}/copy")
    door.rclone("move", *PARTS, there, moved)
    equal(keys_below(door, "t/"), [], "keys that are left")
    for name in [moved, f"door:{BUCKET}/copy"]:
        door.rclone("check", "--download", "tree", name)
    door.rclone("moveto", *PARTS, f"{moved}/large", f"{moved}/large#2")
    equal(hashlib.sha256(body_of(door.s3, BUCKET, "moved/large#2")).hexdigest(), tree_of(tree)[b"large"], "a moved file")
    data = os.urandom(20 * MIB)
    door.rclone("rcat", *PARTS, f"{moved}/stream", input=data, text=False)
    same_bytes(door.rclone("cat", f"{moved}/stream", text=False), data, "streamed")
    part = door.rclone("cat", "--offset", "4999999", "--count", "10", f"{moved}/stream", text=False)
    equal(part, data[4999999:5000009], "a range")
    door.rclone("purge", moved)
    equal(keys_below(door, "moved/"), [], "keys that are left")
    equal(door.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []), [], "uploads that are left")


@pytest.mark.soak
@pytest.mark.limit(600)
def test_the_mount_reads_what_rclone_wrote(store):
    names = [name for name in ODD_NAMES if len(name) <= PLAIN_NAME_MAX] + ["x" * PLAIN_NAME_MAX]
    door, tree = Door(store), make_tree(store.path("tree"), names)
    mnt = store.mount()
    door.rclone("sync", *PARTS, "tree", f"door:{BUCKET}/t")
    same_trees(f"{mnt}/{BUCKET}/t", tree, "through the mount")
    equal(door.rclone("hashsum", "md5", "--download", f"door:{BUCKET}/t/empty").split()[0], hashlib.md5(b"").hexdigest(), "empty")


@pytest.mark.soak
@pytest.mark.limit(600)
def test_rclone_syncs_out_what_the_mount_wrote(store):
    door = Door(store)
    tree = make_tree(f"{store.mount()}/{BUCKET}/t")
    there = f"door:{BUCKET}/t"
    door.rclone("sync", there, "back")
    same_trees(store.path("back"), tree, "synced out")
    # A change of the size, one of the bytes only, a new file, a removed one and a renamed one.
    put(tree, "sizes/4096", b"shorter")
    put(tree, "sizes/1", bytes([read(f"{tree}/sizes/1")[0] ^ 1]))
    put(tree, "many/new", b"new")
    os.unlink(f"{tree}/many/1/5")
    os.rename(f"{tree}/many/2", f"{tree}/renamed")
    door.rclone("sync", there, "back")
    same_trees(store.path("back"), tree, "synced again")
    door.rclone("check", "--download", there, "back")


# --- restic ---


@pytest.mark.soak
@pytest.mark.limit(600)
@pytest.mark.parametrize("kind", ["go", "debian"])
def test_restic_restores_what_it_backed_up(store, kind):
    restic, door, tree = restic_of(kind), Door(store), make_tree(store.path("tree"))
    door.run(restic, "init")
    door.run(restic, "backup", "tree")
    first = tree_of(tree)
    door.run(restic, "check", "--read-data")
    put(tree, "many/new", b"new" * 100_000)
    os.unlink(f"{tree}/many/1/5")
    door.run(restic, "backup", "tree")
    snapshots = json.loads(door.run(restic, "snapshots", "--json"))
    equal(len(snapshots), 2, "snapshots")
    door.run(restic, "restore", "latest", "--target", "latest")
    same_trees(store.path("latest/tree"), tree, "the latest snapshot")
    door.run(restic, "restore", snapshots[0]["id"], "--target", "first")
    equal(tree_of(store.path("first/tree")), first, "the first snapshot")
    door.run(restic, "forget", "--keep-last", "1", "--prune")
    door.run(restic, "check", "--read-data")
    equal(len(json.loads(door.run(restic, "snapshots", "--json"))), 1, "snapshots")
    door.run(restic, "restore", "latest", "--target", "pruned")
    same_trees(store.path("pruned/tree"), tree, "after a prune")
    equal(keys_below(door, "repository/locks/"), [], "locks that are left")


# --- mc ---


@pytest.mark.soak
@pytest.mark.limit(600)
def test_mc_mirrors_a_tree(store):
    door, tree = Door(store), make_tree(store.path("tree"))
    there = f"door/{BUCKET}"
    door.mc("mirror", "tree", f"{there}/t")
    equal(keys_below(door, "t/"), names_below(tree, "t/"), "keys")
    equal(door.mc("diff", "tree", f"{there}/t"), "", "differences")
    door.mc("mirror", f"{there}/t", "back")
    same_trees(store.path("back"), tree, "there and back")
    os.unlink(f"{tree}/many/1/5")
    put(tree, "many/new", b"new")
    door.mc("mirror", "--remove", "--overwrite", "tree", f"{there}/t")
    equal(keys_below(door, "t/"), names_below(tree, "t/"), "keys after a change")
    door.mc("rm", "--recursive", "--force", f"{there}/t")
    equal(keys_below(door), [], "keys that are left")


@pytest.mark.soak
@pytest.mark.limit(300)
def test_mc_shows_prints_and_removes(store):
    door = Door(store)
    there = f"door/{BUCKET}"
    data = b"the first line\n" + os.urandom(40 * MIB)
    put(store.base, "large", data)
    door.mc("cp", "--attr", "colour=green", "--tags", "shape=round", "large", f"{there}/a dir/large+1")
    shown = json.loads(door.mc("stat", "--json", f"{there}/a dir/large+1"))
    equal((shown["size"], shown["metadata"].get("X-Amz-Meta-Colour")), (len(data), "green"), "size and metadata")
    assert "round" in door.mc("tag", "list", f"{there}/a dir/large+1")
    same_bytes(door.mc("cat", f"{there}/a dir/large+1", text=False), data, "printed")
    equal(door.mc("head", "--lines", "1", f"{there}/a dir/large+1", text=False), b"the first line\n", "the first line")
    door.mc("pipe", f"{there}/piped", input=data[:1000], text=False)
    equal(body_of(door.s3, BUCKET, "piped"), data[:1000], "piped")
    door.mc("cp", f"{there}/a dir/large+1", f"{there}/copy")
    door.mc("mv", f"{there}/copy", f"{there}/moved")
    same_bytes(body_of(door.s3, BUCKET, "moved"), data, "copied and moved")
    listed = [json.loads(line)["key"] for line in door.mc("ls", "--json", "--recursive", there).splitlines()]
    equal(sorted(listed), ["a dir/large+1", "moved", "piped"], "listed")
    url = json.loads(door.mc("share", "download", "--json", "--expire", "60s", f"{there}/piped"))["share"]
    equal(get(url), data[:1000], "a shared URL")
    door.mc("rm", f"{there}/moved")
    equal(keys_below(door), ["a dir/large+1", "piped"], "keys")
    door.mc("mb", "door/second")
    door.mc("rb", "door/second")
    door.mc("rb", "--force", there)
    equal(door.s3.list_buckets()["Buckets"], [], "buckets")
