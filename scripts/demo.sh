#!/usr/bin/env bash
# Shows Hekate at work: three bricks, of one server or of three, a volume with two copies, a mount, and real work in it.
#
# Three servers stand in a network namespace each, with a network `back` for servers and a network `front` for two clients, which have
# a namespace and a credential each; everything between them is mutual TLS. That needs root. The records of the cluster are moved to etcd
# while it is in use, with a member beside each server; then a server and a member are killed.
#
#   demo.sh         runs all of it and leaves the volume mounted; ONCE=1 takes everything away in the end
#   demo.sh stop    takes away what it left
#
# Environment: SERVERS=1 or 3 [1], HEKATE_DEMO=DIR for everything that it makes [/var/tmp/hekate-demo], HEKATE=PROGRAM (else it is built),
# ROUNDS=N times that server and mount are killed [5], QUICK=1 for a tenth of the files, commits and transactions and two rounds.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
repository=$PWD
demo=$(readlink -m "${HEKATE_DEMO:-/var/tmp/hekate-demo}")
state=$demo/state mnt=$demo/mnt record=$demo/record
rounds=${ROUNDS:-5} servers=${SERVERS:-1}
files_min=3000 files_max=10000 bytes_max=$((150 << 20))
git_files=1000 git_changes=20 transactions=300
# Each file takes several trips over TCP.
[ "$servers" = 1 ] || { files_max=$files_min git_files=200 transactions=100; }
# In two rounds the mount is killed first once, and the servers once.
[ "${QUICK:-}" != 1 ] || { files_min=300 files_max=300 git_files=50 git_changes=4 transactions=30 rounds=${ROUNDS:-2}; }

nodes=(s1 s2 s3 c1 c2)
# A command in the network of a node: scripts/demo.sh makes a namespace for each.
at() { local node=$1; shift; nsenter --net="/run/netns/hkdemo-$node" "$@"; }

say() { echo "demo: $*"; }
fail() { echo "demo: $*" >&2; exit 1; }
seconds() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds)" 'BEGIN { printf "%.1f", b - a }'; }
per_second() { awk -v n="$1" -v s="$2" 'BEGIN { printf "%.0f", (s > 0) ? n / s : 0 }'; }
store() { "$HEKATE" --state "$state" "$@"; }
json() { python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }

# A command that may take a while: a line every two seconds until it has ended. -> its exit status, output in $demo/out.
patiently() {
  local what=$1 begun child
  shift
  begun=$(date +%s)
  "$@" >"$demo/out" 2>&1 &
  child=$!
  while sleep 0.1; kill -0 "$child" 2>/dev/null; do
    if [ $(($(date +%s) - begun)) -ge 2 ] && [ "${told:=0}" -ne "$(($(date +%s) / 2))" ]; then
      told=$(($(date +%s) / 2))
      echo "  $what: $(($(date +%s) - begun)) s"
    fi
  done
  wait "$child" || { tail -n 20 "$demo/out" >&2; fail "$what did not succeed"; }
}

# --- taking it all away ---

# Members of etcd that were started with settings of ours.
our_members() {
  local file pid
  for file in /proc/[0-9]*/cmdline; do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    tr '\0' '\n' <"$file" 2>/dev/null | grep -qE "^$demo/state[23]?/etcd/etcd.yml$" && echo "$pid"
  done 2>/dev/null
}

# Processes of our program that were started with a state directory of ours, and nothing else.
our_processes() {
  local file pid
  for file in /proc/[0-9]*/cmdline; do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    if tr '\0' '\n' <"$file" 2>/dev/null | grep -qxF -e "$state" -e "$demo/state2" -e "$demo/state3" -e "$demo/client1" -e "$demo/client2" &&
      [ "$(head -z -n 1 "$file" 2>/dev/null | tr -d '\0' | sed 's,.*/,,')" = "$program" ]; then
      echo "$pid"
    fi
  done 2>/dev/null
}

is_mounted() { grep -qF " $mnt " /proc/self/mountinfo; }
gone() { ! [ -e "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }

# Ends processes and waits until they have.
end_processes() {
  local pid
  for pid; do kill -9 "$pid" 2>/dev/null || true; done
  for pid; do
    for _ in $(seq 200); do gone "$pid" && break; sleep 0.05; done
  done
}

unmount() {
  is_mounted || return 0
  timeout 20 "$HEKATE" --state "$state" umount "$mnt" >/dev/null 2>&1 && return 0
  # A mount that does not answer: its process ends first, so that nobody waits for it.
  end_processes $(our_processes)
  if [ "$(id -u)" = 0 ]; then umount -l "$mnt"; else fusermount3 -uz "$mnt"; fi
}

take_away() {
  unmount || true
  if grep -qF " $demo/mnt2 " /proc/self/mountinfo; then umount -l "$demo/mnt2" || true; fi
  for one in "$demo/state3" "$demo/state2" "$state"; do
    [ -d "$one" ] && timeout 60 "$HEKATE" --state "$one" stop >/dev/null 2>&1 || true
  done
  end_processes $(our_processes) $(our_members)
  remove_networks
  is_mounted && fail "$mnt is still mounted; is a shell in it? then: $0 stop"
  rm -rf "$demo"
}

# --- networks ---

remove_networks() {
  local node
  for node in "${nodes[@]}" switch; do
    [ -e "/run/netns/hkdemo-$node" ] && ip netns del "hkdemo-$node" || true
  done
}

# Two switches, and for each node an address at each of its networks: front 10.77.1.0/24, back 10.77.2.0/24.
make_networks() {
  local node number=0 network
  ip netns add hkdemo-switch
  for network in front back; do
    at switch ip link add "$network" type bridge
    at switch ip link set "$network" up
  done
  for node in "${nodes[@]}"; do
    number=$((number + 1))
    ip netns add "hkdemo-$node"
    at "$node" ip link set lo up
    connect "$node" front "10.77.1.$number"
    case $node in s*) connect "$node" back "10.77.2.$number" ;; esac
  done
}

connect() {
  local node=$1 network=$2 address=$3
  at switch ip link add "$node-$network" type veth peer name "$network" netns "hkdemo-$node"
  at switch ip link set "$node-$network" master "$network" up
  at "$node" ip addr add "$address/24" dev "$network"
  at "$node" ip link set "$network" up
}

# Only a directory that is ours is ever removed.
is_ours() { [ -e "$demo/made-by-demo.sh" ]; }

find_program() {
  HEKATE=${HEKATE:-${CARGO_TARGET_DIR:-$repository/target}/release/hekate}
  program=$(basename "$HEKATE")
}

if [ "${1:-}" = stop ]; then
  find_program
  is_ours || { say "there is no demo at $demo"; exit 0; }
  [ -x "$HEKATE" ] || HEKATE=$(cat "$demo/made-by-demo.sh")
  take_away
  say "stopped, and $demo is removed"
  exit 0
fi
[ $# = 0 ] || { echo "usage: $0 [stop]" >&2; exit 2; }
case $servers in
1 | 3) ;;
*) fail "SERVERS=$servers: there are demos with SERVERS=1 and with SERVERS=3" ;;
esac

# --- what it stands on ---

if is_ours; then
  fail "a demo is there already, at $demo (mounted at $mnt); end it with: make demo-stop"
fi
if [ -e "$demo" ] && [ -n "$(ls -A "$demo")" ]; then
  fail "$demo is not empty and was not made by this script; name another place: HEKATE_DEMO=DIR make demo"
fi
if [ "$servers" = 3 ] && [ "$(id -u)" != 0 ]; then
  fail "SERVERS=3 makes network namespaces, which needs root: sudo make demo SERVERS=3"
fi
scripts/setup.sh demo
if [ -z "${HEKATE:-}" ]; then
  say "building in release"
  cargo build --release -p hekate
fi
find_program
[ -x "$HEKATE" ] || fail "there is no $HEKATE"

mkdir -p "$demo" "$mnt" "$record"
echo "$HEKATE" >"$demo/made-by-demo.sh"
finished=no worker=
on_exit() {
  local code=$?
  trap '' INT TERM
  [ "$finished" = no ] || exit "$code"
  [ -z "$worker" ] || kill "$worker" 2>/dev/null || true
  [ "$code" = 0 ] && code=1
  for log in "$demo/out" "$demo"/state*/*.log; do
    [ -e "$log" ] && { echo "--- $(basename "$log")" >&2; tail -n 8 "$log" >&2; }
  done
  say "that failed; cleaning up" >&2
  take_away
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

rows=()
row() { rows+=("$(printf '%-34s %9s s   %s' "$1" "$2" "$3")"); say "$1: $2 s, $3"; }

# --- a store ---

# -> the process of each server, the first one first: the others wait for it.
start_servers() {
  [ "$servers" = 3 ] || { store --json serve --detach | json pid; return; }
  local number
  for number in 1 2 3; do serve_in_network "$number" | json pid; done
}
state_of() { if [ "$1" = 1 ]; then echo "$state"; else echo "$demo/state$1"; fi; }
serve_in_network() {
  at "s$1" "$HEKATE" --state "$(state_of "$1")" --json serve --detach --listen "front=10.77.1.$1:7100" --listen "back=10.77.2.$1:7100"
}
mount_as() { at "c$1" "$HEKATE" --state "$demo/client$1" --credential "$demo/client$1.hekate" --json mount demo "$2" | json pid; }
mount_volume() {
  if [ "$servers" = 3 ]; then mount_as 1 "$mnt"; else store --json mount demo "$mnt" | json pid; fi
}
make_cluster() {
  store init --brick "$demo/brick1" --brick "$demo/brick2" --brick "$demo/brick3" --volume demo --copies 2
  pids=$(start_servers)
}
make_cluster_of_three() {
  local number
  make_networks
  store init --brick "$demo/brick1"
  serve_in_network 1
  for number in 2 3; do
    # The token names the addresses of the first server and its root: nothing else has to be copied to a new machine.
    at "s$number" "$HEKATE" --state "$demo/state$number" join "$(store token create)" --brick "$demo/brick$number"
    serve_in_network "$number"
  done
  store volume create demo --copies 2 --domain server
  for number in 1 2; do store client create "client$number" --volume demo -o "$demo/client$number.hekate"; done
  pids=$(for one in "$state" "$demo/state2" "$demo/state3"; do "$HEKATE" --state "$one" --json status | json pid; done)
}

begun=$(seconds)
if [ "$servers" = 3 ]; then
  make_cluster_of_three >"$demo/out" 2>&1
  what="3 servers with a brick each, networks front and back, mutual TLS, 2 copies of everything"
else
  make_cluster >"$demo/out" 2>&1
  what="3 bricks, 2 copies of everything"
fi
mount=$(mount_volume)
row "init, serve, mount" "$(since "$begun")" "$what"

# --- a client that is revoked ---

# -> once the mount there answers nothing any more.
refused() {
  local limit
  for limit in $(seq 100); do
    ls "$demo/mnt2" >/dev/null 2>&1 || return 0
    sleep 0.05
  done
  return 1
}
if [ "$servers" = 3 ]; then
  mkdir "$demo/mnt2"
  mount_as 2 "$demo/mnt2" >/dev/null
  echo "from client 1" >"$mnt/greeting"
  [ "$(cat "$demo/mnt2/greeting")" = "from client 1" ] || fail "client 2 does not see what client 1 wrote"
  begun=$(seconds)
  store client revoke client2 >/dev/null
  refused || fail "client 2 was revoked, and its mount still works after 5 s"
  row "revoke client 2" "$(since "$begun")" "its mount is refused; $(store network list | grep -c '^network') networks"
  umount -l "$demo/mnt2"
  [ "$(cat "$mnt/greeting")" = "from client 1" ] || fail "client 1 is refused too"
fi

# --- two mounts ---

told() { store --json status | python3 -c "import json, sys; print(json.load(sys.stdin)['ops'].get('wrote', {}).get('done', 0))"; }
work_with_two_mounts() {
  local before
  mkdir "$demo/mnt2"
  store mount demo "$demo/mnt2"
  head -c 1048576 /dev/urandom >"$mnt/block"
  before=$(told)
  python3 -c "
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for number in range(4000): os.pwrite(file, bytes(4096), 4096 * (number % 256))" "$mnt/block"
  told=$(($(told) - before))
  [ "$(stat -c %y "$demo/mnt2/block")" = "$(stat -c %y "$mnt/block")" ] || fail "the second mount shows another time"
}
# Adds 300 to a word of a page that another mount has mapped, too.
add_to_word() {
  python3 -c "
import mmap, os, struct, sys, time
page, at = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096), 8 * int(sys.argv[2])
for _ in range(300):
    struct.pack_into('<Q', page, at, struct.unpack_from('<Q', page, at)[0] + 1)
    time.sleep(0.001)" "$@"
}
map_on_two_mounts() {
  local other words
  head -c 4096 /dev/zero >"$mnt/words"
  add_to_word "$demo/mnt2/words" 1 & other=$!
  add_to_word "$mnt/words" 0
  wait "$other"
  words=$(od -A n -t u8 -N 16 "$mnt/words" | xargs)
  [ "$words" = "300 300" ] || fail "two mounts added 300 to a word each, and the words are $words"
}
if [ "$servers" = 1 ]; then
  begun=$(seconds)
  work_with_two_mounts >"$demo/out" 2>&1
  row "4,000 writes to a file, two mounts" "$(since "$begun")" "$told of them told its leader; the other mount sees the last one"
  # Older kernels do not say which reads are for mapped pages.
  if [ "$(printf '6.6\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 6.6 ]; then
    begun=$(seconds)
    map_on_two_mounts >"$demo/out" 2>&1
    row "a page that two mounts have mapped" "$(since "$begun")" "each added 300 to a word of it, and none is lost"
  fi
  store umount "$demo/mnt2" >"$demo/out" 2>&1
fi

# --- the coordinator in etcd ---

make_members() {
  local number
  for number in 1 2 3; do
    at "s$number" "$HEKATE" --state "$(state_of "$number")" coordinator etcd --detach --address "10.77.2.$number"
  done
}
# Writes small files until it is told to stop. -> their number, and the longest wait in ms.
write_on() {
  local number=0 longest=0 begun took
  while [ ! -e "$demo/enough" ]; do
    begun=$(date +%s%N)
    echo "$number" >"$mnt/steady/$number" || { echo "file $number cannot be written" >&2; return 1; }
    sync "$mnt/steady/$number" || return 1
    took=$((($(date +%s%N) - begun) / 1000000))
    [ "$took" -le "$longest" ] || longest=$took
    number=$((number + 1))
  done
  echo "$number $longest" >"$demo/steady"
}
etcd_pid() { cat "$(state_of "$1")/etcd/etcd.pid"; }
number_of_leader() {
  at s1 "$HEKATE" --state "$state" --json coordinator show |
    python3 -c 'import json, sys; print(next(row["name"][7:] for row in json.load(sys.stdin)["members"] if row["state"] == "leader"))'
}
if [ "$servers" = 3 ]; then
  begun=$(seconds)
  patiently "three members of etcd" make_members
  row "three members of etcd" "$(since "$begun")" "a certificate each, of an authority of their own"
  mkdir "$mnt/steady"
  write_on &
  worker=$!
  begun=$(seconds)
  pause=$(at s2 "$HEKATE" --state "$demo/state2" --json coordinator move --to etcd | json pause_ms)
  row "move the records to etcd" "$(since "$begun")" "while files are written; writes of records waited $pause ms"
  begun=$(seconds)
  leader=$(number_of_leader)
  kill -9 "$(etcd_pid "$leader")"
  sleep 5
  at "s$leader" "$HEKATE" --state "$(state_of "$leader")" coordinator etcd --detach >"$demo/out" 2>&1
  # A machine that dies takes both with it.
  kill -9 "$(etcd_pid 3)" "$("$HEKATE" --state "$demo/state3" --json status | json pid)"
  sleep 6
  touch "$demo/enough"
  wait "$worker" || fail "a file could not be written"
  worker=
  read -r steady longest <"$demo/steady"
  for number in $(seq 0 $((steady - 1))); do
    [ "$(cat "$mnt/steady/$number")" = "$number" ] || fail "steady/$number is not what was written"
  done
  serve_in_network 3 >/dev/null
  at s3 "$HEKATE" --state "$demo/state3" coordinator etcd --detach >"$demo/out" 2>&1
  row "kill etcd's leader, then a server" "$(since "$begun")" "$steady files written meanwhile, no error; the longest wait $longest ms"
  rm -r "$mnt/steady"
  pids=$(for one in "$state" "$demo/state2" "$demo/state3"; do "$HEKATE" --state "$one" --json status | json pid; done)
fi

# --- a source tree of thousands of files ---

# Regular files of a directory as "bytes<tab>path", at most so many and so much.
list_files() {
  (cd "$1" && find . -type f -printf '%s\t%P\n' | LC_ALL=C sort -t "$(printf '\t')" -k 2) |
    awk -F '\t' -v n="$files_max" -v b="$bytes_max" 'count < n && bytes + $1 <= b { count++; bytes += $1; print }'
}
source=
for candidate in "${CARGO_HOME:-$HOME/.cargo}/registry/src" /usr/include "$(rustc --print sysroot)" /usr/share; do
  [ -d "$candidate" ] || continue
  list_files "$candidate" >"$demo/list"
  [ "$(wc -l <"$demo/list")" -ge "$files_min" ] && { source=$candidate; break; }
done
[ -n "$source" ] || fail "found no tree of $files_min files to copy"
files=$(wc -l <"$demo/list")
bytes=$(awk -F '\t' '{ sum += $1 } END { print sum }' "$demo/list")
cut -f 2- "$demo/list" | tr '\n' '\0' >"$demo/names"

mkdir "$mnt/tree"
copy_tree() { tar -C "$source" --null --no-recursion -T "$demo/names" -cf - | tar -C "$mnt/tree" -xf -; }
begun=$(seconds)
patiently "copying $files files" copy_tree
took=$(since "$begun")
row "copy $files files of $source" "$took" "$(per_second "$files" "$took") files/s, $(per_second $((bytes >> 20)) "$took") MB/s"

sums() { (cd "$1" && xargs -0 sha256sum <"$demo/names"); }
compare_tree() {
  sums "$source" >"$demo/sums.source" && sums "$mnt/tree" >"$demo/sums.copy" && diff "$demo/sums.source" "$demo/sums.copy"
}
begun=$(seconds)
patiently "comparing $files checksums" compare_tree
[ "$(find "$mnt/tree" -type f | wc -l)" = "$files" ] || fail "the copy has another number of files than $files"
row "compare $files checksums" "$(since "$begun")" "all equal"

# --- git ---

work_with_git() {
  local git="git -c user.name=demo -c user.email=demo@localhost -c init.defaultBranch=main -c gc.auto=0"
  # A repository of some of these files, then a clone, changes, a merge, and git's own checks.
  mkdir "$mnt/origin" && cd "$mnt/origin"
  $git init -q .
  head -z -n "$git_files" "$demo/names" | tar -C "$source" --null --no-recursion -T - -cf - | tar -xf -
  $git add -A -f . && $git commit -q -m "$git_files files"
  cd "$mnt" && $git clone -q --no-local origin clone && cd clone
  $git checkout -q -b change
  for number in $(seq "$git_changes"); do
    echo "line $number" >>changes.txt
    $git add changes.txt
    $git commit -q -m "change $number"
  done
  $git checkout -q main && $git merge -q --no-ff -m merge change
  $git push -q origin change
  $git fsck --strict --no-dangling
  $git gc -q
  $git fsck --strict --no-dangling
  [ "$($git rev-list --count HEAD)" = $((git_changes + 2)) ] && [ -z "$($git status --porcelain)" ]
  cd "$mnt/origin" && $git fsck --strict --no-dangling && $git gc -q && [ "$($git rev-list --count change)" = $((git_changes + 1)) ]
}
begun=$(seconds)
patiently "git" work_with_git
row "git: commit, clone, push, gc, fsck" "$(since "$begun")" "$git_files files, $((git_changes + 2)) commits, fsck clean"

# --- SQLite ---

work_with_sqlite() {
  local mode=$1 database=$mnt/$1.db number
  {
    echo "PRAGMA journal_mode=$mode; PRAGMA synchronous=FULL;"
    echo "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT); CREATE INDEX i ON t (word);"
    for number in $(seq "$transactions"); do
      echo "BEGIN; INSERT INTO t (word) VALUES (hex(randomblob(200))), (hex(randomblob(200))); COMMIT;"
    done
    echo "DELETE FROM t WHERE id % 5 = 0;"
  } | sqlite3 -bail "$database" >/dev/null
  [ "$(sqlite3 "$database" 'SELECT count(*) FROM t')" = $((transactions * 8 / 5)) ] &&
    [ "$(sqlite3 "$database" 'PRAGMA integrity_check')" = ok ] &&
    [ "$(sqlite3 "$database" 'PRAGMA journal_mode')" = "$mode" ]
}
for mode in wal delete; do
  begun=$(seconds)
  patiently "SQLite, $mode" work_with_sqlite "$mode"
  took=$(since "$begun")
  row "SQLite, journal_mode=$mode" "$took" "$transactions durable transactions, $(per_second "$transactions" "$took")/s, integrity ok"
done

# --- the same bytes as objects ---

# curl signs for S3 since 7.75. The door of three servers shows a certificate of the cluster's authority, to a client on `front`.
s3() {
  local method=$1 path=$2 from=()
  shift 2
  [ "$servers" = 1 ] || from=(at c1)
  "${from[@]}" curl -sSf --cacert "$demo/roots.pem" --aws-sigv4 aws:amz:us-east-1:s3 --user "$s3_key" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
    -X "$method" "$s3_url/$path" "$@"
}
work_with_s3() {
  local name size
  s3 PUT letters
  # From a file to an object, and back.
  mkdir "$mnt/letters/sent" && echo 'Dear reader' >"$mnt/letters/sent/first"
  [ "$(s3 GET letters/sent/first)" = 'Dear reader' ]
  head -c 20000000 /dev/urandom >"$demo/object"
  s3 PUT letters/parcels/heavy --data-binary "@$demo/object"
  cmp "$demo/object" "$mnt/letters/parcels/heavy"
  mv "$mnt/letters/parcels/heavy" "$mnt/letters/sent/parcel"
  s3 GET letters/sent/parcel -o "$demo/back" && cmp "$demo/object" "$demo/back"
  # An object and a prefix of the same name.
  s3 PUT letters/sent --data-binary 'both'
  [ "$(s3 GET letters/sent)" = both ] && [ "$(s3 GET letters/sent/first)" = 'Dear reader' ]
  s3 GET 'letters?list-type=2' | grep -q '<Key>sent</Key>.*<Key>sent/first</Key>.*<Key>sent/parcel</Key>'
  # Any server answers.
  for address in "${s3_addresses[@]}"; do
    s3_url=https://$address
    [ "$servers" = 1 ] && s3_url=http://$address
    [ "$(s3 GET letters/sent/first)" = 'Dear reader' ]
  done
}
begun=$(seconds)
s3_key=$(store --json s3 key create demo | python3 -c "import json, sys; key = json.load(sys.stdin); print(key['id'] + ':' + key['secret'])")
: >"$demo/roots.pem"
if [ "$servers" = 1 ]; then
  store --json s3 enable demo --listen 127.0.0.1:0 --http >"$demo/door"
  s3_addresses=("$(python3 -c "import json, sys; print(json.load(sys.stdin)['open'][0])" <"$demo/door")") s3_url=http://${s3_addresses[0]}
else
  store --json s3 enable demo --listen 0.0.0.0:9000 >"$demo/door"
  python3 -c "import json, sys; print(json.load(sys.stdin)['roots'])" <"$demo/door" >"$demo/roots.pem"
  s3_addresses=(10.77.1.1:9000 10.77.1.2:9000 10.77.1.3:9000) s3_url=https://${s3_addresses[0]}
  for one in "$demo/state2" "$demo/state3"; do
    for _ in $(seq 100); do "$HEKATE" --state "$one" s3 list | grep -q ' open$' && break; sleep 0.1; done
  done
fi
patiently "S3" work_with_s3
row "S3: objects and files, ${#s3_addresses[@]} door(s)" "$(since "$begun")" "a 20 MB object is a file, a file an object, at once"

# --- translators: built in, and in Python ---

begun=$(seconds)
store python new "$demo/greeter" >/dev/null
cat >"$demo/greeter/translator.py" <<'END'
from hekate import PASS, Translator

class Greeter(Translator):
    """Counts the names that are looked up."""

    def lookup(self, op):
        self.metrics.count("look-ups")
        return PASS
END
# Each machine that uses the volume needs it: doors at servers, and the mount of a client.
machines=("$state")
[ "$servers" = 1 ] || machines+=("$demo/state2" "$demo/state3" "$demo/client1" "$demo/client2")
for one in "${machines[@]}"; do "$HEKATE" --state "$one" python install "$demo/greeter" >/dev/null; done
store volume set demo translators negative-lookup python:translator=greeter >/dev/null
for _ in $(seq 20); do [ ! -e "$mnt/nobody-made-this" ] || fail "a name that nobody made is there"; done
store volume set demo translators --none >/dev/null
row "translators, one in Python" "$(since "$begun")" "set and taken out again while the volume was mounted"

# --- a block device ---

# The export of a vDisk, as NBD clients name it.
vdisk_of() {
  if [ "$servers" = 1 ]; then
    echo "nbd+unix:///$1?socket=$demo/nbd.sock"
  else
    # Any server serves it.
    echo "nbds://10.77.1.$((1 + RANDOM % 3)):10809/$1?tls-certificates=$demo/pem"
  fi
}
# On the machine of a client.
block() { if [ "$servers" = 1 ]; then "$@"; else at c1 "$@"; fi; }
# A vDisk begins with what a file has.
begins_with() { block nbdcopy "$(vdisk_of "$1")" "$demo/back" && cmp -n 20000000 "$2" "$demo/back"; }
work_with_vdisks() {
  block nbdcopy "$demo/object" "$(vdisk_of disk1)"
  store vdisk snapshot demo disk1 first
  store vdisk clone demo disk1@first disk2
  head -c 20000000 /dev/urandom >"$demo/other"
  block nbdcopy "$demo/other" "$(vdisk_of disk2)"
  begins_with disk1 "$demo/object" && begins_with disk1@first "$demo/object" && begins_with disk2 "$demo/other"
}
# A file system with the pages of this project.
ext4_on_vdisk() {
  truncate -s 256M "$demo/image"
  mkfs.ext4 -q -F -d "$repository/docs" "$demo/image"
  block nbdcopy "$demo/image" "$(vdisk_of files)"
}
begun=$(seconds)
for one in disk1 files; do store vdisk create demo "$one" 256M >/dev/null; done
if [ "$servers" = 1 ]; then
  store nbd enable demo --socket "$demo/nbd.sock" >/dev/null
else
  store nbd enable demo --listen 0.0.0.0:10809 >/dev/null
  store client create block --volume demo -o "$demo/block.hekate" >/dev/null
  store client pem "$demo/block.hekate" "$demo/pem" >/dev/null
fi
servers_states=("$state")
[ "$servers" = 1 ] || servers_states+=("$demo/state2" "$demo/state3")
for one in "${servers_states[@]}"; do
  for _ in $(seq 100); do "$HEKATE" --state "$one" nbd list | grep -q ' open$' && break; sleep 0.1; done
done
patiently "vDisks" work_with_vdisks
patiently "ext4 on a vDisk" ext4_on_vdisk
row "vDisks over NBD: a snapshot, a clone, ext4" "$(since "$begun")" "20 MB written to each, each as it should be"

# --- killed in the middle of writes ---

acked() { python3 -B "$repository/tests/e2e/acked.py" "$@"; }
checksum() { (cd "$mnt" && find tree origin clone -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum); }
acknowledged=0 in_doubt=0
begun=$(seconds)
before=$(checksum)
for round in $(seq "$rounds"); do
  acked work "$mnt" "$record" --seconds 60 --seed "$round" &
  worker=$!
  sleep "$((1 + round % 2)).$((round * 37 % 10))"
  kill -0 "$worker" 2>/dev/null || fail "the writers stopped before anything was killed"
  # Either may be the first.
  if [ $((round % 2)) = 0 ]; then kill -9 $pids "$mount"; else kill -9 "$mount" $pids; fi
  wait "$worker" || fail "a writer met an error that a killed mount does not explain"
  worker=
  for pid in $pids $mount; do
    for _ in $(seq 200); do gone "$pid" && break; sleep 0.05; done
  done
  store umount --lazy "$mnt" >/dev/null
  again=$(seconds)
  pids=$(start_servers)
  mount=$(mount_volume)
  took=$(since "$again")
  acked verify "$mnt" "$record" >"$demo/verdict" || { cat "$demo/verdict" >&2; fail "round $round: the record and the volume differ"; }
  acknowledged=$(json acknowledged <"$demo/verdict")
  in_doubt=$((in_doubt + $(json in_doubt <"$demo/verdict")))
  echo "  round $round of $rounds: killed all, back after $took s; $acknowledged ops acknowledged so far, none lost"
done
after=$(checksum)
[ "$before" = "$after" ] || fail "what was copied before has changed"
for mode in wal delete; do
  # Locks of a mount that was killed over TCP are released after 60 s of silence.
  [ "$(sqlite3 -cmd '.timeout 90000' "$mnt/$mode.db" 'PRAGMA integrity_check')" = ok ] || fail "the database $mode.db is damaged"
done
begins_with disk1 "$demo/object" && begins_with disk2 "$demo/other" || fail "a vDisk is not what it was"
block nbdcopy "$(vdisk_of files)" "$demo/back"
e2fsck -fn "$demo/back" >"$demo/out" 2>&1 || { cat "$demo/out" >&2; fail "the file system on a vDisk is damaged"; }
[ "$(debugfs -R 'cat /vdisks.md' "$demo/back" 2>/dev/null | sha256sum)" = "$(sha256sum <"$repository/docs/vdisks.md")" ] ||
  fail "a file on a vDisk is not what it was"
row "kill -9 of $([ "$servers" = 1 ] && echo server || echo "$servers servers") and mount" "$(since "$begun")" "$(((servers + 1) * rounds)) kills, $acknowledged ops acknowledged, lost = 0, in doubt $in_doubt"

finished=yes
echo
printf '%s\n' "${rows[@]}"
echo
if [ "${ONCE:-}" = 1 ]; then
  take_away
  say "all good; everything is taken away again"
else
  say "all good; the volume is mounted at $mnt"
  say "look around:  $HEKATE --state $state status"
  say "stop it with: make demo-stop"
fi
