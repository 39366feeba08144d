//! Protocol of an all-reduce measurement, the same for our ranks and for MPI's.

use serde::{Deserialize, Serialize};

use crate::size::Size;
use crate::stats;

/// Samples before the measurement. They also tell how many fit the time.
pub const WARM_UP: usize = 3;
const LEAST_SAMPLES: usize = 5;
const MOST_SAMPLES: usize = 2_000;

/// The parameters of one measurement.
///
/// One sample rewrites `batch` buffers of `size`, passes a barrier, and times `batch` all-reduces,
/// one buffer each and one after the other; its time is the largest over ranks.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Protocol {
    /// Size of the buffer that is reduced.
    #[arg(long)]
    pub size: Size,
    /// Buffers per sample: above 1, the clock and the skew of the barrier stay out of operations
    /// that take less than a microsecond.
    #[arg(long)]
    pub batch: usize,
    /// Fewest samples, whatever the time.
    #[arg(long)]
    pub least: usize,
    /// Most samples.
    #[arg(long)]
    pub most: usize,
    /// Time that samples may take altogether.
    #[arg(long)]
    pub seconds: f64,
}

impl Protocol {
    /// The protocol for buffers of `size` within about `seconds`.
    pub fn new(size: Size, seconds: f64) -> Self {
        let batch = match size.bytes() {
            0..=4_096 => 32,
            4_097..=262_144 => 8,
            _ => 1,
        };
        Self {
            size,
            batch,
            least: LEAST_SAMPLES,
            most: MOST_SAMPLES,
            seconds,
        }
    }

    /// The rules in words, for the result file.
    pub fn rules(rounds: usize) -> Vec<String> {
        vec![
            "all-reduce, f32, sum, in place; every buffer is rewritten before each operation, outside the timed part".to_owned(),
            "a barrier before each timed part; the time of a sample is the largest over ranks".to_owned(),
            "a sample is 32 operations on 32 buffers up to 4 KiB, 8 on 8 up to 256 KiB, else one operation".to_owned(),
            "bus bandwidth = 2 (n - 1) / n * bytes / time, in 10^9 bytes per second".to_owned(),
            format!("{rounds} rounds in which all implementations take turns; best: of all samples; median: of the rounds' medians"),
            "times_mpi: MPI's time divided by ours; for the median, per round and then the median of the rounds".to_owned(),
        ]
    }

    /// Number of samples that fit, if one takes `each` seconds.
    pub fn samples(&self, each: f64) -> usize {
        // A float-to-integer cast saturates, so a tiny `each` gives `most`.
        let fitting = (self.seconds / each.max(1e-9)) as usize;
        fitting.clamp(self.least, self.most.max(self.least))
    }

    /// Arguments of the MPI program, in its order.
    pub fn positional(&self) -> [String; 5] {
        [
            self.size.bytes().to_string(),
            self.batch.to_string(),
            self.least.to_string(),
            self.most.to_string(),
            self.seconds.to_string(),
        ]
    }

    /// Arguments by name, for our own ranks.
    pub fn named(&self) -> Vec<String> {
        let names = ["--size", "--batch", "--least", "--most", "--seconds"];
        let pairs = names.into_iter().zip(self.positional());
        pairs
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}

/// Report of the first rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// World size.
    pub ranks: usize,
    /// Bytes of one buffer.
    pub bytes: u64,
    /// Whether every element of the first sample was the exact sum on every rank.
    pub correct: bool,
    /// Seconds of one operation, per sample.
    pub seconds: Vec<f64>,
}

impl Measurement {
    /// Seconds of the best sample.
    pub fn best(&self) -> Option<f64> {
        stats::best(&self.seconds)
    }

    /// Seconds of the median sample.
    pub fn median(&self) -> Option<f64> {
        stats::median(&self.seconds)
    }
}

/// Element `index` of `rank` in sample `sample`.
///
/// An integer so small that every sum over ranks is exact in `f32`, in any order.
pub fn value(index: usize, sample: usize, rank: usize) -> f32 {
    (index % 61 + sample % 17 + rank) as f32
}

/// Fills a buffer with this rank's values of a sample.
pub fn rewrite(data: &mut [f32], sample: usize, rank: usize) {
    let mut pattern = [0.0; 61];
    for (index, element) in pattern.iter_mut().enumerate() {
        *element = value(index, sample, rank);
    }
    for chunk in data.chunks_mut(pattern.len()) {
        for (element, new) in chunk.iter_mut().zip(pattern) {
            *element = new;
        }
    }
}

/// Whether a buffer holds the sum over `ranks` of a sample.
pub fn is_sum(data: &[f32], sample: usize, ranks: usize) -> bool {
    data.iter().enumerate().all(|(index, element)| {
        let expected: f32 = (0..ranks).map(|rank| value(index, sample, rank)).sum();
        *element == expected
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(text: &str) -> Protocol {
        Protocol::new(text.parse().expect("a size"), 0.5)
    }

    #[test]
    fn small_buffers_are_batched() {
        assert_eq!(protocol("1KiB").batch, 32);
        assert_eq!(protocol("64KiB").batch, 8);
        assert_eq!(protocol("1MiB").batch, 1);
    }

    #[test]
    fn samples_fit_the_time_within_bounds() {
        let protocol = protocol("1MiB");
        assert_eq!(protocol.samples(0.01), 50);
        assert_eq!(protocol.samples(10.0), LEAST_SAMPLES);
        assert_eq!(protocol.samples(0.0), MOST_SAMPLES);
        assert_eq!(protocol.samples(f64::NAN), MOST_SAMPLES);
    }

    #[test]
    fn the_check_finds_one_wrong_element() {
        let (ranks, sample) = (3, 5);
        let mut sum = vec![0.0; 200];
        for rank in 0..ranks {
            let mut mine = vec![0.0; 200];
            rewrite(&mut mine, sample, rank);
            sum.iter_mut()
                .zip(mine)
                .for_each(|(total, new)| *total += new);
        }
        assert!(is_sum(&sum, sample, ranks));
        sum[199] += 1.0;
        assert!(!is_sum(&sum, sample, ranks));
    }
}
