//! Draws a skeleton like a hand: never twice alike.

use super::glyphs::Glyph;
use crate::random::Stream;

/// Rows and columns of an image.
pub(super) const SIDE: usize = 28;

/// Straight pieces between two control points.
const PIECES: usize = 4;
/// Largest number of control points of a stroke, without repeated ones.
pub(super) const MAX_POINTS: usize = 16;
/// Nodes of the bending field along each side of the glyph's box.
const NODES: usize = 4;
/// Farther from the pen than any pixel that it colours.
const FAR: f32 = 100.0;

/// Draws `glyph` on black paper; all randomness comes from `stream`.
pub(super) fn draw(glyph: Glyph, stream: &mut Stream, image: &mut [u8]) {
    let hand = Hand::new(stream);
    let mut paper = [FAR; SIDE * SIDE];
    for stroke in glyph {
        let mut points = [Point::default(); MAX_POINTS];
        let mut corners = [false; MAX_POINTS];
        let mut count = 0;
        let mut previous = None;
        for &point in stroke.iter() {
            if previous == Some(point) {
                corners[count - 1] = true;
            } else if count < points.len() {
                points[count] = hand.place(point, stream);
                count += 1;
            }
            previous = Some(point);
        }
        trace(&points[..count], &corners, &mut paper);
    }
    develop(&paper, stream, image);
}

/// A position of the pen on the paper, in pixels, and half the width of its line there.
#[derive(Clone, Copy, Default)]
struct Point {
    x: f32,
    y: f32,
    radius: f32,
}

/// How one image is written: the settings of all its strokes.
struct Hand {
    /// Displacements of the nodes of a grid over the glyph's box, in its units.
    bend: [[(f32, f32); NODES]; NODES],
    /// Maps the glyph's box, centred and scaled to -0.5..0.5, to pixels.
    across: (f32, f32),
    down: (f32, f32),
    centre: (f32, f32),
    radius: f32,
}

impl Hand {
    fn new(stream: &mut Stream) -> Self {
        let mut bend = [[(0.0, 0.0); NODES]; NODES];
        for node in bend.iter_mut().flatten() {
            *node = (stream.around(0.06), stream.around(0.06));
        }
        let height = stream.between(16.5, 22.0);
        let width = height * stream.between(0.62, 1.0);
        let slant = stream.around(0.3);
        // The rotation is given by the tangent of half its angle, up to 15 degrees.
        let half = stream.around(0.13);
        let (sin, cos) = (
            2.0 * half / (1.0 + half * half),
            (1.0 - half * half) / (1.0 + half * half),
        );
        let turn = |x: f32, y: f32| (cos * x - sin * y, sin * x + cos * y);
        let middle = SIDE as f32 / 2.0;
        Hand {
            bend,
            across: turn(width, 0.0),
            down: turn(-slant * height, height),
            centre: (middle + stream.around(2.5), middle + stream.around(2.5)),
            radius: stream.between(0.85, 1.75),
        }
    }

    /// Position and pressure of the pen at a control point.
    fn place(&self, (x, y): (i8, i8), stream: &mut Stream) -> Point {
        let (u, v) = (f32::from(x) / 100.0, f32::from(y) / 100.0);
        let (bend_x, bend_y) = self.bend_at(u, v);
        let x = u - 0.5 + bend_x + stream.around(0.015);
        let y = v - 0.5 + bend_y + stream.around(0.015);
        Point {
            x: self.centre.0 + x * self.across.0 + y * self.down.0,
            y: self.centre.1 + x * self.across.1 + y * self.down.1,
            radius: self.radius * stream.between(0.8, 1.2),
        }
    }

    /// The bending field at (u, v), both in 0..=1, smoothly interpolated.
    fn bend_at(&self, u: f32, v: f32) -> (f32, f32) {
        let (column, s) = cell(u);
        let (row, t) = cell(v);
        let mix =
            |a: (f32, f32), b: (f32, f32), k: f32| (a.0 + (b.0 - a.0) * k, a.1 + (b.1 - a.1) * k);
        let upper = mix(self.bend[row][column], self.bend[row][column + 1], s);
        let lower = mix(
            self.bend[row + 1][column],
            self.bend[row + 1][column + 1],
            s,
        );
        mix(upper, lower, t)
    }
}

/// The cell of the bending grid that contains `u`, and the smoothed position in it.
fn cell(u: f32) -> (usize, f32) {
    let scaled = u.clamp(0.0, 1.0) * (NODES - 1) as f32;
    let cell = (scaled as usize).min(NODES - 2);
    let t = scaled - cell as f32;
    (cell, t * t * (3.0 - 2.0 * t))
}

/// Draws a smooth curve (Catmull-Rom) through `points`.
fn trace(points: &[Point], corners: &[bool], paper: &mut [f32; SIDE * SIDE]) {
    for (i, ends) in points.windows(2).enumerate() {
        let (start, end) = (ends[0], ends[1]);
        // At a corner or an end, points beyond it do not affect the curve.
        let before = match i.checked_sub(1) {
            Some(before) if !corners[i] => points[before],
            _ => start,
        };
        let after = match points.get(i + 2) {
            Some(&after) if !corners[i + 1] => after,
            _ => end,
        };
        let mut from = start;
        for piece in 1..=PIECES {
            let t = piece as f32 / PIECES as f32;
            let curve = |a: f32, b: f32, c: f32, d: f32| {
                let (linear, square, cube) = (
                    c - a,
                    2.0 * a - 5.0 * b + 4.0 * c - d,
                    3.0 * (b - c) + d - a,
                );
                b + 0.5 * t * (linear + t * (square + t * cube))
            };
            let to = Point {
                x: curve(before.x, start.x, end.x, after.x),
                y: curve(before.y, start.y, end.y, after.y),
                radius: start.radius + (end.radius - start.radius) * t,
            };
            line(from, to, paper);
            from = to;
        }
    }
}

/// Lowers every pixel's distance from the pen's edge to that of the line from `a` to `b`.
fn line(a: Point, b: Point, paper: &mut [f32; SIDE * SIDE]) {
    // One pixel more than the pen covers, for its soft edge.
    let reach = a.radius.max(b.radius) + 1.0;
    let columns = pixels(a.x.min(b.x) - reach, a.x.max(b.x) + reach);
    let rows = pixels(a.y.min(b.y) - reach, a.y.max(b.y) + reach);
    let (dx, dy, dr) = (b.x - a.x, b.y - a.y, b.radius - a.radius);
    let scale = 1.0 / (dx * dx + dy * dy).max(1e-6);
    for row in rows {
        let y = row as f32 + 0.5 - a.y;
        let start = row * SIDE;
        let cells = &mut paper[start + columns.start..start + columns.end];
        for (column, cell) in columns.clone().zip(cells) {
            let x = column as f32 + 0.5 - a.x;
            let t = ((x * dx + y * dy) * scale).clamp(0.0, 1.0);
            let (off_x, off_y) = (x - t * dx, y - t * dy);
            let distance = (off_x * off_x + off_y * off_y).sqrt() - (a.radius + t * dr);
            *cell = cell.min(distance);
        }
    }
}

/// The pixels of the image that meet `low..high`.
fn pixels(low: f32, high: f32) -> std::ops::Range<usize> {
    let limit = SIDE as f32;
    let (low, high) = (low.clamp(0.0, limit), high.clamp(0.0, limit));
    // The conversion drops the fraction; the result stays within the image.
    let end = ((high as usize) + 1).min(SIDE);
    (low as usize).min(end)..end
}

/// Converts distances from the pen's edge to grey values, with a soft edge and noise.
fn develop(paper: &[f32; SIDE * SIDE], stream: &mut Stream, image: &mut [u8]) {
    let softness = 1.0 / stream.between(1.0, 1.8);
    let ink = stream.between(170.0, 255.0);
    let grain = stream.between(0.0, 0.12);
    let mut noise = [0; 2 * SIDE * SIDE];
    stream.bytes(&mut noise);
    let noise = noise.as_chunks::<2>().0;
    for ((pixel, &distance), &[a, b]) in image.iter_mut().zip(paper).zip(noise) {
        let covered = (0.5 - distance * softness).clamp(0.0, 1.0);
        // Triangular noise around zero.
        let grey = ink * covered + grain * (f32::from(a) - f32::from(b));
        *pixel = grey.clamp(0.0, 255.0) as u8;
    }
}
