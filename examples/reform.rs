//! Goes on in the same processes when a rank dies, from copies of the state in memory.
//!
//!   cargo run --release -p burn-dist --example reform
//!
//! It starts three ranks. Rank 1 dies in step 5, and the other two do that step again.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{MemoryCopies, NodeMemory};
use burn_dist::launch::LocalLauncher;
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::world::{Launch, World};

const STEPS: u64 = 20;
/// Ranks that may be lost, one after the other.
const MOST_LOST: usize = 2;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let world = World::from_env()?;
    if world.launch() == Launch::Single {
        // A launcher ends all ranks with the first that fails, unless some may outlive it.
        let outcome = LocalLauncher::new(3).outlive(2).run()?;
        return Ok(outcome.exit_code().into());
    }
    let mut group = ProcessGroup::connect(&world)?;
    // Each process keeps the shards of one rank, its own, and those of a partner.
    let memory = NodeMemory::new(1)?;
    for lost in 0.. {
        match train(&group, &memory) {
            Ok(()) => break,
            // An error that is not the loss of a rank would come again and again.
            Err(error) if lost == MOST_LOST => return Err(error),
            Err(error) => eprintln!("rank {}: {error}", group.rank()),
        }
        // Ranks that have not noticed the failure yet have 30 s to come here. Then it goes on
        // without them.
        group = group.reform(Duration::from_secs(30))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Trains to the end, from the newest state in memory on. The group has another size each time, and
/// its ranks other numbers: everything that depends on them is made here.
fn train(group: &ProcessGroup, memory: &NodeMemory) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = LinearConfig::new(4, 1).init(&device);
    let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Zero2, group)?;
    let (copies, newest) = MemoryCopies::open(Some(memory.clone()), group)?;
    let mut copies = copies.ok_or("a rank has no memory")?;
    if let Some(error) = copies.unrestored() {
        return Err(error.to_string().into());
    }
    let mut done = 0;
    if let Some(state) = newest {
        parallel.restore(&state)?;
        done = state.manifest().step;
    }
    println!(
        "rank {} of {} goes on after step {done}",
        group.rank(),
        group.size()
    );
    for step in done + 1..=STEPS {
        if step == 5 && group.rank() == 1 && group.size() == 3 {
            std::process::abort();
        }
        device.seed(step * group.size() as u64 + group.rank() as u64);
        let x = Tensor::<2>::random([16, 4], Distribution::Default, &device);
        let wanted = x.clone().sum_dim(1);
        let loss = (parallel.model().forward(x) - wanted).square().mean();
        parallel.backward(loss)?;
        parallel.step(0.05)?;
        copies.keep(group, step, parallel.state()?, &serde_json::Value::Null)?;
    }
    let checksum = parallel.verify_replicas()?;
    println!(
        "rank {} of {} is done: {checksum}",
        group.rank(),
        group.size()
    );
    Ok(())
}
