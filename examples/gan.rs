//! Trains a generator and a discriminator against each other: two models, two optimizers.
//!
//!   cargo run --release -p burn-dist --example gan -- --nproc 2
//!
//! The generator learns the distribution of points on a circle.

use std::f64::consts::TAU;
use std::process::ExitCode;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::{leaky_relu, softplus};
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::WeightedMean;
use burn_dist::parallel::{Parallel, Strategy};

const BATCH: usize = 64;
const NOISE: usize = 4;

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(sizes: [usize; 4], device: &Device) -> Self {
        let layer = |pair: &[usize]| LinearConfig::new(pair[0], pair[1]).init(device);
        Self {
            layers: sizes.windows(2).map(layer).collect(),
        }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x);
            if index + 1 < self.layers.len() {
                x = leaky_relu(x, 0.2);
            }
        }
        x
    }
}

/// Points on the unit circle, \[points, 2\].
fn circle(device: &Device) -> Tensor<2> {
    let angle = Tensor::<2>::random([BATCH, 1], Distribution::Uniform(0.0, TAU), device);
    Tensor::cat(vec![angle.clone().cos(), angle.sin()], 1)
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let device = world.device()?.autodiff();
        device.seed(1);
        let optimizer = || AdamConfig::new().with_beta_1(0.5);
        let generator = Mlp::new([NOISE, 64, 64, 2], &device);
        let discriminator = Mlp::new([2, 64, 64, 1], &device);
        let mut generator = Parallel::new(generator, optimizer(), Strategy::Zero1, group)?;
        let mut discriminator = Parallel::new(discriminator, optimizer(), Strategy::Ddp, group)?;
        let mut distance = WeightedMean::default();
        for step in 0..600 {
            device.seed(1 + (step * world.size() + world.rank()) as u64);
            let noise = Tensor::<2>::random([BATCH, NOISE], Distribution::Default, &device);

            // The discriminator sees generated points as data: no gradient goes into the generator.
            let generated = generator.model().forward(noise.clone()).detach();
            let on_real = discriminator.model().forward(circle(&device));
            let on_generated = discriminator.model().forward(generated);
            let loss = softplus(-on_real, 1.0).mean() + softplus(on_generated, 1.0).mean();
            discriminator.backward(loss)?;
            discriminator.step(2e-3)?;

            // The generator's loss passes through a frozen copy of the discriminator.
            let judge = discriminator.valid()?.train().no_grad();
            let points = generator.model().forward(noise);
            let radius = points.clone().square().sum_dim(1).sqrt();
            if step >= 550 {
                let far = (radius - 1.0).abs().mean().into_scalar::<f32>();
                distance.add_mean(far.into(), BATCH as f64);
            }
            generator.backward(softplus(-judge.forward(points), 1.0).mean())?;
            generator.step(1e-3)?;
        }
        generator.verify_replicas()?;
        discriminator.verify_replicas()?;
        let distance = distance.reduce(group)?.mean().unwrap_or_default();
        if world.is_main() {
            println!("mean distance of the generated points from the circle: {distance:.3}");
        }
        match distance < 0.5 {
            true => Ok(()),
            false => Err("the generator has not learnt the circle".into()),
        }
    })
}
