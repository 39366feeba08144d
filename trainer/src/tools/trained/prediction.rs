//! Predicts the classes of image files on any number of ranks.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use burn::tensor::activation::softmax;
use burn_dist::world::World;
use burn_dist::{MapError, ProcessGroup, map_shards};
use datasets::{Dataset, DatasetError, EvalSampler, ImageShape, Loader, Normalization, read_image};
use models::ImageClassifier;
use serde::{Deserialize, Serialize};

use super::{Subject, Trained, WithTrained};
use crate::data::batch::to_tensors;
use crate::error::TrainError;
use crate::eval::evaluate::read;
use crate::run::group;

/// Maximum images per batch, and their maximum number of values.
const BATCH: usize = 64;
const MOST_NUMBERS: usize = 1 << 24;

/// A class and its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedGuess {
    /// Name of the class.
    pub class: String,
    /// Probability from 0 to 1.
    pub probability: f32,
}

/// Result for one image.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedImage<'a> {
    /// The image file.
    pub path: &'a Path,
    /// The likeliest classes, or why the image cannot be read. The reason names the file.
    pub guesses: Result<Vec<NamedGuess>, String>,
}

/// Options of a prediction.
#[derive(Clone, Copy, Debug)]
pub struct PredictOptions {
    /// Number of likeliest classes per image.
    pub top: usize,
    /// Whether to end at the first image that cannot be read.
    pub stop_at_error: bool,
}

/// Image files to predict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Todo {
    /// All files, in the order of the results.
    pub paths: Vec<PathBuf>,
    /// Number of batches at the start that were predicted before.
    pub batches_done: usize,
}

/// Rank 0's side of a prediction.
pub trait PredictionSink {
    /// Returns the images. They are predicted in batches of this many files.
    ///
    /// # Errors
    /// Any reason not to begin.
    fn begin(&mut self, batch: usize) -> Result<Todo, TrainError>;

    /// Takes the results of the next batch, in the order of the files. A break ends all ranks
    /// without an error.
    ///
    /// # Errors
    /// Any reason to end.
    fn take(&mut self, batch: &[PredictedImage<'_>]) -> Result<ControlFlow<()>, TrainError>;
}

impl Trained {
    /// Predicts the likeliest classes of image files, the likeliest first.
    ///
    /// Every rank of `world` makes this call with the same options. Rank 0's `sink` names the files
    /// and takes the results, in order. Images are scaled, center-cropped and normalized as for the
    /// run's evaluation. Batches consist of consecutive files whatever the number of ranks, so that
    /// results have the same bits.
    ///
    /// # Errors
    /// Fails if the model cannot be built, or needs a data set that cannot be read, if a rank or
    /// the sink fails, or at an unreadable image if the options say so.
    pub fn predict(
        &self,
        world: &World,
        options: PredictOptions,
        sink: &mut dyn PredictionSink,
    ) -> Result<(), TrainError> {
        group::with_group(self.config(), world, |group| {
            let predicted = self.predict_in(world, group, options, sink);
            predicted.map_err(|error| self.locate(error))
        })
    }

    /// Pixels of the shorter side before the center crop, if the training used one.
    pub(super) fn resize(&self) -> Option<usize> {
        let of_file = self.file.as_ref().and_then(|about| about.resize);
        self.config().data.kind.resize().or(of_file)
    }

    fn predict_in(
        &self,
        world: &World,
        group: &ProcessGroup,
        options: PredictOptions,
        sink: &mut dyn PredictionSink,
    ) -> Result<(), TrainError> {
        self.check_same(group)?;
        let subject = self.subject()?;
        let batch = MOST_NUMBERS / subject.shape().len().max(1);
        let batch = batch.clamp(1, BATCH);
        let todo = match group.rank() {
            0 => sink.begin(batch)?,
            _ => Todo::default(),
        };
        let todo = share(todo, group)?;
        let device = crate::system::device::choose(self.config(), world)?.device;
        let resize = self.resize().unwrap_or(subject.shape().width);
        let predict = Predict {
            images: FileClassifier {
                subject: &subject,
                resize,
                device: &device,
                options,
            },
            todo: &todo,
            batch,
            group,
            sink,
        };
        self.with_model(&subject, &device, predict)
    }
}

/// Gives all ranks the files of rank 0. A collective call.
fn share(todo: Todo, group: &ProcessGroup) -> Result<Todo, TrainError> {
    // No path contains a zero byte.
    let mut bytes = Vec::new();
    for path in &todo.paths {
        bytes.extend(path.as_os_str().as_bytes());
        bytes.push(0);
    }
    let sizes = [bytes.len() as u64, todo.batches_done as u64];
    let sizes = serde_json::to_vec(&sizes).unwrap_or_default();
    // Rank 0 may search large folders meanwhile.
    let sizes = group::gather_whenever(group, &sizes)?;
    if group.size() == 1 {
        return Ok(todo);
    }
    let sizes = sizes.first().map(Vec::as_slice).unwrap_or_default();
    let [length, batches_done]: [usize; 2] = serde_json::from_slice(sizes).unwrap_or_default();
    bytes.resize(length, 0);
    group.broadcast(&mut bytes, 0)?;
    if group.rank() == 0 {
        return Ok(todo);
    }
    let paths = bytes.split_inclusive(|byte| *byte == 0);
    let path = |bytes: &[u8]| {
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
        OsString::from_vec(bytes.to_vec()).into()
    };
    Ok(Todo {
        paths: paths.map(path).collect(),
        batches_done,
    })
}

/// Result for an image, between ranks: indices and probabilities of classes, or a reason.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Classified {
    Guesses(Vec<(usize, Bits)>),
    Unreadable(String),
}

/// An `f32` by its bits, because JSON has no NaN.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Bits(u32);

impl Classified {
    fn named(self, class_names: &[String]) -> Result<Vec<NamedGuess>, String> {
        let guesses = match self {
            Self::Guesses(guesses) => guesses,
            Self::Unreadable(reason) => return Err(reason),
        };
        let named = |(class, Bits(bits)): (usize, Bits)| NamedGuess {
            class: class_names.get(class).cloned().unwrap_or_default(),
            probability: f32::from_bits(bits),
        };
        Ok(guesses.into_iter().map(named).collect())
    }
}

struct Predict<'a> {
    images: FileClassifier<'a>,
    todo: &'a Todo,
    batch: usize,
    group: &'a ProcessGroup,
    sink: &'a mut dyn PredictionSink,
}

impl WithTrained for Predict<'_> {
    type Output = ();

    fn call<M: ImageClassifier>(self, model: M) -> Result<(), TrainError> {
        let paths = &self.todo.paths;
        let files = |batch: usize| {
            let start = (batch * self.batch).min(paths.len());
            &paths[start..paths.len().min(start + self.batch)]
        };
        let batches = paths.len().div_ceil(self.batch);
        let class_names = self.images.subject.class_names();
        // The errors themselves, beside their messages to the other ranks.
        let (mut failed, mut not_taken) = (None, None);
        let mapped = map_shards(
            self.group,
            self.todo.batches_done.min(batches)..batches,
            |batch| {
                let found = self.images.find(&model, files(batch), self.group);
                found
                    .and_then(|found| to_bytes(&found))
                    .map_err(|error| message(error, &mut failed))
            },
            |batch, result| {
                let found: Vec<Classified> = serde_json::from_slice(&result).unwrap_or_default();
                let named = files(batch).iter().zip(found);
                let named: Vec<_> = named
                    .map(|(path, found)| PredictedImage {
                        path,
                        guesses: found.named(class_names),
                    })
                    .collect();
                match self.sink.take(&named) {
                    Ok(ControlFlow::Continue(())) => Ok(()),
                    Ok(ControlFlow::Break(())) => Err("enough".to_owned()),
                    Err(error) => Err(message(error, &mut not_taken)),
                }
            },
        );
        let is_main = self.group.rank() == 0;
        match mapped {
            Ok(()) => Ok(()),
            Err(MapError::Group(error)) => Err(error.into()),
            Err(MapError::Take { .. }) => match not_taken {
                Some(error) => Err(error),
                // Rank 0 reports the error of its sink, unless that has enough.
                None => Ok(()),
            },
            // Rank 0 reports the error of any rank.
            Err(other) => match failed.filter(|_| is_main) {
                Some(error) => Err(error),
                None => Err(TrainError::Predict(other)),
            },
        }
    }
}

fn to_bytes(found: &[Classified]) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec(found).map_err(|error| TrainError::NotComputed {
        what: "a prediction".to_owned(),
        reason: error.to_string(),
    })
}

/// Keeps the error and returns its message.
fn message(error: TrainError, kept: &mut Option<TrainError>) -> String {
    let message = error.to_string();
    *kept = Some(error);
    message
}

/// Reads and classifies images.
struct FileClassifier<'a> {
    subject: &'a Subject,
    resize: usize,
    device: &'a Device,
    options: PredictOptions,
}

impl FileClassifier<'_> {
    /// Results for a batch of files.
    fn find<M: ImageClassifier>(
        &self,
        model: &M,
        paths: &[PathBuf],
        group: &ProcessGroup,
    ) -> Result<Vec<Classified>, TrainError> {
        let read = || paths.iter().map(|path| self.decode(path)).collect();
        let mut decoded: Vec<_> = group.busy().during(read);
        if self.options.stop_at_error
            && let Some(bad) = decoded.iter().position(Result::is_err)
            && let Err(error) = decoded.swap_remove(bad)
        {
            return Err(error.into());
        }
        let images = decoded.iter().flatten().cloned().collect();
        let mut guesses = self.guess(model, images)?.into_iter();
        let found = decoded.into_iter().map(|image| match image {
            Ok(_) => Classified::Guesses(guesses.next().unwrap_or_default()),
            Err(error) => Classified::Unreadable(error.to_string()),
        });
        Ok(found.collect())
    }

    fn decode(&self, path: &Path) -> Result<Vec<u8>, DatasetError> {
        let shape = self.subject.shape();
        let mut image = vec![0; shape.len()];
        read_image(path, shape, self.resize, &mut image)?;
        Ok(image)
    }

    fn guess<M: ImageClassifier>(
        &self,
        model: &M,
        images: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<(usize, Bits)>>, TrainError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let sampler = EvalSampler::new(images.len(), BATCH, 0, 1)?;
        let loader = Loader::new(Arc::new(Pictures {
            subject: self.subject.clone(),
            images,
        }))?;
        let mut guesses = Vec::new();
        for batch in loader.iter(sampler.epoch()) {
            let (images, _) = to_tensors(batch?, self.device);
            let logits = model.forward(images);
            let classes = model.num_classes().max(1);
            let probabilities = read(softmax(logits, 1).try_into_data())?;
            let probabilities: Vec<f32> = probabilities.iter::<f32>().collect();
            guesses.extend(probabilities.chunks(classes).map(|row| self.best(row)));
        }
        Ok(guesses)
    }

    fn best(&self, probabilities: &[f32]) -> Vec<(usize, Bits)> {
        let classes = self.subject.class_names().len();
        let mut guesses: Vec<_> = probabilities.iter().take(classes).enumerate().collect();
        guesses.sort_by(|a, b| b.1.total_cmp(a.1));
        guesses.truncate(self.options.top);
        let bits = |(class, probability): (usize, &f32)| (class, Bits(probability.to_bits()));
        guesses.into_iter().map(bits).collect()
    }
}

/// Decoded images of unknown class.
struct Pictures {
    subject: Subject,
    images: Vec<Vec<u8>>,
}

impl Dataset for Pictures {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn shape(&self) -> ImageShape {
        self.subject.shape()
    }

    fn class_names(&self) -> &[String] {
        self.subject.class_names()
    }

    fn normalization(&self) -> Normalization {
        self.subject.normalization()
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        let len = self.len();
        let found = self.images.get(index);
        let found = found.ok_or(DatasetError::Index { index, len })?;
        if found.len() != image.len() {
            return Err(DatasetError::Buffer {
                given: image.len(),
                needed: found.len(),
            });
        }
        image.copy_from_slice(found);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use burn_dist::GroupOptions;

    use super::*;

    #[test]
    fn all_ranks_get_the_files_of_rank_0() {
        let odd = OsString::from_vec(b"b/\xff\n.png".to_vec());
        let todo = Todo {
            paths: vec!["a.png".into(), odd.into(), "".into(), "c d.jpg".into()],
            batches_done: 7,
        };
        for todo in [todo, Todo::default()] {
            let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
            std::thread::scope(|scope| {
                for group in groups {
                    let todo = &todo;
                    scope.spawn(move || {
                        let own = match group.rank() {
                            0 => todo.clone(),
                            _ => Todo::default(),
                        };
                        assert_eq!(share(own, &group).unwrap(), *todo);
                    });
                }
            });
        }
    }

    #[test]
    fn guesses_keep_their_bits_on_the_way() {
        let found = [
            Classified::Guesses(vec![(1, Bits(f32::NAN.to_bits())), (0, Bits(0x3eaa_aaab))]),
            Classified::Unreadable("a.png: broken".to_owned()),
        ];
        let back: Vec<Classified> = serde_json::from_slice(&to_bytes(&found).unwrap()).unwrap();
        assert_eq!(back, found);
        let names = ["ant".to_owned(), "bee".to_owned()];
        let [guesses, error] = back.try_into().unwrap();
        let guesses = Classified::named(guesses, &names).unwrap();
        assert!(guesses[0].probability.is_nan() && guesses[0].class == "bee");
        assert_eq!(guesses[1].probability, 1.0 / 3.0);
        assert_eq!(error.named(&names), Err("a.png: broken".to_owned()));
    }
}
