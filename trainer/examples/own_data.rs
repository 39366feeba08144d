//! Trains with the trainer's loop on custom images.
//!
//! `cargo run --release --example own_data -- digits.toml runs/mine train.epochs=1`: the
//! configuration, the run folder, and any number of settings.

use std::error::Error;
use std::sync::Arc;

use burn_dist::world::World;
use datasets::{Dataset, DatasetError, ImageShape, Normalization};
use trainer::config::Loaded;
use trainer::data::Splits;
use trainer::{Trainer, prepare_process};

/// Grey images with a bright bar, vertical or horizontal.
struct Bars {
    len: usize,
    /// Index of the first image, so that no image of one set is in the other.
    first: usize,
    class_names: Vec<String>,
}

const SIDE: usize = 12;

impl Bars {
    fn new(first: usize, len: usize) -> Arc<Self> {
        Arc::new(Self {
            len,
            first,
            class_names: vec!["standing".to_owned(), "lying".to_owned()],
        })
    }
}

impl Dataset for Bars {
    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self) -> ImageShape {
        ImageShape {
            channels: 1,
            height: SIDE,
            width: SIDE,
        }
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.2],
            std: vec![0.25],
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        if index >= self.len {
            let len = self.len;
            return Err(DatasetError::Index { index, len });
        }
        let number = self.first + index;
        let (lies, place) = (number % 2 == 1, number / 2 % SIDE);
        for (at, pixel) in image.iter_mut().enumerate() {
            let (row, column) = (at / SIDE, at % SIDE);
            let is_bar = place == if lies { row } else { column };
            let noise = (number * 7919 + at * 104_729) % 97;
            *pixel = noise as u8 + if is_bar { 120 } else { 0 };
        }
        Ok(u32::from(lies))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let config = args.next().unwrap_or("digits.toml".into());
    let run_dir = args.next().unwrap_or("runs/own-data".into());
    let mut settings = vec!["data.name=own".to_owned()];
    settings.extend(args);
    let loaded = Loaded::load(&config, &settings)?;
    let world = World::from_env()?;
    prepare_process(&world)?;
    let splits = Splits {
        train: Bars::new(0, 2048),
        test: Bars::new(2048, 512),
    };
    let trainer = Trainer::new(&loaded, &world).run_dir(run_dir).data(splits);
    // The configuration's model, built for these images and classes.
    let summary = trainer.run()?;
    std::process::exit(summary.exit_code())
}
