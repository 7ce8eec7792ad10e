#!/bin/bash
# Hekate on one host.   hekate.sh up|remount|down|dir|info|trace     (variant from $GV)
#   GV = r2 | r3 | r1, with -cacheN for `mount --cache N`, e.g. r2-cache1; -own-cacheN: mounted by the server (`serve --mount`);
#        -asked: without pledges (`-o nopledges`);
#        -two-cacheN: two server processes with a brick each, over TCP.  Bricks: XFS on loop devices (direct I/O), as the peers'.
# `up` traces one O_SYNC write and one fsync, and fails unless every replica's disk was synced before the reply.
. $(dirname $(readlink -f $0))/common.sh
GV=${GV:-r2}; D=$MNT/hekate; S=$PP/run/hekate; H=${HEKATE:-$(readlink -f $(dirname $(readlink -f $0))/../../target/release/hekate)}
case $GV in r1*) N=1;; r3*) N=3;; *) N=2;; esac
case $GV in *cache*) C=${GV##*cache}; OPT="--cache $C";; *asked*) OPT="-o nopledges";; *) OPT="";; esac
[ -x $H ] || die "no $H: cargo build --release -p hekate --features measuring"
h() { $H --state $S "$@" || die "hekate $*"; }
case $GV in *own*) OWN="--mount pv:$D${OPT:+:cache=${OPT#--cache }}";; *) OWN="";; esac
case $GV in *two*) TWO=1; LISTEN="--listen 127.0.0.1:7801";; *) TWO=""; LISTEN="";; esac
h2() { $H --state $S.2 "$@" || die "hekate (second server) $*"; }
serve() { mkdir -p $D; h serve --detach $LISTEN $OWN > $PP/run/hekate.up; [ -z "$TWO" ] || h2 serve --detach --listen 127.0.0.1:7802 >/dev/null; }
m() { [ -n "$OWN" ] || h mount $OPT pv $D > /dev/null; stat $D >/dev/null; }
pid() { sed -n 's/^server \([0-9]*\) answers.*/\1/p' $PP/run/hekate.up; }
# Every brick must see a sync of its journal between the request and its answer.
trace() {
  local t=$PP/run/hekate.trace f=$D/.trace-probe p; p=$(pid)
  dd if=/dev/zero of=$f bs=64k count=1 conv=fsync status=none
  for how in osync fsync; do
    strace -f -tt -y -e trace=fdatasync,fsync,sendto,writev -p $p -o $t 2>/dev/null & local st=$!
    for i in $(seq 100); do grep -q TracerPid:.$st /proc/$p/status && break; sleep 0.05; done; sleep 0.3
    case $how in osync) dd if=/dev/urandom of=$f bs=4k count=1 seek=3 oflag=sync conv=notrunc status=none;;
      fsync) dd if=/dev/urandom of=$f bs=4k count=1 seek=5 conv=notrunc,fsync status=none;; esac
    sleep 0.3; kill $st; wait $st 2>/dev/null
    for i in $(seq $N); do
      grep -qE "(fdatasync|fsync)\([0-9]+<$MNT/hbrick$i/brick/journal" $t || die "$how: brick $i was not synced (trace: $t)"
    done
    python3 - $t $MNT $N <<'P' || die "$how: the reply came before a sync (trace: $t)"
import re, sys
trace, mnt, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
# thread -> brick of its unfinished sync; a sync counts when its call has returned 0
begun, synced, ok = {}, set(), False
for line in open(trace):
    tid = line.split()[0]
    m = re.search(r"f(?:data)?sync\(\d+<%s/hbrick(\d+)/brick/journal" % re.escape(mnt), line)
    if m:
        if "unfinished" in line: begun[tid] = m.group(1)
        elif line.rstrip().endswith("= 0"): synced.add(m.group(1))
    elif "sync resumed" in line and tid in begun and line.rstrip().endswith("= 0"):
        synced.add(begun.pop(tid))
    elif ("sendto(" in line or "writev(" in line and "/dev/fuse" in line) and len(synced) == n:
        ok = True        # an answer that left after all bricks had synced
sys.exit(0 if ok else 1)
P
  done; rm -f $f; echo "trace: one O_SYNC write and one fsync: all $N replicas' disks were synced before the reply"; }
case $1 in
up)
  rm -rf $S $S.2; B=""
  for i in $(seq $N); do xfs_up b$i $MNT/hbrick$i; mkdir -p $MNT/hbrick$i/brick; B="$B --brick $MNT/hbrick$i/brick"; done
  if [ -n "$TWO" ]; then
    h --json init --brick $MNT/hbrick1/brick >/dev/null; TWO= serve
    h2 join "$(h token create)" --brick $MNT/hbrick2/brick >/dev/null
    h2 serve --detach --listen 127.0.0.1:7802 >/dev/null; h volume create pv --copies 2 >/dev/null; m
  else
    h --json init $B --volume pv --copies $N >/dev/null; serve; m; [ -n "$NOTRACE" ] || trace
  fi;;
remount) sync; umount $D || { sleep 1; umount $D || die umount; }; [ -z "$TWO" ] || h2 stop >/dev/null; h stop >/dev/null; drop; serve; m;;
down) mountpoint -q $D && { umount $D || umount -l $D; }; sleep 0.3; [ -z "$TWO" ] || $H --state $S.2 stop >/dev/null 2>&1; $H --state $S stop >/dev/null 2>&1
  for i in 1 2 3; do mountpoint -q $MNT/hbrick$i && xfs_down b$i $MNT/hbrick$i; done; rm -rf $S $S.2;;
dir) echo $D;;
trace) trace;;
info) $H --version; $H --state $S status; $H --state $S volume show pv; findmnt -no FSTYPE,OPTIONS $D; echo "cache option: ${OPT:-strict}";;
esac
