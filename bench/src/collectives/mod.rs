//! `bench collectives`: all-reduce over each transport and kind of memory, and compared with MPI.

pub mod rank;

mod mpi;
mod ours;
mod protocol;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use burn_dist::{Algorithm, GroupOptions, TransportKind};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::regime::ping_pong_ns;
use crate::report::{self, Report};
use crate::size::Size;
use crate::stats;
use crate::table::{Table, number};
use mpi::Mpi;
use ours::Ours;
use protocol::{Measurement, Protocol};

/// How bytes move between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP over the loopback interface.
    Tcp,
    /// As on two nodes with half of the ranks each: shared memory within them, TCP over the
    /// loopback interface between them.
    TwoNodes,
    /// The same, each node's ranks first.
    NodeFirst,
    /// MPI's messages under our ring (needs the feature `mpi`, and mpirun).
    Mpi,
    /// MPI's own all-reduce, as our library calls it (needs the same).
    MpiCollectives,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::TwoNodes => "two-nodes",
            Self::NodeFirst => "node-first",
            Self::Mpi => "mpi",
            Self::MpiCollectives => "mpi-collectives",
        }
    }

    /// Whether MPI must start the ranks.
    fn needs_mpi(self) -> bool {
        matches!(self, Self::Mpi | Self::MpiCollectives)
    }

    /// The transport's name in a group.
    fn connects_by(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::TwoNodes | Self::NodeFirst => "shm+tcp",
            Self::Mpi | Self::MpiCollectives => "mpi",
        }
    }

    /// Options of a group of `ranks` with this transport.
    fn options(self, ranks: usize) -> GroupOptions {
        let (transport, algorithm) = match self {
            Self::Shm => (TransportKind::Shm, Algorithm::Auto),
            Self::Tcp => (TransportKind::Tcp, Algorithm::Auto),
            Self::TwoNodes => (TransportKind::Auto, Algorithm::Auto),
            Self::NodeFirst => (TransportKind::Auto, Algorithm::NodeFirst),
            Self::Mpi => (TransportKind::Mpi, Algorithm::Auto),
            Self::MpiCollectives => (TransportKind::Mpi, Algorithm::Mpi),
        };
        let on_two_nodes = matches!(self, Self::TwoNodes | Self::NodeFirst);
        GroupOptions {
            transport,
            algorithm,
            ranks_per_node: NonZeroUsize::new(ranks.div_ceil(2)).filter(|_| on_two_nodes),
            ..GroupOptions::default()
        }
    }
}

/// Calls of our all-reduce. They also decide its kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// `all_reduce_buffer` on a bucket of the group, on the caller's thread.
    Bucket,
    /// `start_all_reduce` on a bucket of the group and `wait` on its handle.
    Handle,
    /// `all_reduce` on a slice of the caller's own memory.
    Slice,
}

impl Call {
    const ALL: [Self; 3] = [Self::Bucket, Self::Handle, Self::Slice];

    fn name(self) -> &'static str {
        match self {
            Self::Bucket => "registered",
            Self::Handle => "registered, by handle",
            Self::Slice => "private",
        }
    }
}

/// All-reduce: bus bandwidth and latency by world size, buffer size, transport and memory.
#[derive(Debug, clap::Args)]
pub struct CollectivesArgs {
    /// World sizes, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// Buffer sizes, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1KiB,64KiB,1MiB,25MiB,100MiB"
    )]
    sizes: Vec<Size>,
    /// Transports, separated by commas.
    #[arg(long, value_delimiter = ',', value_enum, default_values = ["shm", "tcp"])]
    transport: Vec<Transport>,
    /// Rounds in which all implementations take turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of samples per implementation and round.
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    seconds: f64,
    /// Compare with OpenMPI over shared memory (needs mpicc and mpirun).
    #[arg(long)]
    mpi: bool,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0 to 60".to_owned()),
    }
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Row {
    ranks: usize,
    bytes: Size,
    /// As in `--transport`; `mpi-program` is the C program.
    transport: &'static str,
    /// Kind of memory.
    ///
    /// `registered` is a bucket of the group, reduced on the caller's thread. `registered, by
    /// handle` is the same through the progress thread. `private` is a slice of the caller's own
    /// memory.
    memory: &'static str,
    samples: usize,
    best_us: Option<f64>,
    median_us: Option<f64>,
    best_bus_gb_s: Option<f64>,
    median_bus_gb_s: Option<f64>,
    times_mpi_best: Option<f64>,
    times_mpi_median: Option<f64>,
    /// Median of each round, to compare with `ping_pong_ns`.
    round_medians_us: Vec<f64>,
    /// One-way time of a cache line before each round, which tells the state of the machine.
    ping_pong_ns: Vec<Option<f64>>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if a rank fails, a sum is wrong or the results cannot be written. A missing MPI is
/// reported and skipped.
pub fn run(args: &CollectivesArgs) -> Result<(), BenchError> {
    report::check(args.json.as_deref())?;
    let ours = Ours::new()?;
    let mpi = if args.mpi { found_mpi() } else { None };
    let rounds = usize::from(args.rounds);
    let mut rows = Vec::new();
    for &ranks in &args.ranks {
        for &size in &args.sizes {
            eprintln!("{ranks} ranks, {size}, {rounds} rounds");
            let case = Case {
                ranks: ranks.into(),
                protocol: Protocol::new(size, args.seconds),
                rounds,
            };
            rows.extend(case.measure(&args.transport, &ours, mpi.as_ref())?);
        }
    }
    print!("{}", table(&rows));
    let mut rules = Protocol::rules(rounds);
    rules.extend(mpi.map(|mpi| format!("mpi: {}, btl self,vader", mpi.version)));
    let world = args.ranks.iter().map(|&ranks| ranks.into()).collect();
    let path = Report::new("collectives", world, rules, rows).write(args.json.as_deref())?;
    eprintln!("results in {}", path.display());
    Ok(())
}

fn found_mpi() -> Option<Mpi> {
    match Mpi::compile() {
        Ok(mpi) => Some(mpi),
        Err(error) => {
            eprintln!("NOT COMPARED with MPI: {error}");
            None
        }
    }
}

/// A world size and a buffer size.
struct Case {
    ranks: usize,
    protocol: Protocol,
    rounds: usize,
}

/// Results of one implementation, a measurement per round.
struct Series {
    transport: &'static str,
    memory: &'static str,
    rounds: Vec<Measurement>,
}

impl Series {
    fn new(transport: &'static str, memory: &'static str) -> Self {
        Self {
            transport,
            memory,
            rounds: Vec::new(),
        }
    }

    fn is(&self, transport: Transport, call: Call) -> bool {
        self.transport == transport.name() && self.memory == call.name()
    }

    fn medians(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(Measurement::median).collect()
    }

    fn best(&self) -> Option<f64> {
        let bests: Vec<f64> = self.rounds.iter().filter_map(Measurement::best).collect();
        stats::best(&bests)
    }
}

impl Case {
    fn measure(
        &self,
        transports: &[Transport],
        ours: &Ours,
        mpi: Option<&Mpi>,
    ) -> Result<Vec<Row>, BenchError> {
        let mut all: Vec<Series> = Vec::new();
        for transport in transports {
            all.extend(Call::ALL.map(|call| Series::new(transport.name(), call.name())));
        }
        let mut theirs = Series::new("mpi-program", "private");
        let mut ping_pong = Vec::new();
        for _ in 0..self.rounds {
            ping_pong.push(ping_pong_ns());
            for &transport in transports {
                for measured in ours.measure(self.ranks, transport, &self.protocol)? {
                    let measurement = self.checked(measured.measurement)?;
                    let mut matching = all
                        .iter_mut()
                        .filter(|series| series.is(transport, measured.call));
                    if let Some(series) = matching.next() {
                        series.rounds.push(measurement);
                    }
                }
            }
            match mpi.map(|mpi| mpi.measure(self.ranks, &self.protocol)) {
                Some(Ok(measurement)) => theirs.rounds.push(self.checked(measurement)?),
                Some(Err(error)) => eprintln!("NOT COMPARED with MPI in this round: {error}"),
                None => {}
            }
        }
        let all = all
            .iter()
            .chain((!theirs.rounds.is_empty()).then_some(&theirs));
        Ok(all
            .map(|series| self.row(series, &theirs, &ping_pong))
            .collect())
    }

    fn checked(&self, measurement: Measurement) -> Result<Measurement, BenchError> {
        if measurement.correct {
            return Ok(measurement);
        }
        Err(BenchError::WrongSum(format!(
            "{} ranks, {}",
            self.ranks, self.protocol.size
        )))
    }

    fn row(&self, series: &Series, mpi: &Series, ping_pong: &[Option<f64>]) -> Row {
        let (medians, best) = (series.medians(), series.best());
        let median = stats::median(&medians);
        let ratios: Vec<f64> = if mpi.rounds.len() == series.rounds.len() {
            mpi.medians()
                .iter()
                .zip(&medians)
                .map(|(theirs, ours)| theirs / ours)
                .collect()
        } else {
            Vec::new()
        };
        let bandwidth = |seconds: f64| self.bus_bytes() / seconds / 1e9;
        Row {
            ranks: self.ranks,
            bytes: self.protocol.size,
            transport: series.transport,
            memory: series.memory,
            samples: series.rounds.iter().map(|round| round.seconds.len()).sum(),
            best_us: best.map(|seconds| seconds * 1e6),
            median_us: median.map(|seconds| seconds * 1e6),
            best_bus_gb_s: best.map(bandwidth),
            median_bus_gb_s: median.map(bandwidth),
            times_mpi_best: best.zip(mpi.best()).map(|(ours, theirs)| theirs / ours),
            times_mpi_median: stats::median(&ratios),
            round_medians_us: medians.iter().map(|seconds| seconds * 1e6).collect(),
            ping_pong_ns: ping_pong.to_vec(),
        }
    }

    /// Bytes of one all-reduce for the bus bandwidth.
    fn bus_bytes(&self) -> f64 {
        let ranks = self.ranks as f64;
        2.0 * (ranks - 1.0) / ranks * self.protocol.size.bytes() as f64
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "ranks",
        "size",
        "transport",
        "memory",
        "best µs",
        "median µs",
        "best GB/s",
        "median GB/s",
        "× MPI best",
        "× MPI median",
    ]);
    for row in rows {
        table.row([
            row.ranks.to_string(),
            row.bytes.to_string(),
            row.transport.to_owned(),
            row.memory.to_owned(),
            number(row.best_us),
            number(row.median_us),
            number(row.best_bus_gb_s),
            number(row.median_bus_gb_s),
            number(row.times_mpi_best),
            number(row.times_mpi_median),
        ]);
    }
    table
}
