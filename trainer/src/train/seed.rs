//! Seeds of the random generator.
//!
//! All ranks share one for the initial parameters. Each rank and step has its own, so that dropout
//! differs between ranks and a run can resume at any step.

/// Seed of the initial parameters, the same on every rank.
pub fn of_parameters(seed: u64) -> u64 {
    mix(seed)
}

/// Seed of `rank` in `step`.
pub fn of_step(seed: u64, rank: usize, step: u64) -> u64 {
    // Mixes each argument before the next one joins. Neighbours end up far apart, and sums of
    // different arguments do not collide.
    mix(mix(mix(seed) ^ (rank as u64).wrapping_add(1)) ^ step)
}

/// SplitMix64's output function: a bijection in which every input bit changes half the output.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_seed_rank_and_step_draws_its_own() {
        let mut seen = HashSet::new();
        for seed in 0..10 {
            assert!(seen.insert(of_parameters(seed)));
            for rank in 0..8 {
                for step in 0..100 {
                    assert!(seen.insert(of_step(seed, rank, step)));
                }
            }
        }
    }
}
