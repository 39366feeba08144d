//! A plot of a sweep: the loss over the learning rate, on a logarithmic axis.

use std::fmt::Write;

use super::LossCurve;
use crate::report::axis::Axis;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 50.0;
/// Ratio of losses from which their axis is logarithmic.
const LOGARITHMIC: f64 = 10.0;
/// Width of a character of the legend, and of the sample before its text.
const CHARACTER: f64 = 6.4;
const SAMPLE: f64 = 24.0;

const LOSS: &str = "#b0b0b0";
const MEAN: &str = "#1f5fbf";
const STEEPEST: &str = "#2a8a3a";
const TENTH: &str = "#c05a1a";

/// The curve as a standalone SVG document.
pub fn svg(curve: &LossCurve) -> String {
    let points = curve.points().iter();
    let losses: Vec<(f64, f64)> = points.map(|point| (point.lr, point.loss)).collect();
    let means: Vec<(f64, f64)> = curve.spans().map(|span| (span.lr, span.mean)).collect();
    let frame = Frame::around(&losses);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    frame.grid(&mut svg);
    frame.line(&mut svg, &losses, LOSS, 1.0);
    frame.line(&mut svg, &means, MEAN, 2.0);
    let mut legend = vec![
        ("loss of a step".to_owned(), LOSS, ""),
        (format!("mean of {} steps", curve.width()), MEAN, ""),
    ];
    if let Ok(suggestion) = curve.suggestion() {
        for (lr, name, colour) in [
            (suggestion.steepest, "steepest descent", STEEPEST),
            (suggestion.tenth_of_minimum, "minimum / 10", TENTH),
        ] {
            frame.mark(&mut svg, lr, colour);
            legend.push((format!("{name}: {lr:.1e}"), colour, DASHED));
        }
    }
    write_legend(&mut svg, &legend);
    svg.push_str("</svg>\n");
    svg
}

/// Stroke of a suggested rate.
const DASHED: &str = " stroke-dasharray=\"4 3\"";

/// Both axes.
struct Frame {
    lr: Axis,
    loss: Axis,
}

impl Frame {
    /// Covers all points.
    fn around(losses: &[(f64, f64)]) -> Self {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let ends = values.map(|value| (value, value));
            ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
        };
        let lrs = range(&mut losses.iter().map(|(lr, _)| *lr));
        let losses = range(&mut losses.iter().map(|(_, loss)| *loss));
        let ((first, last), (low, high)) =
            (lrs.unwrap_or((0.1, 1.0)), losses.unwrap_or((0.0, 1.0)));
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        // The last loss before a divergence may be a thousand times the others.
        let steep = low > 0.0 && high / low > LOGARITHMIC;
        Self {
            lr: Axis::logarithmic(first, last, LEFT, right),
            loss: match steep {
                true => Axis::logarithmic(low, high, bottom, TOP),
                false => Axis::round(low, high, bottom, TOP),
            },
        }
    }

    // Writing into a string cannot fail.
    fn grid(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for (lr, label) in self.lr.ticks(8, 0.0) {
            let x = self.lr.place(lr);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + 18.0
            );
        }
        for (loss, label) in self.loss.ticks(5, 0.0) {
            let y = self.loss.place(loss);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
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
            .map(|(lr, loss)| format!("{:.1},{:.1}", self.lr.place(*lr), self.loss.place(*loss)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>",
            points.join(" ")
        );
    }

    fn mark(&self, svg: &mut String, lr: f64, colour: &str) {
        let x = self.lr.place(lr);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-width=\"1.5\"{DASHED}/>",
            HEIGHT - BOTTOM
        );
    }
}

/// Texts with a sample of their line, side by side above the plot.
fn write_legend(svg: &mut String, entries: &[(String, &str, &str)]) {
    let mut x = LEFT;
    for (text, colour, dashes) in entries {
        let (y, end) = (TOP - 20.0, x + SAMPLE - 6.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{end:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dashes}/><text x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            x + SAMPLE,
            y + 4.0
        );
        x += SAMPLE + CHARACTER * text.chars().count() as f64 + 12.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let lines = svg.split("points=\"").skip(1);
        let points = lines.map(|line| line.split('"').next().unwrap().split(' '));
        let point = |text: &str| {
            let (x, y) = text.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        points.map(|points| points.map(point).collect()).collect()
    }

    #[test]
    fn everything_lies_within_the_picture() {
        let mut curve = LossCurve::of_steps(60);
        for index in 0..60 {
            let log = -5.0 + 0.1 * f64::from(index);
            curve.push(10f64.powf(log), 2.0 / (1.0 + (log + 3.0).exp()));
        }
        let svg = svg(&curve);
        for part in [
            ">loss of a step<",
            ">mean of 7 steps<",
            ">steepest descent: ",
            ">minimum / 10: ",
            ">0.001<",
            ">1e-5<",
            ">0.3<",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        let lines = lines(&svg);
        // The mean of seven losses has no value at the first three and the last three.
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [60, 54]);
        for (x, y) in lines.into_iter().flatten() {
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y));
        }
    }

    /// A loss beyond the others is drawn where it is, and the others can still be told apart.
    #[test]
    fn no_loss_is_cut_off() {
        let mut curve = LossCurve::of_steps(40);
        for index in 0..40 {
            let loss = if index == 39 {
                3000.0
            } else {
                2.0 - 0.04 * f64::from(index)
            };
            curve.push(10f64.powf(-5.0 + 0.1 * f64::from(index)), loss);
        }
        let lines = lines(&svg(&curve));
        let ys: Vec<f64> = lines[0].iter().map(|point| point.1).collect();
        assert!(ys[38] - ys[39] > 200.0, "{ys:?}");
        assert!(ys[38] - ys[0] > 15.0, "{ys:?}");
    }

    #[test]
    fn no_points_make_an_empty_picture() {
        let svg = svg(&LossCurve::default());
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
