//! What normalizations are computed on: matrices in the memory of a GPU, of a row per pixel or
//! token and a column per channel or feature.

use burn::backend::Cube;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::kernel::{into_contiguous, slice};
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Numbers of a vector, at most: as many as are read at once in f32.
const VECTOR: usize = 4;

/// A tensor \[…, columns\] whose rows lie in memory one after the other.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    tensor: CubeTensor,
}

impl Matrix {
    /// The last dimension of `tensor` are the columns.
    pub fn new(tensor: CubeTensor) -> Self {
        Self {
            tensor: into_contiguous(tensor),
        }
    }

    /// Of images \[batch, channels, height, width\], with a row per pixel: without a copy where
    /// their channels lie last already, as those of every convolution's result do.
    pub fn of_images(images: CubeTensor) -> Self {
        Self::new(permute_nchw_to_nhwc(images))
    }

    /// As images \[batch, channels, height, width\], where they lie.
    pub fn into_images(self) -> CubeTensor {
        permute_nhwc_to_nchw(self.tensor)
    }

    /// Of values that are computed each by itself: images \[batch, channels, height, width\] as
    /// [`Self::of_images`].
    pub fn of_values(values: CubeTensor) -> Self {
        match values.meta.shape().num_dims() {
            4 => Self::of_images(values),
            _ => Self::new(values),
        }
    }

    /// In the order of dimensions that [`Self::of_values`] was given.
    pub fn into_values(self) -> CubeTensor {
        match self.tensor.meta.shape().num_dims() {
            4 => self.into_images(),
            _ => self.tensor,
        }
    }

    /// As it was given.
    pub fn into_tensor(self) -> CubeTensor {
        self.tensor
    }

    /// A matrix for results, of as many rows and columns, and of the same type.
    pub fn empty_like(&self) -> Self {
        let shape = self.tensor.meta.shape().clone();
        Self {
            tensor: memory(&self.tensor, shape, self.tensor.dtype),
        }
    }

    /// Memory on the same device for results of the same type and another shape.
    pub fn empty<const D: usize>(&self, shape: [usize; D]) -> Self {
        Self {
            tensor: memory(&self.tensor, Shape::new(shape), self.tensor.dtype),
        }
    }

    /// Memory on the same device for numbers in f32.
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

    /// Numbers of a vector; a row is made of whole ones.
    pub fn vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| size <= VECTOR && columns.is_multiple_of(size))
    }

    /// The same where the numbers of other types are read apart: as many as are read at once in its
    /// own type.
    pub fn wide_vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| columns.is_multiple_of(size))
    }

    /// Numbers of a vector where rows do not matter: as many as are read at once in its own type.
    pub fn flat_vector(&self) -> usize {
        let count = self.tensor.meta.shape().num_elements();
        self.widest(|size| count.is_multiple_of(size))
    }

    /// Numbers of the largest vector that fits, of those that the device reads at once.
    fn widest(&self, fits: impl Fn(usize) -> bool) -> usize {
        let bytes = self.tensor.dtype.size();
        let sizes = self.client().io_optimized_vector_sizes(bytes);
        sizes.filter(|size| fits(*size)).max().unwrap_or(1)
    }

    /// How many of these vectors there are.
    pub fn flat_vectors(&self) -> usize {
        self.tensor.meta.shape().num_elements() / self.flat_vector()
    }

    /// Vectors of a row.
    pub fn row_vectors(&self) -> usize {
        self.columns() / self.vector()
    }

    pub fn client(&self) -> &cubecl::client::Client {
        &self.tensor.client
    }

    /// What a kernel gets.
    pub fn arg(&self) -> BufferArg {
        self.tensor.clone().into_buffer_arg()
    }

    pub fn is_f32(&self) -> bool {
        self.tensor.dtype == DType::F32
    }

    /// Its type, as kernels want it.
    pub fn elem(&self) -> ElemType {
        dtype_to_storage_type(self.tensor.dtype)
    }

    /// How wide its indices are.
    pub fn address(&self) -> AddressType {
        self.tensor.required_address_type()
    }
}

/// What kernels are launched on.
///
/// # Panics
/// If the tensor is not on a GPU, or has autodiff.
pub(super) fn primitive<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    let tensor = tensor.try_into_primitive::<Cube>();
    tensor.expect("a tensor on a GPU, without autodiff")
}

/// The same of integers.
///
/// # Panics
/// As [`primitive`].
pub(super) fn primitive_int<const D: usize>(tensor: Tensor<D, Int>) -> CubeTensor {
    let tensor = tensor.try_into_primitive::<Cube>();
    tensor.expect("a tensor on a GPU, without autodiff")
}

/// Flat numbers in memory that nobody else sees change.
///
/// # Panics
/// As [`primitive`].
pub(super) fn changeable(tensor: Tensor<1>) -> Matrix {
    let tensor = into_contiguous(primitive(tensor));
    Matrix::new(match tensor.can_mut() {
        true => tensor,
        false => tensor.copy(),
    })
}

/// Memory on the same device.
pub(super) fn memory(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    let client = like.client.clone();
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client, like.device.clone(), shape, handle, dtype)
}

/// How wide the indices of all of them are.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}

/// What a kernel gets.
pub(super) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// One row of a tensor \[rows, columns\], as a tensor of its own.
pub(super) fn row_of(matrix: &CubeTensor, row: usize) -> CubeTensor {
    let columns = matrix.meta.shape().iter().last().copied().unwrap_or(0);
    let (client, device) = (matrix.client.clone(), matrix.device.clone());
    let row = slice(matrix.clone(), &[row..row + 1, 0..columns]);
    // A row lies in memory in one piece.
    CubeTensor::new_contiguous(client, device, Shape::new([columns]), row.handle, row.dtype)
}
