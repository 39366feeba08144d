#!/usr/bin/env bash
# Builds with the feature `mpi` against each installed MPI library, and tests the builds.
#
#   mpi.sh build NAME FOLDER   builds against NAME (openmpi or mpich) and copies the
#                              programs to FOLDER: trainer-NAME, conformance-NAME
#   mpi.sh test NAME FOLDER    runs the conformance suite of that build under its own mpirun
#   mpi.sh list                prints the installed libraries
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/mpi.sh; }
fail() { printf 'mpi.sh: %s\n' "$*" >&2; exit 1; }

# Debian names the programs of each library apart; elsewhere there is one, under the plain name.
tool() {
  local plain=$1 name=$2
  if command -v "$plain.$name" >/dev/null; then
    echo "$plain.$name"
  elif command -v "$plain" >/dev/null && [[ $(library) == "$name" ]]; then
    echo "$plain"
  else
    return 1
  fi
}

library() {
  case $(mpirun --version 2>&1) in
    *'Open MPI'*) echo openmpi ;;
    *HYDRA*) echo mpich ;;
  esac
}

list() {
  local name
  for name in openmpi mpich; do
    if tool mpicc "$name" >/dev/null && tool mpirun "$name" >/dev/null; then echo "$name"; fi
  done
}

build() {
  local name=$1 folder=$2 mpicc binary
  mpicc=$(tool mpicc "$name") || fail "$name is not installed (mpicc)"
  mkdir -p "$folder"
  # The bindings do not notice that another library is wanted.
  cargo clean --release -p mpi-sys -p mpi 2>/dev/null || true
  export MPICC=$mpicc
  cargo build --release --workspace --features burn-dist-trainer/mpi --bin trainer
  binary=$(cargo test --release --workspace --features burn-dist-trainer/mpi --test conformance_mpi \
    --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*conformance_mpi[^"]*\)".*/\1/p' | tail -n 1)
  [[ -x $binary ]] || fail "cargo names no conformance suite"
  cp "$binary" "$folder/conformance-$name"
  cp "$(dirname "$binary")/../trainer" "$folder/trainer-$name"
}

run_tests() {
  local name=$1 folder=$2 mpirun
  mpirun=$(tool mpirun "$name") || fail "$name is not installed (mpirun)"
  BURN_DIST_MPIRUN=$mpirun "$folder/conformance-$name"
}

case ${1:-} in
  list) list ;;
  build) build "${2:?which library}" "${3:?into which folder}" ;;
  test) run_tests "${2:?which library}" "${3:?of which folder}" ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
