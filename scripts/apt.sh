#!/usr/bin/env bash
# Installs Debian packages without a question, or says on stderr why it can't. The other scripts call it.
#
#   scripts/apt.sh PACKAGE...
set -euo pipefail

say() { printf 'apt.sh: %s\n' "$*" >&2; }
[[ $# -gt 0 && $1 != -* ]] || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
  say "needs root and apt-get; by hand: apt-get install $*"
  exit 1
fi
say "installing $*"
apt=(timeout 400 apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60)
export DEBIAN_FRONTEND=noninteractive
{ "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$@"; } </dev/null >&2 ||
  { say "this failed: apt-get install $*"; exit 1; }
