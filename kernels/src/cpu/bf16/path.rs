//! How products of bf16 factors are computed: the fastest way of this CPU, or the one that a switch
//! asks for.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use super::source::Source;
use crate::cpu::isa::Isa;
use crate::cpu::matmul;
#[cfg(target_arch = "x86_64")]
use crate::cpu::parallel::Shared;
use crate::cpu::table::{Table, table};
#[cfg(target_arch = "x86_64")]
use crate::cpu::workspace::Workspace;
use crate::error::KernelError;

/// The environment variable that forces a path of bf16 products.
pub const BF16_VARIABLE: &str = "BURN_DIST_KERNELS_BF16";

/// A way to compute products of factors rounded to bf16, with sums in f32.
///
/// Results differ in the order of sums. `Amx` and `AmxEmulated` have the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bf16Path {
    /// Tiles of AMX-BF16, on Linux.
    Amx,
    /// Dot products of pairs, AVX-512 BF16.
    Dot,
    /// f32 products of the rounded factors. Attention rounds nothing.
    F32,
    /// AMX in software, on AVX-512 BF16. Slow, and never chosen by itself.
    AmxEmulated,
}

impl Bf16Path {
    /// All paths.
    pub const ALL: [Self; 4] = [Self::Amx, Self::Dot, Self::F32, Self::AmxEmulated];

    /// Returns its name in messages and in [`BF16_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Dot => "dot",
            Self::F32 => "f32",
            Self::AmxEmulated => "amx-emulated",
        }
    }

    /// The path of a name.
    ///
    /// # Errors
    ///
    /// There is no path of that name.
    pub fn parse(name: &str) -> Result<Self, KernelError> {
        let mut all = Self::ALL.into_iter();
        all.find(|path| path.name() == name)
            .ok_or_else(|| KernelError::Bf16Name {
                variable: BF16_VARIABLE,
                value: name.to_owned(),
            })
    }

    /// The path that [`BF16_VARIABLE`] names, if it is set.
    ///
    /// # Errors
    ///
    /// There is no path of that name.
    pub fn from_env() -> Result<Option<Self>, KernelError> {
        let value = std::env::var_os(BF16_VARIABLE);
        value
            .map(|name| Self::parse(&name.to_string_lossy()))
            .transpose()
    }

    /// Whether this CPU has it, with the kernels of `isa`.
    pub fn is_available(self, isa: Isa) -> bool {
        let dot = has_dot(isa);
        match self {
            Self::F32 => true,
            Self::Dot | Self::AmxEmulated => dot,
            #[cfg(target_arch = "x86_64")]
            Self::Amx => dot && super::amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Amx => false,
        }
    }

    /// The paths of this CPU with the kernels of `isa`.
    pub fn available(isa: Isa) -> Vec<Self> {
        let all = Self::ALL.into_iter();
        all.filter(|path| path.is_available(isa)).collect()
    }

    /// The time of one product of 256 × 256 × 256 on each path of this CPU but the emulated one.
    ///
    /// Takes milliseconds, on the calling thread.
    pub fn measured(isa: Isa) -> Vec<(Self, Duration)> {
        /// Rounds. The fastest one counts. The paths take turns, so that a busy machine slows all
        /// of them down.
        const ROUNDS: usize = 8;
        let mut paths = Self::available(isa);
        paths.retain(|path| *path != Self::AmxEmulated);
        let mut times = vec![Duration::MAX; paths.len()];
        let mut probe = Probe::new(isa);
        for _ in 0..ROUNDS {
            for (&path, best) in paths.iter().zip(&mut times) {
                let start = Instant::now();
                probe.run(path);
                *best = start.elapsed().min(*best);
            }
        }
        paths.into_iter().zip(times).collect()
    }

    /// The fastest path of this CPU with the kernels of `isa`.
    pub fn fastest(isa: Isa) -> Self {
        match Self::available(isa)[..] {
            [only] => only,
            _ => Self::best(&Self::measured(isa)),
        }
    }

    /// The fastest path of a measurement. A later path must be clearly faster than an earlier one,
    /// so that noise does not change the bits of a program.
    pub fn best(measured: &[(Self, Duration)]) -> Self {
        const CLEARLY: f64 = 1.2;
        let faster = measured.iter().copied().reduce(|best, other| {
            let gain = best.1.as_secs_f64() / other.1.as_secs_f64();
            if gain > CLEARLY { other } else { best }
        });
        faster.map_or(Self::F32, |(path, _)| path)
    }

    /// Itself where this CPU has it.
    pub(crate) fn checked(self, isa: Isa) -> Result<Self, KernelError> {
        if self.is_available(isa) {
            return Ok(self);
        }
        let names: Vec<_> = Self::available(isa).into_iter().map(Self::name).collect();
        Err(KernelError::Bf16Missing {
            path: self.name(),
            available: names.join(", "),
        })
    }
}

/// Whether the CPU has AVX-512 BF16, and `isa` allows it.
fn has_dot(isa: Isa) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return isa == Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = isa;
        false
    }
}

/// A product that is measured, without the threads of a pool.
struct Probe {
    table: &'static Table,
    #[cfg(target_arch = "x86_64")]
    workspace: Workspace,
    /// Factors, product and rounded factors.
    matrices: [Vec<f32>; 5],
}

impl Probe {
    const SIZE: usize = 256;

    fn new(isa: Isa) -> Self {
        Self {
            table: table(isa),
            #[cfg(target_arch = "x86_64")]
            workspace: Workspace::default(),
            matrices: [0.5, 0.25, 0.0, 0.0, 0.0].map(|value| vec![value; Self::SIZE * Self::SIZE]),
        }
    }

    fn run(&mut self, path: Bf16Path) {
        let [left, right, product, rounded_left, rounded_right] = &mut self.matrices;
        #[cfg(target_arch = "x86_64")]
        if let Some(multiply) = super::small_product(path) {
            let source = |matrix: &[f32], lane, step| Source {
                start: Shared::read_only(matrix),
                lane,
                step,
            };
            let left = source(left, Self::SIZE, 1);
            let right = source(right, 1, Self::SIZE);
            let (size, to) = ([Self::SIZE; 3], (product.as_mut_ptr(), Self::SIZE));
            // SAFETY: the path is available; all matrices have this size.
            return unsafe { multiply(&self.workspace, size, &left, &right, to) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = path;
        for (from, to) in [(&*left, &mut *rounded_left), (&*right, &mut *rounded_right)] {
            // SAFETY: both have the same length, and the table is one of this CPU.
            unsafe { (self.table.round)(from.len(), from.as_ptr(), to.as_mut_ptr()) };
        }
        let factor = |values: &[f32]| (values.as_ptr(), Self::SIZE, 1);
        let factors = (factor(rounded_left), factor(rounded_right));
        let to = (product.as_mut_ptr(), Self::SIZE);
        // SAFETY: all matrices have this size.
        unsafe { matmul::serial([Self::SIZE; 3], factors.0, factors.1, to) };
    }
}

/// The path in force, which threads may read while it is set.
#[derive(Debug)]
pub(crate) struct Chosen(AtomicU8);

impl Default for Chosen {
    fn default() -> Self {
        Self(AtomicU8::new(Self::NONE))
    }
}

impl Chosen {
    const NONE: u8 = u8::MAX;

    pub fn get(&self) -> Option<Bf16Path> {
        let index = self.0.load(Ordering::Relaxed);
        Bf16Path::ALL.get(usize::from(index)).copied()
    }

    pub fn set(&self, path: Bf16Path) {
        let index = Bf16Path::ALL.iter().position(|other| *other == path);
        let index = index.and_then(|index| u8::try_from(index).ok());
        self.0.store(index.unwrap_or(Self::NONE), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_paths() {
        for path in Bf16Path::ALL {
            assert_eq!(Bf16Path::parse(path.name()), Ok(path));
        }
        let error = Bf16Path::parse("int8").unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("dot"), "{error}");
    }

    #[test]
    fn a_missing_path_is_an_error_that_names_the_others() {
        let error = Bf16Path::Amx.checked(Isa::Portable).unwrap_err();
        assert!(error.to_string().contains("f32"), "{error}");
    }

    #[test]
    fn a_path_must_be_clearly_faster_than_an_earlier_one() {
        let best = |times: &[(Bf16Path, u64)]| {
            let times = times.iter();
            let times: Vec<_> = times
                .map(|(path, time)| (*path, Duration::from_micros(*time)))
                .collect();
            Bf16Path::best(&times)
        };
        let (amx, dot, f32) = (Bf16Path::Amx, Bf16Path::Dot, Bf16Path::F32);
        assert_eq!(best(&[(amx, 40), (dot, 350), (f32, 210)]), amx);
        assert_eq!(best(&[(dot, 350), (f32, 210)]), f32);
        assert_eq!(best(&[(dot, 230), (f32, 210)]), dot);
        assert_eq!(best(&[(dot, 100), (f32, 210)]), dot);
        assert_eq!(best(&[]), f32);
    }

    #[test]
    fn the_emulation_is_never_the_fastest() {
        for isa in Isa::available() {
            let measured = Bf16Path::measured(isa);
            assert!(
                measured
                    .iter()
                    .all(|(path, _)| *path != Bf16Path::AmxEmulated)
            );
            assert!(Bf16Path::fastest(isa).is_available(isa));
        }
    }
}
