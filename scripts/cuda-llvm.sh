#!/usr/bin/env bash
# Prepares the LLVM that a build with the feature `cuda` links, from Debian's packages: for machines
# where cubecl's build script cannot download the one it wants. Usage, before cargo:
#
#   eval "$(scripts/cuda-llvm.sh [--install])"
#
#   --install   installs the packages if they are missing: needs Debian's or Ubuntu's apt with llvm-22, and root
#
# It prints the variables to set and speaks on stderr otherwise. With the feature `cuda-nvrtc` this
# LLVM is linked and never used.
set -euo pipefail

install=''
if [[ ${1:-} == --install ]]; then
  install=1
elif [[ $# -gt 0 ]]; then
  sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}" >&2
  [[ $1 == -h || $1 == --help ]] || exit 2
  exit
fi

llvm=22
packages=("llvm-$llvm-dev" "libpolly-$llvm-dev" libz3-dev libzstd-dev zlib1g-dev libxml2-dev)
# Where cubecl 0.11.3 (tracel-llvm-bundler) looks, and the mark that it is complete.
prefix=${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-23.1.0-4
mark=$prefix/.tracel-llvm-installed
links=$prefix-links

say() { printf '%s\n' "cuda-llvm.sh: $*" >&2; }

if [[ -e $mark && ! -L $prefix/lib ]]; then
  say "$prefix holds a downloaded LLVM: nothing to prepare"
  exit 0
fi

if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  [[ -n $install ]] || { say "MISSING: scripts/cuda-llvm.sh --install, or: apt-get install ${packages[*]}"; exit 1; }
  "$(dirname "${BASH_SOURCE[0]}")/apt.sh" "${packages[@]}"
fi

mkdir -p "$prefix" "$links"
for part in bin lib include; do ln -sfn "/usr/lib/llvm-$llvm/$part" "$prefix/$part"; done
# llvm-config names this library by a path, of which cubecl's build script takes the stem `libz3`.
z3=$(find /usr/lib -name libz3.so -print -quit)
[[ -n $z3 ]] || { say "MISSING: libz3.so under /usr/lib"; exit 1; }
ln -sfn "$z3" "$links/liblibz3.so"
# Its time tells cargo whether to rebuild all that depends on LLVM.
[[ -e $mark ]] || touch "$mark"
say "LLVM $("$prefix/bin/llvm-config" --version) in $prefix"
printf 'export LIBRARY_PATH=%q\n' "$links${LIBRARY_PATH:+:$LIBRARY_PATH}"
