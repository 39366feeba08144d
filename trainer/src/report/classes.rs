//! Sections of a report on single classes: accuracies, most frequent mistakes, and example images.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::axis::number;
use super::html;
use super::matrix::Matrix;
use crate::task::classification::details::{Details, Prediction};

/// Maximum number of images, and maximum characters of one and of all.
const IMAGES: usize = 64;
const IMAGE_LENGTH: usize = 270_000;
const IMAGES_LENGTH: usize = 700_000;
/// Maximum bars of the accuracies.
const BARS: usize = 400;
/// Maximum bars with names.
const NAMED: usize = 120;
/// Up to this number, a bar has room for a long name and the counts.
const FEW: usize = 24;
/// Rows of the tables of class pairs and of single classes.
const ROWS: usize = 12;

const WIDTH: f64 = 1100.0;

/// Beginning of every PNG.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The name of a class, or its number if it has none. Not escaped.
pub fn class_name(names: &[String], class: usize) -> String {
    match names.get(class) {
        Some(name) if !name.trim().is_empty() => name.clone(),
        _ => class.to_string(),
    }
}

/// One class with at least one sample.
#[derive(Clone, Debug)]
struct Class {
    name: String,
    correct: i64,
    samples: i64,
}

impl Class {
    fn accuracy(&self) -> f64 {
        (self.correct as f64 / self.samples as f64).clamp(0.0, 1.0)
    }
}

/// All sections; empty without data.
pub fn sections(details: &Details) -> String {
    let classes = classes(details);
    let mut plots = match classes.len() {
        0 => String::new(),
        1..=FEW => rows(&classes),
        _ => columns(&classes),
    };
    let confusion = details.confusion.as_deref();
    let matrix = confusion.and_then(|rows| Matrix::new(rows, &details.class_names));
    let mut tables = String::new();
    if classes.len() > FEW {
        tables += &worst(&classes);
    }
    if let Some(matrix) = &matrix {
        let place = if matrix.is_small() {
            &mut tables
        } else {
            &mut plots
        };
        *place += &matrix.figure();
        tables += &mistakes(matrix, &details.class_names);
    }
    if !tables.is_empty() {
        let _ = writeln!(plots, "<div class=\"plots\">{tables}</div>");
    }
    let heading = format!("Classes after step {}", details.step);
    let pictures = pictures(&details.predictions, &details.class_names);
    html::section(&heading, &plots) + &html::section("Sample predictions", &pictures)
}

fn classes(details: &Details) -> Vec<Class> {
    let counts = details.per_class.iter().enumerate();
    let seen = counts.filter(|(_, count)| count.samples > 0);
    seen.map(|(class, count)| Class {
        name: class_name(&details.class_names, class),
        correct: count.correct,
        samples: count.samples,
    })
    .collect()
}

/// One bar per class, in their order.
fn rows(classes: &[Class]) -> String {
    let (row, left, right) = (24.0, 190.0, 130.0);
    let height = row * classes.len() as f64 + 4.0;
    let full = WIDTH - left - right;
    let (mut behind, mut bars, mut labels) = (String::new(), String::new(), String::new());
    for (index, class) in classes.iter().enumerate() {
        let top = row * index as f64 + 4.0;
        let _ = write!(behind, "M{left} {top}h{full}v16h-{full}Z");
        let width = full * class.accuracy();
        let _ = write!(bars, "M{left} {top}h{width:.1}v16h-{width:.1}Z");
        let _ = writeln!(
            labels,
            "<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>\
             <text x=\"{}\" y=\"{}\">{:.1} %  ({} of {})</text>",
            left - 8.0,
            top + 12.0,
            html::shortened(&class.name, 28),
            left + full + 8.0,
            top + 12.0,
            100.0 * class.accuracy(),
            class.correct,
            class.samples
        );
    }
    format!(
        "<figure class=\"wide\"><figcaption><b>Accuracy per class</b></figcaption>\n\
         <svg data-plot=\"classes\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Accuracy per class\">\n<path fill=\"var(--line)\" d=\"{behind}\"/>\n\
         <path class=\"right\" d=\"{bars}\"/>\n{labels}</svg></figure>\n"
    )
}

/// Thin bars from the worst class to the best. With very many classes, each bar is a mean of
/// neighbors.
fn columns(classes: &[Class]) -> String {
    let mut sorted: Vec<&Class> = classes.iter().collect();
    sorted.sort_by(|a, b| a.accuracy().total_cmp(&b.accuracy()));
    let group = sorted.len().div_ceil(BARS);
    let groups: Vec<&[&Class]> = sorted.chunks(group).collect();
    let named = sorted.len() <= NAMED;
    let (left, top, plot) = (40.0, 8.0, 200.0);
    let bottom = if named { 100.0 } else { 8.0 };
    let step = (WIDTH - left) / groups.len() as f64;
    let width = step * 0.8;
    let (mut bars, mut labels) = (String::new(), String::new());
    for (index, group) in groups.iter().enumerate() {
        let x = left + step * index as f64 + step * 0.1;
        let sum: f64 = group.iter().map(|class| class.accuracy()).sum();
        let height = plot * sum / group.len() as f64;
        let _ = write!(
            bars,
            "M{x:.1} {:.1}v-{height:.1}h{width:.1}v{height:.1}Z",
            top + plot
        );
        if let ([class], true) = (group, named) {
            let (x, y) = (x + width / 2.0 + 2.5, top + plot + 6.0);
            let _ = writeln!(
                labels,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"end small\" \
                 transform=\"rotate(-90 {x:.1} {y:.1})\">{}<title>{} {:.1} %</title></text>",
                html::shortened(&class.name, 20),
                html::name(&class.name),
                100.0 * class.accuracy()
            );
        }
    }
    let mut grid = String::new();
    for quarter in 0..=4u8 {
        let share = f64::from(quarter) / 4.0;
        let y = top + plot * (1.0 - share);
        let _ = write!(grid, "M{left} {y}H{WIDTH}");
        let _ = writeln!(
            labels,
            "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{} %</text>",
            left - 5.0,
            y + 4.0,
            100.0 * share
        );
    }
    let note = match group {
        1 => "from the worst to the best".to_owned(),
        group => format!("from the worst to the best, means of {group} classes"),
    };
    format!(
        "<figure class=\"wide\"><figcaption><b>Accuracy per class</b>\
         <span class=\"keys\">{note}</span></figcaption>\n\
         <svg data-plot=\"classes\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" \
         aria-label=\"Accuracy per class\">\n<path class=\"grid\" d=\"{grid}\"/>\n\
         <path class=\"right\" d=\"{bars}\"/>\n{labels}</svg></figure>\n",
        top + plot + bottom
    )
}

fn worst(classes: &[Class]) -> String {
    let mut sorted: Vec<&Class> = classes.iter().collect();
    sorted.sort_by(|a, b| a.accuracy().total_cmp(&b.accuracy()));
    let row = |class: &&Class| {
        vec![
            html::name(&class.name),
            format!("{:.1} %", 100.0 * class.accuracy()),
            format!("{} of {}", class.correct, class.samples),
        ]
    };
    let rows: Vec<_> = sorted.iter().take(ROWS).map(row).collect();
    boxed(
        "Classes with the lowest accuracy",
        &["class", "accuracy", "correct"],
        &rows,
    )
}

fn mistakes(matrix: &Matrix, names: &[String]) -> String {
    let row = |(count, class, taken): &(i64, usize, usize)| {
        let name = |class: usize| html::name(&class_name(names, class));
        vec![name(*class), name(*taken), count.to_string()]
    };
    let rows: Vec<_> = matrix.mistakes(ROWS).iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => boxed(
            "Most frequent mistakes",
            &["class", "predicted as", "times"],
            &rows,
        ),
    }
}

fn boxed(heading: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    format!(
        "<div class=\"box\"><h3>{heading}</h3>{}</div>\n",
        html::table("", &head, rows)
    )
}

/// Images with their predictions.
fn pictures(predictions: &[Prediction], names: &[String]) -> String {
    let mut html = String::new();
    let mut left = IMAGES_LENGTH;
    let shown = predictions
        .iter()
        .filter(|prediction| is_png(&prediction.image_png_base64));
    for prediction in shown.take(IMAGES) {
        let length = prediction.image_png_base64.len();
        if length > left {
            break;
        }
        left -= length;
        html += &picture(prediction, names);
    }
    match html.is_empty() {
        true => html,
        false => format!("<div class=\"pictures\">\n{html}</div>\n"),
    }
}

/// Whether this is a PNG in base64, safe in a `data:` URI.
fn is_png(base64: &str) -> bool {
    base64.len() <= IMAGE_LENGTH
        && STANDARD
            .decode(base64)
            .is_ok_and(|bytes| bytes.starts_with(PNG))
}

fn picture(prediction: &Prediction, names: &[String]) -> String {
    let label = html::name(&class_name(names, prediction.label));
    let first = prediction.top.first();
    let hit = first.is_some_and(|guess| guess.class == prediction.label);
    let mut guesses = String::new();
    for guess in prediction.top.iter().take(3) {
        let share = match guess.probability.is_finite() {
            true => 100.0 * guess.probability.clamp(0.0, 1.0),
            false => 0.0,
        };
        let class = if guess.class == prediction.label {
            "guess hit"
        } else {
            "guess"
        };
        let _ = write!(
            guesses,
            "<div class=\"{class}\"><i style=\"width:{share:.1}%\"></i><span>{}</span>\
             <span>{} %</span></div>",
            html::name(&class_name(names, guess.class)),
            number((share * 10.0).round() / 10.0)
        );
    }
    let class = if hit { "picture" } else { "picture mistake" };
    format!(
        "<div class=\"{class}\"><img alt=\"{label}\" src=\"data:image/png;base64,{}\">\
         <b>{label}</b>{guesses}</div>\n",
        prediction.image_png_base64
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::classification::details::{ClassCount, Guess};

    fn prediction(image: &str) -> Prediction {
        Prediction {
            image_png_base64: image.to_owned(),
            label: 7,
            top: vec![Guess {
                class: usize::MAX,
                probability: f64::NAN,
            }],
        }
    }

    #[test]
    fn only_pictures_are_shown() {
        let png = STANDARD.encode([PNG, b"rest"].concat());
        let html = pictures(&[prediction(&png)], &["<b>".to_owned()]);
        assert!(
            html.contains(&png) && html.contains("picture mistake"),
            "{html}"
        );
        assert!(html.contains("<b>7</b>") && !html.contains("NaN"), "{html}");
        let script = "\"><script>";
        for wrong in [script, &STANDARD.encode("<svg>"), &"A".repeat(300_000)] {
            assert_eq!(pictures(&[prediction(wrong)], &[]), "");
        }
        let many = vec![prediction(&png); 1000];
        assert_eq!(pictures(&many, &[]).matches("<img").count(), IMAGES);
    }

    #[test]
    fn few_classes_are_rows_many_are_columns() {
        for (count, named) in [(10, true), (100, true), (5000, false)] {
            let details = Details {
                class_names: (0..count).map(|class| format!("<n{class}>")).collect(),
                per_class: vec![
                    ClassCount {
                        samples: 4,
                        correct: 3
                    };
                    count
                ],
                ..Details::default()
            };
            let html = sections(&details);
            assert!(!html.contains("<n") && html.contains("data-plot=\"classes\""));
            assert_eq!(html.contains(&format!("&lt;n{}&gt;", count - 1)), named);
            assert!(html.len() < 100_000, "{}", html.len());
        }
        assert_eq!(sections(&Details::default()), "");
    }
}
