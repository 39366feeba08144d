//! Limits the memory for decoding images in all threads of the process together: a small file can
//! hold a very large picture.

use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageFormat};
use parking_lot::{Condvar, Mutex};

use super::jpeg;

/// Bytes for all pictures that are decoded at the same time.
pub(super) const BYTES: u64 = 512 << 20;

/// The budget of the process.
pub(super) static ALL: Budget = Budget::of(BYTES);

/// Bytes that are lent and returned.
pub(super) struct Budget {
    state: Mutex<State>,
    changed: Condvar,
    bytes: u64,
}

struct State {
    free: u64,
    /// Number of the next caller.
    next: u64,
    /// Number whose turn it is: small pictures must not pass a large one for ever.
    turn: u64,
}

/// Bytes of a budget, returned when this is dropped.
pub(super) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    const fn of(bytes: u64) -> Self {
        Self {
            state: Mutex::new(State {
                free: bytes,
                next: 0,
                turn: 0,
            }),
            changed: Condvar::new(),
            bytes,
        }
    }

    /// Waits for `bytes`; `None` if they exceed the budget.
    pub(super) fn take(&self, bytes: u64) -> Option<Share<'_>> {
        if bytes > self.bytes {
            return None;
        }
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let waits = |state: &mut State| state.turn != number || state.free < bytes;
        self.changed.wait_while(&mut state, waits);
        state.turn += 1;
        state.free -= bytes;
        drop(state);
        self.changed.notify_all();
        Some(Share {
            budget: self,
            bytes,
        })
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.state.lock().free += self.bytes;
        self.budget.changed.notify_all();
    }
}

/// Largest number of bytes for a picture until it is scaled: the decoded picture, and the memory of
/// its decoder, its rotation and its colour conversion. `bytes` are the beginning or all of the
/// file.
pub(super) fn need(
    decoder: &impl ImageDecoder,
    format: ImageFormat,
    orientation: Orientation,
    bytes: &[u8],
) -> u64 {
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    let decoded = decoder.total_bytes();
    let of_decoder = match format {
        ImageFormat::Jpeg => jpeg::coefficients(bytes),
        ImageFormat::WebP => pixels.saturating_mul(4),
        _ => 0,
    };
    let turned = match orientation {
        Orientation::NoTransforms => 0,
        _ => decoded,
    };
    // Converted to three channels, by way of four if it has transparency; see `decode`.
    let converted = match decoder.color_type() {
        ColorType::Rgb8 => 0,
        ColorType::Rgba8 => pixels.saturating_mul(3),
        color if color.has_alpha() => pixels.saturating_mul(4 + 3),
        _ => pixels.saturating_mul(3),
    };
    decoded.saturating_add(of_decoder.max(turned).max(converted))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_threads_together_take_no_more_than_there_is() {
        let budget = Budget::of(100);
        let (taken, most) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..8u64 {
                let (budget, taken, most) = (&budget, &taken, &most);
                scope.spawn(move || {
                    for round in 0..50 {
                        let bytes = 1 + (thread * 37 + round * 13) % 100;
                        let share = budget.take(bytes).unwrap();
                        let now = taken.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most.fetch_max(now, Ordering::SeqCst);
                        taken.fetch_sub(bytes, Ordering::SeqCst);
                        drop(share);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!((1..=100).contains(&most), "{most}");
        assert_eq!(budget.state.lock().free, 100);
    }

    #[test]
    fn what_would_never_fit_is_not_waited_for() {
        let budget = Budget::of(100);
        assert!(budget.take(101).is_none());
        assert!(budget.take(100).is_some());
    }

    #[test]
    fn a_large_picture_is_not_passed_by_small_ones() {
        let budget = Budget::of(100);
        let first = budget.take(60).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let (budget, order) = (&budget, &order);
            for bytes in [90, 20] {
                scope.spawn(move || {
                    let share = budget.take(bytes).unwrap();
                    order.lock().push(bytes);
                    drop(share);
                });
                // Until it waits.
                while budget.state.lock().next < if bytes == 90 { 2 } else { 3 } {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            assert!(order.lock().is_empty());
            drop(first);
        });
        assert_eq!(order.into_inner(), [90, 20]);
    }
}
