#!/usr/bin/env bash
# Runs every test of the workspace. Prints what this machine lacks, the command that installs it, and the
# tests that were skipped without it. Without arguments for cargo it also builds with MPI, runs the conformance
# suite on that, and trains on a Slurm cluster that it starts on this machine.
#
#   test.sh [--install] [ARGUMENTS OF cargo test]
#
#   --install               first installs what is missing: packages by apt-get (as root), Python packages into
#                           folders of their own under ~/.cache/burn-dist
#
#   BURN_DIST_DATA          folder that holds mnist/ and cifar-100/ (real data); unset: those tests are skipped
#   BURN_DIST_TENSORBOARD_PYTHON  a Python with the package tensorboard
#   BURN_DIST_MLFLOW_PYTHON  a Python with the package mlflow
#   BURN_DIST_CHROMIUM      the browser that opens reports; chromium or google-chrome unless set
#   BURN_DIST_PYTHON        a Python with torch, to exchange weights with; unset: skipped
#   BURN_DIST_GOLDEN        folder with a second set of golden files for the models; unset: only the first
#   SKIP_CLUSTER=1          leaves Slurm and MPI out
#   SKIP_GPU=1              leaves wgpu on software Vulkan, and CUDA in software, out
#   GPU_BUILD_SECONDS       time limit to build the dependencies for GPUs, 900 unless set
#   TEST_TIMEOUT_SECONDS    limit for one test binary, 600 unless set; twice that on CUDA in software
#   TEST_SECONDS            time limit for everything. Prints, and does not begin, the parts that may exceed it, mostly
#                           builds that have never been made. No limit unless set
#
# Arguments go to `cargo test`, for example `scripts/test.sh -p burn-dist-datasets`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=''
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' scripts/test.sh
    exit
    ;;
  --install)
    install=1
    shift
    ;;
esac

limit=${TEST_TIMEOUT_SECONDS:-600}
gpu_build=${GPU_BUILD_SECONDS:-900}
missing=()

say() { printf '%s\n' "test.sh: $*" >&2; }

left() { echo $((${TEST_SECONDS:-1000000} - SECONDS)); }

# Prints why the time does not suffice for work that takes this long on two slow CPUs; else nothing.
too_late() { # WHAT SECONDS
  (($(left) >= $2)) || echo "$1: may take $2 s, and $(left) are left of TEST_SECONDS=$TEST_SECONDS"
}

# A full disk fails a build in the middle. Deletes test programs that have run, largest first, until there is room: the
# next run links them again. Prints what was done.
make_room() { # GIB
  local target=${CARGO_TARGET_DIR:-target} file deleted=0
  while read -r file; do
    (($(free_gib) < $1)) || break
    rm -f "$file" && deleted=$((deleted + 1))
  done < <(find "$target" -path '*/deps/*' -type f -perm -100 ! -name '*.*' -size +4M -printf '%s %p\n' 2>/dev/null |
    sort -rn | cut -d' ' -f2-)
  ((deleted == 0)) || say "deleted $deleted test programs that have run: $(free_gib) GiB are free now"
}
free_gib() {
  local folder=${CARGO_TARGET_DIR:-target}
  mkdir -p "$folder"
  df --output=avail -BG "$folder" | tail -1 | tr -dc 0-9
}

# --- what the tests need beyond the Rust toolchain ------------------------------------------------

# Whether CHECK succeeds. If not, installs PACKAGES if requested and possible. Otherwise prints the command that installs
# the missing ones.
need() { # WHAT CHECK PACKAGES...
  local what=$1 check=$2
  shift 2
  "$check" && return
  if [[ -z $install ]]; then
    missing+=("$what: scripts/test.sh --install, or: apt-get install $*")
    return 1
  fi
  scripts/apt.sh "$@" && "$check" && return
  missing+=("$what: could not be installed: apt-get install $*")
  return 1
}

# The comparison with OpenMPI in `bench` wants a program from outside.
mpi_ready() { command -v mpicc && command -v mpirun && command -v cc; } >/dev/null 2>&1
need "Open MPI (mpicc, mpirun)" mpi_ready openmpi-bin libopenmpi-dev gcc || true

# Python packages that read what the trainer logs.
python_has() { [[ -n $1 ]] && "$1" -c "import $2"; } >/dev/null 2>&1

# Finds a Python with a package, or installs the package into a folder of its own.
find_python() { # VARIABLE PACKAGE MODULE
  local variable=$1 package=$2 module=$3
  python_has "${!variable:-}" "$module" && return
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/burn-dist/$package-venv
  export "$variable=$venv/bin/python"
  python_has "${!variable}" "$module" && return
  unset "$variable"
  local other="or set $variable to a Python that has it"
  if [[ -z $install ]]; then
    missing+=("the Python package $package: scripts/test.sh --install installs it; $other")
    return
  fi
  venv_ready() { python3 -c 'import ensurepip'; } >/dev/null 2>&1
  need "the Python package $package" venv_ready python3-venv || return 0
  say "installing the Python package $package into $venv"
  { python3 -m venv --clear "$venv" && timeout 600 "$venv/bin/pip" install --quiet "$package"; } </dev/null >&2 || say "pip failed"
  if python_has "$venv/bin/python" "$module"; then
    export "$variable=$venv/bin/python"
  else
    missing+=("the Python package $package: pip could not install it; $other")
  fi
}
find_python BURN_DIST_TENSORBOARD_PYTHON tensorboard tensorboard.backend.event_processing.event_accumulator
find_python BURN_DIST_MLFLOW_PYTHON mlflow mlflow.tracking

# A browser shows the reports of the trainer.
chromium_ready() {
  if [[ -n ${BURN_DIST_CHROMIUM:-} ]]; then [[ -x $BURN_DIST_CHROMIUM ]]; else
    command -v chromium || command -v chromium-browser || command -v google-chrome
  fi
} >/dev/null 2>&1
if [[ -n ${BURN_DIST_CHROMIUM:-} ]] && ! chromium_ready; then
  missing+=("Chromium: BURN_DIST_CHROMIUM=$BURN_DIST_CHROMIUM is no program")
else
  need Chromium chromium_ready chromium fonts-dejavu-core || true
fi

# Slurm, both MPI libraries, and the right to make network namespaces.
cluster_ready() {
  local program
  for program in slurmctld slurmd munged srun ip mpicc.openmpi mpicc.mpich; do
    command -v "$program" || return 1
  done
  ldconfig -p | grep -q 'libclang' || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*'
} >/dev/null 2>&1

find_cluster() {
  if [[ $(id -u) -ne 0 ]] || ! unshare --net --mount --uts true 2>/dev/null; then
    missing+=("Slurm and MPI: a test cluster needs root and network namespaces")
    return 1
  fi
  # shellcheck disable=SC2046
  need "Slurm and MPI" cluster_ready $(scripts/slurm-cluster.sh packages)
}

if [[ -z ${BURN_DIST_DATA:-} ]]; then
  missing+=("real data: set BURN_DIST_DATA to a folder that holds mnist/*-ubyte.gz and cifar-100/cifar-100-binary.tar.gz")
else
  for folder in mnist cifar-100; do
    [[ -d $BURN_DIST_DATA/$folder ]] || missing+=("real data: BURN_DIST_DATA=$BURN_DIST_DATA holds no folder $folder/")
  done
fi

# --- what the tests may leave behind: nothing ------------------------------------------------------

# Every process of a test inherits this mark, which distinguishes leftovers from other processes.
mark="burn-dist-test-$$-$(date +%s%N)"
shm_files() { find /dev/shm -maxdepth 1 -user "$(id -u)" -name '*burn*dist*' 2>/dev/null | sort; }
marked_processes() {
  grep -lzsFx "BURN_DIST_TEST_MARK=$mark" /proc/[0-9]*/environ | sed -n 's|^/proc/\([0-9]*\)/.*|\1|p' || true
}
kill_marked() {
  local pid
  for pid in $(marked_processes); do kill -KILL "$pid" 2>/dev/null || true; done
}
shm_before=$(shm_files)
log=$(mktemp)
trap 'kill_marked; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

# --- the tests -------------------------------------------------------------------------------------

make_room 12
what=("$@")
[[ ${#what[@]} -gt 0 ]] || what=(--workspace)
status=0
# --show-output prints the output of passing tests, above all "SKIPPED: ...". It goes to the log only,
# because tests of failures write much that looks like a failure.
without_output_of_passing_tests='/^successes:$/,/^(failures:|test result:)/ { /^(failures:|test result:)/!d }'
BURN_DIST_TEST_MARK="$mark" cargo test --release --no-fail-fast \
  --config "target.'cfg(all())'.runner = ['timeout', '--verbose', '-k', '10', '$limit']" \
  "${what[@]}" -- --show-output </dev/null 2>&1 |
  tee "$log" | sed -uE "$without_output_of_passing_tests" || status=$?

# The kernels on another CPU architecture, emulated; if that is not possible, only compiled.
aarch64=aarch64-unknown-linux-gnu
emulated=''

aarch64_ready() {
  command -v qemu-aarch64 && command -v aarch64-linux-gnu-gcc && [[ -d /usr/aarch64-linux-gnu/lib ]]
} >/dev/null 2>&1

if [[ $# -eq 0 ]]; then
  if ! rustup target list --installed 2>/dev/null | grep -qx "$aarch64" &&
    { [[ -z $install ]] || ! timeout 120 rustup target add "$aarch64" >&2 2>/dev/null; }; then
    missing+=("kernels on aarch64: rustup target add $aarch64${install:+ failed}")
  elif [[ $(uname -m) == aarch64 ]] ||
    ! need "kernels on aarch64, emulated" aarch64_ready qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross; then
    cargo check --release --target "$aarch64" -p burn-dist-kernels || status=1
  else
    # Tests the instruction sets that are missing there.
    if BURN_DIST_TEST_MARK="$mark" CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
      cargo test --release --no-fail-fast --target "$aarch64" -p burn-dist-kernels --tests --config \
      "target.$aarch64.runner = ['timeout', '--verbose', '-k', '10', '$limit', 'qemu-aarch64', '-L', '/usr/aarch64-linux-gnu']" \
      </dev/null 2>&1 | sed '/^SKIPPED: this machine lacks/d' | tee -a "$log"; then
      emulated=1
    else
      status=1
    fi
  fi
fi

# The library's example as two processes: it runs, and sharding changes no loss.
test_example() {
  local program=${CARGO_TARGET_DIR:-target}/release/examples/custom_model folder strategy rank code=0
  folder=$(mktemp -d)
  for strategy in ddp zero-3; do
    local port=$((20000 + RANDOM % 10000)) ranks=()
    for rank in 0 1; do
      RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        BURN_DIST_SECRET=$mark timeout -k 10 120 "$program" "$strategy" >"$folder/$strategy-$rank" &
      ranks+=($!)
    done
    for rank in "${ranks[@]}"; do wait "$rank" || code=$?; done
    grep '^step' "$folder/$strategy-0" >"$folder/$strategy" || code=1
  done
  diff "$folder/ddp" "$folder/zero-3" || code=1
  rm -rf "$folder"
  case $code in
    0) say "examples/custom_model.rs: two ranks, ddp and zero-3 agree" ;;
    *) say "FAILED: examples/custom_model.rs as two ranks" ;;
  esac
  return "$code"
}

if [[ $# -eq 0 ]]; then
  BURN_DIST_TEST_MARK="$mark" test_example </dev/null 2>&1 | tee -a "$log" || status=1
fi

# The trainer as one static program: two ranks in an otherwise empty file system; it resumes after a kill.
test_static() {
  local folder program code=0 begin=$SECONDS
  folder=$(mktemp -d)
  program=$(scripts/static.sh ${install:+--install} "$folder/trainer") || code=$?
  if [[ $code -eq 0 ]]; then
    local run=(--nproc 2 --set train.epochs=1 --set data.train_samples=960 --set data.test_samples=100 --run-dir /run/static)
    mkdir -p "$folder"/root/{proc,dev,run}
    cp "$program" "$folder/root/"
    local inside='mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && cd / && root=$1 && shift && exec chroot "$root" /trainer "$@"'
    if [[ $(id -u) -eq 0 ]] && unshare --mount true 2>/dev/null; then
      timeout -k 10 120 unshare --mount bash -c "$inside" inside "$folder/root" "${run[@]}" || code=1
    else
      echo 'SKIPPED: the static program in an empty file system: needs root and mount namespaces'
    fi
    TRAINER=$program timeout -k 10 200 scripts/kill-resume.sh --times 2 || code=1
    if [[ $code -eq 0 ]]; then say "static program: trained and went on, in $((SECONDS - begin)) s"; else say "FAILED: the static program"; fi
  fi
  rm -rf "$folder"
  return "$code"
}

if [[ $# -eq 0 ]] && reason=$(too_late "the static program" 900) && [[ -n $reason ]]; then
  missing+=("$reason")
elif [[ $# -eq 0 ]]; then
  make_room 6
  code=0
  BURN_DIST_TEST_MARK="$mark" test_static </dev/null 2>&1 | tee -a "$log" || code=${PIPESTATUS[0]}
  case $code in
    0) ;;
    3) missing+=("the static program: scripts/static.sh --install") ;;
    *) status=1 ;;
  esac
fi

# Everything again with MPI, and on a cluster.
test_cluster() {
  local programs name begin=$SECONDS
  programs=$(mktemp -d)
  # Lints the code that only these builds contain.
  cargo build --release --workspace &&
    cp "${CARGO_TARGET_DIR:-target}/release/trainer" "$programs/trainer-plain" &&
    MPICC=mpicc.openmpi cargo clippy --release --workspace --all-targets --features burn-dist-trainer/mpi,bench/mpi -- -D warnings &&
    for name in openmpi mpich; do
      scripts/mpi.sh build "$name" "$programs" && scripts/mpi.sh test "$name" "$programs" || return 1
    done &&
    timeout --verbose -k 30 900 scripts/slurm-test.sh "$programs"
  local code=$?
  rm -rf "$programs"
  say "Slurm and MPI took $((SECONDS - begin)) s"
  return "$code"
}

if [[ $# -eq 0 && ${SKIP_CLUSTER:-} != 1 ]] && reason=$(too_late "Slurm and MPI" 1000) && [[ -n $reason ]]; then
  missing+=("$reason")
elif [[ $# -eq 0 && ${SKIP_CLUSTER:-} != 1 ]] && find_cluster; then
  make_room 10
  BURN_DIST_TEST_MARK="$mark" test_cluster </dev/null 2>&1 | tee -a "$log" || status=1
elif [[ $# -eq 0 && ${SKIP_CLUSTER:-} == 1 ]]; then
  missing+=("Slurm and MPI: SKIP_CLUSTER=1")
fi

# GPUs: wgpu in software, and CUDA in software. One build for both, apart from that of the other tests; the
# first one takes long (docs/internals/soft-cuda.md).
vulkan_ready() {
  ldconfig -p | grep -q 'libvulkan\.so\.1' && compgen -G '/usr/share/vulkan/icd.d/*.json'
} >/dev/null 2>&1

# Runs tests in the folder of a package. Ranks that are threads poll their shared device, and so take the CPUs from other
# tests; on CUDA in software kernels have priority over polling threads. Tests of kernels also look for races.
by_package='case $PWD in
  */burn-dist) [[ ${BURN_DIST_TEST_DEVICE:-} == cuda ]] || export RUST_TEST_THREADS=1 ;;
  */kernels | */models) export SOFT_CUDA_RACES=1 ;;
esac; exec "$@"'
by_package=${by_package//$'\n'/ }

# The tests that a build for GPUs affects; programs and all other tests have run without it.
of_gpus=(--workspace --exclude burn-dist-datasets --exclude soft-cuda --lib --test devices --no-fail-fast)

test_gpu() {
  local begin=$SECONDS features=burn-dist-trainer/wgpu,bench/wgpu prepared
  if prepared=$(scripts/cuda-llvm.sh ${install:+--install}); then
    eval "$prepared"
    features+=,burn-dist-trainer/cuda-nvrtc,bench/cuda-nvrtc
  else
    say "without CUDA: scripts/cuda-llvm.sh says what is missing"
  fi
  # Otherwise Mesa's EGL complains in every process.
  export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}
  local runner="target.'cfg(all())'.runner = ['bash', '-c', '$by_package', 'run', 'timeout', '--verbose', '-k', '10', '$limit']" code=0
  local tests=(cargo test --release "${of_gpus[@]}" --features "$features" --config "$runner")
  # The remaining time is for the tests.
  local most=$(($(left) - 400)) reason
  ((most > gpu_build)) && most=$gpu_build
  timeout "$most" "${tests[@]}" --no-run || code=$?
  if [[ $code -eq 124 ]]; then
    say "GPUs: not built in $most s; what is built is kept for the next time"
    return 124
  fi
  [[ $code -eq 0 ]] || return "$code"
  "${tests[@]}" -- --show-output device nccl resident gpu --skip soft_cuda --skip tensor_cores || code=$?
  if [[ $features == *cuda* && -z $without_soft_cuda ]]; then
    reason=$(too_late "layers and training on CUDA in software" 800)
    if [[ -n $reason ]]; then echo "SKIPPED: $reason"; else test_cuda "$features" || code=$?; fi
  fi
  say "GPUs took $((SECONDS - begin)) s"
  return "$code"
}

# The same on a CUDA driver in software, with kernels compiled by NVRTC: every rank has its own device.
test_cuda() {
  local begin=$SECONDS features=$1 code=0 bench=${CARGO_TARGET_DIR:-target}/release/bench parts=nccl,parity precision reason
  # Tensor cores are interpreted number by number.
  local runner="target.'cfg(all())'.runner = ['bash', '-c', '$by_package', 'run', '$PWD/scripts/cuda-software.sh', 'timeout', '--verbose', '-k', '10', '$((2 * limit))']"
  BURN_DIST_TEST_DEVICE=cuda SOFT_CUDA_DEVICES=4 cargo test --release "${of_gpus[@]}" --features "$features" \
    --config "$runner" -- --show-output device:: gpu resident fused:: soft_cuda --skip a_machine_without_a_driver ||
    code=$?
  cargo build --release --workspace --bins --features "$features" || code=$?
  local golden=$PWD/models/tests/golden script=$PWD/scripts/cuda-software.sh folder
  bench=$(realpath "$bench")
  folder=$(mktemp -d)
  # Each has its own kernels, which are compiled the first time.
  for precision in bf16 f32 f16; do
    reason=$(too_late "golden files on CUDA in software in $precision" 500)
    [[ -z $reason ]] || { echo "SKIPPED: $reason"; continue; }
    (cd "$folder" && timeout --verbose -k 10 "$limit" "$script" "$bench" gpu --device cuda --parts "$parts" \
      --precisions "$precision" --limit "$limit" --golden "$golden") || code=$?
    parts=parity
  done
  # The GPU memory of the Olivia WideResNet at its full size: at most 1.2 times that of PyTorch's tensors
  # (docs/benchmarks.md). Kernels need not run for this.
  (cd "$folder" && SOFT_CUDA_IDLE=1 BURN_DIST_WGMMA=unchecked timeout --verbose -k 10 "$limit" "$script" "$bench" training-trained --model olivia \
    --ranks 1 --batch 256 --images 2048 --steps 6 --set train.device=cuda --set train.precision=bf16 \
    --out seconds.json --memory . && python3 - memory-0.json <<'EOF') || code=$?
import json, sys
taken = json.load(open(sys.argv[1]))["device_mib"]
print(f"test.sh: the Olivia WideResNet takes {taken:.0f} MiB of a GPU")
sys.exit(not 1000 < taken <= 1.2 * 1806)
EOF
  rm -rf "$folder"
  say "CUDA in software took $((SECONDS - begin)) s"
  return "$code"
}

if [[ $# -eq 0 && ${SKIP_GPU:-} != 1 ]] && reason=$(too_late GPUs 600) && [[ -n $reason ]]; then
  missing+=("$reason")
elif [[ $# -eq 0 && ${SKIP_GPU:-} != 1 ]]; then
  scripts/cuda-llvm.sh ${install:+--install} >/dev/null ||
    missing+=("CUDA: the LLVM that its build links is not there: scripts/cuda-llvm.sh --install")
  folder=${CARGO_TARGET_DIR:-target}
  make_room 20
  free=$(free_gib)
  if [[ $free -lt 16 && -z $(compgen -G "$folder/release/deps/libwgpu_core-*.rlib") ]]; then
    missing+=("GPUs: the build takes 12 GiB, and $free are free for $folder")
  elif need "software Vulkan" vulkan_ready mesa-vulkan-drivers libvulkan1; then
    code=0
    without_soft_cuda=''
    if [[ -z $install ]] && ! scripts/cuda-software.sh --toolkit >/dev/null; then
      without_soft_cuda=1
      missing+=("CUDA in software: scripts/cuda-software.sh --prepare installs NVRTC")
    elif ! scripts/cuda-software.sh --prepare; then
      without_soft_cuda=1
      missing+=("CUDA in software: scripts/cuda-software.sh --prepare failed")
    fi
    BURN_DIST_TEST_MARK="$mark" test_gpu </dev/null 2>&1 | tee -a "$log" || code=${PIPESTATUS[0]}
    case $code in
      0) ;;
      124) missing+=("GPUs: dependencies were not built in time (GPU_BUILD_SECONDS=$gpu_build${TEST_SECONDS:+, TEST_SECONDS=$TEST_SECONDS})") ;;
      *) status=1 ;;
    esac
  fi
elif [[ $# -eq 0 ]]; then
  missing+=("GPUs: SKIP_GPU=1")
fi

left_processes='' left_shm=''
for _ in {1..20}; do
  left_processes=$(marked_processes)
  left_shm=$(comm -13 <(printf '%s\n' "$shm_before") <(shm_files))
  [[ -z $left_processes && -z $left_shm ]] && break
  sleep 0.25
done

# --- the account -----------------------------------------------------------------------------------

awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "test.sh: %d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log" >&2
grep -a '^slurm-test.sh: ' "$log" >&2 || true
{ grep -ao '^test .* \.\.\. FAILED$' "$log" || true; } | sort | uniq -c | sed 's/^/test.sh: times: /' >&2
# Repeats the first output lines of each failed test, because they are far above.
awk '/^failures:$/ { failures = 1 } /^test result:/ { failures = 0 }
     failures && /^---- .* stdout ----$/ { left = 25 }
     /^FAILED  / { left = 60 } /^ok      |^slurm-test.sh: / { left = 0 }
     left > 0 { print substr($0, 1, 300); left-- }' "$log" >&2

mapfile -t skipped < <(grep -ao 'SKIPPED: .*' "$log" | sort -u |
  if [[ -n $emulated ]]; then sed '/^SKIPPED: this machine lacks \[Neon\]$/d'; else cat; fi)
if [[ ${#missing[@]} -gt 0 || ${#skipped[@]} -gt 0 ]]; then
  {
    echo "################################ NOT EVERYTHING WAS TESTED ################################"
    for line in "${missing[@]}"; do echo "MISSING: $line"; done
    for line in "${skipped[@]}"; do echo "$line"; done
    echo "############################################################################################"
  } >&2
fi

if [[ -n $left_processes ]]; then
  say "FAILED: the tests left these processes behind (killed now):"
  for pid in $left_processes; do
    printf '  %s %s\n' "$pid" "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" || true)" >&2
  done
  status=1
fi
if [[ -n $left_shm ]]; then
  say "FAILED: the tests left these files behind:"
  sed 's/^/  /' <<<"$left_shm" >&2
  status=1
fi
[[ $status -eq 0 ]] || say "FAILED"
exit "$status"
