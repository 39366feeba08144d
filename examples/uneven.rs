//! Trains on data that does not divide evenly: ranks have different numbers of batches.
//!
//!   cargo run --release -p burn-dist --example uneven -- --nproc 2

use std::process::ExitCode;

use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Distribution, Tensor};
use burn_dist::WeightedMean;
use burn_dist::parallel::{Parallel, Strategy};

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let device = world.device()?.autodiff();
        let model = LinearConfig::new(4, 1).init(&device);
        let mut parallel = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, group)?;
        device.seed(world.rank() as u64);
        // 10 batches on the last rank, 3 fewer on every other; some have fewer rows.
        let batches = 10 - 3 * (world.size() - 1 - world.rank()).min(3);
        let rows = (0..batches).map(|batch| 4 + batch % 5);
        let batches: Vec<_> = rows
            .map(|rows| Tensor::<2>::random([rows, 4], Distribution::Default, &device))
            .collect();
        for epoch in 1..=20 {
            let mut mean = WeightedMean::default();
            for turn in parallel.join(batches.clone()) {
                let turn = turn?;
                let rows = turn.weight(turn.batch.dims()[0] as f64);
                let wanted = turn.batch.clone().sum_dim(1);
                let output = parallel.model().forward(turn.batch.clone());
                let loss = (output - wanted).square().sum().mul_scalar(turn.factor());
                mean.add_sum(loss.clone().into_scalar::<f32>().into(), rows);
                parallel.backward_weighted(loss, rows)?;
                parallel.step(0.1)?;
            }
            let mean = mean.reduce(group)?;
            if world.is_main() && epoch % 5 == 0 {
                let (rows, loss) = (mean.weight(), mean.mean().unwrap_or_default());
                println!("epoch {epoch}: loss {loss:.5} over {rows} rows");
            }
        }
        parallel.verify_replicas()?;
        Ok(())
    })
}
