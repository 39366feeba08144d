//! A folder of images for each class.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Color, ImageFolder, ImageFolderOptions, Split};

use super::{AnyDataSet, Divided, EvalSet, Opened, evenly, in_folder, no_validation};
use crate::config::error::Fault;
use crate::config::section::{keys, names};
use crate::config::validate::{MOST_PIXELS, given_in_range};

names! {
    /// `[data] color` of an image folder.
    ColorName {
        /// As in the files, which must agree.
        #[default]
        Auto = "auto",
        /// Three channels; grey images are repeated.
        Rgb = "rgb",
        /// One channel.
        Grey = "grey",
    }
}

keys! {
    /// `image-folder`: a folder of images for each class.
    ImageFolderConfig {
        /// Folder that holds the files. Default `data/image-folder`.
        dir: Option<PathBuf> = None,
        /// Side in pixels of the cropped image. Default 224.
        #[schemars(extend("unit" = "pixels"))]
        size: Option<usize> = None,
        /// Length in pixels to which the shorter side is scaled before the crop. The augmentation
        /// `resized-crop` crops from the whole picture instead. Default: `size` × 256 / 224.
        #[schemars(extend("unit" = "pixels"))]
        resize: Option<usize> = None,
        /// `rgb` and `grey` convert all images; `auto` needs files that agree. Transparent pixels
        /// become black. Images are rotated as their EXIF data says. Default `auto`.
        color: Option<ColorName> = None,
    }
}

impl AnyDataSet for ImageFolderConfig {
    fn check(&self) -> Result<(), Fault> {
        given_in_range("data.size", self.size, MOST_PIXELS)?;
        given_in_range("data.resize", self.resize, MOST_PIXELS)?;
        let side = self.side();
        if let Some(resize) = self.resize.filter(|resize| *resize < side) {
            return Err(Fault::in_key(
                "data.resize",
                format!("`data.resize` = {resize} is smaller than the image side, {side}"),
            )
            .help(
                "images are cropped after scaling: increase data.resize, or decrease data.size",
            ));
        }
        Ok(())
    }

    in_folder!("data/image-folder", dir);

    fn open(&self, split: Split, _samples: Option<usize>, seed: u64) -> Opened {
        let options = self.options(seed);
        Ok(Arc::new(ImageFolder::open(self.folder(), split, &options)?))
    }

    /// By the names of the files, so that a new file moves few others.
    fn divided(&self, share: f64, seed: u64) -> Option<Divided> {
        let mut options = self.options(seed);
        options.validation = Some(share);
        let open = |split| -> Opened {
            let opened = ImageFolder::open(self.folder(), split, &options)?;
            Ok(Arc::new(opened))
        };
        let both = || Ok([open(Split::Train)?, open(Split::Test)?]);
        Some(both())
    }

    fn open_evaluated(&self, set: EvalSet, _samples: Option<usize>, seed: u64) -> Opened {
        let mut options = self.options(seed);
        match set {
            EvalSet::Val if !self.has_val() => return Err(no_validation()),
            EvalSet::Val => {}
            EvalSet::Test => options.prefers_test = true,
        }
        let opened = ImageFolder::open(self.folder(), Split::Test, &options)?;
        Ok(Arc::new(opened))
    }

    fn has_val(&self) -> bool {
        ImageFolder::evaluation_folders(self.folder())[0]
    }

    fn has_test(&self) -> bool {
        ImageFolder::evaluation_folders(self.folder())[1]
    }

    /// Files are sorted by class, so the first files would miss classes.
    fn pick(&self, samples: usize, of: usize) -> Vec<usize> {
        evenly(samples, of)
    }

    fn is_stored(&self) -> bool {
        false
    }

    fn resize(&self) -> Option<usize> {
        // The usual ratio of a 224-pixel crop from 256 pixels.
        let usual = self.side().saturating_mul(256) / 224;
        Some(self.resize.unwrap_or(usual))
    }
}

impl ImageFolderConfig {
    fn options(&self, seed: u64) -> ImageFolderOptions {
        let mut options = ImageFolderOptions::new(self.side());
        options.resize = self.resize();
        options.color = match self.color {
            Some(ColorName::Rgb) => Color::Rgb,
            Some(ColorName::Grey) => Color::Grey,
            Some(ColorName::Auto) | None => Color::AsStored,
        };
        options.seed = seed;
        options
    }

    fn side(&self) -> usize {
        self.size.unwrap_or(224)
    }
}
