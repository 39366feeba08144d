//! Data sets with their own type that consist of another data set.

/// Makes a tuple struct a [`Dataset`](crate::Dataset) that forwards to its first field.
macro_rules! delegate_dataset {
    ($outer:ty) => {
        impl $crate::Dataset for $outer {
            fn len(&self) -> usize {
                self.0.len()
            }

            fn shape(&self) -> $crate::ImageShape {
                self.0.shape()
            }

            fn class_names(&self) -> &[String] {
                self.0.class_names()
            }

            /// Statistics of the training images.
            fn normalization(&self) -> $crate::Normalization {
                self.0.normalization()
            }

            fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, $crate::DatasetError> {
                self.0.read(index, image)
            }

            fn label(&self, index: usize) -> Result<u32, $crate::DatasetError> {
                self.0.label(index)
            }

            fn read_part(
                &self,
                index: usize,
                choose: &mut dyn FnMut(usize, usize) -> $crate::Area,
                image: &mut [u8],
            ) -> Result<u32, $crate::DatasetError> {
                self.0.read_part(index, choose, image)
            }
        }
    };
}
pub(crate) use delegate_dataset;

/// Gives a data set the functions that download what its `missing` names from its `MIRRORS`.
macro_rules! downloads {
    () => {
        /// Downloads from [`MIRRORS`](Self::MIRRORS) into `dir` what is
        /// [missing](Self::missing) there.
        ///
        /// Only one process of a node should call this, and the others wait for it.
        ///
        /// # Errors
        /// [`DatasetError::Download`] when no mirror gives a file, [`DatasetError::Io`] when it
        /// cannot be written.
        pub fn download(dir: impl AsRef<Path>) -> Result<(), DatasetError> {
            Self::download_with(&Downloader::new(Self::MIRRORS), dir)
        }

        /// As [`download`](Self::download), with other mirrors or time-outs.
        ///
        /// # Errors
        /// As [`download`](Self::download).
        pub fn download_with(
            downloader: &Downloader,
            dir: impl AsRef<Path>,
        ) -> Result<(), DatasetError> {
            downloader.fetch(&Self::missing(&dir), dir.as_ref())
        }
    };
}
pub(crate) use downloads;
