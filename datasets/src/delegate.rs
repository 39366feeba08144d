//! Data sets that have a type of their own but consist of another one.

/// Makes a tuple struct a [`Dataset`](crate::Dataset): that of its first field.
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
