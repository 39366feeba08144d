//! Trains a CNN on several ranks with a custom loop.
//!
//! Alone: `cargo run --release --example loop_by_hand`; on several ranks, start it as `torchrun`
//! would, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and BURN_DIST_SECRET set.

use std::error::Error;
use std::sync::Arc;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, TensorData};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::world::World;
use datasets::{Digits, Loader, Split, TrainSampler};
use models::CnnConfig;

fn main() -> Result<(), Box<dyn Error>> {
    let world = World::from_env()?;
    let group = ProcessGroup::connect(&world)?;
    // Tells the other ranks at once why this one ends.
    train(&world, &group).inspect_err(|error| group.abort(&error.to_string()))
}

fn train(world: &World, group: &ProcessGroup) -> Result<(), Box<dyn Error>> {
    let device = world.device()?.autodiff();
    let model = CnnConfig::new().init(&device)?;
    let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, group)?;

    let (images, batch, seed) = (2048, 64, 1);
    let micro = batch / world.size();
    let (rank, size) = (world.rank(), world.size());
    let sampler = TrainSampler::new(images, batch, micro, rank, size, seed)?;
    let loader = Loader::new(Arc::new(Digits::new(Split::Train, images, seed)))?.workers(1);
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    for (step, batch) in (0..).zip(loader.iter(sampler.epoch(0))) {
        let batch = batch?;
        // A different dropout mask on every rank and in every step.
        device.seed(seed + (step * size + rank) as u64);
        let (n, shape) = (batch.labels.len(), batch.shape);
        let shape = [n, shape.channels, shape.height, shape.width];
        let images = Tensor::<4>::from_data(TensorData::new(batch.images, shape), &device);
        let labels = Tensor::<1, Int>::from_data(TensorData::new(batch.labels, [n]), &device);
        let loss = cross_entropy.forward(parallel.model().forward(images), labels);
        let value = loss.clone().into_scalar::<f32>();
        parallel.backward(loss)?; // averages gradients over the ranks meanwhile
        parallel.step(1e-3)?;
        if world.is_main() {
            println!("loss {value:.4}");
        }
    }
    let checksum = parallel.verify_replicas()?;
    println!("rank {rank} of {size}: parameters {checksum}");
    Ok(())
}
