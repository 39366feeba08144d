//! Fine-tunes a frozen model with low-rank adapters (LoRA) in bf16.
//!
//!   cargo run --release -p burn-dist --example lora -- --nproc 2

use std::process::ExitCode;

use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use burn_dist::parallel::{Parallel, ParallelOptions, Precision, Strategy};

const BATCH: usize = 64;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(16, 64).init(device),
            output: LinearConfig::new(64, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(x)))
    }
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let device = world.device()?.autodiff();
        device.seed(1);
        // A base model would be loaded from a file; the task is to imitate another one.
        let teacher = Mlp::new(&device).valid();
        let student = Mlp::new(&device).apply_lora(Lora::new(4, 8.0));
        let options = ParallelOptions {
            strategy: Strategy::Zero2,
            precision: Precision::Bf16,
            ..ParallelOptions::default()
        };
        let mut parallel = Parallel::new(student, AdamWConfig::new(), options, group)?;
        let (mut first, mut last) = (None, 0.0);
        for step in 0..200 {
            device.seed(1 + (step * world.size() + world.rank()) as u64);
            let x = Tensor::<2>::random([BATCH, 16], Distribution::Default, &device);
            let wanted = teacher.forward(x.clone().inner());
            let output = parallel.model().forward(x.cast(parallel.compute_dtype()));
            let loss = (output.cast(FloatDType::F32) - Tensor::from_inner(wanted))
                .square()
                .mean();
            last = loss.clone().into_scalar::<f32>();
            first.get_or_insert(last);
            parallel.backward(loss)?;
            parallel.step(1e-2)?;
        }
        parallel.verify_replicas()?;
        let first = first.unwrap_or_default();
        if world.is_main() {
            let trained = parallel.num_parameters();
            println!("{trained} parameters in adapters, loss {first:.4} -> {last:.4}");
        }
        match last < 0.5 * first {
            true => Ok(()),
            false => Err(format!("the loss only fell from {first} to {last}").into()),
        }
    })
}
