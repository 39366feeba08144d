//! Ports of the store that all ranks of a run derive alike, where nobody has chosen one for it.

use crate::wire::Secret;
use crate::world::Master;

/// Ports of the store: below those that Linux gives to outgoing connections.
const FIRST_PORT: u16 = 16_384;
const NUMBER_OF_PORTS: u16 = 16_384;
/// Ports that are tried: the first may belong to another program or run.
pub(super) const TRIED_PORTS: usize = 4;

/// The store on `host`, at ports that follow from the `secret` of the run: most likely not those of
/// others, and nobody else can tell beforehand which they are.
pub(super) fn master(host: String, secret: &Secret) -> Master {
    let hash = secret.derive(b"ports of the store");
    let mut ports = (0..TRIED_PORTS).map(|at| {
        let word = u16::from_le_bytes([hash.key()[2 * at], hash.key()[2 * at + 1]]);
        FIRST_PORT + word % NUMBER_OF_PORTS
    });
    let first = ports.next().unwrap_or(FIRST_PORT);
    Master {
        fallback: ports.collect(),
        ..Master::new(host, first)
    }
}
