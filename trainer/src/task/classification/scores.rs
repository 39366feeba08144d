//! Metrics from a model's scores for one image, computed on the host in double precision.
//!
//! One read of a batch's scores is all that an evaluation needs from the device.

/// Number of likeliest classes for the top-5 accuracy.
pub(crate) const TOP: usize = 5;

/// The class with the highest score, the first of equal ones. 0 if all scores are NaN.
pub(crate) fn likeliest(scores: &[f32]) -> usize {
    let highest = |best: usize, (class, score): (usize, &f32)| match scores.get(best) {
        Some(highest) if highest.is_nan() && !score.is_nan() => class,
        Some(highest) if score > highest => class,
        _ => best,
    };
    scores.iter().enumerate().fold(0, highest)
}

/// Cross-entropy `-log softmax(scores)[label]`. NaN if a score is NaN, or `label` is no class.
pub(crate) fn cross_entropy(scores: &[f32], label: usize) -> f64 {
    let Some(own) = scores.get(label) else {
        return f64::NAN;
    };
    let highest = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = scores
        .iter()
        .map(|score| (f64::from(*score) - highest).exp())
        .sum();
    sum.ln() + (highest - f64::from(*own))
}

/// Whether fewer than five classes have a higher score. Among equal scores, the first class counts
/// as higher.
pub(crate) fn is_among_top(scores: &[f32], label: usize) -> bool {
    let Some(own) = scores.get(label) else {
        return false;
    };
    let higher = |(class, score): (usize, &f32)| score > own || (score == own && class < label);
    // NaN compares false with everything, and must not count as a success.
    !own.is_nan()
        && scores
            .iter()
            .enumerate()
            .filter(|pair| higher(*pair))
            .count()
            < TOP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_score_wins_and_of_equal_ones_the_first() {
        assert_eq!(likeliest(&[0.5, 2.0, -1.0, 2.0]), 1);
        assert_eq!(likeliest(&[f32::NEG_INFINITY, -3.0]), 1);
        assert_eq!(likeliest(&[f32::NAN, -3.0, 1.0, f32::NAN]), 2);
        assert_eq!(likeliest(&[f32::NAN; 3]), 0);
        assert_eq!(likeliest(&[]), 0);
    }

    #[test]
    fn cross_entropy_is_minus_the_log_of_the_probability() {
        let wanted = [
            (&[0.0, 0.0], 1, 2f64.ln()),
            (&[1.0, 3.0], 0, (1.0 + 2f64.exp()).ln()),
            (&[500.0, -500.0], 1, 1000.0),
            (&[500.0, -500.0], 0, 0.0),
            (&[f32::NEG_INFINITY, 0.0], 0, f64::INFINITY),
        ];
        for (scores, label, wanted) in wanted {
            let loss = cross_entropy(scores, label);
            assert!(
                loss == wanted || (loss - wanted).abs() <= 1e-12 * wanted,
                "{loss} {wanted}"
            );
        }
    }

    #[test]
    fn the_loss_of_what_is_no_number_is_none() {
        for scores in [
            [f32::NAN, 0.0],
            [0.0, f32::NAN],
            [f32::INFINITY; 2],
            [f32::NEG_INFINITY; 2],
        ] {
            assert!(cross_entropy(&scores, 0).is_nan(), "{scores:?}");
        }
        assert!(cross_entropy(&[0.0, 1.0], 2).is_nan());
        assert!(cross_entropy(&[], 0).is_nan());
    }

    #[test]
    fn the_five_most_likely_classes_count() {
        let scores = [0.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.1];
        let among: Vec<usize> = (0..scores.len())
            .filter(|label| is_among_top(&scores, *label))
            .collect();
        assert_eq!(among, [1, 2, 3, 4, 5]);
        assert!(is_among_top(&[0.0; 7], 4));
        assert!(!is_among_top(&[0.0; 7], 5));
        assert!(!is_among_top(&[f32::NAN; 7], 0));
        assert!(!is_among_top(&[], 0));
    }
}
