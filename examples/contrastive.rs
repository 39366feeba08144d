//! Trains an encoder by a contrastive loss (InfoNCE) over the batches of all ranks.
//!
//!   cargo run --release -p burn-dist --example contrastive -- --nproc 2
//!
//! The embeddings of all ranks are the negatives of each other, as in CLIP and SimCLR. Embeddings of
//! other ranks are constants on this one: each rank gets the gradients of its own rows.

use std::process::ExitCode;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, Strategy};

const ROWS: usize = 32;
const WIDTH: usize = 16;
const TEMPERATURE: f64 = 0.1;

#[derive(Module, Debug)]
struct Encoder {
    hidden: Linear,
    output: Linear,
}

impl Encoder {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(8, 64).init(device),
            output: LinearConfig::new(64, WIDTH).init(device),
        }
    }

    /// Embeddings of length 1, \[rows, width\].
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.output.forward(relu(self.hidden.forward(x)));
        let length = x.clone().square().sum_dim(1).sqrt();
        x / (length + 1e-6)
    }
}

/// The embeddings of all ranks, \[ranks × rows, width\], as constants.
fn of_all_ranks(
    own: &Tensor<2>,
    group: &ProcessGroup,
) -> Result<Tensor<2>, Box<dyn std::error::Error + Send + Sync>> {
    let values: Vec<f32> = own.clone().inner().try_into_data()?.iter().collect();
    let mut all = vec![0.0; group.size() * values.len()];
    all[group.rank() * values.len()..][..values.len()].copy_from_slice(&values);
    group.all_gather(&mut all)?;
    let all = TensorData::new(all, [ROWS * group.size(), WIDTH]);
    Ok(Tensor::from_data(all, &own.device()))
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let device = world.device()?.autodiff();
        let model = Encoder::new(&device);
        let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Zero2, group)?;
        let cross_entropy = CrossEntropyLossConfig::new().init(&device);
        let first = (ROWS * world.rank()) as i64;
        let own: Tensor<1, Int> = Tensor::arange(first..first + ROWS as i64, &device);
        let mut losses = Vec::new();
        for step in 0..150 {
            device.seed(1 + (step * world.size() + world.rank()) as u64);
            let x = Tensor::<2>::random([ROWS, 8], Distribution::Default, &device);
            let noise = || Tensor::<2>::random([ROWS, 8], Distribution::Normal(0.0, 0.05), &device);
            // Two views of each row in one pass.
            let views = Tensor::cat(vec![x.clone() + noise(), x + noise()], 0);
            let mut views = parallel.model().forward(views).chunk(2, 0).into_iter();
            let (Some(left), Some(right)) = (views.next(), views.next()) else {
                return Err("a batch has two views".into());
            };
            let keys = of_all_ranks(&right, group)?;
            // The keys of this rank have gradients.
            let rows = world.rank() * ROWS..(world.rank() + 1) * ROWS;
            let keys = keys.slice_assign([rows, 0..WIDTH], right);
            let scores = left.matmul(keys.transpose()).div_scalar(TEMPERATURE);
            let loss = cross_entropy.forward(scores, own.clone());
            losses.push(loss.clone().into_scalar::<f32>());
            parallel.backward(loss)?;
            parallel.step(3e-3)?;
        }
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        if world.is_main() {
            println!("loss {first:.3} -> {last:.3}");
        }
        match last < 0.5 * first {
            true => Ok(()),
            false => Err(format!("the loss only fell from {first} to {last}").into()),
        }
    })
}
