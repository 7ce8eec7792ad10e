#!/bin/bash
# In a Debian 12 with lintian: what it says of the package, and what readers of man pages and shells say of what is in it.
set -eu
cd /
failed() { echo "package: lint: $*" >&2; exit 1; }

echo "package: lint: lintian"
useradd --create-home builder # it does not run as root
said=$(setpriv --reuid=builder --regid=builder --init-groups env HOME=/home/builder lintian --fail-on error,warning --info /package.deb 2>&1) ||
  failed "$said"
echo "$said" | grep '^N: .*overrid' || true

echo "package: lint: man pages"
mkdir /unpacked
dpkg-deb -x /package.deb /unpacked
find /unpacked/usr/share/man -type f -name '*.gz' -exec gunzip {} +
pages=$(find /unpacked/usr/share/man -type f)
# shellcheck disable=SC2086 # several
mandoc -Tlint -Werror $pages >/tmp/said || failed "$(cat /tmp/said)"

echo "package: lint: completions"
bash -n /unpacked/usr/share/bash-completion/completions/hekate
zsh -n /unpacked/usr/share/zsh/vendor-completions/_hekate
fish -n /unpacked/usr/share/fish/vendor_completions.d/hekate.fish
offered=$(fish --no-config -c 'source /unpacked/usr/share/fish/vendor_completions.d/hekate.fish; complete -C "hekate volume "')
case $offered in *create*delete*) ;; *) failed "fish offers: $offered" ;; esac
cat >/tmp/completed <<'END'
autoload -Uz compinit && compinit -u -d /tmp/dump
echo "$_comps[hekate]"
END
[ "$(zsh -f -c 'fpath=(/unpacked/usr/share/zsh/vendor-completions $fpath); . /tmp/completed')" = _hekate ] ||
  failed "zsh does not take the completion for hekate"
echo "package: lint: passed"
