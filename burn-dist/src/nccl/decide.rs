//! Decides, with all ranks, whether they can use NCCL together.

use serde::{Deserialize, Serialize};

use crate::backend::cuda::nccl::version_words;

/// Devices and libraries of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NcclOffer {
    /// A name that no other device has; `None` if it is not a CUDA device.
    pub device: Option<String>,
    /// NCCL's version, or the reason why it is missing.
    pub version: Result<i32, String>,
}

/// Whether to use NCCL, in the same words on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Use this version.
    Use(String),
    /// Go through host memory, for this reason.
    Stage(String),
}

/// Decides from the ranks' messages, in rank order; `ranks` has their numbers in the world.
pub(crate) fn decide(messages: &[Vec<u8>], ranks: &[usize]) -> Decision {
    let mut offers = Vec::with_capacity(messages.len());
    for (rank, message) in ranks.iter().zip(messages) {
        match serde_json::from_slice::<NcclOffer>(message) {
            Ok(offer) => offers.push(offer),
            Err(_) => {
                return Decision::Stage(format!("rank {rank} speaks another protocol version"));
            }
        }
    }
    let mut devices: Vec<(&usize, &str)> = Vec::new();
    let mut versions = Vec::new();
    for (rank, offer) in ranks.iter().zip(&offers) {
        let Some(device) = offer.device.as_deref() else {
            return Decision::Stage(format!("rank {rank} does not compute on a CUDA device"));
        };
        if let Some((other, _)) = devices.iter().find(|(_, taken)| *taken == device) {
            return Decision::Stage(format!("ranks {other} and {rank} share a device"));
        }
        devices.push((rank, device));
        match &offer.version {
            Ok(version) => versions.push(*version),
            Err(reason) => return Decision::Stage(format!("rank {rank}: {reason}")),
        }
    }
    // NCCL's own rule: the same major and minor version everywhere.
    let minor = |version: &i32| version / 100;
    let Some(first) = versions.first() else {
        return Decision::Stage("the group has no ranks".to_owned());
    };
    match versions.iter().position(|v| minor(v) != minor(first)) {
        None => Decision::Use(version_words(*first)),
        Some(other) => Decision::Stage(format!(
            "rank {} has NCCL {}, rank {} has {}",
            ranks[other],
            version_words(versions[other]),
            ranks[0],
            version_words(*first)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(device: Option<&str>, version: Result<i32, &str>) -> Vec<u8> {
        let offer = NcclOffer {
            device: device.map(str::to_owned),
            version: version.map_err(str::to_owned),
        };
        serde_json::to_vec(&offer).unwrap()
    }

    fn reason(messages: &[Vec<u8>]) -> String {
        match decide(messages, &[0, 2, 4][..messages.len()]) {
            Decision::Stage(reason) => reason,
            Decision::Use(version) => panic!("used {version}"),
        }
    }

    #[test]
    fn every_rank_needs_a_device_of_its_own_and_the_library() {
        let good = |name| message(Some(name), Ok(22703));
        let all = [good("a"), good("b")];
        assert_eq!(decide(&all, &[0, 1]), Decision::Use("2.27.3".to_owned()));
        let shared = [good("a"), good("b"), good("a")];
        assert_eq!(reason(&shared), "ranks 0 and 4 share a device");
        let none = [good("a"), message(None, Ok(22703))];
        assert_eq!(reason(&none), "rank 2 does not compute on a CUDA device");
        let without = [good("a"), message(Some("b"), Err("not found"))];
        assert_eq!(reason(&without), "rank 2: not found");
        let older = [good("a"), message(Some("b"), Ok(22105))];
        assert_eq!(reason(&older), "rank 2 has NCCL 2.21.5, rank 0 has 2.27.3");
        let strange = [good("a"), b"?".to_vec()];
        assert_eq!(reason(&strange), "rank 2 speaks another protocol version");
        assert_eq!(reason(&[]), "the group has no ranks");
    }
}
