# Short names for the commands of CONTRIBUTING.md.

set positional-arguments

# Trains on built-in data; arguments go to the trainer: `just train --config mnist-cnn.toml`.
train *arguments:
    cargo run --release -- "$@"

test:
    scripts/test.sh --install

# Builds the trainer, and installs it with manual pages and completions below $PREFIX (~/.local).
install *arguments:
    cargo build --release -p burn-dist-trainer "$@"
    scripts/install.sh "${CARGO_TARGET_DIR:-target}/release/trainer"

# Builds the trainer as one static program, for machines whose C library is older.
static *arguments:
    scripts/static.sh "$@"

# Kills all ranks of a training at random steps, twenty times, and compares with one left alone.
kill-resume *arguments:
    scripts/kill-resume.sh "$@"

# Trains under a real Slurm of four nodes on this machine, with and without MPI. Needs root.
slurm:
    scripts/slurm-cluster.sh install
    cargo build --release
    rm -rf target/slurm
    mkdir -p target/slurm
    cp -f "${CARGO_TARGET_DIR:-target}/release/trainer" target/slurm/trainer-plain
    for library in $(scripts/mpi.sh list); do scripts/mpi.sh build "$library" target/slurm || exit 1; done
    scripts/slurm-test.sh target/slurm

lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings

book:
    scripts/docs.py

doc:
    RUSTDOCFLAGS='-D warnings' cargo doc --release --no-deps --workspace

# All benchmarks, the first against OpenMPI where it is installed; tables here, JSON in results/.
bench:
    cargo run --release -p bench -- collectives --mpi
    cargo run --release -p bench -- training
    cargo run --release -p bench -- loader
    cargo run --release -p bench -- checkpoint
    cargo run --release -p bench -- sharding
