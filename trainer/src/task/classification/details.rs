//! `evaluation.json`: the confusion matrix, scores per class, and predictions of a few images.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use burn_dist::{ProcessGroup, ReduceOp};
use datasets::{Dataset, ImageShape};
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::run::gallery::{Gallery, SampleImage};
use crate::task::{self, Evaluation};

/// Maximum classes of a confusion matrix. A larger one could not be displayed.
const MATRIX_CLASSES: usize = 2000;
/// Number of images shown from the beginning of the data set.
const FIRST: usize = 8;
/// Number of wrong predictions shown, the most confident ones.
const MISTAKEN: usize = 16;
/// Likeliest classes shown for each image.
const CLASSES: usize = 3;
/// Longest side of a thumbnail, in pixels.
const SIDE: u32 = 64;

/// Details of an evaluation beside its means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// Epoch before the evaluation.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Fraction of samples with the right prediction.
    pub accuracy: f64,
    /// Fraction of samples whose class is among the five likeliest, if the model has more classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Samples.
    pub samples: u64,
    /// Names of the classes.
    pub class_names: Vec<String>,
    /// Confusion matrix: samples of the class of the row that were predicted as that of the column.
    /// `None` with too many classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<i64>>>,
    /// Counts of each class.
    pub per_class: Vec<ClassCount>,
    /// The first images, and the most confident mistakes.
    pub predictions: Vec<Prediction>,
}

/// Samples of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCount {
    /// Number of samples.
    pub samples: i64,
    /// Number of right predictions.
    pub correct: i64,
}

/// One image and the model's prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Thumbnail, a PNG in base64.
    pub image_png_base64: String,
    /// The right class.
    pub label: usize,
    /// The likeliest classes.
    pub top: Vec<Guess>,
}

/// A class and its predicted probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guess {
    /// The class.
    pub class: usize,
    /// Probability from 0 to 1.
    pub probability: f64,
}

/// An image that may be shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Candidate {
    index: usize,
    label: usize,
    top: Vec<Guess>,
}

impl Candidate {
    fn confidence(&self) -> f64 {
        self.top.first().map_or(0.0, |guess| guess.probability)
    }
}

/// Counts during an evaluation.
#[derive(Debug)]
pub(crate) struct Tally {
    classes: usize,
    /// Rows of the confusion matrix; empty with too many classes.
    confusion: Vec<i64>,
    samples: Vec<i64>,
    correct: Vec<i64>,
    first: Vec<Candidate>,
    mistaken: Vec<Candidate>,
}

impl Tally {
    pub(crate) fn new(classes: usize) -> Self {
        let cells = match classes <= MATRIX_CLASSES {
            true => classes * classes,
            false => 0,
        };
        Self {
            classes,
            confusion: vec![0; cells],
            samples: vec![0; classes],
            correct: vec![0; classes],
            first: Vec::new(),
            mistaken: Vec::new(),
        }
    }

    /// Counts a sample of class `label` with the model's scores for it.
    pub(crate) fn see(&mut self, index: usize, label: usize, predicted: usize, scores: &[f32]) {
        if label >= self.classes || predicted >= self.classes {
            return;
        }
        if let Some(cell) = self.confusion.get_mut(label * self.classes + predicted) {
            *cell += 1;
        }
        self.samples[label] += 1;
        self.correct[label] += i64::from(predicted == label);
        if index >= FIRST && predicted == label {
            return;
        }
        let candidate = Candidate {
            index,
            label,
            top: likeliest(scores),
        };
        if index < FIRST {
            self.first.push(candidate);
        } else {
            self.mistaken.push(candidate);
            if self.mistaken.len() >= 2 * MISTAKEN {
                keep_gravest(&mut self.mistaken);
            }
        }
    }

    /// Adds the counts of the other ranks.
    pub(crate) fn gather(
        mut self,
        dataset: &dyn Dataset,
        evaluation: &Evaluation,
        group: &ProcessGroup,
    ) -> Result<Details, TrainError> {
        for counts in [&mut self.confusion, &mut self.samples, &mut self.correct] {
            group.all_reduce(counts, ReduceOp::Sum)?;
        }
        keep_gravest(&mut self.mistaken);
        let own = [self.first, self.mistaken].concat();
        let message = serde_json::to_vec(&own).unwrap_or_default();
        let all = group.gather_bytes(&message)?;
        let mut all: Vec<Candidate> = all
            .iter()
            .filter_map(|message| serde_json::from_slice::<Vec<Candidate>>(message).ok())
            .flatten()
            .collect();
        all.sort_by_key(|candidate| candidate.index);
        let (first, mut mistaken): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|candidate| candidate.index < FIRST);
        keep_gravest(&mut mistaken);
        // Every rank has the whole data set, so rank 0 draws the images that the others have
        // chosen.
        let drawn = match group.rank() {
            0 => [first, mistaken].concat(),
            _ => Vec::new(),
        };
        let predictions: Result<_, TrainError> = drawn
            .into_iter()
            .map(|candidate| draw(dataset, candidate))
            .collect();
        let rows = self
            .confusion
            .chunks(self.classes.max(1))
            .map(<[i64]>::to_vec);
        Ok(Details {
            epoch: 0,
            step: 0,
            loss: evaluation.loss,
            accuracy: evaluation.metric("accuracy").unwrap_or_default(),
            top5: evaluation.metric("top5"),
            samples: evaluation.samples,
            class_names: dataset.class_names().to_vec(),
            confusion: (!self.confusion.is_empty()).then(|| rows.collect()),
            per_class: self
                .samples
                .iter()
                .zip(&self.correct)
                .map(|(&samples, &correct)| ClassCount { samples, correct })
                .collect(),
            predictions: predictions?,
        })
    }
}

impl task::Details for Details {
    fn set_moment(&mut self, epoch: u64, step: u64) {
        (self.epoch, self.step) = (epoch, step);
    }

    fn gallery(&self) -> Gallery {
        let pictures = self
            .predictions
            .iter()
            .enumerate()
            .filter_map(|(index, shown)| {
                let png = STANDARD.decode(&shown.image_png_base64).ok()?;
                let (group, number) = match index.checked_sub(FIRST) {
                    None => ("examples", index),
                    Some(number) => ("mistakes", number),
                };
                Some(SampleImage {
                    group,
                    number,
                    png,
                    caption: self.caption(shown),
                })
            });
        Gallery {
            step: self.step,
            set: String::new(),
            pictures: pictures.collect(),
            names: self.class_names.clone(),
            confusion: self.confusion.clone().unwrap_or_default(),
        }
    }
}

impl Details {
    /// The class of an image, and the likeliest ones in the model's eyes.
    fn caption(&self, shown: &Prediction) -> String {
        let name = |class: usize| match self.class_names.get(class) {
            Some(name) => name.clone(),
            None => class.to_string(),
        };
        let percent =
            |guess: &Guess| format!("{} {:.0} %", name(guess.class), 100.0 * guess.probability);
        let guesses: Vec<String> = shown.top.iter().map(percent).collect();
        format!("{}: {}", name(shown.label), guesses.join(", "))
    }
}

/// Keeps the most confident mistakes; among equal ones, the first.
fn keep_gravest(mistaken: &mut Vec<Candidate>) {
    mistaken.sort_by(|a, b| {
        let by_confidence = b.confidence().total_cmp(&a.confidence());
        by_confidence.then(a.index.cmp(&b.index))
    });
    mistaken.truncate(MISTAKEN);
}

/// The classes with the highest scores, and their softmax probabilities.
fn likeliest(scores: &[f32]) -> Vec<Guess> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |score: f32| f64::from(score - highest).exp();
    let sum: f64 = scores.iter().map(|score| weight(*score)).sum();
    let mut classes: Vec<usize> = (0..scores.len()).collect();
    // Higher scores first; among equal ones, the first class.
    let order = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    if CLASSES < classes.len() {
        classes.select_nth_unstable_by(CLASSES, order);
        classes.truncate(CLASSES);
    }
    classes.sort_by(order);
    classes
        .into_iter()
        .map(|class| Guess {
            class,
            probability: weight(scores[class]) / sum,
        })
        .collect()
}

fn draw(dataset: &dyn Dataset, candidate: Candidate) -> Result<Prediction, TrainError> {
    let shape = dataset.shape();
    let mut pixels = vec![0; shape.len()];
    dataset.read(candidate.index, &mut pixels)?;
    Ok(Prediction {
        image_png_base64: STANDARD.encode(png(&pixels, shape)),
        label: candidate.label,
        top: candidate.top,
    })
}

/// A thumbnail of an image in channel-major order.
fn png(pixels: &[u8], shape: ImageShape) -> Vec<u8> {
    let plane = shape.height * shape.width;
    let at = |channel: usize, pixel: usize| pixels.get(channel * plane + pixel).copied();
    let (width, height) = (shape.width as u32, shape.height as u32);
    let picture = if shape.channels == 3 {
        let bytes = (0..3 * plane).map(|i| at(i % 3, i / 3).unwrap_or_default());
        RgbImage::from_raw(width, height, bytes.collect()).map(DynamicImage::from)
    } else {
        let bytes = (0..plane).map(|i| at(0, i).unwrap_or_default());
        GrayImage::from_raw(width, height, bytes.collect()).map(DynamicImage::from)
    };
    let mut bytes = Vec::new();
    if let Some(mut picture) = picture {
        if width.max(height) > SIDE {
            picture = picture.thumbnail(SIDE, SIDE);
        }
        // Writing to memory cannot fail; an empty picture is no reason to stop.
        let _ = picture.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::{Digits, Split};

    #[test]
    fn the_likeliest_classes_come_first() {
        let guesses = likeliest(&[1.0, 3.0, 3.0, 0.0, 2.0]);
        let classes: Vec<usize> = guesses.iter().map(|guess| guess.class).collect();
        assert_eq!(classes, [1, 2, 4]);
        let exp = |x: f64| x.exp();
        let sum = exp(1.0) + 2.0 * exp(3.0) + exp(0.0) + exp(2.0);
        assert!((guesses[2].probability - exp(2.0) / sum).abs() < 1e-12);
        assert_eq!(likeliest(&[0.5]).len(), 1);
        assert!(likeliest(&[]).is_empty());
    }

    #[test]
    fn mistakes_and_first_images_are_kept() {
        let data = Digits::new(Split::Test, 100, 1);
        let mut tally = Tally::new(10);
        for index in 0..100 {
            // Every third image is predicted as the next class, with growing confidence.
            let label = index % 10;
            let predicted = if index % 3 == 0 {
                (label + 1) % 10
            } else {
                label
            };
            let mut scores = [0f32; 10];
            scores[predicted] = index as f32 / 10.0;
            tally.see(index, label, predicted, &scores);
        }
        let evaluation = Evaluation::new(0.5, 100, [("accuracy", 0.66)]);
        let details = tally
            .gather(&data, &evaluation, &ProcessGroup::single())
            .unwrap();
        assert_eq!(details.per_class.len(), 10);
        let total: i64 = details.per_class.iter().map(|class| class.samples).sum();
        let correct: i64 = details.per_class.iter().map(|class| class.correct).sum();
        assert_eq!((total, correct), (100, 66));
        let confusion = details.confusion.as_ref().unwrap();
        let diagonal: i64 = (0..10).map(|class| confusion[class][class]).sum();
        assert_eq!(diagonal, 66);
        assert_eq!(details.predictions.len(), FIRST + MISTAKEN);
        let gravest = &details.predictions[FIRST];
        assert_eq!((gravest.label, gravest.top[0].class), (9, 0));
        let png = STANDARD.decode(&gravest.image_png_base64).unwrap();
        let picture = image::load_from_memory(&png).unwrap();
        assert_eq!((picture.width(), picture.height()), (28, 28));
    }

    #[test]
    fn pictures_keep_their_colours_and_shrink() {
        let shape = ImageShape {
            channels: 3,
            height: 100,
            width: 200,
        };
        let plane = shape.height * shape.width;
        let pixels = [vec![200; plane], vec![100; plane], vec![50; plane]].concat();
        let picture = image::load_from_memory(&png(&pixels, shape)).unwrap();
        assert_eq!((picture.width(), picture.height()), (64, 32));
        assert_eq!(picture.to_rgb8().get_pixel(5, 5).0, [200, 100, 50]);
    }

    #[test]
    fn very_many_classes_have_no_matrix() {
        assert!(Tally::new(MATRIX_CLASSES + 1).confusion.is_empty());
    }
}
