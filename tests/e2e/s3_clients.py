"""Programs that speak S3, each with the settings that docs/s3.md names, and trees of files for them."""

import hashlib
import os
import shutil
import subprocess
import sys

from harness import PATIENCE, Skip, equal, short
from s3 import REGION, client, key_of, open_door

BUCKET = "things"
# Where scripts/setup.sh soak puts s3cmd and rclone (bin), restic and mc (go).
CLIENTS = os.environ.get("HEKATE_S3_CLIENTS", "")
MIB = 1 << 20
# When the files of a tree were changed, in seconds since 1970.
BEFORE = 1_700_000_000

# The longest name of an object that is its file's name too, in bytes (docs/format/objects.md).
PLAIN_NAME_MAX = 252

# Names that URLs, XML, shells or signatures treat specially. A client that cannot have one of them says which.
ODD_NAMES = [
    "plain",
    "with space",
    " leading and trailing ",
    "two  spaces",
    "plus+percent%20and%2F",
    "%",
    "hash#query?and&amp;",
    "quotes'\"`",
    "semi;colon:equals=comma,at@dollar$",
    "star*[brackets]{braces}(parens)!",
    "tilde~caret^pipe|",
    "<angle>",
    "-dash",
    "--",
    ".hidden/.file",
    "...",
    "back\\slash",
    "tab\there",
    "new\nline",
    "return\r",
    "Grüße/日本語/👋",
    "e\u0301 decomposed, \u00e9 composed",
    "x" * 255,
    "a/b",
    "a-b",
    "a.b/c",
    "a b/c",
]


class Door:
    """The open door of a store's volume, a bucket, and programs that are set up for it."""

    def __init__(self, store):
        self.store = store
        store.init()
        store.serve()
        self.port, self.key = open_door(store), key_of(store)
        self.url = f"http://127.0.0.1:{self.port}"
        self.s3 = client(self.port, self.key)
        self.s3.create_bucket(Bucket=BUCKET)
        self.environment = {**os.environ, **self.settings()}

    def aws_file(self):
        """A configuration of awscli: it presigns with Version 2 unless a file says otherwise."""
        path = self.store.path("aws.ini")
        with open(path, "w") as file:
            file.write("[default]\ns3 =\n  signature_version = s3v4\n")
        return path

    def settings(self):
        """One set of variables for all programs but s3cmd, which has a file."""
        name, secret = self.key
        return {
            "HOME": self.store.directory("home"),
            "AWS_ACCESS_KEY_ID": name,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_CONFIG_FILE": self.aws_file(),
            "AWS_EC2_METADATA_DISABLED": "true",
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_DOOR_TYPE": "s3",
            "RCLONE_CONFIG_DOOR_PROVIDER": "Other",
            "RCLONE_CONFIG_DOOR_ENDPOINT": self.url,
            "RCLONE_CONFIG_DOOR_REGION": REGION,
            "RCLONE_CONFIG_DOOR_FORCE_PATH_STYLE": "true",
            "RCLONE_CONFIG_DOOR_ENV_AUTH": "true",
            "RESTIC_REPOSITORY": f"s3:{self.url}/{BUCKET}/repository",
            "RESTIC_PASSWORD": "password",
            "RESTIC_CACHE_DIR": self.store.path("restic-cache"),
            "MC_HOST_door": f"http://{name}:{secret}@127.0.0.1:{self.port}",
            "MC_CONFIG_DIR": self.store.path("mc"),
        }

    def try_run(self, *words, text=True, **named):
        named = {"stdin": subprocess.DEVNULL, **named} if "input" not in named else named
        return subprocess.run(
            words, capture_output=True, text=text, timeout=180 * PATIENCE, env=self.environment, cwd=self.store.base, **named
        )

    def run(self, *words, **named):
        """Runs a program that must succeed -> what it prints."""
        done = self.try_run(*words, **named)
        assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout

    def refuses(self, *words, word):
        """Runs a program that must fail, and name this in its message."""
        done = self.try_run(*words)
        assert done.returncode != 0 and word in done.stdout + done.stderr, f"{words}: {done.returncode} {done.stdout}{done.stderr}"

    def aws(self, *words, **named):
        try:
            import awscli  # noqa: F401
        except ImportError:
            raise Skip("awscli is missing: scripts/setup.sh test unpacks it") from None
        return self.run(sys.executable, "-m", "awscli", *words, **named)

    def s3cmd(self, *words):
        return self.run(*self.s3cmd_words(*words))

    def s3cmd_words(self, *words):
        """s3cmd reads a file and no variables."""
        path = self.store.path("s3cfg")
        if not os.path.exists(path):
            host = f"127.0.0.1:{self.port}"
            with open(path, "w") as file:
                file.write(f"[default]\naccess_key = {self.key[0]}\nsecret_key = {self.key[1]}\nhost_base = {host}\n")
                file.write(f"host_bucket = {host}\nuse_https = False\nsignature_v2 = False\nbucket_location = {REGION}\n")
        program = program_of("bin/s3cmd")
        paths = f"{CLIENTS}:{os.environ.get('PYTHONPATH', '')}"
        return ["env", f"PYTHONPATH={paths}", sys.executable, program, "-c", path, "--no-progress", *words]

    def rclone(self, *words, **named):
        return self.run(program_of("bin/rclone"), *words, **named)

    def mc(self, *words, **named):
        return self.run(program_of("go/mc", GO_MISSING), "--no-color", *words, **named)


GO_MISSING = "install Go (https://go.dev/dl) and run scripts/setup.sh soak"


def program_of(name, fix="scripts/setup.sh soak unpacks it"):
    """-> the path of a program that scripts/setup.sh soak fetches."""
    path = f"{CLIENTS}/{name}"
    if not CLIENTS or not os.access(path, os.X_OK):
        raise Skip(f"{os.path.basename(name)} is missing: {fix}")
    return path


def restic_of(kind):
    """-> restic as Go's modules have it, or Debian's."""
    if kind == "go":
        return program_of("go/restic", GO_MISSING)
    path = shutil.which("restic", path="/usr/bin")
    if path is None:
        raise Skip("restic is missing: scripts/setup.sh soak installs it")
    return path


# --- trees ---


def make_tree(top, names=None, large=50 * MIB):
    """Files with odd names, an empty one, one of each side of a few limits, and a large one."""
    for name in ODD_NAMES if names is None else names:
        put(top, f"odd/{name}", f"what is in {name}".encode())
    put(top, "empty", b"")
    for size in [1, 4095, 4096, 4097, 5 * MIB, 5 * MIB + 1]:
        put(top, f"sizes/{size}", os.urandom(size))
    for number in range(40):
        put(top, f"many/{number % 4}/{number}", os.urandom(number * 37))
    put(top, "large", os.urandom(large))
    # Older than any copy: LastModified is cut to seconds, and mc copies what is newer.
    for directory, _, names in os.walk(top):
        for name in names:
            os.utime(f"{directory}/{name}", times=(BEFORE, BEFORE))
    return top


def put(top, name, data):
    path = f"{top}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def tree_of(top):
    """-> the digest of each file below a directory, by its path."""
    found = {}
    for directory, _, names in os.walk(os.fsencode(top)):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, os.fsencode(top))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def same_trees(found, wanted, what):
    found, wanted = tree_of(found), tree_of(wanted)
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    assert not missing and not more, f"{what}: {short(missing)} are missing, {short(more)} are too many"
    equal([name for name in wanted if wanted[name] != found[name]], [], f"{what}: files that differ")
