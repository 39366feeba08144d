//! A plot of a sweep: the loss over the learning rate, on a logarithmic axis.

use std::fmt::Write;

use super::LossCurve;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Grid lines and labels of the loss.
const ROWS: u32 = 5;

/// The curve as a standalone SVG document.
pub fn svg(curve: &LossCurve) -> String {
    let points = curve.points().iter();
    let losses: Vec<(f64, f64)> = points.map(|point| (point.lr, point.loss)).collect();
    let means: Vec<(f64, f64)> = curve.spans().map(|span| (span.lr, span.mean)).collect();
    let frame = Frame::around(&losses, &means);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    frame.grid(&mut svg);
    frame.line(&mut svg, &losses, "#bbbbbb", 1.0);
    frame.line(&mut svg, &means, "#1f5fbf", 2.0);
    if let Ok(suggestion) = curve.suggestion() {
        for (lr, name, colour) in [
            (suggestion.steepest, "steepest", "#2a8a3a"),
            (suggestion.tenth_of_minimum, "minimum / 10", "#c05a1a"),
        ] {
            frame.mark(&mut svg, lr, name, colour);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Ranges of both axes.
struct Frame {
    /// Base-10 logarithms of the rates.
    lr: (f64, f64),
    loss: (f64, f64),
}

impl Frame {
    /// Covers all rates of `losses`, and the losses of `means`.
    fn around(losses: &[(f64, f64)], means: &[(f64, f64)]) -> Self {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let start = (f64::INFINITY, f64::NEG_INFINITY);
            let (low, high) = values.fold(start, |(low, high), value| {
                (low.min(value), high.max(value))
            });
            match low < high {
                true => (low, high),
                false if low.is_finite() => (low - 0.5, low + 0.5),
                false => (0.0, 1.0),
            }
        };
        Self {
            lr: range(&mut losses.iter().map(|(lr, _)| lr.log10())),
            loss: range(&mut means.iter().map(|(_, mean)| *mean)),
        }
    }

    fn x(&self, lr: f64) -> f64 {
        let share = (lr.log10() - self.lr.0) / (self.lr.1 - self.lr.0);
        LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
    }

    fn y(&self, loss: f64) -> f64 {
        let share = (loss - self.loss.0) / (self.loss.1 - self.loss.0);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.clamp(0.0, 1.0)
    }

    // Writing into a string cannot fail.
    fn grid(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for power in self.lr.0.ceil() as i32..=self.lr.1.floor() as i32 {
            let x = self.x(10f64.powi(power));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">1e{power}</text>",
                bottom + 18.0
            );
        }
        for row in 0..=ROWS {
            let share = f64::from(row) / f64::from(ROWS);
            let loss = self.loss.0 + (self.loss.1 - self.loss.0) * share;
            let y = self.y(loss);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.3}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">learning rate</text>\
             <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 16 {:.1})\">loss</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 10.0,
            (TOP + bottom) / 2.0,
            (TOP + bottom) / 2.0
        );
    }

    fn line(&self, svg: &mut String, points: &[(f64, f64)], colour: &str, width: f64) {
        let points: Vec<String> = points
            .iter()
            .map(|(lr, loss)| format!("{:.1},{:.1}", self.x(*lr), self.y(*loss)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>",
            points.join(" ")
        );
    }

    fn mark(&self, svg: &mut String, lr: f64, name: &str, colour: &str) {
        let x = self.x(lr);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-dasharray=\"4 3\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" \
             transform=\"rotate(-90 {:.1} {:.1})\" text-anchor=\"end\">{name}: {lr:.1e}</text>",
            HEIGHT - BOTTOM,
            x - 4.0,
            TOP + 2.0,
            x - 4.0,
            TOP + 2.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_lies_within_the_picture() {
        let mut curve = LossCurve::default();
        for index in 0..60 {
            let log = -5.0 + 0.1 * f64::from(index);
            curve.push(10f64.powf(log), 2.0 / (1.0 + (log + 3.0).exp()));
        }
        let svg = svg(&curve);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(
            svg.contains("steepest: ") && svg.contains(">1e-3<"),
            "{svg}"
        );
        // The mean of seven losses has no value at the first three and the last three.
        for (line, length) in [(1, 60), (2, 54)] {
            let points = svg.split("points=\"").nth(line).unwrap();
            let points = points.split('"').next().unwrap();
            assert_eq!(points.split(' ').count(), length);
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                assert!((LEFT..=WIDTH - RIGHT).contains(&x.parse().unwrap()));
                assert!((TOP..=HEIGHT - BOTTOM).contains(&y.parse().unwrap()));
            }
        }
    }

    #[test]
    fn no_points_make_an_empty_picture() {
        let svg = svg(&LossCurve::default());
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
