//! One rank of a measurement, in a process of its own.
//!
//! `bench/mpi/allreduce.c` does the same with MPI: keep the two in step.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use burn_dist::world::World;
use burn_dist::{Buffer, DType, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use super::protocol::{Measurement, Protocol, WARM_UP, is_sum, rewrite};
use super::{Call, Transport};
use crate::error::BenchError;
use crate::report;

/// Name of the hidden subcommand that runs a rank.
pub const RANK_COMMAND: &str = "collectives-rank";

/// Arguments of the hidden sub-command.
#[derive(Clone, Debug, clap::Args)]
pub struct RankArgs {
    #[command(flatten)]
    protocol: Protocol,
    /// Transport between the ranks.
    #[arg(long, value_enum)]
    transport: Transport,
    /// File in which rank 0 leaves the measurements.
    #[arg(long)]
    out: PathBuf,
}

/// A measurement of one call. Rank 0 leaves a list of these.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The call of the all-reduce.
    pub call: Call,
    /// Its measurement.
    pub measurement: Measurement,
}

/// Measures as one rank of the world in the environment.
///
/// # Errors
/// Fails if the ranks do not connect, a collective fails, or the result cannot be written.
pub fn run(args: &RankArgs) -> Result<(), BenchError> {
    let world = World::from_env()?;
    let options = args.transport.options(world.size());
    let group = ProcessGroup::connect_with(&world, options)?;
    let (wanted, found) = (args.transport.connects_by(), group.transport());
    if wanted != found {
        let (transport, ranks) = (args.transport.name(), group.size());
        return Err(BenchError::OtherTransport {
            transport,
            ranks,
            found,
        });
    }
    let mut all = Vec::new();
    for call in Call::ALL {
        let measurement = match call {
            Call::Bucket => measure::<Buckets>(&group, &args.protocol)?,
            Call::Handle => measure::<Handles>(&group, &args.protocol)?,
            Call::Slice => measure::<Slices>(&group, &args.protocol)?,
        };
        all.push(Measured { call, measurement });
    }
    if group.rank() == 0 {
        report::write(&args.out, &all)?;
    }
    Ok(())
}

/// Buffers of one sample, and the call that reduces them.
trait Side: Sized {
    fn new(group: &ProcessGroup, protocol: &Protocol) -> Result<Self, BenchError>;
    fn rewrite(&mut self, sample: usize, rank: usize) -> Result<(), BenchError>;
    fn all_reduce(&mut self, group: &ProcessGroup) -> Result<(), BenchError>;
    fn is_sum(&self, sample: usize, ranks: usize) -> Result<bool, BenchError>;
}

struct Buckets(VecDeque<Buffer>);

impl Side for Buckets {
    fn new(group: &ProcessGroup, protocol: &Protocol) -> Result<Self, BenchError> {
        let bucket = |_| group.bucket(DType::F32, protocol.size.elements());
        let buckets: Result<_, _> = (0..protocol.batch).map(bucket).collect();
        Ok(Self(buckets?))
    }

    fn rewrite(&mut self, sample: usize, rank: usize) -> Result<(), BenchError> {
        for bucket in &mut self.0 {
            rewrite(bucket.as_mut_slice::<f32>()?, sample, rank);
        }
        Ok(())
    }

    fn all_reduce(&mut self, group: &ProcessGroup) -> Result<(), BenchError> {
        for bucket in &mut self.0 {
            group.all_reduce_buffer(bucket, ReduceOp::Sum)?;
        }
        Ok(())
    }

    fn is_sum(&self, sample: usize, ranks: usize) -> Result<bool, BenchError> {
        for bucket in &self.0 {
            if !is_sum(bucket.as_slice::<f32>()?, sample, ranks) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

struct Handles(Buckets);

impl Side for Handles {
    fn new(group: &ProcessGroup, protocol: &Protocol) -> Result<Self, BenchError> {
        Buckets::new(group, protocol).map(Self)
    }

    fn rewrite(&mut self, sample: usize, rank: usize) -> Result<(), BenchError> {
        self.0.rewrite(sample, rank)
    }

    fn all_reduce(&mut self, group: &ProcessGroup) -> Result<(), BenchError> {
        let Buckets(buckets) = &mut self.0;
        for _ in 0..buckets.len() {
            let Some(bucket) = buckets.pop_front() else {
                break;
            };
            let bucket = group.start_all_reduce(bucket, ReduceOp::Sum).wait()?;
            buckets.push_back(bucket);
        }
        Ok(())
    }

    fn is_sum(&self, sample: usize, ranks: usize) -> Result<bool, BenchError> {
        self.0.is_sum(sample, ranks)
    }
}

struct Slices(Vec<Vec<f32>>);

impl Side for Slices {
    fn new(_: &ProcessGroup, protocol: &Protocol) -> Result<Self, BenchError> {
        Ok(Self(vec![
            vec![0.0; protocol.size.elements()];
            protocol.batch
        ]))
    }

    fn rewrite(&mut self, sample: usize, rank: usize) -> Result<(), BenchError> {
        for slice in &mut self.0 {
            rewrite(slice, sample, rank);
        }
        Ok(())
    }

    fn all_reduce(&mut self, group: &ProcessGroup) -> Result<(), BenchError> {
        for slice in &mut self.0 {
            group.all_reduce(slice, ReduceOp::Sum)?;
        }
        Ok(())
    }

    fn is_sum(&self, sample: usize, ranks: usize) -> Result<bool, BenchError> {
        Ok(self.0.iter().all(|slice| is_sum(slice, sample, ranks)))
    }
}

fn measure<S: Side>(group: &ProcessGroup, protocol: &Protocol) -> Result<Measurement, BenchError> {
    let mut side = S::new(group, protocol)?;

    timed(group, protocol, &mut side, 0)?;
    let mut correct = [u8::from(side.is_sum(0, group.size())?)];
    group.all_reduce(&mut correct, ReduceOp::Min)?;

    // Number of samples that fit the time, including the rewrite. The slowest rank decides.
    let start = Instant::now();
    for number in 1..=WARM_UP {
        timed(group, protocol, &mut side, number)?;
    }
    let mut each = [start.elapsed().as_secs_f64() / WARM_UP as f64];
    group.all_reduce(&mut each, ReduceOp::Max)?;

    let mut seconds = Vec::new();
    for number in 0..protocol.samples(each[0]) {
        seconds.push(timed(group, protocol, &mut side, number)?);
    }
    group.all_reduce(&mut seconds, ReduceOp::Max)?;
    Ok(Measurement {
        ranks: group.size(),
        bytes: protocol.size.bytes(),
        correct: correct == [1],
        seconds,
    })
}

/// Seconds of one operation in sample `number`, on this rank.
fn timed<S: Side>(
    group: &ProcessGroup,
    protocol: &Protocol,
    side: &mut S,
    number: usize,
) -> Result<f64, BenchError> {
    side.rewrite(number, group.rank())?;
    group.barrier()?;
    let start = Instant::now();
    side.all_reduce(group)?;
    Ok(start.elapsed().as_secs_f64() / protocol.batch as f64)
}
