//! Maps items on all ranks. Rank 0 gets the results in order.

use std::fmt::Display;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::transport::TransportError;
use crate::{Error, ProcessGroup};

/// Largest number of result bytes that all ranks exchange at once.
const IN_FLIGHT: usize = 64 << 20;

/// The reason why [`map_shards`] ended early.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The work on an item failed. All ranks get this error.
    #[error("rank {rank} failed on item {item}: {reason}")]
    Item {
        /// The rank.
        rank: usize,
        /// The item.
        item: usize,
        /// The message of the error.
        reason: String,
    },
    /// Rank 0 could not take a result. All ranks get this error.
    #[error("rank 0 could not take the result of item {item}: {reason}")]
    Take {
        /// The item.
        item: usize,
        /// The message of the error.
        reason: String,
    },
    /// The ranks were given different items.
    #[error(
        "rank {rank} maps the items {}..{}, rank 0 the items {}..{}. Give all ranks the same items",
        theirs.start, theirs.end, ours.start, ours.end
    )]
    Items {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Items of rank 0.
        ours: Range<usize>,
        /// Items of that rank.
        theirs: Range<usize>,
    },
    /// A collective failed.
    #[error(transparent)]
    Group(#[from] Error),
}

crate::debug_is_display!(MapError);

/// Calls `work` once for each of `items` on some rank, and `take` on rank 0 with each result, in
/// the order of the items. A collective call.
///
/// Ranks work in rounds of one item each: rank `r` of `n` gets items `r`, `r + n`, `r + 2n` and so
/// on, counted from the start of `items`. A result may have any length. Memory holds one round of
/// results. If items, such as batches, do not depend on the number of ranks, the results do not
/// either. To continue after a failure, start `items` after the last one taken.
///
/// ```
/// use burn_dist::{ProcessGroup, map_shards};
///
/// let group = ProcessGroup::single(); // or ProcessGroup::connect(&world)?
/// let texts = ["a", "bc", "def"];
/// let mut lengths = String::new();
/// map_shards(
///     &group,
///     0..texts.len(),
///     |item| Ok::<_, String>(texts[item].len().to_string().into_bytes()),
///     |_item, result| {
///         lengths += std::str::from_utf8(&result)?;
///         Ok::<_, std::str::Utf8Error>(())
///     },
/// )?;
/// assert_eq!(lengths, "123");
/// # Ok::<(), burn_dist::MapError>(())
/// ```
///
/// A rank waits for the slowest of a round, at most for the
/// [`first_timeout`](crate::GroupOptions::first_timeout) of the group, or its `timeout` once
/// gradients were reduced.
///
/// # Errors
/// If `work` fails, rank 0 first takes the results of all items before. Then all ranks end with
/// [`MapError::Item`] of the first failed item. If `take` fails, all ranks end with
/// [`MapError::Take`]. The group stays usable after both.
pub fn map_shards<W: Display, T: Display>(
    group: &ProcessGroup,
    items: Range<usize>,
    work: impl FnMut(usize) -> Result<Vec<u8>, W>,
    take: impl FnMut(usize, Vec<u8>) -> Result<(), T>,
) -> Result<(), MapError> {
    let piece = (IN_FLIGHT / group.size()).max(1);
    map_in_pieces(group, items, piece, work, take)
}

/// Maps like [`map_shards`]. Ranks exchange at most `piece` bytes of a result at once.
fn map_in_pieces<W: Display, T: Display>(
    group: &ProcessGroup,
    items: Range<usize>,
    piece: usize,
    mut work: impl FnMut(usize) -> Result<Vec<u8>, W>,
    mut take: impl FnMut(usize, Vec<u8>) -> Result<(), T>,
) -> Result<(), MapError> {
    check_items(group, &items)?;
    let mut not_taken = None;
    for first in items.clone().step_by(group.size()) {
        let item = first + group.rank();
        let own = match not_taken.take() {
            Some((item, reason)) => RoundMessage::NotTaken(item, reason),
            None if item >= items.end => RoundMessage::Nothing,
            None => match work(item) {
                Ok(result) => RoundMessage::Result(result),
                Err(error) => RoundMessage::Failed(error.to_string()),
            },
        };
        for (rank, message) in exchange(group, &own, piece)?.into_iter().enumerate() {
            let item = first + rank;
            match message {
                RoundMessage::Nothing => {}
                RoundMessage::Failed(reason) => return Err(MapError::Item { rank, item, reason }),
                RoundMessage::NotTaken(item, reason) => {
                    return Err(MapError::Take { item, reason });
                }
                RoundMessage::Result(result) if group.rank() == 0 && not_taken.is_none() => {
                    let taken = take(item, result);
                    not_taken = taken.err().map(|error| (item, error.to_string()));
                }
                RoundMessage::Result(_) => {}
            }
        }
    }
    let last = match not_taken {
        Some((item, reason)) => RoundMessage::NotTaken(item, reason),
        None => RoundMessage::Nothing,
    };
    match exchange(group, &last, piece)?.swap_remove(0) {
        RoundMessage::NotTaken(item, reason) => Err(MapError::Take { item, reason }),
        _ => Ok(()),
    }
}

/// Checks that all ranks have the same items. A collective call.
fn check_items(group: &ProcessGroup, items: &Range<usize>) -> Result<(), MapError> {
    let of_ranks: Vec<Range<usize>> = exchange(group, items, IN_FLIGHT)?;
    let Some(rank) = of_ranks.iter().position(|other| *other != of_ranks[0]) else {
        return Ok(());
    };
    Err(MapError::Items {
        rank,
        ours: of_ranks[0].clone(),
        theirs: of_ranks[rank].clone(),
    })
}

/// Message of each rank to all ranks after a round.
#[derive(Serialize, Deserialize)]
enum RoundMessage {
    /// It had no item.
    Nothing,
    /// Result of its item.
    Result(Vec<u8>),
    /// Its item failed for this reason.
    Failed(String),
    /// Rank 0 could not take the result of this item, for this reason.
    NotTaken(usize, String),
}

/// Gives every rank the messages of all ranks, in rank order, by pieces of at most `piece` bytes. A
/// collective call.
fn exchange<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    own: &T,
    piece: usize,
) -> Result<Vec<T>, Error> {
    // Writing to memory does not fail. The others would refuse the empty message.
    let own = postcard::to_allocvec(own).unwrap_or_default();
    let lengths = group.gather_bytes(&(own.len() as u64).to_le_bytes())?;
    let length = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let longest = lengths.iter().map(length).max().unwrap_or(0);
    let longest = usize::try_from(longest).unwrap_or(usize::MAX);
    let mut all = vec![Vec::new(); group.size()];
    for start in (0..longest).step_by(piece) {
        let [start, end] = [start, start.saturating_add(piece)].map(|at| at.min(own.len()));
        let parts = group.gather_bytes(&own[start..end])?;
        for (message, part) in all.iter_mut().zip(parts) {
            message.extend(part);
        }
    }
    let messages = all.iter().enumerate();
    let messages = messages.map(|(rank, bytes)| {
        postcard::from_bytes(bytes).map_err(|error| {
            TransportError::Peer {
                transport: "group's",
                rank: group.world_ranks()[rank],
                reason: format!("sent an invalid result: {error}"),
            }
            .into()
        })
    });
    messages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupOptions;

    type Taken = Vec<(usize, Vec<u8>)>;

    /// Maps on `size` ranks, which fail at item `bad` and cannot take `full`. Returns what rank 0
    /// took, the items of each rank, and the outcome of each rank.
    fn mapped(
        size: usize,
        items: &Range<usize>,
        bad: usize,
        full: usize,
    ) -> (Taken, Vec<Vec<usize>>, Vec<Result<(), MapError>>) {
        let groups = ProcessGroup::in_process(size, &GroupOptions::default()).unwrap();
        let rank = |group: ProcessGroup| {
            let (mut taken, mut seen) = (Taken::new(), Vec::new());
            let work = |item| {
                seen.push(item);
                // Results of several pieces of 32 bytes, and empty ones.
                let result = vec![item as u8; 40 * (item % 3)];
                (item != bad).then_some(result).ok_or("no such luck")
            };
            let take = |item, result| {
                taken.push((item, result));
                (item != full).then_some(()).ok_or("disk full")
            };
            let outcome = map_in_pieces(&group, items.clone(), 32, work, take);
            // The group is still usable.
            group.barrier().unwrap();
            (taken, seen, outcome)
        };
        let rank = &rank;
        let ranks: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = groups
                .into_iter()
                .map(|group| scope.spawn(move || rank(group)))
                .collect();
            threads
                .into_iter()
                .map(|rank| rank.join().unwrap())
                .collect()
        });
        assert!(ranks[1..].iter().all(|(taken, ..)| taken.is_empty()));
        let taken = ranks[0].0.clone();
        let (seen, outcomes) = ranks.into_iter().map(|rank| (rank.1, rank.2)).unzip();
        (taken, seen, outcomes)
    }

    const NONE: usize = usize::MAX;

    #[test]
    fn results_come_in_order_and_once_from_any_number_of_ranks() {
        for items in [3..10, 0..2, 5..5] {
            let expected: Taken = items
                .clone()
                .map(|item| (item, vec![item as u8; 40 * (item % 3)]))
                .collect();
            for size in [1, 2, 3] {
                let (taken, seen, outcomes) = mapped(size, &items, NONE, NONE);
                assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
                assert_eq!(taken, expected, "{size} ranks");
                let mut seen = seen.concat();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(items.clone()));
            }
        }
    }

    #[test]
    fn an_item_that_fails_is_named_with_its_rank_after_those_before_it() {
        for size in [1, 2, 3] {
            let (taken, _, outcomes) = mapped(size, &(2..12), 6, NONE);
            let taken: Vec<usize> = taken.into_iter().map(|(item, _)| item).collect();
            assert_eq!(taken, [2, 3, 4, 5]);
            let expected = format!("rank {} failed on item 6: no such luck", (6 - 2) % size);
            for outcome in outcomes {
                assert_eq!(outcome.unwrap_err().to_string(), expected);
            }
        }
    }

    #[test]
    fn a_result_that_rank_0_cannot_take_ends_all_ranks() {
        // In the middle, and in the last round.
        for full in [4, 9] {
            for size in [1, 3] {
                let (taken, _, outcomes) = mapped(size, &(0..10), NONE, full);
                assert_eq!(taken.len(), full + 1);
                for outcome in outcomes {
                    let said = outcome.unwrap_err().to_string();
                    assert!(
                        said.ends_with(&format!("of item {full}: disk full")),
                        "{said}"
                    );
                }
            }
        }
    }

    #[test]
    fn ranks_with_other_items_are_named() {
        let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let items = 0..5 + group.rank();
                    let work = |_| Ok::<_, String>(Vec::new());
                    let outcome = map_shards(&group, items, work, |_, _| Ok::<_, String>(()));
                    let said = outcome.unwrap_err().to_string();
                    assert!(
                        said.starts_with("rank 1 maps the items 0..6, rank 0"),
                        "{said}"
                    );
                });
            }
        });
    }
}
