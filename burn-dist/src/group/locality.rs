//! Facts that ranks exchange before they connect: their location and their algorithm.

use serde::{Deserialize, Serialize};

use super::processors::Processors;
use super::{Algorithm, GroupOptions};

/// A digest that identifies a host or container.
type Digest = [u8; blake3::OUT_LEN];

/// A rank's location and settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Locality {
    /// Number of the algorithm in its options.
    algorithm: u8,
    /// CPUs that the rank may use, on the machine that runs one kernel.
    pub processors: Processors,
    machine: Digest,
    /// The part of the machine in which it can map the memory of others, for example a container.
    host: Digest,
    /// The part of the machine that it treats as its host, if the options say so.
    part: Option<u64>,
}

impl Locality {
    /// The location of this process as rank `rank` of the world.
    pub fn of_this_process(options: &GroupOptions, rank: usize) -> Self {
        Self {
            algorithm: options.algorithm as u8,
            processors: Processors::of_this_process(),
            machine: digest(&[boot()]),
            host: digest(&identity()),
            part: options.ranks_per_node.map(|ranks| (rank / ranks) as u64),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // Writing to memory does not fail. A reader would refuse the empty word as malformed.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes the bytes of a rank; `None` if they are malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (locality, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(locality)
    }

    pub fn goes_by(&self, algorithm: Algorithm) -> bool {
        self.algorithm == algorithm as u8
    }

    /// The host. Ranks with the same host can probably map each other's memory.
    pub fn host(&self) -> Vec<u8> {
        let part = self.part.map(u64::to_le_bytes);
        [&self.host[..], part.as_ref().map_or(&[], |part| &part[..])].concat()
    }

    /// Whether the CPU numbers of both ranks mean the same CPUs.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.machine == other.machine
    }
}

/// The kernel's boot id, or the machine's name if the kernel has none.
fn boot() -> Vec<u8> {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_else(|_| rustix::system::uname().nodename().to_bytes().to_vec())
}

/// Returns facts that two processes must share to map each other's memory.
fn identity() -> [Vec<u8>; 5] {
    let namespace = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}"));
        link.map(|path| path.as_os_str().as_encoded_bytes().to_vec())
            .unwrap_or_default()
    };
    let name = rustix::system::uname().nodename().to_bytes().to_vec();
    let user = rustix::process::geteuid().as_raw().to_le_bytes().to_vec();
    [boot(), name, namespace("pid"), namespace("net"), user]
}

fn digest(parts: &[Vec<u8>]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher
            .update(&(part.len() as u64).to_le_bytes())
            .update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;

    fn of(rank: usize, ranks_per_node: usize) -> Locality {
        let options = GroupOptions {
            ranks_per_node: NonZeroUsize::new(ranks_per_node),
            ..GroupOptions::default()
        };
        Locality::of_this_process(&options, rank)
    }

    #[test]
    fn parts_of_a_machine_are_hosts_but_share_its_processors() {
        let (first, second, third) = (of(0, 2), of(1, 2), of(2, 2));
        assert_eq!(first.host(), second.host());
        assert_ne!(second.host(), third.host());
        assert!(first.is_beside(&third));
        assert_eq!(of(0, 0).host(), of(2, 0).host());
    }

    #[test]
    fn other_algorithms_are_seen() {
        assert!(of(0, 0).goes_by(Algorithm::Auto));
        assert!(!of(0, 0).goes_by(Algorithm::NodeFirst));
    }

    proptest! {
        #[test]
        fn survive_the_wire(rank in 0..100usize, ranks_per_node in 0..4usize) {
            let locality = of(rank, ranks_per_node);
            let read = Locality::from_bytes(&locality.to_bytes());
            prop_assert_eq!(read, Some(locality));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(read) = Locality::from_bytes(&bytes) {
                let again = Locality::from_bytes(&read.to_bytes());
                prop_assert_eq!(again, Some(read));
            }
        }
    }
}
