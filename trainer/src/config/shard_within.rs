//! `parallel.shard_within`: the ranks that a strategy shards over, as a word or a number.

use std::fmt;

use burn_dist::parallel::{ShardWithin, Strategy};
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

use super::error::Fault;
use super::sections::ParallelConfig;

const KEY: &str = "parallel.shard_within";

pub(super) fn serialize<S: Serializer>(value: &ShardWithin, to: S) -> Result<S::Ok, S::Error> {
    match value {
        ShardWithin::Ranks(ranks) => to.serialize_u64(ranks.get() as u64),
        word => to.collect_str(word),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ShardWithin, D::Error> {
    from.deserialize_any(WordOrNumber)
}

struct WordOrNumber;

impl Visitor<'_> for WordOrNumber {
    type Value = ShardWithin;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\", \"node\", or a number of ranks")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ShardWithin, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, ranks: i64) -> Result<ShardWithin, E> {
        self.visit_str(&ranks.to_string())
    }

    fn visit_u64<E: Error>(self, ranks: u64) -> Result<ShardWithin, E> {
        self.visit_str(&ranks.to_string())
    }
}

/// Checks that need no world size.
pub(super) fn check(parallel: &ParallelConfig) -> Result<(), Fault> {
    if parallel.strategy != Strategy::Ddp || parallel.shard_within == ShardWithin::All {
        return Ok(());
    }
    let value = parallel.shard_within;
    Err(Fault::in_key(
        KEY,
        format!("`{KEY}` = {value} has no effect with the strategy `ddp`, which shards nothing"),
    )
    .help("remove it, or set parallel.strategy to zero-1, zero-2 or zero-3"))
}

/// Checks that `world` ranks can be divided this way. Only the ranks know their nodes.
pub(super) fn check_world(parallel: &ParallelConfig, world: usize) -> Result<(), Fault> {
    let checked = parallel.shard_within.check(world);
    checked.map_err(|error| Fault::in_key(KEY, error.to_string()))
}
