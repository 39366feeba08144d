//! The normal distribution for GELU, as piecewise polynomials. For CPUs that look up a table of 32
//! numbers in one instruction, while exponential and division take several times as long.

use std::f64::consts::PI;
use std::sync::LazyLock;

/// Number of coefficients: one more than the degree of the polynomials.
const TERMS: usize = 5;

/// A function of positive numbers that ends at ½. It holds the coefficients of all pieces, the
/// highest power first. The variable of a piece is the distance from its middle, in pieces.
#[repr(align(64))]
pub(crate) struct Curve(pub [[f32; Curve::PIECES]; TERMS]);

impl Curve {
    /// Pieces. The middle of the first is 0. The last covers all larger numbers, where the value is
    /// ½.
    pub const PIECES: usize = 32;
    /// Pieces per unit: the last begins at 6.1.
    pub const PER_ONE: f32 = 5.0;

    /// Errors of the interpolation are below 2e-8, errors of rounding are larger.
    fn new(function: impl Fn(f64) -> f64) -> Self {
        let mut factors = [[0.0; Self::PIECES]; TERMS];
        let fit = |piece| {
            interpolate(|offset| function((piece as f64 + offset) / f64::from(Self::PER_ONE)))
        };
        for (piece, fit) in (0..Self::PIECES - 1).map(fit).enumerate() {
            for (factor, all) in fit.into_iter().zip(factors.iter_mut().rev()) {
                all[piece] = factor as f32;
            }
        }
        factors[TERMS - 1][Self::PIECES - 1] = 0.5;
        Self(factors)
    }
}

/// The curves for GELU and its gradient.
pub(crate) struct Curves {
    /// Φ(x) − ½
    pub probability: Curve,
    /// Φ(x) + x φ(x) − ½
    pub slope: Curve,
}

pub(crate) static CURVES: LazyLock<Curves> = LazyLock::new(|| Curves {
    probability: Curve::new(probability),
    slope: Curve::new(|x| probability(x) + x * density(x)),
});

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// Returns Φ(x) − ½ by the series φ(x) (x + x³/3 + x⁵/(3·5) + …), to the last digits in the range
/// used here.
fn probability(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    for index in 1..200 {
        term *= x * x / f64::from(2 * index + 1);
        sum += term;
    }
    density(x) * sum
}

/// Returns the polynomial through the function's values at the Chebyshev points between −½ and ½,
/// the lowest power first.
fn interpolate(function: impl Fn(f64) -> f64) -> [f64; TERMS] {
    let points: [f64; TERMS] =
        std::array::from_fn(|index| 0.5 * ((2 * index + 1) as f64 * PI / (2 * TERMS) as f64).cos());
    // Newton's form: divided differences.
    let mut differences = points.map(function);
    for level in 1..TERMS {
        for index in (level..TERMS).rev() {
            let distance = points[index] - points[index - level];
            differences[index] = (differences[index] - differences[index - 1]) / distance;
        }
    }
    let mut polynomial = [0.0; TERMS];
    for index in (0..TERMS).rev() {
        for power in (1..TERMS).rev() {
            polynomial[power] = polynomial[power - 1] - points[index] * polynomial[power];
        }
        polynomial[0] = differences[index] - points[index] * polynomial[0];
    }
    polynomial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_gives_known_probabilities() {
        for (x, expected) in [
            (0.0, 0.0),
            (1.0, 0.341_344_746_068_543),
            (6.0, 0.499_999_999_013_412),
        ] {
            assert!((probability(x) - expected).abs() < 1e-14, "{x}");
        }
    }

    #[test]
    fn polynomials_are_reproduced() {
        let fit = interpolate(|x| 1.0 - 2.0 * x + 3.0 * x.powi(4));
        for (factor, expected) in fit.into_iter().zip([1.0, -2.0, 0.0, 0.0, 3.0]) {
            assert!((factor - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn curves_are_their_functions() {
        use super::super::gelu::at;
        use crate::cpu::simd::{Simd, portable::Portable};

        let slope = |x: f64| probability(x) + x * density(x);
        let functions: [&dyn Fn(f64) -> f64; 2] = [&probability, &slope];
        for (curve, function) in [&CURVES.probability, &CURVES.slope]
            .into_iter()
            .zip(functions)
        {
            for step in 0..800 {
                let x = step as f32 * 0.01;
                // SAFETY: the portable code runs on every CPU.
                let found = unsafe { at(curve, Portable::splat(x)).max_lane() };
                let off = f64::from(found) - function(f64::from(x));
                assert!(off.abs() < 2e-7, "{x}: {off:.1e}");
            }
        }
    }

    #[test]
    fn pieces_meet() {
        for curve in [&CURVES.probability, &CURVES.slope] {
            let at = |piece: usize, offset: f32| {
                curve
                    .0
                    .iter()
                    .fold(0.0, |sum, factors| sum * offset + factors[piece])
            };
            for piece in 1..Curve::PIECES {
                let gap = at(piece - 1, 0.5) - at(piece, -0.5);
                assert!(gap.abs() < 2e-7, "{piece}: {gap}");
            }
        }
    }
}
