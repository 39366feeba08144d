//! Which of the tiles that should be fast is the fastest on this device: tried out once for every
//! shape with the feature `tune`, the first of them without it. Results are the same bits in all of
//! them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, local_tuner};

use super::tile::Tile;

/// How many are tried.
pub(super) const CANDIDATES: usize = 3;

/// Stands for `tiles` in a name: what was the fastest of others says nothing of them.
pub(super) fn tried(tiles: &[Tile]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    tiles.hash(&mut hasher);
    hasher.finish()
}

/// What `run` makes in one of `tiles`, of which there is at least one. `name` says what is
/// computed, with all sizes that its time depends on.
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

/// What the tuner is given.
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
