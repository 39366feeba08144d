//! Keys that are typed while the dashboard is shown.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;

use crate::system::output::screen::is_in_background;

/// A key with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// `q`: leaves the dashboard.
    Leave,
    /// `?`: shows or hides the help.
    Help,
}

/// The keyboard of the terminal that controls this process.
#[derive(Debug)]
pub(super) struct Keyboard(OwnedFd);

impl Keyboard {
    /// Opens it. Standard input is not read: that of a rank is empty.
    ///
    /// # Errors
    /// Fails if no terminal controls this process.
    pub(super) fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(Self(open("/dev/tty", flags, Mode::empty())?))
    }

    /// The keys that are typed within `patience`, at least one unless none is.
    ///
    /// Leaves the keys alone that are typed while this process is in the background: they are for
    /// another program, and reading them would stop this one.
    pub(super) fn typed(&self, patience: Duration) -> Vec<Key> {
        let limit = Timespec::try_from(patience).ok();
        let mut events = [PollFd::new(&self.0, PollFlags::IN)];
        let ready = poll(&mut events, limit.as_ref());
        let is_ready = ready.is_ok_and(|ready| ready > 0);
        let mut bytes = [0; 64];
        if !is_ready {
            return Vec::new();
        }
        match is_in_background() {
            false => {
                // An error is that of a terminal that is gone.
                let length = read(&self.0, &mut bytes).unwrap_or(0);
                if length == 0 {
                    thread::sleep(patience);
                }
                meant(&bytes[..length])
            }
            true => {
                thread::sleep(patience);
                Vec::new()
            }
        }
    }
}

/// The keys with a meaning among these bytes.
fn meant(bytes: &[u8]) -> Vec<Key> {
    let meaning = |byte: &u8| match byte {
        b'q' | b'Q' => Some(Key::Leave),
        b'?' | b'h' => Some(Key::Help),
        _ => None,
    };
    // Arrows and the like begin with an escape; their letters mean something else.
    match bytes.first() {
        Some(0x1b) => Vec::new(),
        _ => bytes.iter().filter_map(meaning).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_keys_mean_something() {
        assert_eq!(meant(b"?xq"), [Key::Help, Key::Leave]);
        assert_eq!(meant(b"\x1b[?q"), []);
        assert_eq!(meant(b""), []);
    }
}
