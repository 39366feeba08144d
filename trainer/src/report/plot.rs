//! Plots of curves as SVG in the page. They need no script; `page.js` adds values under the
//! pointer.

use std::fmt::Write;

use super::axis::{Axis, range};
use super::html::escape;
use super::positions::brief;
use super::series::{Point, is_drawable};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// Number of colors. Further curves reuse them.
pub const COLOURS: usize = 8;

/// Maximum values of a curve for single marks.
const MARKS: usize = 40;

/// Ratio of values from which an axis becomes logarithmic, if it may.
const LOGARITHMIC: f64 = 30.0;

/// Style of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pen {
    /// A faint curve behind its trend.
    Faint,
    /// A line.
    Line,
    /// A line with a mark at every value.
    Marks,
}

/// A curve of a plot.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name for the legend, as text. A curve without a name is not in the legend.
    pub name: String,
    /// Index of its color.
    pub colour: usize,
    /// Its style.
    pub pen: Pen,
    /// Its points, in the order of x.
    pub points: Vec<Point>,
    /// Index of its run on the page.
    pub run: usize,
}

/// A return of a run to an earlier step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Return {
    /// Index of the run on the page.
    pub run: usize,
    /// The step that it went back from.
    pub from: f64,
    /// The step that it went on from.
    pub to: f64,
}

impl Curve {
    /// Makes a curve.
    pub fn new(name: &str, colour: usize, pen: Pen, points: Vec<Point>) -> Self {
        let points = points.into_iter();
        Self {
            name: name.to_owned(),
            colour: colour % COLOURS,
            pen,
            points: points
                .filter(|(x, y)| is_drawable(*x) && is_drawable(*y))
                .collect(),
            run: 0,
        }
    }

    /// The same of another run.
    pub fn of_run(self, run: usize) -> Self {
        Self { run, ..self }
    }
}

/// Title and axes of a plot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame<'a> {
    /// Identifier for programs.
    pub id: &'a str,
    /// Heading, as HTML.
    pub title: &'a str,
    /// Label of the horizontal axis.
    pub x: &'a str,
    /// Label of the vertical axis, as HTML.
    pub y: &'a str,
    /// Whether the axis includes zero.
    pub zero: bool,
    /// Whether the axis may be logarithmic.
    pub logarithmic: bool,
    /// The returns of runs to an earlier step.
    pub returns: &'a [Return],
}

impl<'a> Frame<'a> {
    /// A plot of `y` over the steps.
    pub fn over_steps(id: &'a str, title: &'a str, y: &'a str) -> Self {
        Self {
            id,
            title,
            x: "step",
            y,
            ..Self::default()
        }
    }

    /// The same with marks where runs went back.
    pub fn returning(mut self, returns: &'a [Return]) -> Self {
        self.returns = returns;
        self
    }

    /// The same with an axis that includes zero.
    pub fn above_zero(mut self) -> Self {
        self.zero = true;
        self
    }

    /// The same with an axis that may be logarithmic.
    pub fn or_logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }
}

/// Draws curves over each other. Empty if none has a value.
pub fn curves(frame: &Frame<'_>, curves: &[Curve]) -> String {
    let drawn = || curves.iter().filter(|curve| !curve.points.is_empty());
    let points = || drawn().flat_map(|curve| &curve.points);
    let (Some(xs), Some(ys)) = (range(points(), |p| p.0), range(points(), |p| p.1)) else {
        return String::new();
    };
    let x = x_axis(xs);
    let y = y_axis(frame, ys, drawn());
    let mut svg = begin(frame, &x, &y);
    let returns = returns(frame, &x, drawn());
    svg += &returns;
    for curve in drawn() {
        let places: Vec<Point> = curve
            .points
            .iter()
            .map(|(px, py)| (x.place(*px), y.place(*py)))
            .collect();
        let class = match curve.pen {
            Pen::Faint => "faint",
            Pen::Line | Pen::Marks => "line",
        };
        let _ = writeln!(
            svg,
            "<path class=\"{class} c{}\" data-name=\"{}\" data-run=\"{}\" data-points=\"{}\" d=\"{}\"/>",
            curve.colour,
            escape(&curve.name),
            curve.run,
            values(&curve.points),
            path(&places)
        );
        if places.len() == 1 || (curve.pen == Pen::Marks && places.len() <= MARKS) {
            let _ = writeln!(
                svg,
                "<path class=\"dots c{}\" d=\"{}\"/>",
                curve.colour,
                dots(&places)
            );
        }
    }
    figure(frame.title, drawn(), !returns.is_empty(), &svg)
}

/// Marks where the runs of the curves went back to an earlier step.
fn returns<'a>(frame: &Frame<'_>, x: &Axis, curves: impl Iterator<Item = &'a Curve>) -> String {
    let runs: Vec<usize> = curves.map(|curve| curve.run).collect();
    let mut marks = String::new();
    let own = frame.returns.iter();
    let own = own.filter(|own| runs.contains(&own.run) && x.covers(own.to));
    for Return { run, from, to } in own {
        let place = x.place(*to);
        let _ = writeln!(
            marks,
            "<path class=\"return\" data-run=\"{run}\" data-at=\"{to}\" d=\"M{place:.1} {TOP}V{:.1}\">\
             <title>went back from step {from} to {to}</title></path>",
            HEIGHT - BOTTOM
        );
    }
    marks
}

/// The values of a curve for the script.
fn values(points: &[Point]) -> String {
    let points = points
        .iter()
        .map(|(x, y)| format!("{},{}", brief(*x), brief(*y)));
    points.collect::<Vec<_>>().join(" ")
}

/// Draws stacked areas. All layers have the same x.
pub fn stack(frame: &Frame<'_>, layers: &[Curve]) -> String {
    let Some(first) = layers.first() else {
        return String::new();
    };
    let count = layers.iter().map(|layer| layer.points.len()).min();
    let count = count.unwrap_or_default();
    let mut edges = vec![vec![0.0; count]];
    for layer in layers {
        let below = edges.last().cloned().unwrap_or_default();
        let heights = layer.points.iter().map(|point| point.1.max(0.0));
        edges.push(below.iter().zip(heights).map(|(a, b)| a + b).collect());
    }
    let top = edges.last().into_iter().flatten();
    let highest = top.copied().fold(0.0, f64::max);
    let Some(xs) = range(&first.points, |p| p.0).filter(|_| highest > 0.0) else {
        return String::new();
    };
    let x = x_axis(xs);
    let y = Axis::round(0.0, highest, HEIGHT - BOTTOM, TOP);
    // A single value is drawn as wide as the plot.
    let xs: Vec<f64> = match count {
        1 => vec![LEFT, WIDTH - RIGHT],
        _ => first.points.iter().map(|point| x.place(point.0)).collect(),
    };
    let edge = |heights: &[f64]| -> Vec<Point> {
        let heights = heights.iter().cycle();
        let places = xs.iter().zip(heights);
        places.map(|(px, height)| (*px, y.place(*height))).collect()
    };
    let mut svg = begin(frame, &x, &y);
    for (layer, pair) in layers.iter().zip(edges.windows(2)) {
        let [below, above] = pair else { continue };
        let mut outline = edge(above);
        outline.extend(edge(below).into_iter().rev());
        let _ = writeln!(
            svg,
            "<path class=\"area c{}\" data-name=\"{}\" d=\"{}Z\"/>",
            layer.colour,
            escape(&layer.name),
            path(&outline)
        );
    }
    figure(frame.title, layers, false, &svg)
}

/// Draws stacked bars, one for each x from 0.
pub fn bars(frame: &Frame<'_>, parts: &[Curve]) -> String {
    let heights: Vec<f64> = totals(parts);
    let highest = heights.iter().copied().fold(0.0, f64::max);
    if heights.is_empty() || highest <= 0.0 {
        return String::new();
    }
    let count = heights.len() as f64;
    let x = Axis::tight(-0.5, count - 0.5, LEFT, WIDTH - RIGHT);
    let y = Axis::round(0.0, highest, HEIGHT - BOTTOM, TOP);
    let mut svg = begin(frame, &x, &y);
    let width = ((WIDTH - LEFT - RIGHT) / count * 0.8).min(90.0);
    let mut below = vec![0.0; heights.len()];
    for part in parts {
        let mut d = String::new();
        for ((px, height), below) in part.points.iter().zip(&mut below) {
            let (from, to) = (y.place(*below), y.place(*below + height.max(0.0)));
            let _ = write!(
                d,
                "M{:.1} {from:.1}h{width:.1}V{to:.1}h{:.1}Z",
                x.place(*px) - width / 2.0,
                -width
            );
            *below += height.max(0.0);
        }
        let _ = writeln!(svg, "<path class=\"bar c{}\" d=\"{d}\"/>", part.colour);
    }
    figure(frame.title, parts, false, &svg)
}

fn totals(parts: &[Curve]) -> Vec<f64> {
    let count = parts.iter().map(|part| part.points.len()).min();
    let height = |index: usize| {
        let points = parts.iter().filter_map(|part| part.points.get(index));
        points.map(|point| point.1.max(0.0)).sum()
    };
    (0..count.unwrap_or_default()).map(height).collect()
}

fn x_axis((low, high): (f64, f64)) -> Axis {
    Axis::tight(low, high, LEFT, WIDTH - RIGHT)
}

fn y_axis<'a>(
    frame: &Frame<'_>,
    (low, high): (f64, f64),
    curves: impl Iterator<Item = &'a Curve>,
) -> Axis {
    let (from, to) = (HEIGHT - BOTTOM, TOP);
    // Outliers of single steps must not stretch a logarithmic axis.
    let trends = curves.filter(|curve| curve.pen != Pen::Faint);
    let trend = range(trends.flat_map(|curve| &curve.points), |p| p.1);
    let (lowest, highest) = trend.unwrap_or((low, high));
    if frame.logarithmic && lowest > 0.0 && highest / lowest > LOGARITHMIC {
        return Axis::logarithmic(low.max(lowest / 5.0), high, from, to);
    }
    let low = if frame.zero { low.min(0.0) } else { low };
    let high = if frame.zero { high.max(0.0) } else { high };
    Axis::round(low, high, from, to)
}

/// The opening tag, the grid and the labels.
fn begin(frame: &Frame<'_>, x: &Axis, y: &Axis) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut svg = format!(
        "<svg data-plot=\"{}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" \
         data-x=\"{}\" data-y=\"{}\" data-xname=\"{}\" data-zero=\"{}\">\n",
        frame.id,
        frame.title,
        x.attribute(),
        y.attribute(),
        frame.x,
        frame.zero
    );
    let mut grid = String::new();
    let mut labels = String::new();
    for (value, label) in y.ticks(5, 0.0) {
        let place = y.place(value);
        let _ = write!(grid, "M{LEFT} {place:.1}H{right}");
        let _ = write!(
            labels,
            "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{label}</text>",
            LEFT - 7.0,
            place + 3.5
        );
    }
    // Steps and ranks are integers.
    let apart = if frame.x.contains("second") { 0.0 } else { 1.0 };
    for (value, label) in x.ticks(6, apart) {
        let place = x.place(value);
        let _ = write!(grid, "M{place:.1} {bottom}v4");
        let _ = write!(
            labels,
            "<text x=\"{place:.1}\" y=\"{:.1}\" class=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }
    let middle = (TOP + bottom) / 2.0;
    let _ = writeln!(
        svg,
        "<g class=\"scale\"><path class=\"grid\" d=\"{grid}\"/>\n{labels}</g>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" class=\"middle axis x\">{}</text>\
         <text x=\"9\" y=\"{middle:.1}\" class=\"middle axis\" \
         transform=\"rotate(-90 9 {middle:.1})\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 6.0,
        frame.x,
        frame.y
    );
    svg
}

/// The drawing with its heading and legend.
fn figure<'a>(
    title: &str,
    curves: impl IntoIterator<Item = &'a Curve>,
    returns: bool,
    svg: &str,
) -> String {
    let mut legend = String::new();
    for curve in curves.into_iter().filter(|curve| !curve.name.is_empty()) {
        let thin = if curve.pen == Pen::Faint { " thin" } else { "" };
        let _ = write!(
            legend,
            "<span class=\"key c{}{thin}\">{}</span>",
            curve.colour,
            escape(&curve.name)
        );
    }
    if returns {
        legend += "<span class=\"key back\">went back</span>";
    }
    format!(
        "<figure><figcaption><b>{title}</b><span class=\"keys\">{legend}</span></figcaption>\n\
         {svg}</svg></figure>\n"
    )
}

fn path(places: &[Point]) -> String {
    let mut d = String::with_capacity(14 * places.len());
    for (index, (x, y)) in places.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{command}{x:.1} {y:.2}");
    }
    d
}

/// A small circle at every point.
fn dots(places: &[Point]) -> String {
    let mut d = String::new();
    for (x, y) in places {
        let _ = write!(d, "M{:.1} {y:.1}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z", x - 3.0);
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame<'_> = Frame {
        id: "loss",
        title: "Loss",
        x: "step",
        y: "loss",
        zero: false,
        logarithmic: true,
        returns: &[],
    };

    fn ds(svg: &str) -> Vec<&str> {
        let parts = svg.split(" d=\"").skip(1);
        parts.map(|part| part.split('"').next().unwrap()).collect()
    }

    #[test]
    fn every_point_lies_within_the_picture() {
        let points = (1..200).map(|step| (f64::from(step), 3.0 / f64::from(step)));
        let curve = Curve::new("<b>", 0, Pen::Marks, points.collect());
        let svg = curves(&FRAME, &[curve]);
        assert!(svg.contains("linear\"") && svg.contains("log\""), "{svg}");
        assert!(!svg.contains("<b>\"") && svg.contains("data-name=\"&lt;b&gt;\""));
        let d = ds(&svg)[1];
        let places: Vec<&str> = d.split(['M', 'L']).skip(1).collect();
        assert_eq!(places.len(), 199);
        for place in places {
            let (x, y) = place.split_once(' ').unwrap();
            assert!((LEFT..=WIDTH - RIGHT).contains(&x.parse().unwrap()));
            assert!((TOP..=HEIGHT - BOTTOM).contains(&y.parse().unwrap()));
        }
    }

    #[test]
    fn what_is_no_number_is_not_drawn() {
        let points = vec![
            (1.0, f64::NAN),
            (f64::INFINITY, 1.0),
            (2.0, 1e300),
            (3.0, 2.0),
        ];
        let svg = curves(&FRAME, &[Curve::new("a", 0, Pen::Line, points.clone())]);
        assert!(
            svg.contains("class=\"dots"),
            "a single value is a dot: {svg}"
        );
        let frames = [
            svg,
            stack(&FRAME, &[Curve::new("a", 0, Pen::Line, points.clone())]),
            bars(&FRAME, &[Curve::new("a", 0, Pen::Line, points)]),
        ];
        for svg in frames {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("</svg>"));
        }
        let nothing = [Curve::new("a", 0, Pen::Line, vec![(1.0, f64::NAN)])];
        assert_eq!(curves(&FRAME, &nothing), "");
        assert_eq!(stack(&FRAME, &nothing), "");
        assert_eq!(bars(&FRAME, &nothing), "");
        assert_eq!(stack(&FRAME, &[]), "");
    }

    #[test]
    fn layers_lie_on_each_other() {
        let layer =
            |colour, height| Curve::new("x", colour, Pen::Line, vec![(1.0, height), (2.0, height)]);
        let svg = stack(&FRAME, &[layer(0, 1.0), layer(1, 3.0)]);
        let y = |height: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * height / 4.0;
        let right = WIDTH - RIGHT;
        let expected = format!(
            "M{LEFT:.1} {:.2}L{right:.1} {:.2}L{right:.1} {:.2}L{LEFT:.1} {:.2}Z",
            y(4.0),
            y(4.0),
            y(1.0),
            y(1.0)
        );
        assert_eq!(ds(&svg)[2], expected);
    }
}
