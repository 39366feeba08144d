//! Divides a group: ranks with the same colour form a group of their own, as with `MPI_Comm_split`.
//!
//! They exchange addresses over their common group, so only the new transport's sockets listen. All
//! ranks take part in every exchange, whatever their colour and whether they need it or not.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::connect::{EXCHANGES, Exchange, Joining};
use super::engine::{Connection, Engine, Standing};
use super::members::Members;
use crate::error::Error;
use crate::transport::{Reach, TransportError};

/// A rank's wish: colour, key, and highest group number.
#[derive(Serialize, Deserialize)]
struct SplitRequest {
    colour: u64,
    key: u64,
    /// Highest number among the groups of this rank.
    highest: u64,
}

impl SplitRequest {
    fn encode(&self) -> Vec<u8> {
        // Writing to memory does not fail. A reader would refuse the empty request as malformed.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (request, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(request)
    }
}

/// The engine of this rank in its colour's group. A collective call; an error fails the run.
pub(super) fn split(
    parent: &mut Engine,
    (colour, key): (u64, u64),
    reach: Reach,
) -> Result<Engine, Error> {
    let result = divide(parent, (colour, key), reach);
    if let Err(error) = &result {
        // The others are waiting, perhaps in a group that does not include this rank.
        parent.break_with(&error.to_string());
    }
    result
}

fn divide(parent: &mut Engine, (colour, key): (u64, u64), reach: Reach) -> Result<Engine, Error> {
    let highest = parent.poison.highest();
    let request = SplitRequest {
        colour,
        key,
        highest,
    };
    let requests = parent.gather_bytes(&request.encode())?;
    let requests = requests.iter().enumerate().map(|(rank, request)| {
        SplitRequest::decode(request).ok_or_else(|| TransportError::Peer {
            transport: "group's",
            rank: parent.members.in_world(rank),
            reason: "sent an invalid color for the split".into(),
        })
    });
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let mine = |rank: &usize| requests[*rank].colour == colour;
    let mut chosen: Vec<usize> = (0..requests.len()).filter(mine).collect();
    chosen.sort_by_key(|rank| (requests[*rank].key, *rank));
    // Higher than the numbers of all groups of these ranks, so that no rank is in two groups with
    // the same number.
    let number = chosen.iter().map(|rank| requests[*rank].highest).max();
    let number = number.unwrap_or_default() + 1;
    let ranks = chosen.iter().map(|rank| parent.members.in_world(*rank));
    let members = Members::some(number, ranks.collect());
    let mut subset = Subset {
        parent,
        chosen,
        reach,
        exchanges: 0,
    };
    let engine = subset.connect(members)?;
    while subset.exchanges < EXCHANGES {
        subset.all_gather("nothing", &[])?;
    }
    Ok(engine)
}

/// The ranks of this rank's colour. They exchange data over their common group.
struct Subset<'a> {
    parent: &'a mut Engine,
    /// Their ranks in the common group, in the order of the new group.
    chosen: Vec<usize>,
    reach: Reach,
    exchanges: usize,
}

impl Exchange for Subset<'_> {
    fn all_gather(&mut self, _: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.exchanges += 1;
        let mut all = self.parent.gather_bytes(payload)?;
        let take = |rank: &usize| all.get_mut(*rank).map(std::mem::take);
        Ok(self.chosen.iter().filter_map(take).collect())
    }
}

impl Subset<'_> {
    fn connect(&mut self, members: Members) -> Result<Engine, Error> {
        let own = self.parent.place.rank;
        let rank = self.chosen.iter().position(|rank| *rank == own);
        let poison = self.parent.poison.clone();
        poison.raise(members.number());
        let Some(link) = self.parent.link.as_ref().filter(|_| self.chosen.len() > 1) else {
            return Ok(Engine::new(Standing::ALONE, members, None, poison));
        };
        let (store, options) = (link.store.clone(), link.options.clone());
        let server = link.server.clone();
        let mpi = link.mpi.clone();
        let joining = Joining {
            rank: rank.unwrap_or_default(),
            members: &members,
            options: &options,
            store: &store,
            has_processor: Some(self.parent.place.has_processor),
            mpi: mpi.as_ref(),
            reach: self.reach,
        };
        let joined = joining.join(self).map_err(|error| match error {
            Error::Transport(error) => Error::Transport(members.name(error)),
            other => other,
        })?;
        let link = Connection {
            collectives: joined.collectives,
            mpi,
            wiring: joined.wiring,
            store: Arc::clone(&store),
            options,
            server,
        };
        Ok(Engine::new(joined.place, members, Some(link), poison))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_survive_the_way_and_nothing_else_is_taken_for_one(
            colour: u64,
            key: u64,
            highest: u64,
            other in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let request = SplitRequest { colour, key, highest }.encode();
            let read = SplitRequest::decode(&request).unwrap();
            prop_assert_eq!((read.colour, read.key, read.highest), (colour, key, highest));
            prop_assert!(SplitRequest::decode(&[&request[..], &[0]].concat()).is_none());
            prop_assert!(SplitRequest::decode(&request[..request.len() - 1]).is_none());
            // Three numbers of at most 10 bytes each.
            prop_assert!(SplitRequest::decode(&other).is_none() || (3..=30).contains(&other.len()));
        }
    }
}
