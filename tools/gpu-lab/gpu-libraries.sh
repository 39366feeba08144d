# Finds the libraries for programs built with cuda-nvrtc on a machine whose CUDA somebody else has installed; sourced by
# tools/gpu-lab/gpu-check.sh. NVRTC compiles for the driver with CUDA's headers, so the versions of all three must fit.
# There may be several of each, also incomplete ones: in the packed file, in a toolkit, in PyTorch's packages. Versions
# are CUDA's numbers: 12080 is 12.8, and 0 is unknown.
#
#   cuda_environment HERE LINKS   HERE: folder of the packed file; LINKS: an empty folder. Sets cuda_variables, for
#                                 programs of this workspace alone, and prints its choice
#
#   KERNELS           folder that keeps compiled kernels for the next process, unless BURN_DIST_KERNELS names one
#   CUDA_PATH         its headers win over all others
#   LD_LIBRARY_PATH   its libraries win over others that fit as well
#   PYTHON            the Python whose packages are searched; python3 unless set
# shellcheck shell=bash

version_of() { # 12.8 -> 12080
  local major minor _
  IFS=. read -r major minor _ <<<"$1"
  [[ $major =~ ^[0-9]+$ ]] || { echo 0; return; }
  [[ $minor =~ ^[0-9]+$ ]] || minor=0
  echo $((major * 1000 + minor * 10))
}

shown() { # 12080 -> 12.8
  if (($1 == 0)); then echo '(unknown version)'; else echo "$(($1 / 1000)).$(($1 % 1000 / 10))"; fi
}

# The newest CUDA that the driver supports.
driver_version() {
  version_of "$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]* Version *: *\([0-9.]*\).*/\1/p' | sed -n 1p || true)"
}

headers_version() { # FOLDER
  local number
  number=$(sed -n 's/^#define CUDA_VERSION  *\([0-9]*\).*/\1/p' "$1/include/cuda.h" 2>/dev/null | sed -n 1p) || true
  echo "${number:-0}"
}

# From the name of the file, or of the library beside it that it needs.
nvrtc_version() { # FILE
  local file name builtins
  file=$(realpath "$1")
  name=$(basename "$file")
  name=${name#libnvrtc.so}
  name=${name#.}
  if [[ $name != *.* ]]; then
    for builtins in "${file%/*}/libnvrtc-builtins.so.$name"[.0-9]*; do
      [[ ! -e $builtins ]] || { name=${builtins##*/libnvrtc-builtins.so.}; break; }
    done
  fi
  version_of "$name"
}

# Folders with NVIDIA's packages for Python: cuda_nvrtc, nccl and so on, or cu13.
python_packages() {
  "${PYTHON:-python3}" -c '
import glob, site, sys
for place in dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()]):
    for folder in sorted(glob.glob(place + "/nvidia/*/")): print(folder.rstrip("/"))
' 2>/dev/null || true
}

# Folders with include/ and lib/.
toolkits() { # HERE
  local nvcc
  printf '%s\n' "$1"/cuda-* /usr/local/cuda /usr/local/cuda-* /opt/cuda
  ! nvcc=$(command -v nvcc) || dirname "$(dirname "$(realpath "$nvcc")")"
  python_packages
}

# Folders in which the system's loader finds a library by itself.
known_to_loader() { { ldconfig -p || /sbin/ldconfig -p || true; } 2>/dev/null | sed -n "s|.* => \(.*\)/$1[.0-9]*\$|\1|p" | sort -u; }

# Files of a library in the folders on stdin.
files_of() { # NAME
  local folder file
  while IFS= read -r folder; do
    for file in "$folder/$1" "$folder/$1".[0-9]*; do
      [[ ! -e $file ]] || printf '%s\n' "$file"
    done
  done
}

# How badly NVRTC, headers and driver fit; 0 is well.
misfit() { # NVRTC HEADERS DRIVER
  local misfit=0
  if (($1 == 0)); then misfit=0
  elif (($1 / 1000 != $2 / 1000)); then misfit=2
  elif (($1 != $2)); then misfit=1
  fi
  (($3 == 0 || $1 <= $3)) || misfit=$((misfit + 3))
  echo "$misfit"
}

cuda_environment() {
  local links=$2 folder file own=() places=() libraries=() headers=() least=100
  local nvrtc='' path='' nccl driver of_driver of_nvrtc=0 of_path=0 version other worth
  local kept_by='' stranger=0 candidate candidates=()
  IFS=: read -ra own <<<"${LD_LIBRARY_PATH:-}"
  mapfile -t places < <(toolkits "$1")
  [[ -z ${CUDA_PATH:-} ]] || places=("$CUDA_PATH" "${places[@]}")
  mapfile -t libraries < <(
    for folder in "${own[@]}"; do printf '%s\n' "$folder"; done
    for folder in "${places[@]}"; do printf '%s\n' "$folder"/{lib64,lib,targets/x86_64-linux/lib}; done
    known_to_loader libnvrtc.so
    known_to_loader libnccl.so
  )
  [[ -z ${CUDA_PATH:-} ]] || places=("$CUDA_PATH")
  # Without the second file no kernel with tensor cores compiles; it belongs to another package than the first.
  for folder in "${places[@]}"; do
    [[ ! -e $folder/include/cuda_runtime.h || ! -e $folder/include/crt/mma.h ]] || headers+=("$folder")
  done
  [[ ${#headers[@]} -gt 0 ]] || headers=('')

  # Among equally fitting ones, the library that compiled the packed kernels: they are valid for no other.
  [[ ! -e $1/kept/compiler.sha256 ]] || read -r kept_by _ <"$1/kept/compiler.sha256"
  of_driver=$(driver_version)
  local -A seen=()
  while IFS= read -r file; do
    # A library has several names, in folders that are links too.
    candidate=$(realpath "$file")
    [[ -z ${seen[$candidate]:-} ]] || continue
    seen[$candidate]=1
    version=$(nvrtc_version "$file")
    for folder in "${headers[@]}"; do
      other=$(headers_version "$folder")
      worth=$(misfit "$version" "$other" "$of_driver")
      ((worth <= least)) || continue
      ((worth == least)) || candidates=()
      least=$worth
      candidates+=("$file"$'\x1f'"$folder"$'\x1f'"$version"$'\x1f'"$other")
    done
  done < <(printf '%s\n' "${libraries[@]}" | files_of libnvrtc.so)
  candidate=${candidates[0]:-}
  if [[ -n $kept_by && -n $candidate ]]; then
    stranger=1
    # Hashing a library takes a moment, so only fitting ones are read, and as few as possible.
    for other in "${candidates[@]}"; do
      [[ $(sha256sum <"${other%%$'\x1f'*}") != "$kept_by "* ]] || { candidate=$other stranger=0; break; }
    done
  fi
  [[ -z $candidate ]] || IFS=$'\x1f' read -r nvrtc path of_nvrtc of_path <<<"$candidate"
  # Not `head`, which ends before what writes to it.
  nccl=$(printf '%s\n' "${libraries[@]}" | files_of libnccl.so | sed -n 1p)
  driver=$(known_to_loader libcuda.so | files_of libcuda.so | sed -n 1p)
  # Containers get the driver in folders that their loader may not know.
  local unknown=''
  [[ -n $driver ]] || unknown=$(printf '%s\n' "${own[@]}" /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu \
    /usr/lib64 /usr/lib/wsl/lib /run/opengl-driver/lib | files_of libcuda.so | sed -n 1p)
  # The packed kernels are for a GPU, not for a run that compiles kernels to pack them.
  local kept=${BURN_DIST_KERNELS:-$KERNELS/nvrtc}
  mkdir -p "$kept"
  [[ -n ${BURN_DIST_KERNELS:-} || ! -d $1/kept ]] ||
    tar -C "$1/kept" -cf - --exclude=compiler.sha256 . | tar -C "$kept" -xf - --skip-old-files

  # Programs look for names with the versions that they know; the link has a name that all know. A library finds its own
  # dependencies beside the file, not beside the link.
  [[ -z $nvrtc ]] || ln -s "$(realpath "$nvrtc")" "$links/libnvrtc.so"
  [[ -z $nccl ]] || ln -s "$(realpath "$nccl")" "$links/libnccl.so.2"
  local search=$links${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  for file in "$nvrtc" "$unknown"; do
    [[ -z $file || :$search: == *":${file%/*}:"* ]] || search+=:${file%/*}
  done
  cuda_variables=("LD_LIBRARY_PATH=$search" "BURN_DIST_KERNELS=$kept")
  [[ -z $path ]] || cuda_variables+=("CUDA_PATH=$path")

  say "driver: ${driver:-${unknown:-none found}}, knows CUDA $(shown "$of_driver")"
  say "NVRTC: ${nvrtc:-none found}, $(shown "$of_nvrtc"); headers: ${path:-none found}, $(shown "$of_path")"
  say "NCCL: ${nccl:-none found}"
  say "kernels are kept in $kept, which holds $(find "$kept" -name '*.ptx' | wc -l)"
  ((stranger == 0)) ||
    say "WARNING: the kernels that are packed were compiled by another NVRTC than this, and will be compiled again"
  ((least <= 1)) ||
    say "WARNING: no NVRTC and headers of one major version that the driver knows: kernels may not compile or load"
}
