//! Runs whole training steps (forward, backward, plain SGD) of three models with kernels alone, to
//! show the speed that a framework around them can reach.
//!
//! `cargo run --release -p burn-dist-kernels --example replay -- MODEL [threads] [seconds]` with
//! the model `wrn` (WRN-16-4 on 32×32×3), `vit` (ViT-Tiny, 65 tokens), `vit-bf16` or `cnn` (MNIST),
//! batch 64. `pytorch.py` in the same folder measures the same steps in PyTorch, interleaved with
//! this.

mod cnn;
mod layers;
mod vit;
mod wrn;

use std::time::Instant;

use kernels::KernelError;
use kernels::cpu::Kernels;

/// Images per step.
const BATCH: usize = 64;

/// A model that trains.
trait Model {
    /// One step on the same random batch; returns its mean loss.
    fn step(&mut self, kernels: &Kernels) -> Result<f32, KernelError>;
}

/// Returns the CPU time of this process in seconds, which other processes disturb less than
/// wall-clock time; 0 if unknown.
fn cpu_seconds() -> f64 {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
    #[cfg(not(target_os = "linux"))]
    0.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "wrn".to_owned());
    let threads = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let limit = arguments
        .next()
        .map_or(Ok(5.0), |text| text.parse::<f64>())?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()?;
    let kernels = Kernels::new()?;
    let mut model: Box<dyn Model> = match name.as_str() {
        "wrn" => Box::new(wrn::Wrn::new()),
        "vit" => Box::new(vit::Vit::new(false)),
        "vit-bf16" => Box::new(vit::Vit::new(true)),
        "cnn" => Box::new(cnn::Cnn::new()),
        other => {
            return Err(format!("no model {other:?}; choose wrn, vit, vit-bf16 or cnn").into());
        }
    };
    let first = model.step(&kernels)?;
    let mut last = first;
    let mut times = Vec::new();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while times.len() < 5 || start.elapsed().as_secs_f64() < limit {
        let start = Instant::now();
        last = model.step(&kernels)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let cpu = (cpu_seconds() - cpu) / times.len() as f64;
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "{name} {} {threads} threads: median {:.2} ms = {:.0} img/s, best {:.0} img/s, \
         {:.1} ms of processor time; loss {first:.3} \
         → {last:.3}",
        kernels.isa().name(),
        median * 1e3,
        BATCH as f64 / median,
        BATCH as f64 / times[0],
        cpu * 1e3,
    );
    Ok(())
}
