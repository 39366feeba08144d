//! Chooses the fastest of the promising tiles on this device. With the feature `tune` they are
//! timed for every shape, unless an earlier process has kept its choice; otherwise the first one is
//! used. All of them give the same bits.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use burn_cubecl::CubeTuneId;
use burn_cubecl::tensor::CubeTensor;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, local_tuner};
use parking_lot::Mutex;

use super::super::choices::{self, Choices};
use super::tile::Tile;

/// Number of timed tiles.
pub(super) const CANDIDATES: usize = 3;

/// Stands for `tiles` in a name: timings of other tiles do not apply.
pub(super) fn tried(tiles: &[Tile]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    tiles.hash(&mut hasher);
    hasher.finish()
}

/// The result of `run` in the fastest of `tiles`, which must not be empty. `name` names the
/// computation, with all sizes that its time depends on.
pub(super) fn fastest(
    name: impl Fn() -> String,
    like: &CubeTensor,
    tiles: &[Tile],
    run: impl Fn(Tile) -> CubeTensor + Send + Sync + 'static,
) -> CubeTensor {
    match crate::gpu::TUNES {
        true => tuned(choices::kept(), name(), like, tiles, run),
        false => run(tiles[0]),
    }
}

/// As [`fastest`], with the choices of earlier processes.
fn tuned(
    choices: Option<&dyn Choices>,
    name: String,
    like: &CubeTensor,
    tiles: &[Tile],
    run: impl Fn(Tile) -> CubeTensor + Send + Sync + 'static,
) -> CubeTensor {
    /// By device and computation: the fastest, or `None` until it is known.
    type Chosen = HashMap<(CubeTuneId, String), Option<Tile>>;
    static CHOSEN: LazyLock<Mutex<Chosen>> = LazyLock::new(Mutex::default);
    static TUNER: LocalTuner<String, CubeTuneId> = local_tuner!("convolution");

    let device = usize::from(like.device.to_id().index_id);
    let id = CubeTuneId::new(&like.client, &like.device);
    let key = (id, name);
    let read = || {
        let number = choices?.read(device, &key.1)?;
        tiles.get(number).copied()
    };
    let known = CHOSEN.lock().get(&key).copied();
    let chosen = known.unwrap_or_else(read);
    if known.is_none() {
        CHOSEN.lock().insert(key.clone(), chosen);
    }
    if let Some(tile) = chosen {
        return run(tile);
    }
    let id = &key.0;
    let set = TUNER.init(id, || {
        let set =
            TunableSet::<_, Candidates, _, usize>::new_cloning_inputs(|candidates: &Candidates| {
                candidates.name.clone()
            });
        (0..CANDIDATES).fold(set, |set, n| {
            let run = move |candidates: Candidates| candidates.run(n);
            set.with(Tunable::identified(n, run))
        })
    });
    let candidates = Candidates {
        name: key.1.clone(),
        tiles: tiles.to_vec(),
        run: Arc::new(run),
    };
    let out = TUNER.execute(id, &like.client, set.clone(), candidates);
    if let Some(number) = TUNER.fastest_identity(id, &set, &key.1) {
        if let Some(choices) = choices {
            choices.write(device, &key.1, number);
        }
        let chosen = tiles.get(number).copied();
        CHOSEN.lock().insert(key, chosen);
    }
    out
}

/// The input of the tuner.
#[derive(Clone)]
struct Candidates {
    name: String,
    tiles: Vec<Tile>,
    run: Arc<dyn Fn(Tile) -> CubeTensor + Send + Sync>,
}

impl Candidates {
    fn run(self, n: usize) -> Result<CubeTensor, String> {
        let tile = self.tiles.get(n).copied();
        tile.map(|tile| (self.run)(tile))
            .ok_or_else(|| format!("there are {} tiles", self.tiles.len()))
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use burn::tensor::Tensor;

    use super::super::super::matrix::primitive;
    use super::super::super::test_device::device;
    use super::super::tile::{Instruction, Order};
    use super::*;

    /// Knows the fastest tile of one computation, and notes what is written.
    struct Known(&'static str, Arc<Mutex<Vec<(String, usize)>>>);

    impl Choices for Known {
        fn read(&self, _: usize, computation: &str) -> Option<usize> {
            (computation == self.0).then_some(2)
        }

        fn write(&self, _: usize, computation: &str, tile: usize) {
            self.1.lock().push((computation.to_owned(), tile));
        }
    }

    #[test]
    fn a_kept_tile_is_taken_and_a_new_one_is_kept() {
        let Some(device) = device("a_kept_tile_is_taken_and_a_new_one_is_kept") else {
            return;
        };
        let like = primitive(Tensor::<2>::ones([2, 2], &device));
        let tiles = Tile::all(Instruction::Mma, Order::Along, 1 << 17);
        let tiles: Vec<_> = tiles.take(CANDIDATES).collect();
        let written = Arc::default();
        let known = Known("known", Arc::clone(&written));
        // The tiles that one call computes in.
        let run = |computation: &str| {
            let ran = Arc::new(Mutex::new(Vec::new()));
            let (runs, out) = (Arc::clone(&ran), like.clone());
            let run = move |tile| {
                runs.lock().push(tile);
                out.clone()
            };
            tuned(Some(&known), computation.to_owned(), &like, &tiles, run);
            std::mem::take(&mut *ran.lock())
        };
        assert_eq!(run("known"), [tiles[2]]);
        assert_eq!(*written.lock(), []);

        let timed = run("new");
        assert!(tiles.iter().all(|tile| timed.contains(tile)), "{timed:?}");
        let written = written.lock().clone();
        let [(computation, chosen)] = &written[..] else {
            panic!("not one choice is kept: {written:?}");
        };
        assert_eq!(computation, "new");
        assert_eq!(run("new"), [tiles[*chosen]]);
    }
}
