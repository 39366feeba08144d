//! Helpers of all kernel tests: random numbers, the instruction sets of this machine, and the
//! comparison with references in f64.
#![allow(dead_code, reason = "every test uses another part")]

use kernels::cpu::{Bf16Path, Isa, Kernels};

/// Returns the kernels of every instruction set of this machine.
pub fn every_isa() -> Vec<Kernels> {
    let missing: Vec<_> = Isa::ALL
        .into_iter()
        .filter(|isa| !isa.is_available())
        .collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: this machine lacks {missing:?}");
    }
    let all = Isa::available().into_iter().map(Kernels::with_isa);
    all.collect::<Result<_, _>>()
        .expect("the sets are available")
}

/// Returns the kernels of every instruction set of this machine, once for each path of bf16 products.
pub fn every_bf16_path() -> Vec<Kernels> {
    let missing: Vec<_> = Bf16Path::ALL
        .into_iter()
        .filter(|path| !path.is_available(Isa::best()))
        .collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: this machine lacks {missing:?}");
    }
    let mut all = Vec::new();
    for kernels in every_isa() {
        for path in Bf16Path::available(kernels.isa()) {
            let kernels = Kernels::with_isa(kernels.isa()).expect("the set is available");
            kernels.set_bf16_path(path).expect("the path is available");
            all.push(kernels);
        }
    }
    all
}

/// Names the instruction set and the path of bf16 products.
pub fn name(kernels: &Kernels) -> String {
    format!("{}/{}", kernels.isa().name(), kernels.bf16_path().name())
}

/// Returns uniform numbers in ±1.
pub fn random(length: usize, seed: u64) -> Vec<f32> {
    let mut source = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| source.f32() * 2.0 - 1.0).collect()
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Returns the largest deviation from the reference, relative to the reference's largest value.
pub fn error(found: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(found.len(), reference.len());
    let largest = reference
        .iter()
        .fold(1e-30, |largest: f64, value| largest.max(value.abs()));
    let pairs = found.iter().zip(reference);
    let off = pairs.map(|(&found, reference)| {
        assert!(found.is_finite(), "not finite");
        (f64::from(found) - reference).abs()
    });
    off.fold(0.0, f64::max) / largest
}

/// Returns the nearest bf16, ties to even.
pub fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Returns the RMS of the deviations, relative to the reference's largest value.
pub fn mean_error(found: &[f32], reference: &[f64]) -> f64 {
    let largest = reference.iter().fold(1e-30, |a: f64, b| a.max(b.abs()));
    let square = |(found, reference): (&f32, &f64)| (f64::from(*found) - reference).powi(2);
    let sum: f64 = found.iter().zip(reference).map(square).sum();
    (sum / found.len() as f64).sqrt() / largest
}

#[track_caller]
pub fn assert_close(found: &[f32], reference: &[f64], tolerance: f64, what: &str) {
    let error = error(found, reference);
    assert!(
        error <= tolerance,
        "{what}: error {error:.2e} above {tolerance:.0e}"
    );
}

/// Runs `compute` in pools of one to eight threads and asserts the same bits.
#[track_caller]
pub fn assert_same_bits(what: &str, compute: impl Fn() -> Vec<f32> + Sync) {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a pool of threads").install(&compute)
    };
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let one = bits(run(1));
    for threads in [2, 3, 5, 8] {
        assert!(
            one == bits(run(threads)),
            "{what}: other bits with {threads} threads"
        );
    }
}
