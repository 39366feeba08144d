#!/usr/bin/env bash
# Prints the path of a program of the crates registry. Installs it under ~/.cache/burn-dist if this version is missing.
# Used by packages.sh and docs.py.
#
#   cargo-tool.sh NAME VERSION SECONDS [ARGUMENTS OF cargo install]
#
#   SECONDS   time limit for the installation; 0 installs nothing
set -euo pipefail

[[ $# -ge 3 && $1 != -* ]] || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0" >&2; exit 2; }
name=$1 version=$2 seconds=$3
shift 3
command -v "$name" && exit
folder=${XDG_CACHE_HOME:-$HOME/.cache}/burn-dist/$name
if [[ $("$folder/bin/$name" --version 2>/dev/null) != *"$version"* ]]; then
  ((seconds > 0)) || exit 1
  printf '%s\n' "cargo-tool.sh: installing $name $version into $folder" >&2
  # A debug build takes half as long, and these programs run for seconds.
  (cd / && CARGO_TARGET_DIR=$folder/target timeout -k 10 "$seconds" cargo install "$name" --quiet --locked \
    --version "$version" --debug --no-default-features --root "$folder" "$@") >&2 || exit 1
  rm -rf "$folder/target"
fi
echo "$folder/bin/$name"
