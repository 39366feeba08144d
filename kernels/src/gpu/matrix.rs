//! Matrices in GPU memory, with a row per pixel or token and a column per channel or feature. The
//! normalizations work on them.

use burn::backend::Cube;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::kernel::{into_contiguous, slice};
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Largest vector length, which is the number of f32 values that are read at once.
const VECTOR: usize = 4;

/// A tensor \[…, columns\] whose rows are adjacent in memory.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    tensor: CubeTensor,
}

impl Matrix {
    /// Creates a matrix whose columns are the last dimension of `tensor`.
    pub fn new(tensor: CubeTensor) -> Self {
        Self {
            tensor: into_contiguous(tensor),
        }
    }

    /// Creates a matrix of images \[batch, channels, height, width\], with a row per pixel. It
    /// needs no copy if the images are channels-last, like every convolution's result.
    pub fn of_images(images: CubeTensor) -> Self {
        Self::new(permute_nchw_to_nhwc(images))
    }

    /// Converts to images \[batch, channels, height, width\] without a copy.
    pub fn into_images(self) -> CubeTensor {
        permute_nhwc_to_nchw(self.tensor)
    }

    /// Creates a matrix for an element-wise operation; for images \[batch, channels, height,
    /// width\] like [`Self::of_images`].
    pub fn of_values(values: CubeTensor) -> Self {
        match values.meta.shape().num_dims() {
            4 => Self::of_images(values),
            _ => Self::new(values),
        }
    }

    /// Restores the order of dimensions given to [`Self::of_values`].
    pub fn into_values(self) -> CubeTensor {
        match self.tensor.meta.shape().num_dims() {
            4 => self.into_images(),
            _ => self.tensor,
        }
    }

    /// Returns the tensor in its original form.
    pub fn into_tensor(self) -> CubeTensor {
        self.tensor
    }

    /// Allocates a matrix of the same shape and type.
    pub fn empty_like(&self) -> Self {
        let shape = self.tensor.meta.shape().clone();
        Self {
            tensor: memory(&self.tensor, shape, self.tensor.dtype),
        }
    }

    /// Allocates memory on the same device for results of the same type and another shape.
    pub fn empty<const D: usize>(&self, shape: [usize; D]) -> Self {
        Self {
            tensor: memory(&self.tensor, Shape::new(shape), self.tensor.dtype),
        }
    }

    /// Allocates memory on the same device for numbers in f32.
    pub fn numbers<const D: usize>(&self, shape: [usize; D]) -> CubeTensor {
        memory(&self.tensor, Shape::new(shape), DType::F32)
    }

    pub fn columns(&self) -> usize {
        let shape = self.tensor.meta.shape();
        shape.iter().last().copied().unwrap_or(0)
    }

    pub fn rows(&self) -> usize {
        self.tensor.meta.shape().num_elements() / self.columns().max(1)
    }

    /// Returns the vector length; a row consists of whole vectors.
    pub fn vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| size <= VECTOR && columns.is_multiple_of(size))
    }

    /// Returns the vector length if numbers of other types are read separately: as many as are read
    /// at once in its own type.
    pub fn wide_vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| columns.is_multiple_of(size))
    }

    /// Returns the vector length if rows do not matter: as many as are read at once in its own
    /// type.
    pub fn flat_vector(&self) -> usize {
        let count = self.tensor.meta.shape().num_elements();
        self.widest(|size| count.is_multiple_of(size))
    }

    /// Returns the largest vector length that fits, of those that the device reads at once.
    fn widest(&self, fits: impl Fn(usize) -> bool) -> usize {
        let bytes = self.tensor.dtype.size();
        let sizes = self.client().io_optimized_vector_sizes(bytes);
        sizes.filter(|size| fits(*size)).max().unwrap_or(1)
    }

    /// Returns the number of these vectors.
    pub fn flat_vectors(&self) -> usize {
        self.tensor.meta.shape().num_elements() / self.flat_vector()
    }

    /// Returns the vectors of a row.
    pub fn row_vectors(&self) -> usize {
        self.columns() / self.vector()
    }

    pub fn client(&self) -> &cubecl::client::Client {
        &self.tensor.client
    }

    /// Returns the kernel argument.
    pub fn arg(&self) -> BufferArg {
        self.tensor.clone().into_buffer_arg()
    }

    pub fn is_f32(&self) -> bool {
        self.tensor.dtype == DType::F32
    }

    /// Returns the type for kernels.
    pub fn elem(&self) -> ElemType {
        dtype_to_storage_type(self.tensor.dtype)
    }

    /// Returns the width of its indices.
    pub fn address(&self) -> AddressType {
        self.tensor.required_address_type()
    }
}

/// Returns the primitive that kernels are launched on.
///
/// # Panics
///
/// Panics if the tensor is not on a GPU, or has autodiff.
pub(super) fn primitive<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    let tensor = tensor.try_into_primitive::<Cube>();
    tensor.expect("a tensor on a GPU, without autodiff")
}

/// Returns the primitive of an integer tensor.
///
/// # Panics
///
/// Panics in the same cases as [`primitive`].
pub(super) fn primitive_int<const D: usize>(tensor: Tensor<D, Int>) -> CubeTensor {
    let tensor = tensor.try_into_primitive::<Cube>();
    tensor.expect("a tensor on a GPU, without autodiff")
}

/// Returns flat numbers in memory that may be changed because nobody else owns it.
///
/// # Panics
///
/// Panics in the same cases as [`primitive`].
pub(super) fn changeable(tensor: Tensor<1>) -> Matrix {
    let tensor = into_contiguous(primitive(tensor));
    Matrix::new(match tensor.can_mut() {
        true => tensor,
        false => tensor.copy(),
    })
}

/// Allocates memory on the same device.
pub(super) fn memory(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    let client = like.client.clone();
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client, like.device.clone(), shape, handle, dtype)
}

/// Returns the width of the indices of all tensors.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}

/// Returns the kernel argument.
pub(super) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// Returns one row of a tensor \[rows, columns\] as a separate tensor.
pub(super) fn row_of(matrix: &CubeTensor, row: usize) -> CubeTensor {
    let columns = matrix.meta.shape().iter().last().copied().unwrap_or(0);
    let (client, device) = (matrix.client.clone(), matrix.device.clone());
    let row = slice(matrix.clone(), &[row..row + 1, 0..columns]);
    // A row is contiguous in memory.
    CubeTensor::new_contiguous(client, device, Shape::new([columns]), row.handle, row.dtype)
}
