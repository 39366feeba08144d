#!/usr/bin/env bash
# Runs a program with CUDA on a machine without a GPU: with the crate soft-cuda instead of the driver and
# NCCL, and with NVIDIA's own kernel compiler, NVRTC. For tests; it is slow, and timings mean nothing.
#
#   scripts/cuda-software.sh --prepare     builds soft-cuda and installs NVRTC, if they are not there
#   scripts/cuda-software.sh --assemble [FOLDER [INTO]]   translates the kept kernels with NVIDIA's assembler, ptxas, and
#                                          prints those that it refuses and those that spill registers, which soft-cuda
#                                          does not count. INTO keeps the results, for tools/gpu-lab/gpu-pack.sh
#   scripts/cuda-software.sh --toolkit     prints the folder of the NVRTC and headers in use
#   scripts/cuda-software.sh PROGRAM ...   runs a program that is built with cuda-nvrtc, or with cuda
#
#   SOFT_CUDA_TOOLKIT                      folder with include/ and lib/libnvrtc.so.* instead of the installed NVRTC,
#                                          such as one that tools/gpu-lab/gpu-pack.sh packs
#   BURN_DIST_KERNELS                      folder for compiled kernels; default soft-cuda/kept in the target folder
#   SOFT_CUDA_DEVICES and others           see tools/soft-cuda/src/lib.rs
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
libraries=$target/soft-cuda
kept=$libraries/kept
venv=${XDG_CACHE_HOME:-$HOME/.cache}/burn-dist/nvrtc-venv
# The compiler, and the headers that it includes, of one version.
packages=(nvidia-cuda-nvrtc==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-cccl==13.0.*)

say() { printf '%s\n' "cuda-software.sh: $*" >&2; }

toolkit() {
  local header
  for header in "$venv"/lib/python3*/site-packages/nvidia/cu13/include/crt/mma.h; do
    [[ ! -e $header ]] || { printf '%s\n' "${header%/include/crt/mma.h}"; return; }
  done
  return 1
}

install_nvrtc() {
  ! toolkit >/dev/null || return 0
  say "installing the Python packages ${packages[*]} into $venv"
  { python3 -m venv --clear "$venv" && timeout 600 "$venv/bin/pip" install --quiet --no-deps "${packages[@]}"; } \
    </dev/null >&2 || true
  toolkit >/dev/null || { say "MISSING: NVRTC: pip could not install ${packages[*]}"; exit 1; }
}

prepare() {
  install_nvrtc
  (cd "$root" && cargo build --locked --release -p soft-cuda) >&2
  # In a separate folder, because all tests of cargo search its own folders for libraries.
  mkdir -p "$libraries"
  cp "$target/release/libsoft_cuda.so" "$libraries/libcuda.so.1.new"
  mv "$libraries/libcuda.so.1.new" "$libraries/libcuda.so.1"
  ln -sfn libcuda.so.1 "$libraries/libcuda.so"
  ln -sfn libcuda.so.1 "$libraries/libnccl.so.2"
  rm -f "$libraries/libnvrtc.so" # Of older sources.
  # Kernels and notes unused for two weeks belong to older sources.
  [[ ! -d $kept ]] || find "$kept" '(' -name '*.ptx' -o -name '*.note' ')' -atime +14 -delete
}

# Does the work of a driver when it loads a kernel, for the compute capability of the kernel.
assemble() { # FOLDER [INTO]
  local tools=${XDG_CACHE_HOME:-$HOME/.cache}/burn-dist/ptxas-venv packages=('nvidia-cuda-nvcc==13.0.*' blake3) ptxas
  found() { ptxas=$(compgen -G "$tools/lib/python3*/site-packages/nvidia/cu13/bin/ptxas") && [[ -e $tools/complete ]]; }
  found || {
    say "installing the Python packages ${packages[*]} into $tools"
    { python3 -m venv --clear "$tools" && timeout 600 "$tools/bin/pip" install --quiet --no-deps "${packages[@]}" &&
      touch "$tools/complete"; } </dev/null >&2 || true
    found || { say "MISSING: ptxas: pip could not install ${packages[*]}"; return 1; }
  }
  "$tools/bin/python" "$root/tools/gpu-lab/assemble-kernels.py" "$ptxas" "$@"
}

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
case ${1:-} in
  -h | --help) usage; exit ;;
  --prepare) prepare; exit ;;
  --assemble) assemble "${2:-$kept}" "${@:3}"; exit ;;
  --toolkit)
    [[ -n ${SOFT_CUDA_TOOLKIT:-} ]] && echo "$SOFT_CUDA_TOOLKIT" || toolkit
    exit
    ;;
  '' | -*) usage >&2; exit 2 ;;
esac
[[ -e $libraries/libcuda.so.1 ]] || { say "not prepared: scripts/cuda-software.sh --prepare"; exit 2; }
CUDA_PATH=${SOFT_CUDA_TOOLKIT:-$(toolkit)} || { say "not prepared: scripts/cuda-software.sh --prepare"; exit 2; }
export CUDA_PATH
export BURN_DIST_KERNELS=${BURN_DIST_KERNELS:-$kept}
export LD_LIBRARY_PATH=$libraries:$CUDA_PATH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$@"
