//! Reads and writes with a deadline, and the settings of every socket of a run.

use super::auth::Timed;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The error of a stream.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The other side ended the connection.
    #[error("it closed the connection")]
    Closed,
    /// The deadline passed.
    #[error("it did not answer in time")]
    TimedOut,
    /// Any other error of the system.
    #[error(transparent)]
    Io(std::io::Error),
}

crate::debug_is_display!(StreamError);

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

/// Fills `buffer`, or fails at `deadline` however slowly bytes arrive.
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

/// Writes all of `bytes`, or fails at `deadline` however slowly they are accepted.
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

/// Bytes moved by one call, 0 if it should be retried.
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
    // A socket treats a limit of zero as no limit.
    match left.as_micros() {
        0 => Err(StreamError::TimedOut),
        _ => Ok(left),
    }
}

/// Listens at `address`. A port that the system chooses stays this listener's during a pause, as a
/// requested one does.
pub(crate) fn listen_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    #[cfg(target_os = "linux")]
    if address.port() == 0 {
        use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        // Holds the port, without listening, while another socket asks for it by number.
        let holder = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&holder, true)?;
        net::bind(&holder, &address)?;
        let held: SocketAddr = net::getsockname(&holder)?
            .try_into()
            .map_err(std::io::Error::from)?;
        return TcpListener::bind(SocketAddr::new(address.ip(), held.port()));
    }
    TcpListener::bind(address)
}

/// Listens at all addresses of this machine, of both families if it has both.
pub(crate) fn listen_everywhere(port: u16) -> std::io::Result<TcpListener> {
    match listen_at((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            listen_at((Ipv4Addr::UNSPECIFIED, port).into())
        }
        other => other,
    }
}

/// Refuses new connections from now on and keeps the port. Returns whether the system can do so.
pub(crate) fn pause_listening(listener: &TcpListener) -> bool {
    cfg!(target_os = "linux")
        && rustix::net::shutdown(listener, rustix::net::Shutdown::Both).is_ok()
}

/// Accepts new connections again. Returns whether it does: another program may have the port.
pub(crate) fn resume_listening(listener: &TcpListener) -> std::io::Result<bool> {
    let before = listener.local_addr()?;
    if before.port() == 0 {
        return Ok(false);
    }
    rustix::net::listen(listener, 128)?;
    Ok(true)
}

/// Loopback addresses.
pub(crate) const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The user whose process listens at `port`, if the system tells.
pub(crate) fn listening_user(port: u16) -> Option<u32> {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|path| {
        let table = std::fs::read_to_string(path).ok()?;
        table.lines().find_map(|line| user_in(line, port))
    })
}

/// The user in a line of `/proc/net/tcp`, if the socket listens at `port`.
fn user_in(line: &str, port: u16) -> Option<u32> {
    const LISTENS: &str = "0A";
    let mut fields = line.split_whitespace();
    let (_, local) = fields.nth(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.nth(1)? == LISTENS;
    // After the state: queues, timer, retransmissions, user.
    is_it.then(|| fields.nth(3)?.parse().ok())?
}

/// A loopback address that works.
///
/// # Errors
/// Returns the system's error if none works, for example because the interface `lo` is down.
pub(crate) fn working_loopback() -> std::io::Result<IpAddr> {
    let works = |ip: IpAddr| {
        let listener = TcpListener::bind((ip, 0))?;
        TcpStream::connect(listener.local_addr()?).map(|_| ip)
    };
    let [first, second] = LOOPBACK;
    works(first).or_else(|error| works(second).map_err(|_| error))
}

/// How long sent bytes may stay unacknowledged on a connection after [`configure_control`].
#[cfg(target_os = "linux")]
const SILENCE_MS: u32 = 30_000;

/// Configures a connection between ranks: no delay for small messages, and an end within about 30
/// seconds if the other host vanishes while nothing is sent.
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

/// Does [`configure`], and also ends the connection if the other host vanishes while data is sent.
///
/// Not for elements of collectives: since Linux 5.11 a window of zero counts, so the system would
/// treat a rank that is late and reads nothing as a vanished host. The collective's timeout and the
/// news of failed ranks end these waits.
pub(crate) fn configure_control(stream: &TcpStream) -> std::io::Result<()> {
    configure(stream)?;
    // Keep-alive is silent while data waits to be acknowledged; this limits that case.
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, SILENCE_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_who_listens_is_found() {
        let line = "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
                    65534        0 12345 1 0000000000000000 100 0 0 10 0";
        assert_eq!(user_in(line, 0x733c), Some(65534));
        assert_eq!(user_in(line, 0x733d), None);
        assert_eq!(user_in(&line.replace(" 0A ", " 01 "), 0x733c), None);
        assert_eq!(user_in("", 1), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_paused_listener_refuses_and_keeps_its_port() {
        let listener = listen_at(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(
            listening_user(address.port()),
            Some(rustix::process::geteuid().as_raw())
        );
        let mut early = TcpStream::connect(address).unwrap();
        let mut served = listener.accept().unwrap().0;
        assert!(pause_listening(&listener));
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(resume_listening(&listener).unwrap());
        TcpStream::connect(address).unwrap();
        use std::io::{Read, Write};
        early.write_all(b"!").unwrap();
        served.read_exact(&mut [0; 1]).unwrap();
    }

    #[test]
    fn everywhere_is_here_too() {
        let listener = listen_everywhere(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(
            listen_everywhere(port).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        TcpStream::connect((working_loopback().unwrap(), port)).unwrap();
    }
}
