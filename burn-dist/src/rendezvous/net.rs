//! Reads and writes that end at a deadline, and what every socket of a run is set to.

use super::auth::Timed;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How a stream failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The other side ended the connection.
    #[error("it closed the connection")]
    Closed,
    /// The deadline passed.
    #[error("it did not answer in time")]
    TimedOut,
    /// Anything else the system said.
    #[error(transparent)]
    Io(std::io::Error),
}

impl From<std::io::Error> for StreamError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
            | ErrorKind::WriteZero => Self::Closed,
            // A socket's own time limit shows as WouldBlock on Unix.
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::TimedOut,
            _ => Self::Io(error),
        }
    }
}

/// Fills `buffer`, or fails at `deadline` however slowly bytes drip in.
pub(crate) fn read_exact_by<S: Timed>(
    stream: &mut S,
    buffer: &mut [u8],
    deadline: Instant,
) -> Result<(), StreamError> {
    let mut rest = buffer;
    while !rest.is_empty() {
        stream.set_timeout(Some(remaining(deadline)?))?;
        let read = stream.read(rest);
        let count = progressed(read)?;
        rest = rest.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// Writes all of `bytes`, or fails at `deadline` however slowly they are taken.
pub(crate) fn write_all_by<S: Timed>(
    stream: &mut S,
    bytes: &[u8],
    deadline: Instant,
) -> Result<(), StreamError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        stream.set_timeout(Some(remaining(deadline)?))?;
        let written = stream.write(rest);
        let count = progressed(written)?;
        rest = rest.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// Bytes moved by one call, 0 if it is worth another try.
fn progressed(result: std::io::Result<usize>) -> Result<usize, StreamError> {
    match result {
        Ok(0) => Err(StreamError::Closed),
        Ok(count) => Ok(count),
        Err(error) => match error.kind() {
            ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(0),
            _ => Err(error.into()),
        },
    }
}

fn remaining(deadline: Instant) -> Result<Duration, StreamError> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A socket takes a limit of zero for none at all.
    match left.as_micros() {
        0 => Err(StreamError::TimedOut),
        _ => Ok(left),
    }
}

/// How long what was sent may stay unacknowledged on a connection that [`configure_control`] has set up.
#[cfg(target_os = "linux")]
const SILENCE_MS: u32 = 30_000;

/// Settings for every connection between ranks: no delay for small messages, and an end within about 30 seconds when
/// the other host vanishes without a word while nothing is sent.
pub(crate) fn configure(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 4)?;
    }
    Ok(())
}

/// [`configure`], and the same end while something is sent. Not for elements: the system takes a rank that comes late
/// to a collective, and reads nothing until then, for a vanished host (since Linux 5.11, where a window of zero
/// counts). There the collective's time-out and the news of failed ranks end the wait.
pub(crate) fn configure_control(stream: &TcpStream) -> std::io::Result<()> {
    configure(stream)?;
    // Keep-alive is silent while data waits to be acknowledged; this limits that case.
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, SILENCE_MS)?;
    Ok(())
}
