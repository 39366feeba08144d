//! Ports of the store that all ranks of a run derive alike, where nobody has chosen one for it.

use crate::world::Master;

/// Ports of the store: below those that Linux gives to outgoing connections.
const FIRST_PORT: u16 = 16_384;
const NUMBER_OF_PORTS: u16 = 16_384;
/// Ports that are tried: the first may belong to another program or run.
pub(super) const TRIED_PORTS: usize = 4;

/// The store on `host`, at ports that follow from the name of the `run`, and most likely are not those of others.
pub(super) fn master(host: String, run: &str) -> Master {
    let hash = *blake3::hash(run.as_bytes()).as_bytes();
    let mut ports = (0..TRIED_PORTS).map(|at| {
        let word = u16::from_le_bytes([hash[2 * at], hash[2 * at + 1]]);
        FIRST_PORT + word % NUMBER_OF_PORTS
    });
    Master {
        host,
        port: ports.next().unwrap_or(FIRST_PORT),
        fallback: ports.collect(),
    }
}
