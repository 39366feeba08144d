//! Chooses the fastest of the promising tiles on this device. With the feature `tune` they are
//! timed once for every shape; otherwise the first one is used. All of them give the same bits.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, local_tuner};

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
    if !crate::gpu::TUNES {
        return run(tiles[0]);
    }
    static TUNER: LocalTuner<String, burn_cubecl::CubeTuneId> = local_tuner!("convolution");
    let id = burn_cubecl::CubeTuneId::new(&like.client, &like.device);
    let set = TUNER.init(&id, || {
        let set = TunableSet::<_, Candidates, _>::new_cloning_inputs(|candidates: &Candidates| {
            candidates.name.clone()
        });
        (0..CANDIDATES).fold(set, |set, n| {
            let run = move |candidates: Candidates| candidates.run(n);
            set.with(Tunable::new(&format!("tile {n}"), run))
        })
    });
    let candidates = Candidates {
        name: name(),
        tiles: tiles.to_vec(),
        run: Arc::new(run),
    };
    TUNER.execute(&id, &like.client, set, candidates)
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
