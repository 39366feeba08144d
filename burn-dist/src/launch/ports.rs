//! Ports of the store that all ranks derive alike, if none was chosen.

use crate::wire::Secret;
use crate::world::Master;

/// First port of the store's range, below Linux's range for outgoing connections.
const FIRST_PORT: u16 = 16_384;
const NUMBER_OF_PORTS: u16 = 16_384;
/// Number of ports to try: another program or run may use the first ones.
pub(super) const TRIED_PORTS: usize = 4;

/// The store on `host`, at ports derived from the run's `secret`. Other runs most likely have
/// different ports, and nobody else can predict them.
///
/// The name of the `run`, which ranks with another secret know too, gives the port at which they
/// learn of that.
pub(super) fn master(host: String, secret: &Secret, run: &str) -> Master {
    let hash = secret.derive(b"ports of the store");
    let mut ports = (0..TRIED_PORTS).map(|at| {
        let word = u16::from_le_bytes([hash.key()[2 * at], hash.key()[2 * at + 1]]);
        port(word)
    });
    let first = ports.next().unwrap_or(FIRST_PORT);
    let fallback: Vec<u16> = ports.collect();
    let named = blake3::hash(run.as_bytes());
    let notice = port(u16::from_le_bytes([
        named.as_bytes()[0],
        named.as_bytes()[1],
    ]));
    let is_free = notice != first && !fallback.contains(&notice);
    Master {
        fallback,
        notice: is_free.then_some(notice),
        ..Master::new(host, first)
    }
}

/// The port in the store's range for a number.
fn port(word: u16) -> u16 {
    FIRST_PORT + word % NUMBER_OF_PORTS
}
