//! Checks that the built-in digits need more than a linear model, and that models can learn them.

use datasets::{Dataset, Digits, Split};

const PIXELS: usize = 28 * 28;
const CLASSES: usize = 10;

/// Softmax regression, trained by plain SGD with a decaying rate.
struct Linear {
    weights: Vec<[f32; CLASSES]>,
    bias: [f32; CLASSES],
}

impl Linear {
    fn scores(&self, image: &[f32]) -> [f32; CLASSES] {
        let mut scores = self.bias;
        for (pixel, weights) in image.iter().zip(&self.weights) {
            for (score, weight) in scores.iter_mut().zip(weights) {
                *score += pixel * weight;
            }
        }
        scores
    }

    fn learn(&mut self, image: &[f32], label: usize, rate: f32) {
        let mut slopes = self.scores(image);
        let top = slopes.iter().copied().fold(f32::MIN, f32::max);
        slopes.iter_mut().for_each(|s| *s = (*s - top).exp());
        let sum: f32 = slopes.iter().sum();
        slopes.iter_mut().for_each(|s| *s *= rate / sum);
        slopes[label] -= rate;
        for (bias, slope) in self.bias.iter_mut().zip(&slopes) {
            *bias -= slope;
        }
        for (pixel, weights) in image.iter().zip(&mut self.weights) {
            for (weight, slope) in weights.iter_mut().zip(&slopes) {
                *weight -= pixel * slope;
            }
        }
    }

    fn accuracy(&self, samples: &[(Vec<f32>, usize)]) -> f64 {
        let best =
            |scores: [f32; CLASSES]| (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let right = |(image, label): &&(Vec<f32>, usize)| best(self.scores(image)) == Some(*label);
        samples.iter().filter(right).count() as f64 / samples.len() as f64
    }
}

fn samples(split: Split, len: usize) -> Vec<(Vec<f32>, usize)> {
    let set = Digits::new(split, len, 42);
    let read = |index| {
        let mut image = [0; PIXELS];
        let label = set.read(index, &mut image).unwrap();
        let image = image.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        (image, label as usize)
    };
    (0..len).map(read).collect()
}

#[test]
fn a_linear_classifier_stays_below_95_percent() {
    let (train, test) = (samples(Split::Train, 12_000), samples(Split::Test, 2_000));
    let mut model = Linear {
        weights: vec![[0.0; CLASSES]; PIXELS],
        bias: [0.0; CLASSES],
    };
    let mut best = 0.0f64;
    for epoch in 0..12 {
        let rate = 0.02 / (1.0 + epoch as f32);
        for (image, label) in &train {
            model.learn(image, *label, rate);
        }
        best = best.max(model.accuracy(&test));
    }
    let seen = model.accuracy(&train);
    eprintln!("softmax regression: {best:.4} of unseen digits, {seen:.4} of those it learned from");
    assert!(best < 0.95, "too easy: {best}");
    assert!(best > 0.60, "not learnable: {best}");
}
