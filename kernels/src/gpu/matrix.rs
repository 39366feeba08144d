//! Matrices in the memory of a GPU, for normalizations: a row per pixel or token and a column per
//! channel or feature.

use burn::backend::Cube;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::kernel::{into_contiguous, slice};
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Maximum numbers of a vector: as many as are read at once in f32.
const VECTOR: usize = 4;

/// Launches a kernel with a unit for each vector of some matrices of one shape and type, and
/// returns the matrix that it writes. As unsafe as the kernel's launch.
macro_rules! of_each_vector {
    ($kernel:ident($first:ident $(, $other:ident)*)) => {{
        let (client, vectors, out) = ($first.client(), $first.flat_vectors(), $first.empty_like());
        $kernel::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, vectors, $crate::gpu::cube::sums::cube()),
            $crate::gpu::cube::sums::cube(),
            $first.address(),
            $first.flat_vector(),
            $first.arg(),
            $($other.arg(),)*
            out.arg(),
            vectors,
            $first.elem(),
        );
        out
    }};
}
pub(super) use of_each_vector;

/// A tensor \[…, columns\] whose rows are adjacent in memory.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    tensor: CubeTensor,
}

impl Matrix {
    /// The last dimension of `tensor` is the columns.
    pub fn new(tensor: CubeTensor) -> Self {
        Self {
            tensor: into_contiguous(tensor),
        }
    }

    /// Images \[batch, channels, height, width\], with a row per pixel. No copy if their channels
    /// are already last, as in the result of every convolution.
    pub fn of_images(images: CubeTensor) -> Self {
        Self::new(permute_nchw_to_nhwc(images))
    }

    /// As images \[batch, channels, height, width\], without a copy.
    pub fn into_images(self) -> CubeTensor {
        permute_nhwc_to_nchw(self.tensor)
    }

    /// Values for element-wise operations: images \[batch, channels, height, width\] as in
    /// [`Self::of_images`].
    pub fn of_values(values: CubeTensor) -> Self {
        match values.meta.shape().num_dims() {
            4 => Self::of_images(values),
            _ => Self::new(values),
        }
    }

    /// In the order of dimensions of the argument of [`Self::of_values`].
    pub fn into_values(self) -> CubeTensor {
        match self.tensor.meta.shape().num_dims() {
            4 => self.into_images(),
            _ => self.tensor,
        }
    }

    /// As the original tensor.
    pub fn into_tensor(self) -> CubeTensor {
        self.tensor
    }

    /// A matrix for results, with the same size and type.
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

    /// Numbers of a vector; a row consists of whole vectors.
    pub fn vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| size <= VECTOR && columns.is_multiple_of(size))
    }

    /// The same if numbers of other types are read separately: as many as are read at once in its
    /// own type.
    pub fn wide_vector(&self) -> usize {
        let columns = self.columns();
        self.widest(|size| columns.is_multiple_of(size))
    }

    /// Numbers of a vector if rows do not matter: as many as are read at once in its own type.
    pub fn flat_vector(&self) -> usize {
        let count = self.tensor.meta.shape().num_elements();
        self.widest(|size| count.is_multiple_of(size))
    }

    /// Numbers of the largest vector that fits, among the sizes that the device reads at once.
    fn widest(&self, fits: impl Fn(usize) -> bool) -> usize {
        let bytes = self.tensor.dtype.size();
        let sizes = self.client().io_optimized_vector_sizes(bytes);
        sizes.filter(|size| fits(*size)).max().unwrap_or(1)
    }

    /// Number of these vectors.
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

    /// The kernel argument.
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

    /// The width of its indices.
    pub fn address(&self) -> AddressType {
        self.tensor.required_address_type()
    }
}

/// The primitive of a tensor, to launch kernels on.
///
/// # Panics
/// If the tensor is not on a GPU, or has autodiff.
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

/// Flat numbers in memory without another owner.
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

/// Allocates memory on the same device.
pub(super) fn memory(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    let client = like.client.clone();
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client, like.device.clone(), shape, handle, dtype)
}

/// The width of the indices of all of them.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}

/// The kernel argument of a tensor.
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
