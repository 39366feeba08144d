//! Random access to the samples of tar files.

use std::fmt;

use burn_dataset::Dataset;

use super::input::HEADERS;
use super::reader::TarReader;
use super::{TarError, TarSample, TarShards};

/// The samples of tar files, in any order: a Burn data set for a [`Loader`](crate::Loader).
///
/// Made by [`TarShards::index`]. Every read opens its shard, so shards belong on a disk that is
/// fast at random reads. In return, [`TrainSampler`](crate::TrainSampler) shuffles the whole set
/// and divides it by samples, and a resume skips nothing.
///
/// ```no_run
/// use burn_dataset::Dataset;
/// use loader::{BoxError, Loader, TarShards, TrainSampler};
///
/// # fn main() -> Result<(), BoxError> {
/// let samples = TarShards::from_pattern("train/shard-{000000..000009}.tar")?.index()?;
/// let sampler = TrainSampler::new(samples.len(), 64, 16, 0, 2, 42)?;
/// let loader = Loader::new(samples, Ok::<_, BoxError>).workers(4);
/// for batch in loader.iter(sampler.epoch(0)) {
///     println!("{} samples", batch?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TarDataset {
    shards: TarShards,
    places: Vec<Place>,
}

/// A sample in a shard.
#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    start: u64,
    end: u64,
}

impl TarDataset {
    pub(super) fn new(shards: TarShards) -> Result<Self, TarError> {
        let mut places = Vec::new();
        for (shard, path) in shards.paths.iter().enumerate() {
            let mut reader = TarReader::open(path, shards.max_sample, HEADERS)?;
            if reader.is_compressed() {
                let path = path.clone();
                return Err(TarError::Compressed { path });
            }
            while let Some(place) = reader.sample(false)? {
                let (start, end) = (place.start, place.end);
                places.push(Place { shard, start, end });
            }
        }
        Ok(TarDataset { shards, places })
    }
}

impl Dataset<TarSample, TarError> for TarDataset {
    fn get(&self, index: usize) -> Result<TarSample, TarError> {
        let place = self.places.get(index);
        let found = place.and_then(|place| Some((place, self.shards.paths.get(place.shard)?)));
        let Some((place, path)) = found else {
            let len = self.places.len();
            return Err(TarError::Index { index, len });
        };
        let mut reader = TarReader::part(path, (place.start, place.end), self.shards.max_sample)?;
        let sample = reader.sample(true)?.map(|place| place.sample);
        sample.ok_or_else(|| TarError::Truncated {
            path: path.clone(),
            place: "before a sample that was there",
            offset: place.start,
        })
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

impl fmt::Debug for TarDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TarDataset")
            .field("shards", &self.shards.paths.len())
            .field("samples", &self.places.len())
            .finish_non_exhaustive()
    }
}
