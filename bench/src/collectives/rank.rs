//! One rank of a measurement, in a process of its own that the benchmark starts.
//!
//! `bench/mpi/allreduce.c` does the same with MPI: keep the two in step.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use burn_dist::world::World;
use burn_dist::{Buffer, DType, GroupOptions, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use super::Transport;
use super::protocol::{Measurement, Protocol, WARM_UP, is_sum, rewrite};
use crate::error::BenchError;

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

/// What rank 0 leaves: one measurement for each kind of memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct BothMemories {
    /// Buckets of the group.
    pub registered: Measurement,
    /// A slice that belongs to the caller.
    pub private: Measurement,
}

/// Measures as one rank of the world that the environment describes.
///
/// # Errors
/// When the ranks do not find each other, a collective fails, or the result cannot be written.
pub fn run(args: &RankArgs) -> Result<(), BenchError> {
    let world = World::from_env()?;
    let options = GroupOptions { transport: args.transport.into(), ..GroupOptions::default() };
    let group = ProcessGroup::connect_with(&world, options)?;
    let registered = measure(&group, &args.protocol, &mut Registered::new(&group, &args.protocol)?)?;
    let private = measure(&group, &args.protocol, &mut Private::new(&group, &args.protocol))?;
    if group.rank() == 0 {
        let failed = |source| BenchError::Write { path: args.out.clone(), source };
        let text = serde_json::to_vec(&BothMemories { registered, private }).map_err(|e| failed(e.into()))?;
        std::fs::write(&args.out, text).map_err(failed)?;
    }
    Ok(())
}

/// The buffers of one sample, in one kind of memory.
trait Memory {
    fn rewrite(&mut self, sample: usize) -> Result<(), BenchError>;
    fn all_reduce(&mut self) -> Result<(), BenchError>;
    fn is_sum(&self, sample: usize) -> Result<bool, BenchError>;
}

/// Buckets: memory that every rank of the host has mapped, where the transport can.
struct Registered {
    group: ProcessGroup,
    buckets: VecDeque<Buffer>,
}

impl Registered {
    fn new(group: &ProcessGroup, protocol: &Protocol) -> Result<Self, BenchError> {
        let bucket = |_| group.bucket(DType::F32, protocol.size.elements());
        let buckets = (0..protocol.batch).map(bucket).collect::<Result<_, _>>()?;
        Ok(Self { group: group.clone(), buckets })
    }
}

impl Memory for Registered {
    fn rewrite(&mut self, sample: usize) -> Result<(), BenchError> {
        for bucket in &mut self.buckets {
            rewrite(bucket.as_mut_slice::<f32>()?, sample, self.group.rank());
        }
        Ok(())
    }

    fn all_reduce(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.buckets.len() {
            let Some(bucket) = self.buckets.pop_front() else { break };
            let bucket = self.group.start_all_reduce(bucket, ReduceOp::Sum).wait()?;
            self.buckets.push_back(bucket);
        }
        Ok(())
    }

    fn is_sum(&self, sample: usize) -> Result<bool, BenchError> {
        for bucket in &self.buckets {
            if !is_sum(bucket.as_slice::<f32>()?, sample, self.group.size()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Slices of the caller's own.
struct Private {
    group: ProcessGroup,
    slices: Vec<Vec<f32>>,
}

impl Private {
    fn new(group: &ProcessGroup, protocol: &Protocol) -> Self {
        let slices = vec![vec![0.0; protocol.size.elements()]; protocol.batch];
        Self { group: group.clone(), slices }
    }
}

impl Memory for Private {
    fn rewrite(&mut self, sample: usize) -> Result<(), BenchError> {
        for slice in &mut self.slices {
            rewrite(slice, sample, self.group.rank());
        }
        Ok(())
    }

    fn all_reduce(&mut self) -> Result<(), BenchError> {
        for slice in &mut self.slices {
            self.group.all_reduce(slice, ReduceOp::Sum)?;
        }
        Ok(())
    }

    fn is_sum(&self, sample: usize) -> Result<bool, BenchError> {
        Ok(self.slices.iter().all(|slice| is_sum(slice, sample, self.group.size())))
    }
}

fn measure(group: &ProcessGroup, protocol: &Protocol, memory: &mut impl Memory) -> Result<Measurement, BenchError> {
    let mut sample = |memory: &mut _, number| timed(group, protocol, memory, number);

    sample(memory, 0)?;
    let mut correct = [u8::from(memory.is_sum(0)?)];
    group.all_reduce(&mut correct, ReduceOp::Min)?;

    // How many samples fit the time, rewriting included; the slowest rank decides.
    let start = Instant::now();
    for number in 1..=WARM_UP {
        sample(memory, number)?;
    }
    let mut each = [start.elapsed().as_secs_f64() / WARM_UP as f64];
    group.all_reduce(&mut each, ReduceOp::Max)?;

    let mut seconds = Vec::new();
    for number in 0..protocol.samples(each[0]) {
        seconds.push(sample(memory, number)?);
    }
    group.all_reduce(&mut seconds, ReduceOp::Max)?;
    Ok(Measurement { ranks: group.size(), bytes: protocol.size.bytes(), correct: correct == [1], seconds })
}

/// Seconds of one operation in one sample, on this rank.
fn timed(group: &ProcessGroup, protocol: &Protocol, memory: &mut impl Memory, number: usize) -> Result<f64, BenchError> {
    memory.rewrite(number)?;
    group.barrier()?;
    let start = Instant::now();
    memory.all_reduce()?;
    Ok(start.elapsed().as_secs_f64() / protocol.batch as f64)
}
